"""Subject: what a put costs as the thread grows. Its time in SQL, its time in all against packing, and its worst."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import ormsgpack

from benchmarks.databases import KINDS, Databases, vacuum
from benchmarks.messages import Messages
from benchmarks.report import Report
from benchmarks.scale import Scale
from benchmarks.sides import ClewSide, checkpointer
from benchmarks.timing import Timings

__all__ = ["run"]

_THREADS = 3


class _Clock:
    """Seconds spent inside transactions, without what Python works out there."""

    def __init__(self) -> None:
        self.sql = 0.0


async def run(report: Report, databases: Databases, scale: Scale) -> None:
    """Put threads of ``scale.steps``, and of each step take the quickest: what is left is not the machine's noise."""
    messages = Messages().take(scale.steps)
    packing = _packing(messages) - _packing(messages[:10])
    for kind in KINDS:
        with databases.fresh(kind) as url:
            async with checkpointer(url, "sync") as opened:
                with _timing_sql(opened) as clock:
                    totals, sql = zip(
                        *[await _thread(opened, url, messages, clock) for _ in range(_THREADS)], strict=True
                    )
        total, in_sql = [list(map(min, zip(*runs, strict=True))) for runs in (totals, sql)]
        window = min(scale.window, scale.steps // 3)
        early, late = slice(5, 5 + min(10, window)), slice(scale.steps - window, scale.steps)
        first, last = statistics.median(in_sql[early]), statistics.median(in_sql[late])
        report.figure(
            f"put's time in SQL, step {scale.steps:,} over step 10",
            kind,
            last / first,
            "×",
            ours=f"{first * 1000:.3g} → {last * 1000:.3g} ms",
            at_most=1.3,
        )
        growth = statistics.median(total[late]) - statistics.median(total[early])
        report.figure(
            f"put's growth to step {scale.steps:,} over packing the elements one by one",
            kind,
            growth / packing,
            "×",
            ours=f"{growth * 1000:.3g} ms, packing {packing * 1000:.3g} ms",
            at_most=2,
        )
        every = Timings(total[5:])
        report.figure("worst put over the median", kind, every.worst / every.median, "×", ours=str(every), at_most=10)


async def _thread(opened: Any, url: str, messages: list[Any], clock: _Clock) -> tuple[list[float], list[float]]:
    """The seconds of each step's put, in all and in SQL."""
    side, thread = ClewSide(opened), str(uuid4())
    totals, in_sql = [], []
    for step in range(1, len(messages) + 1):
        state = messages[:step]
        clock.sql = 0.0
        started = time.perf_counter()
        await side.put(thread, step, state)
        totals.append(time.perf_counter() - started)
        in_sql.append(clock.sql)
        if step % 100 == 0 and url.startswith("postgres"):
            vacuum(url)
    return totals, in_sql


@contextmanager
def _timing_sql(opened: Any) -> Iterator[_Clock]:
    """The time of transactions, less that of their units, plus that of the put's statements inside these."""
    clock = _Clock()
    database, dialect = opened._driver.database, type(opened._driver.core.store.dialect)
    run, put = database.run, dialect.put

    def timed_put(*arguments: Any) -> Any:
        started = time.perf_counter()
        try:
            return put(*arguments)
        finally:
            clock.sql += time.perf_counter() - started

    def timed_run(unit: Any, mode: Any, **options: Any) -> Any:
        def timed_unit(connection: Any) -> Any:
            began = time.perf_counter()
            try:
                return unit(connection)
            finally:
                clock.sql -= time.perf_counter() - began

        started = time.perf_counter()
        try:
            return run(timed_unit, mode, **options)
        finally:
            clock.sql += time.perf_counter() - started

    dialect.put, database.run = timed_put, timed_run
    try:
        yield clock
    finally:
        dialect.put = put
        del database.run


def _packing(messages: list[Any]) -> float:
    """Seconds, with the result kept until the next one is there, as a put has to."""
    seconds, kept = [], list[bytes]()
    for _ in range(31):
        started = time.perf_counter()
        packed = [ormsgpack.packb(message) for message in messages]
        seconds.append(time.perf_counter() - started)
        kept[:] = packed
    return statistics.median(seconds)
