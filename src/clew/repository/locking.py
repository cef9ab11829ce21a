"""Finding, creating and locking a thread: the first statements of every transaction that changes one.

The rule (docs/design.md, "Concurrency: one rule"): lock by updating the version row, as a statement of its own; check
everything else in later statements. A statement that waited for a row lock re-reads only the locked row, and whatever
else it looked at is stale (PostgreSQL manual, "Read Committed Isolation Level").
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import BigInteger, Connection, Select, Update, bindparam, literal, or_, select, update

from clew.dialects import Dialect
from clew.errors import AlreadyExists, Contention, InvalidInput, NotFound, StaleFence
from clew.repository.keys import check_thread_id
from clew.repository.store import Fence, LockedThread, Store
from clew.tables import Tables

__all__ = [
    "check_empty",
    "check_fence",
    "clocked",
    "database_now",
    "exclusive",
    "find_thread",
    "hold_or_create",
    "holds_anything",
    "lock_or_create",
    "lock_thread",
    "lock_two",
    "no_such_thread",
    "shared",
    "undo_lock",
]

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
    raise _in_flux(thread_id)


def lock_or_create(
    store: Store, connection: Connection, thread_id: str, thread_key: int | None = None, *, puts: int = 1
) -> tuple[LockedThread, bool]:
    """(the locked thread, whether this call created it)."""
    for _ in range(_ATTEMPTS):
        locked = lock_thread(store, connection, thread_id, thread_key, puts=puts)
        if locked is not None:
            return locked, False
        created = _create_thread(store, connection, thread_id)
        if created is not None:
            locked = lock_thread(store, connection, thread_id, created, puts=puts)
            assert locked is not None
            return locked, True
        thread_key = None  # somebody else was faster
    raise _in_flux(thread_id)


def lock_two(store: Store, connection: Connection, source: str, target: str, *, puts: int) -> tuple[int, LockedThread]:
    """(the source's key, the target locked and created where it was not there), locked in the order of their keys.

    The source is held as it is: nobody can write to it or delete it before this transaction ends, and its version and
    its activity stay.

    Raises:
        InvalidInput: the two are one thread.
        NotFound: there is no such source.
    """
    check_thread_id(source)
    check_thread_id(target)
    if source == target:
        raise InvalidInput(f"thread {source!r} cannot be copied onto itself")
    for _ in range(_ATTEMPTS):
        source_key, target_key = find_thread(store, connection, source), find_thread(store, connection, target)
        if source_key is None:
            raise no_such_thread(source)
        locked = None
        if target_key is not None and target_key < source_key:
            locked = lock_thread(store, connection, target, target_key, puts=puts)
        if connection.execute(exclusive(store.tables, store.dialect), {"key": source_key}).one_or_none() is None:
            raise no_such_thread(source)
        if locked is None:  # a thread that has yet to be created has the greater key
            target_key = find_thread(store, connection, target) or _create_thread(store, connection, target)
            locked = lock_thread(store, connection, target, target_key, puts=puts)
        if locked is not None:
            return source_key, locked
    raise _in_flux(target)


def hold_or_create(store: Store, connection: Connection, thread_id: str, statement: Select[Any]) -> LockedThread:
    """The thread, held by ``statement`` (``shared`` or ``exclusive``) as it is, and created where it was not there."""
    for _ in range(_ATTEMPTS):
        key = find_thread(store, connection, thread_id) or _create_thread(store, connection, thread_id)
        row = None if key is None else connection.execute(statement, {"key": key}).one_or_none()
        if row is not None:
            return LockedThread.of(thread_id, row)
    raise _in_flux(thread_id)


def _create_thread(store: Store, connection: Connection, thread_id: str) -> int | None:
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


def check_empty(store: Store, connection: Connection, locked: LockedThread, doing: str) -> None:
    """Whether the locked thread holds nothing yet. A lease is nothing.

    Raises:
        AlreadyExists: it has a checkpoint, a write or a run.
    """
    if holds_anything(store, connection, locked.thread_key):
        raise AlreadyExists(f"{doing}: thread {locked.thread_id!r} is not empty; take another id, or delete it first")


def holds_anything(store: Store, connection: Connection, thread_key: int) -> bool:
    """Whether the thread has a checkpoint, a segment, a write or a run."""
    return bool(connection.execute(_anything(store.tables), {"key": thread_key}).scalar_one())


def database_now(store: Store, connection: Connection) -> datetime:
    """The database's clock."""
    now: datetime = connection.execute(select(store.dialect.now().label("now"))).scalar_one()
    return now


def clocked(store: Store, connection: Connection, locked: LockedThread) -> LockedThread:
    """``locked`` with the clock read after the lock, where a lease depends on it.

    A locking select computes what it returns before it waits, unless the row changed meanwhile; an update after.
    """
    if locked.lease_until is None:
        return locked
    return replace(locked, now=database_now(store, connection))


def no_such_thread(thread_id: str) -> NotFound:
    """The error for an operation that needs the thread to exist."""
    return NotFound(f"thread {thread_id!r} does not exist")


@cache
def shared(tables: Tables, dialect: Dialect) -> Select[Any]:
    """Reads the version row of ``key`` and holds off the thread's deletion."""
    return dialect.share_lock(_standing(tables, dialect))


@cache
def exclusive(tables: Tables, dialect: Dialect, *, skip_locked: bool = False) -> Select[Any]:
    """Reads the version row of ``key`` and holds off everything else, ``put_writes`` too; an update would not do that.

    With ``skip_locked`` it gives nothing where somebody else has locked the row.
    """
    return dialect.delete_lock(_standing(tables, dialect), skip_locked=skip_locked)


def _in_flux(thread_id: str) -> Contention:
    return Contention(f"thread {thread_id!r} was created and deleted {_ATTEMPTS} times during one call; repeat it")


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


@cache
def _standing(tables: Tables, dialect: Dialect) -> Select[Any]:
    v = tables.versions.c
    return select(*v, dialect.now().label("now")).where(v.thread_key == bindparam("key"))


@cache
def _anything(tables: Tables) -> Select[Any]:
    found = [
        select(literal(1)).where(table.c.thread_key == bindparam("key")).exists()
        for table in (tables.checkpoints, tables.segments, tables.pending_writes, tables.runs)
    ]
    return select(or_(*found))
