"""The asynchronous saver. What its methods do is written once for both savers, in ``flows``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from clew.async_checkpointer import AsyncCheckpointer
from clew.drivers import AsyncDriver
from clew.engine import EngineOptions, open_async, parse
from clew.errors import WrongContext
from clew.flows import documented_by, schema_step
from clew.langgraph.saver import ClewSaver, Saver, not_open

__all__ = ["AsyncClewSaver"]

T = TypeVar("T")


@documented_by(ClewSaver)
class AsyncClewSaver(Saver):
    """A LangGraph checkpointer on clew for one event loop, in Postgres (over asyncpg) or SQLite.

    ``AsyncClewSaver.from_url(url)`` opens and closes a pool of its own; ``AsyncClewSaver(checkpointer)`` works on an
    open ``AsyncCheckpointer``. The synchronous methods hand over to the loop and may be called from other threads.

    Errors are those of ``ClewSaver``; ``WrongContext`` is a synchronous call that would block the saver's own loop.
    """

    def __init__(
        self,
        checkpointer: AsyncCheckpointer[Any],
        *,
        serde: SerializerProtocol | None = None,
        metadata_keys: Collection[str] = (),
    ) -> None:
        """Around ``checkpointer``, which stays open. The options are those of ``ClewSaver``."""
        if not isinstance(checkpointer, AsyncCheckpointer):
            raise not_open("AsyncCheckpointer", checkpointer, "AsyncClewSaver")
        self._driver: AsyncDriver = checkpointer._driver
        self._loop = _running_loop()
        super().__init__(self._driver.core, serde, metadata_keys)

    @classmethod
    @asynccontextmanager
    async def from_url(
        cls,
        url: str,
        *,
        serde: SerializerProtocol | None = None,
        metadata_keys: Collection[str] = (),
        schema: str | None = None,
        pool_size: int = 10,
        max_overflow: int = 10,
        timeout_s: float | None = None,
        pgbouncer: bool | None = None,
    ) -> AsyncIterator[Self]:
        """A saver of its own pool, as an async context manager. Call ``await setup()`` once before its first use.

        The URL and the options are those of ``AsyncCheckpointer.open``.
        """
        options = EngineOptions(
            pool_size=pool_size, max_overflow=max_overflow, timeout_s=timeout_s, pgbouncer=pgbouncer
        )
        checkpointer: AsyncCheckpointer[Any] = AsyncCheckpointer(
            open_async(url, options), migrate=parse(url).in_memory, schema=schema
        )
        try:
            yield cls(checkpointer, serde=serde, metadata_keys=metadata_keys)
        finally:
            await checkpointer.aclose()

    async def setup(self) -> None:
        step = schema_step(self._core, upgrade=True)
        await self._driver.database.run(step.carry_out, step.mode, doing=step.doing)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """See ``ClewSaver.get_tuple``."""
        return await self._driver.drive(self._flows.get_tuple(config))

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002  LangGraph's name
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """See ``ClewSaver.list``."""
        flows = self._flows
        place = flows.place(config, filter, before, limit)
        while found := await self._driver.drive(flows.page(place)):
            for item in found:
                yield item

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """See ``ClewSaver.put``."""
        return await self._driver.drive(self._flows.put(config, checkpoint, metadata, new_versions))

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """See ``ClewSaver.put_writes``."""
        await self._driver.drive(self._flows.put_writes(config, writes, task_id, task_path))

    async def adelete_thread(self, thread_id: str) -> None:
        """See ``ClewSaver.delete_thread``."""
        await self._driver.drive(self._flows.delete_thread(thread_id))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """See ``ClewSaver.delete_for_runs``."""
        await self._driver.drive(self._flows.delete_for_runs(run_ids))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """See ``ClewSaver.copy_thread``."""
        await self._driver.drive(self._flows.copy_thread(source_thread_id, target_thread_id))

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """See ``ClewSaver.prune``."""
        await self._driver.drive(self._flows.prune(thread_ids, strategy))

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """See ``ClewSaver.get_delta_channel_history``."""
        return await self._driver.run(self._flows.delta_history(config, channels)) if channels else {}

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return self._from_outside(lambda: self.aget_tuple(config))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002  LangGraph's name
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        flows = self._flows
        place = flows.place(config, filter, before, limit)
        while found := self._from_outside(lambda: self._driver.drive(flows.page(place))):
            yield from found

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return self._from_outside(lambda: self.aput(config, checkpoint, metadata, new_versions))

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        self._from_outside(lambda: self.aput_writes(config, writes, task_id, task_path))

    def delete_thread(self, thread_id: str) -> None:
        self._from_outside(lambda: self.adelete_thread(thread_id))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        self._from_outside(lambda: self.adelete_for_runs(run_ids))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        self._from_outside(lambda: self.acopy_thread(source_thread_id, target_thread_id))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        self._from_outside(lambda: self.aprune(thread_ids, strategy=strategy))

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        return self._from_outside(lambda: self.aget_delta_channel_history(config=config, channels=channels))

    def _from_outside(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What the coroutine returns, run on the saver's loop while the calling thread waits."""
        if self._loop is None or not self._loop.is_running():
            raise WrongContext(
                "a synchronous call of AsyncClewSaver needs the event loop it was made in, and none is running; "
                "make it inside a coroutine, or use ClewSaver"
            )
        if _running_loop() is self._loop:
            raise WrongContext(
                "a synchronous call of AsyncClewSaver on its own event loop would wait for itself; await the method "
                "with the leading 'a' (ainvoke, aget_state, …), or call it from another thread"
            )
        return asyncio.run_coroutine_threadsafe(call(), self._loop).result()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
