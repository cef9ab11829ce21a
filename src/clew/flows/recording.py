"""The chain that a recorder makes: ids, parents, and writing what has queued up. When that is, is in ``durability``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from pydantic import ValidationError
from sqlalchemy import Connection

from clew.errors import InvalidInput
from clew.flows.checkpoints import Flows
from clew.flows.steps import Core, Flow, Step, Turn
from clew.records import Checkpoint, CheckpointConfig, PendingWrite
from clew.repository import Fence, Put, PutRequest, prepare, prepare_writes
from clew.repository.batching import LedgerRows, put_batch
from clew.repository.keys import check_id, check_thread_id, namespace_of, namespace_text
from clew.repository.memory import ThreadMemory
from clew.structure import Node

__all__ = ["Item", "Recorded", "RecordingFlows"]

Item: TypeAlias = PutRequest | LedgerRows
"""What is written: a checkpoint, or writes for the ledger of one."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """A boundary made ready: what to write, and whether it is to be durable at once."""

    request: PutRequest
    urgent: bool


class RecordingFlows:
    """The chain of one recorder: whatever is recorded next has the last boundary as its parent."""

    def __init__(
        self, core: Core, thread_id: str, namespace: Iterable[str], run_id: str | None, lease_token: int | None
    ) -> None:
        self.core = core
        self.thread_id = check_thread_id(thread_id)
        self._text = namespace_text(namespace)
        self.namespace = namespace_of(self._text)
        self._run_id = run_id if run_id is None else check_id("run_id", run_id)
        self._fence = Fence(lease_token)
        self._flows = Flows(core)
        self._hint: Node | None = None
        self.parent_id: str | None = None
        self.last_id: str | None = None
        self._step = 0

    def begin(self) -> Flow[None]:
        """Take up the lineage where the namespace's latest checkpoint has left it."""
        latest = CheckpointConfig.latest(self.thread_id, self.namespace)
        found = yield self._flows.get_tuple(latest, False, None)
        if found is not None:
            self.parent_id = self.last_id = found.config.checkpoint_id
            self._step = found.metadata.step + 1

    def boundary(
        self, state: Any, checkpoint_id: str | None, metadata: Any, terminal: bool, fields: dict[str, Any]
    ) -> Recorded:
        """The boundary as a child of the last one. The chain stays where it is until ``advance``.

        Raises:
            InvalidInput, Unserializable: it cannot be stored as it is.
        """
        if checkpoint_id is not None:
            fields = {**fields, "checkpoint_id": checkpoint_id}
        try:
            checkpoint: Checkpoint[Any] = Checkpoint(
                thread_id=self.thread_id,
                namespace=self.namespace,
                run_id=self._run_id,
                parent_checkpoint_id=self.parent_id,
                state=state,
                metadata={"source": "loop", "step": self._step} if metadata is None else metadata,
                **fields,
            )
        except ValidationError as exc:
            named = ", ".join(sorted({str(error["loc"][0]) for error in exc.errors() if error["loc"]}))
            raise InvalidInput(f"record on thread {self.thread_id!r}: {named} cannot be a checkpoint's") from exc
        hint = self._hint
        if hint is None:
            known = self.core.memory.get(self.thread_id)
            form = known.base(self._text, self.parent_id) if known else None
            hint = form.root if form else None
        request = prepare(self.core.store.codec, checkpoint, hint)
        return Recorded(request, terminal or bool(checkpoint.interrupts))

    def advance(self, recorded: Recorded, *, parent: bool = True) -> CheckpointConfig:
        """Make it the last boundary, and (unless it may be left out) the next one's parent."""
        request = recorded.request
        self.last_id = request.checkpoint_id
        self._hint = request.root
        self._step += 1
        if parent:
            self.parent_id = request.checkpoint_id
        return request.config

    def ledger(self, writes: Iterable[PendingWrite], checkpoint_id: str | None) -> LedgerRows:
        """Writes for the ledger of a checkpoint, by default of the last boundary.

        Raises:
            InvalidInput: there is no boundary yet.
        """
        found = self.last_id if checkpoint_id is None else check_id("checkpoint_id", checkpoint_id)
        if found is None:
            raise InvalidInput(
                f"put_writes on thread {self.thread_id!r}: nothing is recorded yet; name a checkpoint_id"
            )
        return LedgerRows(self._text, found, prepare_writes(self.core.store.codec, writes))

    def write(self, items: Sequence[Item]) -> Flow[None]:
        """Write the items in one transaction: checkpoints in their order, and writes after their checkpoint."""
        puts = [item for item in items if isinstance(item, PutRequest)]
        ledgers = [item for item in items if isinstance(item, LedgerRows) and item.rows]
        if len(puts) == 1 and not ledgers:
            yield from self._flows.put_request(Put(puts[0], self._fence))
            return
        if not puts and not ledgers:
            return
        store, thread_id, memory = self.core.store, self.thread_id, self.core.memory
        yield Turn(thread_id)
        known = memory.get(thread_id)

        def unit(connection: Connection) -> ThreadMemory | None:
            return put_batch(store, connection, thread_id, puts, ledgers, self._fence, known)

        after = yield Step(unit, "write", f"record {len(items)} items of thread {thread_id!r}")
        if after is not None:
            memory.publish(thread_id, after)
