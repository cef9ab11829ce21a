"""``clew record``: chat runs from a file become threads, a checkpoint a message. How files look is ``transcripts``'."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from clew.async_checkpointer import AsyncCheckpointer
from clew.cli.connection import Json, Schema, Url, opened
from clew.cli.output import counted, print_json, progress, say
from clew.cli.transcripts import Run, read_runs
from clew.errors import InvalidInput
from clew.records import Checkpoint

__all__ = ["COMMANDS", "checkpoints_of"]


async def record(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="JSON or JSON lines.", show_default=False)],
    thread: Annotated[
        str | None,
        typer.Option("--thread", metavar="ID", help="The thread, for a file with one run. None: its run id."),
    ] = None,
    url: Url = None,
    schema: Schema = None,
    json: Json = False,
) -> None:
    """Record chat runs from a file: a thread for each run, a checkpoint for each message.

    FILE holds objects {"run_id": …, "messages": […]} or plain lists of messages in OpenAI's form, one or many. A run
    without a run id is called after the file. What a run has besides becomes metadata of its last checkpoint.

    Recording a file again changes nothing.
    """
    runs = read_runs(file)
    if thread is not None and len(runs) > 1:
        raise InvalidInput(f"--thread names one thread, and {file} holds {len(runs)} runs")
    recorded: list[dict[str, Any]] = []
    async with opened(url, schema) as checkpointer:
        with progress("recording", sum(len(run.messages) for run in runs)) as advance:
            for run in runs:
                thread_id = run.run_id if thread is None else thread
                new = await _record_run(checkpointer, thread_id, run, advance)
                recorded.append(
                    {
                        "thread_id": thread_id,
                        "run_id": run.run_id,
                        "messages": len(run.messages),
                        "new_checkpoints": new,
                    }
                )
    if json:
        print_json(recorded)
        return
    new, total = (sum(item[key] for item in recorded) for key in ("new_checkpoints", "messages"))
    again = f"; {total - new} were there already" if total > new else ""
    say(f"recorded {counted(new, 'checkpoint')} of {counted(len(runs), 'run')}{again}")


COMMANDS: Final = (record,)


async def _record_run(
    checkpointer: AsyncCheckpointer[Any], thread_id: str, run: Run, advance: Callable[[], None]
) -> int:
    """Put the run's checkpoints, each on its predecessor; how many the thread has gained."""
    before = await checkpointer.get_thread(thread_id)
    for checkpoint in checkpoints_of(thread_id, run):
        await checkpointer.put(checkpoint)
        advance()
    after = await checkpointer.get_thread(thread_id)
    return (after.checkpoint_count or 0 if after else 0) - (before.checkpoint_count or 0 if before else 0)


def checkpoints_of(thread_id: str, run: Run) -> Iterator[Checkpoint[dict[str, Any]]]:
    """A checkpoint for each message, the state being the messages so far.

    Its id is made of the run's and the step, so that the same run gives the same checkpoints.
    """
    parent: str | None = None
    for step, message in enumerate(run.messages):
        last = step == len(run.messages) - 1
        metadata = {"source": "input" if message["role"] in ("system", "user") else "loop", "step": step}
        checkpoint_id = f"{run.run_id}.{step}"
        yield Checkpoint(
            thread_id=thread_id,
            checkpoint_id=checkpoint_id,
            run_id=run.run_id,
            parent_checkpoint_id=parent,
            state={"messages": run.messages[: step + 1]},
            next_nodes=() if last else (_next_node(message),),
            metadata={**run.details, **metadata} if last else metadata,
        )
        parent = checkpoint_id


def _next_node(message: dict[str, Any]) -> str:
    """Who speaks next: the tools that were called, the agent, or the person it has answered."""
    if message.get("tool_calls"):
        return "tools"
    return "user" if message["role"] == "assistant" else "agent"
