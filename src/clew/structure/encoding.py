"""From a value to its encoded form: which parts become records, lists, tables and leaves.

The form is a snapshot: once it is made, mutating the value changes nothing. Where its elements lie is ``placing``'s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, Final

from clew.codec import Codec, child_path
from clew.structure.manifest import manifest_size
from clew.structure.nodes import RECORD_DEPTH, Inline, Kind, Node, Record, Run

__all__ = [
    "INLINE_BYTES",
    "MANIFEST_BYTES",
    "common_prefix",
    "common_suffix",
    "digest_of",
    "element_hash",
    "encode",
    "leaf",
    "spilled",
]

INLINE_BYTES: Final = 256
"""A leaf below this stands in the manifest."""
SPILLED_INLINE_BYTES: Final = 32
"""What still stands inline once a manifest has grown too large."""
RECORD_KEYS: Final = 64
KEY_CHARS: Final = 256
MANIFEST_BYTES: Final = 4096
"""The bound of a manifest's keys and inline leaves together."""

HASH_BYTES: Final = 16


def encode(codec: Codec, value: Any, hint: Node | None = None) -> Node:
    """The encoded form of ``value``, not placed yet.

    ``hint`` is the form of an earlier state (any one: it only saves work). Elements whose packed bytes it has at the
    same place are taken from it without a second look; all others are walked and validated.

    Raises:
        Unserializable: with the path of the first value that cannot be kept as it is.
    """
    for depth in (RECORD_DEPTH, 3, 1):
        node = _Encoder(codec, depth).node(value, hint, "state", 0)
        if manifest_size(node) <= MANIFEST_BYTES:
            return node
        node = spilled(codec, node)
        if manifest_size(node) <= MANIFEST_BYTES:
            return node
    return _Encoder(codec, 0).node(value, hint, "state", 0)


def leaf(data: bytes, below: int = INLINE_BYTES) -> Inline | Run:
    """The leaf whose bytes these are: it stands in the manifest if it has fewer bytes than ``below``."""
    return Inline(data) if len(data) < below else Run(Kind.LEAF, None, [data], [element_hash(data)])


def spilled(codec: Codec, node: Node) -> Node:
    """``node`` with all but the smallest inline leaves moved into logs of their own."""
    if isinstance(node, Inline):
        moved = leaf(node.data, SPILLED_INLINE_BYTES)
        return replace(moved, loose=(0,)) if isinstance(moved, Run) and codec.holds_bin(node.data) else moved
    if isinstance(node, Record):
        return replace(node, children=tuple(spilled(codec, child) for child in node.children))
    return node


def digest_of(node: Node) -> bytes:
    """16 bytes that are equal for equal values, wherever their elements lie."""
    hasher = blake2b(digest_size=HASH_BYTES)
    _feed(hasher.update, node)
    return hasher.digest()


def element_hash(element: bytes) -> bytes:
    """The 16-byte hash by which ``digest_of`` sees an element."""
    return blake2b(element, digest_size=HASH_BYTES).digest()


