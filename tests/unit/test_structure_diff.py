"""What differs between two placed forms, against the plain values."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew.codec import Codec
from clew.errors import CorruptData
from clew.records import Difference, DifferenceKind
from clew.structure import (
    Append,
    ElementPool,
    Node,
    Segment,
    SegmentMap,
    Span,
    decode_payload,
    differences,
    encode,
    encode_payload,
    gaps_between,
    place,
    places,
    runs_of,
    same,
    wanted,
    with_elements,
)

CODEC = Codec()


class Thread:
    """Places states one after the other, and keeps what they append."""

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        self.base: Node | None = None
        self._logs = itertools.count()

    def tip(self, log: int) -> int | None:
        return max((found.start + found.count for found in self.segments if found.log == log), default=None)

    def put(self, state: Any, *, apart: bool = False) -> Node:
        placement = place(encode(CODEC, state), None if apart else self.base, self, lambda: next(self._logs))
        self.segments += [_segment(append) for append in placement.appends]
        self.base = with_elements(CODEC, placement.root, SegmentMap(self.segments))
        return placement.root

    def diff(self, before: Node, after: Node, **options: Any) -> list[Difference]:
        """Given only the segments' elements that it says it wants."""
        found = list(places(before, after, **options))
        old = self._only([span for item in found for span in item.wanted_before])
        new = self._only([span for item in found for span in item.wanted_after])
        return [item for spot in found for item in differences(CODEC, spot, old, new)]

    def _only(self, spans: list[Span]) -> SegmentMap:
        cut = []
        for log, start, end in set(spans):
            for part, low, high in SegmentMap(self.segments).pieces(Span(log, start, end)):
                elements = part.elements[low - part.start : high - part.start]
                cut.append(decode_payload(log, low, high - low, encode_payload(elements)))
        return SegmentMap({(part.log, part.start): part for part in cut}.values())


def _segment(append: Append) -> Segment:
    return decode_payload(append.log, append.start, len(append.elements), encode_payload(append.elements))


def rebuilt(before: list[Any], found: list[Difference]) -> list[Any]:
    """``before`` with the differences applied."""
    gone = {item.before_position: item.before for item in found if item.before_position is not None}
    come = {item.after_position: item.after for item in found if item.after_position is not None}
    assert all(before[position] == value for position, value in gone.items())
    kept = iter([item for position, item in enumerate(before) if position not in gone])
    size = len(before) - len(gone) + len(come)
    return [come[position] if position in come else next(kept) for position in range(size)]


elements = st.integers(0, 12).map(lambda number: f"element {number} " * 6)
lists = st.lists(elements, max_size=40)


@pytest.mark.invariant(37)
@given(st.lists(lists, min_size=2, max_size=5), st.booleans())
def test_the_differences_of_two_lists_make_the_one_of_the_other(states: list[list[str]], one_thread: bool) -> None:
    thread = Thread()
    roots = [thread.put({"m": state}) for state in states]
    for before, after in itertools.product(range(len(states)), repeat=2):
        found = thread.diff(roots[before], roots[after], one_thread=one_thread)
        assert all(item.path == ("m",) for item in found)
        assert rebuilt(states[before], found) == states[after]
        assert (found == []) == (states[before] == states[after])


def test_equal_lists_whose_elements_lie_crosswise_do_not_differ() -> None:
    thread = Thread()
    zero, one = "element 0 " * 6, "element 1 " * 6
    first = thread.put({"m": [one] * 5 + [zero, one, zero]})
    thread.put({"m": [zero] * 5})
    third = thread.put({"m": [one] * 5 + [zero, one, zero]})
    assert thread.diff(first, third) == thread.diff(third, first) == []


