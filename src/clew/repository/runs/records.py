"""The records of runs: looking them up, finishing one, asking one to suspend. How a boundary moves one is elsewhere.

Every change of a run advances its thread's version, so that what an executor remembers of the run is valid exactly
while the version is.
"""

from __future__ import annotations

import operator
from collections.abc import Collection
from datetime import datetime
from functools import cache
from typing import Any, Final

from sqlalchemy import Connection, Select, bindparam, delete, func, or_, select, update

from clew.errors import CorruptData, InvalidInput, NotFound, RunFinished
from clew.records import Page, Run, RunStatus, Usage
from clew.repository.cursors import decode_cursor, encode_cursor
from clew.repository.finding import key_of
from clew.repository.keys import check_id, check_limit, check_thread_id, namespace_of, shown
from clew.repository.locking import check_fence, lock_thread, undo_lock
from clew.repository.runs.evidence import USAGE, usage_of
from clew.repository.soundness import UNREADABLE, located, naming
from clew.repository.store import NO_FENCE, Fence, LockedThread, Store
from clew.tables import Tables

__all__ = [
    "check_text",
    "delete_run_record",
    "find_run",
    "finish_run",
    "get_run",
    "list_resumable",
    "list_runs",
    "request_suspend",
    "run_of",
    "thread_usage",
]

TEXT_BYTES: Final = 1_000_000
"""The most that an error or a suspend reason may take."""

_UNFINISHED = tuple(status for status in RunStatus if not status.is_finished)


def get_run(store: Store, connection: Connection, run_id: str, thread_id: str | None = None) -> Run | None:
    """The run, or None. Without ``thread_id`` it is looked for in all threads.

    Raises:
        InvalidInput: several threads hold a run of this id (one is a copy, say) and ``thread_id`` is not given.
        CorruptData: naming the run, where its row cannot be read. So it is for everything that reads a run.
    """
    where = {"run_id": check_id("run_id", run_id)}
    if thread_id is not None:
        where["thread_id"] = check_thread_id(thread_id)
    rows = connection.execute(_named(store.tables, thread_id is not None), where).mappings().all()
    if len(rows) > 1:
        raise InvalidInput(
            f"run {run_id!r} is in several threads, {rows[0]['thread_id']!r} among them; name the thread"
        )
    return run_of(rows[0]) if rows else None


def find_run(store: Store, connection: Connection, locked: LockedThread, run_id: str) -> Run | None:
    """The run of a thread that this transaction has locked, or None."""
    row = connection.execute(_of_thread(store.tables), {"key": locked.thread_key, "run_id": run_id}).mappings().first()
    return None if row is None else run_of({**row, "thread_id": locked.thread_id})


def list_runs(
    store: Store,
    connection: Connection,
    *,
    status: RunStatus | str | Collection[RunStatus | str] | None = None,
    thread_id: str | None = None,
    parent_run_id: str | None = None,
    limit: int = 100,
    cursor: str | None = None,
) -> Page[Run]:
    """At most ``limit`` (1 to 10,000) runs, the last started first.

    Raises:
        InvalidInput: an unknown status, a limit out of range, a cursor of another listing.
    """
    check_limit(limit)
    r, t = store.tables.runs.c, store.tables.threads.c
    statement = _runs(store.tables)
    if status is not None:
        statement = statement.where(r.status.in_(sorted(_statuses(status))))
    if thread_id is not None:
        statement = statement.where(t.thread_id == check_thread_id(thread_id))
    if parent_run_id is not None:
        statement = statement.where(r.parent_run_id == check_id("parent_run_id", parent_run_id))
    return _page(connection, statement, store.tables, "runs", limit, cursor, newest_first=True)


