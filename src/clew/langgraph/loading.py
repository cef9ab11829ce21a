"""Values from what LangGraph's serializer wrote, and messages that were loaded before without running their validators.

Making a message takes the serializer 9 µs of pydantic. What a message was made of is in its bytes, so the second time
these bytes are loaded the fields are set as they stand there: 2 µs, and an object as new and as independent.
"""

from __future__ import annotations

import threading
from typing import Any, Final, NamedTuple

import ormsgpack
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from ormsgpack import packb, unpackb
from pydantic import BaseModel

from clew.codec import Codec, Serialized
from clew.codec.extensions import OPTIONS
from clew.errors import CorruptData
from clew.langgraph.channels import Serde

__all__ = ["Loader"]

_KNOWN_BYTES: Final = 32 * 1024 * 1024
_MODEL_EXTENSION: Final = 5
_READ: Final = ormsgpack.OPT_NON_STR_KEYS


class _Recipe(NamedTuple):
    cls: type[BaseModel]
    start: int
    """Where in the payload the fields stand."""
    fields_set: frozenset[str]
    extra: bool
    """Whether the class keeps extra fields; there are none."""


class Loader:
    """Loads the payloads of stored ``Serialized`` values through one serializer. Safe to share between threads.

    What is remembered of a payload is only that its fields, set as they stand, make what the serializer made of it.
    """

    def __init__(self, serde: Serde, known_bytes: int = _KNOWN_BYTES) -> None:
        self._serde = serde
        # The hook of LangGraph's own serializer gives None for what it cannot read, which must not pass for a value.
        self._hook = serde._unpack_ext_hook if type(serde) is JsonPlusSerializer else None
        self._known: dict[bytes, _Recipe] = {}
        self._left = known_bytes
        self._lock = threading.Lock()

    def __call__(self, payload: bytes) -> Any:
        """The value.

        Raises:
            CorruptData: the serializer fails, or gives None for what was something.
        """
        recipe = self._known.get(payload)
        if recipe is not None:
            return _made(recipe, payload)
        stored = Serialized.unpacked(payload).opened()
        try:
            if self._hook is not None and stored.type == "msgpack":
                value = unpackb(stored.data, ext_hook=self._certain, option=_READ)
            else:
                value = self._serde.loads_typed((stored.type, stored.data))
        except Exception as exc:
            raise CorruptData(f"LangGraph's serializer cannot load a value of type {stored.type!r}: {exc}") from exc
        if value is None and stored.type == "msgpack" and stored.data != b"\xc0":
            raise CorruptData("LangGraph's serializer gives nothing for a value that was something")
        if isinstance(value, BaseModel) and self._hook is not None and payload[:1] == b"\0":
            self._learn(payload, value)
        return value

    def _certain(self, code: int, data: bytes) -> Any:
        assert self._hook is not None
        value = self._hook(code, data)
        if value is None:
            raise ValueError(f"its extension {code} could not be read")
        return value

    def _learn(self, payload: bytes, value: BaseModel) -> None:
        """Remember how to make the value, if its fields are all that it is and nothing but plain values."""
        try:
            if value.__pydantic_private__ or value.__pydantic_extra__:
                return
            code, data = unpackb(payload[1:], ext_hook=lambda code, data: (code, data))
            if code != _MODEL_EXTENSION:
                return
            written = packb(unpackb(data)[2], None, OPTIONS)
            # A bytearray would be written as bytes are.
            if written != packb(value.__dict__, None, OPTIONS) or Codec.holds_bin(written):
                return
            extra = value.__pydantic_extra__ is not None
            recipe = _Recipe(type(value), payload.index(written), frozenset(value.model_fields_set), extra)
            if _made(recipe, payload) != value:
                return
        except (TypeError, ValueError, LookupError, AttributeError):
            return
        with self._lock:
            if payload in self._known:
                return
            self._left -= len(payload)
            self._known[payload] = recipe
            while self._left < 0:
                oldest = next(iter(self._known))
                del self._known[oldest]
                self._left += len(oldest)


def _made(recipe: _Recipe, payload: bytes) -> BaseModel:
    cls, start, fields_set, extra = recipe
    made = cls.__new__(cls)
    give = object.__setattr__
    give(made, "__dict__", unpackb(payload[start:]))
    give(made, "__pydantic_fields_set__", set(fields_set))
    give(made, "__pydantic_extra__", {} if extra else None)
    give(made, "__pydantic_private__", None)
    return made
