"""The executor's contract: what decides at each boundary whether a run goes on. The one that stores is not here.

Contract and decisions are those of starweaver-runtime 0.4.1. An executor whose storage or policy fails raises
``AgentExecutorError``.
"""

from __future__ import annotations

from typing import Annotated, Literal, Protocol, TypeAlias

from pydantic import ConfigDict, Field, TypeAdapter

from clew.records.agent import AgentCheckpoint
from clew.records.record import Record, Str

__all__ = [
    "AgentExecutionDecision",
    "AgentExecutor",
    "AsyncAgentExecutor",
    "AsyncDirectAgentExecutor",
    "Continue",
    "DirectAgentExecutor",
    "Suspend",
    "decision_adapter",
]


class Continue(Record):
    """The run goes on. In JSON ``{"kind": "continue"}``."""

    kind: Literal["continue"] = "continue"


class Suspend(Record):
    """The run stops after this boundary, which is stored. In JSON ``{"kind": "suspend", "reason": …}``."""

    kind: Literal["suspend"] = "suspend"
    reason: Str


AgentExecutionDecision: TypeAlias = Annotated[Continue | Suspend, Field(discriminator="kind")]
"""What an executor answers at a boundary."""

decision_adapter: TypeAdapter[Continue | Suspend] = TypeAdapter(
    AgentExecutionDecision, config=ConfigDict(defer_build=True)
)
"""Reads a decision from JSON: ``decision_adapter.validate_json(text)``."""


class AgentExecutor(Protocol):
    """Called at every durable boundary of a run."""

    def checkpoint(self, checkpoint: AgentCheckpoint) -> AgentExecutionDecision:
        """Whether the run goes on after ``checkpoint``, which may be stored or only looked at.

        Raises:
            AgentExecutorError: storage or policy failed; the run must not go on.
        """
        ...


class AsyncAgentExecutor(Protocol):
    """``AgentExecutor``, awaited."""

    async def checkpoint(self, checkpoint: AgentCheckpoint) -> AgentExecutionDecision:
        """Whether the run goes on after ``checkpoint``, which may be stored or only looked at.

        Raises:
            AgentExecutorError: storage or policy failed; the run must not go on.
        """
        ...


class DirectAgentExecutor:
    """Always continues, and stores nothing."""

    def checkpoint(self, checkpoint: AgentCheckpoint) -> AgentExecutionDecision:
        """``Continue()``, whatever the checkpoint."""
        return Continue()


class AsyncDirectAgentExecutor:
    """``DirectAgentExecutor``, awaited."""

    async def checkpoint(self, checkpoint: AgentCheckpoint) -> AgentExecutionDecision:
        """``Continue()``, whatever the checkpoint."""
        return Continue()
