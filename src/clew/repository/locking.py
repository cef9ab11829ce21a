"""Finding, creating and locking a thread: the first statements of every transaction that changes one.

The rule (design, section 3): lock by updating the version row, as a statement of its own; check everything else in
later statements. A statement that waited for a row lock re-reads only the locked row, and whatever else it looked at
is stale (PostgreSQL manual, "Read Committed Isolation Level").
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from sqlalchemy import BigInteger, Connection, Select, Update, bindparam, delete, select, update

from clew.dialects import Dialect
from clew.errors import Contention, NotFound, StaleFence
from clew.repository.store import Fence, LockedThread, Store
from clew.tables import Tables

__all__ = ["check_fence", "clocked", "create_thread", "find_thread", "lock_or_create", "lock_thread", "undo_lock"]

_ATTEMPTS = 5


def find_thread(store: Store, connection: Connection, thread_id: str) -> int | None:
    """The thread's key, or None where there is no such thread. Locks nothing."""
    return connection.execute(_find(store.tables), {"thread_id": thread_id}).scalar_one_or_none()


def lock_thread(
    store: Store,
    connection: Connection,
    thread_id: str,
    thread_key: int | None = None,
    *,
    puts: int = 1,
    active: bool = True,
) -> LockedThread | None:
    """Lock the thread and advance its version by one and its sequence by ``puts``; None where there is no such thread.

    Its activity becomes now, unless not ``active``: cleaning up must not keep a thread from expiring. ``thread_key`` is
    what the caller remembers, to save a look. It may be wrong: a thread that was deleted and created again has another
    key, and then it is looked up.
    """
    for _ in range(_ATTEMPTS):
        key = thread_key if thread_key is not None else find_thread(store, connection, thread_id)
        if key is None:
            return None
        row = connection.execute(_lock(store.tables, store.dialect, active), {"key": key, "puts": puts}).one_or_none()
        if row is not None:
            return LockedThread.of(thread_id, row)
        thread_key = None  # deleted while we waited
    raise Contention(f"thread {thread_id!r} was deleted and created again {_ATTEMPTS} times during one call; repeat it")


def lock_or_create(
    store: Store, connection: Connection, thread_id: str, thread_key: int | None = None, *, puts: int = 1
) -> tuple[LockedThread, bool]:
    """(the locked thread, whether this call created it)."""
    for _ in range(_ATTEMPTS):
        locked = lock_thread(store, connection, thread_id, thread_key, puts=puts)
        if locked is not None:
            return locked, False
        created = create_thread(store, connection, thread_id)
        if created is not None:
            locked = lock_thread(store, connection, thread_id, created, puts=puts)
            assert locked is not None
            return locked, True
        thread_key = None  # somebody else was faster
    raise Contention(f"thread {thread_id!r} was created and deleted {_ATTEMPTS} times during one call; repeat it")


def create_thread(store: Store, connection: Connection, thread_id: str) -> int | None:
    """A new thread's key, or None where the thread exists already. It is not listed until it has a checkpoint."""
    tables, now = store.tables, store.dialect.now()
    made = connection.execute(
        store.dialect.insert(tables.threads)
        .values(thread_id=thread_id, created_at=now)
        .on_conflict_do_nothing(index_elements=["thread_id"])
        .returning(tables.threads.c.thread_key, tables.threads.c.created_at)
    ).one_or_none()
    if made is None:
        return None
    connection.execute(
        tables.versions.insert().values(
            thread_key=made.thread_key, version=0, last_seq=0, activity=made.created_at, lease_token=0
        )
    )
    key: int = made.thread_key
    return key


def undo_lock(store: Store, connection: Connection, locked: LockedThread, *, puts: int = 1) -> None:
    """Take back the numbers that the lock advanced, where the transaction turns out to change nothing.

    The lock stays. Nobody has seen the numbers: they were never committed.
    """
    versions = store.tables.versions
    connection.execute(
        update(versions)
        .where(versions.c.thread_key == locked.thread_key)
        .values(version=locked.version - 1, last_seq=locked.last_seq - puts)
    )


def check_fence(store: Store, locked: LockedThread, fence: Fence, doing: str) -> None:
    """Whether the write may go on.

    Raises:
        StaleFence: the token is not the newest or its lease has lapsed, or there is none and somebody holds the lease.
    """
    current = locked.lease_token
    if fence.token is None:
        if locked.leased and not store.advisory_leases:
            raise StaleFence(
                f"{doing}: thread {locked.thread_id!r} is leased to {locked.lease_owner!r} and this write has no "
                "token; acquire the lease, or open the checkpointer with leases='advisory'",
                token=None,
                current=current,
            )
    elif fence.token != current or not locked.leased:
        reason = "a newer token exists" if fence.token != current else "its lease has lapsed"
        raise StaleFence(
            f"{doing}: the lease token {fence.token} of thread {locked.thread_id!r} is refused, {reason}; "
            "acquire the lease again or stop",
            token=fence.token,
            current=current,
        )


def clocked(store: Store, connection: Connection, locked: LockedThread) -> LockedThread:
    """``locked`` with the clock read after the lock, where a lease depends on it.

    A locking select computes what it returns before it waits, unless the row changed meanwhile; an update after.
    """
    if locked.lease_until is None:
        return locked
    return replace(locked, now=connection.execute(select(store.dialect.now().label("now"))).scalar_one())


def no_such_thread(thread_id: str) -> NotFound:
    """The error for an operation that needs the thread to exist."""
    return NotFound(f"thread {thread_id!r} does not exist")


@cache
def _find(tables: Tables) -> Select[Any]:
    return select(tables.threads.c.thread_key).where(tables.threads.c.thread_id == bindparam("thread_id"))


@cache
def _lock(tables: Tables, dialect: Dialect, active: bool) -> Update:
    v = tables.versions.c
    return (
        update(tables.versions)
        .where(v.thread_key == bindparam("key"))
        .values(
            version=v.version + 1,
            last_seq=v.last_seq + bindparam("puts", type_=BigInteger),
            activity=dialect.later(v.activity, dialect.now()) if active else v.activity,
        )
        .returning(
            v.thread_key,
            v.version,
            v.last_seq,
            v.activity,
            v.lease_owner,
            v.lease_token,
            v.lease_until,
            dialect.now().label("now"),
        )
    )


def delete_rows(store: Store, connection: Connection, thread_key: int) -> None:
    """Delete everything of the thread whose version row this transaction has locked for deletion."""
    tables = store.tables
    for table in (*tables.owned, tables.versions, tables.threads):
        connection.execute(delete(table).where(table.c.thread_key == thread_key))
