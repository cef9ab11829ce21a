"""``clew runs`` and ``clew suspend-run``: where agent runs stand, and asking one to stop at its next boundary."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from clew.cli.connection import Json, Schema, Url, opened
from clew.cli.output import moment, print_json, print_table, say
from clew.errors import InvalidInput
from clew.records import Run

__all__ = ["COMMANDS"]


async def runs(
    status: Annotated[
        list[str] | None,
        typer.Option(
            "--status", metavar="STATUS", help="starting, running, waiting, completed, failed or cancelled; repeatable."
        ),
    ] = None,
    thread: Annotated[str | None, typer.Option("--thread", metavar="ID", help="Only in this thread.")] = None,
    resumable: Annotated[
        bool, typer.Option("--resumable", help="Those that wait, or run in a thread that nobody holds; oldest first.")
    ] = False,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, max=10_000, help="At most so many.")] = 100,
    url: Url = None,
    schema: Schema = None,
    json: Json = False,
) -> None:
    """List agent runs, the last started first: those that an executor stores. Recorded chats are none."""
    if resumable and status:
        raise InvalidInput("--resumable says which statuses are meant; leave out --status")
    async with opened(url, schema) as checkpointer:
        if resumable:
            page = await checkpointer.runs.list_resumable(thread_id=thread, limit=limit)
        else:
            page = await checkpointer.runs.list(status=status or None, thread_id=thread, limit=limit)
    if json:
        print_json(run.model_dump(mode="json") for run in page.items)
        return
    columns = ("run", "thread", "status", "node", "step", "requests", "tokens", "updated", "why")
    print_table(columns, map(_row, page.items), numbers=("step", "requests", "tokens"))
    if page.next_cursor is not None:
        say(f"and more; --limit {limit} are shown", "dim")


async def suspend_run(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The run's id.", show_default=False)],
    reason: Annotated[str, typer.Argument(metavar="REASON", help="Why, for the run's record.", show_default=False)],
    thread: Annotated[
        str | None, typer.Option("--thread", metavar="ID", help="Its thread, where several have such a run.")
    ] = None,
    url: Url = None,
    schema: Schema = None,
) -> None:
    """Ask a run to suspend at its next boundary; its executor's policy decides."""
    async with opened(url, schema) as checkpointer:
        asked = await checkpointer.runs.request_suspend(run, reason, thread_id=thread)
    say(f"asked run {asked.run_id} of thread {asked.thread_id} to suspend; it is {asked.status.value} now")


def _row(run: Run) -> tuple[Any, ...]:
    asked = "asked to suspend: " if run.suspend_requested_at is not None else ""
    why = run.error or (f"{asked}{run.suspend_reason}" if run.suspend_reason else None)
    return (
        run.run_id,
        run.thread_id,
        run.status.value,
        run.node,
        run.step,
        run.usage.requests,
        run.usage.total_tokens,
        moment(run.updated_at),
        why,
    )


COMMANDS: Final = (runs, suspend_run)
