"""Forking: a new checkpoint of the same state, copied inside the database. No element is decoded, no state is read."""

from __future__ import annotations

import json
from functools import cache
from hashlib import blake2b
from typing import Any, Final

from sqlalchemy import BigInteger, Connection, Insert, Select, SmallInteger, bindparam, insert, select

from clew.errors import AlreadyExists
from clew.records import CheckpointConfig, CheckpointSource
from clew.repository.finding import by_id, newest, no_such_checkpoint
from clew.repository.keys import check_id, metadata_terms, metadata_text, namespace_text
from clew.repository.locking import check_empty, check_fence, lock_thread, lock_two, undo_lock
from clew.repository.request import METADATA_STORED, described_by, metadata_form
from clew.repository.store import NO_FENCE, Fence, LockedThread, Store
from clew.repository.timeline.copying import copy_elements, copy_ledger
from clew.structure import SpanSet, decode_spans
from clew.tables import Moment, Tables

__all__ = ["fork"]

_COPIED: Final = ("metadata_form", "digest", "spans")


def fork(
    store: Store,
    connection: Connection,
    config: CheckpointConfig,
    checkpoint_id: str,
    *,
    thread_id: str | None = None,
    run_id: str | None = None,
    fence: Fence = NO_FENCE,
) -> CheckpointConfig:
    """Copy a checkpoint within its thread, as its child, or as a root into another thread that is empty.

    Repeating a fork under the same id changes nothing.

    Raises:
        NotFound: the checkpoint is not there.
        AlreadyExists: the id holds something else, or the other thread is not empty.
        StaleFence: see there.
    """
    check_id("checkpoint_id", checkpoint_id)
    if run_id is not None:
        check_id("run_id", run_id)
    which = "the latest checkpoint" if config.checkpoint_id is None else f"checkpoint {config.checkpoint_id!r}"
    doing = f"fork {which} of thread {config.thread_id!r}"
    namespace_text(config.namespace)
    if thread_id is None or thread_id == config.thread_id:
        locked = lock_thread(store, connection, config.thread_id)
        if locked is None:
            raise no_such_checkpoint(config)
        source_key = locked.thread_key
    else:
        source_key, locked = lock_two(store, connection, config.thread_id, thread_id, puts=1)
    inside = source_key == locked.thread_key
    base = _base(store, connection, config, checkpoint_id if inside else None)
    if base is None:
        raise no_such_checkpoint(config)
    made = config.model_copy(update={"thread_id": locked.thread_id, "checkpoint_id": checkpoint_id})
    digest = _digest(base, config.thread_id, locked.thread_id, checkpoint_id, run_id)
    standing = connection.execute(
        by_id(store.tables, "digest"), {"key": locked.thread_key, "namespace": base.namespace, "id": checkpoint_id}
    ).scalar_one_or_none()
    if standing is not None and bytes(standing) == digest:
        undo_lock(store, connection, locked)
        return made
    check_fence(store, locked, fence, doing)
    if inside and standing is not None:
        raise AlreadyExists(f"{doing}: the id {checkpoint_id!r} holds another checkpoint; take a new one")
    if not inside:
        check_empty(store, connection, locked, doing)
        spans = SpanSet(decode_spans(base.spans))
        copy_elements(store, connection, source_key, locked.thread_key, spans)
    _copy_record(store, connection, config.thread_id, base, locked, checkpoint_id, run_id, digest, inside=inside)
    connection.execute(
        copy_ledger(store.tables, store.dialect),
        {
            "source": source_key,
            "target": locked.thread_key,
            "namespace": base.namespace,
            "id": base.checkpoint_id,
            "new_id": checkpoint_id,
        },
    )
    return made


def _base(store: Store, connection: Connection, config: CheckpointConfig, made: str | None) -> Any | None:
    """The row to fork. The latest is not what an earlier call of the same ``made``: repeating it changes nothing."""
    rows = newest(store, connection, config, 2, extra=_COPIED)
    if config.checkpoint_id is None and len(rows) > 1 and rows[0].checkpoint_id == made:
        return rows[1]
    return rows[0] if rows else None


def _copy_record(
    store: Store,
    connection: Connection,
    origin: str,
    base: Any,
    locked: LockedThread,
    checkpoint_id: str,
    run_id: str | None,
    digest: bytes,
    *,
    inside: bool,
) -> None:
    tables = store.tables
    text = None
    if base.metadata_form == METADATA_STORED:
        text = connection.execute(_metadata(tables), {"key": base.thread_key, "seq": base.seq}).scalar_one_or_none()
    metadata = described_by(base.metadata_form, base.source, base.step, text)
    if isinstance(metadata, dict):
        metadata = {**metadata, "source": CheckpointSource.FORK.value}
        metadata.setdefault("step", base.step)
    form = metadata_form(metadata)
    connection.execute(
        _fork(tables),
        {
            "source": base.thread_key,
            "at": base.seq,
            "target": locked.thread_key,
            "new_seq": locked.last_seq,
            "moment": locked.activity,
            "new_id": checkpoint_id,
            "parent": base.checkpoint_id if inside else None,
            "run": run_id,
            "why": CheckpointSource.FORK.value,
            "form": form,
            "origin_thread": origin,
            "origin_id": base.checkpoint_id,
            "new_digest": digest,
        },
    )
    if form == METADATA_STORED:
        connection.execute(
            tables.checkpoint_metadata.insert(),
            {
                "thread_key": locked.thread_key,
                "seq": locked.last_seq,
                "terms": metadata_terms(metadata),
                "value": metadata_text(metadata),
            },
        )


def _digest(base: Any, source: str, target: str, checkpoint_id: str, run_id: str | None) -> bytes:
    """Equal for the same fork of the same content, so that a repeated call is recognised; never that of a put."""
    told = json.dumps(["fork", source, base.checkpoint_id, target, checkpoint_id, run_id])
    return blake2b(bytes(base.digest) + told.encode(), digest_size=16).digest()


@cache
def _metadata(tables: Tables) -> Select[Any]:
    m = tables.checkpoint_metadata.c
    return select(m.value).where(m.thread_key == bindparam("key"), m.seq == bindparam("seq"))


@cache
def _fork(tables: Tables) -> Insert:
    c = tables.checkpoints.c
    given = {
        "thread_key": bindparam("target", type_=BigInteger),
        "seq": bindparam("new_seq", type_=BigInteger),
        "created_at": bindparam("moment", type_=Moment),
        "checkpoint_id": bindparam("new_id", type_=c.checkpoint_id.type),
        "parent_checkpoint_id": bindparam("parent", type_=c.parent_checkpoint_id.type),
        "run_id": bindparam("run", type_=c.run_id.type),
        "source": bindparam("why", type_=c.source.type),
        "metadata_form": bindparam("form", type_=SmallInteger),
        "fork_thread_id": bindparam("origin_thread", type_=c.fork_thread_id.type),
        "fork_checkpoint_id": bindparam("origin_id", type_=c.fork_checkpoint_id.type),
        "digest": bindparam("new_digest", type_=c.digest.type),
    }
    names = [column.name for column in tables.checkpoints.columns]
    columns: list[Any] = [given.get(name, c[name]) for name in names]
    row = select(*columns).where(
        c.thread_key == bindparam("source", type_=BigInteger), c.seq == bindparam("at", type_=BigInteger)
    )
    return insert(tables.checkpoints).from_select(names, row)
