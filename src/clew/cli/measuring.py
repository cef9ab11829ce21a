"""``clew stats``: how much threads hold, and what that takes in the database. Nothing is changed here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final

import typer

from clew.cli.connection import Json, Schema, Url, not_stored, opened_for_reading
from clew.cli.looking import all_threads
from clew.cli.output import print_json, print_table, progress, size
from clew.records import ThreadStatistics

__all__ = ["COMMANDS", "print_statistics"]


async def stats(
    thread: Annotated[
        str | None, typer.Argument(metavar="[THREAD]", help="The thread. None: all of them.", show_default=False)
    ] = None,
    url: Url = None,
    schema: Schema = None,
    json: Json = False,
) -> None:
    """Count checkpoints, information and stored bytes, of one thread or of all.

    Information is the compact JSON of what each state has and the one before it had not. Stored bytes are those of all
    values in the thread's rows, numbers at eight bytes; indexes and the database's own overhead come on top. The ratio
    is stored bytes over information. Every row is read for it.
    """
    async with opened_for_reading(url, schema) as checkpointer:
        if thread is not None:
            one = await checkpointer.statistics(thread)
            if one is None:
                raise not_stored(thread)
            found = [one]
        else:
            names = [item.thread_id async for item in all_threads(checkpointer)]
            with progress("measuring", len(names)) as advance:
                found = []
                for name in names:
                    measured = await checkpointer.statistics(name)
                    advance()
                    if measured is not None:  # not deleted meanwhile
                        found.append(measured)
    if json:
        print_json({**item.model_dump(), "ratio": item.ratio} for item in found)
    else:
        print_statistics(found)


COMMANDS: Final = (stats,)


def print_statistics(found: Sequence[ThreadStatistics]) -> None:
    """A line for each thread, and their sum where there are several."""
    rows = [_row(item.thread_id, item) for item in found]
    if len(found) != 1:
        total = ThreadStatistics(
            thread_id="",
            checkpoints=sum(item.checkpoints for item in found),
            information_bytes=sum(item.information_bytes for item in found),
            stored_bytes=sum(item.stored_bytes for item in found),
        )
        rows.append(_row(f"{len(found)} threads", total))
    columns = ("thread", "checkpoints", "information", "stored", "ratio")
    print_table(columns, rows, numbers=columns[1:])


def _row(name: str, item: ThreadStatistics) -> tuple[Any, ...]:
    ratio = "" if item.ratio is None else f"{item.ratio:.2f}"
    return name, item.checkpoints, size(item.information_bytes), size(item.stored_bytes), ratio
