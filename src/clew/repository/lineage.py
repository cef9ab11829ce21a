"""Parents, children, heads and trees of a thread's checkpoints. States are read only where columns ask for it."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

from sqlalchemy import Connection, Select, bindparam, literal, select

from clew.errors import InvalidInput
from clew.records import CheckpointConfig, CheckpointMetadata, ThreadTree
from clew.repository.finding import (
    LISTED,
    address,
    find_checkpoint,
    in_namespace,
    key_of,
    metadata_of,
    no_such_checkpoint,
)
from clew.repository.keys import check_limit, check_thread_id, namespace_text
from clew.repository.store import Store
from clew.tables import Tables

__all__ = ["ancestors", "children", "common_ancestor", "heads", "history", "tree", "walk"]


def history(store: Store, connection: Connection, config: CheckpointConfig, limit: int) -> list[CheckpointMetadata]:
    """The checkpoint and its ancestors in its namespace, itself first, at most ``limit`` (1 to 10,000).

    Ends at a root, at a parent that is not there, and at a cycle.
    """
    check_limit(limit)
    return [metadata_of(config.thread_id, row) for row in walk(store, connection, config, limit)]


def walk(
    store: Store, connection: Connection, config: CheckpointConfig, limit: int, extra: tuple[str, ...] = ()
) -> list[Any]:
    """The checkpoint's row and those of its ancestors, itself first, at most ``limit``; a cycle is gone round once."""
    statement = _lineage(store.tables, config.checkpoint_id is not None, extra)
    found: dict[int, Any] = {}
    for row in connection.execute(statement, {**address(config), "most": limit}).all():
        if row.seq in found:
            break
        found[row.seq] = row
    return list(found.values())


def ancestors(store: Store, connection: Connection, config: CheckpointConfig, limit: int) -> list[CheckpointMetadata]:
    """The checkpoint's ancestors in its namespace, its parent first, at most ``limit``."""
    check_limit(limit)
    return [metadata_of(config.thread_id, row) for row in walk(store, connection, config, limit + 1)[1:]]


def children(store: Store, connection: Connection, config: CheckpointConfig) -> list[CheckpointMetadata]:
    """The checkpoints whose parent this is, in the order of their commits."""
    if config.checkpoint_id is None:
        row = find_checkpoint(store, connection, config)
        if row is None:
            return []
        config = config.model_copy(update={"checkpoint_id": row.checkpoint_id})
    rows = connection.execute(_children(store.tables), address(config)).all()
    return [metadata_of(config.thread_id, row) for row in rows]


def heads(store: Store, connection: Connection, thread_id: str, namespace: Iterable[str]) -> list[CheckpointMetadata]:
    """The tips of all branches of a namespace, newest first."""
    where = address(CheckpointConfig.latest(thread_id, namespace))
    return [metadata_of(thread_id, row) for row in connection.execute(_heads(store.tables), where).all()]


def common_ancestor(
    store: Store, connection: Connection, one: CheckpointConfig, other: CheckpointConfig
) -> CheckpointMetadata | None:
    """The nearest checkpoint that both descend from, which may be one of the two; None where there is none.

    Raises:
        NotFound: one of the two is not there.
        InvalidInput: they are not of one thread and namespace.
    """
    if (one.thread_id, one.namespace) != (other.thread_id, other.namespace):
        raise InvalidInput("common_ancestor needs two checkpoints of one thread and namespace")
    everywhere = address(CheckpointConfig.latest(*_place(one)))
    known = {
        row.checkpoint_id: row.parent_checkpoint_id
        for row in connection.execute(_parents(store.tables), everywhere).all()
    }
    chains = []
    for config in (one, other):
        checkpoint_id = config.checkpoint_id or next(reversed(known), None)
        if checkpoint_id not in known:
            raise no_such_checkpoint(config)
        chain: dict[str, None] = {}
        while checkpoint_id is not None and checkpoint_id in known and checkpoint_id not in chain:
            chain[checkpoint_id] = None
            checkpoint_id = known[checkpoint_id]
        chains.append(chain)
    nearest = next((item for item in chains[0] if item in chains[1]), None)
    if nearest is None:
        return None
    row = find_checkpoint(store, connection, one.model_copy(update={"checkpoint_id": nearest}))
    if row is None:  # deleted since: by now their nearest is a farther one, or none
        return common_ancestor(store, connection, one, other)
    return metadata_of(one.thread_id, row)


