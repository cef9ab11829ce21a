"""The codec: every value comes back as it was, or is refused by its path."""

from __future__ import annotations

import abc
import contextlib
import math
import struct
import sys
import threading
from collections import Counter, OrderedDict, defaultdict, namedtuple
from collections.abc import Callable
from dataclasses import KW_ONLY, InitVar, dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal, localcontext
from enum import Enum, Flag, IntEnum, IntFlag, StrEnum, auto
from functools import cached_property
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, Literal, NewType, TypeVar
from uuid import UUID, SafeUUID, uuid1
from zoneinfo import ZoneInfo

import ormsgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, RootModel

from clew.codec import MAX_DEPTH, Codec, child_path
from clew.codec.extensions import Tag
from clew.codec.registry import qualified_name
from clew.errors import CorruptData, InvalidInput, UnknownType, Unserializable

if TYPE_CHECKING:
    from somewhere import OnlyForTypeCheckers  # type: ignore[import-not-found]

T = TypeVar("T")
HERE = __name__


class Color(Enum):
    RED = 1
    CRIMSON = 1
    BLUE = (1, "b")


class Word(StrEnum):
    A = "a"
    B = "b"


class Number(IntEnum):
    ONE = 1


class Mode(Flag):
    READ = auto()
    WRITE = auto()


class Bits(IntFlag):
    LOW = 1
    HIGH = 2**70


@dataclass
class Point:
    x: Any
    y: Any = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    label: str
    others: tuple[Any, ...] = ()


@dataclass
class Counted:
    seed: InitVar[int]
    shared: ClassVar[list[int]] = []
    _: KW_ONLY
    items: list[Any] = field(default_factory=list)
    total: int = field(init=False)

    def __post_init__(self, seed: int) -> None:
        self.total = seed * 2
        self.note = "undeclared"

    @cached_property
    def twice(self) -> int:
        return self.total * 2


@dataclass
class Pair(Generic[T]):
    left: T


class Item(BaseModel):
    id: int
    tag: Color | None = None


class Order(BaseModel):
    model_config = ConfigDict(extra="allow")
    items: list[Item] = Field(default_factory=list)
    note: str = Field(default="n", alias="Note")
    count: int = Field(default_factory=lambda data: len(data["items"]))
    _client: Any = PrivateAttr(default=None)
    _late: int = PrivateAttr()

    @cached_property
    def size(self) -> int:
        return len(self.items)


class Names(RootModel[list[str]]):
    _seen: int = PrivateAttr(default=3)


class Numbers(RootModel[dict[str, int]]):
    pass


class Box(BaseModel, Generic[T]):
    content: T


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True)
    id: Any


class Foo:
    pass


class Celsius:
    def __init__(self, degrees: Any) -> None:
        self.degrees = degrees

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Celsius) and other.degrees == self.degrees

    def __hash__(self) -> int:
        return hash(self.degrees)


TYPES = [
    Color, Word, Number, Mode, Bits, Point, Fixed, Counted, Pair, Order, Names, Numbers, Box[Item], Box[int], Frozen,
]  # fmt: skip


@pytest.fixture(scope="module")
def codec() -> Codec:
    made = Codec(TYPES)
    made.register(Celsius, encode=lambda it: it.degrees, decode=Celsius)
    return made


