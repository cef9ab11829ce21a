"""A checkpoint made ready to be put: validated, encoded, and a snapshot, so that later mutation changes nothing."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final

from clew.codec import Codec
from clew.errors import CorruptData, InvalidInput
from clew.records import (
    NOT_LOADED,
    BarrierArrivals,
    Checkpoint,
    CheckpointConfig,
    CheckpointSource,
    Interrupt,
    PendingActivation,
    PendingWrite,
    listing_step,
)
from clew.repository.keys import (
    check_id,
    check_label,
    check_texts,
    check_thread_id,
    fits_a_column,
    metadata_terms,
    metadata_text,
    namespace_text,
    shown,
)
from clew.structure import Node, digest_of, encode

__all__ = [
    "METADATA_SOURCE_AND_STEP",
    "METADATA_STORED",
    "PutRequest",
    "WriteRow",
    "described_by",
    "metadata_form",
    "prepare",
    "prepare_writes",
]

METADATA_STORED: Final = 0
METADATA_EMPTY: Final = 1
METADATA_SOURCE_AND_STEP: Final = 2


@dataclass(frozen=True, slots=True)
class WriteRow:
    """One row for the ledger. ``place`` counts from 1 within its batch."""

    task_id: str
    idx: int
    place: int
    node: str
    channel: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class PutRequest:
    """What a put will write, but for where the state's elements go.

    ``columns`` are those of ``clew_checkpoints`` that the caller determines. ``strict`` refuses a different checkpoint
    under an id that exists, as agent checkpoints do, instead of replacing it. ``founding`` creates the thread although
    a parent is named, as LangGraph's savers do.
    """

    thread_id: str
    namespace: str
    checkpoint_id: str
    parent_id: str | None
    root: Node
    columns: dict[str, Any]
    metadata: str | None
    terms: bytes
    writes: tuple[WriteRow, ...] = ()
    strict: bool = False
    founding: bool = False
    config: CheckpointConfig = field(kw_only=True)


def prepare(
    codec: Codec,
    checkpoint: Checkpoint[Any],
    hint: Node | None = None,
    *,
    node: str | None = None,
    root: Node | None = None,
    strict: bool = False,
) -> PutRequest:
    """The request for ``checkpoint``. ``root`` is the state's form where the caller has it encoded already.

    Raises:
        InvalidInput: an id or namespace that cannot be stored, a state that was never loaded, its own parent.
        Unserializable: with the path of a value that cannot be kept as it is.
    """
    thread_id = check_thread_id(checkpoint.thread_id)
    checkpoint_id = check_id("checkpoint_id", checkpoint.checkpoint_id)
    namespace = namespace_text(checkpoint.namespace)
    where = f"checkpoint {checkpoint_id!r} of thread {thread_id!r}"
    parent_id = checkpoint.parent_checkpoint_id
    if parent_id is not None and check_id("parent_checkpoint_id", parent_id) == checkpoint_id:
        raise InvalidInput(f"{where} names itself as its parent")
    if checkpoint.run_id is not None:
        check_id("run_id", checkpoint.run_id)
    if checkpoint.state is NOT_LOADED:
        raise InvalidInput(f"{where} was read with load_state=False; load its state before putting it back")
    root = encode(codec, checkpoint.state, hint) if root is None else root
    source, step = _source(checkpoint.metadata), listing_step(checkpoint.metadata)
    form = metadata_form(checkpoint.metadata)
    text = metadata_text(checkpoint.metadata)
    writes = prepare_writes(codec, _carried(checkpoint.pending_writes))
    columns = {
        "namespace": namespace,
        "checkpoint_id": checkpoint_id,
        "parent_checkpoint_id": parent_id,
        "run_id": checkpoint.run_id,
        "source": source.value,
        "step": step,
        "node": node if node is None else check_label("node", node),
        "next_nodes": _listed("next_nodes", checkpoint.next_nodes),
        "has_interrupts": bool(checkpoint.interrupts),
        "fork_thread_id": None,
        "fork_checkpoint_id": None,
        "metadata_form": form,
        "completed_tasks": _packed(codec, "completed_tasks", _tasks(checkpoint.completed_tasks)),
        "interrupts": _packed(codec, "interrupts", _interrupts(checkpoint.interrupts)),
        "activations": _packed(codec, "pending_activations", _activations(checkpoint.pending_activations)),
        "barriers": _packed(codec, "barrier_arrivals", _barriers(checkpoint.barrier_arrivals)),
    }
    columns["digest"] = _digest(root, columns, text, writes)
    return PutRequest(
        thread_id,
        namespace,
        checkpoint_id,
        parent_id,
        root,
        columns,
        text if form == METADATA_STORED else None,
        metadata_terms(checkpoint.metadata) if form == METADATA_STORED else b"",
        writes,
        strict,
        config=CheckpointConfig(
            thread_id=thread_id, checkpoint_id=checkpoint_id, namespace=tuple(checkpoint.namespace)
        ),
    )


def prepare_writes(codec: Codec, writes: Iterable[PendingWrite]) -> tuple[WriteRow, ...]:
    """The rows of a batch, sorted by key, one for each key: the last where ``idx`` is negative, else the first.

    Sorted, because two batches that lock the same rows in opposite orders would deadlock.
    """
    rows: dict[tuple[str, int], WriteRow] = {}
    for place, write in enumerate(writes, start=1):
        key = (check_label("task_id", _checked(write).task_id), write.idx)
        if not fits_a_column(write.idx):
            raise InvalidInput(f"idx of a write must be an integer of 64 bits, not {shown(write.idx)}")
        known = rows.get(key)
        if known is not None and write.idx >= 0:
            continue
        rows[key] = WriteRow(
            write.task_id,
            write.idx,
            known.place if known else place,
            check_label("node", write.node),
            check_label("channel", write.channel),
            codec.strict(write.payload, f"pending_writes[{place - 1}].payload"),
        )
    return tuple(rows[key] for key in sorted(rows))


def described_by(form: int, source: str, step: int, text: str | None) -> Any:
    """The metadata that was put, from the columns or from its text. Raises CorruptData."""
    if form == METADATA_EMPTY:
        return {}
    if form == METADATA_SOURCE_AND_STEP:
        return {"source": source, "step": step}
    try:
        return json.loads(text) if text is not None else None
    except (ValueError, RecursionError) as exc:
        raise CorruptData("its metadata cannot be read") from exc


def _carried(writes: Sequence[PendingWrite]) -> list[PendingWrite]:
    """Writes without a task take their position as ``idx``, so that none stands in another's place."""
    return [
        write if _checked(write).task_id else write.model_copy(update={"idx": position})
        for position, write in enumerate(writes)
    ]


