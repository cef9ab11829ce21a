"""The way in from LangGraph's own savers: half a conversation on theirs, the other half on clew's."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.types import Command

from clew.errors import InvalidInput, Unserializable
from clew.langgraph import ClewSaver, import_langgraph
from clew.langgraph.sources import KeptSerde

import langgraph_graphs as graphs
import postgres_server
from langgraph_graphs import listed, shown

THREAD = {"configurable": {"thread_id": "t"}}


@contextmanager
def saver_of_theirs(url: str) -> Iterator[Any]:
    if url.startswith("sqlite"):
        with SqliteSaver.from_conn_string(url.removeprefix("sqlite:///")) as saver:
            saver.setup()
            yield saver
    else:
        with PostgresSaver.from_conn_string(url) as saver:
            saver.setup()
            yield saver


@pytest.fixture(params=["sqlite", "postgres"])
def source_url(request: pytest.FixtureRequest, tmp_path: Path, postgres: postgres_server.Session) -> Iterator[str]:
    """An empty database for one of LangGraph's savers."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'theirs.db'}"
    else:
        with postgres.database() as url:
            yield url


def first_half(saver: Any) -> None:
    graph = graphs.react().compile(checkpointer=saver)
    for number in range(3):
        graph.invoke(graphs.question(number), {**THREAD, "metadata": {"user": "ann"}})
    inner = graphs.nested().compile(checkpointer=saver)
    inner.invoke({"topic": "trees"}, {"configurable": {"thread_id": "nested"}})


def second_half(saver: Any) -> list[Any]:
    graph = graphs.react().compile(checkpointer=saver)
    found = [graph.invoke(graphs.question(number), {**THREAD, "metadata": {"user": "ann"}}) for number in (3, 4)]
    inner = graphs.nested().compile(checkpointer=saver)
    nested: dict[str, Any] = {"configurable": {"thread_id": "nested"}}
    found.append(shown(inner.get_state(nested, subgraphs=True)))
    found.append(inner.invoke(Command(resume="yes"), nested))
    found += [*map(shown, graph.get_state_history(THREAD)), *map(shown, inner.get_state_history(nested))]
    return [*found, listed(saver)]


def test_a_conversation_goes_on_as_if_nothing_had_happened(source_url: str, database_url: str) -> None:
    expected = InMemorySaver()
    first_half(expected)
    with saver_of_theirs(source_url) as theirs:
        first_half(theirs)
        before = {
            item.config["configurable"]["checkpoint_id"]: (item.checkpoint, item.metadata, item.pending_writes)
            for item in theirs.list(None)
        }
    steps: list[tuple[int, int]] = []
    done = asyncio.run(
        import_langgraph(source_url, database_url, advance=lambda number, total: steps.append((number, total)))
    )
    assert done.threads == 2
    assert (done.checkpoints, done.present) == (len(before), 0)
    assert steps[-1] == (len(before), len(before))
    assert done.source_bytes > 0
    assert done.target_bytes > 0
    with ClewSaver.from_url(database_url) as ours:
        for item in ours.list(None):
            checkpoint, metadata, writes = before.pop(item.config["configurable"]["checkpoint_id"])
            assert item.checkpoint == checkpoint
            assert item.metadata == metadata
            assert item.pending_writes == writes
        assert before == {}
        assert second_half(ours) == second_half(expected)


def test_an_import_goes_on_where_it_stopped(source_url: str, database_url: str) -> None:
    with saver_of_theirs(source_url) as theirs:
        first_half(theirs)

    class Stopped(Exception):
        pass

    def stop(number: int, total: int) -> None:
        if number == 5:
            raise Stopped

    with pytest.raises(Stopped):
        asyncio.run(import_langgraph(source_url, database_url, advance=stop))
    again = asyncio.run(import_langgraph(source_url, database_url))
    assert again.present == 5
    once_more = asyncio.run(import_langgraph(source_url, database_url))
    assert (once_more.checkpoints, once_more.present) == (0, again.checkpoints + 5)
    with saver_of_theirs(source_url) as theirs, ClewSaver.from_url(database_url) as ours:
        for thread in ("t", "nested"):
            config: Any = {"configurable": {"thread_id": thread}}
            assert [item.checkpoint for item in ours.list(config)] == [item.checkpoint for item in theirs.list(config)]


def test_a_second_import_brings_the_writes_that_came_meanwhile(source_url: str, database_url: str) -> None:
    nested: Any = {"configurable": {"thread_id": "nested"}}
    with saver_of_theirs(source_url) as theirs:
        first_half(theirs)
        asyncio.run(import_langgraph(source_url, database_url))
        interrupted = theirs.get_tuple(nested).config
        theirs.put_writes(interrupted, [("inner", "meanwhile")], "another task")
        again = asyncio.run(import_langgraph(source_url, database_url))
        assert (again.checkpoints, again.writes) == (0, 1)
        with ClewSaver.from_url(database_url) as ours:
            assert ours.get_tuple(nested).pending_writes == theirs.get_tuple(nested).pending_writes


