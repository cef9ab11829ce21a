"""``clew migrate``: the schema, its revision, and its SQL. The steps themselves are ``clew.migrate``'s."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final

import typer
from sqlalchemy import Connection

from clew import migrate as migrations
from clew.cli.connection import Schema, Url, required
from clew.cli.output import say
from clew.engine import EngineOptions, Mode, is_missing, open_async, parse
from clew.errors import InvalidInput

__all__ = ["COMMANDS"]


async def migrate(
    to: Annotated[
        str, typer.Option("--to", metavar="REVISION", help="The revision, or `head`, or `base` for none at all.")
    ] = "head",
    sql: Annotated[
        bool, typer.Option("--sql", help="Print the statements for an empty database; run nothing.")
    ] = False,
    dialect: Annotated[
        str | None, typer.Option("--dialect", metavar="NAME", help="For --sql: sqlite or postgresql. None: the URL's.")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Only say whether the database is up to date.")] = False,
    current: Annotated[
        bool, typer.Option("--current", help="Only print the revision that the database is at.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before going back.")] = False,
    url: Url = None,
    schema: Schema = None,
) -> None:
    """Bring the database to this version's schema. Any number of processes may do so at once.

    Going back with --to drops tables or columns and what is in them, and asks first.
    """
    if sql + check + current > 1:
        raise InvalidInput("--sql, --check and --current exclude each other")
    if dialect is not None and not sql:
        raise InvalidInput("--dialect belongs to --sql")
    if to != "head" and (sql or check or current):
        raise InvalidInput("--to names where to go, and --sql, --check and --current go nowhere")
    if sql:
        typer.echo(migrations.sql(dialect or parse(required(url)).kind, schema), nl=False)
        return
    if current and is_missing(parse(required(url))):  # a look at a file that is not there makes none
        typer.echo("none")
        return
    before = await _on(url, "read", "read the revision", lambda on: migrations.current(on, schema), create=not check)
    if current:
        typer.echo(before or "none")
    elif check:
        await _on(url, "read", "check the schema", lambda on: migrations.check(on, schema), create=False)
        say(f"up to date, at {before}")
    else:
        await _go(url, schema, to, before, yes)


COMMANDS: Final = (migrate,)


async def _go(url: str | None, schema: str | None, to: str, before: str | None, yes: bool) -> None:
    order = [None, *migrations.REVISIONS]
    target = {"head": migrations.HEAD, "base": None}.get(to, to)
    back = target in order and order.index(target) < order.index(before)
    if back and not yes:
        typer.confirm(f"Go back from {before} to {target or 'base'}, and drop what only {before} keeps?", abort=True)
    step = migrations.downgrade if back or target is None else migrations.upgrade
    await _on(url, "write", "migrate the database", lambda connection: step(connection, schema=schema, to=to))
    after = await _on(url, "read", "read the revision", lambda connection: migrations.current(connection, schema))
    moved = f"{before or 'none'} → {after or 'none'}"
    say(f"at {after or 'none'} already" if before == after else f"migrated {moved}")


async def _on(
    url: str | None, mode: Mode, doing: str, unit: Callable[[Connection], Any], *, create: bool = True
) -> Any:
    """What the unit returns, over a connection of its own."""
    database = open_async(required(url), EngineOptions(create=create))
    try:
        return await database.run(unit, mode, doing=doing)
    finally:
        await database.close()
