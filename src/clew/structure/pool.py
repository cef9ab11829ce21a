"""Elements of many states, each decoded once; the states made of them share what they have in common."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Any, Final

from clew.codec import Codec
from clew.errors import CorruptData
from clew.structure.nodes import Node, Run, Span
from clew.structure.reading import value_of
from clew.structure.segments import Segment

__all__ = ["ElementPool"]

_UNCHANGING: Final = frozenset({str, int, float, bool, type(None), bytes})


class ElementPool:
    """The decoded elements of ``spans``, which are disjoint; ``add`` the segments that hold them, each once.

    Lists, tables and records are new with every value, the elements in them are not.
    """

    def __init__(self, codec: Codec, spans: Iterable[Span]) -> None:
        self._codec = codec
        self._wanted: dict[int, list[Span]] = {}
        for span in spans:
            self._wanted.setdefault(span.log, []).append(span)
        self._pieces: dict[int, list[tuple[int, list[Any]]]] = {}
        self._joined = True
        self._small: dict[bytes, Any] = {}

    def add(self, segment: Segment) -> None:
        """Decode what is wanted of the segment."""
        end = segment.start + segment.count
        for span in self._wanted.get(segment.log, ()):
            low, high = max(span.start, segment.start), min(span.end, end)
            if low < high:
                values = self._codec.decode_many(high - low, [segment.chunk(low, high)])
                self._pieces.setdefault(segment.log, []).append((low, values))
                self._joined = False

    def value(self, root: Node) -> Any:
        """The value of a placed form.

        Raises:
            CorruptData: where an element was in no segment.
        """
        return value_of(self._codec, root, self._inline, self._elements)

    def _inline(self, data: bytes) -> Any:
        """Small values are each state's own, unless nobody can change them."""
        if data in self._small:
            return self._small[data]
        value = self._codec.decode(data)
        if type(value) in _UNCHANGING:
            self._small[data] = value
        return value

    def _elements(self, run: Run) -> list[Any]:
        if not self._joined:
            self._join()
        found: list[Any] = []
        for log, start, end in run.spans:
            pieces = self._pieces.get(log, [])
            index = bisect_right(pieces, start, key=lambda piece: piece[0]) - 1
            first, values = pieces[index] if index >= 0 else (end, [])
            if not first <= start < end <= first + len(values):
                raise CorruptData(f"elements {start} to {end} of log {log} are not stored")
            found += values[start - first : end - first]
        return found

    def _join(self) -> None:
        """Make one piece of those that touch, so that a span lies in one piece and is one slice."""
        for log, pieces in self._pieces.items():
            joined: list[tuple[int, list[Any]]] = []
            for start, values in sorted(pieces, key=lambda piece: piece[0]):
                if joined and joined[-1][0] + len(joined[-1][1]) == start:
                    joined[-1][1].extend(values)
                else:
                    joined.append((start, values))
            self._pieces[log] = joined
        self._joined = True
