"""Parents, children, heads and trees of a thread's checkpoints. States are read only where columns ask for it."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

from sqlalchemy import Connection, Select, bindparam, select

from clew.errors import InvalidInput, NotFound
from clew.records import CheckpointConfig, CheckpointMetadata, ThreadTree
from clew.repository.keys import check_id, check_limit, check_thread_id, namespace_text
from clew.repository.listing import LISTED, lineage, metadata_of
from clew.repository.store import Store
from clew.tables import Tables

__all__ = ["ancestors", "children", "common_ancestor", "find_checkpoint", "heads", "newest", "tree", "walk"]


def find_checkpoint(
    store: Store, connection: Connection, config: CheckpointConfig, extra: tuple[str, ...] = ()
) -> Any | None:
    """The row with the columns ``LISTED`` and ``extra``, of the namespace's latest without an id, or None."""
    rows = newest(store, connection, config, 1, extra=extra)
    return rows[0] if rows else None


def no_such_checkpoint(config: CheckpointConfig) -> NotFound:
    """The error for an operation that needs the checkpoint to be there."""
    which = "latest checkpoint" if config.checkpoint_id is None else f"checkpoint {config.checkpoint_id!r}"
    return NotFound(f"thread {config.thread_id!r} has no {which} in namespace {list(config.namespace)!r}")


def newest(
    store: Store,
    connection: Connection,
    config: CheckpointConfig,
    limit: int,
    *,
    before: str | None = None,
    extra: tuple[str, ...] = (),
) -> list[Any]:
    """At most ``limit`` rows of the namespace, newest first; only the config's own where it has an id."""
    where = {**_address(config), "most": limit}
    if before is not None:
        where["before"] = check_id("before", before)
    statement = _newest(store.tables, config.checkpoint_id is not None, before is not None, extra)
    return list(connection.execute(statement, where).all())


def walk(
    store: Store, connection: Connection, config: CheckpointConfig, limit: int, extra: tuple[str, ...] = ()
) -> list[Any]:
    """The checkpoint's row and those of its ancestors, itself first, at most ``limit``; a cycle is gone round once."""
    statement = lineage(store.tables, config.checkpoint_id is not None, extra)
    found: dict[int, Any] = {}
    for row in connection.execute(statement, {**_address(config), "most": limit}):
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
    rows = connection.execute(_children(store.tables), _address(config))
    return [metadata_of(config.thread_id, row) for row in rows]


def heads(store: Store, connection: Connection, thread_id: str, namespace: Iterable[str]) -> list[CheckpointMetadata]:
    """The tips of all branches of a namespace, newest first."""
    where = _address(CheckpointConfig.latest(thread_id, namespace))
    return [metadata_of(thread_id, row) for row in connection.execute(_heads(store.tables), where)]


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
    known = {
        row.checkpoint_id: row.parent_checkpoint_id
        for row in connection.execute(_parents(store.tables), _address(CheckpointConfig.latest(*_place(one))))
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
        where["ns"] = namespace_text(namespace)
    rows = connection.execute(_tree(store.tables, namespace is not None), where)
    return ThreadTree.model_construct(
        thread_id=thread_id, checkpoints=tuple(metadata_of(thread_id, row) for row in rows)
    )


def _place(config: CheckpointConfig) -> tuple[str, tuple[str, ...]]:
    return config.thread_id, config.namespace


def _address(config: CheckpointConfig) -> dict[str, Any]:
    where = {"thread_id": check_thread_id(config.thread_id), "ns": namespace_text(config.namespace)}
    if config.checkpoint_id is not None:
        where["id"] = check_id("checkpoint_id", config.checkpoint_id)
    return where


def _in_namespace(tables: Tables, *columns: str) -> Select[Any]:
    t, c = tables.threads.c, tables.checkpoints.c
    key = select(t.thread_key).where(t.thread_id == bindparam("thread_id")).scalar_subquery()
    return select(*(c[name] for name in columns)).where(c.thread_key == key, c.namespace == bindparam("ns"))


@cache
def _newest(tables: Tables, by_id: bool, before: bool, extra: tuple[str, ...]) -> Select[Any]:
    c = tables.checkpoints.c
    statement = _in_namespace(tables, *LISTED, *extra).order_by(c.seq.desc()).limit(bindparam("most"))
    if by_id:
        statement = statement.where(c.checkpoint_id == bindparam("id"))
    if before:
        inner = tables.checkpoints.alias("bound")
        t = tables.threads.c
        key = select(t.thread_key).where(t.thread_id == bindparam("thread_id")).scalar_subquery()
        bound = select(inner.c.seq).where(
            inner.c.thread_key == key,
            inner.c.namespace == bindparam("ns"),
            inner.c.checkpoint_id == bindparam("before"),
        )
        statement = statement.where(c.seq < bound.scalar_subquery())
    return statement


@cache
def _children(tables: Tables) -> Select[Any]:
    c = tables.checkpoints.c
    return _in_namespace(tables, *LISTED).where(c.parent_checkpoint_id == bindparam("id")).order_by(c.seq)


@cache
def _heads(tables: Tables) -> Select[Any]:
    # NOT IN over one list of parents, not NOT EXISTS: no index leads from a parent to its children, and SQLite would
    # scan the namespace for each checkpoint.
    c, child, t = tables.checkpoints.c, tables.checkpoints.alias("child"), tables.threads.c
    key = select(t.thread_key).where(t.thread_id == bindparam("thread_id")).scalar_subquery()
    parents = select(child.c.parent_checkpoint_id).where(
        child.c.thread_key == key,
        child.c.namespace == bindparam("ns"),
        child.c.parent_checkpoint_id.is_not(None),
    )
    return _in_namespace(tables, *LISTED).where(c.checkpoint_id.not_in(parents)).order_by(c.seq.desc())


@cache
def _parents(tables: Tables) -> Select[Any]:
    return _in_namespace(tables, "checkpoint_id", "parent_checkpoint_id").order_by(tables.checkpoints.c.seq)


@cache
def _tree(tables: Tables, in_namespace: bool) -> Select[Any]:
    t, c = tables.threads.c, tables.checkpoints.c
    key = select(t.thread_key).where(t.thread_id == bindparam("thread_id")).scalar_subquery()
    statement = select(*(c[name] for name in LISTED)).where(c.thread_key == key).order_by(c.seq)
    return statement.where(c.namespace == bindparam("ns")) if in_namespace else statement
