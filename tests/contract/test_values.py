"""Values and text: whatever is put comes back equal and of the same type, or is refused by name, on both databases."""

from __future__ import annotations

import enum
import math
import uuid
from dataclasses import dataclass, field, make_dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pydantic
import pytest

import clew
from clew import Checkpoint, CheckpointConfig, Interrupt, PendingActivation, PendingWrite

from probe import Probe
from states import same


def at(checkpoint_id: str | None = "c1", thread_id: str = "t", namespace: tuple[str, ...] = ()) -> CheckpointConfig:
    return CheckpointConfig(thread_id=thread_id, checkpoint_id=checkpoint_id, namespace=namespace)


def made(state: Any = 0, checkpoint_id: str = "c1", thread_id: str = "t", **fields: Any) -> Checkpoint[Any]:
    return Checkpoint(thread_id=thread_id, checkpoint_id=checkpoint_id, state=state, **fields)


class Mood(enum.StrEnum):
    CALM = "calm"


class Level(enum.IntEnum):
    LOW = 1


@dataclass
class Point:
    x: int
    y: tuple[int, ...] = ()
    tags: set[str] = field(default_factory=set)


class Plan(pydantic.BaseModel):
    goal: str
    steps: list[str] = []
    mood: Mood = Mood.CALM


VALUES: dict[str, list[Any]] = {
    "nothing": [None, {}, [], (), "", b"", set(), frozenset()],
    "flags_and_numbers": [True, False, 0, 1, -1, 1.0, 0.0, -0.0, 2**63, 2**64, -(2**64), 2**70, 10**400, 1e16, 1e22],
    "floats": [math.nan, math.inf, -math.inf, 5e-324, 1.7976931348623157e308],
    "text": [
        "a\0b",
        "\ud800",
        "\udc00\ud800",
        "é",
        "🧶",
        "\U0010ffff",
        "x" * 70_000,
        "\x7f\x80",
        "' OR 1=1 --",
        "%s :x",
    ],
    "bytes": [b"\0\xff", bytearray(b"\0\xff"), b"x" * 70_000],
    "sequences": [(1, 2), [(1,), [1]], {1, "1"}, frozenset({(1, 2)}), ((),), [[[[]]]]],
    "moments": [
        datetime(2026, 11, 29, 1, 30, fold=1),
        datetime(2026, 11, 29, tzinfo=UTC),
        datetime(2026, 11, 29, tzinfo=timezone(timedelta(hours=5, minutes=30, seconds=7))),
        datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin")),
        date(1, 1, 1),
        time(23, 59, 59, 999_999),
        timedelta(days=-1, microseconds=1),
    ],
    "others": [Decimal("1.10"), Decimal("NaN"), Decimal("-0"), uuid.UUID(int=2**127), Mood.CALM, Level.LOW],
    "keys": [
        {1: "a", "1": "b"},
        {None: 1, False: 2},
        {(1, 2): "t"},
        {2**70: 1, -1: 2},
        {uuid.UUID(int=1): 1, date(2026, 1, 1): 2, Decimal("1.5"): 3, Mood.CALM: 4},
        {"a.b": 1, "a": {"b": 2}, "": 3, "\0": 4, "\ud800": 5, "x') OR 1=1--": 6},
        {b"k": 1},
    ],
    "registered": [
        Point(1),
        Point(2, (3,), {"a"}),
        [Point(1), Point(2)],
        Plan(goal="g", steps=["a"]),
        {"p": Plan(goal="h")},
    ],
}
TYPES = [Mood, Level, Point, Plan]


@pytest.mark.invariant(1)
@pytest.mark.parametrize("group", VALUES)
async def test_a_value_comes_back_as_itself(opener: Any, group: str) -> None:
    async with opener(types=TYPES) as checkpointer, opener(types=TYPES) as other:
        for number, value in enumerate(VALUES[group]):
            for place, state in (
                ("alone", value),
                ("channel", {"k": value}),
                ("item", {"k": [value] * 40}),
                ("deep", {"a": {"b": [value, {"c": value}]}}),
            ):
                await checkpointer.put(made(state, f"{place}-{number}"))
                for reader in (checkpointer, other):
                    found = await reader.get(at(f"{place}-{number}"))
                    if isinstance(value, Decimal) and value.is_nan():
                        assert str(found.state) == str(state)
                    else:
                        assert same(found.state, state), (place, state, found.state)


