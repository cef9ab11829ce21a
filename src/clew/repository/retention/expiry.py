"""Expiry: until when a thread is kept, and sweeping away what nobody will come back for.

A put never touches the row that the expiry stands in. A thread that is kept as long as it is active has its moment
worked out from the version row's activity, where it is asked for and when it is about to be swept.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from functools import cache
from typing import Any, Final

from sqlalchemy import Connection, Delete, Select, bindparam, delete, exists, null, or_, select, union, update

from clew.errors import CorruptData, InvalidInput
from clew.repository.collecting import delete_everything
from clew.repository.keys import check_age, check_instant, check_limit, check_thread_id, instant_before
from clew.repository.locking import (
    check_fence,
    clocked,
    database_now,
    exclusive,
    find_thread,
    holds_anything,
    no_such_thread,
    shared,
)
from clew.repository.store import NO_FENCE, Fence, LockedThread, Store
from clew.tables import MICROSECOND, Tables

__all__ = [
    "Expiry",
    "Outcome",
    "SweptThread",
    "expired_threads",
    "expires_at",
    "forlorn_threads",
    "set_expiry",
    "sweep_thread",
]

_LARGEST: Final = timedelta(days=365_000)


@dataclass(frozen=True, slots=True)
class Expiry:
    """Until when to keep a thread: an instant, a time from now on or, refreshed, from its last activity on, or always.

    Raises:
        InvalidInput: both are given, a time that is not positive, an instant without a time zone, or a refresh without
            a time.
    """

    at: datetime | None = None
    ttl: timedelta | None = None
    refresh_on_activity: bool = False

    def __post_init__(self) -> None:
        if self.at is not None and self.ttl is not None:
            raise InvalidInput("set_expiry takes an instant (at) or a time to live (ttl), not both")
        if self.at is not None:
            check_instant("at", self.at)
        if self.ttl is not None and not timedelta(0) < check_age("ttl", self.ttl) <= _LARGEST:
            raise InvalidInput(f"ttl must be a positive timedelta of at most {_LARGEST.days} days")
        if type(self.refresh_on_activity) is not bool:
            raise InvalidInput(f"refresh_on_activity must be a bool, not {type(self.refresh_on_activity).__name__}")
        if self.refresh_on_activity and self.ttl is None:
            raise InvalidInput(
                "refresh_on_activity needs a ttl: the time that a thread is kept after its last activity"
            )


class Outcome(Enum):
    """What became of a thread that a sweep looked at."""

    EXPIRED = "expired"
    UNBORN = "unborn"
    KEPT = "kept"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class SweptThread:
    """The outcome for one thread, and how many writes were cleared whose checkpoint never came."""

    outcome: Outcome
    writes: int = 0


def set_expiry(
    store: Store, connection: Connection, thread_id: str, expiry: Expiry, fence: Fence = NO_FENCE
) -> datetime | None:
    """Say until when the thread is kept; the moment, or None for always. The thread's version and activity stay.

    Raises:
        NotFound: there is no such thread, or it never had a checkpoint.
        StaleFence: see there.
    """
    key = find_thread(store, connection, check_thread_id(thread_id))
    row = None
    if key is not None:  # held against a sweep, which locks the same row for deletion before it looks again
        row = connection.execute(shared(store.tables, store.dialect), {"key": key}).one_or_none()
    if row is None or row.last_seq == 0:
        raise no_such_thread(thread_id)
    locked = clocked(store, connection, LockedThread.of(thread_id, row))
    check_fence(store, locked, fence, "set the expiry")
    moment = expiry.at
    if expiry.ttl is not None:
        moment = _later(locked.activity if expiry.refresh_on_activity else locked.now, expiry.ttl)
    connection.execute(
        _set(store.tables),
        {
            "key": key,
            "moment": moment,
            "ttl": None if expiry.ttl is None else expiry.ttl // MICROSECOND,
            "refresh": expiry.refresh_on_activity,
        },
    )
    return moment


def expires_at(row: Any) -> datetime | None:
    """When a thread expires; ``row`` holds ``expires_at``, ``ttl_us``, ``refresh_on_activity`` and ``activity``.

    Raises:
        CorruptData: that is beyond the calendar.
    """
    moment: datetime | None = row.expires_at
    if moment is None or not row.refresh_on_activity or row.ttl_us is None:
        return moment
    return max(moment, _later(row.activity, row.ttl_us * MICROSECOND))


def _later(activity: datetime, ttl: timedelta) -> datetime:
    try:
        return activity + ttl
    except OverflowError as exc:
        raise CorruptData("its activity or its time to live is beyond the calendar") from exc


def expired_threads(
    store: Store, connection: Connection, now: datetime | None, after: tuple[datetime, int] | None, limit: int
) -> list[tuple[datetime, int]]:
    """(moment, thread key) of threads that may have expired by ``now`` (None: the database's), earliest first."""
    check_limit(limit)
    moment = database_now(store, connection) if now is None else now
    values = {"now": moment, "most": limit}
    if after is not None:
        values |= {"after": after[0], "after_key": after[1]}
    rows = connection.execute(_expired(store.tables, after is not None), values).all()
    return [(row.expires_at, row.thread_key) for row in rows]


def forlorn_threads(
    store: Store, connection: Connection, now: datetime | None, age: timedelta, after: int, limit: int
) -> list[int]:
    """The keys of threads behind ``after``, in order, that hold writes whose checkpoint has not come, or nothing.

    Both for longer than ``age``. Every pending write is looked at for it, and no payload.
    """
    check_limit(limit)
    values = {"before": _before(store, connection, now, age), "after": after, "most": limit}
    return list(connection.execute(_forlorn(store.tables), values).scalars().all())


def sweep_thread(
    store: Store, connection: Connection, thread_key: int, now: datetime | None, age: timedelta
) -> tuple[SweptThread, str]:
    """(what became of the thread, its id): deleted if expired or never anything, else its forlorn writes cleared.

    Whoever works on the thread is not waited for. What led here may have changed since: everything is looked at again,
    under the lock.
    """
    tables = store.tables
    v, t = tables.versions.c, tables.threads.c
    lock = exclusive(tables, store.dialect, skip_locked=True)
    locked = connection.execute(lock, {"key": thread_key}).one_or_none()
    if locked is None or LockedThread.of("", locked).leased:
        return SweptThread(Outcome.SKIPPED), ""
    row = connection.execute(
        select(t.thread_id, t.expires_at, t.ttl_us, t.refresh_on_activity, v.activity)
        .select_from(tables.threads.join(tables.versions, t.thread_key == v.thread_key))
        .where(t.thread_key == thread_key)
    ).one()
    moment, clock = expires_at(row), locked.now if now is None else now
    if moment is not None and moment <= clock:
        delete_everything(store, connection, thread_key)
        return SweptThread(Outcome.EXPIRED), row.thread_id
    if moment != row.expires_at:  # so that it is not looked at again until then
        connection.execute(update(tables.threads).where(t.thread_key == thread_key).values(expires_at=moment))
    before = _before(store, connection, clock, age)
    cleared = connection.execute(_clear(tables), {"key": thread_key, "before": before}).rowcount
    if locked.last_seq == 0 and not holds_anything(store, connection, thread_key):
        delete_everything(store, connection, thread_key)
        return SweptThread(Outcome.UNBORN, cleared), row.thread_id
    return SweptThread(Outcome.KEPT, cleared), row.thread_id


def _before(store: Store, connection: Connection, now: datetime | None, age: timedelta) -> datetime:
    return instant_before(database_now(store, connection) if now is None else now, age)


@cache
def _set(tables: Tables) -> Any:
    t = tables.threads.c
    return (
        update(tables.threads)
        .where(t.thread_key == bindparam("key"))
        .values(expires_at=bindparam("moment"), ttl_us=bindparam("ttl"), refresh_on_activity=bindparam("refresh"))
    )


@cache
def _expired(tables: Tables, continued: bool) -> Select[Any]:
    t = tables.threads.c
    statement = select(t.expires_at, t.thread_key).where(t.expires_at.is_not(null()), t.expires_at <= bindparam("now"))
    if continued:
        statement = statement.where(
            t.expires_at >= bindparam("after"),
            or_(t.expires_at > bindparam("after"), t.thread_key > bindparam("after_key")),
        )
    return statement.order_by(t.expires_at, t.thread_key).limit(bindparam("most"))


@cache
def _forlorn(tables: Tables) -> Select[Any]:
    t, v, w = tables.threads.c, tables.versions.c, tables.pending_writes.c
    waiting = (
        select(w.thread_key)
        .where(w.thread_key > bindparam("after"), w.created_at < bindparam("before"), ~_come(tables))
        .distinct()
        .order_by(w.thread_key)
        .limit(bindparam("most"))
    ).subquery("waiting")
    unborn = (
        select(t.thread_key)
        .select_from(tables.threads.join(tables.versions, t.thread_key == v.thread_key))
        .where(
            t.thread_key > bindparam("after"),
            t.created_at < bindparam("before"),
            v.last_seq == 0,  # no run either, for it comes with a checkpoint
            ~exists().where(w.thread_key == t.thread_key),
        )
        .order_by(t.thread_key)
        .limit(bindparam("most"))
    ).subquery("unborn")
    both = union(select(waiting.c.thread_key), select(unborn.c.thread_key)).subquery("both")
    return select(both.c.thread_key).order_by(both.c.thread_key).limit(bindparam("most"))


@cache
def _clear(tables: Tables) -> Delete:
    w = tables.pending_writes.c
    return delete(tables.pending_writes).where(
        w.thread_key == bindparam("key"), w.created_at < bindparam("before"), ~_come(tables)
    )


def _come(tables: Tables) -> Any:
    """Whether the checkpoint of a write is there."""
    c, w = tables.checkpoints.c, tables.pending_writes.c
    return (
        select(c.seq)
        .where(c.thread_key == w.thread_key, c.namespace == w.namespace, c.checkpoint_id == w.checkpoint_id)
        .correlate(tables.pending_writes)
        .exists()
    )
