"""Importing a thread from its lines, inside one transaction. The lines are somebody else's: nothing in them is trusted.

What is stored has been checked to the depth to which ``verifying`` looks, so that an imported thread verifies clean.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from types import SimpleNamespace
from typing import Any, Final

from sqlalchemy import Connection, Table, update

from clew.codec import UntypedCodec
from clew.errors import ClewError, Conflict, InvalidInput
from clew.records import AgentExecutionNode, CheckpointSource, RunStatus, TransferReport
from clew.repository.keys import check_id, check_label, check_thread_id, metadata_terms
from clew.repository.locking import check_empty, check_fence, lock_or_create
from clew.repository.request import METADATA_SOURCE_AND_STEP, METADATA_STORED
from clew.repository.retention.arriving import ArrivedElements
from clew.repository.retention.exchange import (
    FORMAT,
    VERSION,
    Counts,
    Progress,
    check_counts,
    check_ids,
    check_namespace,
    load,
    read_int,
    read_moment,
    row_of,
)
from clew.repository.retention.expiry import expires_at
from clew.repository.scanning import WritePlace
from clew.repository.soundness import readable
from clew.repository.store import NO_FENCE, LockedThread, Store
from clew.structure import Span

__all__ = ["import_thread"]

_LAST_SEQ: Final = 2**53
"""Far below where sequence numbers end, so that the thread can go on."""
_BATCH_BYTES: Final = 4 * 1024 * 1024
_BATCH_ROWS: Final = 500
_MALFORMED: Final = (ClewError, ValueError, TypeError, KeyError, IndexError, OverflowError, RuntimeError)
_ORDER: Final = ("run", "elements", "checkpoint", "evidence", "write", "end")


def import_thread(
    store: Store,
    connection: Connection,
    lines: Iterable[bytes],
    *,
    thread_id: str | None = None,
    progress: Progress | None = None,
) -> TransferReport:
    """Store the thread that the lines hold, under its own id or another one.

    Raises:
        InvalidInput: naming the line that is not what an export writes.
        AlreadyExists: the thread is there already and not empty.
        StaleFence: the thread is leased.
    """
    if thread_id is not None:
        check_thread_id(thread_id)
    digest, number, incoming = blake2b(digest_size=32), 0, None
    for number, data in enumerate(lines, start=1):
        try:
            line = load(data)
            if incoming is None:
                incoming = _begin(store, connection, line, thread_id)
            else:
                incoming.take(line, digest.hexdigest())
        except Conflict:
            raise
        except _MALFORMED as exc:
            reason = str(exc) if isinstance(exc, ClewError) else "it is not what an export writes"
            raise InvalidInput(f"import, line {number}: {reason}; nothing was stored") from exc
        digest.update(data)
        if progress is not None:
            progress(incoming.counts.done, incoming.total)
    if incoming is None or not incoming.ended:
        raise InvalidInput(f"import, line {number + 1}: the lines break off before the last one; nothing was stored")
    incoming.flush()
    return incoming.counts.report(incoming.thread_id)


def _begin(store: Store, connection: Connection, line: dict[str, Any], thread_id: str | None) -> _Incoming:
    if line.get("format") != FORMAT:
        raise InvalidInput("it does not begin an exported thread")
    if line.get("version") != VERSION:
        raise InvalidInput(f"the export is of a version that is not read here, which is {VERSION}; upgrade clew")
    row = row_of(store.tables.threads, line["thread"], 0)
    if row["metadata"] is not None:
        json.loads(row["metadata"])
    if row["ttl_us"] is not None:
        read_int("ttl_us", row["ttl_us"], 1, 2**55)
    name = check_thread_id(row.pop("thread_id") if thread_id is None else thread_id)
    last_seq = read_int("last_seq", line["last_seq"], 1, _LAST_SEQ)
    activity = read_moment("activity", line["activity"])
    expires_at(SimpleNamespace(**row, activity=activity))
    total = read_int("checkpoints", line["checkpoints"]) + read_int("elements", line["elements"])
    locked = _empty_thread(store, connection, name)
    threads, versions = store.tables.threads, store.tables.versions
    settings = {key: row[key] for key in ("created_at", "metadata", "expires_at", "ttl_us", "refresh_on_activity")}
    connection.execute(update(threads).where(threads.c.thread_key == locked.thread_key).values(settings))
    connection.execute(
        update(versions)
        .where(versions.c.thread_key == locked.thread_key)
        .values(last_seq=locked.last_seq + last_seq, activity=activity)
    )
    return _Incoming(store, connection, locked.thread_key, name, locked.last_seq, last_seq, total)


def _empty_thread(store: Store, connection: Connection, thread_id: str) -> LockedThread:
    locked, created = lock_or_create(store, connection, thread_id, puts=0)
    if not created:
        check_fence(store, locked, NO_FENCE, "import")
        check_empty(store, connection, locked, "import")
    return locked


@dataclass(slots=True)
class _Incoming:
    """The rows that have come so far, and what later ones are held against.

    ``used`` are the sequence numbers that an emptied thread has used: one never names two checkpoints.
    """

    store: Store
    connection: Connection
    thread_key: int
    thread_id: str
    used: int
    last_seq: int
    total: int
    counts: Counts = field(default_factory=Counts)
    ended: bool = False
    _stage: int = 0
    _codec: UntypedCodec = field(default_factory=UntypedCodec)
    _pending: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    _pending_rows: int = 0
    _pending_bytes: int = 0
    _elements: ArrivedElements = field(default_factory=ArrivedElements)
    _ids: set[tuple[str, str]] = field(default_factory=set)
    _seqs: set[int] = field(default_factory=set)
    _last_run: str = ""
    _last_checkpoint: int = 0
    _last_evidence: int = 0
    _last_write: WritePlace | None = None

    def take(self, line: dict[str, Any], digest: str) -> None:
        """One line behind the header. ``digest`` is of everything above it."""
        if self.ended:
            raise InvalidInput("nothing may follow the last line")
        kinds = [kind for kind in _ORDER if kind in line]
        if len(kinds) != 1 or line.keys() - {kinds[0]} - {"metadata"}:
            raise InvalidInput("it is of no kind that is known here")
        [kind] = kinds
        if _ORDER.index(kind) < self._stage:
            raise InvalidInput(f"a {kind} line may not come behind {_ORDER[self._stage]} lines")
        self._stage = _ORDER.index(kind)
        if kind == "run":
            self._run(line[kind])
        elif kind == "elements":
            log, start, texts = line[kind]
            self._add_segments(self._elements.take(self._codec, log, start, texts))
            self.counts.elements += len(texts)
        else:
            self._add_segments(self._elements.rest())
            if kind == "checkpoint":
                self._checkpoint(line[kind], line.get("metadata"))
            elif kind == "evidence":
                self._evidence(line[kind])
            elif kind == "write":
                self._write(line[kind])
            else:
                self._end(line[kind], digest)
        if self._pending_rows >= _BATCH_ROWS or self._pending_bytes >= _BATCH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Send the rows that have come since the last time."""
        # Those that others refer to come first, the reverse of the order in which a thread is deleted.
        for table in reversed(self.store.tables.owned):
            if rows := self._pending.pop(table.name, None):
                self.connection.execute(table.insert(), rows)
        self._pending_rows = self._pending_bytes = 0

    def _run(self, values: Any) -> None:
        row = row_of(self.store.tables.runs, values, self.thread_key)
        check_counts(row)
        check_namespace(row)
        check_ids(row, "parent_run_id", "checkpoint_id")
        RunStatus(row["status"])
        if row["node"] is not None:
            AgentExecutionNode(row["node"])
        if check_id("run_id", row["run_id"]) <= self._last_run:
            raise InvalidInput("runs must come in the order of their ids, each once")
        self._last_run = row["run_id"]
        self.counts.runs += 1
        self._add(self.store.tables.runs, row)

    def _checkpoint(self, values: Any, metadata: Any) -> None:
        tables = self.store.tables
        row = row_of(tables.checkpoints, values, self.thread_key)
        if row["seq"] <= self._last_checkpoint or row["seq"] > self.last_seq:
            raise InvalidInput("checkpoints must come in the order of their seq, each once, up to the last_seq")
        self._last_checkpoint = row["seq"]
        check_namespace(row)
        check_ids(row, "parent_checkpoint_id", "run_id")
        key = (row["namespace"], check_id("checkpoint_id", row["checkpoint_id"]))
        if key in self._ids or row["parent_checkpoint_id"] == row["checkpoint_id"]:
            raise InvalidInput("its id is there already, or it is its own parent")
        self._ids.add(key)
        self._seqs.add(row["seq"])
        CheckpointSource(row["source"])
        if row["next_nodes"] is not None and not _is_strings(json.loads(row["next_nodes"])):
            raise InvalidInput("next_nodes must be the JSON text of a list of strings")
        if row["has_interrupts"] != (row["interrupts"] is not None):
            raise InvalidInput("has_interrupts contradicts its interrupts")
        self._add(tables.checkpoints, {**row, "seq": self.used + row["seq"]})
        self._describe(row, metadata)
        self._elements.claim(readable(self._codec, SimpleNamespace(**row)))
        self.counts.checkpoints += 1

    def _describe(self, row: dict[str, Any], metadata: Any) -> None:
        stored = row["metadata_form"] == METADATA_STORED
        if not 0 <= row["metadata_form"] <= METADATA_SOURCE_AND_STEP or stored != isinstance(metadata, str):
            raise InvalidInput("its metadata does not fit to its metadata_form")
        if stored:
            terms = metadata_terms(json.loads(metadata))
            values = {"thread_key": self.thread_key, "seq": self.used + row["seq"], "terms": terms, "value": metadata}
            self._add(self.store.tables.checkpoint_metadata, values)

    def _evidence(self, values: Any) -> None:
        row = row_of(self.store.tables.resume_evidence, values, self.thread_key)
        check_counts(row)
        if row["seq"] <= self._last_evidence or row["seq"] not in self._seqs:
            raise InvalidInput("evidence must come in the order of its seq, each once, of checkpoints that have come")
        self._last_evidence = row["seq"]
        AgentExecutionNode(row["node"])
        RunStatus(row["status"])
        if row["details"] is not None and not isinstance(self._codec.decode(row["details"]), dict):
            raise InvalidInput("details must be a mapping")
        self.counts.evidence += 1
        self._add(self.store.tables.resume_evidence, {**row, "seq": self.used + row["seq"]})

    def _write(self, values: Any) -> None:
        row = row_of(self.store.tables.pending_writes, values, self.thread_key)
        check_namespace(row)
        check_id("checkpoint_id", row["checkpoint_id"])
        for name in ("task_id", "node", "channel"):
            check_label(name, row[name])
        read_int("arrival", row["arrival"])
        place: WritePlace = (row["namespace"], row["checkpoint_id"], row["task_id"], row["idx"])
        if self._last_write is not None and place <= self._last_write:
            raise InvalidInput("writes must come in the order of their keys, each once")
        self._last_write = place
        self._codec.decode(row["payload"])
        self.counts.writes += 1
        self._add(self.store.tables.pending_writes, row)

    def _end(self, values: Any, digest: str) -> None:
        if values != self.counts.closing(digest):
            raise InvalidInput("what came above is not what was exported: the counts or the digest do not match")
        self._elements.check_all_claimed()
        self.ended = True

    def _add_segments(self, rows: Iterable[tuple[Span, bytes]]) -> None:
        for (log, start, end), payload in rows:
            row = {"thread_key": self.thread_key, "log": log, "start": start, "count": end - start, "payload": payload}
            self._add(self.store.tables.segments, row)

    def _add(self, table: Table, row: dict[str, Any]) -> None:
        self._pending.setdefault(table.name, []).append(row)
        self._pending_rows += 1
        self._pending_bytes += sum(len(value) for value in row.values() if isinstance(value, bytes | str))


def _is_strings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)
