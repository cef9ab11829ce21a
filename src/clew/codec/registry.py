"""The types that a codec knows by name, and what their field annotations lead to. Nothing is ever imported by name."""

from __future__ import annotations

import dataclasses
import inspect
import sys
import threading
import typing
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

from pydantic import BaseModel

from clew.codec.extensions import LEAVES
from clew.codec.objects import DataclassShape, ModelShape, Shape
from clew.errors import InvalidInput, UnknownType

__all__ = ["Entry", "Registry", "qualified_name"]

_BUILT_IN: Final = frozenset({*LEAVES, type(None), bool, float, bytes, memoryview, list, dict, tuple, set, frozenset})


class Entry(NamedTuple):
    """A registered type: an enum, or a class with a shape, or one with functions of its own."""

    name: str
    cls: type
    shape: Shape | None = None
    encode: Callable[[Any], Any] | None = None
    decode: Callable[[Any], Any] | None = None


class Registry:
    """Registered types by class and by name. Safe to use from many threads, while types are added too."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_name: dict[str, Entry] = {}
        self.by_class: dict[type, Entry] = {}

    def add(
        self,
        cls: Any,
        name: str | None = None,
        encode: Callable[[Any], Any] | None = None,
        decode: Callable[[Any], Any] | None = None,
    ) -> None:
        """Adds `cls` and, where it has annotated fields, what they lead to.

        A second name for the same class is the one written from then on; the first still reads.
        """
        if not isinstance(cls, type) or cls in _BUILT_IN:
            raise InvalidInput(f"register {cls!r}: not a class that can be registered")
        if (encode is None) != (decode is None):
            raise InvalidInput(f"register {cls.__name__}: encode and decode go together; give both or neither")
        entry = _entry(cls, name or qualified_name(cls), encode, decode)
        if entry is None:
            raise InvalidInput(
                f"register {cls.__name__}: not an enum, dataclass or pydantic model; give encode and decode for it"
            )
        with self._lock:
            self._put(entry, renaming=name is not None or encode is not None)
            if entry.shape:
                self._put_reachable(_annotations(cls))

    def add_reachable(self, annotation: Any) -> None:
        """Adds the enums, dataclasses and models that values of this annotation can hold, itself included."""
        with self._lock:
            self._put_reachable([annotation])

    def named(self, name: Any) -> Entry:
        """The entry of that name.

        Raises:
            UnknownType: nothing of that name is registered.
        """
        entry = self._by_name.get(name) if isinstance(name, str) else None
        if entry is None:
            raise UnknownType(str(name))
        return entry

    def _put_reachable(self, annotations: Iterable[Any]) -> None:
        for found in _reachable(annotations):
            reached = None if found in self.by_class else _entry(found, qualified_name(found))
            if reached is not None:
                self._put(reached, renaming=False)

    def _put(self, entry: Entry, *, renaming: bool) -> None:
        holder = self._by_name.get(entry.name)
        if holder is not None and holder.cls is not entry.cls:
            raise InvalidInput(
                f"register {entry.cls!r}: the name {entry.name!r} is taken by {holder.cls!r}; give another name="
            )
        if renaming or entry.cls not in self.by_class:
            self._by_name[entry.name] = self.by_class[entry.cls] = entry


def qualified_name(cls: Any) -> str:
    """The class's module and qualified name; for a generic model those of its arguments too."""
    generic = cls.__dict__.get("__pydantic_generic_metadata__") if isinstance(cls, type) else None
    if generic and generic["args"]:
        arguments = ", ".join(map(qualified_name, generic["args"]))
        return f"{qualified_name(generic['origin'])}[{arguments}]"
    return f"{cls.__module__}.{cls.__qualname__}" if isinstance(cls, type) else str(cls)


def _entry(
    cls: type, name: str, encode: Callable[[Any], Any] | None = None, decode: Callable[[Any], Any] | None = None
) -> Entry | None:
    if encode is not None:
        return Entry(name, cls, None, encode, decode)
    if issubclass(cls, Enum):
        return Entry(name, cls)
    if issubclass(cls, BaseModel):
        cls.model_rebuild(raise_errors=False)
        return Entry(name, cls, ModelShape(cls))
    if dataclasses.is_dataclass(cls) and _is_made_of_fields(cls):
        return Entry(name, cls, DataclassShape(cls))
    return None


def _is_made_of_fields(cls: type) -> bool:
    """A dataclass that is also a list, a dict or an exception holds more than its fields say."""
    try:
        object.__new__(cls)
    except TypeError:
        return inspect.isabstract(cls)
    return True


def _reachable(annotations: Iterable[Any]) -> Iterator[type]:
    """The enums, dataclasses and models that the annotations name or lead to by their fields' annotations."""
    seen: set[Any] = set()
    waiting: list[Any] = list(annotations)
    while waiting:
        annotation = waiting.pop()
        try:
            if annotation in seen:
                continue
            seen.add(annotation)
        except TypeError:  # a Literal or an Annotated may hold what has no hash; it cannot hold itself
            pass
        if isinstance(annotation, type) and typing.get_origin(annotation) is None:
            if issubclass(annotation, (Enum, BaseModel)) or dataclasses.is_dataclass(annotation):
                yield annotation
            waiting.extend(_annotations(annotation))
        elif isinstance(annotation, Enum):
            yield type(annotation)
        else:
            waiting.extend(_parts(annotation))


def _parts(annotation: Any) -> Iterator[Any]:
    if isinstance(annotation, list):
        yield from annotation
    yield from typing.get_args(annotation)
    yield typing.get_origin(annotation)
    if isinstance(annotation, typing.TypeVar):
        yield from (annotation.__bound__, *annotation.__constraints__)
    for attribute in ("__supertype__", "__value__"):  # NewType, and the ``type`` statement's aliases
        yield getattr(annotation, attribute, None)


def _annotations(cls: type) -> Iterator[Any]:
    if issubclass(cls, BaseModel):
        yield from (field.annotation for field in cls.model_fields.values())
    if issubclass(cls, BaseModel) or dataclasses.is_dataclass(cls) or typing.is_typeddict(cls):
        for owner in cls.__mro__:
            module = vars(sys.modules.get(owner.__module__, typing))
            for name, annotation in inspect.get_annotations(owner).items():
                lone = SimpleNamespace(__annotations__={name: annotation})
                try:
                    yield typing.get_type_hints(lone, module, dict(vars(owner)))[name]
                except Exception:  # noqa: BLE001  one name known only to type checkers must not hide the other fields
                    continue
