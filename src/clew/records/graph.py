"""The records of the graph side: checkpoints, listings, writes, interrupts, snapshots. Nothing is stored here.

Names, fields and JSON forms are those of tinyagents 0.2.0 and its later versions, so that JSON written there is read
here and written back equal. Ids and namespaces are checked where they are stored, not in the records.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Final, Generic, Self, final

from pydantic import AwareDatetime, Field, SerializeAsAny, ValidatorFunctionWrapHandler, WrapValidator
from typing_extensions import TypeVar

from clew.ids import new_id
from clew.records.record import Flag, LeftOut, Number, Record, Str

__all__ = [
    "NOT_LOADED",
    "BarrierArrivals",
    "Checkpoint",
    "CheckpointConfig",
    "CheckpointMetadata",
    "CheckpointSource",
    "CheckpointTuple",
    "DurabilityMode",
    "ForkOrigin",
    "Interrupt",
    "NotLoaded",
    "Page",
    "PendingActivation",
    "PendingWrite",
    "StateSnapshot",
    "Thread",
    "listing_step",
]

State = TypeVar("State", default=Any)
Item = TypeVar("Item", default=Any)

_MAX_UNSIGNED = 2**64 - 1
_MIN_SIGNED, _MAX_SIGNED = -(2**63), 2**63 - 1


@final
class NotLoaded:
    """The class of ``NOT_LOADED``, which stands where a state was left in the database. Compare with ``is``."""

    __slots__ = ()
    _only: ClassVar[NotLoaded | None] = None

    def __new__(cls) -> NotLoaded:
        if cls._only is None:
            cls._only = super().__new__(cls)
        return cls._only

    def __repr__(self) -> str:
        return "clew.NOT_LOADED"

    def __reduce__(self) -> str:
        return "NOT_LOADED"  # by this name in this module; copy and deepcopy then keep the object, too


NOT_LOADED: Final = NotLoaded()
"""What ``state`` holds in a checkpoint read with ``load_state=False``. It cannot be put back."""


class CheckpointSource(StrEnum):
    """Why a checkpoint was written."""

    INPUT = "input"
    LOOP = "loop"
    UPDATE = "update"
    FORK = "fork"

    @classmethod
    def parse(cls, value: str) -> CheckpointSource | None:
        """The source of that name, or None for an unknown one."""
        try:
            return cls(value)
        except ValueError:
            return None


class DurabilityMode(StrEnum):
    """When a recorder's checkpoints are durable, relative to the run. ``SYNC`` is the default, as in tinyagents."""

    SYNC = "sync"
    ASYNC = "async"
    EXIT = "exit"


class CheckpointConfig(Record):
    """Which checkpoint is meant. Without a ``checkpoint_id`` it is the latest of ``namespace``."""

    thread_id: Str
    checkpoint_id: Str | None = None
    namespace: tuple[Str, ...] = ()

    @classmethod
    def latest(cls, thread_id: str, namespace: Iterable[str] = ()) -> Self:
        """The latest checkpoint of ``thread_id`` in ``namespace``, by default in the root namespace."""
        return cls(thread_id=thread_id, namespace=tuple(namespace))


class ForkOrigin(Record):
    """The checkpoint that a fork was made from."""

    thread_id: Str
    checkpoint_id: Str
    namespace: tuple[Str, ...] = ()


class Interrupt(Record):
    """A node's request to pause the run, with what it wants answered as any JSON value."""

    id: Str
    node: Str
    payload: Any


class PendingWrite(Record):
    """A partial write of a task, kept for when its step is run again.

    Within its checkpoint a write is identified by (``task_id``, ``idx``): a negative ``idx`` replaces, any other keeps
    the first. One that a checkpoint carries without a ``task_id`` takes its position as ``idx`` when it is stored.
    """

    left_out: ClassVar[LeftOut] = {"task_id": "", "idx": 0, "channel": ""}

    node: Str
    payload: Any
    task_id: Str = ""
    idx: Number = 0
    channel: Str = ""


class PendingActivation(Record):
    """A node that is to run on resuming, with the argument it was sent. An empty ``task_id`` is always still to run."""

    left_out: ClassVar[LeftOut] = {"send_arg": None, "task_id": ""}

    node: Str
    send_arg: Any = None
    task_id: Str = ""


class BarrierArrivals(Record):
    """Which predecessors have arrived at a node that waits for several."""

    node: Str
    arrived: tuple[Str, ...]


class CheckpointMetadata(Record):
    """What a listing says of a checkpoint; made without reading its state.

    ``created_at`` (UTC) is the database's, None until stored; ``fork_origin`` is None for what was not forked. Both are
    clew's own and left out of the JSON where None. ``step`` may be negative: LangGraph's input checkpoints are step −1.
    """

    left_out: ClassVar[LeftOut] = {"created_at": None, "fork_origin": None}

    thread_id: Str
    checkpoint_id: Str
    run_id: Str | None = None
    parent_checkpoint_id: Str | None = None
    namespace: tuple[Str, ...] = ()
    next_nodes: tuple[Str, ...] = ()
    has_interrupts: Flag = False
    source: CheckpointSource = CheckpointSource.LOOP
    step: Number = 0
    created_at: AwareDatetime | None = None
    fork_origin: ForkOrigin | None = None


