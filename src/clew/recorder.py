"""Recorders: a run's boundaries, stored when its durability says so. What is stored, and how, is in ``flows``.

``sync`` is durable before ``record`` returns. ``async`` is written in the background, in order, all that has queued up
in one transaction. ``exit`` stores the last boundary alone, and each one that interrupts.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Final, Self, TypedDict, Unpack

from clew.drivers import AsyncDriver, Driver
from clew.engine import AwaitedBoundDatabase, BoundDatabase
from clew.errors import InvalidInput, StorageUnavailable, WrongContext
from clew.flows import documented_by
from clew.flows.recording import BATCH, Item, Recorded, RecordingFlows
from clew.records import (
    BarrierArrivals,
    CheckpointConfig,
    DurabilityMode,
    Interrupt,
    PendingActivation,
    PendingWrite,
)
from clew.repository import PutRequest
from clew.repository.batching import LedgerRows
from clew.repository.keys import shown

__all__ = ["DEFAULT_PENDING", "AsyncRecorder", "Recorder"]

_log = logging.getLogger("clew")
DEFAULT_PENDING: Final = 256
"""So many items may be queued before ``record`` waits."""


class BoundaryFields(TypedDict, total=False):
    """The fields of a ``Checkpoint`` that a boundary may have beside its state."""

    next_nodes: Iterable[str]
    completed_tasks: Iterable[str]
    pending_writes: Iterable[PendingWrite]
    interrupts: Iterable[Interrupt]
    pending_activations: Iterable[PendingActivation]
    barrier_arrivals: Iterable[BarrierArrivals]


class Recording:
    """What both recorders do without waiting: the queue, what is held back, and what became of it."""

    def __init__(self, flows: RecordingFlows, durability: DurabilityMode | str, max_pending: int, bound: bool) -> None:
        try:
            self.durability = DurabilityMode(durability)
        except ValueError as exc:
            raise InvalidInput(f"durability must be sync, async or exit, not {shown(durability)}") from exc
        if type(max_pending) is not int or max_pending < 1:
            raise InvalidInput(f"max_pending must be an integer of at least 1, not {shown(max_pending)}")
        if self.durability is DurabilityMode.ASYNC and bound:
            raise InvalidInput("a bound checkpointer cannot write in the background; record with durability='sync'")
        self._flows = flows
        self._max_pending = max_pending
        self._queue: deque[Item] = deque()
        self._underway = 0
        self._failure: BaseException | None = None
        self._held: list[Item] = []
        self._let_go: set[str] = set()
        self._open = False

    @property
    def _pending(self) -> int:
        return len(self._queue) + self._underway

    def _boundary(
        self, state: Any, checkpoint_id: str | None, metadata: Any, terminal: bool, fields: BoundaryFields
    ) -> Recorded:
        self._usable()
        if unknown := sorted(fields.keys() - BoundaryFields.__annotations__.keys()):
            raise TypeError(f"record() got an unexpected argument {unknown[0]!r}")
        return self._flows.boundary(state, checkpoint_id, metadata, terminal, dict(fields))

    def _usable(self) -> None:
        if not self._open:
            raise WrongContext("a recorder is used inside its with block")
        if self._failure is not None:
            raise self._failure
        self._check("record")

    def _check(self, doing: str) -> None:
        """Refuse what would wait for a writer that is not here: in a forked child, on a foreign event loop."""
        raise NotImplementedError

    def _next_batch(self) -> list[Item]:
        batch = [self._queue.popleft() for _ in range(min(len(self._queue), BATCH))]
        self._underway = len(batch)
        return batch

    def _settle(self, failure: BaseException | None) -> None:
        """A batch has been written or has failed; behind a gap nothing is written."""
        self._underway = 0
        if failure is not None:
            self._failure = failure
            self._queue.clear()

    def _hold(self, request: PutRequest) -> None:
        self._let_go_of_held()
        self._held = [request]

    def _let_go_of_held(self) -> None:
        """A later boundary takes the place of the one that was held back, which is never stored then."""
        self._let_go.update(item.checkpoint_id for item in self._held)
        self._held = []

    def _stored(self, request: PutRequest) -> None:
        self._let_go_of_held()
        self._let_go.discard(request.checkpoint_id)

    def _goes_with_its_boundary(self, ledger: LedgerRows) -> bool:
        """Whether the boundary that the writes belong to was not stored: they are held back too, or let go of."""
        if any(item.checkpoint_id == ledger.checkpoint_id for item in self._held):
            self._held.append(ledger)
            return True
        return ledger.checkpoint_id in self._let_go

    @staticmethod
    def _left(error: BaseException | None, failure: Exception) -> None:
        """The application's own error is never replaced by the storage's."""
        if error is None:
            raise failure
        if error is failure:
            return
        _log.warning("a recorder was left by an error, and could not store everything: %s", failure)
        error.add_note(f"clew: the recorder could not store everything either: {failure}")


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
        if self.durability is DurabilityMode.ASYNC and not recorded.urgent:
            self._enqueue(recorded.request)
            return self._flows.advance(recorded)
        if self.durability is DurabilityMode.EXIT and not recorded.urgent:
            self._hold(recorded.request)
            return self._flows.advance(recorded, parent=False)
        self.drain()
        self._driver.drive(self._flows.write([recorded.request]))
        self._stored(recorded.request)
        return self._flows.advance(recorded)

    def put_writes(self, writes: Iterable[PendingWrite], *, checkpoint_id: str | None = None) -> None:
        """Add writes to the ledger of the last boundary, or of another, stored when and after that one is.

        In ``exit`` durability writes of a boundary that is never stored go with it.

        Raises:
            InvalidInput: nothing is recorded yet.
            StaleFence, StorageUnavailable: see ``record``.
        """
        self._usable()
        ledger = self._flows.ledger(writes, checkpoint_id)
        if self.durability is DurabilityMode.ASYNC:
            self._enqueue(ledger)
        elif not self._goes_with_its_boundary(ledger):
            self._driver.drive(self._flows.write([ledger]))

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
        if self.durability is DurabilityMode.ASYNC and not recorded.urgent:
            await self._enqueue(recorded.request)
            return self._flows.advance(recorded)
        if self.durability is DurabilityMode.EXIT and not recorded.urgent:
            self._hold(recorded.request)
            return self._flows.advance(recorded, parent=False)
        await self.drain()
        await self._driver.drive(self._flows.write([recorded.request]))
        self._stored(recorded.request)
        return self._flows.advance(recorded)

    async def put_writes(self, writes: Iterable[PendingWrite], *, checkpoint_id: str | None = None) -> None:
        self._usable()
        ledger = self._flows.ledger(writes, checkpoint_id)
        if self.durability is DurabilityMode.ASYNC:
            await self._enqueue(ledger)
        elif not self._goes_with_its_boundary(ledger):
            await self._driver.drive(self._flows.write([ledger]))

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
