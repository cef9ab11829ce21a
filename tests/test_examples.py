"""The examples do what they say."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

from clew import CheckpointConfig, Checkpointer, RunStatus

AGENT_LOOP: Final = Path(__file__).parents[1] / "examples" / "agent_loop.py"
BOOKED: Final = "Booked: 101, 205, 310, 404."


def test_an_agent_killed_at_random_boundaries_finishes_and_loses_and_repeats_nothing(database_url: str) -> None:
    kills = 0
    while True:
        worker = subprocess.run(
            [sys.executable, AGENT_LOOP, database_url, "--kill", "0.25"], capture_output=True, text=True, timeout=60
        )
        if worker.returncode == 0:
            break
        # Where the machine is so busy that a lease lapses, the worker is refused, and that is right, too.
        assert worker.returncode == -signal.SIGKILL or "StaleFence" in worker.stderr, worker.stderr
        kills += 1
        assert kills < 100
    assert worker.stdout.strip() == BOOKED
    assert kills > 0
    with Checkpointer.open(database_url) as checkpointer:
        run = checkpointer.runs.get("rooms")
        assert (run.status, run.usage.requests, run.step) == (RunStatus.COMPLETED, 3, 3)
        last = checkpointer.runs.get_checkpoint(CheckpointConfig.latest("rooms"))
        roles = [message["role"] for message in last.state.message_history]
        assert roles == ["user", "assistant", "tool", "tool", "assistant", "tool", "tool", "assistant"]
        lineage = [item.checkpoint_id for item in checkpointer.history(CheckpointConfig.latest("rooms"))]
        assert lineage == [item.checkpoint_id for item in checkpointer.list("rooms").items]
        assert len(lineage) == 6
        booked = [
            write.payload
            for checkpoint_id in reversed(lineage)
            for write in checkpointer.get_writes(CheckpointConfig(thread_id="rooms", checkpoint_id=checkpoint_id))
        ]
        assert booked == [f"room {room} is yours" for room in ("101", "205", "310", "404")]
        again = subprocess.run(
            [sys.executable, AGENT_LOOP, database_url], capture_output=True, text=True, timeout=60, check=True
        )
        assert again.stdout.strip() == BOOKED
        assert checkpointer.runs.get("rooms") == run
