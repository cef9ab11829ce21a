"""From bytes to values. What the bytes look like is said in `extensions`, and how they come about in `writing`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, Final

from ormsgpack import Ext, packb, unpackb

from clew.codec.extensions import READERS, Tag, array_header
from clew.codec.registry import Registry
from clew.errors import ClewError, CorruptData

__all__ = ["Reading", "rebuilt"]

_END: Final = packb(Ext(Tag.END, b""))


class Reading:
    """One call of ormsgpack, and what went wrong in its hook: ormsgpack swallows whatever a hook raises."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._failure: BaseException | None = None

    def values(self, count: int, chunks: Iterable[bytes | bytearray | memoryview]) -> list[Any]:
        """The `count` values whose bytes the chunks are, joined.

        Raises:
            CorruptData: these are not the bytes of that many values.
            UnknownType: one of them is of a type that is not registered.
        """
        # ormsgpack ignores what follows a value, hence the last element, which nothing that is stored can be.
        data = b"".join((array_header(count + 1), *chunks, _END))
        try:
            values: list[Any] = unpackb(data, ext_hook=self._hook)
        except ValueError as exc:
            failure = self._failure
            if failure is not None and (isinstance(failure, ClewError) or not isinstance(failure, Exception)):
                raise failure from failure.__cause__
            raise CorruptData(f"what is stored is not the encoding of {count} values") from (failure or exc)
        if values.pop() is not _END:
            raise CorruptData(f"what is stored is the encoding of more than {count} values")
        return values

    def _hook(self, tag: int, data: bytes) -> Any:
        # One frame of Python for each level: see MAX_DEPTH.
        try:
            if tag in READERS:
                return READERS[tag](data)
            if tag == Tag.END:
                return _END
            return self._given(tag, unpackb(data, ext_hook=self._hook))
        except BaseException as exc:
            self._failure = self._failure or exc
            raise

    def _given(self, tag: int, parts: Any) -> Any:
        if tag == Tag.TUPLE:
            return tuple(parts)
        if tag == Tag.SET:
            return set(parts)
        if tag == Tag.FROZENSET:
            return frozenset(parts)
        if tag == Tag.MAPPING:
            return dict(zip(parts[::2], parts[1::2], strict=True))
        if tag == Tag.OBJECT:
            return rebuilt(self._registry, parts.pop(""), parts)
        if tag == Tag.CUSTOM:
            return _decoded(self._registry, *parts)
        if tag == Tag.ENUM:
            return _member(self._registry, *parts)
        raise CorruptData(f"extension type {tag} is not one that is stored")


def rebuilt(registry: Registry, name: str, fields: Mapping[str, Any]) -> Any:
    """The instance of the registered class that has these fields.

    Raises:
        UnknownType: no class of that name is registered.
        CorruptData: the class of that name has no fields, or these do not fit it.
    """
    shape = registry.named(name).shape
    if shape is None:
        raise CorruptData(f"stored type {name!r} has fields, and what is registered under that name has none")
    try:
        return shape.give(fields)
    except Exception as exc:
        raise CorruptData(f"stored type {name!r} does not fit its class: {type(exc).__name__}") from exc


def _decoded(registry: Registry, name: str, encoded: Any) -> Any:
    decode = registry.named(name).decode
    if decode is None:
        raise CorruptData(f"stored type {name!r} was encoded by a function, and is registered here without one")
    try:
        return decode(encoded)
    except Exception as exc:
        raise CorruptData(f"stored type {name!r} could not be decoded: {type(exc).__name__}") from exc


def _member(registry: Registry, name: str, member: str | None, value: Any = None) -> Any:
    cls = registry.named(name).cls
    if not issubclass(cls, Enum):
        raise CorruptData(f"stored type {name!r} is an enum, and what is registered under that name is none")
    try:
        return cls(value) if member is None else cls[member]
    except (KeyError, ValueError) as exc:
        raise CorruptData(f"stored enum {name!r} has no member {member or value!r} here") from exc
