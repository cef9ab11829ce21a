"""One channel's value as a node of the state, element by element through LangGraph's serializer.

What was encoded last is kept for each thread, so that a growing list costs its new elements; where elements lie in the
database is not known here.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from ormsgpack import Ext, packb

from clew.codec import Codec, Serialized
from clew.codec.extensions import Tag, is_plain_text
from clew.errors import Unserializable
from clew.langgraph.fingerprints import Prints, fingerprints
from clew.structure import Inline, Kind, Node, Run
from clew.structure.encoding import INLINE_BYTES, common_prefix, element_hash, leaf

__all__ = ["ChannelForm", "Serde", "Trail", "TrailEntry", "encode_channel", "encode_whole", "serialized"]

_TRAIL_BYTES: Final = 64 * 1024 * 1024


class Serde(Protocol):
    """LangGraph's ``SerializerProtocol``."""

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]: ...

    def loads_typed(self, data: tuple[str, bytes]) -> Any: ...


@dataclass(frozen=True, slots=True)
class ChannelForm:
    """A channel's node, and what it takes to find out which of its elements a later value still has."""

    node: Node
    kind: Kind
    prints: Prints
    elements: list[bytes]
    hashes: list[bytes]

    @property
    def size(self) -> int:
        """About how many bytes it takes in memory."""
        return 3 * sum(map(len, self.elements)) + 200 * len(self.elements)

    @property
    def is_small(self) -> bool:
        """Whether its elements fit into a manifest; none of them is empty."""
        return len(self.elements) < INLINE_BYTES and sum(map(len, self.elements)) < INLINE_BYTES


@dataclass(frozen=True, slots=True)
class TrailEntry:
    """A checkpoint as it was put: its id, its channels' versions, and their forms."""

    checkpoint_id: str
    versions: Mapping[str, Any]
    channels: Mapping[str, ChannelForm]

    def unmoved(self, channel: str, parent_id: str | None, version: Any) -> ChannelForm | None:
        """The form of a channel whose version is still that of the parent, which this has to be."""
        if version is None or parent_id != self.checkpoint_id:
            return None
        known = self.versions.get(channel)
        return self.channels.get(channel) if known == version and type(known) is type(version) else None


@dataclass(slots=True)
class Trail:
    """The last put of each (thread, namespace), up to ``max_bytes``. It only saves work. Safe to share."""

    max_bytes: int = _TRAIL_BYTES
    _entries: OrderedDict[tuple[str, str], tuple[TrailEntry, int]] = field(default_factory=OrderedDict)
    _bytes: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, thread_id: str, namespace: str) -> TrailEntry | None:
        """What was put last there, by this process."""
        with self._lock:
            found = self._entries.get((thread_id, namespace))
            return found[0] if found else None

    def remember(self, thread_id: str, namespace: str, entry: TrailEntry) -> None:
        """Keep ``entry`` in place of the one before it, and drop those that were not used for longest."""
        size = 1000 + sum(form.size for form in entry.channels.values())
        with self._lock:
            self._drop((thread_id, namespace))
            self._entries[thread_id, namespace] = (entry, size)
            self._bytes += size
            while self._bytes > self.max_bytes:
                self._drop(next(iter(self._entries)))

    def forget(self, thread_id: str) -> None:
        """Keep nothing of the thread."""
        with self._lock:
            for key in [key for key in self._entries if key[0] == thread_id]:
                self._drop(key)

    def _drop(self, key: tuple[str, str]) -> None:
        known = self._entries.pop(key, None)
        if known is not None:
            self._bytes -= known[1]