@dataclass(frozen=True, slots=True)
class _Encoder:
    codec: Codec
    max_depth: int

    def node(self, value: Any, hint: Node | None, path: str, depth: int) -> Node:
        if type(value) is list:
            return self._list(value, hint, path)
        fields = self.codec.fields(value)
        if fields is not None:
            name, mapping = fields
            if depth < self.max_depth and _is_record(mapping):
                return self._record(name, mapping, hint, path, depth)
            if len(mapping) > RECORD_KEYS or (depth == 0 and mapping):
                return self._table(name, mapping, hint, path)
        elif type(value) is dict and len(value) > RECORD_KEYS:
            return self._table(None, value, hint, path)
        return self._leaf(value, hint, path)

    def _record(self, name: str | None, mapping: Mapping[str, Any], hint: Node | None, path: str, depth: int) -> Node:
        partner = hint if isinstance(hint, Record) else None
        children = tuple(
            self.node(value, partner.child(key) if partner else None, child_path(path, key), depth + 1)
            for key, value in mapping.items()
        )
        return Record(name, tuple(mapping), children)

    def _list(self, value: list[Any], hint: Node | None, path: str) -> Node:
        packed = self.codec.quick(value)
        run = self._run(Kind.LIST, None, packed, hint, lambda i: self.codec.strict(value[i], f"{path}[{i}]"))
        if len(run.elements) < INLINE_BYTES and sum(map(len, run.elements)) < INLINE_BYTES:
            return Inline(self.codec.array(run.elements))
        return run

    def _table(self, name: str | None, mapping: Mapping[Any, Any], hint: Node | None, path: str) -> Node:
        pairs = list(mapping.items())
        packed = self.codec.quick([[key, value] for key, value in pairs])

        def strict(index: int) -> bytes:
            key, value = pairs[index]
            spot = child_path(path, key)
            return self.codec.array([self.codec.strict(key, f"key of {spot}"), self.codec.strict(value, spot)])

        return self._run(Kind.TABLE, name, packed, hint, strict)

    def _leaf(self, value: Any, hint: Node | None, path: str) -> Node:
        data = self.codec.strict(value, path)
        if len(data) < INLINE_BYTES:
            return Inline(data)
        return self._run(Kind.LEAF, None, [data], hint, lambda _: data)

    def _run(
        self,
        kind: Kind,
        name: str | None,
        packed: Sequence[bytes | None],
        hint: Node | None,
        strict: Callable[[int], bytes],
    ) -> Run:
        partner = hint if isinstance(hint, Run) and hint.kind is kind else Run(kind)
        known, hashes, count = partner.elements, partner.hashes, len(packed)
        head = common_prefix(packed, known)
        tail = common_suffix(packed, known, head)
        fresh = [strict(index) for index in range(head, count - tail)]
        elements = known[:head] + fresh
        digests = hashes[:head] + [element_hash(element) for element in fresh]
        if tail:
            elements += known[-tail:]
            digests += hashes[-tail:]
        shift = count - len(known)
        suspects = [i for i in partner.loose if i < head] + [i + shift for i in partner.loose if i >= len(known) - tail]
        for index in suspects:  # equal bytes, but a bytearray packs like bytes: look again
            again = strict(index)
            if again != elements[index]:
                elements[index], digests[index] = again, element_hash(again)
        loose = [*suspects, *(head + i for i, element in enumerate(fresh) if self.codec.holds_bin(element))]
        return Run(kind, name, elements, digests, tuple(sorted(loose)))


def common_prefix(left: Sequence[object], right: Sequence[object]) -> int:
    """How many leading elements are equal."""
    limit = min(len(left), len(right))
    if left[:limit] == right[:limit]:  # the usual case, an append, at C speed
        return limit
    low, step = 0, 64
    while low + step <= limit and left[low : low + step] == right[low : low + step]:
        low += step
    while low < limit and left[low] == right[low]:
        low += 1
    return low


def common_suffix(left: Sequence[bytes | None], right: Sequence[bytes | None], head: int) -> int:
    """How many trailing elements are equal, the first ``head`` of either side left out."""
    limit = min(len(left), len(right)) - head
    count = 0
    while count < limit and left[-1 - count] == right[-1 - count]:
        count += 1
    return count


def _is_record(mapping: Mapping[str, Any]) -> bool:
    return len(mapping) <= RECORD_KEYS and all(len(key) <= KEY_CHARS for key in mapping)


def _feed(update: Callable[[bytes], None], node: Node) -> None:
    if isinstance(node, Inline):
        update(b"i%d:" % len(node.data))
        update(node.data)
    elif isinstance(node, Run):
        update(b"%d:%d:%r:" % (node.kind, len(node.hashes), (node.name or "").encode()))
        update(b"".join(node.hashes))
    else:
        update(b"r%r:" % repr((node.name, node.keys)).encode())
        for child in node.children:
            _feed(update, child)
