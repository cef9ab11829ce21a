"""A host application for the tests: an engine and a table of its own, and a checkpointer that it binds.

Its connections and sessions are awaited on either face, as checkpointers are through ``awaiting``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

import clew

from awaiting import Awaiting

SCHEMES = {
    ("sqlite", "sync"): "sqlite:",
    ("sqlite", "async"): "sqlite+aiosqlite:",
    ("postgresql", "sync"): "postgresql+psycopg:",
    ("postgresql", "async"): "postgresql+asyncpg:",
}
# The deferred constraint is what lets a COMMIT fail.
TABLES = (
    "CREATE TABLE customers (id INTEGER PRIMARY KEY)",
    "CREATE TABLE orders (id INTEGER PRIMARY KEY, customer INTEGER REFERENCES customers DEFERRABLE INITIALLY DEFERRED)",
)


def host_engine(url: str, face: str, **options: Any) -> Any:
    """An engine as a host would make it."""
    kind, _, rest = url.partition(":")
    location = SCHEMES[kind, face] + rest
    engine = create_async_engine(location, **options) if face == "async" else create_engine(location, **options)
    if kind == "sqlite":

        @event.listens_for(inner(engine), "connect")
        def connect(driver: Any, _: Any) -> None:
            driver.execute("PRAGMA foreign_keys = ON")
            driver.execute("PRAGMA busy_timeout = 20000")

    return engine


def inner(engine: Engine | AsyncEngine) -> Engine:
    return engine.sync_engine if isinstance(engine, AsyncEngine) else engine


async def call(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """What ``function`` returns, on either face; the sync one on a thread, so that tasks run side by side."""
    if asyncio.iscoroutinefunction(function):
        return await function(*arguments, **options)
    result = await asyncio.to_thread(function, *arguments, **options)
    return await result if hasattr(result, "__await__") else result


class Transaction:
    """A connection or a session of the host's, and the checkpointer bound to it."""

    def __init__(self, target: Any, checkpointer: Any) -> None:
        self.target = target
        bound = checkpointer.bind(target)
        self.bound: Any = bound if isinstance(bound, clew.AsyncCheckpointer) else Awaiting(bound)

    async def add(self, order: int, customer: int | None = None) -> None:
        statement = text("INSERT INTO orders VALUES (:id, :customer)")
        await call(self.target.execute, statement, {"id": order, "customer": customer})

    async def commit(self) -> None:
        await call(self.target.commit)

    async def rollback(self) -> None:
        await call(self.target.rollback)

    async def savepoint(self) -> Any:
        """A savepoint of the host's, to be awaited with ``call(savepoint.rollback)`` or ``call(savepoint.commit)``."""
        return await call(self.target.begin_nested)


class Host:
    """The application. ``checkpointer`` is over its engine unless another one is given."""

    def __init__(self, engine: Any, face: str, kind: str, checkpointer: Any = None) -> None:
        self.engine, self.face, self.kind = engine, face, kind
        given: Any = clew.AsyncCheckpointer if face == "async" else clew.Checkpointer
        self.own: Any = given(engine) if checkpointer is None else checkpointer
        self.checkpointer: Any = self.own if face == "async" else Awaiting(self.own)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """Neither committed nor rolled back here; what is left open is rolled back by closing."""
        if self.kind == "session":
            target: Any = AsyncSession(self.engine) if self.face == "async" else Session(self.engine)
        else:
            target = await self.engine.connect() if self.face == "async" else await call(self.engine.connect)
        try:
            yield Transaction(target, self.own)
        finally:
            await call(target.close)

    async def orders(self) -> list[int]:
        """The orders that are committed."""
        async with self.transaction() as other:
            found = await call(other.target.execute, text("SELECT id FROM orders ORDER BY id"))
            return [row[0] for row in found]

    async def prepare(self) -> None:
        async with self.transaction() as one:
            for statement in TABLES:
                await call(one.target.execute, text(statement))
            await one.commit()

    async def close(self) -> None:
        await call(self.engine.dispose)