def same(a: Any, b: Any) -> bool:
    """Equal, of the same types, in the same order, and the same bits, at every level."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return struct.pack(">d", a) == struct.pack(">d", b)
    if isinstance(a, Decimal):
        return a.as_tuple() == b.as_tuple()
    if isinstance(a, (datetime, time)):
        return repr(a) == repr(b) and a.fold == b.fold and type(a.tzinfo) is type(b.tzinfo)
    if isinstance(a, Enum):
        return a is b
    if isinstance(a, dict):
        return same(list(a), list(b)) and same(list(a.values()), list(b.values()))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, (set, frozenset)):
        return len(a) == len(b) and all(any(same(x, y) for y in b) for x in a)
    if isinstance(a, BaseModel):
        return (
            same(a.__dict__, b.__dict__)
            and a.__pydantic_fields_set__ == b.__pydantic_fields_set__
            and same(a.__pydantic_extra__, b.__pydantic_extra__)
            and same(a.__pydantic_private__, b.__pydantic_private__)
        )
    if isinstance(a, Fixed):
        return same((a.label, a.others), (b.label, b.others))
    if isinstance(a, Celsius):
        return same(a.degrees, b.degrees)
    if isinstance(a, (Point, Counted, Pair)):
        return same(vars(a), vars(b))
    return a == b


def holds(value: Any, kind: type) -> bool:
    if isinstance(value, kind):
        return True
    if isinstance(value, dict):
        return any(holds(part, kind) for pair in value.items() for part in pair)
    if isinstance(value, (list, tuple, set, frozenset)):
        return any(holds(part, kind) for part in value)
    if isinstance(value, BaseModel):
        return any(holds(part, kind) for part in value.__dict__.values())
    return isinstance(value, Point) and (holds(value.x, kind) or holds(value.y, kind))


def check(codec: Codec, value: Any) -> bytes:
    data = codec.strict(value)
    back = codec.decode(data)
    assert same(value, back), (value, back)
    assert codec.strict(back) == data
    (quick,) = codec.quick([value])
    assert quick is None or quick == data or holds(value, bytearray)
    return data


zones = st.one_of(
    st.none(),
    st.sampled_from([ZoneInfo("Europe/Berlin"), ZoneInfo("UTC"), UTC]),
    st.timedeltas(timedelta(hours=-23), timedelta(hours=23)).map(timezone),
    st.builds(timezone, st.timedeltas(timedelta(hours=-23), timedelta(hours=23)), st.just("ZON")),
)
hashable = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**200), 2**200),
    st.sampled_from([2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1]),
    st.floats(),
    st.text(st.characters(exclude_categories=())),
    st.text(),
    st.binary(),
    st.decimals().filter(lambda number: not number.is_snan()),  # it has no hash
    st.uuids(),
    st.dates(),
    st.times(timezones=zones),
    st.datetimes(timezones=zones),
    st.timedeltas(),
    st.sampled_from([*Color, *Word, *Number, *Mode, Mode.READ | Mode.WRITE, Mode(0), Bits.LOW | Bits.HIGH, Bits(4)]),
    st.builds(Fixed, label=st.text()),
    st.builds(Frozen, id=st.integers()),
    st.builds(Celsius, st.integers()),
)
keys = st.recursive(hashable, lambda k: st.lists(k, max_size=3).map(tuple) | st.frozensets(k, max_size=3), max_leaves=4)
values = st.recursive(
    hashable | st.binary().map(bytearray),
    lambda v: st.one_of(
        st.lists(v, max_size=4),
        st.lists(v, max_size=4).map(tuple),
        st.sets(keys, max_size=4),
        st.frozensets(keys, max_size=4),
        st.dictionaries(st.text(), v, max_size=4),
        st.dictionaries(keys, v, max_size=4),
        st.builds(Point, v, v),
        st.builds(lambda x: Box[int].model_construct(content=x), v),
    ),
    max_leaves=12,
)


@given(value=values)
@settings(max_examples=400)
def test_any_value_comes_back_equal_and_of_the_same_types(codec: Codec, value: Any) -> None:
    check(codec, value)


@given(many=st.lists(values, max_size=20), cut=st.integers(0, 20))
@settings(max_examples=50)
def test_many_elements_come_back_from_one_call(codec: Codec, many: list[Any], cut: int) -> None:
    encoded = [codec.strict(value) for value in many]
    assert same(codec.decode_many(len(many), [b"".join(encoded[:cut]), b"".join(encoded[cut:])]), many)


@pytest.mark.parametrize("count", [0, 1, 14, 15, 16, 2**16 - 2, 2**16 - 1, 2**16])
def test_decode_many_takes_any_number_of_elements(codec: Codec, count: int) -> None:
    assert codec.decode_many(count, [b"\x07" * count]) == [7] * count


@pytest.mark.parametrize("count", [0, 15, 16, 2**16])
def test_sets_of_any_size_come_back(codec: Codec, count: int) -> None:
    data = codec.strict(set(range(count)))
    assert codec.decode(data) == set(range(count))
    assert codec.quick([set(range(count))]) == [data]


NAIVE = datetime.fromisoformat("9999-12-31T23:59:59.999999")
SPECIMENS = [
    None, True, False, 0, 1, -1, 1.0, 0.0, -0.0, math.nan, math.inf, -math.inf, "", "a\0b", "🙂", "\ud800", "x\udfffy",
    2**63, 2**64, -(2**63) - 1, 10**5000, b"", b"\0", bytearray(b"ab"), (), (1, 2), [], {}, set(), frozenset(),
    {1, "1", None, (2, 3)}, frozenset({1.5, b"x"}),
    {1: "int", "1": "str"}, {True: "bool"}, {1.0: "float"}, {2**70: 1}, {(1, (None,)): 1}, {None: 1}, {b"k": 1},
    {UUID(int=1): 1}, {date(2024, 2, 29): 1}, {Color.BLUE: 1}, {Decimal("1.0"): 1}, {Word.A: 1}, {"\ud800": 1},
    {"z": 1, "a": {3: {"y": 1, "b": 2}}},
    Decimal("-0"), Decimal("0E-9"), Decimal("1E+999999"), Decimal("NaN12"), Decimal("-sNaN3"), Decimal("-Infinity"),
    UUID(int=2**128 - 1), UUID(int=5, is_safe=SafeUUID.safe), UUID(int=5, is_safe=SafeUUID.unsafe), uuid1(),
    date.min, date.max, NAIVE, NAIVE.replace(fold=1), time.min, time.max, timedelta.min, timedelta.max,
    datetime(2024, 10, 27, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1), time(2, 30, fold=1),
    datetime(2024, 1, 1, tzinfo=UTC), datetime(1900, 1, 1, tzinfo=timezone(timedelta(seconds=-4772))),
    datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=1), "UTC+01:00")), time(1, tzinfo=timezone(timedelta(0), "Z")),
    Color.RED, Color.BLUE, Word.B, Number.ONE, Mode.READ, Mode.READ | Mode.WRITE, Mode(0), Bits.HIGH, Bits(3 + 2**70),
    Point(1), Point(Point(None), [Color.RED]), Fixed(label="f", others=(1, {2})), Counted(3, items=[1]), Pair(1),
    Item(id=1), Item(id=1, tag=Color.RED), Item(id=2, tag=None), Names(["a"]), Numbers({"a": 1}), Box[int](content=1),
    Box[Item](content=Item(id=1)), Order(), Order(items=[{"id": 1}], Note="x", count=9), Order(more=1, **{"a b": [2]}),
    Item.model_construct(), Celsius(3), Celsius([Celsius((1,))]), {Frozen(id=1): Fixed(label="")},
]  # fmt: skip


@pytest.mark.parametrize("value", SPECIMENS, ids=lambda value: type(value).__name__)
def test_a_specimen_comes_back_as_itself(codec: Codec, value: Any) -> None:
    check(codec, value)
    check(codec, [value, {"k": value}, (value,)])


@pytest.mark.invariant(23)
def test_equal_values_of_different_types_have_different_bytes(codec: Codec) -> None:
    alike = [1, True, 1.0, Decimal(1), Number.ONE, 0.0, -0.0, False, 0, "1", b"1", bytearray(b"1"), "a", Word.A]
    alike += [[1], (1,), {1}, frozenset({1}), {"x": 1, "y": 2}, {"y": 2, "x": 1}, Point(1, 2), date(2024, 1, 1)]
    alike += [
        datetime.fromisoformat("2024-01-01"),
        datetime.fromisoformat("2024-01-01").replace(fold=1),
        [],
        {},
        (),
        "",
        None,
        Decimal("1.0"),
    ]
    assert len({codec.strict(value) for value in alike}) == len(alike)


def test_equal_sets_have_the_same_bytes_whatever_their_order(codec: Codec) -> None:
    assert codec.strict({8, 0, 16}) == codec.strict({16, 8, 0})


def test_a_decimal_is_written_alike_in_every_context(codec: Codec) -> None:
    with localcontext() as context:
        context.capitals = 0
        context.prec = 2
        small = codec.strict(Decimal("1.2345E+99"))
    assert small == codec.strict(Decimal("1.2345E+99"))
    assert codec.decode(small) == Decimal("1.2345E+99")


@pytest.mark.invariant(24)
def test_the_stored_format_stays_as_it_is(codec: Codec) -> None:
    """A change here is a change of what is stored: old tags must keep their meaning."""
    stored = {
        2**64: "c70901010000000000000000",
        "\ud800": "c70302eda080",
        (1,): "d5039101",
        frozenset({2, 1}): "c70305930102"[:4] + "05920102",
        date(2024, 2, 29): "c706089" + "3cd07e8021d",
        timedelta(1, 2, 3): "d60a93010203",
        Decimal("1.5"): "c7030b312e35",
        UUID(int=1): "d80c00000000000000000000000000000001",
    }
    for value, written in stored.items():
        assert codec.strict(value).hex() == written
    assert codec.strict(bytearray(b"a")).hex() == "d40661"
    assert codec.strict({1}).hex() == "d5049101"
    assert codec.strict({1: 2}).hex() == "c7030d920102"
    assert codec.strict(time(1, 2)).hex() == "c70709960102000000c0"
    assert codec.strict(datetime.fromisoformat("0001-02-03")).hex() == "c70a07990102030000000000c0"
    assert {name: tag for name, tag in vars(Tag).items() if name.isupper()} == {
        "INT": 1, "TEXT": 2, "TUPLE": 3, "SET": 4, "FROZENSET": 5, "BYTEARRAY": 6, "DATETIME": 7, "DATE": 8, "TIME": 9,
        "TIMEDELTA": 10, "DECIMAL": 11, "UUID": 12, "MAPPING": 13, "ENUM": 14, "OBJECT": 15, "CUSTOM": 16,
        "SERIALIZED": 17, "END": 127,
    }  # fmt: skip


class Sub(str):
    __slots__ = ()


class SubList(list[int]):
    pass


class Offset(tzinfo):
    def utcoffset(self, when: datetime | None) -> timedelta:
        return timedelta(0)


PLAIN_TUPLE = namedtuple("PLAIN_TUPLE", "a")
UNLESS = "cannot be stored unless its type is registered; pass it in types=[…] when opening"
SURROGATES = "with lone surrogates cannot be stored"
USE = "cannot be stored; use zoneinfo.ZoneInfo or datetime.timezone"
COMPLEX = "object of type complex cannot be stored"
UNREGISTERED = f"({HERE}) {UNLESS}"

REFUSALS: list[tuple[Any, str, str]] = [
    ({"plan": [0, 1, 2, {"owner": Foo()}]}, "state.plan[3].owner", f"object of type Foo {UNREGISTERED}"),
    ({"a b": Foo()}, "state['a b']", f"object of type Foo {UNREGISTERED}"),
    ({"it's": {"": Foo()}}, "state[\"it's\"]['']", f"object of type Foo {UNREGISTERED}"),
    ({1: {(1, 2): Foo()}}, "state[1][(1, 2)]", f"object of type Foo {UNREGISTERED}"),
    ({Color.RED: 1j}, "state[Color]", "object of type complex cannot be stored"),
    ({"m": {1: 0, Foo(): 1}}, "state.m.keys()[1]", f"object of type Foo {UNREGISTERED}"),
    ({("a", 1j): 1}, "state.keys()[0][1]", "object of type complex cannot be stored"),
    ({Sub("k"): 1}, "state.keys()[0]", f"object of type Sub {UNREGISTERED}"),
    ([(1, 1j)], "state[0][1]", "object of type complex cannot be stored"),
    ({"t": {1, 1j}}, "state.t{…}", "object of type complex cannot be stored"),
    (frozenset({(0, Sub("s"))}), "state{…}[1]", f"object of type Sub {UNREGISTERED}"),
    (Point(0, [1j]), "state.y[0]", "object of type complex cannot be stored"),
    (Order.model_construct(items=[Item.model_construct(id=1j)]), "state.items[0].id", COMPLEX),
    (Celsius(1j), "state", "object of type complex cannot be stored"),
    (1j, "state", "object of type complex cannot be stored"),
    (memoryview(b"x"), "state", "object of type memoryview cannot be stored"),
    (range(3), "state", "object of type range cannot be stored"),
    (len, "state", "object of type builtin_function_or_method cannot be stored"),
    (Foo, "state", "object of type type cannot be stored"),
    ((i for i in ()), "state", "object of type generator cannot be stored"),
    (Foo(), "state", f"object of type Foo {UNREGISTERED}"),
    (SubList([1]), "state", f"object of type SubList {UNREGISTERED}"),
    (PLAIN_TUPLE(1), "state", f"object of type PLAIN_TUPLE {UNREGISTERED}"),
    (OrderedDict(a=1), "state", f"object of type OrderedDict (collections) {UNLESS}"),
    (defaultdict(list), "state", f"object of type defaultdict (collections) {UNLESS}"),
    (Counter("a"), "state", f"object of type Counter (collections) {UNLESS}"),
    (ormsgpack.Ext(3, b"\x90"), "state", f"object of type Ext (ormsgpack) {UNLESS}"),
    (datetime(2024, 1, 1, tzinfo=Offset()), "state", f"time zone of type Offset {USE}"),
    (time(1, tzinfo=timezone(timedelta(0), "\ud800")), "state", f"a timezone's name {SURROGATES}"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "path", "reason"), REFUSALS, ids=[f"{p}-{type(v).__name__}" for v, p, _ in REFUSALS])
def test_what_cannot_be_kept_is_refused_by_its_path(codec: Codec, value: Any, path: str, reason: str) -> None:
    with pytest.raises(Unserializable) as caught:
        codec.strict(value)
    assert (caught.value.path, caught.value.reason) == (path, reason)
    assert str(caught.value) == f"{path}: {reason}"


def test_a_refused_value_has_no_quick_bytes(codec: Codec) -> None:
    seen_by_strict_only = (memoryview, ormsgpack.Ext)
    refused = [value for value, _, _ in REFUSALS if not isinstance(value, seen_by_strict_only)]
    assert codec.quick(refused) == [None] * len(refused)


def test_a_path_starts_where_the_caller_says(codec: Codec) -> None:
    with pytest.raises(Unserializable, match=r"^metadata\.tags\[0\]: object of type Foo "):
        codec.strict([Foo()], "metadata.tags")


def test_a_zone_without_a_key_is_refused(codec: Codec) -> None:
    import importlib.resources

    try:
        import tzdata  # noqa: F401

        source = importlib.resources.files("tzdata.zoneinfo.Europe").joinpath("Berlin").open("rb")
    except ImportError:
        source = open("/usr/share/zoneinfo/Europe/Berlin", "rb")  # noqa: PTH123, SIM115
    with source:
        zone = ZoneInfo.from_file(source)
    with pytest.raises(Unserializable, match=r"^state: a ZoneInfo without a key cannot be stored$"):
        codec.strict(datetime(2024, 1, 1, tzinfo=zone))


@pytest.mark.parametrize("cls", [Color, Item, Point], ids=lambda cls: cls.__name__)
def test_an_unregistered_type_is_refused_by_name(cls: Any) -> None:
    instance = cls(1) if cls is not Item else Item(id=1)
    with pytest.raises(
        Unserializable, match=rf"^state\[0\]: object of type {cls.__name__} .* types=\[…\] when opening$"
    ):
        Codec().strict([instance])
    assert Codec().quick([[instance]]) == [None]


# Depth


def nested(levels: int, wrap: Callable[[Any], Any]) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = wrap(value)
    return value


WRAPS: dict[str, Callable[[Any], Any]] = {
    "list": lambda v: [v],
    "dict": lambda v: {"k": v},
    "tuple": lambda v: (v,),
    "mapping": lambda v: {1: v},
    "frozenset": lambda v: frozenset({v}),
    "dataclass": lambda v: Point(v),
    "model": lambda v: Box[int].model_construct(content=v),
    "custom": lambda v: Celsius(v),
}


@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)
def test_values_nest_as_deep_as_the_limit_and_no_deeper(codec: Codec, wrap: Callable[[Any], Any]) -> None:
    deepest = nested(MAX_DEPTH, wrap)
    data = codec.strict(deepest)
    assert codec.strict(codec.decode_many(2, [data, data])[1]) == data
    assert codec.quick([deepest]) in ([data], [None])
    with pytest.raises(Unserializable) as caught:
        codec.strict(nested(MAX_DEPTH + 1, wrap))
    assert caught.value.reason == "nested deeper than 200 levels, or holds itself"
    assert caught.value.path.startswith("state")
    assert len(caught.value.path) <= 301


def test_a_leaf_may_stand_at_the_deepest_place(codec: Codec) -> None:
    leaf = [Color.RED, Mode(3), date.min, 2**70, "\ud800", bytearray(b"x")]
    value = nested(MAX_DEPTH - 1, lambda v: [leaf if v == 1 else v])
    assert same(codec.decode(codec.strict(value)), value)


def test_a_key_may_be_as_deep_as_a_value(codec: Codec) -> None:
    check(codec, {nested(MAX_DEPTH - 1, WRAPS["tuple"]): 1})
    with pytest.raises(Unserializable, match=r"^state\.keys\(\)\[0\]\[0\]"):
        codec.strict({nested(MAX_DEPTH, WRAPS["tuple"]): 1})


@pytest.mark.parametrize("wrap", [WRAPS["list"], WRAPS["tuple"], WRAPS["dataclass"]], ids=["list", "tuple", "object"])
def test_two_thousand_levels_are_refused(codec: Codec, wrap: Callable[[Any], Any]) -> None:
    value = nested(2000, wrap)
    with pytest.raises(Unserializable) as caught:
        codec.strict(value)
    assert "…" in caught.value.path or len(caught.value.path) <= 300
    assert codec.quick([value]) == [None]


def test_what_holds_itself_is_refused(codec: Codec) -> None:
    as_list: list[Any] = []
    as_list.append(as_list)
    as_dict: dict[str, Any] = {}
    as_dict["me"] = (as_dict,)
    as_point = Point(0)
    as_point.x = as_point
    for value in (as_list, as_dict, as_point):
        with pytest.raises(Unserializable, match=r"nested deeper than 200 levels, or holds itself$"):
            codec.strict(value)
        assert codec.quick([value]) == [None]


def at_the_end_of_the_stack(call: Callable[[], T], room: int) -> T:
    """Calls with only about `room` frames left."""
    frame, used = sys._getframe(), 0
    while frame is not None:  # type: ignore[redundant-expr]
        frame, used = frame.f_back, used + 1  # type: ignore[assignment]

    def descend(left: int) -> T:
        return call() if left <= 0 else descend(left - 1)

    return descend(sys.getrecursionlimit() - used - room)


def test_a_caller_deep_in_its_own_stack_reads_and_writes_all_the_same(codec: Codec) -> None:
    value = nested(MAX_DEPTH, WRAPS["tuple"])
    data = codec.strict(value)
    assert at_the_end_of_the_stack(lambda: codec.strict(value), room=120) == data
    assert at_the_end_of_the_stack(lambda: codec.decode(data), room=120) == value
    assert at_the_end_of_the_stack(lambda: codec.quick([value]), room=120) == [None]


def test_a_thread_with_a_small_stack_reads_and_writes_the_deepest_value(codec: Codec) -> None:
    value, results = nested(MAX_DEPTH, WRAPS["dataclass"]), []
    size = threading.stack_size(512 * 1024)
    try:
        thread = threading.Thread(target=lambda: results.append(codec.decode(codec.strict(value))))
        thread.start()
        thread.join()
    finally:
        threading.stack_size(size)
    assert same(results, [value])


def test_an_encoder_without_end_is_refused_and_not_a_recursion_error() -> None:
    def endless(value: Any) -> Any:
        return endless(value)

    codec = Codec()
    codec.register(Foo, encode=endless, decode=endless)
    with pytest.raises(Unserializable, match=r"^state: encoding it exceeds Python's recursion limit$"):
        codec.strict([Foo()])


# quick


def test_quick_is_strict_without_seeing_bytearrays(codec: Codec) -> None:
    assert codec.quick(iter([1, "a", [b"x"], bytearray(b"x"), memoryview(b"x")])) == [
        b"\x01", b"\xa1a", b"\x91\xc4\x01x", b"\xc4\x01x", b"\xc4\x01x",
    ]  # fmt: skip
    assert codec.strict(bytearray(b"x")) == b"\xd4\x06x"


def test_quick_knows_all_but_odd_keys_and_surrogates(codec: Codec) -> None:
    unseen = [value for value in SPECIMENS if codec.quick([value]) not in ([codec.strict(value)], [b"\xc4\x02ab"])]
    odd_keys = [value for value in SPECIMENS if isinstance(value, dict) and codec.fields(value) is None]
    assert len(odd_keys) == 14
    assert same(unseen, ["\ud800", "x\udfffy", *odd_keys[:-1], {"z": 1, "a": {3: {"y": 1, "b": 2}}}, odd_keys[-1]])


def test_one_refusal_leaves_the_other_quick_bytes(codec: Codec) -> None:
    assert codec.quick([1, {1: 2}, "\ud800", Foo(), (3,)]) == [b"\x01", None, None, None, codec.strict((3,))]


@pytest.mark.parametrize("nested_in", [lambda v: v, lambda v: ({v},)], ids=["bare", "in containers"])
def test_an_interrupt_inside_an_encoder_is_not_swallowed(nested_in: Callable[[Any], Any]) -> None:
    def interrupted(value: Any) -> Any:
        raise KeyboardInterrupt

    codec = Codec()
    codec.register(Foo, encode=interrupted, decode=interrupted)
    with pytest.raises(KeyboardInterrupt):
        codec.quick([nested_in(Foo())])
    with pytest.raises(KeyboardInterrupt):
        codec.quick([object(), nested_in(Foo())])
    codec.register(Celsius, encode=lambda it: it.degrees, decode=interrupted)
    data = codec.strict([Celsius(1)])
    with pytest.raises(KeyboardInterrupt):
        codec.decode(data)


def test_a_value_that_takes_too_many_bytes_is_refused_by_its_path(
    codec: Codec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clew.codec.codec.MAX_BYTES", 100)
    assert len(codec.strict("x" * 98, "state.a")) == 100
    with pytest.raises(Unserializable, match="takes 101 bytes; one value takes at most 100: split it") as refused:
        codec.strict("x" * 99, "state.a")
    assert refused.value.path == "state.a"


def test_holds_bin_denies_only_what_holds_none(codec: Codec) -> None:
    assert not Codec.holds_bin(codec.strict({"role": "user", "content": "hello"}))
    for size in (0, 300, 70_000):
        assert Codec.holds_bin(codec.strict({"x": [bytes(size)]}))
        assert Codec.holds_bin(*[data for data in codec.quick([(bytearray(size),)]) if data])


# Reading what is not there


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\x92\x01", b"\x01\x02", b"\xc1", b"\x81\x01\x02", b"\xa1\xff", b"\xd6\xff\x00\x00\x00\x01", b"\xd4\x20x",
        b"\xd4\x7f\x00", b"\xd4\x03\x92", b"\xd4\x04\x01", b"\xd5\x04\x91\x90", b"\xd5\x08\x91\x01",
        b"\xd5\x0d\x91\x01", b"\xd4\x0f\x80", b"\xd4\x0f\x90", b"\xd4\x0e\x90", b"\xd4\x10\x90", b"\xd4\x0bx",
        b"\xd4\x0cx", b"\xd4\x02\xff", b"\x01\xd4\x7f\x00",
    ],
)  # fmt: skip
def test_bytes_that_are_not_the_codecs_are_corrupt_data(codec: Codec, data: bytes) -> None:
    with pytest.raises(CorruptData):
        codec.decode(data)


@given(data=st.binary(max_size=40), codec_bytes=values)
@settings(max_examples=300)
def test_no_bytes_whatever_raise_anything_else(codec: Codec, data: bytes, codec_bytes: Any) -> None:
    whole = codec.strict(codec_bytes)
    for damaged in (data, whole[:-1], whole + data[:1], data[:3] + whole[3:]):
        with contextlib.suppress(CorruptData):
            codec.decode(damaged)


def test_the_number_of_elements_must_be_the_stored_one(codec: Codec) -> None:
    with pytest.raises(CorruptData, match=r"encoding of more than 2 values"):
        codec.decode_many(2, [b"\x01\x02\x03"])
    with pytest.raises(CorruptData, match=r"not the encoding of 4 values"):
        codec.decode_many(4, [b"\x01", b"\x02\x03"])


def test_decode_takes_any_buffer(codec: Codec) -> None:
    assert codec.decode(bytearray(b"\x01")) == codec.decode(memoryview(b"\x01")) == 1


@pytest.mark.parametrize("value", [Color.RED, Item(id=1), Point(1), Celsius(1)], ids=lambda v: type(v).__name__)
def test_an_unregistered_name_is_an_unknown_type(codec: Codec, value: Any) -> None:
    data = codec.strict([(value,)])
    with pytest.raises(UnknownType) as caught:
        Codec().decode(data)
    assert caught.value.name == f"{HERE}.{type(value).__name__}"


def test_a_name_registered_for_another_kind_is_corrupt_data(codec: Codec) -> None:
    for value, message in (
        (Color.RED, "is an enum, and what is registered under that name is none"),
        (Celsius(1), "encoded by a function, and is registered here without one"),
        (Point(1), "has fields, and what is registered under that name has none"),
    ):
        other = Codec()
        name = f"{HERE}.{type(value).__name__}"
        if isinstance(value, Point):
            other.register(Word, name=name)
        else:
            other.register(Fixed, name=name)
        with pytest.raises(CorruptData, match=message):
            other.decode(codec.strict(value))


def test_a_member_that_is_gone_is_corrupt_data(codec: Codec) -> None:
    class Fewer(Enum):
        BLUE = 2

    class Narrow(Flag):
        READ = 1

    for value, cls, shown in ((Color.RED, Fewer, "'RED'"), (Mode.READ | Mode.WRITE, Narrow, "3")):
        other = Codec()
        other.register(cls, name=f"{HERE}.{type(value).__name__}")
        with pytest.raises(CorruptData, match=rf"has no member {shown} here$"):
            other.decode(codec.strict(value))


def test_a_decoder_that_fails_is_corrupt_data_with_its_cause() -> None:
    def fails(value: Any) -> Any:
        raise LookupError("secret")

    codec = Codec()
    codec.register(Foo, name="foo", encode=id, decode=fails)
    with pytest.raises(CorruptData, match=r"^stored type 'foo' could not be decoded: LookupError$") as caught:
        codec.decode(codec.strict(Foo()))
    assert isinstance(caught.value.__cause__, LookupError)


def test_an_encoder_that_fails_is_unserializable_with_its_cause() -> None:
    def fails(value: Any) -> Any:
        raise LookupError("secret")

    codec = Codec()
    codec.register(Foo, encode=fails, decode=fails)
    with pytest.raises(Unserializable) as caught:
        codec.strict({"a": Foo()})
    assert str(caught.value) == "state.a: taking apart an object of type Foo failed: LookupError"
    assert isinstance(caught.value.__cause__, LookupError)


# Registering


def test_registering_the_same_class_twice_is_fine() -> None:
    codec = Codec([Item, Item])
    codec.register(Item)
    assert codec.decode(codec.strict(Item(id=1))) == Item(id=1)


def test_two_classes_under_one_name_are_refused() -> None:
    codec = Codec([Item])
    with pytest.raises(InvalidInput, match=r"is taken by .*Item.*; give another name=$"):
        codec.register(Point, name=f"{HERE}.Item")


def test_a_renamed_class_is_still_read_by_its_first_name() -> None:
    codec = Codec()
    codec.register(Point, name="old")
    stored = codec.strict(Point(1))
    codec.register(Point, name="new")
    codec.register(Point)
    assert codec.decode(stored) == Point(1)
    assert codec.fields(Point(1)) == ("new", {"x": 1, "y": 0})


@pytest.mark.parametrize(
    ("cls", "functions", "message"),
    [
        (Foo, {}, "register Foo: not an enum, dataclass or pydantic model; give encode and decode for it"),
        (Foo, {"encode": str}, "register Foo: encode and decode go together; give both or neither"),
        (dict, {"encode": str, "decode": str}, "register <class 'dict'>: not a class that can be registered"),
        (list[int], {}, "register list[int]: not a class that can be registered"),
        ("Foo", {}, "register 'Foo': not a class that can be registered"),
    ],
)
def test_what_cannot_be_registered_is_refused(cls: Any, functions: Any, message: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        Codec().register(cls, **functions)
    assert str(caught.value) == message


def test_a_dataclass_that_is_also_a_container_needs_functions() -> None:
    @dataclass
    class Both(list[int]):
        x: int = 0

    codec = Codec()
    with pytest.raises(InvalidInput, match=r"give encode and decode for it$"):
        codec.register(Both)
    codec.register(OrderedDict, encode=lambda it: list(it.items()), decode=OrderedDict)
    check(codec, OrderedDict(b=1, a=2))
    assert same(list(codec.decode(codec.strict(OrderedDict(b=1, a=2))).items()), [("b", 1), ("a", 2)])


Alias = NewType("Alias", Number)
Bounded = TypeVar("Bounded", bound=Word)


@dataclass
class Leaf:
    mode: Literal[Mode.READ]


@dataclass
class Deep(abc.ABC):
    leaf: Annotated[Leaf, "hash"] | None
    pair: Pair[Item]
    call: Callable[[Fixed], int]
    hidden: OnlyForTypeCheckers
    again: list[Deep]
    odd: Literal[1]

    @abc.abstractmethod
    def act(self) -> None: ...


class Root(BaseModel):
    deep: dict[str, list[tuple[Names, Box[Bits]]]]
    alias: Alias
    _private: list[Color]
    me: Root | None = None
    leaves: list[Annotated[Leaf, {"no": "hash"}]] = []


def test_registering_a_type_registers_what_its_fields_lead_to() -> None:
    codec = Codec([Root])
    for value in (Leaf(Mode.READ), Names(["a"]), Box[Bits](content=Bits.LOW), Number.ONE, Color.RED):
        check(codec, value)
    codec = Codec([Deep])
    for value in (Leaf(Mode.READ), Pair(1), Item(id=1, tag=Color.RED), Fixed(label="f")):
        check(codec, value)
    made = Codec([dataclass(type("Made", (), {"__annotations__": {"x": Bounded}}))])
    check(made, Word.A)


def test_what_is_reached_keeps_the_name_it_was_given() -> None:
    codec = Codec()
    codec.register(Item, name="item")
    codec.register(Order)
    assert codec.fields(Item(id=1)) is not None
    assert codec.fields(Item(id=1))[0] == "item"  # type: ignore[index]


def test_a_subclass_is_not_covered_by_its_base() -> None:
    class Special(Item):
        pass

    with pytest.raises(Unserializable, match=r"^state: object of type Special "):
        Codec([Item]).strict(Special(id=1))


def test_generic_models_are_named_with_their_arguments() -> None:
    assert qualified_name(Box[Item]) == f"{HERE}.Box[{HERE}.Item]"
    assert qualified_name(Box[list[int]]) == f"{HERE}.Box[list[int]]"


# Objects


@pytest.mark.invariant(25)
def test_no_code_of_the_class_runs_when_it_is_read(monkeypatch: pytest.MonkeyPatch, codec: Codec) -> None:
    counted, order = codec.strict(Counted(3)), codec.strict(Order(items=[{"id": 1}]))
    for cls in (Counted, Order):
        monkeypatch.setattr(cls, "__init__", None)
    monkeypatch.setattr(Counted, "__post_init__", None)
    assert codec.decode(counted).total == 6
    assert codec.decode(order).items == [Item(id=1)]


def test_values_that_a_validator_would_change_are_kept(codec: Codec) -> None:
    item = Item.model_construct(id="not a number")
    assert codec.decode(codec.strict(item)).id == "not a number"


def test_private_attributes_extras_and_the_fields_set_are_kept(codec: Codec) -> None:
    order = Order(items=[{"id": 1}], more=(1,), note="an extra of a field's name")
    order._client, order._late = [2], 7
    back = codec.decode(codec.strict(order))
    assert (back._client, back._late, back.more, back.__pydantic_extra__["note"]) == (
        [2],
        7,
        (1,),
        "an extra of a field's name",
    )
    assert back.model_fields_set == {"items", "more", "note"}
    assert back == order


def test_a_private_attribute_is_refused_under_its_own_name(codec: Codec) -> None:
    order = Order(more=1)
    order._client = Foo()
    with pytest.raises(Unserializable, match=r"^state\._client: object of type Foo"):
        codec.strict(order)
    with pytest.raises(Unserializable, match=r"^state\.more: object of type Foo"):
        codec.strict(Order(more=Foo()))


def test_caches_are_left_out_and_undeclared_attributes_kept(codec: Codec) -> None:
    counted, order = Counted(1), Order()
    assert (counted.twice, order.size) == (4, 0)
    assert vars(codec.decode(codec.strict(counted))) == {"items": [], "total": 2, "note": "undeclared"}
    assert "size" not in vars(codec.decode(codec.strict(order)))
    assert vars(codec.decode(codec.strict(Pair[int](1)))) == {"left": 1}
    object.__setattr__(order, "odd", 1)
    assert vars(codec.decode(codec.strict(order)))["odd"] == 1


def test_a_field_that_is_not_set_stays_so_or_is_refused(codec: Codec) -> None:
    assert vars(codec.decode(codec.strict(Item.model_construct()))) == {"tag": None}
    counted = Counted(1)
    del counted.total
    assert "total" not in vars(codec.decode(codec.strict(counted)))
    del counted.items
    item = Item(id=1)
    del item.__dict__["tag"]
    order = Order()
    del order.__pydantic_private__["_client"]  # type: ignore[index]
    for value, name in ((counted, "items"), (item, "tag"), (order, "_client")):
        with pytest.raises(Unserializable) as caught:
            codec.strict([value])
        assert str(caught.value) == f"state[0].{name}: is not set, and would come back as the class's default"
        assert codec.fields(value) is None
        assert codec.quick([value]) == [None]


def test_fields_that_the_class_gained_take_its_defaults_and_lost_ones_are_left_out() -> None:
    class Older(BaseModel):
        id: int
        gone: int = 0

    class Newer(BaseModel):
        id: int
        tags: list[str] = Field(default_factory=lambda: ["new"])
        names: list[str] = ["d"]
        size: int = Field(default_factory=lambda data: data["id"] + 1)
        required: int
        _at: int = PrivateAttr(default=5)

    @dataclass(slots=True)
    class OlderData:
        x: int
        gone: int

    @dataclass(slots=True)
    class NewerData:
        x: int
        must: int
        y: int = 2
        z: list[int] = field(default_factory=lambda: [3])

    old, new = Codec(), Codec()
    old.register(Older, name="model")
    new.register(Newer, name="model")
    old.register(OlderData, name="data")
    new.register(NewerData, name="data")
    model = new.decode(old.strict(Older(id=1, gone=2)))
    assert vars(model) == {"id": 1, "tags": ["new"], "names": ["d"], "size": 2}
    assert (model.model_fields_set, model._at) == ({"id"}, 5)
    model.names.append("e")
    assert new.decode(old.strict(Older(id=1))).names == ["d"]
    data = new.decode(old.strict(OlderData(1, 2)))
    assert (data.x, data.y, data.z, hasattr(data, "must")) == (1, 2, [3], False)


def test_fields_and_rebuild_are_inverse(codec: Codec) -> None:
    order = Order(items=[{"id": 1}], more=1)
    for value in (Point(1, 2), Fixed(label="l"), order, Names(["a"]), Item(id=1), {"a": 1, "b": {1: 2}}, Counted(2)):
        taken = codec.fields(value)
        assert taken is not None
        assert same(codec.rebuild(taken[0], dict(taken[1])), value)
    assert codec.fields({"a": 1}) == (None, {"a": 1})
    assert codec.fields(Point(1, 2)) == (f"{HERE}.Point", {"x": 1, "y": 2})
    assert list(codec.fields(Order())[1])[:3] == ["items", "note", "count"]  # type: ignore[index]


@pytest.mark.parametrize(
    "value", [{1: 2}, {"\ud800": 1}, {Word.A: 1}, [1], Color.RED, Celsius(1), Foo(), OrderedDict()]
)
def test_other_values_have_no_fields(codec: Codec, value: Any) -> None:
    assert codec.fields(value) is None


def test_rebuilding_an_unknown_or_unfit_type_is_an_error(codec: Codec) -> None:
    with pytest.raises(UnknownType, match=r"stored type 'nowhere' is not registered here"):
        codec.rebuild("nowhere", {})
    with pytest.raises(CorruptData, match=r"does not fit its class: TypeError"):
        codec.rebuild(f"{HERE}.Item", {"id": 1, "__pydantic_private__": 1})


def test_an_undeclared_enum_member_is_refused() -> None:
    class Open(Enum):
        KNOWN = 1

        @classmethod
        def _missing_(cls, value: object) -> Any:
            made = object.__new__(cls)
            made._name_, made._value_ = "MADE", value
            return made

    with pytest.raises(Unserializable, match=r"^state: not a declared member of the enum Open$"):
        Codec([Open]).strict(Open(7))


def test_extras_allowed_for_one_instance_are_kept() -> None:
    item = Item(id=1)
    object.__setattr__(item, "__pydantic_extra__", {"more": 1})
    codec = Codec([Item])
    assert codec.decode(codec.strict(item)).__pydantic_extra__ == {"more": 1}


def test_a_path_shows_keys_as_one_would_write_them() -> None:
    shown = [child_path("s", key) for key in ("a", "a b", 1, None, b"x", (1,), PurePosixPath("secret"), 10**5000)]
    assert shown == ["s.a", "s['a b']", "s[1]", "s[None]", "s[b'x']", "s[(1,)]", "s[PurePosixPath]", "s[int]"]


def test_many_threads_may_share_a_codec() -> None:
    codec, failures = Codec(), []

    def work(number: int) -> None:
        try:
            for round_ in range(50):
                kind = dataclass(type(f"Kind{number}_{round_}", (), {"__annotations__": {"x": Any}}))
                codec.register(kind)
                value = [kind((number, round_))]
                assert codec.decode(codec.strict(value)) == value
                assert codec.quick(value * 3) == [codec.strict(value[0])] * 3
        except Exception as exc:  # noqa: BLE001  reported below
            failures.append(exc)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
