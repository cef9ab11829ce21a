"""What differs between two placed forms. What both name is skipped by its spans alone, without being read.

Pure, in two halves, since only the caller can read: ``places`` finds where they may differ and which spans have to be
read for it; ``differences`` looks into what was read.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clew.codec import Codec
from clew.records import Difference, DifferenceKind
from clew.structure.gaps import Gap, aligned, gaps_between, gaps_in_place
from clew.structure.nodes import Inline, Kind, Node, Record, Run, Span, spans_of
from clew.structure.reading import SegmentMap, decode

__all__ = ["Place", "differences", "places", "same"]


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
    return all(
        _elements(gap.before, segments) == _elements(gap.after, segments)
        for gap in gaps_in_place(before.spans, after.spans)
    )


@dataclass(frozen=True, slots=True)
class _Stretch:
    before_at: int
    before: list[bytes]
    after_at: int
    after: list[bytes]
    last: bool


def _list(codec: Codec, path: tuple[Any, ...], stretch: _Stretch) -> Iterator[Difference]:
    """The differences of one stretch, in which equal elements may still be found by content."""
    i = j = 0
    for at, to in [*aligned(stretch.before, stretch.after), (len(stretch.before), len(stretch.after))]:
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


def _difference(path: tuple[Any, ...], kind: DifferenceKind, **facts: Any) -> Difference:
    given = {"before_position": None, "after_position": None, "before": None, "after": None, **facts}
    return Difference.built(path=path, kind=kind, **given)
