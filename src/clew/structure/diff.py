"""What differs between two placed forms. What both name is skipped by its spans alone, without being read.

Pure, in two halves, since only the caller can read: ``places`` finds where they may differ and which spans have to be
read for it; ``differences`` looks into what was read.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from clew.codec import Codec
from clew.records import Difference, DifferenceKind
from clew.structure.nodes import Inline, Kind, Node, Record, Run, Span, spans_of
from clew.structure.reading import SegmentMap, decode

__all__ = ["Gap", "Place", "differences", "gaps_between", "places", "same"]


_FEW = 64


@dataclass(frozen=True, slots=True)
class Gap:
    """A stretch between shared elements: what stands there before and after, and at which positions it begins."""

    before_at: int
    before: tuple[Span, ...]
    after_at: int
    after: tuple[Span, ...]
    last: bool
    """Whether nothing shared follows."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where two forms may differ. ``gaps`` is None where the two nodes have to be read whole; a side may be missing."""

    path: tuple[Any, ...]
    before: Node | None
    after: Node | None
    gaps: tuple[Gap, ...] | None = None

    @property
    def wanted_before(self) -> list[Span]:
        """What has to be read of the earlier state."""
        if self.gaps is not None:
            return [span for gap in self.gaps for span in gap.before]
        return spans_of(self.before) if self.before is not None else []

    @property
    def wanted_after(self) -> list[Span]:
        """What has to be read of the later state."""
        if self.gaps is not None:
            return [span for gap in self.gaps for span in gap.after]
        return spans_of(self.after) if self.after is not None else []


def places(before: Node, after: Node, *, one_thread: bool = True, path: tuple[Any, ...] = ()) -> Iterator[Place]:
    """Where the two may differ, in the order of ``after``, removed keys last.

    Spans say nothing where the two are not of ``one_thread``: logs are a thread's own, also where their ids agree.
    """
    if isinstance(before, Record) and isinstance(after, Record) and before.name == after.name:
        for key, child in zip(after.keys, after.children, strict=True):
            earlier = before.child(key)
            if earlier is None:
                yield Place((*path, key), None, child)
            else:
                yield from places(earlier, child, one_thread=one_thread, path=(*path, key))
        for key, child in zip(before.keys, before.children, strict=True):
            if after.child(key) is None:
                yield Place((*path, key), child, None)
        if _reordered(before.keys, after.keys):
            yield Place(path, before, after, ())
    elif isinstance(before, Run) and isinstance(after, Run) and (before.kind, before.name) == (after.kind, after.name):
        found = gaps_between(before.spans, after.spans, one_thread=one_thread)
        if found:
            yield Place(path, before, after, None if after.kind is Kind.LEAF else tuple(found))
    elif not (isinstance(before, Inline) and before == after):
        yield Place(path, before, after)


def differences(codec: Codec, place: Place, before: SegmentMap, after: SegmentMap) -> Iterator[Difference]:
    """What differs at a place, once the spans that it wants are read."""
    if place.gaps is None:
        if place.before is None and place.after is not None:
            yield _difference(place.path, DifferenceKind.ADDED, after=decode(codec, place.after, after))
        elif place.after is None and place.before is not None:
            yield _difference(place.path, DifferenceKind.REMOVED, before=decode(codec, place.before, before))
        elif place.before is not None and place.after is not None:
            yield from _values(
                codec, place.path, decode(codec, place.before, before), decode(codec, place.after, after)
            )
    elif isinstance(place.after, Record):
        yield _difference(place.path, DifferenceKind.REORDERED)
    else:
        stretches = [
            _Stretch(gap.before_at, _elements(gap.before, before), gap.after_at, _elements(gap.after, after), gap.last)
            for gap in place.gaps
        ]
        if isinstance(place.after, Run) and place.after.kind is Kind.TABLE:
            yield from _table(codec, place.path, stretches)
        else:
            yield from (found for stretch in stretches for found in _list(codec, place.path, stretch))


def same(before: Node | None, after: Node | None, segments: SegmentMap) -> bool:
    """Whether two forms of one thread are of equal values; ``segments`` hold all that they name.

    Only what does not lie in the same place at the same position is compared, but all of that.
    """
    if isinstance(before, Record) and isinstance(after, Record):
        children = zip(before.children, after.children, strict=False)
        return (before.name, before.keys) == (after.name, after.keys) and all(
            same(earlier, later, segments) for earlier, later in children
        )
    if isinstance(before, Run) and isinstance(after, Run):
        return (before.kind, before.name) == (after.kind, after.name) and _same_elements(before, after, segments)
    return before == after


def _same_elements(before: Run, after: Run, segments: SegmentMap) -> bool:
    if before.count != after.count:
        return False
    left, right = _cut(before.spans, after.spans), _cut(after.spans, before.spans)
    i = j = 0
    for at, to in [*_staying(left, right), (len(left), len(right))]:
        if _elements(left[i:at], segments) != _elements(right[j:to], segments):
            return False
        i, j = at + 1, to + 1
    return True


