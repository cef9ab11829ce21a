"""Recorders: a run's boundaries, stored when its durability says so, waiting in the thread or in the task.

Which way an item goes is decided in ``flows.durability``; what is stored, and how, in ``flows.recording``.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Final, Self, Unpack

from clew.drivers import AsyncDriver, Driver
from clew.engine import AwaitedBoundDatabase, BoundDatabase
from clew.errors import StorageUnavailable
from clew.flows import documented_by
from clew.flows.durability import BoundaryFields, Recording, Way
from clew.flows.recording import Item, RecordingFlows
from clew.records import CheckpointConfig, DurabilityMode, PendingWrite

__all__ = ["DEFAULT_PENDING", "AsyncRecorder", "Recorder"]

DEFAULT_PENDING: Final = 256
"""So many items may be queued before ``record`` waits."""


class Recorder(Recording):
    """Records the boundaries of one run in one namespace. A context manager, for one caller at a time.

    Leaving it writes what is still to be written, on an error too, which is never replaced by one of the storage: that
    is logged then, and noted on it.
    """

    def __init__(
        self, driver: Driver, flows: RecordingFlows, durability: DurabilityMode | str, max_pending: int
    ) -> None:
        super().__init__(flows, durability, max_pending, isinstance(driver.database, BoundDatabase))
        self._driver = driver
        self._changed = threading.Condition()
        self._writer: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._driver.drive(self._flows.begin())
        self._open = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._failure is None and self._held:
                self._write_held()
            self.drain()
        except Exception as failure:  # noqa: BLE001  whichever it is, the application's own comes first
            self._left(error, failure)
        finally:
            with self._changed:
                self._open = False
                self._changed.notify_all()
            if self._writer is not None:
                self._writer.join()

    def record(
        self,
        state: Any,
        *,
        metadata: Any = None,
        terminal: bool = False,
        checkpoint_id: str | None = None,
        **fields: Unpack[BoundaryFields],
    ) -> CheckpointConfig:
        """Record a boundary as a child of the last one; its address, which is known whenever it will be stored.

        ``fields`` are those of a ``Checkpoint``: ``next_nodes``, ``completed_tasks``, ``pending_writes``,
        ``interrupts``, ``pending_activations``, ``barrier_arrivals``. ``metadata`` is by default source ``loop`` and
        the number of the step. ``checkpoint_id`` is made where none is given. The state may be changed as soon as the
        call returns. A ``terminal`` boundary and one with interrupts are durable on return, with all before them,
        whatever the durability. Waits while ``max_pending`` items are queued.

        Raises:
            InvalidInput, Unserializable: the boundary cannot be stored as it is; the chain stays where it was.
            StaleFence, StorageUnavailable: it could not be stored, or (``async``) one before it could not: nothing
                behind that one is written then, and every further call raises the same.
        """
        recorded = self._boundary(state, checkpoint_id, metadata, terminal, fields)
        way = self._way_of(recorded)
        self._send(recorded.request, way)
        return self._taken(recorded, way)

    def put_writes(self, writes: Iterable[PendingWrite], *, checkpoint_id: str | None = None) -> None:
        """Add writes to the ledger of the last boundary, or of another, stored when and after that one is.

        In ``exit`` durability writes of a boundary that is never stored go with it.

        Raises:
            InvalidInput: nothing is recorded yet.
            StaleFence, StorageUnavailable: see ``record``.
        """
        self._usable()
        ledger = self._flows.ledger(writes, checkpoint_id)
        self._send(ledger, self._way_of_writes(ledger))

    def drain(self) -> None:
        """Wait until everything that was to be stored so far is durable.

        Raises:
            ClewError: something could not be stored.
        """
        if self._pending:
            self._check("store what was recorded")
        with self._changed:
            self._changed.wait_for(lambda: not self._pending)
        if self._failure is not None:
            raise self._failure

    def _check(self, doing: str) -> None:
        self._driver.database.check(doing)

    def _write_held(self) -> None:
        self._driver.drive(self._flows.write(self._held))
        self._held = []

    def _send(self, item: Item, way: Way) -> None:
        if way is Way.QUEUED:
            self._enqueue(item)
        elif way is Way.WRITTEN:
            self.drain()
            self._driver.drive(self._flows.write([item]))

    def _enqueue(self, item: Item) -> None:
        with self._changed:
            if self._writer is None:
                self._writer = threading.Thread(target=self._work, name="clew-recorder", daemon=True)
                self._writer.start()
            self._changed.wait_for(lambda: self._pending < self._max_pending or self._failure is not None)
            if self._failure is not None:
                raise self._failure
            self._queue.append(item)
            self._changed.notify_all()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._queue) or not self._open)
                batch = self._next_batch()
            if not batch:
                return
            failure: BaseException | None = None
            try:
                self._driver.drive(self._flows.write(batch))
            except BaseException as exc:  # noqa: BLE001  it is raised where it can be seen
                failure = exc
            with self._changed:
                self._settle(failure)
                self._changed.notify_all()


@documented_by(Recorder)
class AsyncRecorder(Recording):
    """``Recorder``, awaited; ``async`` durability writes in a task of its own."""

    def __init__(
        self, driver: AsyncDriver, flows: RecordingFlows, durability: DurabilityMode | str, max_pending: int
    ) -> None:
        super().__init__(flows, durability, max_pending, isinstance(driver.database, AwaitedBoundDatabase))
        self._driver = driver
        self._changed = asyncio.Condition()
        self._writer: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self._driver.drive(self._flows.begin())
        self._open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._failure is None and self._held:
                await self._write_held()
            await self.drain()
        except Exception as failure:  # noqa: BLE001  whichever it is, the application's own comes first
            self._left(error, failure)
        finally:
            self._open = False
            if self._writer is not None:
                self._writer.cancel()
                await asyncio.wait((self._writer,))

    async def record(
        self,
        state: Any,
        *,
        metadata: Any = None,
        terminal: bool = False,
        checkpoint_id: str | None = None,
        **fields: Unpack[BoundaryFields],
    ) -> CheckpointConfig:
        recorded = self._boundary(state, checkpoint_id, metadata, terminal, fields)
        way = self._way_of(recorded)
        await self._send(recorded.request, way)
        return self._taken(recorded, way)

    async def put_writes(self, writes: Iterable[PendingWrite], *, checkpoint_id: str | None = None) -> None:
        self._usable()
        ledger = self._flows.ledger(writes, checkpoint_id)
        await self._send(ledger, self._way_of_writes(ledger))

    async def drain(self) -> None:
        if self._pending:
            self._check("store what was recorded")
        async with self._changed:
            await self._changed.wait_for(lambda: not self._pending)
        if self._failure is not None:
            raise self._failure

    def _check(self, doing: str) -> None:
        self._driver.database.check(doing)

    async def _write_held(self) -> None:
        await self._driver.drive(self._flows.write(self._held))
        self._held = []  # not before: a cancelled call may be repeated

    async def _send(self, item: Item, way: Way) -> None:
        if way is Way.QUEUED:
            await self._enqueue(item)
        elif way is Way.WRITTEN:
            await self.drain()
            await self._driver.drive(self._flows.write([item]))

    async def _enqueue(self, item: Item) -> None:
        await asyncio.sleep(0)  # or a caller that waits for nothing else keeps the writer from running
        async with self._changed:
            if self._writer is None:
                self._writer = asyncio.create_task(self._work(), name="clew-recorder")
            await self._changed.wait_for(lambda: self._pending < self._max_pending or self._failure is not None)
            if self._failure is not None:
                raise self._failure
            self._queue.append(item)
            self._changed.notify_all()

    async def _work(self) -> None:
        failure: BaseException | None = None
        while failure is None:
            try:
                async with self._changed:
                    await self._changed.wait_for(lambda: bool(self._queue))
                    batch = self._next_batch()
                await self._driver.drive(self._flows.write(batch))
            except asyncio.CancelledError:  # by the recorder's end, or because the event loop comes to its own
                failure = StorageUnavailable(
                    "could not record: the task that writes was cancelled; it may have been stored all the same",
                    maybe_stored=True,
                )
            except BaseException as exc:  # noqa: BLE001  it is raised where it can be seen
                failure = exc
            async with self._changed:
                self._settle(failure)
                self._changed.notify_all()