def _as_given(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    """The caller's own object unless validation really changed it: pydantic copies each list and dict it looks into."""
    if value is NOT_LOADED:
        return value
    validated = validate(value)
    return value if validated is value or validated == value else validated


class Checkpoint(Record, Generic[State]):
    """A snapshot of a graph run at a boundary, with the state in full.

    ``state`` is the object that was given, neither copied nor converted; only ``Checkpoint[Model]`` makes a model of a
    plain dict. ``checkpoint_id`` is made for who gives none. ``pending_activations=None`` falls back to ``next_nodes``
    and is not the same as ``()``. ``metadata`` is any JSON value and comes back verbatim; ``source`` and ``step`` are
    read from it.

    The fields are those of tinyagents 0.2.0 and its later versions. Reading JSON, every field but ``thread_id`` and
    ``state`` may be absent.
    """

    left_out: ClassVar[LeftOut] = {"pending_activations": None, "barrier_arrivals": ()}

    thread_id: Str
    checkpoint_id: Str = Field(default_factory=new_id)
    run_id: Str | None = None
    parent_checkpoint_id: Str | None = None
    namespace: tuple[Str, ...] = ()
    state: Annotated[SerializeAsAny[State], WrapValidator(_as_given)]
    next_nodes: tuple[Str, ...] = ()
    completed_tasks: tuple[Str, ...] = ()
    pending_writes: tuple[PendingWrite, ...] = ()
    interrupts: tuple[Interrupt, ...] = ()
    metadata: Any = Field(default_factory=dict)
    pending_activations: tuple[PendingActivation, ...] | None = None
    barrier_arrivals: tuple[BarrierArrivals, ...] = ()

    def to_metadata(self) -> CheckpointMetadata:
        """The listing form, as tinyagents projects it.

        ``source`` is the metadata's if it is a known one, else ``loop``; ``step`` is the metadata's if it is an
        unsigned integer of 64 bits, else 0. ``created_at`` and ``fork_origin`` are None: only the database knows them.
        """
        named = self.metadata.get("source") if isinstance(self.metadata, dict) else None
        source = CheckpointSource.parse(named) if isinstance(named, str) else None
        return CheckpointMetadata(
            thread_id=self.thread_id,
            checkpoint_id=self.checkpoint_id,
            run_id=self.run_id,
            parent_checkpoint_id=self.parent_checkpoint_id,
            namespace=self.namespace,
            next_nodes=self.next_nodes,
            has_interrupts=bool(self.interrupts),
            source=source or CheckpointSource.LOOP,
            step=_step(self.metadata, 0, _MAX_UNSIGNED),
        )


def listing_step(metadata: object) -> int:
    """The step that the listing column holds: the metadata's integer ``step`` if it fits into 64 signed bits, else 0.

    Unlike ``Checkpoint.to_metadata`` it keeps a negative one, which LangGraph's input checkpoints have.
    """
    return _step(metadata, _MIN_SIGNED, _MAX_SIGNED)


def _step(metadata: object, lowest: int, highest: int) -> int:
    step = metadata.get("step") if isinstance(metadata, dict) else None
    if isinstance(step, int) and not isinstance(step, bool) and lowest <= step <= highest:
        return int(step)
    return 0


class CheckpointTuple(Record, Generic[State]):
    """A checkpoint with its address, its parent's, all its writes in order of arrival, and its listing form.

    ``checkpoint.pending_writes`` are those it carried when it was put; ``pending_writes`` are those and all later ones.
    """

    config: CheckpointConfig
    checkpoint: Checkpoint[State]
    parent_config: CheckpointConfig | None = None
    pending_writes: tuple[PendingWrite, ...] = ()
    metadata: CheckpointMetadata


class StateSnapshot(Record, Generic[State]):
    """The state as it stood at a checkpoint, and what would run from there.

    ``tasks`` are the nodes scheduled next; tinyagents fills it with ``next_nodes``.
    """

    values: Annotated[SerializeAsAny[State], WrapValidator(_as_given)]
    next_nodes: tuple[Str, ...] = ()
    tasks: tuple[Str, ...] = ()
    config: CheckpointConfig
    metadata: CheckpointMetadata
    parent_config: CheckpointConfig | None = None
    pending_interrupts: tuple[Interrupt, ...] = ()


class Thread(Record):
    """A thread. ``updated_at`` is its last activity; ``expires_at`` is None for one that is kept.

    Instants are UTC, from the database. ``checkpoint_count`` is None where it was not counted.
    """

    thread_id: Str
    created_at: AwareDatetime
    updated_at: AwareDatetime
    metadata: Any = None
    expires_at: AwareDatetime | None = None
    checkpoint_count: Number | None = None


class Page(Record, Generic[Item]):
    """One page of a listing. ``next_cursor`` asks for the next one; it is None on the last."""

    items: tuple[Item, ...]
    next_cursor: Str | None = None
