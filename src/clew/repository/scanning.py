"""Reading a whole thread in order, a batch at a time, so that memory stays bounded however long the thread is.

Each batch is a statement of its own that continues behind the last row, by index; no cursor is held open.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, Final, TypeAlias

from sqlalchemy import Column, Connection, RowMapping, Select, Table, bindparam, literal, select, tuple_

from clew.repository.store import Store
from clew.structure import SpanSet, decode_spans
from clew.tables import Tables

__all__ = [
    "WritePlace",
    "checkpoints_in_order",
    "companions_in_order",
    "live_spans",
    "place_of",
    "runs_in_order",
    "segments_in_order",
    "writes_behind",
    "writes_in_order",
]

CHECKPOINT_BATCH: Final = 500
SEGMENT_BATCH: Final = 24
"""Rows with their payloads, which hold up to 256 kB each, decompressed."""
WRITE_BATCH: Final = 200
_BATCH: Final = 100

WritePlace: TypeAlias = tuple[str, str, str, int]
"""(namespace, checkpoint id, task id, idx): the key of a write within its thread."""


def checkpoints_in_order(
    store: Store,
    connection: Connection,
    thread_key: int,
    columns: Sequence[Column[Any]],
    *,
    upto: int = 2**62,
    batch: int = CHECKPOINT_BATCH,
) -> Iterator[Any]:
    """The thread's checkpoints up to one sequence number, in order; these columns, of which ``seq`` must be one."""
    c, after = store.tables.checkpoints.c, 0
    statement = (
        select(*columns)
        .where(c.thread_key == thread_key, c.seq > bindparam("after"), c.seq <= upto)
        .order_by(c.seq)
        .limit(bindparam("most"))
    )
    while rows := connection.execute(statement, {"after": after, "most": batch}).all():
        yield from rows
        after = rows[-1].seq


def companions_in_order(connection: Connection, thread_key: int, table: Table) -> Iterator[RowMapping]:
    """The thread's rows of a table that says more about checkpoints, by their sequence numbers, below zero too."""
    return _by(connection, thread_key, table, "seq", -(2**62))


def runs_in_order(store: Store, connection: Connection, thread_key: int) -> Iterator[RowMapping]:
    """The thread's runs by id."""
    return _by(connection, thread_key, store.tables.runs, "run_id", "")


def live_spans(store: Store, connection: Connection, thread_key: int, *, upto: int = 2**62) -> SpanSet:
    """Everything that the thread's checkpoints up to a sequence number name. No manifest is read.

    Raises:
        CorruptData: the spans of a checkpoint cannot be read.
    """
    c = store.tables.checkpoints.c
    live, fresh = SpanSet(), set()
    for row in checkpoints_in_order(store, connection, thread_key, [c.seq, c.spans], upto=upto):
        fresh.update(decode_spans(row.spans))
        if len(fresh) > 20_000:
            live, fresh = SpanSet([*live, *fresh]), set()
    return SpanSet([*live, *fresh])


def segments_in_order(store: Store, connection: Connection, thread_key: int) -> Iterator[Any]:
    """The thread's segment rows by log and position, with their payloads."""
    after = (-1, -1)
    while True:
        values = {"key": thread_key, "log": after[0], "at": after[1], "most": SEGMENT_BATCH}
        rows = connection.execute(_segments(store.tables), values).all()
        yield from rows
        if len(rows) < SEGMENT_BATCH:
            return
        after = (rows[-1].log, rows[-1].start)


def writes_in_order(store: Store, connection: Connection, thread_key: int) -> Iterator[Any]:
    """The thread's ledger rows by checkpoint and key."""
    after: WritePlace = ("", "", "", 0)
    while rows := writes_behind(store, connection, thread_key, after):
        yield from rows
        after = place_of(rows[-1])


def writes_behind(store: Store, connection: Connection, thread_key: int, after: WritePlace) -> Sequence[Any]:
    """The next of the thread's ledger rows, a batch of them."""
    w = store.tables.pending_writes.c
    place = (w.namespace, w.checkpoint_id, w.task_id, w.idx)
    bound = (literal(value, column.type) for value, column in zip(after, place, strict=True))
    return connection.execute(
        select(*(column for column in w if column is not w.thread_key))
        .where(w.thread_key == thread_key, tuple_(*place) > tuple_(*bound))
        .order_by(*place)
        .limit(WRITE_BATCH)
    ).all()


def place_of(row: Any) -> WritePlace:
    """Where a ledger row stands in that order."""
    return row.namespace, row.checkpoint_id, row.task_id, row.idx


def _by(connection: Connection, thread_key: int, table: Table, name: str, after: Any) -> Iterator[RowMapping]:
    c = table.c
    statement = (
        select(*c).where(c.thread_key == thread_key, c[name] > bindparam("after")).order_by(c[name]).limit(_BATCH)
    )
    while rows := connection.execute(statement, {"after": after}).mappings().all():
        yield from rows
        after = rows[-1][name]


@cache
def _segments(tables: Tables) -> Select[Any]:
    s = tables.segments.c
    return (
        select(s.log, s.start, s.count, s.payload)
        .where(s.thread_key == bindparam("key"), tuple_(s.log, s.start) > tuple_(bindparam("log"), bindparam("at")))
        .order_by(s.log, s.start)
        .limit(bindparam("most"))
    )
