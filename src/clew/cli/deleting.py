"""``clew delete-run`` and ``clew delete-thread``."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from clew.cli.connection import Schema, Url, not_stored, opened
from clew.cli.looking import ThreadId
from clew.cli.output import counted, say
from clew.errors import NotFound

__all__ = ["COMMANDS"]


async def delete_run(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The run's id.", show_default=False)],
    thread: Annotated[
        str | None, typer.Option("--thread", metavar="ID", help="Only in this thread. None: in all.")
    ] = None,
    url: Url = None,
    schema: Schema = None,
) -> None:
    """Delete a run's checkpoints. All others still read back in full."""
    async with opened(url, schema) as checkpointer:
        count = await checkpointer.delete_by_run(run, thread_id=thread)
    if not count:
        where = "" if thread is None else f" in thread {thread!r}"
        raise NotFound(f"run {run!r} has no checkpoints{where}")
    say(f"deleted {counted(count, 'checkpoint')} of run {run}")


async def delete_thread(
    thread: ThreadId,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    url: Url = None,
    schema: Schema = None,
) -> None:
    """Delete a thread with everything of it; asks first."""
    async with opened(url, schema) as checkpointer:
        found = await checkpointer.get_thread(thread)
        if found is None:
            raise not_stored(thread)
        if not yes:
            typer.confirm(
                f"Delete thread {thread!r} with {counted(found.checkpoint_count or 0, 'checkpoint')}?", abort=True
            )
        await checkpointer.delete_thread(thread)
    say(f"deleted thread {thread}")


COMMANDS: Final = (delete_run, delete_thread)