@pytest.mark.parametrize("value", [{"n": 1}, [1, 2], 5, "text", None, {}, [], 0, False, (1,)])
async def test_a_state_may_be_any_value(checkpointer: Any, value: Any) -> None:
    await checkpointer.put(made(value))
    found = (await checkpointer.get(at())).state
    assert same(found, value)


async def test_one_and_true_and_one_point_zero_in_turn_under_one_key(checkpointer: Any) -> None:
    values = [1, True, 1.0, 0.0, -0.0, False, 0, "1", b"1", bytearray(b"1"), (1,), [1]]
    for number, value in enumerate(values):
        await checkpointer.put(made({"k": value, "list": [value] * 3, "big": ["x" * 300, value]}, f"c{number}"))
    for number, value in enumerate(values):
        found = (await checkpointer.get(at(f"c{number}"))).state
        assert same(found, {"k": value, "list": [value] * 3, "big": ["x" * 300, value]})


async def test_equal_bytes_of_two_types_are_told_apart_in_large_elements(checkpointer: Any) -> None:
    blob = b"x" * 400
    for number, value in enumerate([blob, bytearray(blob), blob, bytearray(blob)]):
        await checkpointer.put(
            made({"leaf": value, "list": ["a", value], "table": {str(n): value for n in range(70)}}, f"c{number}")
        )
        found = (await checkpointer.get(at(f"c{number}"))).state
        assert type(found["leaf"]) is type(found["list"][1]) is type(found["table"]["69"]) is type(value)


class Foreign:
    pass


CYCLE: list[Any] = []
CYCLE.append(CYCLE)


async def test_bytes_that_moved_are_told_apart_from_the_bytearray_that_takes_their_place(checkpointer: Any) -> None:
    data = b"x" * 300
    for number, items in enumerate(([data, "a"], ["new", data, "a"], ["new", bytearray(data), "a"])):
        await checkpointer.put(
            Checkpoint(thread_id="t", checkpoint_id=f"c{number}", state={"items": ["z" * 300, *items]})
        )
    found = await checkpointer.get(CheckpointConfig(thread_id="t", checkpoint_id="c2"))
    assert type(found.state["items"][2]) is bytearray


Wide = make_dataclass("Wide", [(f"field_{number}", int, number) for number in range(70)])


async def test_an_object_of_more_fields_than_a_record_has_comes_back_as_itself(opener: Any) -> None:
    async with opener(types=[Wide]) as checkpointer, opener(types=[Wide]) as other:
        for number in (1, 2):
            await checkpointer.put(Checkpoint(thread_id="t", state={"wide": Wide(field_3=number)}))
        for reader in (checkpointer, other):
            assert (await reader.get(CheckpointConfig.latest("t"))).state == {"wide": Wide(field_3=2)}
            snapshots = await reader.timeline.state_history("t")
            assert [snapshot.values for snapshot in snapshots] == [
                {"wide": Wide(field_3=2)},
                {"wide": Wide(field_3=1)},
            ]


