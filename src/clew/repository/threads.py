"""Threads as a whole: looking at one, listing them, deleting one, and deleting checkpoints of one or by run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import Connection, Select, bindparam, func, select, union
from sqlalchemy.exc import DataError

from clew.errors import InvalidInput
from clew.records import Page, Thread
from clew.repository.collecting import delete_everything, delete_seqs
from clew.repository.cursors import decode_cursor, encode_cursor
from clew.repository.keys import check_id, check_limit, check_thread_id, namespace_text
from clew.repository.locking import check_fence, clocked, exclusive, find_thread, lock_thread, undo_lock
from clew.repository.retention.expiry import expires_at
from clew.repository.runs.records import delete_run_record
from clew.repository.soundness import UNREADABLE, naming
from clew.repository.store import NO_FENCE, Fence, LockedThread, Store
from clew.tables import Tables

__all__ = ["delete_checkpoints", "delete_run", "delete_thread", "get_thread", "list_threads", "threads_of_run"]


def get_thread(store: Store, connection: Connection, thread_id: str) -> Thread | None:
    """The thread, its checkpoints counted, or None where it does not exist or never had a checkpoint."""
    row = connection.execute(_thread(store.tables), {"thread_id": check_thread_id(thread_id)}).one_or_none()
    return None if row is None else _record(row, row.checkpoints)


def list_threads(store: Store, connection: Connection, *, limit: int = 100, cursor: str | None = None) -> Page[Thread]:
    """At most ``limit`` (1 to 10,000) threads, the last active first; a thread without a checkpoint yet is left out.

    Raises:
        InvalidInput: a limit out of range, or a cursor of another listing.
    """
    check_limit(limit)
    t, v = store.tables.threads.c, store.tables.versions.c
    statement = _threads(store.tables).order_by(v.activity.desc(), t.thread_key.desc()).limit(limit + 1)
    if cursor is not None:
        activity, key = decode_cursor(cursor, "threads", datetime, int)
        statement = statement.where((v.activity < activity) | ((v.activity == activity) & (t.thread_key < key)))
    rows = connection.execute(statement).all()
    items = tuple(_record(row, None) for row in rows[:limit])
    following = None
    if len(rows) > limit:
        following = encode_cursor("threads", items[-1].updated_at, rows[limit - 1].thread_key)
    return Page(items=items, next_cursor=following)


def delete_thread(store: Store, connection: Connection, thread_id: str, fence: Fence = NO_FENCE) -> bool:
    """Delete the thread with everything of it; False where there was none. Its id may be used again, its key never is.

    Raises:
        StaleFence: see there.
    """
    key = find_thread(store, connection, check_thread_id(thread_id))
    if key is None:
        return False
    try:
        row = connection.execute(exclusive(store.tables, store.dialect), {"key": key}).one_or_none()
    except (*UNREADABLE, DataError):  # it is locked all the same, and a lease that cannot be read is nobody's
        row = None
    if row is not None:
        check_fence(store, clocked(store, connection, LockedThread.of(thread_id, row)), fence, "delete thread")
    # Without its version row a thread is damaged, or somebody has deleted it since it was found.
    return delete_everything(store, connection, key)


def delete_checkpoints(
    store: Store,
    connection: Connection,
    thread_id: str,
    checkpoint_ids: Iterable[str],
    *,
    namespace: Iterable[str] = (),
    fence: Fence = NO_FENCE,
) -> int:
    """Delete these checkpoints of ``namespace`` with their ledgers; how many there were. Unknown ids are passed over.

    Surviving children get the nearest surviving ancestor as their parent.

    Raises:
        StaleFence: see there.
    """
    if isinstance(checkpoint_ids, str):
        raise InvalidInput("checkpoint_ids must be a collection of ids, not one string")
    ids = sorted({check_id("checkpoint_id", item) for item in checkpoint_ids})
    text, c = namespace_text(namespace), store.tables.checkpoints.c
    locked = lock_thread(store, connection, check_thread_id(thread_id), puts=0)
    if locked is None:
        return 0
    check_fence(store, locked, fence, "delete checkpoints")
    # The order makes SQLite, which takes every thread for a short one, search the ids' index and not the whole thread.
    named = (
        select(c.seq)
        .where(c.thread_key == locked.thread_key, c.namespace == text, store.dialect.among(c.checkpoint_id, "ids"))
        .order_by(c.namespace, c.checkpoint_id)
    )
    seqs = connection.execute(named, {"ids": store.dialect.values(ids)}).scalars().all()
    return _delete(store, connection, locked, seqs)


def threads_of_run(store: Store, connection: Connection, run_id: str) -> list[str]:
    """The ids of the threads that hold checkpoints or the record of the run, in the order of their keys."""
    t, c = store.tables.threads.c, store.tables.checkpoints.c
    r = store.tables.runs.c
    check_id("run_id", run_id)
    keys = union(select(c.thread_key).where(c.run_id == run_id), select(r.thread_key).where(r.run_id == run_id))
    named = select(t.thread_id).where(t.thread_key.in_(keys)).order_by(t.thread_key)
    return list(connection.execute(named).scalars().all())


def delete_run(store: Store, connection: Connection, run_id: str, thread_id: str, fence: Fence = NO_FENCE) -> int:
    """Delete the run's checkpoints in one thread, in all its namespaces; how many there were."""
    check_id("run_id", run_id)
    locked = lock_thread(store, connection, check_thread_id(thread_id), puts=0)
    if locked is None:
        return 0
    check_fence(store, locked, fence, f"delete run {run_id!r}")
    c = store.tables.checkpoints.c
    mine = select(c.seq).where(c.thread_key == locked.thread_key, c.run_id == run_id)
    seqs = connection.execute(mine).scalars().all()
    known = delete_run_record(store, connection, locked, run_id)
    return 0 if known and not seqs else _delete(store, connection, locked, seqs)


def _delete(store: Store, connection: Connection, locked: LockedThread, seqs: Sequence[int]) -> int:
    if not seqs:
        undo_lock(store, connection, locked, puts=0)
        return 0
    return delete_seqs(store, connection, locked.thread_key, seqs)


def _record(row: Any, checkpoints: int | None) -> Thread:
    with naming(row.thread_id):
        return Thread(
            thread_id=row.thread_id,
            created_at=row.created_at,
            updated_at=row.activity,
            metadata=None if row.metadata is None else json.loads(row.metadata),
            expires_at=expires_at(row),
            checkpoint_count=checkpoints,
        )


@cache
def _threads(tables: Tables) -> Select[Any]:
    t, v = tables.threads.c, tables.versions.c
    return (
        select(
            t.thread_key,
            t.thread_id,
            t.created_at,
            v.activity,
            t.metadata,
            t.expires_at,
            t.ttl_us,
            t.refresh_on_activity,
        )
        .select_from(tables.threads.join(tables.versions, t.thread_key == v.thread_key))
        .where(v.last_seq > 0)
    )


@cache
def _thread(tables: Tables) -> Select[Any]:
    t, c = tables.threads.c, tables.checkpoints.c
    count = select(func.count()).where(c.thread_key == t.thread_key).scalar_subquery()
    return _threads(tables).add_columns(count.label("checkpoints")).where(t.thread_id == bindparam("thread_id"))
