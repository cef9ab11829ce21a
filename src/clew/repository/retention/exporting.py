"""Exporting a thread: its lines, a batch at a time, so that nothing is held while the caller writes them away.

The checkpoints that were there at the beginning are exported, each as it is. Puts may go on; what they do to the rows
moves no element. A deletion is noticed at the end.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import Connection, func, select

from clew.errors import Contention
from clew.repository.keys import check_thread_id
from clew.repository.locking import find_thread, no_such_thread
from clew.repository.retention.exchange import FORMAT, VERSION, Counts, dump, values_of
from clew.repository.scanning import WritePlace, live_spans, place_of, writes_behind
from clew.repository.store import Store
from clew.structure import Span, chunked, decode_payload
from clew.tables import EPOCH, MICROSECOND

__all__ = ["Export", "begin_export", "element_lines", "evidence_lines", "finish_export", "row_lines", "write_lines"]

_BATCH: Final = 200
_ASKED: Final = 64
_ROWS: Final = 16


@dataclass(slots=True)
class Export:
    """How far an export has come. A batch of lines moves it on; one that is repeated starts from the same place."""

    thread_key: int
    thread_id: str
    last_seq: int
    checkpoints: int
    elements: int
    remaining: list[Span]
    first_lines: list[bytes]
    counts: Counts = field(default_factory=Counts)
    seq: int = 0
    evidence_seq: int = 0
    place: WritePlace = ("", "", "", 0)

    @property
    def total(self) -> int:
        """How many checkpoints and elements there are."""
        return self.checkpoints + self.elements


def begin_export(store: Store, connection: Connection, thread_id: str) -> Export:
    """What there is to export, with the header and the runs.

    Raises:
        NotFound: there is no such thread, or it never had a checkpoint.
        CorruptData: the spans of a checkpoint cannot be read.
    """
    tables = store.tables
    t, v, c, r = tables.threads.c, tables.versions.c, tables.checkpoints.c, tables.runs.c
    key = find_thread(store, connection, check_thread_id(thread_id))
    runs = connection.execute(select(tables.runs).where(r.thread_key == key).order_by(r.run_id)).all()
    row = connection.execute(
        select(tables.threads, v.last_seq, v.activity)
        .select_from(tables.threads.join(tables.versions, t.thread_key == v.thread_key))
        .where(t.thread_key == key)
    ).one_or_none()
    if key is None or row is None or row.last_seq == 0:
        raise no_such_thread(thread_id)
    # Counted before the spans are read, each statement having its own moment: what is deleted in between is missed at
    # the end. The other way round its elements would be exported and nobody name them.
    checkpoints = connection.execute(
        select(func.count()).where(c.thread_key == key, c.seq <= row.last_seq)
    ).scalar_one()
    live = list(live_spans(store, connection, key, upto=row.last_seq))
    elements = sum(span.end - span.start for span in live)
    header = {
        "format": FORMAT,
        "version": VERSION,
        "thread": values_of(tables.threads, row),
        "last_seq": row.last_seq,
        "activity": (row.activity - EPOCH) // MICROSECOND,
        "checkpoints": checkpoints,
        "elements": elements,
    }
    lines = [dump(header), *(dump({"run": values_of(tables.runs, run)}) for run in runs)]
    return Export(key, thread_id, row.last_seq, checkpoints, elements, live, lines, Counts(runs=len(runs)))


def element_lines(store: Store, connection: Connection, export: Export) -> tuple[list[bytes], list[Span], int]:
    """(lines of the next elements, what remains behind them, how many they are).

    Asked for by position, never by row: a put may have merged rows since the last batch.

    Raises:
        Contention: an element is not there any more: its checkpoint was deleted.
        CorruptData: a row cannot be read.
    """
    asked = export.remaining[:_ASKED]
    statement = store.dialect.segments(store.tables)
    log, start = statement.selected_columns["log"], statement.selected_columns["start"]
    rows: Sequence[Any] = connection.execute(
        statement.order_by(log, start).limit(_ROWS), {"thread_key": export.thread_key, **store.dialect.spans(asked)}
    ).all()
    segments = {(row.log, row.start): row for row in rows}
    lines: list[bytes] = []
    remaining, count = list(export.remaining), 0
    for row in segments.values():
        segment = decode_payload(row.log, row.start, row.count, row.payload)
        while remaining and remaining[0].log == row.log and remaining[0].start < row.start + row.count:
            span = remaining[0]
            if span.start < row.start:
                raise _changed(export)
            end = min(span.end, row.start + row.count)
            elements = segment.elements[span.start - row.start : end - row.start]
            lines += _lines(row.log, span.start, elements)
            count += len(elements)
            remaining[:1] = [Span(span.log, end, span.end)] if end < span.end else []
    if not count:
        raise _changed(export)
    return lines, remaining, count


def row_lines(store: Store, connection: Connection, export: Export) -> tuple[list[bytes], int]:
    """(lines of the next checkpoints, the last one's sequence number); none at the end."""
    tables = store.tables
    c, m = tables.checkpoints.c, tables.checkpoint_metadata.c
    rows = connection.execute(
        select(tables.checkpoints, m.value.label("metadata_value"))
        .select_from(
            tables.checkpoints.outerjoin(tables.checkpoint_metadata, (m.thread_key == c.thread_key) & (m.seq == c.seq))
        )
        .where(c.thread_key == export.thread_key, c.seq > export.seq, c.seq <= export.last_seq)
        .order_by(c.seq)
        .limit(_BATCH)
    ).all()
    lines = [dump({"checkpoint": values_of(tables.checkpoints, row), "metadata": row.metadata_value}) for row in rows]
    return lines, rows[-1].seq if rows else export.seq


def evidence_lines(store: Store, connection: Connection, export: Export) -> tuple[list[bytes], int]:
    """(lines of the next resume evidence, the last one's sequence number); none at the end."""
    table = store.tables.resume_evidence
    rows = connection.execute(
        select(table)
        .where(
            table.c.thread_key == export.thread_key,
            table.c.seq > export.evidence_seq,
            table.c.seq <= export.last_seq,
        )
        .order_by(table.c.seq)
        .limit(_BATCH)
    ).all()
    lines = [dump({"evidence": values_of(table, row)}) for row in rows]
    return lines, rows[-1].seq if rows else export.evidence_seq


def write_lines(store: Store, connection: Connection, export: Export) -> tuple[list[bytes], WritePlace]:
    """(lines of the next pending writes, the last one's place); none at the end."""
    rows = writes_behind(store, connection, export.thread_key, export.place)
    lines = [dump({"write": values_of(store.tables.pending_writes, row)}) for row in rows]
    return lines, place_of(rows[-1]) if rows else export.place


def finish_export(store: Store, connection: Connection, export: Export, digest: str) -> bytes:
    """The last line.

    Raises:
        Contention: a checkpoint was deleted or replaced meanwhile.
    """
    c = store.tables.checkpoints.c
    there = connection.execute(
        select(func.count()).where(c.thread_key == export.thread_key, c.seq <= export.last_seq)
    ).scalar_one()
    counts = export.counts
    if there != export.checkpoints or counts.checkpoints != export.checkpoints or counts.elements != export.elements:
        raise _changed(export)
    return dump({"end": counts.closing(digest)})


def _lines(log: int, start: int, elements: Sequence[bytes]) -> list[bytes]:
    lines: list[bytes] = []
    for chunk in chunked(elements):
        lines.append(dump({"elements": [log, start, [b64encode(element).decode() for element in chunk]]}))
        start += len(chunk)
    return lines


def _changed(export: Export) -> Contention:
    return Contention(
        f"checkpoints of thread {export.thread_id!r} were deleted while it was exported; export it again "
        "(if that does not help, elements are missing: verify the thread)"
    )
