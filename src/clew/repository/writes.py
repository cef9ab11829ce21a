"""The ledger of pending writes. A write is identified by (task_id, idx) within its checkpoint, row by row."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from sqlalchemy import Connection, Select, bindparam, case, func, or_, select

from clew.codec import Codec
from clew.dialects import Dialect
from clew.errors import StaleFence
from clew.records import PendingWrite
from clew.repository.locking import check_fence, clocked, hold_or_create, shared
from clew.repository.request import WriteRow
from clew.repository.store import NO_FENCE, Fence, Store
from clew.tables import Tables

__all__ = ["insert_writes", "put_writes", "read_writes", "write_of"]


def put_writes(
    store: Store,
    connection: Connection,
    thread_id: str,
    namespace: str,
    checkpoint_id: str,
    rows: Sequence[WriteRow],
    fence: Fence = NO_FENCE,
) -> None:
    """Add writes to a checkpoint's ledger, before or after the checkpoint itself; the thread's version stays.

    A thread that does not exist is created, and stays out of every listing until it has a checkpoint. It cannot be
    deleted while this transaction lasts. What is stored already, exactly, succeeds whatever the lease says.

    Raises:
        StaleFence: see there.
    """
    locked = hold_or_create(store, connection, thread_id, shared(store.tables, store.dialect))
    locked = clocked(store, connection, locked)
    try:
        check_fence(store, locked, fence, f"put writes of checkpoint {checkpoint_id!r}")
    except StaleFence:
        if _all_stored(store, connection, locked.thread_key, namespace, checkpoint_id, rows):
            return
        raise
    insert_writes(store, connection, locked.thread_key, namespace, checkpoint_id, rows)


def insert_writes(
    store: Store,
    connection: Connection,
    thread_key: int,
    namespace: str,
    checkpoint_id: str,
    rows: Sequence[WriteRow],
    *,
    carried: bool = False,
) -> None:
    """Insert rows that are sorted by key: ``idx < 0`` replaces in its old place, any other keeps what is there."""
    if not rows:
        return
    ledger = {"key": thread_key, "namespace": namespace, "id": checkpoint_id}
    last = connection.execute(_last(store.tables), ledger).scalar_one()
    connection.execute(
        _insert(store.tables, store.dialect),
        [
            {
                "thread_key": thread_key,
                "namespace": namespace,
                "checkpoint_id": checkpoint_id,
                "task_id": row.task_id,
                "idx": row.idx,
                "arrival": last + row.place,
                "carried": carried,
                "node": row.node,
                "channel": row.channel,
                "payload": row.payload,
            }
            for row in rows
        ],
    )


def read_writes(
    store: Store, connection: Connection, thread_key: int, namespace: str, checkpoint_id: str
) -> list[tuple[PendingWrite, bool]]:
    """(write, whether its checkpoint carried it), in order of arrival."""
    rows = _rows(store, connection, thread_key, namespace, checkpoint_id)
    return [(write_of(store.codec, row), row.carried) for row in rows]


def write_of(codec: Codec, row: Any) -> PendingWrite:
    """The record of a ledger row."""
    return PendingWrite(
        node=row.node, payload=codec.decode(row.payload), task_id=row.task_id, idx=row.idx, channel=row.channel
    )


def _rows(store: Store, connection: Connection, thread_key: int, namespace: str, checkpoint_id: str) -> Sequence[Any]:
    where = {"key": thread_key, "namespace": namespace, "id": checkpoint_id}
    return connection.execute(_read(store.tables), where).all()


def _all_stored(
    store: Store, connection: Connection, thread_key: int, namespace: str, checkpoint_id: str, rows: Sequence[WriteRow]
) -> bool:
    stored = {
        (row.task_id, row.idx, row.node, row.channel, bytes(row.payload))
        for row in _rows(store, connection, thread_key, namespace, checkpoint_id)
    }
    return all((row.task_id, row.idx, row.node, row.channel, row.payload) in stored for row in rows)


@cache
def _last(tables: Tables) -> Select[Any]:
    w = tables.pending_writes.c
    return select(func.coalesce(func.max(w.arrival), 0)).where(
        w.thread_key == bindparam("key"), w.namespace == bindparam("namespace"), w.checkpoint_id == bindparam("id")
    )


@cache
def _insert(tables: Tables, dialect: Dialect) -> Any:
    w = tables.pending_writes.c
    statement = dialect.insert(tables.pending_writes).values(created_at=dialect.now())
    new = statement.excluded
    replaced = {name: case((new.idx < 0, new[name]), else_=w[name]) for name in ("node", "channel", "payload")}
    return statement.on_conflict_do_update(
        index_elements=["thread_key", "namespace", "checkpoint_id", "task_id", "idx"],
        set_={**replaced, "carried": or_(w.carried, new.carried)},
        where=or_(new.idx < 0, new.carried),
    )


@cache
def _read(tables: Tables) -> Select[Any]:
    w = tables.pending_writes.c
    return (
        select(w.task_id, w.idx, w.node, w.channel, w.carried, w.payload)
        .where(
            w.thread_key == bindparam("key"),
            w.namespace == bindparam("namespace"),
            w.checkpoint_id == bindparam("id"),
        )
        .order_by(w.arrival, w.task_id, w.idx)
    )
