"""Subject: looking back and going another way. Snapshots against LangGraph's list, forks and diffs by length."""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial
from typing import Final

import clew
from benchmarks.course import Course
from benchmarks.databases import KINDS, Databases
from benchmarks.messages import Messages
from benchmarks.report import Report
from benchmarks.scale import Scale
from benchmarks.sides import ClewSide, SaverSide, checkpointer, langgraph_saver
from benchmarks.timing import interleaved, peak_memory

__all__ = ["run"]

_SNAPSHOTS: Final = {"sqlite": 20.0, "postgres": 10.0}


async def run(report: Report, databases: Databases, scale: Scale) -> None:
    """Measure on both databases, on the synchronous face."""
    for kind in KINDS:
        await _snapshots(report, databases, scale, kind)
        await _with_length(report, databases, scale, kind)


async def _snapshots(report: Report, databases: Databases, scale: Scale, kind: str) -> None:
    async with AsyncExitStack() as stack:
        urls = [stack.enter_context(databases.fresh(kind)) for _ in range(2)]
        opened = await stack.enter_async_context(checkpointer(urls[0], "sync"))
        theirs = SaverSide(await stack.enter_async_context(langgraph_saver(urls[1], "sync")), "sync")
        course = Course([ClewSide(opened), theirs], Messages().message)
        await course.grow(scale.steps, spared=scale.steps - 100)
        ours, listed = await interleaved(
            scale.list_rounds,
            lambda: opened.timeline.state_history(course.thread, 100),
            lambda: theirs.list(course.thread, 100),
        )
        where, name = f"{kind}, sync", f"100 states of {scale.steps:,} messages"
        report.against(name, where, ours, listed, at_least=_SNAPSHOTS[kind])
        latest = clew.CheckpointConfig.latest(course.thread)
        with peak_memory() as one:
            opened.get_tuple(latest)
        with peak_memory() as many:
            opened.timeline.state_history(course.thread, 100)
        report.figure(
            f"{name}, peak memory over that of one",
            where,
            many.bytes / one.bytes,
            "×",
            ours=f"{many.bytes / 1e6:.3g} MB",
            at_most=3,
        )


async def _with_length(report: Report, databases: Databases, scale: Scale, kind: str) -> None:
    """Forks at 10 and 10,000 messages, diffs of neighbours at 100 and 10,000."""
    messages, where = Messages().take(scale.long_thread), f"{kind}, sync"
    lengths = (10, 100, scale.long_thread)
    with databases.fresh(kind) as url:
        async with checkpointer(url, "sync") as opened:
            heads: dict[int, list[clew.CheckpointConfig]] = {}
            for length in lengths:
                step = max(1, length // 100)
                put = [
                    opened.put(clew.Checkpoint(thread_id=f"{length}", state={"messages": messages[:end]}))
                    for end in (*range(step, length - 1, step), length - 1, length)
                ]
                heads[length] = put[-2:]
            short, longer, longest = lengths
            for what, at_most, first, second, work in (
                ("fork", 1.5, short, longest, lambda length: opened.timeline.fork(heads[length][1])),
                ("diff of neighbours", 2, longer, longest, lambda length: opened.timeline.diff(*heads[length])),
            ):
                little, much = await interleaved(
                    scale.rounds,
                    partial(work, first),
                    partial(work, second),
                    warm=3,
                )
                report.figure(
                    f"{what} at {second:,} messages over {first:,}",
                    where,
                    much.median / little.median,
                    "× the time",
                    ours=f"{little} → {much}",
                    at_most=at_most,
                )