def gaps_between(before: Sequence[Span], after: Sequence[Span], *, one_thread: bool = True) -> list[Gap]:
    """The stretches between the spans that both have in the same order; the heaviest choice where they are moved.

    Equal elements may lie in different places, so that two equal lists share spans crosswise. Where staying in place
    is nearly as good a choice, it is taken: then equal lists are seen to be equal, for a few more elements read.
    """
    left, right = _cut(before, after), _cut(after, before)
    anchors = _aligned(left, right, lambda span: span.end - span.start) if one_thread else []
    if anchors and _length(before) == _length(after):
        staying = _staying(left, right)
        total, moved, stayed = _length(left), _length(left[i] for i, _ in anchors), _length(left[i] for i, _ in staying)
        if total - stayed <= 2 * (total - moved) + _FEW:
            anchors = staying
    found: list[Gap] = []
    before_at = after_at = i = j = 0
    for at, to in [*anchors, (len(left), len(right))]:
        if i < at or j < to:
            last = at == len(left) and to == len(right)
            found.append(Gap(before_at, tuple(left[i:at]), after_at, tuple(right[j:to]), last))
        shared = left[at].end - left[at].start if at < len(left) else 0
        before_at += _length(left[i:at]) + shared
        after_at += _length(right[j:to]) + shared
        i, j = at + 1, to + 1
    return found


@dataclass(frozen=True, slots=True)
class _Stretch:
    before_at: int
    before: list[bytes]
    after_at: int
    after: list[bytes]
    last: bool


def _cut(spans: Sequence[Span], others: Sequence[Span]) -> list[Span]:
    """``spans``, cut wherever a span of either side begins or ends, so that what both have is equal."""
    cuts: dict[int, set[int]] = {}
    for log, start, end in (*spans, *others):
        cuts.setdefault(log, set()).update((start, end))
    ordered = {log: sorted(found) for log, found in cuts.items()}
    pieces: list[Span] = []
    for log, start, end in spans:
        edges = ordered[log]
        inner = edges[bisect_right(edges, start) : bisect_left(edges, end)]
        for low, high in zip([start, *inner], [*inner, end], strict=True):
            pieces.append(Span(log, low, high))
    return pieces


def _staying(left: Sequence[Span], right: Sequence[Span]) -> list[tuple[int, int]]:
    """Pairs of positions with equal spans that begin with the same element of the list on both sides."""
    starts = {start: position for position, start in enumerate(_starts(right))}
    pairs = [(position, starts.get(start)) for position, start in enumerate(_starts(left))]
    return [(at, to) for at, to in pairs if to is not None and left[at] == right[to]]


def _starts(spans: Sequence[Span]) -> Iterator[int]:
    return accumulate((span.end - span.start for span in spans[:-1]), initial=0)


def _aligned(
    left: Sequence[Hashable], right: Sequence[Hashable], weight: Callable[[Any], int] = lambda _: 1
) -> list[tuple[int, int]]:
    """Pairs of positions with equal items, growing on both sides: the heaviest such chain.

    The n-th occurrence on one side is paired with the n-th on the other, so it takes n·log n. ``difflib`` was tried:
    of 10,000 shuffled elements it keeps 12 in place instead of 187, and with 12 different values among 2,000 elements
    it takes 126 ms instead of 5, growing with the square.
    """
    positions: dict[Hashable, deque[int]] = {}
    for position, item in enumerate(right):
        positions.setdefault(item, deque()).append(position)
    chains: list[tuple[int, int, int]] = []  # (position left, right, the chain's ordinal that it continues)
    heaviest: list[tuple[int, int]] = [(0, -1)] * (len(right) + 1)  # a Fenwick tree of (weight, ordinal)
    for position, item in enumerate(left):
        waiting = positions.get(item)
        if not waiting:
            continue
        partner = waiting.popleft()
        total, previous = 0, -1
        index = partner
        while index > 0:
            total, previous = max((total, previous), heaviest[index])
            index -= index & -index
        entry = (total + weight(item), len(chains))
        chains.append((position, partner, previous))
        index = partner + 1
        while index <= len(right):
            heaviest[index] = max(heaviest[index], entry)
            index += index & -index
    ordinal, index = (0, -1), len(right)
    while index > 0:
        ordinal = max(ordinal, heaviest[index])
        index -= index & -index
    found: list[tuple[int, int]] = []
    at = ordinal[1]
    while at >= 0:
        position, partner, at = chains[at]
        found.append((position, partner))
    return found[::-1]


