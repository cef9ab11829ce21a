"""The put, on both ways: one statement where the thread's version is the remembered one, else locked and looked up.

The order of checks on the locked way: equal duplicate, lease, expected head, base and log tips.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Connection

from clew.errors import AlreadyExists, NotFound, StaleHead
from clew.records import CheckpointConfig
from clew.repository.collecting import delete_seqs
from clew.repository.finding import by_id, latest
from clew.repository.keys import check_id
from clew.repository.locking import check_fence, lock_or_create, undo_lock
from clew.repository.memory import Logs, Remembered, ThreadMemory
from clew.repository.request import PutRequest
from clew.repository.segments import (
    LogChanges,
    changes_for,
    encoded,
    read_logs,
    read_segments,
    write_changes,
)
from clew.repository.soundness import naming
from clew.repository.store import NO_FENCE, Fence, LockedThread, Store
from clew.repository.writes import insert_writes
from clew.structure import (
    Placement,
    SegmentMap,
    decode_manifest,
    place,
    spans_of,
    wanted,
    with_elements,
)

__all__ = [
    "NOT_CHECKED",
    "Base",
    "ExpectedHead",
    "Put",
    "PutOutcome",
    "base_for",
    "fast_put",
    "planned",
    "put",
    "put_locked",
]


class _NotChecked:
    def __repr__(self) -> str:
        return "clew.NOT_CHECKED"


NOT_CHECKED: Final = _NotChecked()
"""``expected_head`` where any head will do. None is something else: the namespace must be empty."""

ExpectedHead = str | None | _NotChecked

_AS_BASE: Final = ("seq", "checkpoint_id", "manifest", "spans")


@dataclass(frozen=True, slots=True)
class Put:
    """A put as the caller asked for it.

    ``companions`` are values for what ``fast_put`` writes beside the checkpoint: a boundary's evidence and run.
    """

    request: PutRequest
    fence: Fence = NO_FENCE
    expected_head: ExpectedHead = NOT_CHECKED
    companions: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PutOutcome:
    """What a put did. ``memory`` is to be published after the commit; None where nothing is known."""

    config: CheckpointConfig
    memory: ThreadMemory | None
    stored: bool
    created_at: datetime | None
    seq: int


@dataclass(frozen=True, slots=True)
class Base:
    """What the new state is matched against. ``form`` is None for a first checkpoint."""

    form: Remembered | None
    logs: Logs


def fast_put(store: Store, connection: Connection, put: Put, memory: ThreadMemory) -> PutOutcome | None:
    """The put that relies on nothing but the thread's row being as remembered; on Postgres a single statement.

    None where the memory does not suffice, the version has moved, the lease forbids it or the id is there already;
    then nothing was written. Where the dialect ``puts_alone``, run it where a statement is a transaction.
    """
    request = put.request
    base = memory.base(request.namespace, request.parent_id)
    if base is None:
        return None
    if not isinstance(put.expected_head, _NotChecked):
        head = memory.heads.get(request.namespace)
        if head is None or head != put.expected_head:
            return None
    placement, changes = planned(request, base, memory.logs)
    values = {
        **request.columns,
        **put.companions,
        "thread_key": memory.thread_key,
        "version": memory.version,
        "token": put.fence.token,
        "advisory": store.advisory_leases,
        "spans": placement.spans,
        "manifest": placement.manifest,
        "metadata_value": request.metadata,
        "metadata_terms": request.terms,
        "logs": [log for log, _ in changes.added],
        "starts": [row.start for _, row in changes.added],
        "counts": [row.count for _, row in changes.added],
        "payloads": [encoded(row) for _, row in changes.added],
        "merged_logs": [log for log, _ in changes.merged],
        "merged_starts": [row.start for _, row in changes.merged],
        "merged_counts": [row.count for _, row in changes.merged],
        "merged_payloads": [encoded(row) for _, row in changes.merged],
        "absorbed_logs": [log for log, _ in changes.absorbed],
        "absorbed_starts": [start for _, start in changes.absorbed],
        "write_task_ids": [write.task_id for write in request.writes],
        "write_idxs": [write.idx for write in request.writes],
        "write_places": [write.place for write in request.writes],
        "write_nodes": [write.node for write in request.writes],
        "write_channels": [write.channel for write in request.writes],
        "write_payloads": [write.payload for write in request.writes],
    }
    done = store.dialect.put(connection, store.tables, values)
    if done is None:
        return None
    form = Remembered.of(done.seq, placement.root)
    version, key = memory.version + 1, request.checkpoint_id
    after = memory.advanced(version, request.namespace, key, form, changes.logs, request.parent_id)
    return PutOutcome(request.config, after, True, done.created_at, done.seq)


def put(store: Store, connection: Connection, put: Put, memory: ThreadMemory | None = None) -> PutOutcome:
    """Store a checkpoint inside the caller's transaction, which is not committed here.

    An equal checkpoint under the same id succeeds, whatever lease or head says, and changes nothing but the thread's
    activity: below version 18 Postgres has no way to say in the statement that locks what that was before. A different
    one replaces the record and becomes the newest; its ledger and its children stay.

    Raises:
        NotFound: a parent is named in a thread that does not exist: that is what a late write to a deleted one is.
        AlreadyExists: the id holds a different checkpoint and the request does not replace.
        StaleFence, StaleHead: see there.
    """
    if memory is not None and not store.dialect.puts_alone:
        outcome = fast_put(store, connection, put, memory)
        if outcome is not None:
            return outcome
    locked, _ = lock_or_create(store, connection, put.request.thread_id, memory.thread_key if memory else None)
    return put_locked(store, connection, locked, put, memory)


def put_locked(
    store: Store,
    connection: Connection,
    locked: LockedThread,
    put: Put,
    memory: ThreadMemory | None = None,
    *,
    permit: Callable[[], None] | None = None,
) -> PutOutcome:
    """``put``, where this transaction has locked the thread already, with one sequence number for it.

    ``permit`` is called when nothing else speaks against the put and nothing is written yet; it may raise.
    """
    request = put.request
    doing = f"put checkpoint {request.checkpoint_id!r}"
    if memory is not None and (memory.thread_key, memory.version) != (locked.thread_key, locked.version - 1):
        memory = None
    standing = connection.execute(
        by_id(store.tables, "seq", "digest", "created_at"),
        {"key": locked.thread_key, "namespace": request.namespace, "id": request.checkpoint_id},
    ).one_or_none()
    if standing is not None and bytes(standing.digest) == request.columns["digest"]:
        undo_lock(store, connection, locked)
        return PutOutcome(request.config, memory, False, standing.created_at, standing.seq)
    if standing is not None and request.strict:
        raise AlreadyExists(
            f"{doing}: thread {request.thread_id!r} holds a different checkpoint under this id; take a new id"
        )
    if request.parent_id is not None and locked.last_seq == 1 and not request.founding:
        raise NotFound(
            f"{doing}: its parent {request.parent_id!r} is named, but thread {request.thread_id!r} does not exist "
            "(was it deleted?); put a checkpoint without a parent to create it"
        )
    check_fence(store, locked, put.fence, doing)
    _check_head(store, connection, locked, put, doing)
    if permit is not None:
        permit()
    base = base_for(store, connection, locked, request, memory)
    placement, changes = planned(request, base.form, base.logs)
    write_changes(store, connection, locked.thread_key, changes)
    if standing is not None:
        delete_seqs(store, connection, locked.thread_key, [standing.seq], replacing=True, kept=placement.spans)
    _insert(store, connection, locked, request, placement)
    form = Remembered.of(locked.last_seq, placement.root)
    if standing is not None:
        return PutOutcome(request.config, None, True, locked.activity, locked.last_seq)
    before = memory or ThreadMemory(locked.thread_key, locked.version - 1)
    logs = Logs({**before.logs.rows, **changes.logs.rows}) if memory else changes.logs
    key = request.checkpoint_id
    after = before.advanced(locked.version, request.namespace, key, form, logs, request.parent_id)
    return PutOutcome(request.config, after, True, locked.activity, locked.last_seq)


def planned(request: PutRequest, base: Remembered | None, logs: Logs) -> tuple[Placement, LogChanges]:
    """Where the request's elements go, matched against ``base``, and the rows that this takes."""
    placement = place(request.root, base.root if base else None, logs, _new_log)
    kept = {span.log for span in spans_of(placement.root)} | set(logs.rows)
    return placement, changes_for(logs, placement.appends, kept)


