"""Subject: the runs of a trajectory file, a thread each, a checkpoint a message. Put and bytes, against LangGraph."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from benchmarks.course import Course
from benchmarks.databases import KINDS, Databases, size, vacuum
from benchmarks.messages import information, trajectories
from benchmarks.report import Report
from benchmarks.scale import Scale
from benchmarks.sides import ClewSide, SaverSide, Side, checkpointer, langgraph_saver
from benchmarks.timing import Timings

__all__ = ["run"]

_BARS: Final = {"sqlite": 1.0, "postgres": 1.5}


async def run(report: Report, databases: Databases, scale: Scale, path: Path) -> None:
    """Record the file on both sides."""
    runs = trajectories(path, scale.runs)
    told = sum(information(run.messages) for run in runs)
    for kind in KINDS:
        async with AsyncExitStack() as stack:
            ours_url, theirs_url = [stack.enter_context(databases.fresh(kind)) for _ in range(2)]
            sides: list[Side] = [
                ClewSide(await stack.enter_async_context(checkpointer(ours_url, "sync"))),
                SaverSide(await stack.enter_async_context(langgraph_saver(theirs_url, "sync")), "sync"),
            ]
            puts, vacuumed = [Timings(), Timings()], 0
            for run_ in runs:
                course = Course(sides, run_.messages.__getitem__)
                await course.grow(len(run_.messages))
                for timings, more in zip(puts, course.puts(0, len(run_.messages)), strict=True):
                    timings.seconds.extend(more.seconds)
                if kind == "postgres" and len(puts[0].seconds) >= (vacuumed + 1) * 100:
                    vacuumed += 1
                    vacuum(ours_url)
                    vacuum(theirs_url)
            await course.check()
            name = f"{path.name} ({len(runs)} runs)"
            report.against(f"put, {name}", f"{kind}, sync", *puts)
            ours, theirs = size(ours_url), size(theirs_url)
            report.figure(
                f"bytes on disk, {name}" + (", VACUUM every 100 puts" if kind == "postgres" else ""),
                kind,
                ours / told,
                "× the information",
                ours=f"{ours / 1024:,.0f} kB",
                theirs=f"{theirs / 1024:,.0f} kB, {theirs / told:,.0f} ×",
                at_most=_BARS[kind],
            )
