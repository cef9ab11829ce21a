"""Subject: databases that hold much. Nothing gets slower by 100,000 checkpoints in one thread or over 1,000 threads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AsyncExitStack
from functools import partial
from itertools import count

from sqlalchemy import Connection, create_engine, func, insert, literal, select, update

import clew
from benchmarks.databases import KINDS, Databases, vacuum
from benchmarks.messages import Messages
from benchmarks.report import Report
from benchmarks.scale import Scale
from benchmarks.sides import ClewSide, checkpointer
from benchmarks.timing import interleaved, peak_memory
from clew.tables import tables_for

__all__ = ["engine_url", "run"]

_A_THREAD = 100


async def run(report: Report, databases: Databases, scale: Scale) -> None:
    """Fill the databases, the fast way, and measure."""
    for kind in KINDS:
        await _listing(report, databases, scale, kind)
        await _beside_many(report, databases, scale, kind)


async def _listing(report: Report, databases: Databases, scale: Scale, kind: str) -> None:
    with databases.fresh(kind) as url:
        async with checkpointer(url, "sync") as opened:
            for step in range(_A_THREAD):
                opened.put(clew.Checkpoint(thread_id="long", state={"step": step}, next_nodes=("agent",)))
            _multiply(url, scale.listed)
            peaks = []
            for listed in (scale.listed // 10, scale.listed // 10, scale.listed):  # the first warms it up
                with peak_memory() as peak:
                    records = opened.iterate("long", page_size=100)
                    seen = sum(1 for _, _ in zip(range(listed), records, strict=False))
                peaks.append(peak.bytes)
                if seen != listed:
                    raise RuntimeError(f"listed {seen} of {listed}")
    report.figure(
        f"peak memory of listing {scale.listed:,} over that of {scale.listed // 10:,}",
        kind,
        peaks[2] / peaks[1],
        "×",
        ours=f"{peaks[1] / 1024:,.0f} → {peaks[2] / 1024:,.0f} kB",
        at_most=1.1,
    )


def _multiply(url: str, until: int) -> None:
    """Copy the rows of the only thread behind themselves until there are so many; what they share stays shared."""
    tables = tables_for(None)
    rows, versions = tables.checkpoints, tables.versions

    def double(connection: Connection, last: int) -> None:
        moved = {
            "seq": rows.c.seq + last,
            "checkpoint_id": rows.c.checkpoint_id + literal(f"-{last}"),
            "parent_checkpoint_id": literal(None),
        }
        columns = [moved.get(column.name, column) for column in rows.columns]
        copies = select(*columns).where(rows.c.seq <= until - last)
        connection.execute(insert(rows).from_select([column.name for column in rows.columns], copies))

    engine = create_engine(engine_url(url))
    with engine.begin() as connection:
        while (last := connection.execute(select(func.max(rows.c.seq))).scalar_one()) < until:
            double(connection, last)
        connection.execute(update(versions).values(version=versions.c.version + 1, last_seq=last))
    engine.dispose()


async def _beside_many(report: Report, databases: Databases, scale: Scale, kind: str) -> None:
    """The same thread in a database by itself and in one with many like it."""
    messages = Messages().take(_A_THREAD)
    async with AsyncExitStack() as stack:
        urls = [stack.enter_context(databases.fresh(kind)) for _ in range(2)]
        alone, among = [await stack.enter_async_context(checkpointer(url, "sync")) for url in urls]
        for opened in (alone, among):
            for step in range(_A_THREAD):
                await ClewSide(opened).put("thread", step, messages[: step + 1])
        for number in range(scale.threads):
            among.timeline.copy_thread("thread", f"thread-{number}")
        for url in urls:
            vacuum(url, "ANALYZE")
        name = f"{_A_THREAD * scale.threads:,} checkpoints over {scale.threads:,} threads"
        rounds = max(3, scale.rounds * 3)
        sides = [ClewSide(among), ClewSide(alone)]

        async def put(side: ClewSide, numbers: Iterator[int]) -> None:
            number = next(numbers)
            await side.put("put", number, messages[: 1 + number % 20])

        for what, works in (
            ("get latest", [partial(side.latest, "thread") for side in sides]),
            ("list 20", [partial(side.list, "thread", 20) for side in sides]),
            ("put", [partial(put, side, count()) for side in sides]),
        ):
            many, empty = await interleaved(rounds, *works, warm=5)
            report.figure(
                f"{what} beside {name}, over an empty database",
                f"{kind}, sync",
                many.median / empty.median,
                "× the time",
                ours=f"{many}; empty {empty}",
                at_most=1.5,
            )


def engine_url(url: str) -> str:
    """The URL as SQLAlchemy's synchronous engine takes it."""
    return url.replace("postgresql://", "postgresql+psycopg://", 1)
