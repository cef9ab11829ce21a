"""Agent states for tests, with literal values."""

from __future__ import annotations

from typing import Any

from clew import AgentCheckpoint, AgentExecutionNode, AgentRunState, RunStatus, Usage

__all__ = ["boundary", "run_state", "usage"]


def usage(requests: int = 0, tokens: int = 0) -> Usage:
    return Usage(requests=requests, input_tokens=tokens, output_tokens=tokens, total_tokens=2 * tokens)


def run_state(step: int = 0, *, run_id: str = "r", thread_id: str = "t", **fields: Any) -> AgentRunState:
    """A run at ``step``, with as many messages, requests and tokens."""
    given = {
        "message_history": [{"role": "user", "content": f"message {number}"} for number in range(step)],
        "usage": usage(step, step),
        "status": RunStatus.RUNNING,
        **fields,
    }
    return AgentRunState(run_id=run_id, conversation_id=thread_id, run_step=step, **given)


def boundary(step: int = 0, checkpoint_id: str | None = None, *, node: str = "model_response", **fields: Any) -> Any:
    """A checkpoint of ``run_state(step, …)`` at ``node``, under ``ck{step}`` unless another id is given."""
    name = f"ck{step}" if checkpoint_id is None else checkpoint_id
    return AgentCheckpoint.new(AgentExecutionNode(node), run_state(step, **fields), checkpoint_id=name)
