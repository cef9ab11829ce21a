"""Deleting checkpoints, and the garbage that they leave: found from the spans alone, no manifest and no payload read.

Every operation here needs the thread locked by its transaction.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from sqlalchemy import Connection, Delete, Select, bindparam, delete, select, update

from clew.dialects import Dialect
from clew.repository.store import Store
from clew.structure import Span, SpanSet, decode_spans
from clew.tables import Tables

__all__ = ["collect", "delete_seqs"]

_FIRST_LOOK = 8
_BATCH = 1000


def delete_seqs(
    store: Store,
    connection: Connection,
    thread_key: int,
    seqs: Collection[int],
    *,
    replacing: bool = False,
    kept: bytes = b"",
) -> int:
    """Delete these checkpoints with their ledgers, relink their children, and collect what nobody names any more.

    Where a checkpoint is being ``replacing``-put under the same id, its ledger and its children stay as they are, and
    ``kept`` are the spans of the one that takes its place.
    """
    tables, values = store.tables, store.dialect.values(sorted(seqs))
    doomed = connection.execute(_doomed(tables, store.dialect), {"key": thread_key, "seqs": values}).all()
    if not doomed:
        return 0
    if replacing:
        for row in doomed:
            _uncarry(store, connection, thread_key, row.namespace, row.checkpoint_id)
    else:
        _relink(store, connection, thread_key, doomed)
        _delete_ledgers(store, connection, thread_key, doomed)
    for statement in _deletes(tables, store.dialect):
        connection.execute(statement, {"key": thread_key, "seqs": values})
    candidates = SpanSet(span for row in doomed for span in decode_spans(row.spans))
    candidates.remove(decode_spans(kept))
    collect(store, connection, thread_key, candidates, decode_spans(kept))
    return len(doomed)


def collect(
    store: Store, connection: Connection, thread_key: int, candidates: SpanSet, also_live: Iterable[Span] = ()
) -> None:
    """Delete the rows of which no element is named by a checkpoint, looking only where ``candidates`` lie.

    The newest checkpoints are looked at first: in a growing list one of them names everything, and the look ends there.
    A log that loses its last row keeps a mark of its tip until it is wholly dead: a position is never used twice.
    """
    if not candidates:
        return
    logs = set(candidates.logs)
    live: list[Span] = list(also_live)
    before = 2**62
    size = _FIRST_LOOK
    while candidates:
        rows = connection.execute(
            _survivors(store.tables),
            {"key": thread_key, "before": before, "size": size},
        ).all()
        for row in rows:
            spans = [span for span in decode_spans(row.spans) if span.log in logs]
            candidates.remove(spans)
            live += spans
        if len(rows) < size:
            break
        before, size = rows[-1].seq, _BATCH
    if candidates:
        _delete_dead(store, connection, thread_key, candidates, SpanSet(live))


def _delete_dead(store: Store, connection: Connection, thread_key: int, dead: SpanSet, live: SpanSet) -> None:
    segments = store.tables.segments.c
    rows: Any = connection.execute(
        _layout(store.tables, store.dialect), {"key": thread_key, "logs": store.dialect.values(dead.logs)}
    ).all()
    gone: list[tuple[int, int]] = []
    tips: list[tuple[int, int]] = []
    for log in dead.logs:
        placed = [(start, count) for found, start, count in rows if found == log]
        ends = [(start, count) for start, count in placed if count and not live.covered(log, start, start + count)]
        if len(ends) == sum(1 for _, count in placed if count):
            gone += [(log, start) for start, _ in placed]
        elif ends:
            gone += [(log, start) for start, _ in ends]
            tip = max(start + count for start, count in placed)
            if ends[-1][0] + ends[-1][1] == tip:
                tips.append((log, tip))
    if gone:
        connection.execute(
            _drop(store.tables), [{"key": thread_key, "in_log": log, "at": start} for log, start in gone]
        )
    if tips:
        connection.execute(
            store.dialect.insert(store.tables.segments).on_conflict_do_nothing(
                index_elements=[segments.thread_key, segments.log, segments.start]
            ),
            [{"thread_key": thread_key, "log": log, "start": tip, "count": 0, "payload": b""} for log, tip in tips],
        )


def _relink(store: Store, connection: Connection, thread_key: int, doomed: Sequence[Any]) -> None:
    """Give the surviving children of ``doomed`` the nearest surviving ancestor; their digests stay as they are."""
    parents = {(row.namespace, row.checkpoint_id): row.parent_checkpoint_id for row in doomed}
    dialect = store.dialect
    children = connection.execute(
        _children(store.tables, dialect),
        {"key": thread_key, "ids": dialect.values(sorted({row.checkpoint_id for row in doomed}))},
    ).all()
    gone = {row.seq for row in doomed}
    moves = [
        {"key": thread_key, "at": child.seq, "parent": survivor(parents, child.namespace, child.parent_checkpoint_id)}
        for child in children
        if child.seq not in gone and (child.namespace, child.parent_checkpoint_id) in parents
    ]
    if moves:
        connection.execute(_move(store.tables), moves)


def survivor(parents: Mapping[tuple[str, str], str | None], namespace: str, checkpoint_id: str | None) -> str | None:
    """The first ancestor of ``checkpoint_id``, itself included, that is not among ``parents``; None at a cycle."""
    seen: set[str] = set()
    while checkpoint_id is not None and (namespace, checkpoint_id) in parents:
        if checkpoint_id in seen:
            return None
        seen.add(checkpoint_id)
        checkpoint_id = parents[namespace, checkpoint_id]
    return checkpoint_id


def _delete_ledgers(store: Store, connection: Connection, thread_key: int, doomed: Sequence[Any]) -> None:
    ids: dict[str, list[str]] = {}
    for row in doomed:
        ids.setdefault(row.namespace, []).append(row.checkpoint_id)
    for namespace, found in sorted(ids.items()):
        connection.execute(
            _ledgers(store.tables, store.dialect),
            {"key": thread_key, "ns": namespace, "ids": store.dialect.values(sorted(found))},
        )


def _uncarry(store: Store, connection: Connection, thread_key: int, namespace: str, checkpoint_id: str) -> None:
    w = store.tables.pending_writes.c
    connection.execute(
        update(store.tables.pending_writes)
        .where(w.thread_key == thread_key, w.namespace == namespace, w.checkpoint_id == checkpoint_id)
        .values(carried=False)
    )


@cache
def _doomed(tables: Tables, dialect: Dialect) -> Select[Any]:
    c = tables.checkpoints.c
    return (
        select(c.seq, c.namespace, c.checkpoint_id, c.parent_checkpoint_id, c.spans)
        .where(c.thread_key == bindparam("key"), dialect.among(c.seq, "seqs"))
        .order_by(c.seq)
    )


@cache
def _children(tables: Tables, dialect: Dialect) -> Select[Any]:
    c = tables.checkpoints.c
    return select(c.seq, c.namespace, c.parent_checkpoint_id).where(
        c.thread_key == bindparam("key"), dialect.among(c.parent_checkpoint_id, "ids")
    )


@cache
def _survivors(tables: Tables) -> Select[Any]:
    c = tables.checkpoints.c
    return (
        select(c.seq, c.spans)
        .where(c.thread_key == bindparam("key"), c.seq < bindparam("before"))
        .order_by(c.seq.desc())
        .limit(bindparam("size"))
    )


@cache
def _layout(tables: Tables, dialect: Dialect) -> Select[Any]:
    s = tables.segments.c
    return (
        select(s.log, s.start, s.count)
        .where(s.thread_key == bindparam("key"), dialect.among(s.log, "logs"))
        .order_by(s.log, s.start)
    )


@cache
def _move(tables: Tables) -> Any:
    c = tables.checkpoints.c
    return (
        update(tables.checkpoints)
        .where(c.thread_key == bindparam("key"), c.seq == bindparam("at"))
        .values(parent_checkpoint_id=bindparam("parent"))
    )


@cache
def _drop(tables: Tables) -> Delete:
    s = tables.segments.c
    return delete(tables.segments).where(
        s.thread_key == bindparam("key"), s.log == bindparam("in_log"), s.start == bindparam("at")
    )


@cache
def _ledgers(tables: Tables, dialect: Dialect) -> Delete:
    w = tables.pending_writes.c
    return delete(tables.pending_writes).where(
        w.thread_key == bindparam("key"), w.namespace == bindparam("ns"), dialect.among(w.checkpoint_id, "ids")
    )


@cache
def _deletes(tables: Tables, dialect: Dialect) -> tuple[Delete, ...]:
    return tuple(
        delete(table).where(table.c.thread_key == bindparam("key"), dialect.among(table.c.seq, "seqs"))
        for table in (tables.resume_evidence, tables.checkpoint_metadata, tables.checkpoints)
    )