def list_resumable(
    store: Store,
    connection: Connection,
    *,
    thread_id: str | None = None,
    limit: int = 100,
    cursor: str | None = None,
) -> Page[Run]:
    """At most ``limit`` (1 to 10,000) runs that somebody may go on with, the first started first.

    They are the waiting ones, and of those that are starting or running the ones whose thread nobody holds the lease of
    (it has lapsed, by the database's clock, was released, or was never taken).

    Raises:
        InvalidInput: a limit out of range, a cursor of another listing.
    """
    check_limit(limit)
    r, t, v = store.tables.runs.c, store.tables.threads.c, store.tables.versions.c
    abandoned = or_(v.lease_until.is_(None), v.lease_until <= store.dialect.now())
    # The statuses stand in the statement, or the partial index is not used.
    unfinished = [status.value for status in _UNFINISHED]
    statement = (
        _runs(store.tables)
        .join(store.tables.versions, v.thread_key == r.thread_key)
        .where(
            r.status.in_(bindparam("unfinished", unfinished, expanding=True, literal_execute=True)),
            or_(r.status == RunStatus.WAITING.value, abandoned),
        )
    )
    if thread_id is not None:
        statement = statement.where(t.thread_id == check_thread_id(thread_id))
    return _page(connection, statement, store.tables, "resumable", limit, cursor, newest_first=False)


def finish_run(
    store: Store,
    connection: Connection,
    run_id: str,
    status: RunStatus,
    error: str | None,
    thread_id: str | None = None,
    fence: Fence = NO_FENCE,
) -> Run:
    """The run, finished as ``status``; a repetition changes nothing and succeeds.

    Raises:
        NotFound: no such run.
        RunFinished: it is finished already, in another way.
        StaleFence: see there.
    """
    locked, run = _locked_run(store, connection, run_id, thread_id)
    if run.status.is_finished:
        undo_lock(store, connection, locked, puts=0)
        if (run.status, run.error) == (status, error):
            return run
        raise RunFinished(
            f"finish run {run_id!r} of thread {run.thread_id!r} as {status.value}: it is {run.status.value} already"
        )
    check_fence(store, locked, fence, f"finish run {run_id!r}")
    changes = {"status": status.value, "error": error, "finished_at": locked.activity, "updated_at": locked.activity}
    _change(store, connection, locked, run_id, {**changes, "suspend_reason": None, "suspend_requested_at": None})
    found = find_run(store, connection, locked, run_id)
    assert found is not None
    return found


def request_suspend(
    store: Store, connection: Connection, run_id: str, reason: str, thread_id: str | None = None
) -> Run:
    """The run, asked to suspend at its next boundary; a later reason replaces an earlier one. No lease is needed.

    Raises:
        NotFound: no such run.
        RunFinished: it has no next boundary.
    """
    locked, run = _locked_run(store, connection, run_id, thread_id)
    if run.status.is_finished:
        raise RunFinished(f"request suspension of run {run_id!r}: it is {run.status.value} already")
    changes = {"suspend_reason": reason, "suspend_requested_at": locked.activity, "updated_at": locked.activity}
    _change(store, connection, locked, run_id, changes)
    found = find_run(store, connection, locked, run_id)
    assert found is not None
    return found


def thread_usage(store: Store, connection: Connection, thread_id: str) -> Usage:
    """What all runs of the thread have used together, in one query; zeros where there is none."""
    row = connection.execute(_usage(store.tables), {"thread_id": check_thread_id(thread_id)}).mappings().one()
    with naming(thread_id):
        return Usage(**{name: int(row[name]) for name in USAGE})


def delete_run_record(store: Store, connection: Connection, locked: LockedThread, run_id: str) -> bool:
    """Delete the record of a run, its checkpoints aside; whether there was one."""
    r = store.tables.runs.c
    mine = delete(store.tables.runs).where(r.thread_key == locked.thread_key, r.run_id == run_id)
    return connection.execute(mine).rowcount > 0


def check_text(name: str, text: str) -> str:
    """``text``, if an error or a reason can say it: not empty, at most 1,000,000 bytes. Raises InvalidInput."""
    return check_id(name, text, TEXT_BYTES)


def _locked_run(store: Store, connection: Connection, run_id: str, thread_id: str | None) -> tuple[LockedThread, Run]:
    missing = NotFound(f"run {run_id!r} does not exist" + (f" in thread {thread_id!r}" if thread_id else ""))
    seen = get_run(store, connection, run_id, thread_id)
    if seen is None:
        raise missing
    locked = lock_thread(store, connection, seen.thread_id, puts=0)
    run = find_run(store, connection, locked, run_id) if locked is not None else None
    if locked is not None and run is not None:
        return locked, run
    raise missing  # deleted while we waited


