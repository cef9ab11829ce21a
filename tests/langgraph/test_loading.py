"""Messages that were loaded before are made from their fields alone, and are what the serializer makes of them."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import (
    AIMessage,
    AnyMessage,
    ChatMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from pydantic import BaseModel, PrivateAttr, field_validator

from clew.codec import Serialized
from clew.errors import CorruptData
from clew.langgraph.loading import Loader


class Counted(BaseModel):
    """Its validator would notice being run."""

    value: int
    data: bytes = b""
    pair: tuple[int, int] = (0, 0)

    @field_validator("value")
    @classmethod
    def one_more(cls, value: int) -> int:
        return value + 1


class Private(BaseModel):
    value: int
    _kept: int = PrivateAttr(default=7)


MESSAGES: list[AnyMessage | BaseModel] = [
    HumanMessage("hello", id="1", name="ann", additional_kwargs={"a": [1, None, {"b": 1.5}]}),
    HumanMessage([{"type": "text", "text": "hello"}, {"type": "image_url", "image_url": {"url": "x"}}]),
    AIMessage(
        "hi",
        tool_calls=[{"name": "look", "args": {"a": [1]}, "id": "c"}],
        invalid_tool_calls=[{"name": "look", "args": "{", "id": "d", "error": "broken"}],
        usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3},
        response_metadata={"model": "m"},
    ),
    SystemMessage("be kind"),
    ToolMessage("found", tool_call_id="c", artifact={"raw": [1]}, status="error"),
    ToolMessage("bytes", tool_call_id="c", artifact=b"\0\xff"),
    ToolMessage("tuple", tool_call_id="c", artifact=(1, 2)),
    ChatMessage("hello", role="critic"),
    RemoveMessage(id="1"),
    Counted(value=1, data=b"x", pair=(1, 2)),
    Private(value=1),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_is_the_same_each_time_and_shares_nothing(message: Any) -> None:
    serde = JsonPlusSerializer()
    stored = serde.dumps_typed(message)
    expected, loader = serde.loads_typed(stored), Loader(serde)
    payload = Serialized(*stored).packed()
    found = [loader(payload) for _ in range(3)]
    for each in found:
        assert type(each) is type(expected)
        assert each == expected
        assert repr(each) == repr(expected)
        assert each.model_fields_set == expected.model_fields_set
        assert serde.dumps_typed(each) == serde.dumps_typed(expected)
    assert len({id(each) for each in found}) == 3
    kwargs = [each.additional_kwargs for each in found if isinstance(each, HumanMessage)]
    assert len({id(each) for each in kwargs}) == len(kwargs)


def test_what_is_known_stays_within_its_bytes() -> None:
    serde = JsonPlusSerializer()
    loader = Loader(serde, known_bytes=5000)
    for number in range(50):
        loader(Serialized(*serde.dumps_typed(HumanMessage("x" * 500, id=str(number)))).packed())
    assert 1 <= len(loader._known) <= 10


def test_a_message_that_does_not_equal_itself_is_loaded_by_the_serializer_each_time() -> None:
    serde = JsonPlusSerializer()
    loader = Loader(serde)
    payload = Serialized(*serde.dumps_typed(HumanMessage("x", additional_kwargs={"score": float("nan")}))).packed()
    assert [repr(loader(payload).additional_kwargs) for _ in range(2)] == ["{'score': nan}"] * 2
    assert loader._known == {}


def test_a_serializer_that_gives_nothing_for_something_is_not_believed() -> None:
    class Forgetful(JsonPlusSerializer):
        def loads_typed(self, data: tuple[str, bytes]) -> Any:
            return None

    loader = Loader(Forgetful())
    assert loader(Serialized("msgpack", b"\xc0").packed()) is None
    assert loader(Serialized("null", b"").packed()) is None
    with pytest.raises(CorruptData, match="gives nothing for a value that was something"):
        loader(Serialized("msgpack", b"\x01").packed())
