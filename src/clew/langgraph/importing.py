"""The way in: threads of LangGraph's SqliteSaver and PostgresSaver become clew's, thread by thread.

What is there already is passed over, so that an import which was cut short goes on where it stopped. How their tables
look is ``sources``'.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from langgraph.checkpoint.serde.base import SerializerProtocol
from sqlalchemy import Connection, select

from clew.async_checkpointer import AsyncCheckpointer
from clew.drivers import AsyncDriver
from clew.engine import open_async, parse
from clew.errors import InvalidInput
from clew.flows import Flows, Step
from clew.langgraph.channels import Trail
from clew.langgraph.checkpoints import namespace_of, namespace_text, write_of_task
from clew.langgraph.flows import SaverFlows
from clew.langgraph.sources import Source, StoredCheckpoint, StoredWrite, detect, table_bytes
from clew.records import CheckpointConfig
from clew.repository.keys import check_thread_id
from clew.repository.keys import namespace_of as parts_of
from clew.repository.locking import find_thread
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
    in the order of their ids; checkpoints and writes that the target has are passed over. Values are taken as the bytes
    they are stored as, so none of their classes is needed; ``serde`` is for databases whose checkpoints are encrypted
    as a whole.

    Raises:
        InvalidInput: the source is no such database; the target was not touched then.
        Unserializable: a checkpoint cannot be looked into without its serializer.
    """
    _check_is_there(source_url)
    async with AsyncExitStack() as stack:
        reading = open_async(source_url)
        stack.push_async_callback(reading.close)

        async def read(unit: Callable[[Connection], Any]) -> Any:
            return await reading.run(unit, "read", doing="read LangGraph's checkpoints")

        source: Source = await read(lambda connection: detect(connection, serde))
        target: AsyncCheckpointer[Any] = await stack.enter_async_context(
            AsyncCheckpointer.open(target_url, migrate=True, schema=schema)
        )
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
        there, ledger = await self._driver.run(
            Step(lambda connection: _present(self._driver.core.store, connection, thread_id), "read", "look")
        )
        known: dict[tuple[str, Any], Any] = {}
        for ns, checkpoint_id in await self._read(lambda connection: source.addresses(connection, thread_id)):
            held = None if (ns, checkpoint_id) in there else known

            def unit(
                connection: Connection, ns: str = ns, checkpoint_id: str = checkpoint_id, held: Any = held
            ) -> tuple[StoredCheckpoint | None, list[StoredWrite]]:
                return (
                    None if held is None else source.checkpoint(connection, thread_id, ns, checkpoint_id, held),
                    source.writes(connection, thread_id, ns, checkpoint_id),
                )

            stored, writes = await self._read(unit)
            # The writes first: a checkpoint that is there then has all that it had when it was copied. One that was
            # interrupted may have got more since.
            new = [write for write in writes if (ns, checkpoint_id, write.task_id, write.idx) not in ledger]
            await self._put_writes(thread_id, ns, checkpoint_id, new)
            if held is None:
                self._present += 1
            elif stored is None:
                continue
            else:
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


def _check_is_there(url: str) -> None:
    """SQLite would make an empty file where there is none. Raises InvalidInput."""
    address = parse(url)
    if address.kind == "sqlite" and not Path(address.database or "").is_file():
        raise InvalidInput(f"{address.label} does not exist; name the database of LangGraph's SqliteSaver")


def _present(
    store: Store, connection: Connection, thread_id: str
) -> tuple[set[tuple[str, str]], set[tuple[str, str, str, int]]]:
    """LangGraph's (namespace, id) of the thread's checkpoints in clew, and (namespace, id, task, idx) of its writes."""
    key = find_thread(store, connection, check_thread_id(thread_id))
    if key is None:
        return set(), set()
    c, w = store.tables.checkpoints.c, store.tables.pending_writes.c
    checkpoints = connection.execute(select(c.namespace, c.checkpoint_id).where(c.thread_key == key)).all()
    writes = connection.execute(select(w.namespace, w.checkpoint_id, w.task_id, w.idx).where(w.thread_key == key)).all()
    return (
        {(namespace_text(parts_of(namespace)), checkpoint_id) for namespace, checkpoint_id in checkpoints},
        {(namespace_text(parts_of(namespace)), *rest) for namespace, *rest in writes},
    )


def _size(store: Store, connection: Connection) -> int:
    """The bytes that clew's tables take, on SQLite the whole file."""
    tables = store.tables
    return table_bytes(connection, [table.fullname for table in (tables.threads, tables.versions, *tables.owned)])