def tree(store: Store, connection: Connection, thread_id: str, namespace: Iterable[str] | None) -> ThreadTree:
    """All checkpoints of the thread, or of one namespace; none for an unknown thread."""
    where: dict[str, Any] = {"thread_id": check_thread_id(thread_id)}
    if namespace is not None:
        where["namespace"] = namespace_text(namespace)
    rows = connection.execute(_tree(store.tables, namespace is not None), where).all()
    return ThreadTree.model_construct(
        thread_id=thread_id, checkpoints=tuple(metadata_of(thread_id, row) for row in rows)
    )


def _place(config: CheckpointConfig) -> tuple[str, tuple[str, ...]]:
    return config.thread_id, config.namespace


@cache
def _lineage(tables: Tables, with_id: bool, extra: tuple[str, ...]) -> Select[Any]:
    """Walks the unique index from child to parent, ``most`` steps at the most, which also ends a cycle.

    Gives the columns ``LISTED`` and those named by ``extra``, the child first.
    """
    c, key = tables.checkpoints.c, key_of(tables)
    first = select(c.thread_key, c.seq, c.parent_checkpoint_id, literal(1).label("depth")).where(
        c.thread_key == key, c.namespace == bindparam("namespace")
    )
    first = first.where(c.checkpoint_id == bindparam("id")) if with_id else first.order_by(c.seq.desc()).limit(1)
    walk = select(first.subquery("first")).cte("walk", recursive=True)
    # The bounds say "equal" in a way that only the unique index can answer in order. By plain equality Postgres takes
    # the index on (namespace, seq) in a table that was never analysed, and filters: 36 ms for 500 steps against 4.
    parent, named = tables.checkpoints.alias("parent"), tables.checkpoints.alias("named")
    found = (
        select(named.c.seq)
        .where(
            named.c.thread_key == walk.c.thread_key,
            named.c.namespace == bindparam("namespace"),
            named.c.checkpoint_id >= walk.c.parent_checkpoint_id,
            named.c.checkpoint_id <= walk.c.parent_checkpoint_id,
        )
        .order_by(named.c.checkpoint_id)
        .limit(1)
        .correlate(walk)
        .scalar_subquery()
    )
    walk = walk.union_all(
        select(parent.c.thread_key, parent.c.seq, parent.c.parent_checkpoint_id, walk.c.depth + 1).where(
            parent.c.thread_key == walk.c.thread_key, parent.c.seq == found, walk.c.depth < bindparam("most")
        )
    )
    return (
        select(*(c[name] for name in (*LISTED, *extra)))
        .select_from(walk.join(tables.checkpoints, (c.thread_key == walk.c.thread_key) & (c.seq == walk.c.seq)))
        .order_by(walk.c.depth)
    )


@cache
def _children(tables: Tables) -> Select[Any]:
    c = tables.checkpoints.c
    return in_namespace(tables, *LISTED).where(c.parent_checkpoint_id == bindparam("id")).order_by(c.seq)


@cache
def _heads(tables: Tables) -> Select[Any]:
    # NOT IN over one list of parents, not NOT EXISTS: no index leads from a parent to its children, and SQLite would
    # scan the namespace for each checkpoint.
    c, child, key = tables.checkpoints.c, tables.checkpoints.alias("child"), key_of(tables)
    parents = select(child.c.parent_checkpoint_id).where(
        child.c.thread_key == key,
        child.c.namespace == bindparam("namespace"),
        child.c.parent_checkpoint_id.is_not(None),
    )
    return in_namespace(tables, *LISTED).where(c.checkpoint_id.not_in(parents)).order_by(c.seq.desc())


@cache
def _parents(tables: Tables) -> Select[Any]:
    return in_namespace(tables, "checkpoint_id", "parent_checkpoint_id").order_by(tables.checkpoints.c.seq)


@cache
def _tree(tables: Tables, in_namespace: bool) -> Select[Any]:
    c = tables.checkpoints.c
    statement = select(*(c[name] for name in LISTED)).where(c.thread_key == key_of(tables)).order_by(c.seq)
    return statement.where(c.namespace == bindparam("namespace")) if in_namespace else statement
