"""The parts of structural state one by one: manifests, segments and their merging, sets of spans, placing."""

from __future__ import annotations

from functools import reduce
from itertools import count, pairwise
from random import Random
from typing import Any, cast
from zlib import crc32

import ormsgpack
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew.codec import Codec
from clew.errors import CorruptData
from clew.repository.memory import Logs
from clew.repository.segments import changes_for
from clew.structure import (
    Append,
    Inline,
    Kind,
    Node,
    Placement,
    Record,
    Row,
    Run,
    SegmentMap,
    Span,
    SpanSet,
    chunked,
    decode,
    decode_manifest,
    decode_payload,
    decode_spans,
    digest_of,
    due,
    encode,
    encode_payload,
    place,
    runs_of,
    select_channels,
    spans_of,
    wanted,
    with_elements,
)
from clew.structure.manifest import encode_manifest, encode_spans, manifest_size, spans_within
from clew.structure.segments import FULL_BYTES, ROW_BYTES

CODEC = Codec()
WIDE = {f"{number}" + "k" * 200: 1 for number in range(60)}
"""A mapping whose keys alone are more than a manifest takes."""


class Pair(pydantic.BaseModel):
    a: str
    b: int = 1


Broad = pydantic.create_model("Broad", **{f"f{number}": (int, 0) for number in range(65)})  # type: ignore[call-overload]
CODEC.register(Pair, name="a class with a name of forty letters, so")
CODEC.register(Broad, name="another with a name of forty letters, so")


# Manifests


def placed(state: Any, base: Node | None = None, logs: Logs | None = None, first_log: int = 1) -> Placement:
    numbers = count(first_log)
    return place(encode(CODEC, state, base), base, logs or Logs(), lambda: next(numbers))


def logs_of(*placements: Placement) -> Logs:
    logs = Logs()
    for placement in placements:
        kept = {span.log for span in spans_of(placement.root)} | set(logs.rows)
        logs = changes_for(logs, placement.appends, kept).logs
    return logs


STATE = {
    "messages": ["m" * 300, "n" * 300],
    "plan": {"a": 1, "b": ["x" * 300]},
    "n": 5,
    "t": {str(n): n for n in range(70)},
}


def outline(node: Node) -> Any:
    if isinstance(node, Run):
        return (node.kind, node.name, node.spans)
    if isinstance(node, Record):
        return (node.name, node.keys, tuple(outline(child) for child in node.children))
    return node


def test_a_manifest_reads_back_as_the_form_it_was_made_of() -> None:
    placement = placed(STATE)
    assert outline(decode_manifest(placement.manifest, placement.spans)) == outline(placement.root)


@pytest.mark.parametrize("log", [0, 1, 2**63 - 1])
def test_a_manifest_holds_any_log_and_position(log: int) -> None:
    root = Record(None, ("k", ""), (Run(Kind.LIST, spans=(Span(log, 5, 2**40), Span(log, 0, 1))), Inline(b"\x01")))
    assert decode_manifest(*encode_manifest(root)) == root


def test_every_damage_to_a_manifest_or_its_spans_is_noticed() -> None:
    placement = placed(STATE)
    manifest, spans = placement.manifest, placement.spans
    for index in range(len(manifest)):
        damaged = manifest[:index] + bytes([manifest[index] ^ 0x10]) + manifest[index + 1 :]
        with pytest.raises(CorruptData):
            decode_manifest(damaged, spans)
    for index in range(len(spans)):
        with pytest.raises(CorruptData):
            decode_manifest(manifest, spans[:index] + bytes([spans[index] ^ 1]) + spans[index + 1 :])
    for cut in range(len(manifest)):
        with pytest.raises(CorruptData):
            decode_manifest(manifest[:cut], spans)
    with pytest.raises(CorruptData):
        decode_manifest(manifest, b"")


def sealed(outline: Any, spans: bytes = b"") -> tuple[bytes, bytes]:
    """A manifest with a right checksum, whatever it says."""
    body = outline if isinstance(outline, bytes) else ormsgpack.packb(outline)
    return b"\x01" + crc32(body, crc32(spans)).to_bytes(4, "big") + body, spans


ONE_SPAN = ormsgpack.packb([[7], [0, 0, 1]])


