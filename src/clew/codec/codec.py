"""The codec: one value to msgpack bytes and back. Which values are a state's elements is not known here."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from copy import copy
from typing import Any, Final, TypeVar

from ormsgpack import packb

from clew.codec.extensions import OPTIONS, Refused, array_header, is_plain_text
from clew.codec.frames import MAX_BYTES
from clew.codec.reading import Reading, holds_bytes, rebuilt
from clew.codec.registry import Registry
from clew.codec.writing import Quick, Strict
from clew.errors import CorruptData, UnknownType, Unserializable

__all__ = ["Codec"]

_T = TypeVar("_T")
_MAX_PATH: Final = 300


class Codec:
    """Turns values into bytes and back; `types` are registered as by `register`. Safe to share between threads.

    A value comes back equal and of the same type, at every level, or it is refused. Equal values of different types
    have different bytes. Identity is not kept: what stands in two places comes back as two.
    """

    _reading: type[Reading] = Reading

    def __init__(self, types: Iterable[type] = ()) -> None:
        self._registry = Registry()
        self._load: Callable[[bytes], Any] | None = None
        for cls in types:
            self.register(cls)

    def loading(self, load: Callable[[bytes], Any]) -> Codec:
        """A codec that shares this one's types and reads ``load(value.packed())`` where a ``Serialized`` was stored."""
        other = copy(self)
        other._load = load
        return other

    def register(
        self,
        cls: type,
        *,
        name: str | None = None,
        encode: Callable[[Any], Any] | None = None,
        decode: Callable[[Any], Any] | None = None,
    ) -> None:
        """Makes instances of exactly `cls` storable, under `name` (its module and qualified name).

        An enum, dataclass or pydantic model needs nothing more, and the ones that its fields' annotations lead to come
        with it. Any other class needs `encode`, which returns a value that the codec knows, and `decode`, its inverse.
        Registering a class again is fine; with another name, that one is written from then on and both are read.

        Raises:
            InvalidInput: another class has that name, or this one cannot be registered in this way.
        """
        self._registry.add(cls, name, encode, decode)

    def register_annotation(self, annotation: Any) -> None:
        """Makes storable whatever enums, dataclasses and models a value of this annotation can hold.

        Raises:
            InvalidInput: two different classes would be stored under one name.
        """
        self._registry.add_reachable(annotation)

    def strict(self, value: Any, path: str = "state") -> bytes:
        """The value's bytes, or the exact place of what cannot be kept; `path` is where `value` itself stands.

        Raises:
            Unserializable: something in it is of a type that is not known, or nested deeper than `MAX_DEPTH`; or it
                takes more than `MAX_BYTES`.
        """
        strict = Strict(self._registry)
        try:
            try:
                data = strict.pack(value)
            except RecursionError:
                data = _on_a_fresh_stack(lambda: strict.pack(value))
        except Refused as refusal:
            where = path + "".join(reversed(refusal.steps))
            if len(where) > _MAX_PATH:
                where = f"{where[: _MAX_PATH // 2]}…{where[-_MAX_PATH // 2 :]}"
            raise Unserializable(where, refusal.reason) from refusal.__cause__
        except RecursionError as exc:
            raise Unserializable(path, "encoding it exceeds Python's recursion limit") from exc
        if len(data) > MAX_BYTES:
            raise Unserializable(path, f"takes {len(data)} bytes; one value takes at most {MAX_BYTES}: split it")
        return data

    def quick(self, values: Collection[Any]) -> list[bytes | None]:
        """Each value's bytes as `strict` makes them, without a walk; None where only `strict` can tell.

        Does not see depth, nor what ormsgpack packs by itself: bytearray and memoryview (as bin), its Ext and Fragment.
        So the bytes say that a value is the stored one only where `holds_bin` denies it, or `strict` agrees.
        """
        quick = Quick(self._registry)
        hook = quick.hook
        with suppress(TypeError):  # the usual case, at the speed of one call each
            return [packb(value, hook, OPTIONS) for value in values]
        if quick.interrupt is not None:
            raise quick.interrupt
        packed: list[bytes | None] = []
        for value in values:
            try:
                packed.append(packb(value, hook, OPTIONS))
            except TypeError:
                packed.append(None)
                if quick.interrupt is not None:
                    raise quick.interrupt from None
        return packed

    def decode(self, data: bytes | bytearray | memoryview) -> Any:
        """The value of which `data` are the bytes.

        Raises:
            CorruptData: these are not the bytes of one value.
            UnknownType: it holds an instance of a type that is not registered.
        """
        return self.decode_many(1, [data])[0]

    def decode_many(self, count: int, chunks: Iterable[bytes | bytearray | memoryview]) -> list[Any]:
        """The `count` values whose bytes the chunks are, joined.

        Raises:
            CorruptData: these are not the bytes of that many values.
            UnknownType: one holds an instance of a type that is not registered.
        """
        chunks = list(chunks)
        try:
            return self._reading(self._registry, self._load).values(count, chunks)
        except UnknownType:
            raise
        except CorruptData:
            # Near Python's recursion limit ormsgpack says no more than that its hook failed; so look once more.
            return _on_a_fresh_stack(lambda: self._reading(self._registry, self._load).values(count, chunks))

    @staticmethod
    def array(elements: Sequence[bytes]) -> bytes:
        """The bytes of the list whose items have these bytes."""
        return array_header(len(elements)) + b"".join(elements)

    def fields(self, value: Any) -> tuple[str | None, Mapping[str, Any]] | None:
        """A mapping's name and fields, or None for what is no mapping with plain string keys.

        A plain dict has no name and is its own fields. A registered dataclass or model has its fields in order of
        declaration; what else it carries (extras, private attributes, which fields were set) follows under reserved
        names.
        """
        if type(value) is dict:
            return (None, value) if all(type(key) is str and is_plain_text(key) for key in value) else None
        entry = self._registry.by_class.get(type(value))
        if entry is None or entry.shape is None:
            return None
        try:
            return entry.name, entry.shape.take(value)
        except (AttributeError, Refused):
            return None  # half-made; `strict` says what is wrong with it

    def rebuild(self, name: str | None, fields: dict[str, Any]) -> Any:
        """What `fields` took apart. A missing field takes the class's default; no ``__init__`` and no validator runs.

        Raises:
            UnknownType: no class of that name is registered.
            CorruptData: the class of that name has no fields, or they do not fit it.
        """
        if name is None:
            return fields
        return rebuilt(self._registry, name, fields)

    @staticmethod
    def holds_bin(data: bytes) -> bool:
        """Whether a msgpack bin may stand in the value that has these bytes; False is certain.

        The three marker bytes occur in lengths and texts, too (the header of 964 bytes of text has one), so a value
        that has any of them is decoded and looked through.
        """
        if b"\xc4" not in data and b"\xc5" not in data and b"\xc6" not in data:
            return False
        return holds_bytes(data)


def _on_a_fresh_stack(call: Callable[[], _T]) -> _T:
    """Where the caller's stack is nearly used up, another thread's is not."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(call).result()
