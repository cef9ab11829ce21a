"""Whether a value is still the one that was serialised before, for less than serialising it costs.

A fingerprint holds all fields of the object, not a hash of them, so a mutation in place shows. Measured for a chat
message of 1 kB: 0.5 µs, where LangGraph's serializer takes 3.5 µs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from enum import Enum
from functools import lru_cache
from typing import Any, Final, TypeAlias

from ormsgpack import Ext, packb
from pydantic import BaseModel

from clew.codec.extensions import LEAVES, OPTIONS

__all__ = ["Fingerprint", "fingerprints"]

Fingerprint: TypeAlias = object
"""Bytes that are equal for values that serialise alike; an object equal to nothing else where that cannot be told."""

_MODEL, _DATACLASS, _ENUM, _TUPLE, _SET = range(100, 105)  # behind the codec's own tags, which stand for leaves
_SERIALISES_ITSELF: Final = ("model_dump", "dict", "_asdict", "get_secret_value")


def fingerprints(values: Iterable[Any]) -> list[Fingerprint]:
    """A fingerprint for each value."""
    found: list[Fingerprint] = []
    for value in values:
        try:
            if isinstance(value, BaseModel):
                found.append(b"m" + packb(_model(value), _hook, OPTIONS))
            else:
                found.append(b"v" + packb(value, _hook, OPTIONS))
        except (TypeError, ValueError, AttributeError, RecursionError):
            found.append(object())
    return found


def _model(value: BaseModel) -> list[Any]:
    return [_named(type(value)), value.__dict__, value.__pydantic_extra__, value.__pydantic_private__]


def _hook(value: Any) -> Ext:
    """For what ormsgpack has no exact form for. Raises for any object whose fields need not say all that it holds."""
    cls = type(value)
    if isinstance(value, BaseModel):
        return Ext(_MODEL, packb(_model(value), _hook, OPTIONS))
    if cls is tuple:
        return Ext(_TUPLE, packb(list(value), _hook, OPTIONS))
    if cls in LEAVES:
        tag, payload = LEAVES[cls]
        return Ext(tag, payload(value))
    if isinstance(value, Enum):
        return Ext(_ENUM, packb([_named(cls), value.value], _hook, OPTIONS))
    if cls is set or cls is frozenset:
        return Ext(_SET, packb([_named(cls), *value], _hook, OPTIONS))
    if dataclasses.is_dataclass(value) and not isinstance(value, type) and not _serialises_itself(cls):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return Ext(_DATACLASS, packb([_named(cls), fields], _hook, OPTIONS))
    raise TypeError(cls.__name__)


@lru_cache(maxsize=1024)
def _named(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


@lru_cache(maxsize=1024)
def _serialises_itself(cls: type) -> bool:
    return any(hasattr(cls, name) for name in _SERIALISES_ITSELF)