def test_an_import_leaves_what_clew_wrote_since(source_url: str, database_url: str) -> None:
    nested: Any = {"configurable": {"thread_id": "nested"}}
    with saver_of_theirs(source_url) as theirs:
        first_half(theirs)
        interrupted = theirs.get_tuple(nested).config
        theirs.put_writes(interrupted, [("__resume__", "theirs")], "task")
    asyncio.run(import_langgraph(source_url, database_url))
    with ClewSaver.from_url(database_url) as ours:
        ours.put_writes(interrupted, [("__resume__", "ours")], "task")
        asyncio.run(import_langgraph(source_url, database_url))
        assert ("task", "__resume__", "ours") in ours.get_tuple(nested).pending_writes


def test_values_of_every_kind_come_over_as_the_bytes_that_they_are(source_url: str, database_url: str) -> None:
    values = {"text": "a", "raw": b"\x00b", "mutable": bytearray(b"c"), "nothing": None, "many": {"a": [1, (2,)]}}
    checkpoint: Any = {**empty_checkpoint(), "channel_values": values, "channel_versions": dict.fromkeys(values, 1)}
    config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    with saver_of_theirs(source_url) as theirs:
        config = theirs.put(config, checkpoint, {"source": "loop", "step": 1}, dict.fromkeys(values, 1))
        theirs.put_writes(config, list(values.items()), "task")
        expected = theirs.get_tuple(config)
    asyncio.run(import_langgraph(source_url, database_url))
    with ClewSaver.from_url(database_url) as saver:
        found = saver.get_tuple(config)
    assert found is not None
    assert found.checkpoint["channel_values"] == expected.checkpoint["channel_values"]
    assert sorted(found.pending_writes or [], key=repr) == sorted(expected.pending_writes, key=repr)


@pytest.mark.parametrize(
    "value", [None, b"\x00a", "a", {"a": [1, b"b"]}, ["x" * 300]], ids=lambda value: repr(value)[:9]
)
def test_what_is_read_without_langgraphs_serializer_is_written_as_it_writes_it(value: Any) -> None:
    stored = JsonPlusSerializer().dumps_typed(value)
    serde = KeptSerde()
    assert serde.loads_typed(stored) == value
    assert serde.dumps_typed(value) == stored
    assert serde.dumps_typed(serde.loads_typed(("encrypted", b"z"))) == ("encrypted", b"z")


@pytest.mark.parametrize(
    ("kind", "told"), [("null", "give the serializer that wrote it"), ("secret", "cannot be loaded")]
)
def test_a_checkpoint_that_only_another_serializer_reads_is_named(
    tmp_path: Path, sqlite_url: str, kind: str, told: str
) -> None:
    path = tmp_path / "theirs.db"
    with saver_of_theirs(f"sqlite:///{path}") as theirs:
        first_half(theirs)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE checkpoints SET type = ?", (kind,))
    with pytest.raises(Unserializable, match=f"checkpoint .* stored as '{kind}'.*{told}"):
        asyncio.run(import_langgraph(f"sqlite:///{path}", sqlite_url))


def test_what_is_no_database_of_langgraph_is_refused(sqlite_url: str, database_url: str) -> None:
    with pytest.raises(InvalidInput, match="no database of LangGraph's"):
        asyncio.run(import_langgraph(sqlite_url, database_url))


def test_a_source_that_is_not_there_is_refused_and_nothing_is_made(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="does not exist"):
        asyncio.run(import_langgraph(f"sqlite:///{tmp_path / 'old.db'}", f"sqlite:///{tmp_path / 'new.db'}"))
    assert list(tmp_path.iterdir()) == []


def test_the_command_imports(source_url: str, database_url: str) -> None:
    from typer.testing import CliRunner

    from clew.cli.app import app

    with saver_of_theirs(source_url) as theirs:
        first_half(theirs)
    ran = CliRunner().invoke(app, ["import-langgraph", "--from", source_url, "--to", database_url])
    assert ran.exit_code == 0, ran.output
    assert "of 2 threads" in ran.output
    again = CliRunner().invoke(app, ["import-langgraph", "--from", source_url, "--to", database_url, "--json"])
    told = json.loads(again.stdout)
    assert (told["threads"], told["checkpoints"], told["writes"]) == (2, 0, 0)
    assert told["present"] > 0
    shown_ = CliRunner(env={**os.environ, "CLEW_URL": database_url}).invoke(app, ["show", "t"])
    assert shown_.exit_code == 0, shown_.output
    assert "It is the result for something 2" in shown_.output
    assert "look_up" in shown_.output
