"""``clew demo``: a small agent run is recorded and looked back into, in one go. The run is ``sample_run.json``.

The agent keeps a plan by a tool; so its states have two channels, ``messages`` and ``plan``.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Final

import typer

from clew.async_checkpointer import AsyncCheckpointer
from clew.cli.connection import opened
from clew.cli.looking import print_history
from clew.cli.measuring import print_statistics
from clew.cli.output import print_state, print_table, say, size
from clew.cli.recording import checkpoints_of
from clew.cli.transcripts import read_runs
from clew.codec import json_text
from clew.errors import InvalidInput
from clew.records import Checkpoint, CheckpointConfig, CheckpointMetadata

__all__ = ["COMMANDS", "sample_checkpoints"]

_SAMPLE: Final = Path(__file__).with_name("sample_run.json")
_THREAD: Final = "demo"


async def demo(
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", metavar="PATH", help="Keep the database in this new SQLite file. None: a temporary one."
        ),
    ] = None,
) -> None:
    """Record a small sample run in an SQLite file and look back into it."""
    if file is not None and file.exists():
        raise InvalidInput(f"{file} exists already; the demo wants a file of its own")
    with TemporaryDirectory() as folder:
        path = file or Path(folder) / "demo.db"
        say(f"Migrating {'a temporary SQLite file' if file is None else file}", "bold")
        async with opened(f"sqlite:///{path.absolute()}", None, migrate=True) as checkpointer:
            await _show(checkpointer)
    if file is not None:
        say(f"\nGo on by yourself: clew show {_THREAD} --step 9 --url sqlite:///{file}")


COMMANDS: Final = (demo,)


def sample_checkpoints(thread_id: str) -> Iterator[Checkpoint[dict[str, Any]]]:
    """The sample run, a checkpoint a message, with the plan as it stood then."""
    [run] = read_runs(_SAMPLE)
    plan: list[Any] = []
    for message, checkpoint in zip(run.messages, checkpoints_of(thread_id, run), strict=True):
        for call in message.get("tool_calls", ()):
            if call["function"]["name"] == "update_plan":
                plan = json.loads(call["function"]["arguments"])["plan"]
        yield checkpoint.model_copy(update={"state": {**checkpoint.state, "plan": plan}})


async def _show(checkpointer: AsyncCheckpointer[Any]) -> None:
    checkpoints = list(sample_checkpoints(_THREAD))
    for checkpoint in checkpoints:
        await checkpointer.put(checkpoint)
    _heading(f"Recorded {len(checkpoints)} checkpoints, one for each message; the latest and its ancestors")
    history = await checkpointer.history(CheckpointConfig.latest(_THREAD))
    print_history(history)

    [step_5] = (await checkpointer.list(_THREAD, step=5)).items
    found = await checkpointer.get(_config(step_5))
    assert found is not None
    _heading("The state at step 5")
    print_state(found.state)

    _heading("When the plan changed; only that channel is read")
    print_table(
        ("step", "checkpoint", "plan"),
        [
            (record.step, record.checkpoint_id, f"{sum(item['done'] for item in plan)} of {len(plan)} tasks done")
            async for record, plan in _changes(checkpointer, history)
        ],
        numbers=("step",),
    )

    _heading("What it takes in the database")
    statistics = await checkpointer.statistics(_THREAD)
    assert statistics is not None
    print_statistics([statistics])
    whole = sum(len(json_text(checkpoint.state).encode()) for checkpoint in checkpoints)
    say(f"The whole state at every step, as JSON, would be {size(whole)}.")


async def _changes(
    checkpointer: AsyncCheckpointer[Any], history: list[CheckpointMetadata]
) -> AsyncIterator[tuple[CheckpointMetadata, list[Any]]]:
    """(checkpoint, plan) wherever the plan is another than before, the oldest first."""
    before: list[Any] = []
    for record in reversed(history):
        found = await checkpointer.get_tuple(_config(record), channels=["plan"])
        assert found is not None
        if (plan := found.checkpoint.state["plan"]) != before:
            yield record, plan
        before = plan


def _config(record: CheckpointMetadata) -> CheckpointConfig:
    return CheckpointConfig(thread_id=record.thread_id, checkpoint_id=record.checkpoint_id)


def _heading(text: str) -> None:
    say(f"\n{text}", "bold")
