"""Boundaries of agent runs: checkpoint, evidence and run in one transaction. They are read back in ``resuming``.

A checkpoint's state is stored as channels, one for each key of ``AgentRunState``, so that the history is shared
structurally. What a policy decides is not known here, only that it decides before anything is written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache
from hashlib import blake2b
from typing import Any, TypeAlias

from sqlalchemy import Connection, Select, bindparam

from clew.codec import Codec
from clew.errors import AgentExecutorError, RunFinished
from clew.records import (
    AgentCheckpoint,
    AgentResumeEvidence,
    AgentRunState,
    Checkpoint,
    Continue,
    Run,
    RunStatus,
    Suspend,
)
from clew.repository.finding import by_id, latest
from clew.repository.keys import check_id, namespace_text
from clew.repository.locking import lock_or_create
from clew.repository.memory import ThreadMemory
from clew.repository.putting import Put, fast_put, put_locked
from clew.repository.request import PutRequest, prepare
from clew.repository.runs.evidence import check_stored, evidence_columns, usage_columns
from clew.repository.runs.records import check_text, find_run
from clew.repository.store import Fence, LockedThread, Store
from clew.structure import Node
from clew.tables import Tables

__all__ = [
    "Committed",
    "Decision",
    "Policy",
    "PreparedBoundary",
    "RememberedRun",
    "commit",
    "fast_commit",
    "prepare_boundary",
]

Decision: TypeAlias = Continue | Suspend
Policy: TypeAlias = Callable[[AgentResumeEvidence, Run], Decision]
"""Decides at a boundary whether its run goes on, from the evidence and the run as the boundary leaves it."""


@dataclass(frozen=True, slots=True)
class PreparedBoundary:
    """A boundary made ready to be committed. Its parent is found behind the lock, and is no part of the digest."""

    checkpoint: AgentCheckpoint
    request: PutRequest
    evidence: dict[str, Any]
    error: str | None


@dataclass(frozen=True, slots=True)
class RememberedRun:
    """A run as of a version of its thread."""

    thread_key: int
    version: int
    run: Run


@dataclass(frozen=True, slots=True)
class Committed:
    """What a commit did. ``memory`` and ``run`` are to be remembered once it is durable."""

    decision: Decision
    memory: ThreadMemory | None
    run: RememberedRun | None


def prepare_boundary(
    codec: Codec, checkpoint: AgentCheckpoint, namespace: tuple[str, ...] = (), hint: Node | None = None
) -> PreparedBoundary:
    """``checkpoint`` encoded and checked: a snapshot, so that later mutation changes nothing.

    Raises:
        InvalidInput, Unserializable: something of it cannot be stored as it is.
    """
    stored: Checkpoint[Any] = Checkpoint.model_construct(
        thread_id=checkpoint.conversation_id,
        checkpoint_id=checkpoint.checkpoint_id,
        run_id=checkpoint.run_id,
        namespace=namespace,
        state=_channels(checkpoint.state),
        metadata=checkpoint.metadata,
    )
    request = prepare(codec, stored, hint, node=checkpoint.node.value, strict=True)
    evidence = evidence_columns(codec, checkpoint.resume)
    request.columns["step"] = check_stored("run_step", checkpoint.run_step)
    hasher = blake2b(request.columns["digest"], digest_size=16)
    hasher.update(repr([checkpoint.run_step, *evidence.values()]).encode())
    request.columns["digest"] = hasher.digest()
    if checkpoint.state.parent_run_id is not None:
        check_id("parent_run_id", checkpoint.state.parent_run_id)
    return PreparedBoundary(checkpoint, request, evidence, _error(checkpoint))


def fast_commit(
    store: Store,
    connection: Connection,
    boundary: PreparedBoundary,
    policy: Policy,
    fence: Fence,
    memory: ThreadMemory,
    known: RememberedRun,
) -> Committed | None:
    """The commit that relies on nothing but the thread's row being as remembered; see ``fast_put``.

    None where that does not suffice; then nothing was written.
    """
    run = known.run
    same = (known.thread_key, known.version) == (memory.thread_key, memory.version)
    if (
        not same
        or run.status.is_finished
        or run.suspend_requested_at is not None
        or run.checkpoint_id in (None, boundary.request.checkpoint_id)
    ):
        return None
    moved, decision = _decided(boundary, run, policy, run.updated_at)
    companions = {
        **{f"evidence_{name}": value for name, value in boundary.evidence.items()},
        **{f"run_{name}": value for name, value in _run_columns(moved).items()},
        "run_finished": moved.status.is_finished,
    }
    asked = Put(_with_parent(boundary.request, run.checkpoint_id), fence, companions=companions)
    outcome = fast_put(store, connection, asked, memory)
    if outcome is None or outcome.memory is None or outcome.created_at is None:
        return None
    moved = _at(moved, outcome.created_at)
    return Committed(decision, outcome.memory, RememberedRun(outcome.memory.thread_key, outcome.memory.version, moved))


def commit(
    store: Store,
    connection: Connection,
    boundary: PreparedBoundary,
    policy: Policy,
    fence: Fence,
    memory: ThreadMemory | None = None,
    known: RememberedRun | None = None,
) -> Committed:
    """Store the checkpoint with its evidence and bring its run forward, creating thread and run where there are none.

    Its parent is the run's last checkpoint, else the namespace's latest. The same checkpoint again changes nothing and
    succeeds, whatever lease or run says, with the decision that stands.

    Raises:
        AlreadyExists: its id holds a different checkpoint.
        RunFinished: the run takes no further checkpoint.
        StaleFence: see there.
    """
    if memory is not None and known is not None and not store.dialect.puts_alone:
        committed = fast_commit(store, connection, boundary, policy, fence, memory, known)
        if committed is not None:
            return committed
    request = boundary.request
    locked, _ = lock_or_create(store, connection, request.thread_id, memory.thread_key if memory else None)
    run = find_run(store, connection, locked, boundary.checkpoint.run_id)
    decided: list[tuple[Run, Decision]] = []

    def permit() -> None:
        if run is not None and run.status.is_finished:
            raise RunFinished(
                f"commit checkpoint {request.checkpoint_id!r}: run {run.run_id!r} of thread {run.thread_id!r} is "
                f"{run.status.value} already and takes no further checkpoint"
            )
        decided.append(_decided(boundary, run, policy, locked.activity))

    parent_id = _parent(store, connection, locked, boundary, run)
    asked = Put(_with_parent(request, parent_id), fence)
    outcome = put_locked(store, connection, locked, asked, memory, permit=permit)
    if not outcome.stored:
        return Committed(_standing(run, request.checkpoint_id), outcome.memory, None)
    ((moved, decision),) = decided
    connection.execute(
        store.tables.resume_evidence.insert(),
        {"thread_key": locked.thread_key, "seq": outcome.seq, **boundary.evidence},
    )
    connection.execute(
        _bring_forward(store.tables, store.dialect),
        {
            **_run_columns(moved),
            "thread_key": locked.thread_key,
            "run_id": moved.run_id,
            "started_at": moved.started_at,
            "updated_at": moved.updated_at,
            "finished_at": moved.finished_at,
            "suspend_requested_at": moved.suspend_requested_at,
        },
    )
    return Committed(decision, outcome.memory, RememberedRun(locked.thread_key, locked.version, moved))


def _channels(state: AgentRunState) -> dict[str, Any]:
    """The state's keys as plain values, those left out that its JSON leaves out; nothing is copied in depth."""
    channels: dict[str, Any] = {}
    for name in AgentRunState.model_fields:
        value = getattr(state, name)
        if name in state.left_out:
            absent = state.left_out[name]
            if value is absent or (absent is not None and value == absent):
                continue
        channels[name] = list(value) if type(value) is tuple else value
    channels["usage"] = state.usage.model_dump()
    channels["status"] = state.status.value
    return channels


