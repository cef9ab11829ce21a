"""The way in: threads of LangGraph's SqliteSaver and PostgresSaver become clew's, thread by thread.

What is there already is passed over, so that an import which was cut short goes on where it stopped. How their tables
look is ``sources``'.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from langgraph.checkpoint.serde.base import SerializerProtocol
from sqlalchemy import Connection, func, select, text

from clew.async_checkpointer import AsyncCheckpointer, AsyncDriver
from clew.engine import open_async
from clew.flows import Flows, Step
from clew.langgraph.channels import Trail
from clew.langgraph.checkpoints import namespace_of, namespace_text, write_of_task
from clew.langgraph.flows import SaverFlows
from clew.langgraph.sources import Source, StoredCheckpoint, StoredWrite, detect
from clew.records import CheckpointConfig
from clew.repository.keys import namespace_of as parts_of
from clew.repository.store import Store

__all__ = ["Imported", "import_langgraph"]

Advance = Callable[[int, int], None]
"""Called after each checkpoint with (how many are done, how many there are)."""


def _nobody_looks(done: int, total: int) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import did. ``present`` checkpoints were there before; sizes are those of the two databases' tables."""

    threads: int
    checkpoints: int
    present: int
    writes: int
    source_bytes: int
    target_bytes: int


async def import_langgraph(
    source_url: str,
    target_url: str,
    *,
    schema: str | None = None,
    serde: SerializerProtocol | None = None,
    advance: Advance = _nobody_looks,
) -> Imported:
    """Copy everything from a database of LangGraph's saver into clew's, which is migrated where it has to be.

    The source is only read. Checkpoints keep their ids, parents, namespaces, metadata, versions and writes, and are put
    in the order of their ids; those that the target has are passed over. Values are taken as the bytes they are stored
    as, so none of their classes is needed; ``serde`` is for databases whose checkpoints are encrypted as a whole.

    Raises:
        InvalidInput: the source is no such database.
        Unserializable: a checkpoint cannot be looked into without its serializer.
    """
    async with AsyncExitStack() as stack:
        reading = open_async(source_url)
        stack.push_async_callback(reading.close)
        target: AsyncCheckpointer[Any] = await stack.enter_async_context(
            AsyncCheckpointer.open(target_url, migrate=True, schema=schema)
        )

        async def read(unit: Callable[[Connection], Any]) -> Any:
            return await reading.run(unit, "read", doing="read LangGraph's checkpoints")

        source: Source = await read(lambda connection: detect(connection, serde))
        return await _Import(source, read, target._driver, advance).run()


class _Import:
    def __init__(self, source: Source, read: Any, driver: AsyncDriver, advance: Advance) -> None:
        self._source, self._read, self._driver, self._advance = source, read, driver, advance
        self._flows = Flows(driver.core)
        self._savers: dict[type, SaverFlows] = {}
        self._checkpoints = self._present = self._writes = self._total = 0

    async def run(self) -> Imported:
        self._total = await self._read(self._source.count)
        threads = await self._read(self._source.threads)
        for thread_id in threads:
            await self._thread(thread_id)
        return Imported(
            len(threads),
            self._checkpoints,
            self._present,
            self._writes,
            await self._read(self._source.size),
            await self._driver.run(
                Step(lambda connection: _size(self._driver.core.store, connection), "read", "measure")
            ),
        )

    async def _thread(self, thread_id: str) -> None:
        source = self._source
        there = await self._driver.run(
            Step(lambda connection: _present(self._driver.core.store, connection, thread_id), "read", "look")
        )
        known: dict[tuple[str, Any], Any] = {}
        for ns, checkpoint_id in await self._read(lambda connection: source.addresses(connection, thread_id)):
            if (ns, checkpoint_id) in there:
                self._present += 1
            else:
                held = known

                def unit(
                    connection: Connection, ns: str = ns, checkpoint_id: str = checkpoint_id, held: Any = held
                ) -> tuple[StoredCheckpoint | None, list[StoredWrite]]:
                    return (
                        source.checkpoint(connection, thread_id, ns, checkpoint_id, held),
                        source.writes(connection, thread_id, ns, checkpoint_id),
                    )

                stored, writes = await self._read(unit)
                # The writes first: a checkpoint that is there then has all of them.
                await self._put_writes(thread_id, ns, checkpoint_id, writes)
                if stored is None:
                    continue
                await self._put(thread_id, ns, stored)
                values, versions = stored.checkpoint["channel_values"], stored.checkpoint["channel_versions"]
                known = {(name, versions[name]): value for name, value in values.items() if name in versions}
                self._checkpoints += 1
            self._advance(self._checkpoints + self._present, self._total)

    async def _put(self, thread_id: str, ns: str, stored: StoredCheckpoint) -> None:
        flows = self._savers.get(type(stored.serde))
        if flows is None:
            flows = self._savers[type(stored.serde)] = SaverFlows(self._driver.core, Trail(), stored.serde, ())
        configurable = {"thread_id": thread_id, "checkpoint_ns": ns, "checkpoint_id": stored.parent_id}
        checkpoint = {**stored.checkpoint, "id": stored.checkpoint_id}
        versions = checkpoint["channel_versions"]
        await self._driver.drive(flows.put({"configurable": configurable}, checkpoint, stored.metadata, versions))

    async def _put_writes(self, thread_id: str, ns: str, checkpoint_id: str, writes: list[StoredWrite]) -> None:
        address = CheckpointConfig(thread_id=thread_id, checkpoint_id=checkpoint_id, namespace=namespace_of(ns))
        rows = [
            write_of_task(write.value, write.task_id, write.idx, write.channel, write.task_path) for write in writes
        ]
        await self._driver.drive(self._flows.put_writes(address, rows, None))
        self._writes += len(rows)


def _present(store: Store, connection: Connection, thread_id: str) -> set[tuple[str, str]]:
    """LangGraph's (namespace, id) of the thread's checkpoints in clew."""
    t, c = store.tables.threads.c, store.tables.checkpoints.c
    rows = connection.execute(
        select(c.namespace, c.checkpoint_id).where(c.thread_key == t.thread_key, t.thread_id == thread_id)
    )
    return {(namespace_text(parts_of(namespace)), checkpoint_id) for namespace, checkpoint_id in rows}


def _size(store: Store, connection: Connection) -> int:
    """The bytes that clew's tables take, on SQLite the whole file."""
    if connection.dialect.name == "sqlite":
        statement = text("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size")
        return int(connection.execute(statement).scalar_one())
    schema = f"{store.tables.schema}." if store.tables.schema else ""
    names = [f"{schema}{table.name}" for table in (store.tables.threads, store.tables.versions, *store.tables.owned)]
    return sum(
        connection.execute(select(func.pg_total_relation_size(func.to_regclass(name)))).scalar_one() for name in names
    )
