"""Looking back: snapshots of one moment or of many, and one channel's values. Elements are read and decoded once."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from functools import cache
from itertools import pairwise
from typing import Any, Final

from sqlalchemy import Connection, Select, bindparam

from clew.errors import InvalidInput
from clew.records import (
    ChannelValue,
    CheckpointConfig,
    CheckpointTuple,
    Interrupt,
    PendingActivation,
    ResumePoint,
    StateSnapshot,
)
from clew.repository.fetching import StateReader, get_tuple
from clew.repository.finding import in_namespace, metadata_of, newest
from clew.repository.keys import check_instant, check_limit, check_step, check_thread_id, namespace_text
from clew.repository.lineage import walk
from clew.repository.soundness import naming, unpacked
from clew.repository.store import Store
from clew.repository.together import attempts, form_of, gone_too_often, read_together, state_of
from clew.structure import ElementPool, Node, Record, Segment, SegmentMap, same, wanted
from clew.tables import Moment, Tables

__all__ = ["as_of", "at_step", "channel_history", "get_state", "resume_point", "state_history"]

_STATE: Final = ("interrupts", "spans", "manifest")
_BATCH: Final = 500


def get_state(
    store: Store, connection: Connection, config: CheckpointConfig, reader: StateReader[Any]
) -> StateSnapshot[Any] | None:
    """The snapshot of a checkpoint, the latest of its namespace without an id, or None."""
    found = get_tuple(store, connection, config, reader=reader)
    return None if found is None else _snapshot_of(found)


def resume_point(
    store: Store, connection: Connection, config: CheckpointConfig, reader: StateReader[Any]
) -> ResumePoint[Any] | None:
    """The snapshot with its writes and what is still to run, or None.

    A write with a negative ``idx`` is control data (tinyagents: resume −1, error −2, interrupt −3), and does not say
    that its task has run.
    """
    found = get_tuple(store, connection, config, reader=reader)
    if found is None:
        return None
    done = {write.task_id for write in found.pending_writes if write.task_id and write.idx >= 0}
    pending = found.checkpoint.pending_activations
    if pending is None:
        pending = tuple(PendingActivation(node=node) for node in found.checkpoint.next_nodes)
    return ResumePoint.model_construct(
        snapshot=_snapshot_of(found),
        pending_writes=found.pending_writes,
        still_to_run=tuple(item for item in pending if item.task_id not in done),
    )


def as_of(
    store: Store,
    connection: Connection,
    thread_id: str,
    when: datetime,
    namespace: Iterable[str],
    reader: StateReader[Any],
) -> StateSnapshot[Any] | None:
    """The snapshot that was the namespace's latest at an instant, that instant included, or None.

    Raises:
        InvalidInput: an instant without a time zone.
    """
    where = {"at": check_instant("when", when)}
    return _found(store, connection, thread_id, namespace, reader, _as_of(store.tables), where)


def at_step(
    store: Store, connection: Connection, thread_id: str, step: int, namespace: Iterable[str], reader: StateReader[Any]
) -> StateSnapshot[Any] | None:
    """The newest snapshot of this step in the namespace, or None."""
    where = {"at": check_step(step)}
    return _found(store, connection, thread_id, namespace, reader, _at_step(store.tables), where)


def state_history(
    store: Store,
    connection: Connection,
    config: CheckpointConfig,
    limit: int,
    before: str | None,
    reader: StateReader[Any],
) -> list[StateSnapshot[Any]]:
    """At most ``limit`` snapshots, newest first: of the namespace, or of the config's checkpoint and its ancestors.

    Elements that several of them name are decoded once, and shared.
    """
    check_limit(limit)
    if before is not None and config.checkpoint_id is not None:
        raise InvalidInput("before is for the history of a namespace; that of a checkpoint begins at the checkpoint")
    for _ in attempts():
        if config.checkpoint_id is not None:
            rows = walk(store, connection, config, limit, extra=_STATE)
        else:
            rows = newest(store, connection, config, limit, before=before, extra=_STATE)
        if not rows:
            return []
        roots = [form_of(config.thread_id, row) for row in rows]
        spans = wanted(roots)
        pool = ElementPool(store.codec, spans)
        with naming(config.thread_id):  # a row that several of them may name
            if not read_together(store, connection, rows[0].thread_key, [row.seq for row in rows], spans, pool.add):
                continue
        return [
            _snapshot(store, config.thread_id, row, root, pool, reader) for row, root in zip(rows, roots, strict=True)
        ]
    raise gone_too_often(config.thread_id)


def channel_history(
    store: Store, connection: Connection, config: CheckpointConfig, channel: str, limit: int
) -> list[ChannelValue]:
    """At most ``limit`` values of a channel along the lineage, newest first, each with the checkpoint that brought it.

    Neighbours with equal values are one; checkpoints without the channel have none. Only this channel is read.
    """
    check_limit(limit)
    look = limit
    while True:
        found, ended = _values(store, connection, config, channel, look)
        if ended or len(found) >= limit:
            return found[:limit]
        look *= 2  # some of the forms were of equal values


def _values(
    store: Store, connection: Connection, config: CheckpointConfig, channel: str, look: int
) -> tuple[list[ChannelValue], bool]:
    """(the values among the ``look`` newest forms, whether there are no older forms)."""
    for _ in attempts():
        changes = _changes(store, connection, config, channel, look)
        if changes is None:
            continue
        found, ended = [(row, node) for row, node in changes if node is not None], changes[-1][0] is None
        if not found:
            return [], ended
        spans = wanted(node for _, node in found)
        pool, segments = ElementPool(store.codec, spans), list[Segment]()

        def take(segment: Segment, pool: ElementPool = pool, segments: list[Segment] = segments) -> None:
            pool.add(segment)
            segments.append(segment)

        with naming(config.thread_id):
            if not read_together(store, connection, found[0][0].thread_key, [row.seq for row, _ in found], spans, take):
                continue
            stored = SegmentMap(segments)
            brought = [
                (row, node)
                for (row, node), (_, older) in pairwise(changes)
                if node is not None and not same(older, node, stored)
            ]
        values = [
            ChannelValue.model_construct(
                value=state_of(pool, node, config.thread_id, row), checkpoint=metadata_of(config.thread_id, row)
            )
            for row, node in brought
        ]
        return values, ended
    raise gone_too_often(config.thread_id)


def _changes(
    store: Store, connection: Connection, config: CheckpointConfig, channel: str, look: int
) -> list[tuple[Any, Node | None]] | None:
    """(row, the channel's form or None) wherever the form is another one than the parent's, newest first.

    None where a checkpoint went between two batches, each of which has its own moment.

    The last is no answer, only what its predecessor is compared with: one more than ``look``, or (None, None) where the
    lineage ends.
    """
    changes: list[tuple[Any, Node | None]] = []
    seen: set[int] = set()
    at: CheckpointConfig | None = config
    last: tuple[Any, Node | None] | None = None
    while at is not None and len(changes) <= look:
        rows = walk(store, connection, at, _BATCH, extra=("spans", "manifest"))
        full, at = len(rows) == _BATCH, None
        if last is not None:  # the batch before ended here; its parent may be another one by now
            if not rows or rows[0].seq != last[0].seq:
                return None
            del rows[0]
        for row in rows:
            if row.seq in seen:
                return [*changes, *([last] if last else []), (None, None)]
            seen.add(row.seq)
            root = form_of(config.thread_id, row)
            node = root.child(channel) if isinstance(root, Record) else None
            if last is not None and last[1] != node:
                changes.append(last)
            last = (row, node)
        if full and rows[-1].parent_checkpoint_id is not None:
            at = config.model_copy(update={"checkpoint_id": rows[-1].checkpoint_id})
    changes += [last] if last else []
    return changes if at is not None else [*changes, (None, None)]


def _found(
    store: Store,
    connection: Connection,
    thread_id: str,
    namespace: Iterable[str],
    reader: StateReader[Any],
    statement: Select[Any],
    where: dict[str, Any],
) -> StateSnapshot[Any] | None:
    given = {"thread_id": check_thread_id(thread_id), "namespace": namespace_text(namespace), **where}
    for _ in attempts():
        checkpoint_id = connection.execute(statement, given).scalar_one_or_none()
        if checkpoint_id is None:
            return None
        config = CheckpointConfig(thread_id=thread_id, checkpoint_id=checkpoint_id, namespace=tuple(namespace))
        found = get_state(store, connection, config, reader)
        # Somebody may have replaced it in between, and then it is another moment's.
        if found is not None and connection.execute(statement, given).scalar_one_or_none() == checkpoint_id:
            return found
    raise gone_too_often(thread_id)


def _snapshot(
    store: Store, thread_id: str, row: Any, root: Node, pool: ElementPool, reader: StateReader[Any]
) -> StateSnapshot[Any]:
    metadata, parent = metadata_of(thread_id, row), row.parent_checkpoint_id
    place = {"thread_id": thread_id, "namespace": metadata.namespace}
    with naming(thread_id, row.checkpoint_id):
        values = reader(pool.value(root))
        interrupts = unpacked(store.codec, row, "interrupts") or ()
    return StateSnapshot.built(
        values=values,
        next_nodes=metadata.next_nodes,
        tasks=metadata.next_nodes,
        config=CheckpointConfig.built(checkpoint_id=row.checkpoint_id, **place),
        metadata=metadata,
        parent_config=None if parent is None else CheckpointConfig.built(checkpoint_id=parent, **place),
        pending_interrupts=tuple(Interrupt(id=name, node=node, payload=payload) for name, node, payload in interrupts),
    )


def _snapshot_of(found: CheckpointTuple[Any]) -> StateSnapshot[Any]:
    return StateSnapshot.model_construct(
        values=found.checkpoint.state,
        next_nodes=found.checkpoint.next_nodes,
        tasks=found.checkpoint.next_nodes,
        config=found.config,
        metadata=found.metadata,
        parent_config=found.parent_config,
        pending_interrupts=found.checkpoint.interrupts,
    )


@cache
def _as_of(tables: Tables) -> Select[Any]:
    # Moments never go back along the sequence, so the newest that is not later than the instant is the one.
    return _newest_where(tables, tables.checkpoints.c.created_at <= bindparam("at", type_=Moment))


@cache
def _at_step(tables: Tables) -> Select[Any]:
    return _newest_where(tables, tables.checkpoints.c.step == bindparam("at"))


def _newest_where(tables: Tables, condition: Any) -> Select[Any]:
    return in_namespace(tables, "checkpoint_id").where(condition).order_by(tables.checkpoints.c.seq.desc()).limit(1)
