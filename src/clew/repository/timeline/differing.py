"""What differs between two stored checkpoints, reading only what they do not share."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection

from clew.records import ChannelChange, CheckpointConfig, Difference, DifferenceKind, StateDiff
from clew.repository.finding import find_checkpoint, no_such_checkpoint
from clew.repository.soundness import naming
from clew.repository.store import Store
from clew.repository.together import attempts, form_of, gone_too_often, read_together
from clew.structure import Node, Record, Segment, SegmentMap, Span, SpanSet, differences, places

__all__ = ["diff"]


def diff(store: Store, connection: Connection, before: CheckpointConfig, after: CheckpointConfig) -> StateDiff:
    """What changed from one to the other, on whatever branches, in whatever threads they are.

    Raises:
        NotFound: one of the two is not there.
        CorruptData: naming the thread, where a stored row cannot be read.
    """
    for _ in attempts():
        earlier, later = _row(store, connection, before), _row(store, connection, after)
        old, new = form_of(before.thread_id, earlier), form_of(after.thread_id, later)
        one_thread = earlier.thread_key == later.thread_key
        found = list(places(old, new, one_thread=one_thread))
        wanted_old = [span for place in found for span in place.wanted_before]
        wanted_new = [span for place in found for span in place.wanted_after]
        if one_thread:
            seqs = [earlier.seq, later.seq]
            stored = _read(store, connection, before.thread_id, earlier.thread_key, seqs, wanted_old + wanted_new)
            sides = (stored, stored)
        else:
            sides = (
                _read(store, connection, before.thread_id, earlier.thread_key, [earlier.seq], wanted_old),
                _read(store, connection, after.thread_id, later.thread_key, [later.seq], wanted_new),
            )
        if sides[0] is None or sides[1] is None:
            continue
        seen = tuple(item for place in found for item in differences(store.codec, place, sides[0], sides[1]))
        return StateDiff.model_construct(
            before=_config(before, earlier),
            after=_config(after, later),
            channels=_channels(old, new, seen),
            differences=seen,
        )
    raise gone_too_often(before.thread_id)


def _row(store: Store, connection: Connection, config: CheckpointConfig) -> Any:
    row = find_checkpoint(store, connection, config, extra=("spans", "manifest"))
    if row is None:
        raise no_such_checkpoint(config)
    return row


def _read(
    store: Store, connection: Connection, thread_id: str, thread_key: int, seqs: list[int], spans: list[Span]
) -> SegmentMap | None:
    segments: list[Segment] = []
    with naming(thread_id):
        there = read_together(store, connection, thread_key, seqs, list(SpanSet(spans)), segments.append)
    return SegmentMap(segments) if there else None


def _config(config: CheckpointConfig, row: Any) -> CheckpointConfig:
    return config.model_copy(update={"checkpoint_id": row.checkpoint_id})


def _channels(old: Node, new: Node, seen: tuple[Difference, ...]) -> dict[str, ChannelChange]:
    """By channel; what is only told of a whole mapping's keys is told by them."""
    before = old.keys if isinstance(old, Record) else ()
    after = new.keys if isinstance(new, Record) else ()
    channels = {key: ChannelChange.UNCHANGED for key in (*after, *before) if key in after and key in before}
    channels = {key: channels.get(key, ChannelChange.ADDED) for key in after}
    channels |= {key: ChannelChange.REMOVED for key in before if key not in channels}
    for item in seen:
        if item.path and isinstance(item.path[0], str):
            whole = len(item.path) == 1 and item.kind in (DifferenceKind.ADDED, DifferenceKind.REMOVED)
            channels[item.path[0]] = ChannelChange(item.kind.value) if whole else ChannelChange.CHANGED
    return channels
