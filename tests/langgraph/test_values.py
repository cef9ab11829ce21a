"""What LangGraph's serializer can write comes back as LangGraph's in-memory saver gives it, on every database."""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from collections.abc import Iterator
from copy import copy
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum, StrEnum
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.types import Send
from pydantic import BaseModel

import clew
from clew.codec import Serialized, UntypedCodec
from clew.langgraph import ClewSaver


class Color(Enum):
    RED = "red"


class Name(StrEnum):
    ANN = "ann"


@dataclasses.dataclass
class Point:
    x: int
    tags: list[str]


class Model(BaseModel):
    name: str
    points: list[int] = []


VALUES: dict[str, Any] = {
    "none": None,
    "flags": [True, False, 0, 1, 1.0, -0.0],
    "numbers": [2**63 - 1, -(2**63), 1e308, math.inf],
    "texts": ["", "a\0b", "🙂", "\ud800"],
    "bytes": b"\0\xff",
    "bytearray": bytearray(b"ab"),
    "byte lists": [b"ab", bytearray(b"cd"), None],
    "tuple": (1, (2, "three")),
    "tuples": [(1, 2), (3,)],
    "sets": [{1}, frozenset({2}), deque([3, 4])],
    "enums": [Color.RED, Name.ANN],
    "times": [datetime(2026, 1, 2, 3, 4, tzinfo=UTC), date(2026, 1, 2), timedelta(days=1)],
    "others": [UUID(int=7), Decimal("1.50"), Path("a/b"), Point(1, ["a"]), Model(name="m", points=[1])],
    "messages": [HumanMessage("hello", id="1"), AIMessage("hi", id="2", tool_calls=[], response_metadata={"a": [1]})],
    "sends": [Send("node", {"value": 1})],
    "mapping": {f"key {number}": {"value": number, "text": "x" * number} for number in range(100)},
    "odd keys": {1: "one", "1": "text"},
    "small": {"a": 1},
    "deep": {"a": {"b": [{"c": (1, 2)}]}},
}


@pytest.fixture
def saver(database_url: str) -> Iterator[ClewSaver]:
    with ClewSaver.from_url(database_url) as opened:
        yield opened


