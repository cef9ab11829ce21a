"""Reading stored values without the application's classes, for looking at them. Nothing is written in this way.

A value of a registered class is read as what it was stored as: a dataclass or model as a dict of its fields, an enum as
its member's name, what an application encoded by a function as what that function returned.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping
from enum import Enum, EnumMeta
from typing import Any, Final

from clew.codec.codec import Codec
from clew.codec.extensions import Tag
from clew.codec.objects import ATTRIBUTES, EXTRA, HIDDEN
from clew.codec.reading import Reading
from clew.codec.registry import Entry, Registry
from clew.codec.serialized import Serialized

__all__ = ["UntypedCodec", "as_json", "json_text"]

_LONG: Final = 10**600
"""Greater integers are shown in base 16: Python converts 4,300 digits to decimal, or as few as 640 if it is told so."""


class _Legible(Reading):
    """Reads sets of objects, and mappings with objects as keys, although what stands for an object has no hash."""

    def _given(self, tag: int, parts: Any) -> Any:
        try:
            return super()._given(tag, parts)
        except TypeError:
            if tag in (Tag.SET, Tag.FROZENSET):
                return parts
            if tag == Tag.MAPPING:
                return dict(zip(map(_hashable, parts[::2]), parts[1::2], strict=True))
            raise


class UntypedCodec(Codec):
    """Reads what any checkpointer stored, whatever classes it knew. What it has read is not for putting back.

    A set of objects is read as a list, and an object that is a mapping's key as its JSON.
    """

    _reading = _Legible

    def __init__(self) -> None:
        super().__init__()
        self._registry = _EveryName()
        self._load = lambda payload: Serialized.unpacked(payload).plain()


def as_json(value: Any) -> Any:
    """The value in JSON's types. Bytes become base64, sets lists, and whatever else JSON has no form for its text."""
    if isinstance(value, int) and not -_LONG < value < _LONG:
        return hex(value)
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {str(as_json(key) if isinstance(key, int) else key): as_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(map(as_json, value), key=json_text)
    if isinstance(value, bytes | bytearray):
        return b64encode(value).decode()
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def json_text(value: Any) -> str:
    """The compact JSON of ``as_json``; a lone surrogate stands as its escape."""
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except (TypeError, ValueError):
        text = json.dumps(as_json(value), ensure_ascii=False, separators=(",", ":"))
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


def _hashable(key: Any) -> Any:
    try:
        hash(key)
    except TypeError:
        return json_text(key)
    return key


class _Fields:
    """The shape of a class that is not there: its fields in a dict, and what an instance was given besides."""

    def take(self, instance: Any) -> dict[str, Any]:
        raise NotImplementedError  # nothing is written in this way

    def give(self, fields: Mapping[str, Any]) -> Any:
        own = {name: value for name, value in fields.items() if name not in HIDDEN}
        return own | fields.get(EXTRA, {}) | fields.get(ATTRIBUTES, {})


class _AnyMember(EnumMeta):
    def __getitem__(cls, name: str) -> Any:
        return name

    def __call__(cls, value: Any) -> Any:  # type: ignore[override]
        return value


class _AnyEnum(Enum, metaclass=_AnyMember):
    """Stands for every enum: its members are their names, and combined flags their numbers."""


class _EveryName(Registry):
    def named(self, name: Any) -> Entry:
        return Entry(str(name), _AnyEnum, shape=_Fields(), decode=lambda encoded: encoded)
