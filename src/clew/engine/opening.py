"""From a URL, or a host's engine, to a database that runs units. What a URL says is read in ``urls``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import Engine

from clew.engine import postgres, sqlite
from clew.engine.awaited import AsyncDatabase, ThreadedDatabase
from clew.engine.database import SyncDatabase
from clew.engine.options import EngineOptions
from clew.engine.urls import parse
from clew.errors import InvalidInput

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

__all__ = ["open_async", "open_sync", "wrap_async", "wrap_sync"]


def open_sync(url: str, options: EngineOptions | None = None) -> SyncDatabase:
    """A database of our own for the sync face. Nothing is connected yet.

    Raises:
        InvalidUrl: the URL cannot be honoured as written, or is for the async face.
        ClewError: Postgres, and psycopg is not installed.
    """
    options = options or EngineOptions()
    parsed = parse(url)
    if parsed.kind == "postgresql":
        pgbouncer = options.uses_pgbouncer(parsed)
        engine = postgres.sync_engine(parsed, options)
        return SyncDatabase(engine, own=True, timeout_s=options.timeout_s, pgbouncer=pgbouncer, label=parsed.label)
    engine, anchor = sqlite.sync_engine(parsed, options)
    return SyncDatabase(engine, own=True, timeout_s=options.timeout_s, anchor=anchor, label=parsed.label)


def open_async(url: str, options: EngineOptions | None = None) -> AsyncDatabase | ThreadedDatabase:
    """A database of our own for the async face: asyncpg, aiosqlite where the URL names it, else worker threads.

    Raises:
        InvalidUrl: the URL cannot be honoured as written, or is for the sync face.
    """
    options = options or EngineOptions()
    parsed = parse(url)
    if parsed.kind == "postgresql":
        pgbouncer = options.uses_pgbouncer(parsed)
        engine = postgres.async_engine(parsed, options)
        return AsyncDatabase(engine, own=True, timeout_s=options.timeout_s, pgbouncer=pgbouncer, label=parsed.label)
    if parsed.driver == "aiosqlite":
        engine, anchor = sqlite.async_engine(parsed, options)
        return AsyncDatabase(engine, own=True, timeout_s=options.timeout_s, anchor=anchor, label=parsed.label)
    return ThreadedDatabase(open_sync(url, options), readers=min(4, options.pool_size))


def wrap_sync(engine: Engine, *, timeout_s: float | None = None) -> SyncDatabase:
    """A database around a host's engine, which keeps its settings and stays open.

    Raises:
        InvalidInput: not an ``Engine``, one for neither SQLite nor Postgres, or a time that makes no sense.
    """
    if not isinstance(engine, Engine):
        raise InvalidInput(f"the sync face takes an sqlalchemy.Engine or a URL, not {type(engine).__name__}")
    return SyncDatabase(engine, timeout_s=EngineOptions(timeout_s=timeout_s).timeout_s)


def wrap_async(engine: AsyncEngine, *, timeout_s: float | None = None) -> AsyncDatabase:
    """A database around a host's async engine, which keeps its settings and stays open.

    Raises:
        InvalidInput: not an ``AsyncEngine``, one for neither SQLite nor Postgres, or a time that makes no sense.
    """
    from sqlalchemy.ext.asyncio import AsyncEngine

    if not isinstance(engine, AsyncEngine):
        raise InvalidInput(f"the async face takes an sqlalchemy AsyncEngine or a URL, not {type(engine).__name__}")
    return AsyncDatabase(engine, timeout_s=EngineOptions(timeout_s=timeout_s).timeout_s)