def put(saver: Any, values: dict[str, Any], parent: Any = None, version: int = 1, **fields: Any) -> Any:
    config = parent or {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    versions = dict.fromkeys(values, version)
    checkpoint = {**empty_checkpoint(), "v": 4, "channel_values": values, "channel_versions": versions, **fields}
    return saver.put(config, checkpoint, {"source": "loop", "step": version}, versions)


def read(saver: Any, config: Any = None) -> Any:
    found = saver.get_tuple(config or {"configurable": {"thread_id": "t"}})
    return found.checkpoint["channel_values"]


@pytest.mark.parametrize("name", VALUES)
def test_a_value_comes_back_as_from_the_in_memory_saver(saver: ClewSaver, name: str) -> None:
    theirs = InMemorySaver()
    for each in (theirs, saver):
        put(each, {name: VALUES[name]})
    assert repr(read(saver)) == repr(read(theirs))
    assert read(saver) == read(theirs)
    [listed] = saver.list(None)
    assert repr(listed.checkpoint["channel_values"]) == repr(read(theirs))


def test_all_channels_of_a_wide_state_come_back(saver: ClewSaver) -> None:
    values = {f"channel {number}": f"{number} " * 30 for number in range(200)}
    put(saver, values)
    assert read(saver) == values


def test_a_channel_may_have_any_name(saver: ClewSaver) -> None:
    values = dict.fromkeys(["langgraph:checkpoint", "langgraph:checkpoint'", "", "x" * 300], "value")
    put(saver, values)
    assert read(saver) == values


def test_not_a_number_comes_back(saver: ClewSaver) -> None:
    put(saver, {"value": [math.nan]})
    assert math.isnan(read(saver)["value"][0])


def test_a_message_that_was_changed_in_place_is_stored_again(saver: ClewSaver) -> None:
    messages = [HumanMessage(f"message {number} " * 20, id=str(number)) for number in range(20)]
    first = put(saver, {"messages": messages})
    messages[3].content = "changed"
    messages[4].additional_kwargs["more"] = {"deep": [1]}
    second = put(saver, {"messages": messages}, first, 2)
    assert read(saver, second)["messages"] == messages
    assert read(saver, first)["messages"][3].content != "changed"


def test_bytes_that_become_a_bytearray_come_back_as_one(saver: ClewSaver) -> None:
    values = [b"ab" * 200, bytearray(b"ab" * 200), b"ab" * 200]
    config = None
    for version, value in enumerate(values, start=1):
        config = put(saver, {"value": value}, config, version)
        assert type(read(saver, config)["value"]) is type(value)


def test_what_is_read_belongs_to_the_caller(saver: ClewSaver) -> None:
    put(saver, {"messages": [AIMessage("hi", id="1", tool_calls=[{"name": "a", "args": {"b": [1]}, "id": "c"}])]})
    for _ in range(3):
        [message] = read(saver)["messages"]
        assert message.tool_calls[0]["args"] == {"b": [1]}
        message.tool_calls[0]["args"]["b"].append(2)
        message.content = "changed"


def test_two_children_with_the_same_versions_keep_their_own_values(saver: ClewSaver) -> None:
    parent = put(saver, {"value": "parent " * 100})
    children = [put(saver, {"value": f"child {number} " * 100}, parent, 2) for number in range(2)]
    assert [read(saver, child)["value"][:7] for child in children] == ["child 0", "child 1"]
    assert read(saver, parent)["value"][:6] == "parent"


def test_an_unmoved_channel_is_not_encoded_again(saver: ClewSaver) -> None:
    first = put(saver, {"still": ["x" * 1000], "moved": 1})

    class Counting(JsonPlusSerializer):
        count = 0

        def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
            Counting.count += 1
            return super().dumps_typed(obj)

    saver.serde = Counting()
    second = put(saver, {"still": ["x" * 1000], "moved": 2}, first, 2)
    Counting.count = 0
    checkpoint = {**empty_checkpoint(), "channel_values": {"still": ["y"], "moved": 3}}
    checkpoint["channel_versions"] = {"still": 2, "moved": 3}
    third = saver.put(second, checkpoint, {"source": "loop", "step": 3}, {"moved": 3})
    assert Counting.count <= 2  # the moved channel, and the fields of a checkpoint that clew does not know
    assert read(saver, third) == {"still": ["x" * 1000], "moved": 3}


def test_what_the_serializer_refuses_is_named(saver: ClewSaver) -> None:
    with pytest.raises(clew.Unserializable, match=r"^messages\[1\]"):
        put(saver, {"messages": ["fine", object()]})


@pytest.mark.parametrize(
    "stored",
    [
        Serialized("msgpack", bytes.fromhex("c7010963")),  # an extension that LangGraph does not know
        Serialized("msgpack", b"\x93\x01"),
        Serialized("pickle", b"x"),
        Serialized("msgpack+aes", b"x"),
    ],
)
def test_what_the_serializer_cannot_load_is_an_error_and_never_none(
    saver: ClewSaver, database_url: str, stored: Serialized
) -> None:
    with clew.Checkpointer.open(database_url) as checkpointer:
        checkpointer.put(clew.Checkpoint(thread_id="t", state={"value": stored}))
        with pytest.raises(clew.CorruptData, match="LangGraph's serializer cannot load"):
            read(saver)


class Flipped(JsonPlusSerializer):
    """Stands for encryption: every bit is turned."""

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        name, data = super().dumps_typed(obj)
        return f"{name}+flip", bytes(255 - byte for byte in data)

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        return super().loads_typed((data[0].removesuffix("+flip"), bytes(255 - byte for byte in data[1])))


@pytest.mark.parametrize("frame", [5, {}, {"numbers": []}])
def test_versions_that_cannot_be_read_are_corrupt_data(saver: ClewSaver, database_url: str, frame: object) -> None:
    with clew.Checkpointer.open(database_url) as checkpointer:
        checkpointer.put(clew.Checkpoint(thread_id="t", state={"langgraph:checkpoint": frame}))
    with pytest.raises(clew.CorruptData):
        read(saver)
    with pytest.raises(clew.CorruptData):
        list(saver.list(None))


def test_a_state_of_clews_own_interface_may_have_any_keys(saver: ClewSaver, database_url: str) -> None:
    with clew.Checkpointer.open(database_url) as checkpointer:
        checkpointer.put(clew.Checkpoint(thread_id="t", state={1: "one", "two": 2}))
    assert read(saver) == {1: "one", "two": 2}


def test_an_encrypting_serializer_leaves_nothing_in_the_open(database_url: str) -> None:
    values = {"mapping": {f"secret {number}": "text" * 20 for number in range(20)}, "list": ["secret"] * 50}
    with ClewSaver.from_url(database_url, serde=Flipped()) as saver:
        put(saver, values)
        assert read(saver) == values
    with clew.Checkpointer.open(database_url, codec=UntypedCodec()) as checkpointer:
        found = checkpointer.get(clew.CheckpointConfig.latest("t"))
        assert found is not None
        assert "secret" not in repr(found.state)


def test_a_copy_with_an_encrypting_serializer_takes_nothing_from_the_plain_one(database_url: str) -> None:
    values = {"list": ["secret"] * 50}
    with ClewSaver.from_url(database_url) as plain:
        encrypting = copy(plain)
        encrypting.serde = Flipped()
        first = put(plain, values)
        second = put(encrypting, values, first, 2)
        assert read(encrypting, second) == values
    with clew.Checkpointer.open(database_url, codec=UntypedCodec()) as checkpointer:
        found = checkpointer.get(clew.CheckpointConfig.latest("t"))
        assert found is not None
        assert "secret" not in repr(found.state)


def test_the_native_interface_reads_the_messages_as_they_look(saver: ClewSaver, database_url: str) -> None:
    put(saver, {"messages": [HumanMessage("hello", id="1"), AIMessage("hi", id="2")], "count": 3})
    with clew.Checkpointer.open(database_url, codec=UntypedCodec()) as checkpointer:
        found = checkpointer.get(clew.CheckpointConfig.latest("t"))
        assert found is not None
        assert found.state["messages"] == [
            {"role": "user", "content": "hello", "id": "1"},
            {"role": "assistant", "content": "hi", "id": "2"},
        ]
        assert found.state["count"] == 3
    with clew.Checkpointer.open(database_url) as checkpointer:
        kept = checkpointer.get(clew.CheckpointConfig.latest("t"))
        assert kept is not None
        checkpointer.put(clew.Checkpoint(thread_id="t", parent_checkpoint_id=kept.checkpoint_id, state=kept.state))
    assert read(saver)["messages"][0] == HumanMessage("hello", id="1")
