"""The asynchronous face: ``AsyncCheckpointer``. What its methods do is written once for both faces, in ``flows``.

A method without a docstring here has that of ``Checkpointer``'s method of the same name.
"""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self

from typing_extensions import TypeVar

from clew.checkpointer import Checkpointer
from clew.codec import Codec
from clew.drivers import AsyncDriver
from clew.engine import (
    AwaitedBoundDatabase,
    AwaitedDatabase,
    EngineOptions,
    bound_async,
    open_async,
    parse,
    wrap_async,
)
from clew.errors import InvalidInput
from clew.flows import Flows, HostMemories, Leases, core_for, documented_by, repeatable
from clew.flows.recording import RecordingFlows
from clew.groups.retention import AsyncRetention
from clew.groups.runs import AsyncRuns
from clew.groups.timeline import AsyncTimeline
from clew.recorder import DEFAULT_PENDING, AsyncRecorder
from clew.records import (
    Checkpoint,
    CheckpointConfig,
    CheckpointMetadata,
    CheckpointSource,
    CheckpointTuple,
    DurabilityMode,
    Page,
    PendingWrite,
    Thread,
    ThreadStatistics,
)
from clew.repository import DEFAULT_MEMORY_BYTES, NOT_CHECKED, ExpectedHead, Filters

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_scoped_session

__all__ = ["AsyncCheckpointer"]

State = TypeVar("State", default=Any)