@pytest.mark.invariant(2)
@pytest.mark.parametrize(
    ("state", "path"),
    [
        (object(), "state"),
        ({"plan": [0, 1, 2, {"owner": Foreign()}]}, "state.plan[3].owner"),
        ({"plan": {"a": {"b": lambda: None}}}, "state.plan.a.b"),
        ({"f": (x for x in ())}, "state.f"),
        ({"e": ValueError("x")}, "state.e"),
        ({"c": 1j}, "state.c"),
        ({"t": {str(n): (Foreign() if n == 70 else n) for n in range(80)}}, "state.t"),
        ({"r": range(3)}, "state.r"),
        ({"p": Point(1)}, "state.p"),
        ({Foreign(): 1}, "state"),
        ({"cycle": CYCLE}, "state.cycle"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_what_cannot_be_kept_is_refused_by_its_path_and_nothing_is_stored(
    checkpointer: Any, state: Any, path: str
) -> None:
    with pytest.raises(clew.Unserializable) as refused:
        await checkpointer.put(made(state))
    assert refused.value.path.startswith(path)
    assert str(refused.value).startswith(refused.value.path[:100])
    assert await checkpointer.get_thread("t") is None
    await checkpointer.put(made({"n": 1}))
    with pytest.raises(clew.Unserializable):
        await checkpointer.put(made(state, "c2"))
    assert (await checkpointer.get(at(None))).state == {"n": 1}


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"pending_writes": [PendingWrite(node="n", payload=Foreign())]}, "pending_writes[0].payload"),
        ({"interrupts": [Interrupt(id="i", node="n", payload=Foreign())]}, "interrupts"),
        ({"pending_activations": [PendingActivation(node="n", send_arg=Foreign())]}, "pending_activations"),
        ({"metadata": {"a": [1, (2,)]}}, "metadata.a[1]"),
        ({"metadata": {1: 2}}, "metadata"),
        ({"metadata": {"a": {"b": b""}}}, "metadata.a.b"),
        ({"metadata": {"source": clew.DurabilityMode.SYNC}}, "metadata.source"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_other_fields_are_refused_by_their_path(checkpointer: Any, fields: dict[str, Any], path: str) -> None:
    with pytest.raises(clew.Unserializable) as refused:
        await checkpointer.put(made(**fields))
    assert refused.value.path.startswith(path)
    assert await checkpointer.get_thread("t") is None


METADATA: list[Any] = [
    None, {}, [], "text", 0, 1, True, 1.5, -0.0, 1e16, 1e22, 10**30,
    {"z": 1, "a": 2, "m": [3, {"y": 1, "b": 2}]},
    {"source": "loop", "step": 0},
    {"step": 0, "source": "loop"},
    {"source": "loop", "step": 0.0},
    {"source": "loop", "step": True},
    {"source": "LOOP", "step": 1},
    {"source": "input", "step": 2**63},
    {"source": "update", "step": -(2**63)},
    {"source": "loop", "step": 2**70},
    {"source": None, "step": None},
    {"a.b": 1, "x') OR 1=1--": "a\0b", "\ud800": "\udfff", "": "", "é": "🧶"},
    {"nan": math.nan, "inf": math.inf, "minus": -math.inf},
    {"deep": [[[[[[[[[[1]]]]]]]]]]},
    {"long": "x" * 100_000},
]  # fmt: skip


async def test_metadata_comes_back_verbatim(checkpointer: Any) -> None:
    for number, metadata in enumerate(METADATA):
        await checkpointer.put(made(0, f"c{number}", metadata=metadata))
    for number, metadata in enumerate(METADATA):
        found = (await checkpointer.get(at(f"c{number}"))).metadata
        assert same(found, metadata), (metadata, found)
        if isinstance(metadata, dict):
            assert list(found) == list(metadata)


async def test_metadata_that_is_nested_too_deep_is_refused(checkpointer: Any) -> None:
    metadata: Any = 1
    for _ in range(100_000):
        metadata = [metadata]
    with pytest.raises(clew.Unserializable, match="deep"):
        await checkpointer.put(made(0, metadata={"a": metadata}))


async def test_a_state_that_is_nested_too_deep_is_refused(checkpointer: Any) -> None:
    state: Any = 1
    for _ in range(100_000):
        state = [state]
    with pytest.raises(clew.Unserializable):
        await checkpointer.put(made({"a": state}))
    await checkpointer.put(made({"a": 1}))


LONG = [
    ("x" * 1024, True),
    ("é" * 512, True),
    ("🧶" * 256, True),
    ("x" * 1025, False),
    ("é" * 513, False),
    ("x" * 5000, False),
]


@pytest.mark.parametrize(
    ("thread_id", "fits"), LONG, ids=lambda value: str(len(value)) if isinstance(value, str) else ""
)
async def test_a_thread_id_of_1_kb_is_stored_and_a_longer_one_refused(
    checkpointer: Any, thread_id: str, fits: bool
) -> None:
    if fits:
        await checkpointer.put(made(1, thread_id=thread_id))
        await checkpointer.put(made(2, thread_id=thread_id[:-1]))
        assert (await checkpointer.get(at(None, thread_id))).state == 1
        assert (await checkpointer.get_thread(thread_id)).thread_id == thread_id
    else:
        with pytest.raises(clew.InvalidInput, match="thread_id"):
            await checkpointer.put(made(thread_id=thread_id))
        with pytest.raises(clew.InvalidInput, match="thread_id"):
            await checkpointer.get(at(None, thread_id))
    assert len((await checkpointer.list_threads()).items) == (2 if fits else 0)


IDS = ["🧶", "a b", "A", "a", "é", "e\u0301", "' OR 1=1 --", "%", "_", '"', "\\", "\x7f", "x" * 512, "NULL", " ", "\n"]


@pytest.mark.invariant(9)
async def test_any_other_text_is_an_id_and_none_is_mixed_up(checkpointer: Any) -> None:
    for number, text in enumerate(IDS):
        await checkpointer.put(made(number, text, text, run_id=text, namespace=(text,), next_nodes=[text]))
        await checkpointer.put_writes(
            at(text, text, (text,)), [PendingWrite(node=text, payload=number, task_id=text, channel=text)]
        )
    for number, text in enumerate(IDS):
        found = await checkpointer.get_tuple(at(text, text, (text,)))
        assert found.checkpoint.state == number
        assert (found.checkpoint.run_id, found.checkpoint.next_nodes, found.config.namespace) == (
            text,
            (text,),
            (text,),
        )
        assert found.pending_writes == (PendingWrite(node=text, payload=number, task_id=text, channel=text),)
        assert [
            item.checkpoint_id for item in (await checkpointer.list(text, run_id=text, namespace=(text,))).items
        ] == [text]
        assert (await checkpointer.get_thread(text)).checkpoint_count == 1
    for text in IDS:
        assert await checkpointer.delete_by_run(text) == 1


BAD = ["a\0b", "\ud800", "x" * 5000, "é" * 600]


@pytest.mark.invariant(9)
@pytest.mark.parametrize("text", [*BAD, ""], ids=["nul", "surrogate", "long", "long-utf8", "empty"])
async def test_text_that_does_not_fit_an_id_is_refused_by_name(checkpointer: Any, probe: Probe, text: str) -> None:
    write = PendingWrite(node="n", payload=1)
    calls: list[tuple[str, Any]] = [
        ("thread_id", lambda: checkpointer.put(made(thread_id=text))),
        ("checkpoint_id", lambda: checkpointer.put(made(checkpoint_id=text))),
        ("run_id", lambda: checkpointer.put(made(run_id=text))),
        ("parent_checkpoint_id", lambda: checkpointer.put(made(parent_checkpoint_id=text))),
        ("thread_id", lambda: checkpointer.put_writes(at("c1", text), [write])),
        ("checkpoint_id", lambda: checkpointer.put_writes(at(text), [write])),
        ("thread_id", lambda: checkpointer.get(at(None, text))),
        ("checkpoint_id", lambda: checkpointer.get(at(text))),
        ("checkpoint_id", lambda: checkpointer.get_writes(at(text))),
        ("checkpoint_id", lambda: checkpointer.history(at(text))),
        ("thread_id", lambda: checkpointer.list(text)),
        ("run_id", lambda: checkpointer.list("t", run_id=text)),
        ("before", lambda: checkpointer.list("t", before=text)),
        ("after", lambda: checkpointer.list("t", after=text)),
        ("thread_id", lambda: checkpointer.get_thread(text)),
        ("thread_id", lambda: checkpointer.delete_thread(text)),
        ("thread_id", lambda: checkpointer.delete_checkpoints(text, ["c1"])),
        ("checkpoint_id", lambda: checkpointer.delete_checkpoints("t", [text])),
        ("run_id", lambda: checkpointer.delete_by_run(text)),
        ("thread_id", lambda: checkpointer.delete_by_run("r", thread_id=text)),
    ]
    if text:
        calls += [
            ("namespace", lambda: checkpointer.put(made(namespace=(text,)))),
            ("namespace", lambda: checkpointer.get(at("c1", namespace=(text,)))),
            ("namespace", lambda: checkpointer.list("t", under=(text,))),
            ("task_id", lambda: checkpointer.put_writes(at("c1"), [PendingWrite(node="n", payload=1, task_id=text)])),
            ("node", lambda: checkpointer.put_writes(at("c1"), [PendingWrite(node=text, payload=1)])),
            ("channel", lambda: checkpointer.put_writes(at("c1"), [write.model_copy(update={"channel": text})])),
        ]  # fmt: skip
    for name, call in calls:
        with pytest.raises(clew.InvalidInput, match=name):
            await call()
    assert probe.count("threads") == 0


async def test_a_namespace_of_many_parts_is_refused_as_a_whole(checkpointer: Any) -> None:
    with pytest.raises(clew.InvalidInput, match="namespace"):
        await checkpointer.put(made(namespace=["x" * 100] * 10))
    await checkpointer.put(made(1, namespace=["x" * 100] * 9))
    assert (await checkpointer.get(at("c1", namespace=("x" * 100,) * 9))).state == 1


async def test_state_type_gives_typed_states_back(opener: Any) -> None:
    async with opener(state_type=Plan) as typed, opener() as untyped:
        await typed.put(made(Plan(goal="g", steps=["a"])))
        await typed.put(made(Plan(goal="g", steps=["a", "b" * 400]), "c2"))
        found = await typed.get(at("c2"))
        assert type(found.state) is Plan
        assert found.state == Plan(goal="g", steps=["a", "b" * 400])
        with pytest.raises(clew.UnknownType, match="Mood"):
            await untyped.get(at("c2"))
        assert (await untyped.get_tuple(at("c2"), load_state=False)).checkpoint.state is clew.NOT_LOADED
        assert (await untyped.get_tuple(at("c2"), channels=["steps"])).checkpoint.state == {"steps": ["a", "b" * 400]}


async def test_a_state_that_does_not_fit_its_type_is_an_error_that_names_the_checkpoint(opener: Any) -> None:
    async with opener() as untyped, opener(state_type=Plan) as typed:
        await untyped.put(made({"goal": 5}))
        with pytest.raises(clew.CorruptData, match=r"'c1'.*state\.goal"):
            await typed.get(at())
        await untyped.put(made({"goal": "fits"}, "c2"))
        assert (await typed.get(at("c2"))).state == Plan(goal="fits")


@pytest.mark.invariant(8)
async def test_mutating_the_state_between_two_puts_is_seen_by_the_second_alone(checkpointer: Any) -> None:
    item = {"text": "a" * 300, "seen": []}
    state = {"items": [item, item], "leaf": {"k": "v" * 300}}
    await checkpointer.put(made(state, "c1"))
    item["seen"].append(1)
    state["leaf"]["k"] = "w" * 300
    await checkpointer.put(made(state, "c2"))
    state["items"].clear()
    first, second = (await checkpointer.get(at("c1"))).state, (await checkpointer.get(at("c2"))).state
    assert first == {"items": [{"text": "a" * 300, "seen": []}] * 2, "leaf": {"k": "v" * 300}}
    assert second == {"items": [{"text": "a" * 300, "seen": [1]}] * 2, "leaf": {"k": "w" * 300}}


async def test_mutating_what_was_read_changes_nothing_stored_and_no_other_reading(checkpointer: Any) -> None:
    await checkpointer.put(made({"items": [{"a": ["x" * 300]}], "t": {str(n): [n] for n in range(80)}}))
    one, two = (await checkpointer.get(at())).state, (await checkpointer.get(at())).state
    one["items"][0]["a"].append("new")
    one["t"]["5"].append("new")
    expected = {"items": [{"a": ["x" * 300]}], "t": {str(n): [n] for n in range(80)}}
    assert two == expected
    assert (await checkpointer.get(at())).state == expected
    await checkpointer.put(made(one, "c2"))
    assert (await checkpointer.get(at())).state == expected
    assert (await checkpointer.get(at("c2"))).state == one


async def test_a_checkpoint_source_in_the_metadata_is_its_text(checkpointer: Any) -> None:
    checkpoint = clew.Checkpoint(thread_id="t", state=1, metadata={"source": clew.CheckpointSource.FORK, "step": 2})
    config = await checkpointer.put(checkpoint)
    found = await checkpointer.get_tuple(config)
    assert found.checkpoint.metadata == {"source": "fork", "step": 2}
    assert type(found.checkpoint.metadata["source"]) is str
    assert found.metadata.source is clew.CheckpointSource.FORK
