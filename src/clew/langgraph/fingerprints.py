"""Whether a value is still the one that was serialised before, for less than serialising it costs.

A fingerprint holds all fields of the object, not a hash of them, so a mutation in place shows. Measured for a chat
message of 1 kB: 0.5 µs, where LangGraph's serializer takes 3.5 µs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from enum import Enum
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final, TypeAlias

from ormsgpack import Ext, packb
from pydantic import BaseModel

from clew.codec.extensions import LEAVES, OPTIONS
from clew.structure.encoding import common_prefix

__all__ = ["Fingerprint", "Prints", "fingerprints"]

Fingerprint: TypeAlias = object
"""Bytes that are equal for values that serialise alike; an object equal to nothing else where that cannot be told."""

_BLOCK: Final = 64
_MODEL, _DATACLASS, _ENUM, _TUPLE, _SET = range(100, 105)  # behind the codec's own tags, which stand for leaves
_SERIALISES_ITSELF: Final = ("model_dump", "dict", "_asdict", "get_secret_value")
_FIELDS: Final = attrgetter("__dict__")
_EXTRA: Final = attrgetter("__pydantic_extra__")
_PRIVATE: Final = attrgetter("__pydantic_private__")


@dataclasses.dataclass(frozen=True, slots=True)
class Prints:
    """A fingerprint for each of some values, and one for each full block of them, from the first on."""

    each: list[Fingerprint]
    blocks: list[Fingerprint]


def fingerprints(values: Sequence[Any], known: Prints | None = None) -> Prints:
    """The fingerprints of ``values``; of blocks that are ``known``'s they are taken from there.

    A block of chat messages takes half the time of its messages one by one, and mostly all blocks but the last are as
    they were.
    """
    blocks = [_block(values[low : low + _BLOCK]) for low in range(0, len(values) - _BLOCK + 1, _BLOCK)]
    same = _BLOCK * common_prefix(blocks, known.blocks) if known is not None else 0
    each = known.each[:same] if known is not None else []
    return Prints([*each, *_one_by_one(values[same:])], blocks)


def _block(values: Sequence[Any]) -> Fingerprint:
    types = tuple(map(type, values))
    classes: set[Any] = set(types)
    models = {issubclass(cls, BaseModel) for cls in classes}
    try:
        if models == {True}:  # over ``map``, since comprehensions would take a third of it all
            fields = [list(map(_FIELDS, values)), list(map(_EXTRA, values))]
            if any(cls.__private_attributes__ for cls in classes):
                fields.append(list(map(_PRIVATE, values)))
            return types, packb(fields, _hook, OPTIONS)
        if models == {False}:
            return types, packb(values, _hook, OPTIONS)
    except (TypeError, ValueError, AttributeError, RecursionError):
        pass
    return object()


def _one_by_one(values: Iterable[Any]) -> list[Fingerprint]:
    found: list[Fingerprint] = []
    names: dict[type, str | None] = {}
    for value in values:
        cls = type(value)
        if cls not in names:
            names[cls] = _named(cls) if issubclass(cls, BaseModel) else None
        name = names[cls]
        try:
            if name is None:
                found.append(packb([value], _hook, OPTIONS))
            else:  # spelt out: a call of ``_model`` would take a fifth of the time
                fields = [name, value.__dict__, value.__pydantic_extra__, value.__pydantic_private__]
                found.append(packb(fields, _hook, OPTIONS))
        except (TypeError, ValueError, AttributeError, RecursionError):
            found.append(object())
    return found


def _model(value: BaseModel) -> list[Any]:
    return [_named(type(value)), value.__dict__, value.__pydantic_extra__, value.__pydantic_private__]


def _hook(value: Any) -> Ext:
    """For what ormsgpack has no exact form for. Raises for any object whose fields need not say all that it holds."""
    cls: Any = type(value)
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
def _named(cls: Any) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


@lru_cache(maxsize=1024)
def _serialises_itself(cls: Any) -> bool:
    return any(hasattr(cls, name) for name in _SERIALISES_ITSELF)
