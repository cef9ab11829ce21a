"""What a LangGraph checkpoint needs of its ancestors: the history of delta channels, and what pruning has to leave."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import islice
from typing import Any, Final

from langgraph.checkpoint.base import DeltaChannelHistory
from langgraph.checkpoint.serde.types import TASKS
from sqlalchemy import Connection, Select, bindparam, select

from clew.errors import InvalidInput
from clew.langgraph.checkpoints import FRAME, key_of, tuple_of
from clew.langgraph.listing import pool_of, writes_of
from clew.records import CheckpointConfig
from clew.repository.collecting import delete_seqs
from clew.repository.finding import by_id, latest, latest_of_each
from clew.repository.keys import check_thread_id, namespace_text
from clew.repository.locking import check_fence, find_thread, lock_thread, undo_lock
from clew.repository.request import described_by
from clew.repository.soundness import naming
from clew.repository.store import NO_FENCE, Store
from clew.repository.together import form_of
from clew.structure import Node, Record
from clew.tables import Tables

__all__ = ["check_strategy", "delta_history", "keep_latest"]

_COUNTERS: Final = "counters_since_delta_snapshot"
_STEPS: Final = 64


def delta_history(
    store: Store, connection: Connection, address: CheckpointConfig, channels: Sequence[str]
) -> dict[str, DeltaChannelHistory]:
    """For each channel its writes, oldest first, back to the nearest ancestor that holds a value, and that value.

    Neither the checkpoint's own writes nor its own value count: the walk begins at its parent.
    """
    empty: dict[str, DeltaChannelHistory] = {channel: {"writes": []} for channel in channels}
    key = find_thread(store, connection, check_thread_id(address.thread_id))
    if key is None:
        return empty
    namespace = namespace_text(address.namespace)
    chain: dict[str, list[str]] = {channel: [] for channel in channels}
    seeds: dict[str, Node] = {}
    for number, row in enumerate(_lineage(store, connection, key, namespace, address.checkpoint_id)):
        if number == 0:
            continue
        root = form_of(address.thread_id, row)
        for channel in channels:
            if channel in seeds:
                continue
            chain[channel].append(row.checkpoint_id)
            node = root.child(key_of(channel)) if isinstance(root, Record) else None
            if node is not None:
                seeds[channel] = node
        if len(seeds) == len(chain):
            break
    ids = {checkpoint_id for found in chain.values() for checkpoint_id in found}
    ledgers = {
        checkpoint_id: tuple_of(address, None, {}, {}, ledger).pending_writes or []
        for (found, checkpoint_id), ledger in writes_of(store, connection, key, ids, channels).items()
        if found == namespace
    }
    with naming(address.thread_id):
        pool = pool_of(store, connection, key, seeds.values())
        values = {channel: pool.value(seed) for channel, seed in seeds.items()}
    for channel, history in empty.items():
        history["writes"] = [
            write
            for checkpoint_id in reversed(chain[channel])
            for write in ledgers.get(checkpoint_id, ())
            if write[1] == channel
        ]
        if channel in values:
            history["seed"] = values[channel]
    return empty


def keep_latest(store: Store, connection: Connection, thread_id: str) -> int:
    """Delete all of a thread but the latest checkpoint of each namespace and what that one cannot do without.

    These are the ancestors that a delta channel is rebuilt from, and the parent that holds the sends of a checkpoint
    before version 4. How many checkpoints were deleted.

    Raises:
        StaleFence: somebody holds the thread's lease.
    """
    locked = lock_thread(store, connection, check_thread_id(thread_id), puts=0)
    if locked is None:
        return 0
    check_fence(store, locked, NO_FENCE, "prune")
    key, kept = locked.thread_key, set[int]()
    for namespace, checkpoint_id, seq in connection.execute(
        latest_of_each(store.tables, "namespace", "checkpoint_id", "seq"), {"key": key}
    ).all():
        kept |= {seq, *_needed(store, connection, thread_id, key, namespace, checkpoint_id)}
    c = store.tables.checkpoints.c
    everything = connection.execute(select(c.seq).where(c.thread_key == key)).scalars().all()
    doomed = [seq for seq in everything if seq not in kept]
    if not doomed:
        undo_lock(store, connection, locked, puts=0)
        return 0
    return delete_seqs(store, connection, key, doomed)


def check_strategy(strategy: str) -> str:
    """The strategy, if it is one of LangGraph's. Raises InvalidInput."""
    if strategy not in ("keep_latest", "delete"):
        raise InvalidInput(f"strategy must be 'keep_latest' or 'delete', not {strategy!r}")
    return strategy