@given(
    st.lists(st.dictionaries(st.integers(0, 90).map(str), st.integers(0, 3), max_size=90), min_size=2, max_size=4),
)
def test_the_differences_of_two_mappings_make_the_one_of_the_other(states: list[dict[str, int]]) -> None:
    thread = Thread()
    roots = [thread.put({"m": state}) for state in states]
    for before, after in itertools.pairwise(range(len(states))):
        found = thread.diff(roots[before], roots[after])
        made = dict(states[before])
        for item in found:
            if item.kind is DifferenceKind.REMOVED:
                assert made.pop(item.path[1]) == item.before
            elif item.kind is not DifferenceKind.REORDERED:
                assert made.get(item.path[1]) == item.before
                made[item.path[1]] = item.after
        assert made == states[after]
        common = states[before].keys() & states[after].keys()
        reordered = [key for key in states[before] if key in common] != [key for key in states[after] if key in common]
        assert any(item.kind is DifferenceKind.REORDERED for item in found) == reordered


@given(st.lists(lists, min_size=2, max_size=4), st.booleans())
def test_two_forms_are_the_same_exactly_where_their_values_are(states: list[list[str]], apart: bool) -> None:
    thread = Thread()
    roots = [thread.put({"m": state}, apart=apart) for state in states]
    for before, after in itertools.pairwise(range(len(states))):
        assert same(roots[before], roots[after], SegmentMap(thread.segments)) == (states[before] == states[after])


def test_long_forms_whose_elements_lie_crosswise_are_the_same() -> None:
    period = [f"element {number} " * 6 for number in range(100)]
    thread = Thread()
    [one] = runs_of(thread.put({"m": period * 4}))
    [other] = runs_of(thread.put({"m": period}, apart=True))
    [[log, _, _]], [[apart, _, _]] = one.spans, other.spans
    before = replace(one, spans=(Span(log, 0, 300), Span(apart, 0, 100)))
    after = replace(one, spans=(Span(apart, 0, 100), Span(log, 0, 300)))
    assert same(before, after, SegmentMap(thread.segments))
    assert not same(before, replace(one, spans=(Span(log, 1, 301), Span(apart, 0, 100))), SegmentMap(thread.segments))


@pytest.mark.invariant(37)
def test_nothing_that_both_states_share_is_wanted() -> None:
    thread = Thread()
    many = [f"element {number} " * 6 for number in range(1000)]
    before = thread.put({"m": many})
    after = thread.put({"m": [*many[:500], "new", *many[501:], "last"]})
    [place] = places(before, after)
    assert [sum(end - start for _, start, end in spans) for spans in (place.wanted_before, place.wanted_after)] == [
        1,
        2,
    ]


def test_of_two_blocks_that_changed_places_the_smaller_one_moved() -> None:
    [first, second] = gaps_between([Span(1, 0, 3), Span(2, 0, 900)], [Span(2, 0, 900), Span(1, 0, 3)])
    assert (first.before, first.after, first.last) == ((Span(1, 0, 3),), (), False)
    assert (second.before, second.after_at, second.after) == ((), 900, (Span(1, 0, 3),))


def test_the_differences_of_a_shuffled_list_of_10000_make_it_again() -> None:
    thread = Thread()
    many = [f"element {number} " * 3 for number in range(10_000)]
    shuffled = [many[number * 7919 % 10_000] for number in range(10_000)]
    before, after = thread.put({"m": many}), thread.put({"m": shuffled}, apart=True)
    assert rebuilt(many, thread.diff(before, after)) == shuffled


@given(st.lists(lists, min_size=1, max_size=5))
def test_a_pool_gives_every_state_as_it_was(states: list[list[str]]) -> None:
    thread = Thread()
    roots = [thread.put({"m": state, "n": len(state)}) for state in states]
    pool = ElementPool(CODEC, wanted(roots))
    for segment in thread.segments:
        pool.add(segment)
    assert [pool.value(root) for root in roots] == [{"m": state, "n": len(state)} for state in states]


def test_a_pool_misses_what_no_segment_held() -> None:
    thread = Thread()
    root = thread.put({"m": ["x" * 300, "y" * 300]})
    with pytest.raises(CorruptData, match="not stored"):
        ElementPool(CODEC, wanted([root])).value(root)
