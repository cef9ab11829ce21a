"""Reading and writing segment rows, and merging the small ones. What the elements mean is not known here."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from sqlalchemy import Connection, Delete, Select, Update, bindparam, delete, select, update

from clew.dialects import Dialect
from clew.repository.memory import Logs
from clew.repository.store import Store
from clew.structure import (
    Append,
    Row,
    Segment,
    Span,
    chunked,
    decode_payload,
    due,
    encode_payload,
)
from clew.tables import Tables

__all__ = [
    "LogChanges",
    "changes_for",
    "drop_rows",
    "encoded",
    "read_layout",
    "read_logs",
    "read_segments",
    "write_changes",
]


@dataclass(frozen=True, slots=True)
class LogChanges:
    """What a put does to the segment rows: rows it adds, rows that absorb their successors, and the result."""

    added: tuple[tuple[int, Row], ...]
    merged: tuple[tuple[int, Row], ...]
    absorbed: tuple[tuple[int, int], ...]
    logs: Logs


def changes_for(logs: Logs, appends: Iterable[Append], kept: Collection[int]) -> LogChanges:
    """The rows that ``appends`` become, and at most one merge among the rows that were there before.

    ``kept`` are the logs that the new manifest names; others are dropped from the remembered result.
    """
    rows = {log: logs.rows[log] for log in kept if log in logs.rows}
    added: list[tuple[int, Row]] = []
    merged: list[tuple[int, Row]] = []
    absorbed: list[tuple[int, int]] = []
    for append in appends:
        known = rows.get(append.log, ())
        unread, known = _split(known)
        group = due(known) if not merged else None
        if group is not None:
            whole = _merge(known[group])
            merged.append((append.log, whole))
            absorbed += [(append.log, row.start) for row in known[group][1:]]
            known = (*known[: group.start], whole, *known[group.stop :])
        known = (*unread, *known)
        start = append.start
        for chunk in chunked(append.elements):
            row = Row(start, len(chunk), sum(map(len, chunk)), tuple(chunk))
            added.append((append.log, row))
            known = (*known, row)
            start = row.end
        rows[append.log] = _tail(known)
    return LogChanges(tuple(added), tuple(merged), tuple(absorbed), Logs(rows))


def write_changes(store: Store, connection: Connection, thread_key: int, changes: LogChanges) -> None:
    """Write what ``changes_for`` decided, in at most three statements."""
    if changes.merged:
        connection.execute(
            _grow(store.tables),
            [
                {"key": thread_key, "in_log": log, "at": row.start, "total": row.count, "bytes": encoded(row)}
                for log, row in changes.merged
            ],
        )
    drop_rows(store, connection, thread_key, changes.absorbed)
    if changes.added:
        connection.execute(
            store.tables.segments.insert(),
            [
                {"thread_key": thread_key, "log": log, "start": row.start, "count": row.count, "payload": encoded(row)}
                for log, row in changes.added
            ],
        )


def drop_rows(store: Store, connection: Connection, thread_key: int, places: Collection[tuple[int, int]]) -> None:
    """Delete the rows at these places, each a log and the row's first position."""
    if places:
        connection.execute(_drop(store.tables), [{"key": thread_key, "in_log": log, "at": at} for log, at in places])


def encoded(row: Row) -> bytes:
    """The payload of a row whose elements are known."""
    return encode_payload(row.elements or ())


def read_layout(
    store: Store, connection: Connection, thread_key: int, logs: Collection[int]
) -> list[tuple[int, int, int]]:
    """(log, start, count) of every row of the logs, in order. A row of no elements marks the tip of its log."""
    values = {"key": thread_key, "logs": store.dialect.values(sorted(logs))}
    return [tuple(row) for row in connection.execute(_layout(store.tables, store.dialect), values).all()]


def read_segments(store: Store, connection: Connection, thread_key: int, spans: Sequence[Span]) -> list[Segment]:
    """The rows that hold any part of ``spans``, each once, in one statement.

    Raises:
        CorruptData: naming the row that cannot be read.
    """
    if not spans:
        return []
    values = {"thread_key": thread_key, **store.dialect.spans(spans)}
    with connection.execute(store.dialect.segments(store.tables), values) as rows:
        found = {(log, start): decode_payload(log, start, count, payload) for log, start, count, payload in rows}
    return list(found.values())


def read_logs(
    store: Store, connection: Connection, thread_key: int, logs: Collection[int], known: Iterable[Segment]
) -> Logs:
    """What there is to remember of ``logs``: every row's place, and the elements of those in ``known``."""
    if not logs:
        return Logs()
    elements = {(segment.log, segment.start): segment for segment in known}
    found: dict[int, list[Row]] = {}
    values = {"key": thread_key, "logs": store.dialect.values(sorted(logs))}
    layout = connection.execute(_sizes(store.tables, store.dialect), values).all()
    for log, start, count, size in layout:
        segment = elements.get((log, start))
        row = Row(start, count, len(segment.body), segment.elements) if segment else Row(start, count, size)
        found.setdefault(log, []).append(row)
    return Logs({log: _tail(rows) for log, rows in found.items()})


def _split(rows: tuple[Row, ...]) -> tuple[tuple[Row, ...], tuple[Row, ...]]:
    """(the rows up to the last one whose elements are not known, those behind it, which can be merged)."""
    for index in range(len(rows) - 1, -1, -1):
        if rows[index].elements is None:
            return rows[: index + 1], rows[index + 1 :]
    return (), rows


def _merge(rows: Sequence[Row]) -> Row:
    elements = tuple(element for row in rows for element in row.elements or ())
    return Row(rows[0].start, len(elements), sum(row.size for row in rows), elements)


def _tail(rows: Sequence[Row]) -> tuple[Row, ...]:
    """The rows from the last full one on, which is all that merging looks at; a full row needs no elements."""
    for index in range(len(rows) - 1, -1, -1):
        if rows[index].full:
            return (replace(rows[index], elements=None), *rows[index + 1 :])
    return tuple(rows)


@cache
def _layout(tables: Tables, dialect: Dialect) -> Select[Any]:
    s = tables.segments.c
    return (
        select(s.log, s.start, s.count)
        .where(s.thread_key == bindparam("key"), dialect.among(s.log, "logs"))
        .order_by(s.log, s.start)
    )


@cache
def _sizes(tables: Tables, dialect: Dialect) -> Select[Any]:
    return _layout(tables, dialect).add_columns(dialect.size(tables.segments.c.payload))


@cache
def _grow(tables: Tables) -> Update:
    s = tables.segments.c
    return (
        update(tables.segments)
        .where(s.thread_key == bindparam("key"), s.log == bindparam("in_log"), s.start == bindparam("at"))
        .values(count=bindparam("total"), payload=bindparam("bytes"))
    )


@cache
def _drop(tables: Tables) -> Delete:
    s = tables.segments.c
    return delete(tables.segments).where(
        s.thread_key == bindparam("key"), s.log == bindparam("in_log"), s.start == bindparam("at")
    )
