"""Reading agent checkpoints, the boundaries of a run, and what a worker needs to go on. Nothing is written here."""

from __future__ import annotations

from functools import cache
from typing import Any

from sqlalchemy import Connection, Select, bindparam, select

from clew.errors import Contention, CorruptData, InvalidInput
from clew.records import (
    AgentCheckpoint,
    AgentExecutionNode,
    AgentResumeEvidence,
    AgentRunState,
    Boundary,
    CheckpointConfig,
    Page,
    PendingActivation,
    PendingWrite,
    ResumeSnapshot,
)
from clew.repository.cursors import decode_cursor, encode_cursor
from clew.repository.fetching import get_tuple
from clew.repository.finding import address, in_namespace, key_of
from clew.repository.keys import check_limit, namespace_of
from clew.repository.locking import find_thread
from clew.repository.runs.evidence import evidence_of
from clew.repository.runs.records import get_run
from clew.repository.soundness import UNREADABLE, located, naming
from clew.repository.store import Store
from clew.tables import Tables

__all__ = ["get_agent_checkpoint", "list_boundaries", "resume_snapshot"]

_ATTEMPTS = 10


def get_agent_checkpoint(store: Store, connection: Connection, config: CheckpointConfig) -> AgentCheckpoint | None:
    """The agent checkpoint at ``config``, or None where there is none, or one that no executor put there.

    Raises:
        CorruptData: naming the checkpoint, where a stored row cannot be read.
    """
    read = _read(store, connection, config)
    return None if read is None else read[0]


def list_boundaries(
    store: Store,
    connection: Connection,
    run_id: str,
    *,
    thread_id: str | None = None,
    limit: int = 100,
    cursor: str | None = None,
) -> Page[Boundary]:
    """At most ``limit`` (1 to 10,000) boundaries of a run, the last first, without any state.

    Raises:
        InvalidInput: a limit out of range, a cursor of another listing, or a run id of several threads.
        CorruptData: naming the checkpoint, where its evidence cannot be read.
    """
    check_limit(limit)
    before = 2**62
    if cursor is not None:
        of_run, before = decode_cursor(cursor, "boundaries", str, int)
        if of_run != run_id:
            raise InvalidInput("cursor belongs to the boundaries of another run")
    run = get_run(store, connection, run_id, thread_id)
    key = None if run is None else find_thread(store, connection, run.thread_id)
    if run is None or key is None:
        return Page(items=())
    where = {"key": key, "run_id": run_id, "before": before, "size": limit + 1}
    rows = connection.execute(_passed(store.tables), where).mappings().all()
    items = tuple(
        Boundary.model_construct(
            checkpoint_id=row["checkpoint_id"],
            created_at=row["created_at"],
            evidence=_evidence(store, run.thread_id, row["checkpoint_id"], row),
        )
        for row in rows[:limit]
    )
    following = encode_cursor("boundaries", run_id, rows[limit - 1]["seq"]) if len(rows) > limit else None
    return Page(items=items, next_cursor=following)


def resume_snapshot(
    store: Store, connection: Connection, run_id: str, thread_id: str | None = None
) -> ResumeSnapshot | None:
    """The run with its latest checkpoint, evidence and writes as of one moment.

    None where there is no such run, or no checkpoint of it is left. The state's conversation is the thread, in a copied
    one too.

    Raises:
        InvalidInput: several threads hold a run of this id.
        CorruptData: a stored row cannot be read.
        Contention: the run kept moving while it was being read.
    """
    for _ in range(_ATTEMPTS):
        run = get_run(store, connection, run_id, thread_id)
        if run is None:
            return None
        latest = connection.execute(
            _latest_of_run(store.tables), {"thread_id": run.thread_id, "run_id": run_id}
        ).one_or_none()
        read = None
        if latest is not None:
            config = CheckpointConfig(
                thread_id=run.thread_id,
                checkpoint_id=latest.checkpoint_id,
                namespace=namespace_of(latest.namespace),
            )
            read = _read(store, connection, config)
        if get_run(store, connection, run_id, thread_id) != run:
            continue
        if latest is None:
            return None
        if read is None:  # deleted since it was found
            continue
        checkpoint, writes = _at_home(read[0]), read[1]
        return ResumeSnapshot.model_construct(
            run=run, config=config, checkpoint=checkpoint, writes=writes, to_run=_to_run(checkpoint, writes)
        )
    raise Contention(f"run {run_id!r} moved {_ATTEMPTS} times during one read; repeat it")