@pytest.mark.parametrize(
    ("outline", "spans"),
    [
        (b"", b""),
        (b"\xc1", b""),
        (b"\x91" * 5000 + b"\xc0", b""),
        (reduce(lambda inner, _: [None, "k", inner], range(200), b"\x01"), b""),
        (reduce(lambda inner, _: [None, "k", inner], range(9), b"\x01"), b""),
        (None, b""),
        ("text", b""),
        (1.5, b""),
        ([], b""),
        ([None, "k"], b""),
        ([5, "k", b"\x01"], b""),
        ([None, 5, b"\x01"], b""),
        ([None, ["k"], b"\x01"], b""),
        ({}, b""),
        ({"a": 4, "b": 4}, ONE_SPAN),
        ({"a": "b"}, b""),
        (4, b""),
        (2**62, ONE_SPAN),
        (-4, ONE_SPAN),
        (3, b""),
        (2, b""),
        (0, ONE_SPAN),
        (6, ormsgpack.packb([[7], [0, 0, 2]])),
        (4, ormsgpack.packb([[7], [0, 0, 0]])),
        (4, ormsgpack.packb([[7], [0, -1, 2]])),
        (4, ormsgpack.packb([[7], [-1, 0, 1]])),
        (4, ormsgpack.packb([[7], [1, 0, 1]])),
        (4, ormsgpack.packb([[-7], [0, 0, 1]])),
        (4, ormsgpack.packb([[2**64 - 1], [0, 0, 1]])),
        (4, ormsgpack.packb([[7], [0, 0, 2**64 - 1]])),
        (4, ormsgpack.packb([["7"], [0, 0, 1]])),
        (4, ormsgpack.packb([[7], [0, 0.5, 1]])),
        (4, ormsgpack.packb([[7], [0, 0]])),
        (4, ormsgpack.packb([7, 7])),
        (4, ormsgpack.packb([[7]])),
        (4, ormsgpack.packb(7)),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_what_no_put_writes_is_no_manifest_although_its_checksum_is_right(outline: Any, spans: bytes) -> None:
    with pytest.raises(CorruptData):
        decode_manifest(*sealed(outline, spans))


def test_a_manifest_may_be_as_deep_as_records_nest() -> None:
    outline: Any = reduce(lambda inner, _: [None, "k", inner], range(8), b"\x01")
    assert decode(CODEC, decode_manifest(*sealed(outline)), SegmentMap()) == reduce(
        lambda inner, _: {"k": inner}, range(8), cast(Any, 1)
    )


def test_a_manifest_of_a_newer_version_says_so() -> None:
    placement = placed(STATE)
    with pytest.raises(CorruptData, match="version ee is not known here; a newer clew"):
        decode_manifest(b"\xee" + placement.manifest[1:], placement.spans)


def test_spans_alone_say_what_a_checkpoint_names() -> None:
    placement = placed(STATE)
    assert decode_spans(placement.spans) == spans_of(placement.root)
    assert decode_spans(b"") == []
    for damaged in (b"\xc1", b"\x90", b"\x92\x90\x93\x00\x00\x01", placement.spans[:-1]):
        with pytest.raises(CorruptData):
            decode_spans(damaged)


def test_of_a_checkpoints_spans_those_are_picked_that_reach_into_the_bounds() -> None:
    spans = [Span(5, 0, 10), Span(6, 3, 4), Span(5, 10, 12), Span(5, 12, 20), Span(5, 20, 21), Span(5, 2, 3)]
    data = encode_spans(spans)
    assert spans_within(data, {5: (10, 12), 9: (0, 99)}) == [Span(5, 10, 12)]
    assert spans_within(data, {5: (11, 13)}) == [Span(5, 10, 12), Span(5, 12, 20)]
    assert spans_within(data, {6: (0, 4)}) == [Span(6, 3, 4)]
    assert spans_within(data, {9: (0, 99)}) == []
    assert spans_within(b"", {5: (0, 99)}) == []
    for damaged in (b"\xc1", b"\x90", data[:-1]):
        with pytest.raises(CorruptData):
            spans_within(damaged, {5: (0, 99)})


@pytest.mark.parametrize(
    "state",
    [
        {f"key {number} " + "é" * 30: number for number in range(60)},
        {f"{number}": "x" * 40 for number in range(60)},
        {f"{number}": {"a": {}, "b": ["x" * 300]} for number in range(60)},
        {f"{number}": Pair(a="x" * 300) for number in range(40)},
        {f"{number}": Broad() for number in range(40)},
    ],
    ids=["long keys", "inline leaves", "records and lists", "objects", "broad objects"],
)
def test_the_size_that_decides_a_forms_shape_is_at_least_what_its_manifest_takes(state: Any) -> None:
    placement = placed(state)
    assert len(placement.manifest) - 5 <= manifest_size(placement.root) <= 2 * len(placement.manifest)


# Digests


def test_a_digest_stays_the_same_from_version_to_version() -> None:
    """Else a put that is repeated after an upgrade would be taken for another one."""
    state = {**STATE, "pair": Pair(a="x"), "raw": [b"y" * 300]}
    assert digest_of(encode(CODEC, state)).hex() == "1313a6c401c5a3aaa4a3d39f27a75ca1"


def test_a_digest_is_of_the_value_and_of_nothing_else() -> None:
    base = placed({"l": ["x" * 300]})
    grown = {"l": ["x" * 300, "y" * 300]}
    assert (
        digest_of(encode(CODEC, grown))
        == digest_of(encode(CODEC, grown, base.root))
        == digest_of(placed(grown, base.root).root)
    )


@pytest.mark.parametrize("edited", ["abxcd", "bcd", "abd", "axd", "abcdx", "xabcd", "dcba", "ab", ""])
def test_a_digest_does_not_tell_what_was_taken_from_an_earlier_form(edited: str) -> None:
    base = encode(CODEC, {"l": [letter * 300 for letter in "abcd"]})
    state = {"l": [letter * 300 for letter in edited]}
    assert digest_of(encode(CODEC, state, base)) == digest_of(encode(CODEC, state))


def test_different_values_have_different_digests() -> None:
    values: list[Any] = [
        None, 0, False, 0.0, -0.0, 1, True, "", [], {}, (), [[]], {"a": 1}, {"a": 1, "b": 2}, {"b": 2, "a": 1},
        {"a": {"b": 1}}, {"a": [1]}, ["x" * 300], [["x" * 300]], {"l": ["x" * 300]}, {"l": ("x" * 300,)},
        {"l": "x" * 300},
        {"l": [b"x" * 300]}, {"l": [bytearray(b"x" * 300)]}, {"a": ["x" * 300], "b": []}, {"a": [], "b": ["x" * 300]},
        {str(n): n for n in range(70)}, [[str(n), n] for n in range(70)], {str(n): n for n in reversed(range(70))},
    ]  # fmt: skip
    assert len({digest_of(encode(CODEC, value)) for value in values}) == len(values)


# Segments


@pytest.mark.parametrize("sizes", [[0], [1], [500], [600], [70_000], [0, 0, 0], [1, 2, 3], [300] * 20, [100_000, 1]])
def test_a_payload_reads_back_as_its_elements(sizes: list[int]) -> None:
    elements = [bytes([index % 251]) * size for index, size in enumerate(sizes)]
    segment = decode_payload(1, 10, len(elements), encode_payload(elements))
    assert list(segment.elements) == elements
    assert bytes(segment.chunk(10, 10 + len(elements))) == b"".join(elements)
    assert bytes(segment.chunk(10, 11)) == elements[0]


def test_repetitive_elements_are_compressed_and_random_ones_are_not() -> None:
    assert len(encode_payload([b"word " * 200])) < 100
    noise = bytes((number * 7919 * number) % 256 for number in range(600))
    assert len(encode_payload([noise])) <= 605


@pytest.mark.parametrize("elements", [[b"a" * 20], [b"a", b"bb", b"ccc"], [b"word " * 500], [b"word " * 50] * 20])
def test_every_damage_to_a_payload_is_noticed_and_the_row_is_named(elements: list[bytes]) -> None:
    payload = encode_payload(elements)
    for index in range(len(payload)):
        damaged = payload[:index] + bytes([payload[index] ^ 0x40]) + payload[index + 1 :]
        with pytest.raises(CorruptData, match="log 7, start 3"):
            decode_payload(7, 3, len(elements), damaged)
    for cut in range(len(payload)):
        with pytest.raises(CorruptData, match="log 7, start 3"):
            decode_payload(7, 3, len(elements), payload[:cut])
    with pytest.raises(CorruptData):
        decode_payload(7, 3, len(elements) + 1, payload)


def test_elements_are_cut_into_rows_of_bounded_size_in_their_order() -> None:
    elements = [
        bytes([number % 256]) * size for number, size in enumerate([1, 100_000, 200_000, 300_000, 5, 262_144, 0, 9])
    ]
    chunks = chunked(elements)
    assert [element for chunk in chunks for element in chunk] == elements
    assert all(len(chunk) == 1 or sum(map(len, chunk)) <= ROW_BYTES for chunk in chunks)
    assert all(chunks)


def grown(sizes: list[int]) -> tuple[list[Row], list[int], int]:
    """(the rows after appending elements of these sizes one by one, rows merged by each put, elements rewritten)."""
    logs, merges, rewritten = Logs(), [], 0
    stored: dict[int, Row] = {}
    position = 0
    for size in sizes:
        changes = changes_for(logs, [Append(1, position, [b"x" * size])], {1})
        for _, row in changes.merged:
            assert row.size <= ROW_BYTES
            assert row.elements is not None
            assert sum(map(len, row.elements)) == row.size
            rewritten += row.count
            stored[row.start] = row
        for _, start in changes.absorbed:
            del stored[start]
        for _, row in changes.added:
            stored[row.start] = row
        merges.append(len(changes.absorbed))
        logs, position = changes.logs, position + 1
    rows = [stored[start] for start in sorted(stored)]
    assert [row.start for row in rows] == [0, *[row.end for row in rows]][: len(rows)]
    return rows, merges, rewritten


def test_small_rows_are_merged_in_tiers_of_sixteen() -> None:
    rows, merges, rewritten = grown([100] * 1000)
    assert len(rows) <= 16 * 3
    assert max(merges) == 15
    assert rewritten <= 3 * 1000


def test_no_put_merges_more_than_once_and_no_row_grows_too_large() -> None:
    rows, _, rewritten = grown([1000] * 1500)
    assert max(row.size for row in rows) <= ROW_BYTES
    assert sum(row.size >= FULL_BYTES for row in rows) >= 4
    assert len(rows) <= 50
    assert rewritten <= 3 * 1500


def test_rows_that_are_too_large_together_are_merged_as_far_as_they_fit() -> None:
    rows, merges, _ = grown([20_000] * 20)
    assert max(merges) == 12
    assert [row.count for row in rows] == [13, 1, 1, 1, 1, 1, 1, 1]


def test_rows_of_one_to_fifteen_elements_are_merged_with_each_other_and_with_no_larger_one() -> None:
    small = [Row(0, 15, 10), *(Row(15 + number, 1, 10) for number in range(15))]
    assert due(small) == slice(0, 16)
    assert due([Row(0, 16, 10), *(Row(16 + number, 1, 10) for number in range(15))]) is None
    assert due([Row(0, 16, 10), *(Row(16 + number, 1, 10) for number in range(16))]) == slice(1, 17)


def test_an_element_larger_than_a_row_stands_alone_in_one() -> None:
    assert [len(chunk) for chunk in chunked([b"x" * (ROW_BYTES + 1), b"y", b"z"])] == [1, 2]


def test_a_put_to_two_logs_that_are_due_merges_in_one_of_them() -> None:
    small = tuple(Row(number, 1, 10, (b"x" * 10,)) for number in range(16))
    changes = changes_for(Logs({1: small, 2: small}), [Append(1, 16, [b"y"]), Append(2, 16, [b"y"])], {1, 2})
    assert [(log, row.start, row.count) for log, row in changes.merged] == [(1, 0, 16)]
    assert [len(rows) for rows in changes.logs.rows.values()] == [2, 17]


def test_of_full_rows_the_last_is_remembered_and_without_its_elements() -> None:
    def after(*sizes: int) -> list[tuple[int, bool]]:
        rows = tuple(Row(number, 1, size, (bytes(size),)) for number, size in enumerate(sizes[:-1]))
        changes = changes_for(Logs({1: rows}), [Append(1, len(rows), [bytes(sizes[-1])])], {1})
        return [(row.start, row.elements is None) for row in changes.logs.rows[1]]

    assert after(10, FULL_BYTES) == [(1, True)]
    assert after(FULL_BYTES, 10) == [(0, True), (1, False)]
    assert after(FULL_BYTES, 10, 10) == [(0, True), (1, False), (2, False)]
    assert after(FULL_BYTES, 10, FULL_BYTES, 10, 10, 10) == [(2, True), (3, False), (4, False), (5, False)]


def test_what_compression_would_not_make_smaller_is_stored_as_it_is() -> None:
    assert len(encode_payload([Random(1).randbytes(4000)])) == 4005
    assert len(encode_payload([b"x" * 4000])) < 100


def test_large_elements_are_left_alone() -> None:
    rows, merges, _ = grown([FULL_BYTES] * 40)
    assert len(rows) == 40
    assert max(merges) == 0


@given(
    st.lists(st.sampled_from([1, 90, 1000, 20_000, 60_000, FULL_BYTES - 1, FULL_BYTES, ROW_BYTES + 1]), max_size=200)
)
def test_whatever_is_appended_rows_follow_each_other_and_stay_bounded(sizes: list[int]) -> None:
    rows, _, _ = grown(sizes)
    assert sum(row.count for row in rows) == len(sizes)
    assert all(row.count == 1 or row.size <= ROW_BYTES for row in rows)


def test_rows_that_do_not_touch_or_were_not_read_are_not_merged() -> None:
    apart = [Row(2 * number, 1, 10, (b"x" * 10,)) for number in range(40)]
    assert due(apart) is None
    unread = Logs({1: tuple(Row(number, 1, 10) for number in range(16))})
    assert changes_for(unread, [Append(1, 16, [b"x"])], {1}).merged == ()
    mixed = Logs({1: (*unread.rows[1], *(Row(number, 1, 10, (b"x" * 10,)) for number in range(16, 32)))})
    changes = changes_for(mixed, [Append(1, 32, [b"x"])], {1})
    assert [(row.start, row.count) for _, row in changes.merged] == [(16, 16)]
    assert [row.start for row in changes.logs.rows[1]] == [*range(17), 32]
    assert due([Row(number, 1, 10) for number in range(15)]) is None
    assert due([Row(number, 1, 10) for number in range(16)]) == slice(0, 16)
    assert due([]) is None


# Sets of spans

SPANS = st.lists(
    st.builds(
        lambda log, low, size: Span(log, low, low + size), st.integers(1, 3), st.integers(0, 20), st.integers(1, 8)
    ),
    max_size=8,
)


def positions(spans: Any) -> set[tuple[int, int]]:
    return {(log, position) for log, low, high in spans for position in range(low, high)}


@given(SPANS, SPANS, st.integers(0, 20), st.integers(0, 10))
def test_a_span_set_is_a_set_of_positions(spans: list[Span], removed: list[Span], low: int, size: int) -> None:
    held = SpanSet(spans)
    assert positions(held) == positions(spans)
    held.remove(removed)
    left = positions(spans) - positions(removed)
    assert positions(held) == left
    assert bool(held) is bool(left)
    assert held.logs == sorted({log for log, _ in left})
    for log in (1, 2, 3, 4):
        assert held.covered(log, low, low + size) == len(left & positions([Span(log, low, low + size)]))
    listed = list(held)
    assert listed == sorted(listed)
    assert all(one.log != two.log or one.end <= two.start for one, two in pairwise(listed))


# Placing


def test_a_list_that_grows_extends_its_span_and_appends_at_the_tip() -> None:
    first = placed({"l": ["a" * 300, "b" * 300]})
    second = placed({"l": ["a" * 300, "b" * 300, "c" * 300]}, first.root, logs_of(first), 50)
    assert spans_of(first.root) == [Span(1, 0, 2)]
    assert spans_of(second.root) == [Span(1, 0, 3)]
    assert second.appends == (Append(1, 2, [CODEC.strict("c" * 300)]),)


def test_a_log_is_continued_from_its_tip_only() -> None:
    first = placed({"l": ["a" * 300]})
    left = placed({"l": ["a" * 300, "left" * 100]}, first.root, logs_of(first), 50)
    right = placed({"l": ["a" * 300, "right" * 100]}, first.root, logs_of(first, left), 60)
    assert spans_of(left.root) == [Span(1, 0, 2)]
    assert spans_of(right.root) == [Span(1, 0, 1), Span(60, 0, 1)]


def test_a_log_whose_tip_is_not_known_is_not_continued() -> None:
    first = placed({"l": ["a" * 300]})
    second = placed({"l": ["a" * 300, "b" * 300]}, first.root, Logs(), 50)
    assert spans_of(second.root) == [Span(1, 0, 1), Span(50, 0, 1)]


def test_a_mark_keeps_the_positions_behind_a_lost_tip_from_being_used_again() -> None:
    first = placed({"l": ["a" * 300]})
    marked = Logs({1: (Row(0, 1, 300), Row(2, 0, 0))})
    second = placed({"l": ["a" * 300, "b" * 300]}, first.root, marked, 50)
    assert spans_of(second.root) == [Span(1, 0, 1), Span(50, 0, 1)]


def test_a_block_that_moves_stays_one_span_though_an_element_of_it_stands_elsewhere_too() -> None:
    x, a, y, b, q, r = (letter * 300 for letter in "xaybqr")
    first = placed({"l": [x, a, y, a, b]})
    second = placed({"l": [q, y, a, b, r]}, first.root, logs_of(first), 50)
    assert spans_of(second.root) == [Span(1, 5, 6), Span(1, 2, 5), Span(1, 6, 7)]


def test_what_only_another_checkpoint_names_is_not_matched() -> None:
    first = placed({"l": ["a" * 300]})
    left = placed({"l": ["a" * 300, "shared" * 100]}, first.root, logs_of(first), 50)
    right = placed({"l": ["a" * 300, "x" * 300, "shared" * 100]}, first.root, logs_of(first, left), 60)
    assert [append.elements for append in right.appends] == [[CODEC.strict("x" * 300), CODEC.strict("shared" * 100)]]


def test_what_is_too_broken_is_written_whole_into_a_new_log() -> None:
    items = [f"{number:04}" + "x" * 60 for number in range(2000)]
    first = placed({"l": items, "other": ["o" * 300]})
    second = placed({"l": items[::-1], "other": ["o" * 300]}, first.root, logs_of(first), 50)
    assert spans_of(second.root) == [Span(50, 0, 2000), Span(2, 0, 1)]
    third = placed({"l": items[1::2] + items[::2]}, first.root, logs_of(first), 50)
    assert len(third.spans) <= 4096
    assert len(spans_of(third.root)) == 1


def test_short_elements_are_stored_again_rather_than_pointed_at() -> None:
    first = placed({"l": list(range(300))})
    second = placed({"l": [299, 1, 2, 3, *range(4, 300)]}, first.root, logs_of(first), 50)
    assert len(spans_of(second.root)) <= 3
    assert sum(len(append.elements) for append in second.appends) <= 4


def test_bytes_and_bytearray_in_turn_are_two_values_although_they_pack_alike() -> None:
    base: Placement | None = None
    for number, kind in enumerate([bytes, bytearray, bytearray, bytes]):
        state = {"l": ["a" * 300, kind(b"x" * 300), "b" * 300], "leaf": kind(b"y" * 300)}
        base = placed(state, base.root if base else None, Logs(), 100 * (number + 1))
        back = decode_elements(base.root)
        assert [type(item) for item in back["l"]] == [str, kind, str]
        assert type(back["leaf"]) is kind


def test_a_list_that_loses_the_bytes_at_its_end_is_what_is_left() -> None:
    base = placed({"l": ["a" * 300, b"x" * 300, b"y" * 300]})
    for kept in (["a" * 300], ["a" * 300, b"x" * 300], [b"x" * 300, b"y" * 300], ["b" * 300, b"y" * 300]):
        assert decode_elements(placed({"l": kept}, base.root, logs_of(base), 50).root) == {"l": kept}


def decode_elements(root: Node) -> Any:
    """The value of a placed form by its own elements, as rows would hold them."""
    at: dict[int, dict[int, bytes]] = {}
    for run in runs_of(root):
        where = [(span.log, position) for span in run.spans for position in range(span.start, span.end)]
        for (log, position), element in zip(where, run.elements, strict=True):
            at.setdefault(log, {})[position] = element
    segments = [decode_payload(log, p, 1, encode_payload([e])) for log, held in at.items() for p, e in held.items()]
    return decode(CODEC, decode_manifest(*encode_manifest(root)), SegmentMap(segments))


@pytest.mark.parametrize("state", [STATE, {str(number): b"x" * 100 for number in range(64)}], ids=["any", "spilled"])
def test_a_form_with_its_elements_is_the_form_that_was_placed(state: Any) -> None:
    placement = placed(state)
    segments = [
        decode_payload(append.log, append.start, len(append.elements), encode_payload(append.elements))
        for append in placement.appends
    ]
    bare = decode_manifest(placement.manifest, placement.spans)
    assert with_elements(CODEC, bare, SegmentMap(segments)) == placement.root
    assert decode(CODEC, bare, SegmentMap(segments)) == state


def test_a_span_that_is_not_stored_is_an_error_that_names_it() -> None:
    root = Run(Kind.LIST, spans=(Span(9, 0, 5),))
    part = decode_payload(9, 0, 2, encode_payload([b"\x01", b"\x02"]))
    later = decode_payload(9, 3, 2, encode_payload([b"\x04", b"\x05"]))
    for segments in ([], [part], [later], [part, later]):
        with pytest.raises(CorruptData, match="log 9"):
            decode(CODEC, root, SegmentMap(segments))


def test_only_the_wanted_channels_are_selected_and_their_spans_joined() -> None:
    placement = placed({"a": ["x" * 300], "b": ["y" * 300, "x" * 300], "n": 1})
    assert select_channels(placement.root, None) is placement.root
    chosen = select_channels(placement.root, ["n", "b", "unknown"])
    assert isinstance(chosen, Record)
    assert chosen.keys == ("b", "n")
    assert wanted([chosen]) == sorted(spans_of(chosen))
    overlapping = [
        Run(Kind.LIST, spans=(Span(1, 0, 5), Span(2, 0, 1), Span(1, 3, 9))),
        Run(Kind.LIST, spans=(Span(1, 9, 10),)),
    ]
    assert wanted(overlapping) == [Span(1, 0, 10), Span(2, 0, 1)]


# Shapes


@pytest.mark.parametrize(
    ("value", "kinds"),
    [
        ([1, 2, 3], "i"),
        (["x" * 300], "L"),
        ([1] * 300, "L"),
        ("x" * 300, "l"),
        ("x" * 100, "i"),
        ({"a": 1, "b": ["x" * 300]}, "(iL)"),
        ({}, "()"),
        ({str(n): n for n in range(64)}, "(" + "i" * 64 + ")"),
        ({str(n): n for n in range(65)}, "T"),
        ({1: "x" * 300}, "l"),
        (dict.fromkeys(range(70), "x" * 30), "T"),
        ({"t": ("x" * 300,)}, "(l)"),
        ({"a": {"b": {"c": ["x" * 300]}}}, "(((L)))"),
        (["x" * 253], "i"),
        (["x" * 254], "L"),
        ([1] * 255, "i"),
        ([1] * 256, "L"),
        ({"k" * 256: ["x" * 300]}, "(L)"),
        ({"k" * 257: ["x" * 300]}, "T"),
        ({str(n): "x" * (65 if n else 79) for n in range(56)}, "(" + "i" * 56 + ")"),
        ({str(n): "x" * (65 if n else 80) for n in range(56)}, "(" + "l" * 56 + ")"),
        ({"s": "x" * 31, "t": "x" * 30, **{str(n): "x" * 70 for n in range(56)}}, "(li" + "l" * 56 + ")"),
        ({"a": {"b": {"c": {"d": {"e": WIDE}}}}}, "(((l)))"),
        ({"a": {"b": WIDE}}, "(l)"),
        ({"a": WIDE}, "(l)"),
        (WIDE, "T"),
    ],
)
def test_the_shape_of_a_value(value: Any, kinds: str) -> None:
    def shape(node: Node) -> str:
        if isinstance(node, Record):
            return "(" + "".join(map(shape, node.children)) + ")"
        return "i" if isinstance(node, Inline) else {Kind.LIST: "L", Kind.TABLE: "T", Kind.LEAF: "l"}[node.kind]

    assert shape(encode(CODEC, value)) == kinds


def test_records_nest_to_a_depth_of_eight() -> None:
    value: Any = ["x" * 300]
    for _ in range(12):
        value = {"k": value}
    node, depth = encode(CODEC, value), 0
    while isinstance(node, Record):
        node, depth = node.children[0], depth + 1
    assert depth == 8
    assert isinstance(node, Run)
    assert node.kind is Kind.LEAF
