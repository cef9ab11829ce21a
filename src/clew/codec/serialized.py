"""A value in the form that another library's serializer gave it. That library is not needed to keep or to show it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

import ormsgpack

from clew.codec.frames import inflated, zstd
from clew.errors import CorruptData

__all__ = ["Serialized"]

_USUAL: Final = "msgpack"
_DELTA_SNAPSHOT: Final = 7
_ARRAY: Final = 6
_ROLES: Final = {"human": "user", "ai": "assistant", "system": "system", "tool": "tool"}
_ZSTD: Final = "zstd/"
_COMPRESSED_BYTES: Final = 256


@dataclass(frozen=True, slots=True)
class Serialized:
    """``data`` as a serializer wrote it, and the serializer's name for the format: LangGraph's pair ``(type, bytes)``.

    States that LangGraph wrote hold these where they are read without ``clew.langgraph``; ``plain`` makes them legible.
    """

    type: str
    data: bytes

    def __repr__(self) -> str:
        return f"Serialized({self.plain()!r})"

    def packed(self) -> bytes:
        """The payload of the stored form: the type's length in one byte, the type, the data. A usual type has none."""
        name = b"" if self.type == _USUAL else self.type.encode()
        return len(name).to_bytes(1) + name + self.data

    @classmethod
    def unpacked(cls, payload: bytes) -> Serialized:
        """The inverse of ``packed``."""
        size = payload[0]
        return cls(payload[1 : 1 + size].decode() if size else _USUAL, payload[1 + size :])

    def compressed(self) -> Serialized:
        """The same, smaller where that is worth while; ``opened`` gives it back."""
        if len(self.data) < _COMPRESSED_BYTES:
            return self
        packed = zstd.compress(self.data)
        return Serialized(_ZSTD + self.type, packed) if len(packed) < len(self.data) * 0.9 else self

    def opened(self) -> Serialized:
        """The inverse of ``compressed``. Raises CorruptData."""
        if not self.type.startswith(_ZSTD):
            return self
        return Serialized(self.type.removeprefix(_ZSTD), inflated(self.data))

    def plain(self) -> Any:
        """The value made of plain Python values, objects as dicts of their fields that are not empty.

        For showing it: nothing is imported and no object is made. What cannot be looked into, such as an encrypted
        value, is described by a text.
        """
        try:
            if self.type.startswith(_ZSTD):
                return self.opened().plain()
            if self.type == "null":
                return None
            if self.type in ("bytes", "bytearray"):
                return self.data
            if self.type == "json":
                return json.loads(self.data)
            if self.type == _USUAL:
                return _unpacked(self.data)
        except (ValueError, TypeError, LookupError, CorruptData):
            pass
        return f"<{self.type}, {len(self.data)} bytes>"


def _unpacked(data: bytes) -> Any:
    return ormsgpack.unpackb(data, ext_hook=_plain_extension, option=ormsgpack.OPT_NON_STR_KEYS)


def _plain_extension(code: int, data: bytes) -> Any:
    """LangGraph's extensions: (module, class, argument or arguments or fields[, method]), arrays and snapshots."""
    held = _unpacked(data)
    if code == _DELTA_SNAPSHOT:
        return held
    if code == _ARRAY:
        return f"<array {held[0]} {held[1]}>"
    _, name, value, *_ = held
    if not isinstance(value, dict):
        return value
    fields = {key: item for key, item in value.items() if item not in (None, "", [], {})}
    if "content" in value and fields.get("type") in _ROLES:  # a chat message, as clew's command line shows them
        return {"role": _ROLES[fields.pop("type")], **fields}
    return {"class": name, **fields}
