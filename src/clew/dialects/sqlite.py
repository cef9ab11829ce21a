"""SQLite: a write transaction holds the whole file, so a lock is free and there is no one-statement put."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Integer,
    Select,
    bindparam,
    cast,
    func,
    literal_column,
    select,
    type_coerce,
)
from sqlalchemy.dialects.sqlite import insert

from clew.dialects.contract import FastPut
from clew.structure import Span
from clew.tables import Moment, Tables

__all__ = ["SQLITE"]


class _Sqlite:
    name = "sqlite"
    puts_in_one_statement = False

    def now(self) -> ColumnElement[datetime]:
        # unixepoch('subsec') would need SQLite 3.42; julianday is exact to about 40 µs
        return literal_column("CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)", Moment)

    def later(self, left: ColumnElement[Any], right: ColumnElement[Any]) -> ColumnElement[Any]:
        return type_coerce(func.max(left, right), left.type)

    def insert(self, table: Any) -> Any:
        return insert(table)

    def among(self, column: Column[Any] | ColumnElement[Any], name: str) -> ColumnElement[bool]:
        return column.in_(select(func.json_each(bindparam(name)).table_valued("value").c.value))

    def values(self, values: Sequence[Any]) -> Any:
        return json.dumps(list(values))

    def contains(self, column: ColumnElement[Any], part: ColumnElement[Any]) -> ColumnElement[bool]:
        return func.instr(column, part) > 0

    def size(self, column: ColumnElement[Any]) -> ColumnElement[int]:
        return func.length(column)

    def segments(self, tables: Tables) -> Select[Any]:
        return _segments(tables)

    def spans(self, spans: Sequence[Span]) -> dict[str, Any]:
        return {"spans": json.dumps(spans)}

    def share_lock(self, statement: Select[Any]) -> Select[Any]:
        return statement

    def delete_lock(self, statement: Select[Any], *, skip_locked: bool = False) -> Select[Any]:
        return statement

    def put(self, connection: Connection, tables: Tables, values: Mapping[str, Any]) -> FastPut | None:
        raise NotImplementedError("SQLite puts the locked way; see puts_in_one_statement")


SQLITE = _Sqlite()


@cache
def _segments(tables: Tables) -> Select[Any]:
    row, first = tables.segments, tables.segments.alias("first")
    asked = func.json_each(bindparam("spans")).table_valued("value", name="asked")
    log, low, high = (cast(func.json_extract(asked.c.value, f"$[{part}]"), Integer) for part in range(3))
    begins = (
        select(func.max(first.c.start))
        .where(first.c.thread_key == bindparam("thread_key"), first.c.log == log, first.c.start <= low)
        .scalar_subquery()
    )
    return select(row.c.log, row.c.start, row.c.count, row.c.payload).select_from(
        asked.join(
            row,
            (row.c.thread_key == bindparam("thread_key"))
            & (row.c.log == log)
            & (row.c.start < high)
            & (row.c.start >= begins),
        )
    )
