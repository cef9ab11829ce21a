"""The versions of a LangGraph checkpoint in a few bytes: names stand in a part that hardly changes, numbers in another.

A checkpoint repeats the version of every channel, and those that each node has seen. As LangGraph writes them that is
a kilobyte or two in every row.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from clew.codec import Codec
from clew.errors import CorruptData
from clew.structure import Node, Record
from clew.structure.encoding import leaf
from clew.tables import EPOCH, MICROSECOND

__all__ = ["decode_frame", "encode_frame", "is_orphan", "next_version", "rest_of"]

_FIELDS: Final = ("v", "id", "ts", "channel_values", "channel_versions", "versions_seen", "updated_channels")
_WIDE_VERSION: Final = re.compile(r"(\d{32,})\.(\d[\d.e-]*)")
_SHARED_BYTES: Final = 32


def next_version(current: Any) -> Any:
    """The version behind ``current``. Numbers, but a thread that began with LangGraph's texts goes on with texts.

    LangGraph's savers end a version in a random number, because they keep one value for each channel and version.
    Here two children of one parent may use the same version for different values.
    """
    if current is None:
        return 1
    if isinstance(current, str):
        return f"{int(current.split('.')[0]) + 1:032}.{0.0:016}"
    return current + 1


def encode_frame(codec: Codec, checkpoint: Mapping[str, Any], rest: Node | None, orphan: bool = False) -> Record:
    """All of the checkpoint but its id and its channels' values. ``rest`` holds the fields that are not known here.

    ``orphan`` says that the metadata's ``parents`` were an empty mapping, and left out there.
    """
    versions, seen = checkpoint["channel_versions"], checkpoint["versions_seen"]
    channels = list(versions)
    names = [channels, [[node, list(found)] for node, found in seen.items()]]
    numbers = [
        checkpoint["v"],
        _packed_moment(checkpoint["ts"]),
        [_packed_version(version) for version in versions.values()],
        [_packed_version(version) for found in seen.values() for version in found.values()],
        _packed_updated(checkpoint.get("updated_channels", ()), channels),
        orphan,
    ]
    # The names are shared with the parent's unless they are too few to be worth a reference.
    nodes = [leaf(codec.strict(names), _SHARED_BYTES), leaf(codec.strict(numbers))]
    if rest is not None:
        return Record(None, ("names", "numbers", "rest"), (*nodes, rest))
    return Record(None, ("names", "numbers"), tuple(nodes))


def rest_of(checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that ``encode_frame`` does not know, ``pending_sends`` of old checkpoints among them."""
    return {key: value for key, value in checkpoint.items() if key not in _FIELDS}


def decode_frame(frame: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of ``encode_frame``.

    Raises:
        CorruptData: these are not what was written.
    """
    try:
        channels, nodes = frame["names"]
        v, moment, versions, seen_versions, updated, _ = frame["numbers"]
        seen = iter(seen_versions)
        fields: dict[str, Any] = {
            "v": v,
            "ts": _moment(moment),
            "channel_versions": dict(zip(channels, map(_version, versions), strict=True)),
            "versions_seen": {node: {channel: _version(next(seen)) for channel in found} for node, found in nodes},
        }
        if updated != ():
            fields["updated_channels"] = (
                None if updated is None else [channels[item] if isinstance(item, int) else item for item in updated]
            )
        return {**fields, **frame.get("rest", {})}
    except (LookupError, TypeError, ValueError, StopIteration) as exc:
        raise CorruptData("the versions of a LangGraph checkpoint cannot be read") from exc


def is_orphan(frame: Mapping[str, Any]) -> bool:
    """Whether the metadata's ``parents`` were an empty mapping; False for what ``decode_frame`` refuses."""
    try:
        return bool(frame["numbers"][5])
    except (LookupError, TypeError):
        return False


def _packed_version(version: Any) -> Any:
    """A version as it is, LangGraph's wide texts as (count, random number): 13 bytes instead of 50."""
    if type(version) is str and (match := _WIDE_VERSION.fullmatch(version)):
        count, tail = int(match[1]), float(match[2])
        if count < 2**63 and f"{count:032}.{tail:016}" == version:
            return (count, tail)
    return version


def _version(packed: Any) -> Any:
    return f"{packed[0]:032}.{packed[1]:016}" if type(packed) is tuple else packed


def _packed_moment(text: Any) -> Any:
    """Microseconds since 1970, where the text is exactly what ``isoformat`` makes of them in UTC."""
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is not None and moment.astimezone(UTC).isoformat() == text:
            return (moment - EPOCH) // MICROSECOND
    except (TypeError, ValueError):
        pass
    return text


def _moment(packed: Any) -> Any:
    return (EPOCH + packed * MICROSECOND).isoformat() if type(packed) is int else packed


def _packed_updated(updated: Any, channels: list[str]) -> Any:
    """The names as places among the channels; () where the checkpoint has no such field."""
    if updated is None or updated == ():
        return updated
    places = {channel: place for place, channel in enumerate(channels)}
    return [places.get(name, name) for name in updated]
