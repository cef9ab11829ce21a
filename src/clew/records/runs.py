"""The records of durable execution: runs, their boundaries, leases, and what a worker needs to go on with a run.

The evidence and the checkpoints of the agent side are in ``agent``; how any of it is stored is not known here.
"""

from __future__ import annotations

from pydantic import AwareDatetime

from clew.records.agent import AgentCheckpoint, AgentResumeEvidence, RunStatus, Usage
from clew.records.graph import CheckpointConfig, PendingActivation, PendingWrite
from clew.records.record import Number, Record, Str

__all__ = ["Boundary", "Lease", "ResumeSnapshot", "Run"]


class Lease(Record):
    """The right to write to a thread until ``until``, by the database's clock.

    ``token`` is what writes present: it only grows, and no later lease of the thread, nor of another thread under its
    id, has it again. ``owner`` says to people who holds it and gives no right.
    """

    thread_id: Str
    owner: Str
    token: Number
    until: AwareDatetime


class Run(Record):
    """Where a run stands. Instants are UTC, from the database.

    ``node`` and ``step`` are those of its last boundary, ``usage`` is what it has used up to there. ``error`` is there
    exactly where ``status`` is ``failed``. While ``suspend_requested_at`` is not None somebody asks the run to suspend,
    for ``suspend_reason``; afterwards that is why it waits.
    """

    run_id: Str
    thread_id: Str
    parent_run_id: Str | None = None
    status: RunStatus
    node: Str | None = None
    step: Number = 0
    namespace: tuple[Str, ...] = ()
    checkpoint_id: Str | None = None
    usage: Usage
    started_at: AwareDatetime
    updated_at: AwareDatetime
    finished_at: AwareDatetime | None = None
    error: Str | None = None
    suspend_reason: Str | None = None
    suspend_requested_at: AwareDatetime | None = None


class Boundary(Record):
    """A boundary that a run has passed: the evidence, without the state."""

    checkpoint_id: Str
    created_at: AwareDatetime
    evidence: AgentResumeEvidence


class ResumeSnapshot(Record):
    """All that a worker needs to go on with a run, as of one moment.

    ``writes`` are the checkpoint's ledger in order of arrival. ``to_run`` are the pending tool calls, as ``send_arg``,
    that no write of the ledger answers yet: a write answers the call whose id its ``task_id`` is. A call without an id
    is always still to run.
    """

    run: Run
    config: CheckpointConfig
    checkpoint: AgentCheckpoint
    writes: tuple[PendingWrite, ...] = ()
    to_run: tuple[PendingActivation, ...] = ()

    @property
    def evidence(self) -> AgentResumeEvidence:
        """What the checkpoint says about the run."""
        return self.checkpoint.resume
