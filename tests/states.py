"""Random states and random edits of them, for Hypothesis; and what it means that one came back as it was."""

from __future__ import annotations

import math
from copy import deepcopy
from datetime import datetime
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 2),
    st.sampled_from(
        [1.0, 0.0, -0.0, 2**70, "", "a", "1", "a\0", "\ud800", b"1", bytearray(b"1"), (1,), Decimal("1.10")]
    ),
)
LARGE = st.builds(
    lambda letter, size, kind: kind(letter * size),
    st.sampled_from(["a", "b", "c"]),
    st.integers(240, 420),
    st.sampled_from(
        [str, str, str, lambda text: text.encode(), lambda text: bytearray(text.encode()), lambda text: (text,)]
    ),
)
ELEMENTS = st.one_of(SCALARS, LARGE, st.builds(lambda n: {"n": n, "text": f"{n}" * 40}, st.integers(0, 9)))
LISTS = st.one_of(st.lists(ELEMENTS, max_size=12), st.lists(LARGE, min_size=5, max_size=30))
TABLES = st.builds(
    lambda count, value: {f"key-{number}": f"{value}-{number % 7}" for number in range(count)},
    st.integers(63, 70),
    st.sampled_from("xyz"),
)
ODD_KEYS = st.dictionaries(
    st.one_of(st.integers(-1, 1), st.sampled_from(["1", "0", None, (1,), 2**70, 1.5])), ELEMENTS, max_size=4
)
VALUES = st.recursive(
    st.one_of(SCALARS, LARGE, LISTS, TABLES, ODD_KEYS),
    lambda inner: st.dictionaries(st.sampled_from(["a", "b", "c", "messages"]), inner, max_size=4),
    max_leaves=6,
)
STATES = st.one_of(
    st.dictionaries(st.sampled_from(["messages", "files", "plan", "agent", "n"]), VALUES, max_size=5),
    st.dictionaries(st.sampled_from(["messages", "files", "plan", "agent", "n"]), VALUES, min_size=2, max_size=5),
    VALUES,
)


@st.composite
def edits(draw: st.DrawFn, state: Any) -> Any:
    """``state`` after one to three small changes, in a copy of its own."""
    state = deepcopy(state)
    for _ in range(draw(st.integers(1, 3))):
        state = draw(_edited(state))
    return state


@st.composite
def _edited(draw: st.DrawFn, value: Any) -> Any:
    if isinstance(value, dict) and value:
        keys = list(value)
        if draw(st.integers(0, 9)) < 6:
            key = draw(st.sampled_from(keys))
            value[key] = draw(_edited(value[key]))
            return value
        return draw(_rekeyed(value))
    if isinstance(value, list) and value:
        return draw(_reordered(value))
    return draw(VALUES)


@st.composite
def _reordered(draw: st.DrawFn, items: list[Any]) -> list[Any]:
    at, other = draw(st.integers(0, len(items) - 1)), draw(st.integers(0, len(items) - 1))
    low, high = min(at, other), max(at, other)
    match draw(st.integers(0, 10)):
        case 0 | 1 | 2:
            return [*items, *draw(st.lists(ELEMENTS, min_size=1, max_size=3))]
        case 3:
            return [*items[:at], draw(ELEMENTS), *items[at:]]
        case 4:
            return items[at:]
        case 5:
            return [*items[:-1], draw(ELEMENTS)]
        case 6:
            return items[low:high] + items[:low] + items[high:]
        case 7:
            return list(draw(st.permutations(items)))
        case 8:
            return items[:at] + items[at + 1 :]
        case 9:
            return [*items, *items[low:high]]
        case _:
            return []


@st.composite
def _rekeyed(draw: st.DrawFn, mapping: dict[Any, Any]) -> dict[Any, Any]:
    key = draw(st.sampled_from(list(mapping)))
    match draw(st.integers(0, 3)):
        case 0:
            return {name: value for name, value in mapping.items() if name != key}
        case 1:
            return {**mapping, draw(st.sampled_from(["a", "new", "key-99", "messages"])): draw(VALUES)}
        case 2:
            return dict(reversed(mapping.items()))
        case _:
            return {**mapping, key: draw(VALUES)}


def same(left: Any, right: Any) -> bool:
    """Equal and of the same types all the way down; NaN, the sign of zero and the order of keys included."""
    if type(left) is not type(right):
        return False
    if isinstance(left, float):
        return left.hex() == right.hex() or (math.isnan(left) and math.isnan(right))
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return len(left) == len(right) and all(map(same, left, right)) and all(map(same, left.values(), right.values()))
    if isinstance(left, datetime):
        return left == right and left.utcoffset() == right.utcoffset() and left.fold == right.fold
    return bool(left == right)