def _error(checkpoint: AgentCheckpoint) -> str | None:
    """A failed run needs an error: what the metadata says under that name, else where it failed."""
    if checkpoint.resume.status is not RunStatus.FAILED:
        return None
    for metadata in (checkpoint.metadata, checkpoint.resume.metadata, checkpoint.state.metadata):
        said = metadata.get("error")
        if isinstance(said, str) and said:
            return check_text("error", said)
    return f"failed at {checkpoint.node.value}, step {checkpoint.run_step}"


def _decided(boundary: PreparedBoundary, run: Run | None, policy: Policy, now: datetime) -> tuple[Run, Decision]:
    """The run as the boundary leaves it, and the decision; a finished run is not asked about."""
    checkpoint, request = boundary.checkpoint, boundary.request
    evidence = checkpoint.resume
    moved = Run.model_construct(
        run_id=checkpoint.run_id,
        thread_id=request.thread_id,
        parent_run_id=checkpoint.state.parent_run_id,
        status=evidence.status,
        node=checkpoint.node.value,
        step=checkpoint.run_step,
        namespace=request.config.namespace,
        checkpoint_id=request.checkpoint_id,
        usage=evidence.usage,
        started_at=run.started_at if run else now,
        updated_at=now,
        finished_at=now if evidence.status.is_finished else None,
        error=boundary.error,
        suspend_reason=run.suspend_reason if run else None,
        suspend_requested_at=run.suspend_requested_at if run else None,
    )
    decision: Decision = Continue()
    if not evidence.status.is_finished:
        try:
            decision = policy(evidence, moved)
        except Exception as exc:
            raise AgentExecutorError(
                f"the policy failed at checkpoint {request.checkpoint_id!r} of run {checkpoint.run_id!r}: "
                f"{type(exc).__name__}; nothing was stored"
            ) from exc
    if isinstance(decision, Suspend):
        reason = check_text("reason", decision.reason)
        changes = {"status": RunStatus.WAITING, "suspend_reason": reason, "suspend_requested_at": None}
        return moved.model_copy(update=changes), decision
    if not isinstance(decision, Continue):
        raise AgentExecutorError(f"a policy returns Continue or Suspend, not {type(decision).__name__}")
    if evidence.status.is_finished or moved.suspend_requested_at is None:
        moved = moved.model_copy(update={"suspend_reason": None, "suspend_requested_at": None})
    return moved, decision


