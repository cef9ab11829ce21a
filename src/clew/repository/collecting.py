"""Deleting checkpoints, and the garbage that they leave: found from the spans alone, no manifest and no payload read.

Every operation here needs the thread locked by its transaction.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from sqlalchemy import Connection, Delete, Select, bindparam, delete, or_, select, update

from clew.dialects import Dialect
from clew.repository.segments import drop_rows, read_layout
from clew.repository.store import Store
from clew.structure import Span, SpanSet, decode_spans, log_bytes, spans_within
from clew.tables import Tables

__all__ = ["delete_everything", "delete_seqs"]

_FIRST_LOOK = 8
_BATCH = 1000
_PICKED_LOGS = 32


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

    There is at least one, and all of them are there: they were looked up behind the lock.

    Where a checkpoint is being ``replacing``-put under the same id, its ledger and its children stay as they are, and
    ``kept`` are the spans of the one that takes its place.
    """
    tables, values = store.tables, store.dialect.values(sorted(seqs))
    doomed = connection.execute(_doomed(tables, store.dialect), {"key": thread_key, "seqs": values}).all()
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
    near = (doomed[0].seq, doomed[-1].seq)
    _collect(store, connection, thread_key, candidates, decode_spans(kept), near)
    return len(doomed)


def delete_everything(store: Store, connection: Connection, thread_key: int) -> bool:
    """Delete a thread with all that belongs to it; was it there?"""
    tables = store.tables
    for table in (*tables.owned, tables.versions):
        connection.execute(delete(table).where(table.c.thread_key == thread_key))
    return connection.execute(delete(tables.threads).where(tables.threads.c.thread_key == thread_key)).rowcount > 0


def _collect(
    store: Store,
    connection: Connection,
    thread_key: int,
    candidates: SpanSet,
    also_live: Iterable[Span],
    near: tuple[int, int],
) -> None:
    """Delete the rows of which no element is named by a checkpoint, looking only where ``candidates`` lie.

    The survivors next to the sequence numbers ``near`` (the least, the greatest) are looked at first: a neighbour names
    nearly all that a checkpoint named. What is left is dead, or checkpoints far away name it: the database picks those
    out by the bytes of the logs' numbers. A log that loses its last row keeps a mark of its tip until it is wholly
    dead: a position is never used twice.
    """
    live: list[Span] = list(also_live)
    for statement, bound in ((_above(store.tables), near[1]), (_below(store.tables), near[0])):
        if not candidates:
            return
        rows = connection.execute(statement, {"key": thread_key, "bound": bound, "size": _FIRST_LOOK}).all()
        _remove_live(candidates, live, rows)
    if not candidates:
        return
    layout: dict[int, list[tuple[int, int]]] = {}
    for log, start, count in read_layout(store, connection, thread_key, candidates.logs):
        layout.setdefault(log, []).append((start, count))
    touched = _touched(layout, candidates, SpanSet(live))
    if not touched:  # what is left has no rows, which damage alone can bring about
        return
    bounds = {log: (rows[0][0], sum(rows[-1])) for log, rows in touched.items()}
    before, size = 2**62, _BATCH
    while candidates and size == _BATCH:
        rows = _naming(store, connection, thread_key, list(bounds), before)
        for _, data in rows:
            spans = spans_within(data, bounds)
            candidates.remove(spans)
            live += spans
        size = len(rows)
        before = rows[-1].seq if rows else 0
    if candidates:
        _delete_dead(store, connection, thread_key, layout, touched, SpanSet(live))


def _touched(
    layout: Mapping[int, Sequence[tuple[int, int]]], candidates: SpanSet, live: SpanSet
) -> dict[int, list[tuple[int, int]]]:
    """(start, count) of the rows that may be dead. The others' elements are no candidates any more.

    A row with a live element stays whole, whatever else of it is dead. A row of which no element is a candidate is
    named by somebody, or it would be gone.
    """
    touched: dict[int, list[tuple[int, int]]] = {}
    for log, rows in layout.items():
        for start, count in rows:
            if live.covered(log, start, start + count):
                candidates.remove([Span(log, start, start + count)])
            elif candidates.covered(log, start, start + count):
                touched.setdefault(log, []).append((start, count))
    return touched


def _remove_live(candidates: SpanSet, live: list[Span], rows: Iterable[Any]) -> None:
    for data in {bytes(row.spans) for row in rows}:
        spans = decode_spans(data)
        candidates.remove(spans)
        live += spans


