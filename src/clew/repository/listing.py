"""Listing a thread's records without their states, page by page. No manifest and no payload is read here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import BigInteger, Connection, Select, and_, bindparam, literal, or_, select
from sqlalchemy.sql.elements import ColumnElement

from clew.errors import InvalidInput
from clew.records import CheckpointMetadata, CheckpointSource, Page
from clew.repository.cursors import decode_cursor, encode_cursor
from clew.repository.finding import LISTED, by_id, metadata_of
from clew.repository.keys import (
    canonical_json,
    check_id,
    check_instant,
    check_limit,
    check_step,
    check_thread_id,
    filter_texts,
    metadata_term,
    namespace_text,
    namespaces_below,
    shown,
)
from clew.repository.locking import find_thread
from clew.repository.request import METADATA_SOURCE_AND_STEP, METADATA_STORED, described_by
from clew.repository.soundness import naming
from clew.repository.store import Store
from clew.tables import Tables

__all__ = ["Filters", "list_checkpoints"]


@dataclass(frozen=True, slots=True)
class Filters:
    """What a listing is narrowed to; None everywhere means everything. All that are given hold at once.

    ``namespace`` is exact, ``under`` is a namespace with everything below it. ``before`` and ``after`` are ids of
    checkpoints (in ``namespace``, else in the root one), by order of commits, themselves excluded; ``created_before``
    and ``created_after`` are instants, excluded too. ``metadata`` names top-level keys and whole values: ``True`` is
    not ``1``, ``1`` is not ``1.0``, and ``None`` matches a stored null only.
    """

    namespace: Iterable[str] | None = None
    under: Iterable[str] | None = None
    run_id: str | None = None
    source: CheckpointSource | str | None = None
    step: int | None = None
    metadata: Mapping[str, Any] | None = None
    before: str | None = None
    after: str | None = None
    created_before: datetime | None = None
    created_after: datetime | None = None


def list_checkpoints(
    store: Store,
    connection: Connection,
    thread_id: str,
    *,
    limit: int = 100,
    cursor: str | None = None,
    newest_first: bool = True,
    filters: Filters = Filters(),
) -> Page[CheckpointMetadata]:
    """At most ``limit`` (1 to 10,000) records in the order of their commits; an unknown thread has none.

    Raises:
        InvalidInput: a limit out of range, a cursor of another thread or order, a naive instant, an unknown source.
    """
    check_limit(limit)
    check_thread_id(thread_id)
    conditions = _conditions(store, filters)
    key = find_thread(store, connection, thread_id)
    position = _read_cursor(cursor, key, newest_first)
    if key is None:
        return Page(items=())
    c = store.tables.checkpoints.c
    for bound, sign in ((filters.before, -1), (filters.after, 1)):
        if bound is not None:
            where = {"key": key, "namespace": namespace_text(filters.namespace or ()), "id": bound}
            seq = connection.execute(by_id(store.tables, "seq"), where).scalar_one_or_none()
            if seq is None:
                return Page(items=())
            conditions.append(c.seq < seq if sign < 0 else c.seq > seq)
    texts = filter_texts(filters.metadata) if filters.metadata else {}
    found: list[CheckpointMetadata] = []
    while True:
        wanted = limit - len(found) + 1
        page = _page(store.tables, newest_first, position is not None, bool(texts))
        if conditions:
            page = page.where(*conditions)
        rows = connection.execute(page, {"key": key, "position": position, "size": wanted}).all()
        for row in rows:
            if len(found) == limit:
                following = encode_cursor("checkpoints", key, position, newest_first)
                return Page.model_construct(items=tuple(found), next_cursor=following)
            position = row.seq
            if not texts or _matches(thread_id, row, texts):
                found.append(metadata_of(thread_id, row))
        if len(rows) < wanted:
            return Page.model_construct(items=tuple(found), next_cursor=None)


def _read_cursor(cursor: str | None, key: int | None, newest_first: bool) -> int | None:
    if cursor is None:
        return None
    of_thread, position, order = decode_cursor(cursor, "checkpoints", int, int, bool)
    if of_thread != key:
        raise InvalidInput("cursor belongs to another thread; start the listing without one")
    if order is not newest_first:
        raise InvalidInput("cursor belongs to a listing in the other order; keep newest_first as it was")
    return int(position)


def _conditions(store: Store, filters: Filters) -> list[ColumnElement[bool]]:
    c, m = store.tables.checkpoints.c, store.tables.checkpoint_metadata.c
    conditions: list[ColumnElement[bool]] = []
    if filters.namespace is not None:
        conditions.append(c.namespace == namespace_text(filters.namespace))
    if filters.under is not None:
        itself, low, high = namespaces_below(filters.under)
        conditions.append(or_(c.namespace == itself, and_(c.namespace >= low, c.namespace < high)))
    if filters.run_id is not None:
        conditions.append(c.run_id == check_id("run_id", filters.run_id))
    if filters.source is not None:
        source = CheckpointSource.parse(filters.source)
        if source is None:
            raise InvalidInput(f"source must be one of {', '.join(CheckpointSource)}, not {shown(filters.source)}")
        conditions.append(c.source == source.value)
    if filters.step is not None:
        conditions.append(c.step == check_step(filters.step))
    for name, instant in (("created_before", filters.created_before), ("created_after", filters.created_after)):
        if instant is not None:
            check_instant(name, instant)
            conditions.append(c.created_at < instant if name == "created_before" else c.created_at > instant)
    if filters.before is not None:
        check_id("before", filters.before)
    if filters.after is not None:
        check_id("after", filters.after)
    if filters.metadata:
        filter_texts(filters.metadata)
        terms = [
            store.dialect.contains(m.terms, literal(metadata_term(key, value)))
            for key, value in filters.metadata.items()
        ]
        stored = and_(c.metadata_form == METADATA_STORED, *terms)
        plain = c.metadata_form == METADATA_SOURCE_AND_STEP
        conditions.append(or_(stored, plain) if filters.metadata.keys() <= {"source", "step"} else stored)
    return conditions


@cache
def _page(tables: Tables, newest_first: bool, continued: bool, with_metadata: bool) -> Select[Any]:
    c, m = tables.checkpoints.c, tables.checkpoint_metadata.c
    statement = select(*(c[name] for name in LISTED))
    if with_metadata:
        statement = statement.add_columns(c.metadata_form, m.value).select_from(
            tables.checkpoints.outerjoin(tables.checkpoint_metadata, (m.thread_key == c.thread_key) & (m.seq == c.seq))
        )
    if continued:
        position = bindparam("position", type_=BigInteger)
        statement = statement.where(c.seq < position if newest_first else c.seq > position)
    return (
        statement.where(c.thread_key == bindparam("key"))
        .order_by(c.seq.desc() if newest_first else c.seq)
        .limit(bindparam("size", type_=BigInteger))
    )


def _matches(thread_id: str, row: Any, texts: Mapping[str, str]) -> bool:
    with naming(thread_id, row.checkpoint_id):
        metadata = described_by(row.metadata_form, row.source, row.step, row.value)
    return isinstance(metadata, dict) and all(
        key in metadata and canonical_json(metadata[key]) == text for key, text in texts.items()
    )
