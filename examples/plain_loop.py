"""An agent as a plain asyncio loop that can be killed at any moment and goes on where it was.

    python examples/plain_loop.py sqlite:///agent.db trip-1 "Plan a day in Lisbon"

Run it again with the same thread to resume. The model and the tool are stand-ins; put yours in their place.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from clew import AsyncCheckpointer, Checkpoint, CheckpointConfig

State = dict[str, Any]


async def model(messages: list[dict[str, str]]) -> dict[str, str]:
    looked_up = sum(message["role"] == "tool" for message in messages)
    said = "done: tram, castle, custard tart" if looked_up == 2 else f"look up {('sights', 'food')[looked_up]}"
    return {"role": "assistant", "content": said}


async def tool(request: str) -> dict[str, str]:
    return {"role": "tool", "content": f"what was found for {request.removeprefix('look up ')!r}"}


async def step(state: State) -> State:
    """One turn of the loop: whoever has to speak next, speaks."""
    last = state["messages"][-1]
    spoken = await (tool(last["content"]) if last["role"] == "assistant" else model(state["messages"]))
    return {"messages": [*state["messages"], spoken], "finished": spoken["content"].startswith("done")}


async def run(url: str, thread_id: str, question: str) -> State:
    """The state at the end, reached from wherever an earlier run of the thread had come to."""
    async with AsyncCheckpointer[State].open(url, migrate=True) as checkpointer:
        latest = await checkpointer.get(CheckpointConfig.latest(thread_id))
        parent = latest and latest.checkpoint_id
        state = latest.state if latest else {"messages": [{"role": "user", "content": question}], "finished": False}
        while not state["finished"]:
            state = await step(state)
            stored = await checkpointer.put(
                Checkpoint(thread_id=thread_id, parent_checkpoint_id=parent, state=state), expected_head=parent
            )
            parent = stored.checkpoint_id
        return state


if __name__ == "__main__":
    for message in asyncio.run(run(*sys.argv[1:4]))["messages"]:
        print(f"{message['role']}: {message['content']}")