def _checked(write: PendingWrite) -> PendingWrite:
    if not isinstance(write, PendingWrite):
        raise InvalidInput(f"writes must be PendingWrite records, not {type(write).__name__}")
    return write


def _source(metadata: Any) -> CheckpointSource:
    named = metadata.get("source") if isinstance(metadata, dict) else None
    return (CheckpointSource.parse(named) if isinstance(named, str) else None) or CheckpointSource.LOOP


def metadata_form(metadata: Any) -> int:
    """Whether the columns say all that the metadata says, the order of its keys included."""
    if metadata == {} and type(metadata) is dict:
        return METADATA_EMPTY
    if type(metadata) is dict and list(metadata) == ["source", "step"]:
        source, step = metadata["source"], metadata["step"]
        if (
            type(source) is str
            and CheckpointSource.parse(source)
            and type(step) is int
            and listing_step(metadata) == step
        ):
            return METADATA_SOURCE_AND_STEP
    return METADATA_STORED


def _packed(codec: Codec, name: str, value: Any) -> bytes | None:
    return None if value is None else codec.strict(list(value), name)


# A record that was copied with ``update=…`` was not validated: what it holds is looked at before it is stored, for it
# could not be read again.


def _listed(name: str, texts: Sequence[str]) -> str | None:
    return json.dumps(check_texts(name, texts), separators=(",", ":")) if texts else None


def _tasks(tasks: Sequence[str]) -> Iterable[str] | None:
    return check_texts("completed_tasks", tasks) if tasks else None


def _interrupts(interrupts: Sequence[Interrupt]) -> list[Any] | None:
    for item in interrupts:
        check_texts("id and node of an interrupt", (item.id, item.node))
    return [[item.id, item.node, item.payload] for item in interrupts] or None


def _activations(activations: Sequence[PendingActivation] | None) -> list[Any] | None:
    for item in activations or ():
        check_texts("node and task_id of an activation", (item.node, item.task_id))
    return None if activations is None else [[item.node, item.send_arg, item.task_id] for item in activations]


def _barriers(barriers: Sequence[BarrierArrivals]) -> list[Any] | None:
    for item in barriers:
        check_texts("node and arrived of a barrier", (item.node, *item.arrived))
    return [[item.node, list(item.arrived)] for item in barriers] or None


def _digest(root: Node, columns: dict[str, Any], metadata: str, writes: Sequence[WriteRow]) -> bytes:
    """16 bytes over what was handed in: equal for an exact repetition, wherever the state's elements came to lie."""
    hasher = blake2b(digest_of(root), digest_size=16)
    hasher.update(repr(list(columns.values())).encode())
    hasher.update(metadata.encode())
    for write in writes:
        hasher.update(repr((write.task_id, write.idx, write.place, write.node, write.channel, write.payload)).encode())
    return hasher.digest()
