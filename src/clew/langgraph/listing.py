"""Reading many LangGraph checkpoints at once: pages of a thread, and the writes and states that go with them.

Each statement sees its own moment and no lock is held; what was deleted in between is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.types import TASKS
from sqlalchemy import Connection, Select, bindparam, literal, or_, select

from clew.dialects import Dialect
from clew.errors import CorruptData
from clew.langgraph.checkpoints import tuple_of, with_sends
from clew.records import CheckpointConfig, CheckpointSource, PendingWrite
from clew.repository.keys import metadata_term
from clew.repository.keys import namespace_of as parts_of
from clew.repository.locking import find_thread
from clew.repository.request import METADATA_SOURCE_AND_STEP, described_by
from clew.repository.segments import read_segments
from clew.repository.soundness import naming
from clew.repository.store import Store
from clew.repository.together import form_of, state_of
from clew.repository.writes import write_of
from clew.structure import ElementPool, Node, wanted
from clew.tables import Tables

__all__ = ["PAGE", "Query", "page", "pool_of", "writes_of"]

PAGE: Final = 100


@dataclass(frozen=True, slots=True)
class Query:
    """What a listing is narrowed to. ``namespace`` is the stored text; ``filter`` compares as Python does."""

    namespace: str | None = None
    checkpoint_id: str | None = None
    before: str | None = None
    filter: Mapping[str, Any] | None = None


def page(
    store: Store, connection: Connection, thread_id: str, query: Query, position: int | None, limit: int
) -> tuple[list[CheckpointTuple], int | None]:
    """At most ``limit`` tuples, the newest first, from behind ``position``; and the next position, None at the end.

    The tuples share what their states have in common: reading 100 states of a conversation decodes each message once.
    """
    key = find_thread(store, connection, thread_id)
    if key is None:
        return [], None
    rows, position = _rows(store, connection, key, query, position, limit)
    for _ in range(3):
        try:
            return _tuples(store, connection, thread_id, key, rows), position
        except CorruptData:
            there = set(_forms(store, connection, key, [row.seq for row in rows]))
            if len(there) == len(rows):
                raise
            rows = [row for row in rows if row.seq in there]
    return _tuples(store, connection, thread_id, key, rows), position


def writes_of(
    store: Store, connection: Connection, thread_key: int, ids: Iterable[str], channels: Sequence[str] | None = None
) -> dict[tuple[str, str], list[PendingWrite]]:
    """The writes of these checkpoints by (namespace text, id), of all channels or only some."""
    bound: dict[str, Any] = {"key": thread_key, "ids": store.dialect.values(sorted(set(ids)))}
    if channels is not None:
        bound["channels"] = store.dialect.values(sorted(set(channels)))
    found: dict[tuple[str, str], list[PendingWrite]] = {}
    for row in connection.execute(_writes(store.tables, store.dialect, channels is not None), bound).all():
        found.setdefault((row.namespace, row.checkpoint_id), []).append(write_of(store.codec, row))
    return found


def pool_of(store: Store, connection: Connection, thread_key: int, roots: Iterable[Node]) -> ElementPool:
    """The elements that the forms name, each decoded once."""
    spans = wanted(roots)
    pool = ElementPool(store.codec, spans)
    for segment in read_segments(store, connection, thread_key, spans):
        pool.add(segment)
    return pool


def _rows(
    store: Store, connection: Connection, key: int, query: Query, position: int | None, limit: int
) -> tuple[list[Any], int | None]:
    """At most ``limit`` matching rows without their states, and where the next page goes on."""
    c, tables = store.tables.checkpoints.c, store.tables
    conditions = [c.thread_key == key]
    if query.namespace is not None:
        conditions.append(c.namespace == query.namespace)
    if query.checkpoint_id is not None:
        conditions.append(c.checkpoint_id == query.checkpoint_id)
    if query.before is not None:
        # By order of commits where it is one of this thread's; else by its text, as LangGraph's savers do.
        bound = connection.execute(
            select(c.seq).where(c.thread_key == key, c.checkpoint_id == query.before).order_by(c.seq).limit(1)
        ).scalar_one_or_none()
        conditions.append(c.seq < bound if bound is not None else c.checkpoint_id < query.before)
    wanted_metadata = dict(query.filter or {})
    conditions += _narrowed(store, wanted_metadata)
    found: list[Any] = []
    while True:
        size = max(limit - len(found), PAGE) if wanted_metadata else limit - len(found)
        statement = _listed(tables).where(*conditions)
        if position is not None:
            statement = statement.where(c.seq < position)
        rows = connection.execute(statement.limit(size)).all()
        for row in rows:
            position = row.seq
            if not wanted_metadata or _matches(row, wanted_metadata):
                found.append(row)
                if len(found) == limit:
                    return found, position
        if len(rows) < size:
            return found, None


def _narrowed(store: Store, metadata: Mapping[str, Any]) -> list[Any]:
    """Conditions that hold for every row that matches, and that an index or a short column can tell."""
    c, m = store.tables.checkpoints.c, store.tables.checkpoint_metadata.c
    found: list[Any] = []
    for name, value in metadata.items():
        if name == "source" and isinstance(value, str) and CheckpointSource.parse(value):
            found.append(c.source == value)
        elif name == "run_id" and isinstance(value, str) and value:
            found.append(c.run_id == value)
        elif type(value) is str:
            term = store.dialect.contains(m.terms, literal(metadata_term(name, value)))
            found.append(or_(term, c.metadata_form == METADATA_SOURCE_AND_STEP))
    return found


def _matches(row: Any, wanted_metadata: Mapping[str, Any]) -> bool:
    metadata = _metadata(row)
    if not isinstance(metadata, dict):
        return False
    metadata.setdefault("parents", {})  # an empty one is not stored here
    return all(metadata.get(key) == value for key, value in wanted_metadata.items())


def _metadata(row: Any) -> Any:
    return described_by(row.metadata_form, row.source, row.step, row.value)


def _tuples(
    store: Store, connection: Connection, thread_id: str, key: int, rows: Sequence[Any]
) -> list[CheckpointTuple]:
    if not rows:
        return []
    there = _forms(store, connection, key, [row.seq for row in rows])
    forms = {seq: form_of(thread_id, row) for seq, row in there.items()}
    with naming(thread_id):
        pool = pool_of(store, connection, key, forms.values())
    writes = writes_of(store, connection, key, [row.checkpoint_id for row in rows])
    found = []
    for row in rows:
        if row.seq not in forms:
            continue
        address = CheckpointConfig(
            thread_id=thread_id, checkpoint_id=row.checkpoint_id, namespace=parts_of(row.namespace)
        )
        state = state_of(pool, forms[row.seq], thread_id, row)
        ledger = writes.get((row.namespace, row.checkpoint_id), ())
        found.append((row, tuple_of(address, row.parent_checkpoint_id, state, _metadata(row), ledger)))
    old = {row.parent_checkpoint_id for row, made in found if made.checkpoint["v"] < 4 and row.parent_checkpoint_id}
    sends = writes_of(store, connection, key, old, [TASKS]) if old else {}
    for row, made in found:
        address = CheckpointConfig(thread_id=thread_id, checkpoint_id=row.parent_checkpoint_id)
        sent = sends.get((row.namespace, row.parent_checkpoint_id))
        if made.checkpoint["v"] < 4 and sent:
            with_sends(made, tuple_of(address, None, {}, {}, sent).pending_writes)
    return [made for _, made in found]


def _forms(store: Store, connection: Connection, key: int, seqs: Sequence[int]) -> dict[int, Any]:
    values = {"key": key, "seqs": store.dialect.values(sorted(seqs))}
    rows = connection.execute(_manifests(store.tables, store.dialect), values).all()
    return {row.seq: row for row in rows}


@cache
def _listed(tables: Tables) -> Select[Any]:
    c, m = tables.checkpoints.c, tables.checkpoint_metadata.c
    joined = tables.checkpoints.outerjoin(tables.checkpoint_metadata, (m.thread_key == c.thread_key) & (m.seq == c.seq))
    columns = (c.seq, c.namespace, c.checkpoint_id, c.parent_checkpoint_id, c.source, c.step, c.metadata_form, m.value)
    return select(*columns).select_from(joined).order_by(c.seq.desc())


@cache
def _manifests(tables: Tables, dialect: Dialect) -> Select[Any]:
    c = tables.checkpoints.c
    return select(c.seq, c.checkpoint_id, c.manifest, c.spans).where(
        c.thread_key == bindparam("key"), dialect.among(c.seq, "seqs")
    )


@cache
def _writes(tables: Tables, dialect: Dialect, by_channel: bool) -> Select[Any]:
    w = tables.pending_writes.c
    statement = select(w.namespace, w.checkpoint_id, w.task_id, w.idx, w.node, w.channel, w.payload).where(
        w.thread_key == bindparam("key"), dialect.among(w.checkpoint_id, "ids")
    )
    return statement.where(dialect.among(w.channel, "channels")) if by_channel else statement
