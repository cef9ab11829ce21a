"""Reading one checkpoint: its row first, then its segments and writes in one statement that also checks it is there.

Each statement sees its own moment; a checkpoint that is still there at the second one was there all the time, for its
sequence number is never used again. Otherwise the read starts over.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Generic

from pydantic import TypeAdapter, ValidationError
from sqlalchemy import (
    BigInteger,
    Boolean,
    Connection,
    LargeBinary,
    Select,
    SmallInteger,
    Text,
    bindparam,
    literal_column,
    null,
    select,
    type_coerce,
    union_all,
)
from typing_extensions import TypeVar

from clew.dialects import Dialect
from clew.errors import Contention, CorruptData
from clew.records import (
    NOT_LOADED,
    BarrierArrivals,
    Checkpoint,
    CheckpointConfig,
    CheckpointTuple,
    Interrupt,
    PendingActivation,
    PendingWrite,
)
from clew.repository.finding import LISTED, address, key_of, metadata_of
from clew.repository.memory import ThreadMemory
from clew.repository.request import described_by
from clew.repository.soundness import naming, unpacked
from clew.repository.store import Store
from clew.repository.writes import read_writes, write_of
from clew.structure import SegmentMap, decode, decode_manifest, decode_payload, select_channels, wanted
from clew.tables import Tables

__all__ = ["StateReader", "get_tuple", "get_writes"]

State = TypeVar("State", default=Any)

_ATTEMPTS = 10


@dataclass(frozen=True, slots=True)
class StateReader(Generic[State]):
    """Makes states of what was decoded: instances of ``state_type``, or what was put where there is no such type."""

    adapter: TypeAdapter[State] | None = None

    def __call__(self, value: Any) -> Any:
        if self.adapter is None:
            return value
        try:
            return self.adapter.validate_python(value)
        except ValidationError as exc:
            first = exc.errors(include_url=False, include_input=False)[0]
            where = ".".join(["state", *map(str, first["loc"])])
            raise CorruptData(f"its state is not of this checkpointer's state_type: {where}: {first['msg']}") from exc


AS_STORED: Final[StateReader[Any]] = StateReader()


def get_tuple(
    store: Store,
    connection: Connection,
    config: CheckpointConfig,
    *,
    load_state: bool = True,
    channels: Collection[str] | None = None,
    reader: StateReader[Any] = AS_STORED,
    memory: ThreadMemory | None = None,
) -> CheckpointTuple[Any] | None:
    """The checkpoint with its writes, or None.

    Without ``load_state`` its state is ``NOT_LOADED``, and neither manifest nor segments are read. With ``channels``
    only these top-level keys are read and there, and the state is a plain dict of them. A checkpoint that ``memory``,
    of whatever age, holds with its elements is decoded from there: what a sequence number names never changes.

    Raises:
        CorruptData: naming the checkpoint, where a stored row cannot be read.
        Contention: the checkpoint was replaced again and again while it was being read.
    """
    where = address(config)
    for _ in range(_ATTEMPTS):
        row = connection.execute(_row(store.tables, load_state, config.checkpoint_id is not None), where).one_or_none()
        if row is None:
            return None
        with naming(config.thread_id, row.checkpoint_id):
            read = _contents(store, connection, row, load_state, channels, memory)
            if read is None:
                continue
            state, writes = read
            if load_state and channels is None:
                state = reader(state)
            return _tuple(store, config.thread_id, row, state, writes)
    raise Contention(
        f"a checkpoint of thread {config.thread_id!r} was replaced {_ATTEMPTS} times during one read; repeat it"
    )


def get_writes(store: Store, connection: Connection, config: CheckpointConfig) -> list[PendingWrite]:
    """All writes of a checkpoint, which need not be there yet, in order of arrival."""
    where = address(config)
    if config.checkpoint_id is None:
        row = connection.execute(_row(store.tables, False, False), where).one_or_none()
    else:
        row = connection.execute(_ledger(store.tables), where).one_or_none()
    if row is None:
        return []
    found = read_writes(store, connection, row.thread_key, where["namespace"], row.checkpoint_id)
    return [write for write, _ in found]


def _contents(
    store: Store,
    connection: Connection,
    row: Any,
    load_state: bool,
    channels: Collection[str] | None,
    memory: ThreadMemory | None,
) -> tuple[Any, list[tuple[PendingWrite, bool]]] | None:
    """(state, writes), or None where the checkpoint is not there any more."""
    root, spans = None, []
    remembered = memory.form_of(row.thread_key, row.namespace, row.checkpoint_id, row.seq) if memory else None
    if load_state:
        root = select_channels(remembered or decode_manifest(row.manifest, row.spans), channels)
        spans = [] if remembered else wanted([root])
    parts = connection.execute(
        _parts(store.tables, store.dialect, bool(spans)),
        {
            "thread_key": row.thread_key,
            "seq": row.seq,
            "namespace": row.namespace,
            "checkpoint_id": row.checkpoint_id,
            **(store.dialect.spans(spans) if spans else {}),
        },
    ).all()
    if not any(part.part == _THERE for part in parts):
        return None
    rows: Any = {(part.log, part.start): part for part in parts if part.part == _SEGMENT}.values()
    ledger = sorted((part for part in parts if part.part == _WRITE), key=lambda w: (w.arrival, w.task_id, w.idx))
    found = [(write_of(store.codec, part), part.carried) for part in ledger]
    if root is None:
        return NOT_LOADED, found
    segments = SegmentMap(decode_payload(row.log, row.start, row.count, row.payload) for row in rows)
    state = decode(store.codec, root, segments)
    if channels is not None and isinstance(state, dict):
        state = {key: value for key, value in state.items() if key in channels}
    return state, found


def _tuple(
    store: Store, thread_id: str, row: Any, state: Any, writes: list[tuple[PendingWrite, bool]]
) -> CheckpointTuple[Any]:
    metadata = metadata_of(thread_id, row)
    codec = store.codec
    activations = unpacked(codec, row, "activations")
    namespace = metadata.namespace
    checkpoint: Checkpoint[Any] = Checkpoint.model_construct(
        thread_id=thread_id,
        checkpoint_id=row.checkpoint_id,
        run_id=row.run_id,
        parent_checkpoint_id=row.parent_checkpoint_id,
        namespace=namespace,
        state=state,
        next_nodes=metadata.next_nodes,
        completed_tasks=tuple(unpacked(codec, row, "completed_tasks") or ()),
        pending_writes=tuple(_as_carried(write) for write, carried in writes if carried),
        interrupts=tuple(
            Interrupt(id=item, node=node, payload=payload)
            for item, node, payload in unpacked(codec, row, "interrupts") or ()
        ),
        metadata=described_by(row.metadata_form, row.source, row.step, row.value),
        pending_activations=None
        if activations is None
        else tuple(PendingActivation(node=node, send_arg=arg, task_id=task) for node, arg, task in activations),
        barrier_arrivals=tuple(
            BarrierArrivals(node=node, arrived=arrived) for node, arrived in unpacked(codec, row, "barriers") or ()
        ),
    )
    parent = row.parent_checkpoint_id
    return CheckpointTuple.model_construct(
        config=CheckpointConfig.model_construct(
            thread_id=thread_id, checkpoint_id=row.checkpoint_id, namespace=namespace
        ),
        checkpoint=checkpoint,
        parent_config=None
        if parent is None
        else CheckpointConfig.model_construct(thread_id=thread_id, checkpoint_id=parent, namespace=namespace),
        pending_writes=tuple(write for write, _ in writes),
        metadata=metadata,
    )


def _as_carried(write: PendingWrite) -> PendingWrite:
    """As it was handed in: a write without a task had no index of its own."""
    return write if write.task_id else write.model_copy(update={"idx": 0})


_THERE, _SEGMENT, _WRITE = 0, 1, 2


@cache
def _row(tables: Tables, load_state: bool, with_id: bool) -> Select[Any]:
    c, m = tables.checkpoints.c, tables.checkpoint_metadata.c
    columns = [
        *(c[name] for name in LISTED),
        c.metadata_form,
        c.completed_tasks,
        c.interrupts,
        c.activations,
        c.barriers,
        m.value,
    ]
    if load_state:
        columns += [c.spans, c.manifest]
    statement = (
        select(*columns)
        .select_from(
            tables.checkpoints.outerjoin(tables.checkpoint_metadata, (m.thread_key == c.thread_key) & (m.seq == c.seq))
        )
        .where(c.thread_key == key_of(tables), c.namespace == bindparam("namespace"))
    )
    if with_id:
        return statement.where(c.checkpoint_id == bindparam("id"))
    return statement.order_by(c.seq.desc()).limit(1)


@cache
def _ledger(tables: Tables) -> Select[Any]:
    t = tables.threads.c
    return select(t.thread_key, bindparam("id", type_=Text).label("checkpoint_id")).where(
        t.thread_id == bindparam("thread_id")
    )


@cache
def _parts(tables: Tables, dialect: Dialect, with_segments: bool) -> Any:
    c, w = tables.checkpoints.c, tables.pending_writes.c
    nothing_int, nothing_text = type_coerce(null(), BigInteger), type_coerce(null(), Text)
    nothing_bytes, nothing_flag = type_coerce(null(), LargeBinary), type_coerce(null(), Boolean)
    there = select(
        literal_column(str(_THERE), SmallInteger).label("part"),
        c.seq.label("log"),
        c.seq.label("start"),
        c.seq.label("count"),
        nothing_bytes.label("payload"),
        nothing_text.label("task_id"),
        nothing_text.label("node"),
        nothing_text.label("channel"),
        nothing_flag.label("carried"),
        nothing_int.label("idx"),
        nothing_int.label("arrival"),
    ).where(c.thread_key == bindparam("thread_key"), c.seq == bindparam("seq"))
    writes = select(
        literal_column(str(_WRITE), SmallInteger),
        nothing_int,
        nothing_int,
        nothing_int,
        w.payload,
        w.task_id,
        w.node,
        w.channel,
        w.carried,
        w.idx,
        w.arrival,
    ).where(
        w.thread_key == bindparam("thread_key"),
        w.namespace == bindparam("namespace"),
        w.checkpoint_id == bindparam("checkpoint_id"),
    )
    parts: list[Select[Any]] = [there, writes]
    if with_segments:
        rows = dialect.segments(tables).subquery()
        parts.append(
            select(
                literal_column(str(_SEGMENT), SmallInteger),
                rows.c.log,
                rows.c.start,
                rows.c.count,
                rows.c.payload,
                nothing_text,
                nothing_text,
                nothing_text,
                nothing_flag,
                nothing_int,
                nothing_int,
            )
        )
    return union_all(*parts)
