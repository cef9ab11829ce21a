"""Copying between threads inside the database: whole rows as they are, and only rows at an edge are cut.

A log keeps its id and its positions in the copy, where it is another log: logs are a thread's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    Connection,
    Insert,
    Select,
    Table,
    bindparam,
    func,
    insert,
    select,
    update,
)

from clew.dialects import Dialect
from clew.repository.finding import latest_of_each
from clew.repository.locking import check_empty, check_fence, lock_two
from clew.repository.segments import read_layout, read_segments
from clew.repository.store import NO_FENCE, Fence, LockedThread, Store
from clew.structure import Segment, Span, SpanSet, decode_spans, encode_payload
from clew.tables import Tables

__all__ = ["copy_elements", "copy_ledger", "copy_thread"]


def copy_thread(
    store: Store,
    connection: Connection,
    source: str,
    target: str,
    *,
    latest_only: bool = False,
    fence: Fence = NO_FENCE,
) -> int:
    """Copy everything of a thread, or the latest of each namespace, into one that is empty; how many checkpoints.

    Raises:
        NotFound: there is no such source.
        AlreadyExists: the target holds something.
        StaleFence: somebody holds the target's lease.
    """
    source_key, locked = lock_two(store, connection, source, target, puts=0)
    doing = f"copy thread {source!r} to {target!r}"
    check_fence(store, locked, fence, doing)
    check_empty(store, connection, locked, doing)
    # A thread that was emptied has used its first sequence numbers, and a number never names two checkpoints.
    keys = {"source": source_key, "target": locked.thread_key}
    numbered = {**keys, "used": locked.last_seq}
    tables = store.tables
    if latest_only:
        found = latest_of_each(tables, "seq", "namespace", "checkpoint_id", "spans")
        latest = connection.execute(found, {"key": source_key}).all()
        where = {**numbered, "seqs": store.dialect.values([row.seq for row in latest])}
        for table in (tables.checkpoints, tables.checkpoint_metadata, tables.resume_evidence):
            connection.execute(_copy_seqs(table, store.dialect), where)
        connection.execute(_cut_parents(tables), {"key": locked.thread_key})
        connection.execute(_copy_runs(tables), keys)
        for row in latest:
            ledger = {"namespace": row.namespace, "id": row.checkpoint_id}
            connection.execute(copy_ledger(tables, store.dialect), {**keys, **ledger, "new_id": row.checkpoint_id})
        spans = SpanSet(span for row in latest for span in decode_spans(row.spans))
        copy_elements(store, connection, source_key, locked.thread_key, spans)
        copied = len(latest)
    else:
        for table in (
            tables.checkpoints,
            tables.checkpoint_metadata,
            tables.resume_evidence,
            tables.segments,
            tables.pending_writes,
            tables.runs,
        ):
            connection.execute(_copy_all(table), numbered if "seq" in table.c else keys)
        copied = connection.execute(_count(tables), {"key": locked.thread_key}).scalar_one()
    _adopt(store, connection, source_key, locked)
    return copied


def copy_elements(
    store: Store, connection: Connection, source_key: int, target_key: int, spans: Iterable[Span]
) -> None:
    """Copy exactly the elements of ``spans``, which are disjoint. Rows wholly among them are not read here."""
    needed = SpanSet(spans)
    if not needed:
        return
    whole: list[Span] = []
    for log, start, count in read_layout(store, connection, source_key, needed.logs):
        if count and needed.covered(log, start, start + count) == count:
            if whole and (whole[-1].log, whole[-1].end) == (log, start):
                whole[-1] = Span(log, whole[-1].start, start + count)
            else:
                whole.append(Span(log, start, start + count))
    if whole:
        connection.execute(
            _copy_rows(store.tables),
            [
                {"source": source_key, "target": target_key, "in_log": log, "low": at, "high": to}
                for log, at, to in whole
            ],
        )
    needed.remove(whole)
    edges = list(needed)
    cut = [row for segment in read_segments(store, connection, source_key, edges) for row in _cut(segment, edges)]
    if cut:
        connection.execute(store.tables.segments.insert(), [{"thread_key": target_key, **row} for row in cut])


def _cut(segment: Segment, edges: Sequence[Span]) -> list[dict[str, Any]]:
    """A row for each part of the segment that lies in ``edges``."""
    rows = []
    for log, start, end in edges:
        low, high = max(start, segment.start), min(end, segment.start + segment.count)
        if log == segment.log and low < high:
            elements = segment.elements[low - segment.start : high - segment.start]
            rows.append({"log": log, "start": low, "count": high - low, "payload": encode_payload(elements)})
    return rows


def _adopt(store: Store, connection: Connection, source_key: int, locked: LockedThread) -> None:
    """Let the copy's sequence and moments go on where the source's are, and take over what is said of the thread."""
    tables = store.tables
    v, t = tables.versions.c, tables.threads.c
    source = connection.execute(select(v.last_seq, v.activity).where(v.thread_key == source_key)).one()
    connection.execute(
        update(tables.versions)
        .where(v.thread_key == locked.thread_key)
        .values(last_seq=locked.last_seq + source.last_seq, activity=max(locked.activity, source.activity))
    )
    metadata = select(t.metadata).where(t.thread_key == source_key)
    said = connection.execute(metadata).scalar_one()
    if said is not None:
        connection.execute(update(tables.threads).where(t.thread_key == locked.thread_key).values(metadata=said))


def _copied(table: Table, **changed: Any) -> tuple[list[str], Select[Any]]:
    columns = {column.name: changed.get(column.name, column) for column in table.columns}
    columns["thread_key"] = bindparam("target", type_=BigInteger).label("thread_key")
    if "seq" in table.c:
        columns["seq"] = (table.c.seq + bindparam("used", type_=BigInteger)).label("seq")
    return list(columns), select(*columns.values()).where(table.c.thread_key == bindparam("source"))


@cache
def _copy_all(table: Table) -> Insert:
    return insert(table).from_select(*_copied(table))


@cache
def _copy_seqs(table: Table, dialect: Dialect) -> Insert:
    names, rows = _copied(table)
    return insert(table).from_select(names, rows.where(dialect.among(table.c.seq, "seqs")))


@cache
def copy_ledger(tables: Tables, dialect: Dialect) -> Any:
    """One checkpoint's ledger, under ``new_id`` in the thread ``target``. What came for that one early stays."""
    w = tables.pending_writes.c
    names, rows = _copied(tables.pending_writes, checkpoint_id=bindparam("new_id", type_=w.checkpoint_id.type))
    return (
        dialect.insert(tables.pending_writes)
        .from_select(names, rows.where(w.namespace == bindparam("namespace"), w.checkpoint_id == bindparam("id")))
        .on_conflict_do_nothing()
    )


@cache
def _copy_runs(tables: Tables) -> Insert:
    """The runs that any copied checkpoint is of."""
    r, c = tables.runs.c, tables.checkpoints.c
    names, rows = _copied(tables.runs)
    kept = select(c.run_id).where(c.thread_key == bindparam("target"), c.run_id.is_not(None))
    return insert(tables.runs).from_select(names, rows.where(r.run_id.in_(kept)))


@cache
def _copy_rows(tables: Tables) -> Insert:
    s = tables.segments.c
    names, rows = _copied(tables.segments)
    return insert(tables.segments).from_select(
        names,
        rows.where(s.log == bindparam("in_log"), s.start >= bindparam("low"), s.start < bindparam("high"), s.count > 0),
    )


@cache
def _cut_parents(tables: Tables) -> Any:
    return (
        update(tables.checkpoints)
        .where(tables.checkpoints.c.thread_key == bindparam("key"))
        .values(parent_checkpoint_id=None)
    )


@cache
def _count(tables: Tables) -> Select[Any]:
    return select(func.count()).where(tables.checkpoints.c.thread_key == bindparam("key"))