def _needed(
    store: Store, connection: Connection, thread_id: str, key: int, namespace: str, checkpoint_id: str
) -> set[int]:
    lineage = _lineage(store, connection, key, namespace, checkpoint_id)
    head = next(lineage)
    metadata = described_by(head.metadata_form, head.source, head.step, head.value)
    missing = set(metadata.get(_COUNTERS) or ()) if isinstance(metadata, dict) else set()
    root = form_of(thread_id, head)
    missing -= {channel for channel in missing if isinstance(root, Record) and root.child(key_of(channel)) is not None}
    needed: set[int] = set()
    if _is_old(store, connection, key, root):
        parent = head.parent_checkpoint_id
        if parent and (namespace, parent) in writes_of(store, connection, key, [parent], [TASKS]):
            needed |= {row.seq for row in islice(_lineage(store, connection, key, namespace, parent, 1), 1)}
    for row in lineage:
        if not missing:
            break
        needed.add(row.seq)
        form = form_of(thread_id, row)
        if isinstance(form, Record):
            missing -= {channel for channel in missing if form.child(key_of(channel)) is not None}
    return needed


def _is_old(store: Store, connection: Connection, key: int, root: Node) -> bool:
    frame = root.child(FRAME) if isinstance(root, Record) else None
    numbers = frame.child("numbers") if isinstance(frame, Record) else None
    return numbers is not None and pool_of(store, connection, key, [numbers]).value(numbers)[0] < 4


def _lineage(
    store: Store, connection: Connection, key: int, namespace: str, checkpoint_id: str | None, steps: int = _STEPS
) -> Iterator[Any]:
    """The checkpoint (the latest for None) and its ancestors, some at a time: a parent mostly lies just below."""
    bound = {"key": key, "namespace": namespace}
    seen: set[str] = set()
    near: dict[str, Any] = {}
    while checkpoint_id is None or checkpoint_id not in seen:
        row = near.get(checkpoint_id) if checkpoint_id is not None else None
        if row is None:
            first = latest(store.tables, "seq") if checkpoint_id is None else by_id(store.tables, "seq")
            seq = connection.execute(first, bound | ({} if checkpoint_id is None else {"id": checkpoint_id})).scalar()
            if seq is None:
                return
            rows = connection.execute(_below(store.tables), {**bound, "from_seq": seq, "most": steps}).all()
            near = {found.checkpoint_id: found for found in rows}
            row = rows[0]
        yield row
        seen.add(row.checkpoint_id)
        if row.parent_checkpoint_id is None:
            return
        checkpoint_id = row.parent_checkpoint_id


@cache
def _below(tables: Tables) -> Select[Any]:
    c, m = tables.checkpoints.c, tables.checkpoint_metadata.c
    joined = tables.checkpoints.outerjoin(tables.checkpoint_metadata, (m.thread_key == c.thread_key) & (m.seq == c.seq))
    columns = (
        *(c.seq, c.checkpoint_id, c.parent_checkpoint_id, c.source, c.step, c.metadata_form),
        *(m.value, c.manifest, c.spans),
    )
    return (
        select(*columns)
        .select_from(joined)
        .where(c.thread_key == bindparam("key"), c.namespace == bindparam("namespace"), c.seq <= bindparam("from_seq"))
        .order_by(c.seq.desc())
        .limit(bindparam("most"))
    )