def _change(store: Store, connection: Connection, locked: LockedThread, run_id: str, changes: dict[str, Any]) -> None:
    r = store.tables.runs.c
    connection.execute(
        update(store.tables.runs).where(r.thread_key == locked.thread_key, r.run_id == run_id).values(**changes)
    )


def _page(
    connection: Connection,
    statement: Select[Any],
    tables: Tables,
    kind: str,
    limit: int,
    cursor: str | None,
    *,
    newest_first: bool,
) -> Page[Run]:
    r = tables.runs.c
    order = (r.started_at, r.thread_key, r.run_id)
    if cursor is not None:
        started, key, run_id = decode_cursor(cursor, kind, datetime, int, str)
        check_id("cursor", run_id)
        later = operator.lt if newest_first else operator.gt
        statement = statement.where(
            or_(
                later(r.started_at, started),
                (r.started_at == started) & later(r.thread_key, key),
                (r.started_at == started) & (r.thread_key == key) & later(r.run_id, run_id),
            )
        )
    ordered = [column.desc() for column in order] if newest_first else list(order)
    rows = connection.execute(statement.order_by(*ordered).limit(limit + 1)).mappings().all()
    following = None
    if len(rows) > limit:
        last = rows[limit - 1]
        following = encode_cursor(kind, last["started_at"], last["thread_key"], last["run_id"])
    return Page(items=tuple(run_of(row) for row in rows[:limit]), next_cursor=following)


def _statuses(status: RunStatus | str | Collection[RunStatus | str]) -> set[str]:
    try:
        asked = {status} if isinstance(status, str) else set(status)
    except TypeError as exc:  # no iterable, or an item that has no hash
        raise InvalidInput("status must be a run's status, or several of them") from exc
    known = {item.value for item in RunStatus}
    if unknown := sorted(map(shown, asked - known)):
        raise InvalidInput(f"status {unknown[0]} is none of {', '.join(sorted(known))}")
    return {str(item) for item in asked}


def run_of(row: Any) -> Run:
    """The run of a mapping that holds its columns and its ``thread_id``.

    Raises:
        CorruptData: naming the run, where they do not hold one.
    """
    try:
        return _run_of(row)
    except UNREADABLE as exc:  # a word or a number that no record takes, or a namespace that is none
        where = f"run {row['run_id']!r} of thread {row['thread_id']!r}"
        raise located(CorruptData("its row holds no run"), where) from exc


def _run_of(row: Any) -> Run:
    return Run.model_construct(
        run_id=row["run_id"],
        thread_id=row["thread_id"],
        parent_run_id=row["parent_run_id"],
        status=RunStatus(row["status"]),
        node=row["node"],
        step=row["step"],
        namespace=namespace_of(row["namespace"]),
        checkpoint_id=row["checkpoint_id"],
        usage=usage_of(row),
        started_at=row["started_at"],
        updated_at=row["updated_at"],
        finished_at=row["finished_at"],
        error=row["error"],
        suspend_reason=row["suspend_reason"],
        suspend_requested_at=row["suspend_requested_at"],
    )


@cache
def _runs(tables: Tables) -> Select[Any]:
    t, r = tables.threads.c, tables.runs.c
    return select(t.thread_id, *r).select_from(tables.runs.join(tables.threads, t.thread_key == r.thread_key))


@cache
def _named(tables: Tables, in_thread: bool) -> Select[Any]:
    t, r = tables.threads.c, tables.runs.c
    statement = _runs(tables).where(r.run_id == bindparam("run_id"))
    if in_thread:
        statement = statement.where(t.thread_id == bindparam("thread_id"))
    return statement.order_by(r.thread_key).limit(2)


@cache
def _of_thread(tables: Tables) -> Select[Any]:
    r = tables.runs.c
    return select(*r).where(r.thread_key == bindparam("key"), r.run_id == bindparam("run_id"))


@cache
def _usage(tables: Tables) -> Select[Any]:
    r = tables.runs.c
    sums = (func.coalesce(func.sum(r[name]), 0).label(name) for name in USAGE)
    return select(*sums).where(r.thread_key == key_of(tables))
