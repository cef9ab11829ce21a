"""Several checkpoints of one thread in one transaction: one lock, and multi-row statements for all of them.

What one put does and refuses stands in ``putting``; whatever is out of the ordinary goes that way, one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from sqlalchemy import Connection, Select, bindparam, select

from clew.dialects import Dialect
from clew.repository.locking import check_fence, lock_or_create, undo_lock
from clew.repository.memory import Logs, Remembered, ThreadMemory
from clew.repository.putting import Put, base_for, planned, put
from clew.repository.request import PutRequest, WriteRow
from clew.repository.segments import LogChanges, write_changes
from clew.repository.store import NO_FENCE, Fence, LockedThread, Store
from clew.repository.writes import insert_writes, put_writes
from clew.structure import Placement, Row
from clew.tables import Tables

__all__ = ["LedgerRows", "put_batch"]


@dataclass(frozen=True, slots=True)
class LedgerRows:
    """Writes for the ledger of one checkpoint."""

    namespace: str
    checkpoint_id: str
    rows: tuple[WriteRow, ...]


def put_batch(
    store: Store,
    connection: Connection,
    thread_id: str,
    requests: Sequence[PutRequest],
    ledgers: Sequence[LedgerRows] = (),
    fence: Fence = NO_FENCE,
    memory: ThreadMemory | None = None,
) -> ThreadMemory | None:
    """Put the checkpoints in their order, then add to the ledgers in theirs; the thread's memory after it.

    As if each had been put by itself, but that all of it is stored or nothing.

    Raises:
        NotFound, StaleFence, AlreadyExists: as ``put``.
    """
    if not requests:
        for ledger in ledgers:
            put_writes(store, connection, thread_id, ledger.namespace, ledger.checkpoint_id, ledger.rows, fence)
        return None
    count = len(requests)
    locked, _ = lock_or_create(store, connection, thread_id, memory.thread_key if memory else None, puts=count)
    if memory is not None and (memory.thread_key, memory.version) != (locked.thread_key, locked.version - 1):
        memory = None
    if not _out_of_the_ordinary(store, connection, locked, requests):
        check_fence(store, locked, fence, f"put {count} checkpoints")
        after = _put_all(store, connection, locked, requests, memory)
        if after is not None:
            for ledger in ledgers:
                insert_writes(store, connection, locked.thread_key, ledger.namespace, ledger.checkpoint_id, ledger.rows)
            return after
    undo_lock(store, connection, locked, puts=count)
    for request in requests:
        memory = put(store, connection, Put(request, fence), memory).memory
    for ledger in ledgers:
        put_writes(store, connection, thread_id, ledger.namespace, ledger.checkpoint_id, ledger.rows, fence)
    return memory


def _out_of_the_ordinary(
    store: Store, connection: Connection, locked: LockedThread, requests: Sequence[PutRequest]
) -> bool:
    """Whether an id is there already or comes twice, or a parent is named in a thread that does not exist."""
    if locked.last_seq == len(requests) and requests[0].parent_id is not None:
        return True
    ids = {(request.namespace, request.checkpoint_id) for request in requests}
    if len(ids) < len(requests):
        return True
    found = connection.execute(
        _standing(store.tables, store.dialect),
        {"key": locked.thread_key, "ids": store.dialect.values(sorted({checkpoint_id for _, checkpoint_id in ids}))},
    ).all()
    return any((row.namespace, row.checkpoint_id) in ids for row in found)


def _put_all(
    store: Store,
    connection: Connection,
    locked: LockedThread,
    requests: Sequence[PutRequest],
    memory: ThreadMemory | None,
) -> ThreadMemory | None:
    """The memory after it, or None where a base is not known before the rows are written; then nothing was."""
    after = memory or ThreadMemory(locked.thread_key, locked.version - 1)
    changes = _Changes()
    placements: list[Placement] = []
    first = locked.last_seq - len(requests) + 1
    for number, request in enumerate(requests):
        if number and after.base(request.namespace, request.parent_id) is None:
            return None
        base = base_for(store, connection, locked, request, after if number else memory)
        placement, change = planned(request, base.form, base.logs)
        placements.append(placement)
        changes.add(change)
        logs = Logs({**after.logs.rows, **change.logs.rows})
        form = Remembered.of(first + number, placement.root)
        after = after.advanced(locked.version, request.namespace, request.checkpoint_id, form, logs)
    write_changes(store, connection, locked.thread_key, changes.together(after.logs))
    _insert_all(store, connection, locked, requests, placements, first)
    return after


def _insert_all(
    store: Store,
    connection: Connection,
    locked: LockedThread,
    requests: Sequence[PutRequest],
    placements: Sequence[Placement],
    first: int,
) -> None:
    key, tables = locked.thread_key, store.tables
    connection.execute(
        tables.checkpoints.insert(),
        [
            {
                **request.columns,
                "thread_key": key,
                "seq": first + number,
                "created_at": locked.activity,
                "spans": placement.spans,
                "manifest": placement.manifest,
            }
            for number, (request, placement) in enumerate(zip(requests, placements, strict=True))
        ],
    )
    described = [
        {"thread_key": key, "seq": first + number, "terms": request.terms, "value": request.metadata}
        for number, request in enumerate(requests)
        if request.metadata is not None
    ]
    if described:
        connection.execute(tables.checkpoint_metadata.insert(), described)
    for request in requests:
        insert_writes(store, connection, key, request.namespace, request.checkpoint_id, request.writes, carried=True)


class _Changes:
    """The changes of several puts as one: a row that a later put absorbs is never written."""

    def __init__(self) -> None:
        self._added: dict[tuple[int, int], Row] = {}
        self._merged: dict[tuple[int, int], Row] = {}
        self._absorbed: set[tuple[int, int]] = set()

    def add(self, change: LogChanges) -> None:
        for log, row in change.merged:
            place = (log, row.start)
            (self._added if place in self._added else self._merged)[place] = row
        for place in change.absorbed:
            if self._added.pop(place, None) is None:
                self._merged.pop(place, None)
                self._absorbed.add(place)
        for log, row in change.added:
            self._added[log, row.start] = row

    def together(self, logs: Logs) -> LogChanges:
        return LogChanges(
            tuple((log, row) for (log, _), row in self._added.items()),
            tuple((log, row) for (log, _), row in self._merged.items()),
            tuple(sorted(self._absorbed)),
            logs,
        )


@cache
def _standing(tables: Tables, dialect: Dialect) -> Select[Any]:
    c = tables.checkpoints.c
    return select(c.namespace, c.checkpoint_id).where(
        c.thread_key == bindparam("key"), dialect.among(c.checkpoint_id, "ids")
    )
