"""An agent that survives being killed: a small tool-calling loop, a scripted model, and no network.

    python examples/agent_loop.py sqlite:///agent.db

Kill it as often as you like, and start it again with the same words: it goes on where it was, and books, in the end,
each room once. With ``--kill 0.3`` it kills itself, with that probability, before and after each boundary.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import time
from datetime import UTC, datetime
from typing import Any

from clew import (
    AgentCheckpoint,
    AgentExecutionNode,
    AgentRunState,
    CheckpointConfig,
    Checkpointer,
    LeaseHeld,
    PendingWrite,
    RunStatus,
    SqlAgentExecutor,
    Usage,
)

ROOMS = ["101", "205", "310", "404"]


def model(messages: list[Any]) -> dict[str, Any]:
    """A model that knows its lines: it books the rooms two by two, and then says so."""
    booked = sum(1 for message in messages if message["role"] == "tool")
    if booked == len(ROOMS):
        return {"role": "assistant", "content": f"Booked: {', '.join(ROOMS)}."}
    calls = [{"id": f"call-{room}", "name": "book", "arguments": {"room": room}} for room in ROOMS[booked : booked + 2]]
    return {"role": "assistant", "tool_calls": calls}


class Agent:
    """The loop. All that it knows is in ``state``, and every change of that ends in a boundary."""

    def __init__(self, checkpointer: Checkpointer[Any], run_id: str, kill: float) -> None:
        self.checkpointer = checkpointer
        self.kill = kill
        self.lease = checkpointer.runs.lease(run_id, f"worker {os.getpid()}", ttl_s=1.0)
        self.run_id = run_id

    def work(self) -> AgentRunState:
        """Go on with the run, or begin it, until it is done."""
        with self.lease:
            self.executor = SqlAgentExecutor(self.checkpointer, lease_token=self.lease.token)
            snapshot = self.checkpointer.runs.resume_snapshot(self.run_id)
            if snapshot is None:
                state = self.boundary(AgentExecutionNode.RUN_START, self.beginning())
            else:
                state = snapshot.checkpoint.state
            while not state.status.is_finished:
                state = self.use_tools(state) if state.pending_tool_calls else self.ask(state)
            return state

    def beginning(self) -> AgentRunState:
        return AgentRunState(
            run_id=self.run_id,
            conversation_id=self.run_id,
            message_history=[{"role": "user", "content": "Four rooms, please."}],
            usage=Usage(requests=0, input_tokens=0, output_tokens=0, total_tokens=0),
            run_step=0,
            status=RunStatus.RUNNING,
        )

    def ask(self, state: AgentRunState) -> AgentRunState:
        """Ask the model. Killed before the boundary, the next worker asks once more: nothing has come of it yet."""
        answer = model(list(state.message_history))
        calls = answer.get("tool_calls", [])
        changes: dict[str, Any] = {
            "message_history": (*state.message_history, answer),
            "usage": state.usage + Usage(requests=1, input_tokens=10, output_tokens=5, total_tokens=15),
            "run_step": state.run_step + 1,
            "pending_tool_calls": tuple(calls),
        }
        if calls:
            return self.boundary(AgentExecutionNode.MODEL_RESPONSE, state.model_copy(update=changes))
        changes |= {"status": RunStatus.COMPLETED, "output": answer["content"]}
        return self.boundary(AgentExecutionNode.RUN_COMPLETE, state.model_copy(update=changes))

    def use_tools(self, state: AgentRunState) -> AgentRunState:
        """Make the calls that no write answers yet; each answer is stored before the next call is made."""
        snapshot = self.checkpointer.runs.resume_snapshot(self.run_id)
        assert snapshot is not None
        answers = {write.task_id: write.payload for write in snapshot.writes}
        for activation in snapshot.to_run:
            answers[activation.task_id] = self.book(snapshot.config, activation.task_id, activation.send_arg)
        returned = [
            {"role": "tool", "tool_call_id": call["id"], "content": answers[call["id"]]}
            for call in state.pending_tool_calls
        ]
        changes = {"message_history": (*state.message_history, *returned), "pending_tool_calls": ()}
        return self.boundary(AgentExecutionNode.TOOL_RETURN, state.model_copy(update=changes))

    def book(self, config: CheckpointConfig, call_id: str, call: dict[str, Any]) -> str:
        """The tool. Its effect and its answer are one row of the ledger here, so that it happens once.

        A tool that acts on the world outside is called with ``call_id`` as its idempotency key.
        """
        answer = f"room {call['arguments']['room']} is yours"
        write = PendingWrite(node="book", payload=answer, task_id=call_id)
        self.perhaps_die()
        self.checkpointer.put_writes(config, [write], lease_token=self.lease.token)
        self.perhaps_die()
        return answer

    def boundary(self, node: AgentExecutionNode, state: AgentRunState) -> AgentRunState:
        # The id says which boundary it is, so that a repetition is recognised as one.
        checkpoint_id = f"ckpt_{self.run_id}_{len(state.message_history)}_{node.value}"
        self.perhaps_die()
        self.executor.checkpoint(AgentCheckpoint.new(node, state, checkpoint_id=checkpoint_id))
        self.perhaps_die()
        return state

    def perhaps_die(self) -> None:
        if random.random() < self.kill:
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    words = argparse.ArgumentParser(description="An agent that survives being killed.")
    words.add_argument("url", help="sqlite:///agent.db or postgresql://…")
    words.add_argument("--run", default="rooms", help="the run's id")
    words.add_argument("--kill", type=float, default=0.0, help="the probability of dying at each turn")
    given = words.parse_args()
    with Checkpointer.open(given.url, migrate=True) as checkpointer:
        while True:
            try:
                print(Agent(checkpointer, given.run, given.kill).work().output)
            except LeaseHeld as held:  # a worker that was killed holds it until it lapses
                time.sleep(max(0.05, (held.until - datetime.now(UTC)).total_seconds()))
            else:
                return


if __name__ == "__main__":
    main()
