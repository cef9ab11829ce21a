"""Pruning a thread: which checkpoints are kept, decided from the listing columns alone. No state is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import Any

from sqlalchemy import Connection, Select, bindparam, select

from clew.errors import InvalidInput
from clew.records import CheckpointConfig, PruneReport
from clew.repository.collecting import delete_seqs
from clew.repository.keys import check_instant, check_thread_id, instant_before, namespace_of, shown
from clew.repository.locking import check_fence, database_now, find_thread, lock_thread, undo_lock
from clew.repository.store import NO_FENCE, Fence, Store
from clew.tables import Tables

__all__ = ["Criteria", "preview_prune", "prune"]


@dataclass(frozen=True, slots=True)
class Criteria:
    """What a prune keeps: whatever any of them keeps, per namespace, and the latest of each namespace always.

    Raises:
        InvalidInput: none is given, one is out of range, or an instant has no time zone.
    """

    keep_last: int | None = None
    keep_runs: int | None = None
    newer_than: datetime | timedelta | None = None
    keep_ancestors: bool = False

    def __post_init__(self) -> None:
        for name in ("keep_last", "keep_runs"):
            number = getattr(self, name)
            if number is not None and (type(number) is not int or number < 0):
                raise InvalidInput(f"{name} must be a whole number of at least 0, not {shown(number)}")
        moment = self.newer_than
        if isinstance(moment, datetime):
            check_instant("newer_than", moment)
        elif isinstance(moment, timedelta):
            if moment < timedelta(0):
                raise InvalidInput("newer_than is an age and must not be negative")
        elif moment is not None:
            raise InvalidInput(f"newer_than must be an instant or an age (timedelta), not {type(moment).__name__}")
        if self.keep_last is None and self.keep_runs is None and moment is None and not self.keep_ancestors:
            raise InvalidInput(
                "prune needs to know what to keep: keep_last, keep_runs, newer_than or keep_ancestors; "
                "keep_last=0 keeps the latest of each namespace and nothing else"
            )

    def instant(self, now: datetime) -> datetime | None:
        """What a checkpoint must be newer than to be kept, if that is asked for."""
        if not isinstance(self.newer_than, timedelta):
            return self.newer_than
        return instant_before(now, self.newer_than)


def prune(
    store: Store, connection: Connection, thread_id: str, criteria: Criteria, fence: Fence = NO_FENCE
) -> PruneReport:
    """Delete what the criteria do not keep, as ``delete_seqs`` does. An unknown thread has nothing to prune.

    Raises:
        StaleFence: see there.
    """
    locked = lock_thread(store, connection, check_thread_id(thread_id), puts=0, active=False)
    if locked is None:
        return PruneReport(thread_id=thread_id)
    check_fence(store, locked, fence, "prune")
    rows = connection.execute(_listed(store.tables), {"key": locked.thread_key}).all()
    doomed = _doomed(rows, criteria, locked.now)
    if doomed:
        delete_seqs(store, connection, locked.thread_key, [row.seq for row in doomed])
    else:
        undo_lock(store, connection, locked, puts=0)
    return _report(thread_id, rows, doomed, dry_run=False)


def preview_prune(store: Store, connection: Connection, thread_id: str, criteria: Criteria) -> PruneReport:
    """What ``prune`` would take at this moment. Locks nothing."""
    key = find_thread(store, connection, check_thread_id(thread_id))
    if key is None:
        return PruneReport(thread_id=thread_id, dry_run=True)
    now = database_now(store, connection)
    rows = connection.execute(_listed(store.tables), {"key": key}).all()
    return _report(thread_id, rows, _doomed(rows, criteria, now), dry_run=True)


def _doomed(rows: Sequence[Any], criteria: Criteria, now: datetime) -> list[Any]:
    by_namespace: dict[str, list[Any]] = {}
    for row in rows:
        by_namespace.setdefault(row.namespace, []).append(row)
    kept: set[int] = set()
    for members in by_namespace.values():
        chosen = _kept(members, criteria, criteria.instant(now))
        if criteria.keep_ancestors:
            chosen |= _ancestors({row.checkpoint_id: row for row in members}, chosen)
        kept.update(row.seq for row in members if row.checkpoint_id in chosen)
    return [row for row in rows if row.seq not in kept]


def _kept(members: Sequence[Any], criteria: Criteria, instant: datetime | None) -> set[str]:
    """The ids that the criteria keep among one namespace's checkpoints, which are in the order of their commits."""
    kept = {members[-1].checkpoint_id}
    if criteria.keep_last:
        kept.update(row.checkpoint_id for row in members[-criteria.keep_last :])
    if criteria.keep_runs:
        # A run is as new as its newest checkpoint.
        newest_first = dict.fromkeys(row.run_id for row in reversed(members) if row.run_id is not None)
        runs = set(list(newest_first)[: criteria.keep_runs])
        kept.update(row.checkpoint_id for row in members if row.run_id in runs)
    if instant is not None:
        kept.update(row.checkpoint_id for row in members if row.created_at > instant)
    return kept


def _ancestors(members: Mapping[str, Any], ids: Iterable[str]) -> set[str]:
    found: set[str] = set()
    for checkpoint_id in ids:
        parent = members[checkpoint_id].parent_checkpoint_id
        while parent in members and parent not in found:
            found.add(parent)
            parent = members[parent].parent_checkpoint_id
    return found


def _report(thread_id: str, rows: Sequence[Any], doomed: Sequence[Any], *, dry_run: bool) -> PruneReport:
    pruned = tuple(
        CheckpointConfig.model_construct(
            thread_id=thread_id, checkpoint_id=row.checkpoint_id, namespace=namespace_of(row.namespace)
        )
        for row in doomed
    )
    return PruneReport(thread_id=thread_id, pruned=pruned, kept=len(rows) - len(pruned), dry_run=dry_run)


@cache
def _listed(tables: Tables) -> Select[Any]:
    c = tables.checkpoints.c
    return (
        select(c.seq, c.namespace, c.checkpoint_id, c.parent_checkpoint_id, c.run_id, c.created_at)
        .where(c.thread_key == bindparam("key"))
        .order_by(c.seq)
    )
