"""Executors that store: an agent run's boundaries in the database, and the policies that let it go on or suspend it.

The contract is in ``records.executor``; what a boundary does is in ``flows.executing``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from clew.async_checkpointer import AsyncCheckpointer
from clew.checkpointer import Checkpointer
from clew.errors import AgentExecutorError, ClewError, CorruptData, StorageUnavailable
from clew.flows import documented_by
from clew.flows.executing import ExecutorFlows
from clew.records import AgentCheckpoint, AgentResumeEvidence, Continue, Run, Suspend
from clew.repository.runs.boundaries import Decision, Policy

__all__ = [
    "AsyncSqlAgentExecutor",
    "Policy",
    "SqlAgentExecutor",
    "always_continue",
    "first_to_suspend",
    "suspend_when_asked",
    "suspend_while_approvals_are_pending",
]


def always_continue(evidence: AgentResumeEvidence, run: Run) -> Decision:  # noqa: ARG001  a policy's signature
    """A policy: the run goes on. A suspension that somebody asked for stays asked for."""
    return Continue()


def suspend_when_asked(evidence: AgentResumeEvidence, run: Run) -> Decision:  # noqa: ARG001  a policy's signature
    """A policy: the run suspends at the boundary after ``runs.request_suspend``, with that reason."""
    if run.suspend_requested_at is None:
        return Continue()
    return Suspend(reason=run.suspend_reason or "asked for")


def suspend_while_approvals_are_pending(evidence: AgentResumeEvidence, run: Run) -> Decision:  # noqa: ARG001
    """A policy: the run suspends at each boundary at which tool calls wait for somebody's approval."""
    count = evidence.pending_approval_count
    return Suspend(reason=f"{count} approval{'s' if count > 1 else ''} pending") if count else Continue()


def first_to_suspend(*policies: Policy) -> Policy:
    """A policy that asks ``policies`` in turn; the first that suspends decides."""

    def policy(evidence: AgentResumeEvidence, run: Run) -> Decision:
        decisions = (asked(evidence, run) for asked in policies)
        return next((decision for decision in decisions if not isinstance(decision, Continue)), Continue())

    return policy


class SqlAgentExecutor:
    """An ``AgentExecutor`` over a checkpointer. Safe to share between threads and runs.

    Conversation is thread, the state's keys are channels, and the history is shared structurally. ``policy`` decides,
    from the evidence and from the run as the boundary leaves it, whether the run goes on. It is asked while the thread
    is locked, perhaps twice for one boundary: it must be quick, and depend on nothing but what it is given. A finished
    run is not asked about.
    """

    def __init__(
        self,
        checkpointer: Checkpointer[Any],
        *,
        policy: Policy = suspend_when_asked,
        namespace: Iterable[str] = (),
        lease_token: int | None = None,
    ) -> None:
        """``lease_token`` is what every commit presents."""
        self._driver = checkpointer._driver
        self._flows = ExecutorFlows(self._driver.core, policy, namespace, lease_token)

    def checkpoint(self, checkpoint: AgentCheckpoint) -> Decision:
        """Store a boundary and decide: checkpoint, evidence and run in one transaction, durable on return.

        Thread and run are created where there are none. The parent is the run's last checkpoint, else the thread's
        latest. A run that suspends becomes ``waiting``. The same checkpoint again changes nothing and gives the
        decision that stands.

        Raises:
            AgentExecutorError: the database failed, or the policy; the cause is chained. Repeat the call, or stop.
            AlreadyExists: the id holds a different checkpoint.
            RunFinished: the run is finished.
            StaleFence: the lease is somebody else's, or the token's lease has lapsed.
            InvalidInput: something of the checkpoint cannot be stored as it is.
        """
        try:
            return self._driver.drive(self._flows.checkpoint(checkpoint))
        except (StorageUnavailable, CorruptData) as exc:
            raise _failed(checkpoint, exc) from exc


@documented_by(SqlAgentExecutor)
class AsyncSqlAgentExecutor:
    """``SqlAgentExecutor``, awaited. The policy is an ordinary function here too."""

    def __init__(
        self,
        checkpointer: AsyncCheckpointer[Any],
        *,
        policy: Policy = suspend_when_asked,
        namespace: Iterable[str] = (),
        lease_token: int | None = None,
    ) -> None:
        """``lease_token`` is what every commit presents."""
        self._driver = checkpointer._driver
        self._flows = ExecutorFlows(self._driver.core, policy, namespace, lease_token)

    async def checkpoint(self, checkpoint: AgentCheckpoint) -> Decision:
        try:
            return await self._driver.drive(self._flows.checkpoint(checkpoint))
        except (StorageUnavailable, CorruptData) as exc:
            raise _failed(checkpoint, exc) from exc


def _failed(checkpoint: AgentCheckpoint, exc: ClewError) -> AgentExecutorError:
    return AgentExecutorError(f"executor failed at checkpoint {checkpoint.checkpoint_id!r}: {exc}")
