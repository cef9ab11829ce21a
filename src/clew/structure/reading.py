"""From a manifest and segments back to a value, or to a form that the next state can be matched against."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from clew.codec import Codec
from clew.errors import CorruptData
from clew.structure.encoding import element_hash
from clew.structure.nodes import Inline, Kind, Node, Record, Run, Span, runs_of
from clew.structure.segments import Segment

__all__ = ["SegmentMap", "decode", "select_channels", "value_of", "wanted", "with_elements"]


class SegmentMap:
    """Segments that were read, found by position."""

    def __init__(self, segments: Iterable[Segment] = ()) -> None:
        self._logs: dict[int, list[Segment]] = {}
        for segment in sorted(segments, key=lambda segment: (segment.log, segment.start)):
            self._logs.setdefault(segment.log, []).append(segment)

    def pieces(self, span: Span) -> Iterator[tuple[Segment, int, int]]:
        """(segment, low, high) for every part of ``span``, in order.

        Raises:
            CorruptData: where a position of the span is in no segment.
        """
        segments = self._logs.get(span.log, [])
        position = span.start
        index = bisect_right(segments, position, key=lambda segment: segment.start) - 1
        while position < span.end:
            if not 0 <= index < len(segments):
                raise CorruptData(f"elements {position} to {span.end} of log {span.log} are not stored")
            segment = segments[index]
            high = min(segment.start + segment.count, span.end)
            if not segment.start <= position < high:
                raise CorruptData(f"element {position} of log {span.log} is not stored")
            yield segment, position, high
            position, index = high, index + 1


def decode(codec: Codec, root: Node, segments: SegmentMap) -> Any:
    """The value of a placed form that has its elements, or whose spans all lie in ``segments``."""

    def elements(run: Run) -> list[Any]:
        chunks: Sequence[bytes | memoryview] = run.elements or [
            part.chunk(low, high) for span in run.spans for part, low, high in segments.pieces(span)
        ]
        return codec.decode_many(run.count, chunks)

    return value_of(codec, root, codec.decode, elements)


def value_of(codec: Codec, root: Node, inline: Callable[[bytes], Any], elements: Callable[[Run], list[Any]]) -> Any:
    """The value of a placed form; what its inline leaves and its runs hold is asked of the two functions."""
    if isinstance(root, Inline):
        return inline(root.data)
    if isinstance(root, Record):
        children = {
            key: value_of(codec, child, inline, elements) for key, child in zip(root.keys, root.children, strict=True)
        }
        return codec.rebuild(root.name, children)
    values = elements(root)
    if root.kind is Kind.LEAF:
        return values[0]
    if root.kind is Kind.LIST:
        return values
    return codec.rebuild(root.name, dict(values))


def with_elements(codec: Codec, root: Node, segments: SegmentMap) -> Node:
    """The same form with its elements and their hashes, as a base to match against."""
    if isinstance(root, Run):
        elements = [
            element
            for span in root.spans
            for part, low, high in segments.pieces(span)
            for element in part.elements[low - part.start : high - part.start]
        ]
        loose = tuple(i for i, element in enumerate(elements) if codec.holds_bin(element))
        return replace(root, elements=elements, hashes=[element_hash(element) for element in elements], loose=loose)
    if isinstance(root, Record):
        return replace(root, children=tuple(with_elements(codec, child, segments) for child in root.children))
    return root


def select_channels(root: Node, channels: Collection[str] | None) -> Node:
    """The form with only the named top-level keys, in its own order. All of it for None, or where it has no keys.

    A table stays whole, for its keys lie among its elements; it loses its name, and is read as a plain dict.
    """
    if channels is None or not isinstance(root, Record | Run):
        return root
    if isinstance(root, Run):
        return replace(root, name=None)
    kept = [(key, child) for key, child in zip(root.keys, root.children, strict=True) if key in channels]
    return Record(None, tuple(key for key, _ in kept), tuple(child for _, child in kept))


def wanted(roots: Iterable[Node]) -> list[Span]:
    """The spans that reading all of ``roots`` needs, joined where they touch or overlap, by log and position."""
    joined: list[Span] = []
    for span in sorted({span for root in roots for run in runs_of(root) for span in run.spans}):
        if joined and joined[-1].log == span.log and span.start <= joined[-1].end:
            joined[-1] = Span(span.log, joined[-1].start, max(joined[-1].end, span.end))
        else:
            joined.append(span)
    return joined
