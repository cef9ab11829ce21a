"""The async faces' databases: units run in a task, or on a worker thread, and cancellation leaves nothing behind.

How one unit is carried out stands in ``database``; nothing of that is repeated here.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from sqlalchemy import Pool
from sqlalchemy.util import greenlet_spawn

from clew.engine import sqlite
from clew.engine.database import Mode, Progress, Stage, SyncDatabase, Unit, select_one
from clew.errors import WrongContext

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

__all__ = ["AsyncDatabase", "AwaitedDatabase", "ThreadedDatabase"]

T = TypeVar("T")

_SETTLE_S: Final = 5.0


class AwaitedDatabase:
    """What the two async faces share: one loop, closing once, and waiting for a unit in a way that can be cancelled."""

    def __init__(self, core: SyncDatabase) -> None:
        self._core = core
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running: set[asyncio.Future[Any]] = set()
        self._closing: asyncio.Task[None] | None = None

    @property
    def dialect(self) -> Literal["sqlite", "postgresql"]:
        return self._core.dialect

    @property
    def closed(self) -> bool:
        return self._core.closed

    @property
    def pool(self) -> Pool:
        """The pool of the engine's connections."""
        return self._core.engine.pool

    async def run(self, unit: Unit[T], mode: Mode, *, doing: str = "use the database") -> T:
        """What ``unit`` returns; see ``SyncDatabase.run``.

        Cancelled while it runs, the unit is stopped or rolled back unless its commit has been sent; when the
        cancellation comes back, its connection is in order again (a second cancellation does not wait for that).

        Raises:
            WrongContext: also on another event loop than that of the first use.
        """
        self.check(doing)
        progress = Progress()
        future = self._start(asyncio.get_running_loop(), unit, mode, doing, progress)
        self._running.add(future)
        future.add_done_callback(self._settled)
        try:
            await asyncio.wait((future,))
        except asyncio.CancelledError:
            progress.abandoned = True
            self._interrupt(future, progress)
            if progress.stage is not Stage.CHECKOUT:  # a free connection may be long in coming
                await asyncio.wait((future,), timeout=_SETTLE_S)
            raise
        return future.result()

    def check(self, doing: str) -> None:
        """Refuse use after closing, after ``fork()``, and on another event loop than that of the first use."""
        self._core.check(doing)
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise WrongContext(
                f"could not {doing}: the checkpointer belongs to another event loop; open one on each loop"
            )

    async def ping(self) -> None:
        """Ask the database for a sign of life.

        Raises:
            StorageUnavailable: there is none.
        """
        await self.run(select_one, self._core.cheapest, doing="ping the database")

    async def close(self) -> None:
        """Wait for what runs, then close our own engine; a host's stays open. Closing twice is fine.

        Cancelled, it goes on by itself; who calls it again waits for that.
        """
        self._core.closed = True  # nothing new is taken on; what runs may finish
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(), name="clew-close")
            self._closing.add_done_callback(_looked_at)
        if self._closing.get_loop() is asyncio.get_running_loop():
            await asyncio.shield(self._closing)

    async def _close(self) -> None:
        if self._loop in (None, asyncio.get_running_loop()) and self._running:
            await asyncio.wait(tuple(self._running))
        await self._dispose()

    def _start(
        self, loop: asyncio.AbstractEventLoop, unit: Unit[T], mode: Mode, doing: str, progress: Progress
    ) -> asyncio.Future[T]:
        raise NotImplementedError

    def _interrupt(self, future: asyncio.Future[Any], progress: Progress) -> None:
        raise NotImplementedError

    async def _dispose(self) -> None:
        raise NotImplementedError

    def _settled(self, future: asyncio.Future[Any]) -> None:
        self._running.discard(future)
        _looked_at(future)


class AsyncDatabase(AwaitedDatabase):
    """An ``AsyncEngine``, ours or a host's, that runs units: each in a task of its own, out of reach of the caller's
    cancellation but for the moments when stopping is safe. A connection cut off between two awaits of a checkout, a
    rollback or a commit is lost to the pool, or hands its open transaction to the next user."""

    def __init__(
        self,
        engine: AsyncEngine,
        *,
        own: bool = False,
        timeout_s: float | None = None,
        pgbouncer: bool = False,
        anchor: sqlite.Anchor | None = None,
        label: str | None = None,
    ) -> None:
        core = SyncDatabase(
            engine.sync_engine, own=own, timeout_s=timeout_s, pgbouncer=pgbouncer, anchor=anchor, label=label
        )
        super().__init__(core)
        self.engine = engine
        self._own = own
        self._gate = asyncio.Lock() if own and core.dialect == "sqlite" else None

    def _start(
        self, loop: asyncio.AbstractEventLoop, unit: Unit[T], mode: Mode, doing: str, progress: Progress
    ) -> asyncio.Future[T]:
        return loop.create_task(self._perform(unit, mode, doing, progress))

    async def _perform(self, unit: Unit[T], mode: Mode, doing: str, progress: Progress) -> T:
        if self._gate is None or mode == "read":
            return await greenlet_spawn(self._core.perform, unit, mode, doing, progress)
        async with self._gate:
            return await greenlet_spawn(self._core.perform, unit, mode, doing, progress)

    def _interrupt(self, future: asyncio.Future[Any], progress: Progress) -> None:
        # SQLAlchemy drops the connection on which a statement was cut off, and asyncpg cancels the statement. SQLite
        # has nothing that is worth cutting off: the unit ends by itself, and is rolled back.
        if progress.stage is Stage.UNIT and self.dialect == "postgresql":
            future.cancel()

    async def _dispose(self) -> None:
        foreign = self._loop not in (None, asyncio.get_running_loop())
        if self._own and not foreign:
            await self.engine.dispose()
        elif self._own:
            self.engine.sync_engine.dispose(close=False)  # its connections died with their loop
        self._core.release_anchor()


class ThreadedDatabase(AwaitedDatabase):
    """A ``SyncDatabase`` for the event loop: each unit runs whole on a worker thread.

    Writers have one thread, so that they queue in order and keep no reader waiting.
    """

    def __init__(self, database: SyncDatabase, *, readers: int = 4) -> None:
        super().__init__(database)
        self.engine = database.engine
        self._writer = ThreadPoolExecutor(1, "clew-writer")
        self._readers = ThreadPoolExecutor(readers, "clew-reader")

    def _start(
        self, loop: asyncio.AbstractEventLoop, unit: Unit[T], mode: Mode, doing: str, progress: Progress
    ) -> asyncio.Future[T]:
        executor = self._readers if mode == "read" else self._writer
        return loop.run_in_executor(executor, self._core.perform, unit, mode, doing, progress)

    def _interrupt(self, future: asyncio.Future[Any], progress: Progress) -> None:
        if progress.stage is Stage.CHECKOUT:
            future.cancel()  # not begun: it never will be; begun: it ends by itself

    async def _dispose(self) -> None:
        for executor in (self._writer, self._readers):
            await asyncio.to_thread(executor.shutdown)
        self._core.release()


def _looked_at(future: asyncio.Future[Any]) -> None:
    """Nobody may be left to look at a failure, of which asyncio would complain."""
    if not future.cancelled():
        future.exception()