def _naming(store: Store, connection: Connection, thread_key: int, logs: Sequence[int], before: int) -> Sequence[Any]:
    """The newest checkpoints below ``before`` that may name one of the logs: all of them where the logs are many."""
    values: dict[str, Any] = {"key": thread_key, "bound": before, "size": _BATCH}
    if len(logs) > _PICKED_LOGS:
        return connection.execute(_below(store.tables), values).all()
    width = 1 << (len(logs) - 1).bit_length()  # so that few different statements are compiled
    for place in range(width):
        values[f"log{place}"] = log_bytes(logs[min(place, len(logs) - 1)])
    return connection.execute(_naming_statement(store.tables, store.dialect, width), values).all()


def _delete_dead(
    store: Store,
    connection: Connection,
    thread_key: int,
    layout: Mapping[int, Sequence[tuple[int, int]]],
    touched: Mapping[int, Sequence[tuple[int, int]]],
    live: SpanSet,
) -> None:
    segments = store.tables.segments.c
    dead = {
        log: found
        for log, rows in touched.items()
        if (found := [start for start, count in rows if not live.covered(log, start, start + count)])
    }
    if not dead:
        return
    gone: list[tuple[int, int]] = []
    tips: list[tuple[int, int]] = []
    for log, starts in dead.items():
        placed = layout[log]
        if len(starts) == sum(1 for _, count in placed if count):
            gone += [(log, start) for start, _ in placed]  # its mark, too
            continue
        gone += [(log, start) for start in starts]
        tip = max(start + count for start, count in placed)
        if any(start + count == tip for start, count in placed if start == starts[-1]):
            tips.append((log, tip))
    drop_rows(store, connection, thread_key, gone)
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
    gone = {row.seq for row in doomed}
    moves = []
    for namespace, ids in _by_namespace(doomed).items():
        values = {"key": thread_key, "namespace": namespace, "ids": store.dialect.values(ids)}
        children = connection.execute(_children(store.tables, store.dialect), values).all()
        for seq, checkpoint_id, doomed_parent in children:
            if seq not in gone:
                parent = survivor(parents, namespace, doomed_parent)
                # where the doomed ones closed a cycle, the child itself would be the nearest that is left
                moves.append({"key": thread_key, "at": seq, "parent": None if parent == checkpoint_id else parent})
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
    for namespace, ids in _by_namespace(doomed).items():
        values = {"key": thread_key, "namespace": namespace, "ids": store.dialect.values(ids)}
        connection.execute(_ledgers(store.tables, store.dialect), values)


def _by_namespace(doomed: Sequence[Any]) -> dict[str, list[str]]:
    """The ids in each namespace, all of them in order."""
    ids: dict[str, list[str]] = {}
    for row in sorted(doomed, key=lambda row: (row.namespace, row.checkpoint_id)):
        ids.setdefault(row.namespace, []).append(row.checkpoint_id)
    return ids


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
    """Looks through the namespace. An index by parent would take a fourth of a row's space for deletions alone."""
    c = tables.checkpoints.c
    return select(c.seq, c.checkpoint_id, c.parent_checkpoint_id).where(
        c.thread_key == bindparam("key"),
        c.namespace == bindparam("namespace"),
        dialect.among(c.parent_checkpoint_id, "ids"),
    )


@cache
def _below(tables: Tables) -> Select[Any]:
    c = tables.checkpoints.c
    return (
        select(c.seq, c.spans)
        .where(c.thread_key == bindparam("key"), c.seq < bindparam("bound"))
        .order_by(c.seq.desc())
        .limit(bindparam("size"))
    )


@cache
def _above(tables: Tables) -> Select[Any]:
    c = tables.checkpoints.c
    return (
        select(c.seq, c.spans)
        .where(c.thread_key == bindparam("key"), c.seq > bindparam("bound"))
        .order_by(c.seq)
        .limit(bindparam("size"))
    )


@cache
def _naming_statement(tables: Tables, dialect: Dialect, width: int) -> Select[Any]:
    spans = tables.checkpoints.c.spans
    parts = [dialect.contains(spans, bindparam(f"log{place}", type_=spans.type)) for place in range(width)]
    return _below(tables).where(or_(*parts))


@cache
def _move(tables: Tables) -> Any:
    c = tables.checkpoints.c
    return (
        update(tables.checkpoints)
        .where(c.thread_key == bindparam("key"), c.seq == bindparam("at"))
        .values(parent_checkpoint_id=bindparam("parent"))
    )


@cache
def _ledgers(tables: Tables, dialect: Dialect) -> Delete:
    w = tables.pending_writes.c
    return delete(tables.pending_writes).where(
        w.thread_key == bindparam("key"), w.namespace == bindparam("namespace"), dialect.among(w.checkpoint_id, "ids")
    )


@cache
def _deletes(tables: Tables, dialect: Dialect) -> tuple[Delete, ...]:
    return tuple(
        delete(table).where(table.c.thread_key == bindparam("key"), dialect.among(table.c.seq, "seqs"))
        for table in (tables.resume_evidence, tables.checkpoint_metadata, tables.checkpoints)
    )
