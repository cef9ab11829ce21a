"""Values that another library's serializer wrote: kept exactly, shown without that library."""

from __future__ import annotations

import ormsgpack
import pytest
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, ChatMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from clew.codec import Codec, Serialized


@pytest.mark.parametrize("kind", ["msgpack", "null", "json", "msgpack+aes", "a type of ünusual name"])
@pytest.mark.parametrize("data", [b"", b"\xc0", b"\x01" * 1000])
def test_it_comes_back_as_it_was(kind: str, data: bytes) -> None:
    value, codec = Serialized(kind, data), Codec()
    assert codec.decode(codec.strict([value])) == [value]
    assert codec.quick([value]) == [codec.strict(value)]
    assert value.compressed().opened() == value


def test_a_codec_may_load_it_where_it_stands() -> None:
    codec = Codec()
    loading = codec.loading(lambda payload: Serialized.unpacked(payload).data.decode())
    data = codec.strict({"a": [Serialized("msgpack", b"one"), 2]})
    assert loading.decode(data) == {"a": ["one", 2]}
    assert codec.decode(data) == {"a": [Serialized("msgpack", b"one"), 2]}


def test_it_is_shown_as_plain_values() -> None:
    message = AIMessage("hi", id="1", tool_calls=[{"name": "look_up", "args": {"a": 1}, "id": "c"}])
    shown = Serialized(*JsonPlusSerializer().dumps_typed(message)).plain()
    assert shown == {
        "role": "assistant",
        "content": "hi",
        "id": "1",
        "tool_calls": [{"name": "look_up", "args": {"a": 1}, "id": "c", "type": "tool_call"}],
    }
    assert Serialized(*JsonPlusSerializer().dumps_typed({1, 2})).plain() == [1, 2]
    assert Serialized(*JsonPlusSerializer().dumps_typed(Document(page_content="a", metadata={}))).plain() == {
        "class": "Document",
        "page_content": "a",
        "type": "Document",
    }
    said = ChatMessage(content="a", role="judge")
    assert Serialized(*JsonPlusSerializer().dumps_typed(said)).plain() == {
        "class": "ChatMessage",
        "content": "a",
        "type": "chat",
        "role": "judge",
    }
    array = ormsgpack.packb(ormsgpack.Ext(6, ormsgpack.packb(["<i8", [2, 3], "C", bytes(48)])))
    assert Serialized("msgpack", array).plain() == "<array <i8 [2, 3]>"
    snapshot = JsonPlusSerializer().dumps_typed(_DeltaSnapshot(["a", {"b": 1}]))
    assert Serialized(*snapshot).plain() == ["a", {"b": 1}]
    assert Serialized("null", b"").plain() is None
    assert Serialized("bytes", b"ab").plain() == b"ab"
    assert Serialized("json", b'{"a": 1}').plain() == {"a": 1}
    assert Serialized("msgpack+aes", b"abc").plain() == "<msgpack+aes, 3 bytes>"
    assert Serialized("msgpack", b"\xc1").plain() == "<msgpack, 1 bytes>"
    assert Serialized("zstd/msgpack", b"no frame").plain() == "<zstd/msgpack, 8 bytes>"
    assert repr(Serialized("msgpack", b"\x01")) == "Serialized(1)"


def test_what_is_short_or_does_not_shrink_is_not_compressed() -> None:
    short, random = Serialized("msgpack", b"a" * 100), Serialized("msgpack", bytes(range(256)))
    assert short.compressed() is short
    assert random.compressed() is random
    assert Serialized("msgpack", b"a" * 1000).compressed().type == "zstd/msgpack"
