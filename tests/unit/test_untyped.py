"""Stored values shown without the application's classes, and as JSON."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import ormsgpack
import pytest
from pydantic import BaseModel, ConfigDict

from clew.codec import Codec, Serialized, UntypedCodec, as_json, json_text
from clew.errors import CorruptData


class Colour(enum.Enum):
    RED = 1


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


@dataclass(frozen=True)
class Point:
    x: int
    y: int = 0


class Note(BaseModel):
    model_config = ConfigDict(extra="allow")

    text: str


class Money:
    def __init__(self, cents: int) -> None:
        self.cents = cents


def written(value: Any) -> bytes:
    codec = Codec([Colour, Rights, Point, Note])
    codec.register(Money, encode=lambda money: money.cents, decode=Money)
    return codec.strict(value)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (Point(1, 2), {"x": 1, "y": 2}),
        (Note(text="a", more=(1,)), {"text": "a", "more": (1,)}),
        (Colour.RED, "RED"),
        (Rights.READ | Rights.WRITE, 3),
        (Money(5), 5),
        (frozenset([Point(1)]), [{"x": 1, "y": 0}]),
        ({Point(1): "a", 2: "b"}, {'{"x":1,"y":0}': "a", 2: "b"}),
        ({1, 2}, {1, 2}),
        (Serialized("json", b"[1]"), [1]),
        ([{"a": (1, b"x")}], [{"a": (1, b"x")}]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_object_is_shown_as_what_it_was_stored_as(value: Any, shown: Any) -> None:
    found = UntypedCodec().decode(written(value))
    assert found == shown
    assert type(found) is type(shown)


@pytest.mark.parametrize(
    ("value", "json"),
    [
        (None, None),
        (True, True),
        (1.5, 1.5),
        (10**600 - 1, 10**600 - 1),
        (10**600, hex(10**600)),
        (-(10**600), hex(-(10**600))),
        (b"ab", "YWI="),
        (bytearray(b"ab"), "YWI="),
        ((1, {"a": b"ab"}), [1, {"a": "YWI="}]),
        ({2, 10, "b"}, ["b", 10, 2]),
        ({1: "a", None: "b", 10**600: "c"}, {"1": "a", "None": "b", hex(10**600): "c"}),
        (datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02T00:00:00+00:00"),
        (Decimal("1.10"), "1.10"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_whatever_is_stored_has_a_form_in_json(value: Any, json: Any) -> None:
    assert as_json(value) == json
    assert type(as_json(value)) is type(json)


def test_the_json_text_is_compact_and_can_be_printed() -> None:
    assert json_text({"a": [1, "ü"]}) == '{"a":[1,"ü"]}'
    assert json_text({"a": b"ab"}) == '{"a":"YWI="}'
    assert json_text("\ud800") == '"\\ud800"'


def extension(tag: int, held: Any) -> bytes:
    return ormsgpack.packb(ormsgpack.Ext(tag, ormsgpack.packb(held)))


@pytest.mark.parametrize(
    ("tag", "held"), [(3, 5), (7, [1]), (8, ["a", 1, 1]), (10, ["a"]), (13, [1]), (14, 5), (15, [1]), (16, None)]
)
def test_an_extension_of_another_shape_is_corrupt_data(tag: int, held: Any) -> None:
    with pytest.raises(CorruptData):
        UntypedCodec().decode(extension(tag, held))


def test_what_cannot_stand_in_a_set_or_as_a_key_is_shown_all_the_same() -> None:
    assert UntypedCodec().decode(extension(4, [[1], 2])) == [[1], 2]
    assert UntypedCodec().decode(extension(13, [[1], 2])) == {"[1]": 2}
