"""The shapes a state takes when it is encoded: records, runs of elements, inline leaves, and where their elements lie.

Nothing here encodes a value, compares two states or knows a table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias

__all__ = ["RECORD_DEPTH", "Inline", "Kind", "Node", "Record", "Run", "Span", "runs_of", "slice_spans", "spans_of"]


RECORD_DEPTH: Final = 8
"""How deep records nest; what is below is a leaf."""


class Span(NamedTuple):
    """The elements ``start`` (included) to ``end`` (excluded) of one log."""

    log: int
    start: int
    end: int


class Kind(IntEnum):
    """What a run's elements are. The numbers are part of the stored format."""

    LIST = 0
    """One element for each item of the list, in order."""
    TABLE = 1
    """One element for each (key, value) pair of the mapping, in order."""
    LEAF = 2
    """A single element: the whole value."""


@dataclass(frozen=True, slots=True)
class Inline:
    """A small value that stands in the manifest itself, encoded."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Run:
    """A value whose encoded elements lie in logs.

    ``spans`` is empty until the run is placed; ``elements`` and ``hashes`` are empty in a run that was read from a
    manifest alone. ``loose`` are the positions of the elements that may hold a msgpack *bin*, where equal bytes do
    not prove equal values (see ``Codec.quick``).
    """

    kind: Kind
    name: str | None = None
    elements: list[bytes] = field(default_factory=list)
    hashes: list[bytes] = field(default_factory=list)
    loose: tuple[int, ...] = ()
    spans: tuple[Span, ...] = ()

    def placed(self, spans: tuple[Span, ...]) -> Run:
        """The same run, its elements lying in ``spans``."""
        return Run(self.kind, self.name, self.elements, self.hashes, self.loose, spans)

    @property
    def count(self) -> int:
        """How many elements the spans name."""
        return sum(span.end - span.start for span in self.spans)


@dataclass(frozen=True, slots=True)
class Record:
    """A mapping of few string keys, or a registered model: a node for each key, in order."""

    name: str | None
    keys: tuple[str, ...]
    children: tuple[Node, ...]

    def child(self, key: str) -> Node | None:
        """The node under ``key``, or None where the record has no such key."""
        try:
            return self.children[self.keys.index(key)]
        except ValueError:
            return None


Node: TypeAlias = Inline | Run | Record


def runs_of(node: Node) -> Iterator[Run]:
    """Every run below ``node``, in the manifest's order."""
    if isinstance(node, Run):
        yield node
    elif isinstance(node, Record):
        for child in node.children:
            yield from runs_of(child)


def spans_of(node: Node) -> list[Span]:
    """Every span below ``node``, in the manifest's order."""
    return [span for run in runs_of(node) for span in run.spans]


def slice_spans(spans: tuple[Span, ...], start: int, end: int) -> list[Span]:
    """The spans that hold the elements ``start`` to ``end`` (excluded), counted from the first span's first element."""
    found: list[Span] = []
    offset = 0
    for span in spans:
        length = span.end - span.start
        low, high = max(start - offset, 0), min(end - offset, length)
        if low < high:
            found.append(Span(span.log, span.start + low, span.start + high))
        offset += length
        if offset >= end:
            break
    return found