def _list(codec: Codec, path: tuple[Any, ...], stretch: _Stretch) -> Iterator[Difference]:
    """The differences of one stretch, in which equal elements may still be found by content."""
    i = j = 0
    for at, to in [*_aligned(stretch.before, stretch.after), (len(stretch.before), len(stretch.after))]:
        gone, come = stretch.before[i:at], stretch.after[j:to]
        at_end = stretch.last and at == len(stretch.before) and to == len(stretch.after)
        for offset in range(max(len(gone), len(come))):
            yield _difference(
                path,
                DifferenceKind.REPLACED
                if offset < min(len(gone), len(come))
                else DifferenceKind.DROPPED
                if offset < len(gone)
                else DifferenceKind.APPENDED
                if at_end
                else DifferenceKind.INSERTED,
                before_position=stretch.before_at + i + offset if offset < len(gone) else None,
                after_position=stretch.after_at + j + offset if offset < len(come) else None,
                before=codec.decode(gone[offset]) if offset < len(gone) else None,
                after=codec.decode(come[offset]) if offset < len(come) else None,
            )
        i, j = at + 1, to + 1


def _table(codec: Codec, path: tuple[Any, ...], stretches: Sequence[_Stretch]) -> Iterator[Difference]:
    """By key. A key that stands in two different stretches, or in another order in one, was moved."""
    gone = _pairs(codec, [stretch.before for stretch in stretches])
    come = _pairs(codec, [stretch.after for stretch in stretches])
    yield from _by_key(path, gone, come)
    moved = any(key in gone and gone[key].place != item.place for key, item in come.items())
    if moved or _reordered(list(gone), list(come)):
        yield _difference(path, DifferenceKind.REORDERED)


def _values(codec: Codec, path: tuple[Any, ...], before: Any, after: Any) -> Iterator[Difference]:
    """The differences of two values that are here whole: lists by position, mappings by path, others as they are."""
    if codec.strict(before) == codec.strict(after):
        return
    if type(before) is list and type(after) is list:
        yield from _list(
            codec,
            path,
            _Stretch(0, [codec.strict(item) for item in before], 0, [codec.strict(item) for item in after], True),
        )
        return
    earlier, later = _mapping(codec, before), _mapping(codec, after)
    if earlier is None or later is None or earlier[0] != later[0]:
        yield _difference(path, DifferenceKind.CHANGED, before=before, after=after)
        return
    old, new = _entries(codec, earlier[1]), _entries(codec, later[1])
    for found in _by_key(path, old, new):
        if found.kind is DifferenceKind.CHANGED:
            yield from _values(codec, found.path, found.before, found.after)
        else:
            yield found
    if _reordered(list(old), list(new)):
        yield _difference(path, DifferenceKind.REORDERED)


@dataclass(frozen=True, slots=True)
class _Entry:
    key: Any
    value: Any
    data: bytes
    place: int = 0


def _by_key(path: tuple[Any, ...], old: Mapping[bytes, _Entry], new: Mapping[bytes, _Entry]) -> Iterator[Difference]:
    for key, entry in new.items():
        earlier = old.get(key)
        if earlier is None:
            yield _difference((*path, entry.key), DifferenceKind.ADDED, after=entry.value)
        elif earlier.data != entry.data:
            yield _difference((*path, entry.key), DifferenceKind.CHANGED, before=earlier.value, after=entry.value)
    for key, entry in old.items():
        if key not in new:
            yield _difference((*path, entry.key), DifferenceKind.REMOVED, before=entry.value)


def _pairs(codec: Codec, stretches: Iterable[Sequence[bytes]]) -> dict[bytes, _Entry]:
    entries = {}
    for place, elements in enumerate(stretches):
        for element in elements:
            key, value = codec.decode(element)
            entries[codec.strict(key)] = _Entry(key, value, element, place)
    return entries


def _entries(codec: Codec, mapping: Mapping[Any, Any]) -> dict[bytes, _Entry]:
    return {codec.strict(key): _Entry(key, value, codec.strict(value)) for key, value in mapping.items()}


def _mapping(codec: Codec, value: Any) -> tuple[str | None, Mapping[Any, Any]] | None:
    return codec.fields(value) or ((None, value) if type(value) is dict else None)


def _reordered(before: Sequence[Hashable], after: Sequence[Hashable]) -> bool:
    """Whether the items that both have stand in another order."""
    here, there = set(before), set(after)
    return [item for item in before if item in there] != [item for item in after if item in here]


def _elements(spans: Iterable[Span], segments: SegmentMap) -> list[bytes]:
    return [
        bytes(part.chunk(position, position + 1))
        for span in spans
        for part, low, high in segments.pieces(span)
        for position in range(low, high)
    ]


def _length(spans: Iterable[Span]) -> int:
    return sum(span.end - span.start for span in spans)


def _difference(path: tuple[Any, ...], kind: DifferenceKind, **facts: Any) -> Difference:
    given = {"before_position": None, "after_position": None, "before": None, "after": None, **facts}
    return Difference.built(path=path, kind=kind, **given)
