"""From values to bytes, in two ways that lead to the same ones. Nothing is read back here."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping
from datetime import date, datetime
from decimal import Decimal
from enum import Enum, Flag
from typing import Any, Final
from uuid import UUID

from ormsgpack import Ext, packb

from clew.codec.extensions import LEAVES, OPTIONS, Refused, Tag, array_header, is_plain_text
from clew.codec.objects import HIDDEN
from clew.codec.registry import Entry, Registry

__all__ = ["MAX_DEPTH", "Quick", "Strict", "child_path"]

MAX_DEPTH: Final = 200
"""How deep containers may nest in one value. ormsgpack packs 255 levels; reading costs a frame of Python's 1,000 and
about 1.5 kB of C stack for each extension level, so this fits into a thread's 512 kB with room for the caller."""

_ATOMS: Final = frozenset({type(None), bool, float, bytes})
_SHOWN_KEYS: Final = frozenset({*_ATOMS, int, str, UUID, Decimal, date, datetime, tuple})


class Strict:
    """Walks a value itself, so that it sees every type, the depth, and where it is."""

    def __init__(self, registry: Registry) -> None:
        self._by_class = registry.by_class

    def pack(self, value: Any) -> bytes:
        """The value's bytes.

        Raises:
            Refused: with the steps to what cannot be kept.
        """
        return packb(self._lower(value, 1), None, OPTIONS)

    def _lower(self, value: Any, depth: int) -> Any:
        """`value` with everything in it that msgpack has no exact form for made into extensions."""
        cls = type(value)
        if cls is str:
            return value if is_plain_text(value) else Ext(Tag.TEXT, LEAVES[str][1](value))
        if cls in _ATOMS:
            return value
        if cls is int:
            return value if -(2**63) <= value < 2**64 else Ext(Tag.INT, LEAVES[int][1](value))
        if cls in LEAVES:
            tag, payload = LEAVES[cls]
            return Ext(tag, payload(value))
        if depth > MAX_DEPTH and not issubclass(cls, Enum):
            raise Refused(f"nested deeper than {MAX_DEPTH} levels, or holds itself")
        if cls is list:
            return self._lower_items(value, depth)
        if cls is dict:
            if all(type(key) is str and is_plain_text(key) for key in value):
                return self._lower_fields(value, depth)
            return Ext(Tag.MAPPING, packb(self._lower_pairs(value, depth), None, OPTIONS))
        if cls is tuple:
            return Ext(Tag.TUPLE, packb(self._lower_items(value, depth), None, OPTIONS))
        if cls is set or cls is frozenset:
            return Ext(*_set_payload(cls, [packb(self._lower_element(v, depth), None, OPTIONS) for v in value]))
        entry = self._by_class.get(cls)
        if entry is None:
            raise Refused(_why_not(value))
        try:
            tag, parts = _taken(entry, value)
        except (Refused, RecursionError):
            raise
        except Exception as exc:
            raise Refused(f"taking apart an object of type {cls.__name__} failed: {type(exc).__name__}") from exc
        if tag == Tag.OBJECT:
            parts = self._lower_fields(parts, depth)
        elif tag == Tag.CUSTOM:
            parts[1] = self._lower(parts[1], depth + 1)
        else:
            parts[-1] = self._lower(parts[-1], depth)
        return Ext(tag, packb(parts, None, OPTIONS))

    def _lower_items(self, values: Iterable[Any], depth: int) -> list[Any]:
        lowered: list[Any] = []
        try:
            for value in values:
                lowered.append(self._lower(value, depth + 1))  # noqa: PERF401  its length is the index of what fails
        except Refused as refusal:
            refusal.steps.append(f"[{len(lowered)}]")
            raise
        return lowered

    def _lower_fields(self, fields: Mapping[str, Any], depth: int) -> dict[str, Any]:
        lowered: dict[str, Any] = {}
        key = ""
        try:
            for key, value in fields.items():
                lowered[key] = self._lower(value, depth + 1)
        except Refused as refusal:
            refusal.steps.append(child_path("", key))
            raise
        return lowered

    def _lower_pairs(self, mapping: dict[Any, Any], depth: int) -> list[Any]:
        lowered: list[Any] = []
        step = ""
        try:
            for key, value in mapping.items():
                step = f".keys()[{len(lowered) // 2}]"
                lowered.append(self._lower(key, depth + 1))
                step = child_path("", key)
                lowered.append(self._lower(value, depth + 1))
        except Refused as refusal:
            refusal.steps.append(step)
            raise
        return lowered

    def _lower_element(self, value: Any, depth: int) -> Any:
        try:
            return self._lower(value, depth + 1)
        except Refused as refusal:
            refusal.steps.append("{…}")
            raise


class Quick:
    """The hook of one `Codec.quick`. ormsgpack swallows whatever a hook raises, an interrupt too."""

    def __init__(self, registry: Registry) -> None:
        self._by_class = registry.by_class
        self.interrupt: BaseException | None = None

    def hook(self, value: Any) -> Ext:
        try:
            return self._extension(value)
        except Exception:
            raise
        except BaseException as exc:
            self.interrupt = exc
            raise

    def _extension(self, value: Any) -> Ext:
        cls = type(value)
        if cls in LEAVES:
            tag, payload = LEAVES[cls]
            return Ext(tag, payload(value))
        if cls is tuple:
            return Ext(Tag.TUPLE, packb(list(value), self.hook, OPTIONS))
        if cls is set or cls is frozenset:
            return Ext(*_set_payload(cls, [packb(element, self.hook, OPTIONS) for element in value]))
        tag, parts = _taken(self._by_class[cls], value)
        return Ext(tag, packb(parts, self.hook, OPTIONS))


def child_path(path: str, key: Any) -> str:
    """The path of what stands under `key` in the mapping at `path`: ``state.plan``, ``state['a b']``, ``state[1]``."""
    if type(key) is str:
        if key in HIDDEN:
            return path
        return f"{path}.{key}" if key.isidentifier() else f"{path}[{key!r}]"
    try:
        shown = reprlib.repr(key) if type(key) in _SHOWN_KEYS else type(key).__name__
    except ValueError:  # an integer of thousands of digits
        shown = type(key).__name__
    return f"{path}[{shown}]"


def _taken(entry: Entry, value: Any) -> tuple[int, Any]:
    if entry.shape is not None:
        return Tag.OBJECT, {"": entry.name, **entry.shape.take(value)}
    if entry.encode is not None:
        return Tag.CUSTOM, [entry.name, entry.encode(value)]
    if value.__class__.__members__.get(value.name) is value:
        return Tag.ENUM, [entry.name, value.name]
    if isinstance(value, Flag):
        return Tag.ENUM, [entry.name, None, value.value]
    raise Refused(f"not a declared member of the enum {entry.cls.__name__}")


def _set_payload(cls: type, encoded: list[bytes]) -> tuple[int, bytes]:
    return Tag.SET if cls is set else Tag.FROZENSET, array_header(len(encoded)) + b"".join(sorted(encoded))


def _why_not(value: Any) -> str:
    cls = type(value)
    module = "" if cls.__module__ == "builtins" else f" ({cls.__module__})"
    named = f"object of type {cls.__name__}{module}"
    if isinstance(value, type) or cls.__module__ == "builtins":
        return f"{named} cannot be stored"
    return f"{named} cannot be stored unless its type is registered; pass it in types=[…] when opening"
