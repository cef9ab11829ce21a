"""PostgreSQL: row locks, and the put that is one statement where the thread's version is the remembered one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    Connection,
    LargeBinary,
    Select,
    SmallInteger,
    Text,
    any_,
    bindparam,
    func,
    select,
    text,
    type_coerce,
)
from sqlalchemy.exc import IntegrityError
from sqlalchemy.sql.selectable import TextualSelect

from clew.dialects.contract import FastPut, brought_forward
from clew.structure import Span
from clew.tables import Moment, Tables

__all__ = ["POSTGRES"]

_NUMBERS = ARRAY(BigInteger)


class _Postgres:
    name = "postgresql"
    puts_alone = True
    has_schemas = True

    def now(self) -> ColumnElement[datetime]:
        return type_coerce(func.clock_timestamp(), Moment)

    def later(self, left: ColumnElement[Any], right: ColumnElement[Any]) -> ColumnElement[Any]:
        return type_coerce(func.greatest(left, right), left.type)

    def insert(self, table: Any) -> Any:
        from sqlalchemy.dialects.postgresql import insert

        return insert(table)

    def among(self, column: Column[Any] | ColumnElement[Any], name: str) -> ColumnElement[bool]:
        return column == any_(bindparam(name, type_=ARRAY(column.type)))

    def values(self, values: Sequence[Any]) -> Any:
        return list(values)

    def contains(self, column: ColumnElement[Any], part: ColumnElement[Any]) -> ColumnElement[bool]:
        return func.position(part.op("IN")(column)) > 0

    def size(self, column: ColumnElement[Any]) -> ColumnElement[int]:
        return func.octet_length(column)

    def segments(self, tables: Tables) -> Select[Any]:
        return _segments(tables)

    def spans(self, spans: Sequence[Span]) -> dict[str, Any]:
        return {
            "logs": [span.log for span in spans],
            "lows": [span.start for span in spans],
            "highs": [span.end for span in spans],
        }

    def share_lock(self, statement: Select[Any]) -> Select[Any]:
        return statement.with_for_update(key_share=True, read=True)

    def delete_lock(self, statement: Select[Any], *, skip_locked: bool = False) -> Select[Any]:
        return statement.with_for_update(skip_locked=skip_locked)

    def put(self, connection: Connection, tables: Tables, values: Mapping[str, Any]) -> FastPut | None:
        statement = _put(
            tables,
            bool(values["merged_logs"]),
            values["metadata_value"] is not None,
            bool(values["write_task_ids"]),
            "evidence_node" in values,
        )
        try:
            row = connection.execute(statement, values).one_or_none()
        except IntegrityError:  # the id is there already, with equal contents or not: for the locked way to tell
            return None
        return None if row is None else FastPut(row.last_seq, row.activity)


POSTGRES = _Postgres()


@cache
def _segments(tables: Tables) -> Select[Any]:
    row, first = tables.segments, tables.segments.alias("first")
    asked = (
        func.unnest(
            bindparam("logs", type_=_NUMBERS), bindparam("lows", type_=_NUMBERS), bindparam("highs", type_=_NUMBERS)
        )
        .table_valued("log", "low", "high", name="asked")
        .render_derived()
    )
    begins = (
        select(func.max(first.c.start))
        .where(first.c.thread_key == bindparam("thread_key"), first.c.log == asked.c.log, first.c.start <= asked.c.low)
        .scalar_subquery()
    )
    return select(row.c.log, row.c.start, row.c.count, row.c.payload).select_from(
        asked.join(
            row,
            (row.c.thread_key == bindparam("thread_key"))
            & (row.c.log == asked.c.log)
            & (row.c.start < asked.c.high)
            & (row.c.start >= begins),
        )
    )


@cache
def _put(tables: Tables, merging: bool, described: bool, writing: bool, bounding: bool) -> TextualSelect:
    """Everything selects from what the first part returns: no row there, and nothing is written at all.

    Whether the lease allows it is asked once more behind the lock: the clock in the first condition may be as old as
    the wait for the row. Where it does not, only a version and a sequence number are used up.
    """
    versions, segments = tables.versions.fullname, tables.segments.fullname
    now = "clock_timestamp()"
    live = f"(lease_until IS NOT NULL AND lease_until > {now})"
    allowed = f"""CASE
                WHEN CAST(:token AS BIGINT) IS NULL THEN :advisory OR NOT {live}
                ELSE lease_token = :token AND {live} END"""
    columns = [column for column in tables.checkpoints.columns if column.name not in _GIVEN]
    names = ", ".join(column.name for column in columns)
    values = ", ".join(f"CAST(:{column.name} AS {_type(column)})" for column in columns)
    parts = [
        f"""locked AS (
            UPDATE {versions}
            SET version = version + 1, last_seq = last_seq + 1, activity = greatest(activity, {now})
            WHERE thread_key = :thread_key AND version = :version AND {allowed}
            RETURNING thread_key, last_seq, activity, {allowed} AS allowed)""",
        "v AS (SELECT thread_key, last_seq, activity FROM locked WHERE allowed)",
        f"""c AS (
            INSERT INTO {tables.checkpoints.fullname} (thread_key, seq, created_at, {names})
            SELECT thread_key, last_seq, activity, {values} FROM v)""",
        f"""s AS (
            INSERT INTO {segments} (thread_key, log, start, count, payload)
            SELECT thread_key, u.* FROM v, unnest(CAST(:logs AS BIGINT[]), CAST(:starts AS BIGINT[]),
                CAST(:counts AS BIGINT[]), CAST(:payloads AS BYTEA[])) AS u)""",
    ]
    if merging:
        parts += [
            f"""u AS (
            UPDATE {segments} AS s SET count = m.count, payload = m.payload
            FROM v, unnest(CAST(:merged_logs AS BIGINT[]), CAST(:merged_starts AS BIGINT[]),
                CAST(:merged_counts AS BIGINT[]), CAST(:merged_payloads AS BYTEA[])) AS m(log, start, count, payload)
            WHERE s.thread_key = v.thread_key AND s.log = m.log AND s.start = m.start)""",
            f"""d AS (
            DELETE FROM {segments} AS s
            USING v, unnest(CAST(:absorbed_logs AS BIGINT[]), CAST(:absorbed_starts AS BIGINT[])) AS m(log, start)
            WHERE s.thread_key = v.thread_key AND s.log = m.log AND s.start = m.start)""",
        ]
    if described:
        parts.append(f"""m AS (
            INSERT INTO {tables.checkpoint_metadata.fullname} (thread_key, seq, terms, value)
            SELECT thread_key, last_seq, CAST(:metadata_terms AS BYTEA), CAST(:metadata_value AS TEXT) FROM v)""")
    if writing:
        writes = tables.pending_writes.fullname
        parts.append(f"""w AS (
            INSERT INTO {writes} AS w (thread_key, namespace, checkpoint_id, task_id, idx, arrival, created_at, carried,
                node, channel, payload)
            SELECT thread_key, :namespace, :checkpoint_id, u.task_id, u.idx,
                u.place + (SELECT coalesce(max(arrival), 0) FROM {writes} WHERE thread_key = :thread_key
                    AND namespace = :namespace AND checkpoint_id = :checkpoint_id),
                activity, TRUE, u.node, u.channel, u.payload
            FROM v, unnest(CAST(:write_task_ids AS TEXT[]), CAST(:write_idxs AS BIGINT[]),
                CAST(:write_places AS BIGINT[]), CAST(:write_nodes AS TEXT[]), CAST(:write_channels AS TEXT[]),
                CAST(:write_payloads AS BYTEA[])) AS u(task_id, idx, place, node, channel, payload)
            ON CONFLICT (thread_key, namespace, checkpoint_id, task_id, idx) DO UPDATE SET carried = TRUE,
                node = CASE WHEN excluded.idx < 0 THEN excluded.node ELSE w.node END,
                channel = CASE WHEN excluded.idx < 0 THEN excluded.channel ELSE w.channel END,
                payload = CASE WHEN excluded.idx < 0 THEN excluded.payload ELSE w.payload END)""")
    if bounding:
        given = [column for column in tables.resume_evidence.columns if column.name not in _GIVEN]
        evidence = ", ".join(column.name for column in given)
        parts += [
            f"""e AS (
            INSERT INTO {tables.resume_evidence.fullname} (thread_key, seq, {evidence})
            SELECT thread_key, last_seq, {", ".join(_cast(column, "evidence_") for column in given)} FROM v)""",
            f"""r AS (
            UPDATE {tables.runs.fullname} AS r
            SET {", ".join(f"{column.name} = {_cast(column, 'run_')}" for column in brought_forward(tables))},
                suspend_requested_at = NULL, updated_at = v.activity,
                finished_at = CASE WHEN CAST(:run_finished AS BOOLEAN) THEN v.activity END
            FROM v WHERE r.thread_key = v.thread_key AND r.run_id = :run_id)""",
        ]
    statement = text(f"WITH {', '.join(parts)} SELECT last_seq, activity FROM v")
    statement = statement.bindparams(
        bindparam("thread_key", type_=BigInteger),
        bindparam("version", type_=BigInteger),
        bindparam("advisory", type_=Boolean),
    )
    return statement.columns(last_seq=BigInteger, activity=Moment)


_GIVEN = frozenset({"thread_key", "seq", "created_at"})


def _cast(column: Column[Any], prefix: str) -> str:
    return f"CAST(:{prefix}{column.name} AS {_type(column)})"


def _type(column: Column[Any]) -> str:
    for kind, name in _TYPES.items():
        if isinstance(column.type, kind):
            return name
    raise TypeError(f"no Postgres type is known for {column.name}")


_TYPES: dict[type[Any], str] = {
    SmallInteger: "SMALLINT",
    BigInteger: "BIGINT",
    Boolean: "BOOLEAN",
    Text: "TEXT",
    LargeBinary: "BYTEA",
}