@documented_by(Checkpointer)
class AsyncCheckpointer(Generic[State]):
    """Keeps checkpoints in Postgres or SQLite. Safe to share between the tasks of one event loop.

    Use ``AsyncCheckpointer.open(url)``, or ``AsyncCheckpointer(engine)`` around an async engine of your own, whose
    settings are not touched and which stays open. Either is an async context manager.

    The methods are those of ``Checkpointer``, awaited, with the same errors. A call that is cancelled leaves no open
    transaction and no lost connection; what it asked for has then happened wholly or not at all, and may be repeated.
    """

    def __init__(
        self,
        engine: AsyncEngine | AwaitedDatabase,
        *,
        migrate: bool = False,
        schema: str | None = None,
        state_type: type[State] | None = None,
        types: Iterable[type] = (),
        codec: Codec | None = None,
        leases: Leases = "strict",
        memory_bytes: int = DEFAULT_MEMORY_BYTES,
        timeout_s: float | None = None,
    ) -> None:
        """Around ``engine``; nothing is connected yet. The options are those of ``open``."""
        database = engine if isinstance(engine, AwaitedDatabase) else wrap_async(engine, timeout_s=timeout_s)
        core = core_for(
            database.dialect,
            schema=schema,
            state_type=state_type,
            types=types,
            codec=codec,
            leases=leases,
            memory_bytes=memory_bytes,
        )
        self._use(AsyncDriver(database, core, migrate=migrate))

    def _use(self, driver: AsyncDriver) -> None:
        self._driver = driver
        self._flows = Flows(driver.core)
        self._hosts = HostMemories(driver.core)

    @classmethod
    def open(
        cls,
        url: str,
        *,
        migrate: bool = False,
        schema: str | None = None,
        state_type: type[State] | None = None,
        types: Iterable[type] = (),
        codec: Codec | None = None,
        leases: Leases = "strict",
        memory_bytes: int = DEFAULT_MEMORY_BYTES,
        pool_size: int = 10,
        max_overflow: int = 10,
        pool_recycle_s: float | None = None,
        pre_ping: bool = False,
        timeout_s: float | None = None,
        pgbouncer: bool | None = None,
    ) -> Self:
        """A checkpointer of its own pool, to be entered with ``async with``, which connects and checks the schema.

        The URL and the options are those of ``Checkpointer.open``. Postgres is reached over asyncpg; a plain
        ``sqlite:///`` URL over worker threads, ``sqlite+aiosqlite:///`` over aiosqlite.

        Raises:
            InvalidUrl: the URL cannot be honoured as written.
            SchemaMismatch: on entering, where the database is behind, ahead of, or not clew's, and ``migrate`` was not
                given.
        """
        options = EngineOptions(
            pool_size=pool_size,
            max_overflow=max_overflow,
            pool_recycle_s=pool_recycle_s,
            pre_ping=pre_ping,
            timeout_s=timeout_s,
            pgbouncer=pgbouncer,
            create=migrate,
        )
        return cls(
            open_async(url, options),
            migrate=migrate or parse(url).in_memory,
            schema=schema,
            state_type=state_type,
            types=types,
            codec=codec,
            leases=leases,
            memory_bytes=memory_bytes,
        )

    async def __aenter__(self) -> Self:
        try:
            await self._driver.make_ready()
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Wait for what runs, then close the pool, if it is the checkpointer's own. Closing twice is fine."""
        await self._driver.database.close()

    def bind(self, connection: AsyncConnection | AsyncSession | async_scoped_session[Any]) -> AsyncCheckpointer[State]:
        if isinstance(self._driver.database, AwaitedBoundDatabase):
            raise InvalidInput("this checkpointer is bound already; bind the one that it came from")
        target, pool = bound_async(connection)
        core, staged = self._hosts.staged(pool, self._driver.database.pool)
        bound = object.__new__(type(self))
        bound._use(self._driver.bound(AwaitedBoundDatabase(target, staged, core.store.dialect.name), core))
        return bound

    async def ping(self) -> None:
        await self._driver.database.ping()

    @property
    def runs(self) -> AsyncRuns:
        """Agent runs, their boundaries, and leases."""
        return AsyncRuns(self._driver)

    @property
    def retention(self) -> AsyncRetention:
        """Cleaning up and moving: pruning, expiry, verifying, compacting, export and import."""
        return AsyncRetention(self._driver)

    @property
    def timeline(self) -> AsyncTimeline:
        """Looking back, lineage and changing course: snapshots, diffs, forks, updates, copies."""
        return AsyncTimeline(self._driver)

    def recorder(
        self,
        thread_id: str,
        namespace: Iterable[str] = (),
        *,
        run_id: str | None = None,
        durability: DurabilityMode | str = DurabilityMode.SYNC,
        lease_token: int | None = None,
        max_pending: int = DEFAULT_PENDING,
    ) -> AsyncRecorder:
        flows = RecordingFlows(self._driver.core, thread_id, namespace, run_id, lease_token)
        return AsyncRecorder(self._driver, flows, durability, max_pending)

    async def put(
        self,
        checkpoint: Checkpoint[State],
        *,
        expected_head: ExpectedHead = NOT_CHECKED,
        lease_token: int | None = None,
    ) -> CheckpointConfig:
        return await self._driver.drive(self._flows.put(checkpoint, expected_head, lease_token))

    async def put_writes(
        self, config: CheckpointConfig, writes: Iterable[PendingWrite], *, lease_token: int | None = None
    ) -> None:
        await self._driver.drive(self._flows.put_writes(config, writes, lease_token))

    async def get_writes(self, config: CheckpointConfig) -> builtins.list[PendingWrite]:
        return await self._driver.run(self._flows.get_writes(config))

    async def get(self, config: CheckpointConfig) -> Checkpoint[State] | None:
        return await self._driver.drive(self._flows.get(config))

    async def get_tuple(
        self, config: CheckpointConfig, *, load_state: bool = True, channels: Collection[str] | None = None
    ) -> CheckpointTuple[State] | None:
        return await self._driver.run(self._flows.get_tuple(config, load_state, channels))

    async def list(
        self,
        thread_id: str,
        *,
        limit: int = 100,
        cursor: str | None = None,
        newest_first: bool = True,
        namespace: Iterable[str] | None = None,
        under: Iterable[str] | None = None,
        run_id: str | None = None,
        source: CheckpointSource | str | None = None,
        step: int | None = None,
        metadata: Mapping[str, Any] | None = None,
        before: str | None = None,
        after: str | None = None,
        created_before: datetime | None = None,
        created_after: datetime | None = None,
    ) -> Page[CheckpointMetadata]:
        filters = Filters(
            namespace, under, run_id, source, step, metadata, before, after, created_before, created_after
        )
        return await self._driver.run(self._flows.list(thread_id, limit, cursor, newest_first, filters))

    async def iterate(
        self, thread_id: str, *, page_size: int = 100, **filters: Any
    ) -> AsyncIterator[CheckpointMetadata]:
        filters, cursor = repeatable(filters), None
        while True:
            page = await self.list(thread_id, limit=page_size, cursor=cursor, **filters)
            for item in page.items:
                yield item
            if (cursor := page.next_cursor) is None:
                return

    async def history(self, config: CheckpointConfig, limit: int = 100) -> builtins.list[CheckpointMetadata]:
        return await self._driver.run(self._flows.history(config, limit))

    async def get_thread(self, thread_id: str) -> Thread | None:
        return await self._driver.run(self._flows.get_thread(thread_id))

    async def list_threads(self, *, limit: int = 100, cursor: str | None = None) -> Page[Thread]:
        return await self._driver.run(self._flows.list_threads(limit, cursor))

    async def statistics(self, thread_id: str) -> ThreadStatistics | None:
        return await self._driver.run(self._flows.statistics(thread_id))

    async def delete_thread(self, thread_id: str, *, lease_token: int | None = None) -> bool:
        return await self._driver.drive(self._flows.delete_thread(thread_id, lease_token))

    async def delete_checkpoints(
        self,
        thread_id: str,
        checkpoint_ids: Iterable[str],
        *,
        namespace: Iterable[str] = (),
        lease_token: int | None = None,
    ) -> int:
        return await self._driver.run(self._flows.delete_checkpoints(thread_id, checkpoint_ids, namespace, lease_token))

    async def delete_by_run(self, run_id: str, *, thread_id: str | None = None, lease_token: int | None = None) -> int:
        return await self._driver.drive(self._flows.delete_by_run(run_id, thread_id, lease_token))
