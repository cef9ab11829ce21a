"""Checkpoints' rows: how one is addressed and found, and the listing record that it makes. No state is decoded here."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any, Final

from sqlalchemy import Connection, ScalarSelect, Select, bindparam, func, select

from clew.errors import CorruptData, NotFound
from clew.records import CheckpointConfig, CheckpointMetadata, CheckpointSource, ForkOrigin
from clew.repository.keys import check_id, check_thread_id, namespace_of, namespace_text, texts_of
from clew.repository.soundness import naming
from clew.repository.store import Store
from clew.tables import Tables

__all__ = [
    "LISTED",
    "address",
    "by_id",
    "find_checkpoint",
    "in_namespace",
    "key_of",
    "latest",
    "latest_of_each",
    "metadata_of",
    "newest",
    "no_such_checkpoint",
]

LISTED: Final = (
    "thread_key",
    "seq",
    "namespace",
    "checkpoint_id",
    "parent_checkpoint_id",
    "run_id",
    "source",
    "step",
    "next_nodes",
    "has_interrupts",
    "created_at",
    "fork_thread_id",
    "fork_checkpoint_id",
)
"""The columns that a listing record is made of."""


def key_of(tables: Tables) -> ScalarSelect[int]:
    """The key of the thread ``thread_id``, inside a statement."""
    t = tables.threads.c
    return select(t.thread_key).where(t.thread_id == bindparam("thread_id")).scalar_subquery()


def in_namespace(tables: Tables, *columns: str) -> Select[Any]:
    """These columns of the checkpoints at ``thread_id`` and ``namespace``."""
    c = tables.checkpoints.c
    return select(*(c[name] for name in columns)).where(
        c.thread_key == key_of(tables), c.namespace == bindparam("namespace")
    )


@cache
def by_id(tables: Tables, *columns: str) -> Select[Any]:
    """These columns of the checkpoint at ``key``, ``namespace`` and ``id``."""
    return _at_key(tables, columns).where(tables.checkpoints.c.checkpoint_id == bindparam("id"))


@cache
def latest(tables: Tables, *columns: str) -> Select[Any]:
    """These columns of the latest checkpoint at ``key`` and ``namespace``."""
    return _at_key(tables, columns).order_by(tables.checkpoints.c.seq.desc()).limit(1)


@cache
def latest_of_each(tables: Tables, *columns: str) -> Select[Any]:
    """These columns of the latest checkpoint of each namespace of the thread ``key``, in the order of their commits."""
    c, newer = tables.checkpoints.c, tables.checkpoints.alias("newer")
    last = select(func.max(newer.c.seq)).where(newer.c.thread_key == bindparam("key")).group_by(newer.c.namespace)
    return (
        select(*(c[name] for name in columns)).where(c.thread_key == bindparam("key"), c.seq.in_(last)).order_by(c.seq)
    )


def address(config: CheckpointConfig) -> dict[str, Any]:
    """The parameters ``thread_id``, ``namespace`` and, where the config has one, ``id``.

    Raises:
        InvalidInput: one of them cannot be stored.
    """
    where = {"thread_id": check_thread_id(config.thread_id), "namespace": namespace_text(config.namespace)}
    if config.checkpoint_id is not None:
        where["id"] = check_id("checkpoint_id", config.checkpoint_id)
    return where


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
    where = {**address(config), "most": limit}
    if before is not None:
        where["before"] = check_id("before", before)
    statement = _newest(store.tables, config.checkpoint_id is not None, before is not None, extra)
    return list(connection.execute(statement, where).all())


def metadata_of(thread_id: str, row: Any) -> CheckpointMetadata:
    """The listing record of a row that has the columns ``LISTED``.

    Raises:
        CorruptData: naming the checkpoint, where the row cannot be read.
    """
    with naming(thread_id, row.checkpoint_id):
        return _metadata_of(thread_id, row)


def _metadata_of(thread_id: str, row: Any) -> CheckpointMetadata:
    origin = None
    if row.fork_checkpoint_id is not None:
        origin = ForkOrigin(
            thread_id=row.fork_thread_id,
            checkpoint_id=row.fork_checkpoint_id,
            namespace=namespace_of(row.namespace),  # a fork stays in its origin's namespace
        )
    return CheckpointMetadata.built(
        thread_id=thread_id,
        checkpoint_id=row.checkpoint_id,
        run_id=row.run_id,
        parent_checkpoint_id=row.parent_checkpoint_id,
        namespace=namespace_of(row.namespace),
        next_nodes=() if row.next_nodes is None else texts_of(row.next_nodes),
        has_interrupts=row.has_interrupts,
        source=_source_of(thread_id, row),
        step=row.step,
        created_at=row.created_at,
        fork_origin=origin,
    )


def _at_key(tables: Tables, columns: Iterable[str]) -> Select[Any]:
    c = tables.checkpoints.c
    return select(*(c[name] for name in columns)).where(
        c.thread_key == bindparam("key"), c.namespace == bindparam("namespace")
    )


@cache
def _newest(tables: Tables, with_id: bool, before: bool, extra: tuple[str, ...]) -> Select[Any]:
    c = tables.checkpoints.c
    statement = in_namespace(tables, *LISTED, *extra).order_by(c.seq.desc()).limit(bindparam("most"))
    if with_id:
        statement = statement.where(c.checkpoint_id == bindparam("id"))
    if before:
        inner = tables.checkpoints.alias("bound")
        bound = select(inner.c.seq).where(
            inner.c.thread_key == key_of(tables),
            inner.c.namespace == bindparam("namespace"),
            inner.c.checkpoint_id == bindparam("before"),
        )
        statement = statement.where(c.seq < bound.scalar_subquery())
    return statement


def _source_of(thread_id: str, row: Any) -> CheckpointSource:
    source = CheckpointSource.parse(row.source)
    if source is None:
        raise CorruptData(
            f"checkpoint {row.checkpoint_id!r} of thread {thread_id!r}: its source {row.source!r} is not known here"
        )
    return source
