"""Subject: a conversation of 1 kB messages, one checkpoint a message. Put, get, list and bytes, against LangGraph."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any, Final

from benchmarks.course import Course, short
from benchmarks.databases import Databases, size, vacuum
from benchmarks.messages import Messages, information
from benchmarks.report import Report
from benchmarks.scale import Scale
from benchmarks.sides import ClewSide, SaverSide, Side, checkpointer, langgraph_saver
from benchmarks.timing import Timings, interleaved, timed

__all__ = ["run"]

# (put at step 10 at most, put at step 1,000 at least, get at least, list at least)
_BARS: Final = {"sqlite": (1.5, 4.0, 1.0, 500.0), "postgres": (1.0, 15.0, 3.0, 100.0)}


async def run(report: Report, databases: Databases, scale: Scale) -> None:
    """Grow the thread on each database and face, and ask about it at ``scale.steps``."""
    for kind, face in scale.places:
        await _on(report, databases, scale, kind, face)


async def _on(report: Report, databases: Databases, scale: Scale, kind: str, face: str) -> None:
    where = f"{kind}, {face}"
    at_10, at_1000, got, listed = _BARS[kind]
    messages = Messages()
    async with AsyncExitStack() as stack:
        ours_url, theirs_url, *short_urls = [stack.enter_context(databases.fresh(kind)) for _ in range(4)]
        ours = ClewSide(await stack.enter_async_context(checkpointer(ours_url, face)))
        theirs = SaverSide(await stack.enter_async_context(langgraph_saver(theirs_url, face)), face)
        brief: list[Side] = [
            ClewSide(await stack.enter_async_context(checkpointer(short_urls[0], face))),
            SaverSide(await stack.enter_async_context(langgraph_saver(short_urls[1], face)), face),
        ]
        report.against(
            "put at step 10", where, *await short(brief, messages.message, scale.short_threads), at_most=at_10
        )

        def tend() -> None:
            if kind == "postgres":
                vacuum(ours_url)
                vacuum(theirs_url)

        course = Course([ours, theirs], messages.message, tend=tend)
        await course.grow(scale.steps)
        await course.check()
        window = min(scale.window, scale.steps // 3)
        if scale.steps > 100:
            report.against("put at step 100", where, *course.around(100, window))
        report.against(f"put at step {scale.steps:,}", where, *course.around(scale.steps, window), at_least=at_1000)

        size_of = f"{scale.steps:,} messages"
        latest = await interleaved(scale.rounds, *course.works(lambda side, thread: side.latest(thread)), warm=3)
        report.against(f"get latest, {size_of}, warm", where, *latest, at_least=got)
        cold = [Timings(), Timings()]
        for _ in range(max(2, scale.rounds // 3)):
            await _cold_get(ours_url, theirs_url, face, course.thread, cold)
        report.against(f"get latest, {size_of}, newly opened", where, *cold)
        lists = await interleaved(scale.list_rounds, *course.works(lambda side, thread: side.list(thread, 100)))
        report.against(f"list 100 of {size_of}", where, *lists, at_least=listed)
        if (kind, face) == next(place for place in scale.places if place[0] == kind):
            _bytes(report, kind, size_of, course.messages, ours_url, theirs_url)

        await course.grow(scale.far, spared=scale.far - window)
        report.against(f"put at step {scale.far:,}", where, *course.around(scale.far, window))


async def _cold_get(ours_url: str, theirs_url: str, face: str, thread: str, cold: list[Timings]) -> None:
    async with checkpointer(ours_url, face) as opened:
        cold[0].seconds.append(await timed(lambda: ClewSide(opened).latest(thread)))
    async with langgraph_saver(theirs_url, face) as saver:
        cold[1].seconds.append(await timed(lambda: SaverSide(saver, face).latest(thread)))


def _bytes(report: Report, kind: str, size_of: str, messages: list[Any], ours_url: str, theirs_url: str) -> None:
    told = information(messages)
    ours, theirs = size(ours_url), size(theirs_url)

    def line(what: str, ours: int, theirs: str, at_most: float) -> None:
        text = f"{ours / 1024:,.0f} kB"
        report.figure(what, kind, ours / told, "× the information", ours=text, theirs=theirs, at_most=at_most)

    others = f"{theirs / 1024:,.0f} kB, {theirs / told:,.0f} ×"
    if kind == "sqlite":
        line(f"bytes on disk, {size_of}", ours, others, 0.95)
    else:
        line(f"bytes on disk, {size_of}, VACUUM every 100 puts", ours, others, 1.5)
        vacuum(ours_url, "FULL")
        line(f"bytes on disk, {size_of}, after VACUUM FULL", size(ours_url), "", 1.3)
