"""Compacting a thread's segments: rows that are mostly dead shed what is, small neighbours become one row.

Positions keep their numbers, so that no manifest changes. A row holds neighbouring positions only: what is dead between
two live elements parts their rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

from sqlalchemy import Connection, Select, bindparam, func, select

from clew.dialects import Dialect
from clew.records import CompactReport
from clew.repository.keys import check_thread_id
from clew.repository.locking import check_fence, lock_thread, no_such_thread, undo_lock
from clew.repository.scanning import live_spans, segments_in_order
from clew.repository.segments import drop_rows
from clew.repository.store import NO_FENCE, Fence, Store
from clew.structure import SpanSet, decode_payload, encode_payload
from clew.structure.segments import ROW_BYTES
from clew.tables import Tables

__all__ = ["compact"]

_PENDING_BYTES: Final = 4 * 1024 * 1024


def compact(store: Store, connection: Connection, thread_id: str, fence: Fence = NO_FENCE) -> CompactReport:
    """Rewrite the thread's segment rows; what they took before and after. No checkpoint changes.

    Every payload of the thread is read, a few at a time, while the thread is locked. Where nothing is to be done,
    nothing is written.

    Raises:
        NotFound: there is no such thread.
        StaleFence: see there.
        CorruptData: a row cannot be read; nothing is changed then.
    """
    locked = lock_thread(store, connection, check_thread_id(thread_id), puts=0, active=False)
    if locked is None:
        raise no_such_thread(thread_id)
    check_fence(store, locked, fence, "compact")
    key = locked.thread_key
    before = _totals(store, connection, key)
    live = live_spans(store, connection, key)
    changes = _Changes(store, connection, key)
    logs: dict[int, _Ends] = {}
    packing = _Packing()
    for row in segments_in_order(store, connection, key):
        # What was written for a row that was cut up may be read again behind it: hence the greater of the ends.
        ends = logs.setdefault(row.log, _Ends())
        ends.tip = max(ends.tip, row.start + row.count)
        if not row.count:
            ends.marked = True
            continue
        pieces = _pieces(row, live)
        if not pieces:
            changes.drop(row.log, row.start)
        for piece in pieces:
            ends.kept = max(ends.kept, piece.end)
            changes.take(packing.add(piece))
    changes.take(packing.rest())
    for log, ends in logs.items():
        if ends.marked and not ends.kept:
            changes.drop(log, ends.tip)
        elif ends.kept != ends.tip and ends.kept and not ends.marked:
            changes.mark(log, ends.tip)
    changes.write()
    if not changes.made:
        undo_lock(store, connection, locked, puts=0)
    after = _totals(store, connection, key)
    return CompactReport(
        thread_id=thread_id, rows_before=before[0], rows_after=after[0], bytes_before=before[1], bytes_after=after[1]
    )


@dataclass(slots=True)
class _Ends:
    """Of one log: the first position never used, the end of what is kept, and whether the tip has its mark."""

    tip: int = 0
    kept: int = 0
    marked: bool = False


@dataclass(slots=True)
class _Piece:
    """Neighbouring elements on their way into a row; ``sources`` are the starts of the rows that they stood in."""

    log: int
    start: int
    elements: list[bytes]
    size: int
    sources: list[int]
    whole: bool
    """Whether it is a row just as it is stored."""

    @property
    def end(self) -> int:
        return self.start + len(self.elements)

    def join(self, other: _Piece) -> None:
        self.elements += other.elements
        self.size += other.size
        self.sources += other.sources
        self.whole = False


@dataclass(slots=True)
class _Packing:
    """Joins pieces that follow each other, as long as they fit into one row."""

    open: _Piece | None = None

    def add(self, piece: _Piece) -> Iterator[_Piece]:
        """Whatever is finished now that ``piece`` has come."""
        before = self.open
        if (
            before is not None
            and (before.log, before.end) == (piece.log, piece.start)
            and before.size + piece.size <= ROW_BYTES
        ):
            before.join(piece)
            return
        self.open = piece
        if before is not None:
            yield before

    def rest(self) -> Iterator[_Piece]:
        """What is left at the end."""
        if self.open is not None:
            yield self.open
        self.open = None


@dataclass(slots=True)
class _Changes:
    """Rows to be deleted and rows to be written, the former always first: a new row may start where an old one did."""

    store: Store
    connection: Connection
    thread_key: int
    made: bool = False
    _size: int = 0
    _dropped: dict[tuple[int, int], None] = field(default_factory=dict)
    _added: list[dict[str, Any]] = field(default_factory=list)

    def take(self, pieces: Iterator[_Piece]) -> None:
        for piece in pieces:
            if piece.whole:
                continue
            for start in piece.sources:
                self.drop(piece.log, start)
            payload = encode_payload(piece.elements)
            self._add(piece.log, piece.start, len(piece.elements), payload)
            self._size += len(payload)
            if self._size > _PENDING_BYTES:
                self.write()

    def drop(self, log: int, start: int) -> None:
        self._dropped[log, start] = None

    def mark(self, log: int, tip: int) -> None:
        """Remember the tip of a log that has lost its last elements: a position is never used twice."""
        self.drop(log, tip)
        self._add(log, tip, 0, b"")

    def write(self) -> None:
        drop_rows(self.store, self.connection, self.thread_key, self._dropped)
        if self._added:
            self.connection.execute(self.store.tables.segments.insert(), self._added)
        self.made = self.made or bool(self._dropped or self._added)
        self._dropped, self._added, self._size = {}, [], 0

    def _add(self, log: int, start: int, count: int, payload: bytes) -> None:
        row = {"thread_key": self.thread_key, "log": log, "start": start, "count": count, "payload": payload}
        self._added.append(row)


def _pieces(row: Any, live: SpanSet) -> list[_Piece]:
    """The row as it is, or its live parts where more than half of it, by elements or by bytes, is dead."""
    parts = live.within(row.log, row.start, row.start + row.count)
    if not parts:
        return []
    segment = decode_payload(row.log, row.start, row.count, row.payload)
    count = sum(part.end - part.start for part in parts)
    size = sum(len(segment.chunk(part.start, part.end)) for part in parts)
    total = sum(segment.lengths)
    if 2 * count >= row.count and 2 * size >= total:
        return [_Piece(row.log, row.start, list(segment.elements), total, [row.start], True)]
    pieces: list[_Piece] = []
    for part in parts:
        elements = list(segment.elements[part.start - segment.start : part.end - segment.start])
        # The row is dropped with its first part; by the next one's turn, another row may stand where it began.
        sources = [] if pieces else [row.start]
        pieces.append(_Piece(row.log, part.start, elements, sum(map(len, elements)), sources, False))
    return pieces


def _totals(store: Store, connection: Connection, thread_key: int) -> tuple[int, int]:
    row = connection.execute(_weighed(store.tables, store.dialect), {"key": thread_key}).one()
    return row.rows, int(row.bytes)


@cache
def _weighed(tables: Tables, dialect: Dialect) -> Select[Any]:
    s = tables.segments.c
    total = func.coalesce(func.sum(dialect.size(s.payload)), 0)
    columns: list[Any] = [func.count().label("rows"), total.label("bytes")]
    return select(*columns).where(s.thread_key == bindparam("key"))
