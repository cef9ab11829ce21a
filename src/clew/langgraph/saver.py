"""The synchronous saver, and what both have in common: LangGraph's interface, each method a line over ``flows``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from clew.checkpointer import Checkpointer
from clew.drivers import Driver
from clew.engine import EngineOptions, open_sync, parse
from clew.errors import InvalidInput
from clew.flows import Core, schema_step
from clew.langgraph.channels import Trail
from clew.langgraph.flows import SaverFlows
from clew.langgraph.versions import next_version

__all__ = ["ClewSaver", "Saver", "not_open"]


class Saver(BaseCheckpointSaver[Any]):
    """What both savers are made of. A shallow copy with another serializer shares everything else."""

    def __init__(self, core: Core, serde: SerializerProtocol | None, metadata_keys: Collection[str]) -> None:
        super().__init__(serde=serde)
        self._core = core
        self._metadata_keys = frozenset(metadata_keys)
        self._made: tuple[Any, SaverFlows] | None = None

    @property
    def _flows(self) -> SaverFlows:
        made = self._made
        if made is None or made[0] is not self.serde:
            # A trail of its own: elements are remembered as one serializer wrote them, and another may encrypt them.
            made = self._made = (self.serde, SaverFlows(self._core, Trail(), self.serde, self._metadata_keys))
        return made[1]

    def get_next_version(self, current: Any, channel: None) -> Any:
        """The version behind ``current``: a number, or a text where the thread came from a saver that has texts."""
        return next_version(current)


def not_open(face: str, given: object, saver: str) -> InvalidInput:
    """The refusal of what LangGraph's own savers are made around: a connection, a pool, a URL."""
    return InvalidInput(
        f"{saver} is made around an open clew.{face}, not {type(given).__name__}; {saver}.from_url(url) opens one"
    )


class ClewSaver(Saver):
    """A LangGraph checkpointer on clew, in Postgres or SQLite. Safe to share between threads.

    ``ClewSaver.from_url(url)`` opens and closes a pool of its own; ``ClewSaver(checkpointer)`` works on an open
    ``Checkpointer``. The asynchronous methods run on worker threads; ``AsyncClewSaver`` has true ones.

    Errors are clew's (``clew.errors``); what LangGraph's serializer refuses is ``Unserializable``, what it cannot load
    ``CorruptData``.
    """

    def __init__(
        self,
        checkpointer: Checkpointer[Any],
        *,
        serde: SerializerProtocol | None = None,
        metadata_keys: Collection[str] = (),
    ) -> None:
        """Around ``checkpointer``, which stays open.

        ``serde`` is LangGraph's serializer. ``metadata_keys`` are keys of a run's config to store with its checkpoints
        although they look like secrets (``api_key``, ``token`` and their like are left out).

        Raises:
            InvalidInput: not a ``Checkpointer``.
        """
        if not isinstance(checkpointer, Checkpointer):
            raise not_open("Checkpointer", checkpointer, "ClewSaver")
        self._driver: Driver = checkpointer._driver
        super().__init__(self._driver.core, serde, metadata_keys)

    @classmethod
    @contextmanager
    def from_url(
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
    ) -> Iterator[Self]:
        """A saver of its own pool, as a context manager. Call ``setup()`` once before its first use.

        The URL and the options are those of ``Checkpointer.open``.
        """
        options = EngineOptions(
            pool_size=pool_size, max_overflow=max_overflow, timeout_s=timeout_s, pgbouncer=pgbouncer
        )
        checkpointer: Checkpointer[Any] = Checkpointer(
            open_sync(url, options), migrate=parse(url).in_memory, schema=schema
        )
        try:
            yield cls(checkpointer, serde=serde, metadata_keys=metadata_keys)
        finally:
            checkpointer.close()

    def setup(self) -> None:
        """Bring the database to the schema of this version of clew; nothing where it is. Many may call it at once."""
        step = schema_step(self._core, upgrade=True)
        self._driver.database.run(step.carry_out, step.mode, doing=step.doing)

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The checkpoint that the config means, the latest without an id, or None."""
        return self._driver.drive(self._flows.get_tuple(config))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002  LangGraph's name
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Checkpoints in the order of their commits, the newest first; thread by thread for no config.

        ``before`` counts over all namespaces of a thread. ``filter`` compares metadata as Python compares. No lock and
        no connection is held between two tuples. The tuples share messages and other elements that their states have
        in common: change none of them in place.
        """
        flows = self._flows
        place = flows.place(config, filter, before, limit)
        while found := self._driver.drive(flows.page(place)):
            yield from found

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint; its config is returned once it is durable. Repeating it exactly changes nothing."""
        return self._driver.drive(self._flows.put(config, checkpoint, metadata, new_versions))

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Add a task's writes to a checkpoint, which may come later. Each has LangGraph's index for its channel."""
        self._driver.drive(self._flows.put_writes(config, writes, task_id, task_path))

    def delete_thread(self, thread_id: str) -> None:
        """Delete everything of a thread."""
        self._driver.drive(self._flows.delete_thread(thread_id))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints of these runs, in all threads; each thread is one transaction."""
        self._driver.drive(self._flows.delete_for_runs(run_ids))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread into one that is empty; nothing where there is no such thread.

        Raises:
            AlreadyExists: the target is not empty.
        """
        self._driver.drive(self._flows.copy_thread(source_thread_id, target_thread_id))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Delete the threads (``delete``), or all but the latest checkpoint of each namespace (``keep_latest``).

        What the latest one needs of its ancestors stays: the writes and the snapshot of a delta channel.
        """
        self._driver.drive(self._flows.prune(thread_ids, strategy))

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """For each channel its writes along the parents, and the nearest stored value."""
        return self._driver.run(self._flows.delta_history(config, channels)) if channels else {}

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return await asyncio.to_thread(self.get_tuple, config)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002  LangGraph's name
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        flows = self._flows
        place = flows.place(config, filter, before, limit)
        while found := await asyncio.to_thread(lambda: self._driver.drive(flows.page(place))):
            for item in found:
                yield item

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return await asyncio.to_thread(self.put, config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        await asyncio.to_thread(self.put_writes, config, writes, task_id, task_path)

    async def adelete_thread(self, thread_id: str) -> None:
        await asyncio.to_thread(self.delete_thread, thread_id)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        await asyncio.to_thread(self.delete_for_runs, run_ids)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        await asyncio.to_thread(self.copy_thread, source_thread_id, target_thread_id)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        await asyncio.to_thread(lambda: self.prune(thread_ids, strategy=strategy))

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        return await asyncio.to_thread(lambda: self.get_delta_channel_history(config=config, channels=channels))