def _read(
    store: Store, connection: Connection, config: CheckpointConfig
) -> tuple[AgentCheckpoint, tuple[PendingWrite, ...]] | None:
    found = get_tuple(store, connection, config)
    if found is None:
        return None
    row = connection.execute(_witness(store.tables), address(found.config)).mappings().first()
    if row is None:
        return None
    stored = found.checkpoint
    evidence = _evidence(store, stored.thread_id, stored.checkpoint_id, row)
    try:
        checkpoint = AgentCheckpoint(
            checkpoint_id=stored.checkpoint_id,
            run_id=stored.run_id or "",
            conversation_id=stored.thread_id,
            node=AgentExecutionNode(row["checkpoint_node"]),
            run_step=row["step"],
            resume=evidence,
            state=AgentRunState.model_validate(stored.state),
            metadata=stored.metadata,
        )
    except UNREADABLE as exc:
        where_it_is = f"checkpoint {stored.checkpoint_id!r} of thread {stored.thread_id!r}"
        raise located(CorruptData("it is not the agent checkpoint that its evidence says it is"), where_it_is) from exc
    return checkpoint, found.pending_writes


def _evidence(store: Store, thread_id: str, checkpoint_id: str, row: Any) -> AgentResumeEvidence:
    with naming(thread_id, checkpoint_id):
        return evidence_of(store.codec, row)


def _at_home(checkpoint: AgentCheckpoint) -> AgentCheckpoint:
    """A copied thread's states name the thread that they came from, where who goes on from one would write to."""
    if checkpoint.state.conversation_id == checkpoint.conversation_id:
        return checkpoint
    state = checkpoint.state.model_copy(update={"conversation_id": checkpoint.conversation_id})
    return checkpoint.model_copy(update={"state": state})


def _to_run(checkpoint: AgentCheckpoint, writes: tuple[PendingWrite, ...]) -> tuple[PendingActivation, ...]:
    answered = {write.task_id for write in writes if write.idx >= 0 and write.task_id}
    calls = [(_call_id(call), call) for call in checkpoint.state.pending_tool_calls]
    return tuple(
        PendingActivation(node=AgentExecutionNode.TOOL_CALL.value, send_arg=call, task_id=call_id)
        for call_id, call in calls
        if call_id not in answered
    )


def _call_id(call: dict[str, Any]) -> str:
    """OpenAI's and most others' name for it is ``id``, pydantic-ai's ``tool_call_id``."""
    named = (call.get("id"), call.get("tool_call_id"))
    return next((name for name in named if isinstance(name, str)), "")


@cache
def _latest_of_run(tables: Tables) -> Select[Any]:
    c, e = tables.checkpoints.c, tables.resume_evidence.c
    return (
        select(c.checkpoint_id, c.namespace)
        .select_from(tables.checkpoints.join(tables.resume_evidence, (e.thread_key == c.thread_key) & (e.seq == c.seq)))
        .where(c.thread_key == key_of(tables), c.run_id == bindparam("run_id"))
        .order_by(c.seq.desc())
        .limit(1)
    )


@cache
def _passed(tables: Tables) -> Select[Any]:
    c, e = tables.checkpoints.c, tables.resume_evidence.c
    return (
        select(c.checkpoint_id, c.created_at, *e)
        .select_from(tables.checkpoints.join(tables.resume_evidence, (e.thread_key == c.thread_key) & (e.seq == c.seq)))
        .where(c.thread_key == bindparam("key"), c.run_id == bindparam("run_id"), c.seq < bindparam("before"))
        .order_by(c.seq.desc())
        .limit(bindparam("size"))
    )


@cache
def _witness(tables: Tables) -> Select[Any]:
    c, e = tables.checkpoints.c, tables.resume_evidence.c
    return (
        in_namespace(tables, "step")
        .add_columns(c.node.label("checkpoint_node"), *e)
        .join(tables.resume_evidence, (e.thread_key == c.thread_key) & (e.seq == c.seq))
        .where(c.checkpoint_id == bindparam("id"))
    )