def _standing(run: Run | None, checkpoint_id: str) -> Decision:
    """The decision that a repeated boundary was given, as far as it is the run's last one."""
    waiting = run is not None and run.status is RunStatus.WAITING and run.checkpoint_id == checkpoint_id
    if run is not None and waiting and run.suspend_reason is not None:
        return Suspend(reason=run.suspend_reason)
    return Continue()


def _parent(
    store: Store, connection: Connection, locked: LockedThread, boundary: PreparedBoundary, run: Run | None
) -> str | None:
    """The run's last checkpoint that is still there, else the namespace's latest."""
    where = {"key": locked.thread_key, "namespace": boundary.request.namespace}
    ids: list[str | None] = []
    if run is not None:
        last = {**where, "id": run.checkpoint_id}
        ids.append(connection.execute(by_id(store.tables, "checkpoint_id"), last).scalar_one_or_none())
        if ids[0] is None:
            in_run = {**where, "run_id": run.run_id}
            ids.append(connection.execute(_last_of_run(store.tables), in_run).scalar_one_or_none())
    if not any(ids):
        ids.append(connection.execute(latest(store.tables, "checkpoint_id"), where).scalar_one_or_none())
    return next((found for found in ids if found not in (None, boundary.request.checkpoint_id)), None)


def _with_parent(request: PutRequest, parent_id: str | None) -> PutRequest:
    return replace(request, parent_id=parent_id, columns={**request.columns, "parent_checkpoint_id": parent_id})


def _run_columns(run: Run) -> dict[str, Any]:
    """The columns that a boundary sets, but for the moments; see ``dialects.contract.brought_forward``."""
    return {
        "parent_run_id": run.parent_run_id,
        "status": run.status.value,
        "node": run.node,
        "step": run.step,
        "namespace": namespace_text(run.namespace),
        "checkpoint_id": run.checkpoint_id,
        **usage_columns(run.usage),
        "error": run.error,
        "suspend_reason": run.suspend_reason,
    }


def _at(run: Run, now: datetime) -> Run:
    return run.model_copy(
        update={"updated_at": now, "finished_at": now if run.status.is_finished else None},
    )


@cache
def _last_of_run(tables: Tables) -> Select[Any]:
    return latest(tables, "checkpoint_id").where(tables.checkpoints.c.run_id == bindparam("run_id"))


@cache
def _bring_forward(tables: Tables, dialect: Any) -> Any:
    statement = dialect.insert(tables.runs)
    changed = [
        column.name for column in tables.runs.columns if column.name not in ("thread_key", "run_id", "started_at")
    ]
    return statement.on_conflict_do_update(
        index_elements=["thread_key", "run_id"], set_={name: statement.excluded[name] for name in changed}
    )
