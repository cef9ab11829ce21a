"""Which way an item goes: written at once, queued up, or held back. Nothing is waited for and nothing sent here.

``sync`` is durable before ``record`` returns. ``async`` is written in the background, in order, all that has queued up
in one transaction. ``exit`` stores the last boundary alone, and each one that interrupts.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from enum import Enum, auto
from typing import Any, Final, TypedDict

from clew.errors import InvalidInput, WrongContext
from clew.flows.recording import Item, Recorded, RecordingFlows
from clew.records import (
    BarrierArrivals,
    CheckpointConfig,
    DurabilityMode,
    Interrupt,
    PendingActivation,
    PendingWrite,
)
from clew.repository.batching import LedgerRows
from clew.repository.keys import shown

__all__ = ["BoundaryFields", "Recording", "Way"]

_log = logging.getLogger("clew")
_BATCH: Final = 256
"""So many items are written in one transaction at the most."""


class BoundaryFields(TypedDict, total=False):
    """The fields of a ``Checkpoint`` that a boundary may have beside its state."""

    next_nodes: Iterable[str]
    completed_tasks: Iterable[str]
    pending_writes: Iterable[PendingWrite]
    interrupts: Iterable[Interrupt]
    pending_activations: Iterable[PendingActivation]
    barrier_arrivals: Iterable[BarrierArrivals]


class Way(Enum):
    """What is done with an item while its caller waits."""

    WRITTEN = auto()
    QUEUED = auto()
    HELD = auto()
    """Nothing: it is held back, or was let go of."""


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
        batch = [self._queue.popleft() for _ in range(min(len(self._queue), _BATCH))]
        self._underway = len(batch)
        return batch

    def _settle(self, failure: BaseException | None) -> None:
        """A batch has been written or has failed; behind a gap nothing is written."""
        self._underway = 0
        if failure is not None:
            self._failure = failure
            self._queue.clear()

    def _way_of(self, recorded: Recorded) -> Way:
        if recorded.urgent or self.durability is DurabilityMode.SYNC:
            return Way.WRITTEN
        return Way.QUEUED if self.durability is DurabilityMode.ASYNC else Way.HELD

    def _taken(self, recorded: Recorded, way: Way) -> CheckpointConfig:
        """The boundary's address, once it went its way: it takes the place of one that was held back until now."""
        request = recorded.request
        if way is not Way.QUEUED:
            self._let_go.update(item.checkpoint_id for item in self._held)
            self._let_go.discard(request.checkpoint_id)
            self._held = [request] if way is Way.HELD else []
        return self._flows.advance(recorded, parent=way is not Way.HELD)

    def _way_of_writes(self, ledger: LedgerRows) -> Way:
        """Writes whose boundary is held back are so too, and those whose boundary was let go of go with it."""
        if self.durability is DurabilityMode.ASYNC:
            return Way.QUEUED
        if any(item.checkpoint_id == ledger.checkpoint_id for item in self._held):
            self._held.append(ledger)
            return Way.HELD
        return Way.HELD if ledger.checkpoint_id in self._let_go else Way.WRITTEN

    @staticmethod
    def _left(error: BaseException | None, failure: Exception) -> None:
        """The application's own error is never replaced by the storage's."""
        if error is None:
            raise failure
        if error is failure:
            return
        _log.warning("a recorder was left by an error, and could not store everything: %s", failure)
        error.add_note(f"clew: the recorder could not store everything either: {failure}")
