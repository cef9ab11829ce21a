"""Leases: who may write to a thread, until when. Whether a write's token is good is checked in ``locking``.

Times are the database's clock read after the row is locked, in a statement of its own: a statement's clock may be as
old as its wait for the lock, where whoever held it did not change the row.
"""

from __future__ import annotations

from datetime import timedelta
from functools import cache
from typing import Any, Final

from sqlalchemy import Connection, Select, Update, bindparam, select, update

from clew.dialects import Dialect
from clew.errors import ClewError, InvalidInput, LeaseHeld, StaleFence
from clew.records import Lease
from clew.repository.keys import check_id, check_thread_id, fits_a_column, shown
from clew.repository.locking import exclusive, find_thread, hold_or_create
from clew.repository.store import LockedThread, Store
from clew.tables import Tables

__all__ = ["acquire_lease", "check_ttl", "get_lease", "release_lease", "renew_lease"]

LEASE_BITS: Final = 24
"""A token is the thread's key and, in so many low bits, a count: since no key is used twice, no token is.

It ends after 2**24 leases of one thread (194 days of a new lease every second), and after 2**39 threads.
"""
_MAX_TTL_S: Final = 366 * 24 * 3600.0


def acquire_lease(store: Store, connection: Connection, thread_id: str, owner: str, ttl_s: float) -> Lease:
    """A new lease; the thread is created where there is none. The thread's version stays.

    Waits for writes that are on their way, so that none of them comes in after the lease is given.

    Raises:
        LeaseHeld: somebody's lease, the same owner's included, has not lapsed yet.
    """
    check_thread_id(thread_id), check_id("owner", owner)
    span = check_ttl(ttl_s)
    locked = _wait(store, connection, thread_id)
    if locked.lease_until is not None and locked.leased:
        raise LeaseHeld(
            f"acquire lease of thread {thread_id!r} for {owner!r}: {locked.lease_owner!r} holds it until "
            f"{locked.lease_until.isoformat()}; wait until then, or have it released",
            owner=locked.lease_owner or "",
            until=locked.lease_until,
        )
    floor = locked.thread_key << LEASE_BITS
    token = max(locked.lease_token, floor) + 1
    if token >> LEASE_BITS != locked.thread_key:
        raise ClewError(f"thread {thread_id!r} has used up its {2**LEASE_BITS - 1} leases; copy it to a new thread")
    lease = Lease(thread_id=thread_id, owner=owner, token=token, until=locked.now + span)
    _set(store, connection, locked, lease)
    return lease


def renew_lease(store: Store, connection: Connection, thread_id: str, token: int, ttl_s: float) -> Lease:
    """The lease, lasting ``ttl_s`` from now: it has not lapsed on return, however long the row's lock was waited for.

    A lapsed lease can be renewed as long as nobody else has taken the thread.

    Raises:
        StaleFence: it was released, somebody else has taken the thread, or the thread is gone.
    """
    span = check_ttl(ttl_s)
    _check_token(token)
    locked = _lock(store, connection, check_thread_id(thread_id))
    if locked is None or locked.lease_token != token or locked.lease_until is None:
        raise StaleFence(
            f"renew lease of thread {thread_id!r}: the token {token} is not the newest, or was released; "
            "acquire the lease again or stop",
            token=token,
            current=None if locked is None else locked.lease_token,
        )
    lease = Lease(thread_id=thread_id, owner=locked.lease_owner or "", token=token, until=locked.now + span)
    _set(store, connection, locked, lease)
    return lease


def release_lease(store: Store, connection: Connection, thread_id: str, token: int) -> bool:
    """Give the lease up; False where it is not the newest, or was released already. Its token stays used."""
    _check_token(token)
    locked = _lock(store, connection, check_thread_id(thread_id))
    if locked is None or locked.lease_token != token or locked.lease_until is None:
        return False
    _set(store, connection, locked, None)
    return True


def get_lease(store: Store, connection: Connection, thread_id: str) -> Lease | None:
    """The lease that has not lapsed, or None."""
    row = connection.execute(
        _held(store.tables, store.dialect), {"thread_id": check_thread_id(thread_id)}
    ).one_or_none()
    if row is None:
        return None
    return Lease(thread_id=thread_id, owner=row.lease_owner, token=row.lease_token, until=row.lease_until)


def check_ttl(ttl_s: float) -> timedelta:
    """``ttl_s`` as a span, if a lease can last so long: more than 0 s, at most 366 days. Raises InvalidInput."""
    if type(ttl_s) not in (int, float) or not 0 < ttl_s <= _MAX_TTL_S:  # NaN is not above 0 either
        raise InvalidInput(f"ttl_s must be a number above 0 and at most {_MAX_TTL_S:.0f}, not {shown(ttl_s)}")
    return max(timedelta(seconds=ttl_s), timedelta(microseconds=1))


def _check_token(token: int) -> None:
    if not fits_a_column(token):
        raise InvalidInput(f"token must be the number that acquiring the lease gave, not {shown(token)}")


def _wait(store: Store, connection: Connection, thread_id: str) -> LockedThread:
    """The thread, held against everybody: ``put_writes`` on its way is waited for, which an update would not do."""
    held = hold_or_create(store, connection, thread_id, exclusive(store.tables, store.dialect))
    row = connection.execute(_touch(store.tables, store.dialect), {"key": held.thread_key}).one()
    return LockedThread.of(thread_id, row)


def _lock(store: Store, connection: Connection, thread_id: str) -> LockedThread | None:
    key = find_thread(store, connection, thread_id)
    row = None if key is None else connection.execute(_touch(store.tables, store.dialect), {"key": key}).one_or_none()
    return None if row is None else LockedThread.of(thread_id, row)


def _set(store: Store, connection: Connection, locked: LockedThread, lease: Lease | None) -> None:
    connection.execute(
        _leased(store.tables),
        {
            "key": locked.thread_key,
            "owner": lease.owner if lease else None,
            "token": lease.token if lease else locked.lease_token,
            "until": lease.until if lease else None,
        },
    )


@cache
def _touch(tables: Tables, dialect: Dialect) -> Update:
    """Locks the row and changes nothing; what it returns is computed after the lock."""
    v = tables.versions.c
    return (
        update(tables.versions)
        .where(v.thread_key == bindparam("key"))
        .values(lease_token=v.lease_token)
        .returning(*v, dialect.now().label("now"))
    )


@cache
def _leased(tables: Tables) -> Update:
    v = tables.versions.c
    return (
        update(tables.versions)
        .where(v.thread_key == bindparam("key"))
        .values(lease_owner=bindparam("owner"), lease_token=bindparam("token"), lease_until=bindparam("until"))
    )


@cache
def _held(tables: Tables, dialect: Dialect) -> Select[Any]:
    t, v = tables.threads.c, tables.versions.c
    return (
        select(v.lease_owner, v.lease_token, v.lease_until)
        .select_from(tables.threads.join(tables.versions, t.thread_key == v.thread_key))
        .where(t.thread_id == bindparam("thread_id"), v.lease_until > dialect.now())
    )
