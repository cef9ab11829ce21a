"""The records of looking back: what differs between two states, a channel's values, a thread's tree, where to resume.

Unlike those of ``graph`` they are clew's own; neither source system writes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Any, ClassVar, Generic

from pydantic import Field, WrapValidator
from typing_extensions import TypeVar

from clew.records.graph import CheckpointConfig, CheckpointMetadata, PendingActivation, PendingWrite, StateSnapshot
from clew.records.record import LeftOut, Number, Record, Str

__all__ = [
    "ChannelChange",
    "ChannelValue",
    "Difference",
    "DifferenceKind",
    "ResumePoint",
    "StateDiff",
    "StateUpdate",
    "ThreadTree",
]

State = TypeVar("State", default=Any)
Untouched = Annotated[Any, WrapValidator(lambda value, _: value)]


class ChannelChange(StrEnum):
    """What became of a channel."""

    UNCHANGED = "unchanged"
    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"


class DifferenceKind(StrEnum):
    """What differs at one place. The first three are of mappings and whole values, the next four of lists."""

    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"
    APPENDED = "appended"
    INSERTED = "inserted"
    DROPPED = "dropped"
    REPLACED = "replaced"
    REORDERED = "reordered"
    """The keys of the mapping at ``path`` stand in another order; no values are given."""


class Difference(Record):
    """One difference between two states.

    ``path`` are the keys that lead there, the channel first. Of a list, ``before_position`` and ``after_position`` say
    where the element stood and stands. ``before`` and ``after`` are the values; None on the side that has none.
    """

    left_out: ClassVar[LeftOut] = {"before_position": None, "after_position": None}

    path: tuple[Any, ...]
    kind: DifferenceKind
    before_position: Number | None = None
    after_position: Number | None = None
    before: Untouched = None
    after: Untouched = None


class StateDiff(Record):
    """What changed from the checkpoint ``before`` to the checkpoint ``after``.

    ``channels`` tells for each channel of either what became of it, in the order of ``after``, removed ones last; a
    state that is no record (a list, a mapping of more than 64 keys) has only those that changed, or none.
    """

    before: CheckpointConfig
    after: CheckpointConfig
    channels: dict[Str, ChannelChange] = Field(default_factory=dict)
    differences: tuple[Difference, ...] = ()

    def of(self, channel: str) -> tuple[Difference, ...]:
        """The differences in one channel, in order."""
        return tuple(found for found in self.differences if found.path[:1] == (channel,))


class ChannelValue(Record):
    """A value of one channel, and the checkpoint that brought it."""

    value: Untouched
    checkpoint: CheckpointMetadata


class ResumePoint(Record, Generic[State]):
    """Where a run goes on: the snapshot, its writes in order of arrival, and the activations that are still to run."""

    snapshot: StateSnapshot[State]
    pending_writes: tuple[PendingWrite, ...] = ()
    still_to_run: tuple[PendingActivation, ...] = ()


class StateUpdate(Record):
    """One step of ``bulk_update_state``; see ``update_state`` for what the fields mean."""

    update: Untouched
    as_node: Str | None = None
    next_nodes: tuple[Str, ...] | None = None


class ThreadTree(Record):
    """All checkpoints of a thread as the forest that their parents make of them, in the order of their commits."""

    thread_id: Str
    checkpoints: tuple[CheckpointMetadata, ...] = ()

    @property
    def roots(self) -> tuple[CheckpointMetadata, ...]:
        """Those without a parent that is there, oldest first."""
        return self._children.get(None, ())

    @property
    def heads(self) -> tuple[CheckpointMetadata, ...]:
        """Those that are nobody's parent, oldest first."""
        return tuple(item for item in self.checkpoints if not self.children(item))

    def children(self, checkpoint: CheckpointMetadata) -> tuple[CheckpointMetadata, ...]:
        """The checkpoints whose parent this is, oldest first."""
        return self._children.get(_key(checkpoint), ())

    def walk(self) -> Iterator[tuple[int, CheckpointMetadata]]:
        """(number of ancestors, checkpoint), each after its parent and before its younger siblings."""
        stack = [(0, item) for item in reversed(self.roots)]
        while stack:
            depth, item = stack.pop()
            yield depth, item
            stack += [(depth + 1, child) for child in reversed(self.children(item))]

    @cached_property
    def _children(self) -> dict[tuple[tuple[str, ...], str] | None, tuple[CheckpointMetadata, ...]]:
        there = {_key(item) for item in self.checkpoints}
        found: dict[tuple[tuple[str, ...], str] | None, list[CheckpointMetadata]] = {}
        for item in self.checkpoints:
            parent = (item.namespace, item.parent_checkpoint_id or "")
            found.setdefault(parent if parent in there else None, []).append(item)
        return {key: tuple(items) for key, items in found.items()}


def _key(checkpoint: CheckpointMetadata) -> tuple[tuple[str, ...], str]:
    return checkpoint.namespace, checkpoint.checkpoint_id
