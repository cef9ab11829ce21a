"""From bytes to values. What the bytes look like is said in `extensions`, and how they come about in `writing`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any, Final

from ormsgpack import Ext, packb, unpackb

from clew.codec.extensions import READERS, Tag, array_header
from clew.codec.registry import Registry
from clew.errors import ClewError, CorruptData

__all__ = ["Reading", "holds_bytes", "rebuilt"]

_END: Final = object()


class Reading:
    """One call of ormsgpack, and what went wrong in its hook: ormsgpack swallows whatever a hook raises."""

    def __init__(self, registry: Registry, load: Callable[[bytes], Any] | None = None) -> None:
        self._registry = registry
        self._load = load
        self._failure: BaseException | None = None
        self._end = b""

    def values(self, count: int, chunks: Iterable[bytes | bytearray | memoryview]) -> list[Any]:
        """The `count` values whose bytes the chunks are, joined.

        Raises:
            CorruptData: these are not the bytes of that many values.
            UnknownType: one of them is of a type that is not registered.
        """
        # ormsgpack ignores what follows a value, hence one more element, which tells how long the others are.
        chunks = list(chunks)
        self._end = sum(map(len, chunks)).to_bytes(8)
        data = b"".join((array_header(count + 1), *chunks, packb(Ext(Tag.END, self._end))))
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
            if tag == Tag.SERIALIZED and self._load is not None:
                return self._load(data)
            if tag in READERS:
                return READERS[tag](data)
            if tag == Tag.END and data == self._end:
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


def holds_bytes(data: bytes) -> bool:
    """Whether any bytes object stands in the value, or may stand in an extension of it."""
    waiting: list[Any] = [unpackb(data, ext_hook=_seen_extension)]
    while waiting:
        value = waiting.pop()
        if isinstance(value, bytes):
            return True
        if isinstance(value, dict):
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)
    return False


def _seen_extension(_tag: int, data: bytes) -> bytes | None:
    return data if b"\xc4" in data or b"\xc5" in data or b"\xc6" in data else None