def encode_channel(codec: Codec, serde: Serde, path: str, value: Any, hint: ChannelForm | None = None) -> ChannelForm:
    """The form of a channel's value: a list or a mapping by its elements, anything else whole.

    ``hint`` is the form of an earlier value; elements with the fingerprints of its elements are taken from it.

    Raises:
        Unserializable: naming the channel and the element that the serializer refuses.
    """
    if type(value) is list:
        form = _elements(Kind.LIST, value, hint, lambda i: _item(serde, value[i], path, i))
        if form.is_small:
            return _inline(form, codec.array(form.elements))
        return form
    if type(value) is dict and value and all(type(key) is str and is_plain_text(key) for key in value):
        pairs = list(value.items())
        opaque = serde.dumps_typed("")[0] != "msgpack"  # encrypted, say: then the keys must not stand there in the open

        def pair(index: int) -> bytes:
            key, item = pairs[index]
            name = _dumped(serde, key, f"key of {path}") if opaque else codec.strict(key)
            return codec.array([name, _item(serde, item, path, key)])

        form = _elements(Kind.TABLE, [[key, item] for key, item in pairs], hint, pair)
        if form.is_small:
            return _inline(form, _dumped(serde, value, path))
        return form
    # A bytearray has the fingerprint of its bytes, and by itself it has to come back as one.
    marked = [type(value) is bytearray, value]
    form = _elements(Kind.LEAF, [marked], hint, lambda _: _dumped(serde, value, path))
    return _inline(form, form.elements[0]) if len(form.elements[0]) < INLINE_BYTES else form


def encode_whole(serde: Serde, path: str, value: Any) -> Node:
    """The node of a value that is not a channel's, and is not looked into."""
    return leaf(_dumped(serde, value, path))


def _elements(kind: Kind, values: Sequence[Any], hint: ChannelForm | None, dump: Callable[[int], bytes]) -> ChannelForm:
    if hint is None or hint.kind is not kind:
        elements = [dump(index) for index in range(len(values))]
        return _run(kind, fingerprints(values), elements, [element_hash(element) for element in elements])
    prints, known = fingerprints(values, hint.prints), hint.prints.each
    head = common_prefix(prints.each, known)
    elements, hashes = hint.elements[:head], hint.hashes[:head]
    places = {print_: place for place, print_ in enumerate(known)} if head < len(known) else {}
    for index in range(head, len(values)):
        place = places.get(prints.each[index])
        element = dump(index) if place is None else hint.elements[place]
        elements.append(element)
        hashes.append(element_hash(element) if place is None else hint.hashes[place])
    return _run(kind, prints, elements, hashes)


def _run(kind: Kind, prints: Prints, elements: list[bytes], hashes: list[bytes]) -> ChannelForm:
    return ChannelForm(Run(kind, None, elements, hashes), kind, prints, elements, hashes)


def _inline(form: ChannelForm, data: bytes) -> ChannelForm:
    return ChannelForm(Inline(data), form.kind, form.prints, form.elements, form.hashes)


def serialized(serde: Serde, value: Any, path: str) -> Serialized:
    """The value as the serializer writes it.

    Raises:
        Unserializable: with ``path``, where the serializer refuses it.
    """
    try:
        name, data = serde.dumps_typed(value)
    except Exception as exc:
        raise Unserializable(path, f"LangGraph's serializer refuses it: {exc}") from exc
    return Serialized(name, bytes(data))


def _dumped(serde: Serde, value: Any, path: str, key: object = None) -> bytes:
    """The stored element. ``key`` is put behind ``path`` only where something goes wrong."""
    try:
        name, data = serde.dumps_typed(value)
    except Exception:  # noqa: BLE001  the second time it raises with the path
        where = path if key is None else f"{path}[{key!r}]"
        return packb(Ext(Tag.SERIALIZED, serialized(serde, value, where).packed()))
    if name == "msgpack":  # as ``Serialized.packed`` has it, for a quarter of the time
        return packb(Ext(Tag.SERIALIZED, b"\0" + data))
    return packb(Ext(Tag.SERIALIZED, Serialized(name, bytes(data)).packed()))


def _item(serde: Serde, value: Any, path: str, key: object) -> bytes:
    # Inside a list LangGraph's serializer makes bytes of a bytearray; by itself it would stay one.
    return _dumped(serde, bytes(value) if type(value) is bytearray else value, path, key)
