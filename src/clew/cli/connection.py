"""The options that say which database is meant, and opening it. No command stands here."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any, TypeAlias

import typer

from clew.async_checkpointer import AsyncCheckpointer
from clew.codec import Codec, UntypedCodec
from clew.errors import InvalidInput, NotFound

__all__ = ["Json", "Namespace", "Schema", "Url", "not_stored", "opened", "opened_for_reading", "required"]

Url: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--url", envvar="CLEW_URL", metavar="URL", help="The database: sqlite:///run.db or postgresql://user@host/name."
    ),
]
Schema: TypeAlias = Annotated[
    str | None, typer.Option("--schema", metavar="NAME", help="The Postgres schema, if not the connection's default.")
]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON, one record a line.")]
Namespace: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--namespace", "-n", metavar="PART", help="A part of the namespace; repeat it for each. None: the root one."
    ),
]


def required(url: str | None) -> str:
    """The URL, or the refusal that says how to give one."""
    if not url:
        raise InvalidInput(
            "which database? Give --url or set CLEW_URL: sqlite:///run.db or postgresql://user@host/name"
        )
    return url


@asynccontextmanager
async def opened(
    url: str | None, schema: str | None, *, migrate: bool = False, codec: Codec | None = None
) -> AsyncIterator[AsyncCheckpointer[Any]]:
    """A checkpointer on the database that the options name."""
    async with AsyncCheckpointer[Any].open(required(url), migrate=migrate, schema=schema, codec=codec) as checkpointer:
        yield checkpointer


def opened_for_reading(url: str | None, schema: str | None) -> Any:
    """The same, where states may hold classes that only the application knows: they are read as what they hold."""
    return opened(url, schema, codec=UntypedCodec())


def not_stored(thread_id: str) -> NotFound:
    """The error for a thread that has no checkpoint."""
    return NotFound(f"thread {thread_id!r} is not stored; `clew threads` lists those that are")
