"""``clew import-langgraph``: the threads of LangGraph's savers become clew's."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from clew.cli.connection import Json, Schema, required
from clew.cli.output import counted, print_json, progress, say, size
from clew.errors import InvalidInput

__all__ = ["COMMANDS"]


async def import_langgraph(
    source: Annotated[
        str,
        typer.Option("--from", metavar="URL", help="The database of SqliteSaver or PostgresSaver.", show_default=False),
    ],
    to: Annotated[
        str | None,
        typer.Option("--to", envvar="CLEW_URL", metavar="URL", help="clew's database; migrated first."),
    ] = None,
    schema: Schema = None,
    json: Json = False,
) -> None:
    """Copy the threads of LangGraph's SqliteSaver or PostgresSaver; what is there already is passed over.

    The source is only read. Stop it at any time; the same command goes on where it stopped.
    """
    try:
        from clew.langgraph import import_langgraph as copied
    except ModuleNotFoundError as missing:
        raise InvalidInput("import-langgraph needs an extra; run: pip install 'clew[langgraph]'") from missing
    with progress("importing", None) as advance:
        done = await copied(source, required(to), schema=schema, advance=lambda _done, total: advance(total))
    if json:
        print_json([{name: getattr(done, name) for name in done.__slots__}])
        return
    again = f"; {done.present} were there already" if done.present else ""
    say(
        f"imported {counted(done.checkpoints, 'checkpoint')} of {counted(done.threads, 'thread')} "
        f"with {counted(done.writes, 'write')}{again}"
    )
    say(f"{size(done.source_bytes)} in LangGraph's tables, {size(done.target_bytes)} in clew's")


COMMANDS: Final = (import_langgraph,)
