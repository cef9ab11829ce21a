"""SQLite: a write transaction holds the whole file, and what a statement costs is SQLAlchemy's part of it.

So the put goes to the driver: 12 µs for each of its statements, against 45 to 70 through SQLAlchemy's constructs.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any, NamedTuple

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

from clew.dialects.contract import FastPut, brought_forward
from clew.structure import Span
from clew.tables import EPOCH, MICROSECOND, Moment, Tables

__all__ = ["SQLITE"]

# unixepoch('subsec') would need SQLite 3.42; julianday is exact to about 40 µs
_NOW = "CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)"


class _Sqlite:
    name = "sqlite"
    puts_alone = False
    has_schemas = False

    def now(self) -> ColumnElement[datetime]:
        return literal_column(_NOW, Moment)

    def later(self, left: ColumnElement[Any], right: ColumnElement[Any]) -> ColumnElement[Any]:
        return type_coerce(func.max(left, right), left.type)

    def insert(self, table: Any) -> Any:
        from sqlalchemy.dialects.sqlite import insert

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
        sql = _put(tables)
        cursor: Any = connection.connection.cursor()
        try:
            cursor.execute(sql.lock, values)
            row = cursor.fetchone()
            if row is None:
                return None
            placed = {**values, "seq": row[0], "created_at": row[1]}
            try:
                cursor.execute(sql.insert, placed)
            except sqlite3.IntegrityError:  # the id is there already, with equal contents or not
                cursor.execute(sql.unlock, values)
                return None
            self._append(cursor, sql, placed)
            return FastPut(row[0], EPOCH + row[1] * MICROSECOND)
        finally:
            cursor.close()

    def _append(self, cursor: Any, sql: _Put, values: Mapping[str, Any]) -> None:
        key = values["thread_key"]
        if values["merged_logs"]:
            merged = ("merged_counts", "merged_payloads", "merged_logs", "merged_starts")
            cursor.executemany(
                sql.grow, [(count, payload, key, log, start) for count, payload, log, start in _rows(values, merged)]
            )
            absorbed = _rows(values, ("absorbed_logs", "absorbed_starts"))
            cursor.executemany(sql.drop, [(key, log, start) for log, start in absorbed])
        added = _rows(values, ("logs", "starts", "counts", "payloads"))
        cursor.executemany(sql.append, [(key, *row) for row in added])
        if values["metadata_value"] is not None:
            cursor.execute(sql.describe, values)
        if values["write_task_ids"]:
            ledger = (key, values["namespace"], values["checkpoint_id"])
            (last,) = cursor.execute(sql.last_arrival, ledger).fetchone()
            names = ("task_ids", "idxs", "places", "nodes", "channels", "payloads")
            cursor.executemany(
                sql.write,
                [
                    (*ledger, task, idx, last + place, values["created_at"], node, channel, payload)
                    for task, idx, place, node, channel, payload in _rows(values, [f"write_{name}" for name in names])
                ],
            )
        if "evidence_node" in values:
            cursor.execute(sql.witness, values)
            cursor.execute(sql.bring_forward, values)


SQLITE = _Sqlite()


class _Put(NamedTuple):
    lock: str
    unlock: str
    insert: str
    append: str
    grow: str
    drop: str
    describe: str
    last_arrival: str
    write: str
    witness: str
    bring_forward: str


@cache
def _put(tables: Tables) -> _Put:
    live = f"(lease_until IS NOT NULL AND lease_until > {_NOW})"
    names = [column.name for column in tables.checkpoints.columns]
    evidence = [column.name for column in tables.resume_evidence.columns if column.name not in ("thread_key", "seq")]
    runs = [column.name for column in brought_forward(tables)]
    replaced = ", ".join(
        f"{name} = CASE WHEN excluded.idx < 0 THEN excluded.{name} ELSE {name} END"
        for name in ("node", "channel", "payload")
    )
    return _Put(
        lock=f"""UPDATE clew_thread_versions
            SET version = version + 1, last_seq = last_seq + 1, activity = max(activity, {_NOW})
            WHERE thread_key = :thread_key AND version = :version
                AND CASE WHEN :token IS NULL THEN :advisory OR NOT {live} ELSE lease_token = :token AND {live} END
            RETURNING last_seq, activity""",
        unlock="""UPDATE clew_thread_versions SET version = version - 1, last_seq = last_seq - 1
            WHERE thread_key = :thread_key""",
        insert=f"""INSERT INTO clew_checkpoints ({", ".join(names)})
            VALUES ({", ".join(f":{name}" for name in names)})""",
        append="INSERT INTO clew_segments (thread_key, log, start, count, payload) VALUES (?, ?, ?, ?, ?)",
        grow="UPDATE clew_segments SET count = ?, payload = ? WHERE thread_key = ? AND log = ? AND start = ?",
        drop="DELETE FROM clew_segments WHERE thread_key = ? AND log = ? AND start = ?",
        describe="""INSERT INTO clew_checkpoint_metadata (thread_key, seq, terms, value)
            VALUES (:thread_key, :seq, :metadata_terms, :metadata_value)""",
        last_arrival="""SELECT coalesce(max(arrival), 0) FROM clew_pending_writes
            WHERE thread_key = ? AND namespace = ? AND checkpoint_id = ?""",
        write=f"""INSERT INTO clew_pending_writes (thread_key, namespace, checkpoint_id, task_id, idx, arrival,
                created_at, carried, node, channel, payload) VALUES (?, ?, ?, ?, ?, ?, ?, TRUE, ?, ?, ?)
            ON CONFLICT (thread_key, namespace, checkpoint_id, task_id, idx) DO UPDATE
            SET carried = TRUE, {replaced}""",
        witness=f"""INSERT INTO clew_resume_evidence (thread_key, seq, {", ".join(evidence)})
            VALUES (:thread_key, :seq, {", ".join(f":evidence_{name}" for name in evidence)})""",
        bring_forward=f"""UPDATE clew_runs SET {", ".join(f"{name} = :run_{name}" for name in runs)},
                suspend_requested_at = NULL, updated_at = :created_at,
                finished_at = CASE WHEN :run_finished THEN :created_at END
            WHERE thread_key = :thread_key AND run_id = :run_id""",
    )


def _rows(values: Mapping[str, Any], names: Sequence[str]) -> list[tuple[Any, ...]]:
    return list(zip(*(values[name] for name in names), strict=True))


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