def _new_log() -> int:
    return secrets.randbits(63)


def _check_head(store: Store, connection: Connection, locked: LockedThread, put: Put, doing: str) -> None:
    expected = put.expected_head
    if isinstance(expected, _NotChecked):
        return
    if expected is not None:
        check_id("expected_head", expected)
    where = {"key": locked.thread_key, "namespace": put.request.namespace}
    actual = connection.execute(latest(store.tables, "checkpoint_id"), where).scalar_one_or_none()
    if actual != expected:
        raise StaleHead(
            f"{doing}: the latest checkpoint of thread {locked.thread_id!r} is {actual!r}, not {expected!r}; "
            "read it and decide again",
            expected=expected,
            actual=actual,
        )


def base_for(
    store: Store, connection: Connection, locked: LockedThread, request: PutRequest, memory: ThreadMemory | None
) -> Base:
    """The parent if it is given and there, else the namespace's latest; from memory where that is still valid.

    Raises:
        CorruptData: naming the base, where it cannot be read.
    """
    if memory is not None:
        form = memory.base(request.namespace, request.parent_id)
        if form is not None:
            return Base(form, memory.logs)
    row = None
    if request.parent_id is not None:
        row = connection.execute(
            by_id(store.tables, *_AS_BASE),
            {"key": locked.thread_key, "namespace": request.namespace, "id": request.parent_id},
        ).one_or_none()
    if row is None:
        row = connection.execute(
            latest(store.tables, *_AS_BASE), {"key": locked.thread_key, "namespace": request.namespace}
        ).one_or_none()
    if row is None:
        return Base(None, Logs())
    with naming(locked.thread_id, row.checkpoint_id):
        root = decode_manifest(row.manifest, row.spans)
        spans = wanted([root])
        segments = read_segments(store, connection, locked.thread_key, spans)
        base = with_elements(store.codec, root, SegmentMap(segments))
    logs = read_logs(store, connection, locked.thread_key, {span.log for span in spans}, segments)
    return Base(Remembered.of(row.seq, base), logs)


def _insert(
    store: Store, connection: Connection, locked: LockedThread, request: PutRequest, placement: Placement
) -> None:
    tables = store.tables
    connection.execute(
        tables.checkpoints.insert(),
        {
            **request.columns,
            "thread_key": locked.thread_key,
            "seq": locked.last_seq,
            "created_at": locked.activity,
            "spans": placement.spans,
            "manifest": placement.manifest,
        },
    )
    if request.metadata is not None:
        connection.execute(
            tables.checkpoint_metadata.insert(),
            {
                "thread_key": locked.thread_key,
                "seq": locked.last_seq,
                "terms": request.terms,
                "value": request.metadata,
            },
        )
    if request.writes:
        insert_writes(
            store, connection, locked.thread_key, request.namespace, request.checkpoint_id, request.writes, carried=True
        )
