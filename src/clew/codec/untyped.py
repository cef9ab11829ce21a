"""Reading stored values without the application's classes, for looking at them. Nothing is written in this way.

A value of a registered class is read as what it was stored as: a dataclass or model as a dict of its fields, an enum as
its member's name, what an application encoded by a function as what that function returned.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping
from enum import Enum, EnumMeta
from typing import Any

from clew.codec.codec import Codec
from clew.codec.objects import HIDDEN
from clew.codec.registry import Entry, Registry
from clew.codec.serialized import Serialized

__all__ = ["UntypedCodec", "as_json", "json_text"]


class UntypedCodec(Codec):
    """Reads what any checkpointer stored, whatever classes it knew. What it has read is not for putting back."""

    def __init__(self) -> None:
        super().__init__()
        self._registry = _EveryName()
        self._load = lambda payload: Serialized.unpacked(payload).plain()


def as_json(value: Any) -> Any:
    """The value in JSON's types. Bytes become base64, sets lists, and whatever else JSON has no form for its text."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else str(key): as_json(item) for key, item in value.items()}
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
    except TypeError:
        text = json.dumps(as_json(value), ensure_ascii=False, separators=(",", ":"))
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


class _Fields:
    """The shape of a class that is not there: its fields in a dict."""

    def take(self, instance: Any) -> dict[str, Any]:
        raise NotImplementedError  # nothing is written in this way

    def give(self, fields: Mapping[str, Any]) -> Any:
        return {name: value for name, value in fields.items() if name not in HIDDEN}


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
