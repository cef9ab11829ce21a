"""The savers beyond what LangGraph's suite asks: order, filters, iterators, processes, threads and loops."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT, TASKS
from langgraph.types import Send

import clew
from clew.langgraph import AsyncClewSaver, ClewSaver

from langgraph_savers import opened
from probe import Probe


@pytest.fixture
def saver(database_url: str) -> Iterator[ClewSaver]:
    with ClewSaver.from_url(database_url) as found:
        yield found


@pytest.fixture
async def async_saver(database_url: str) -> AsyncIterator[AsyncClewSaver]:
    async with AsyncClewSaver.from_url(database_url) as found:
        yield found


def config_for(thread: str = "t", ns: str = "", checkpoint_id: str | None = None) -> Any:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ns, "checkpoint_id": checkpoint_id}}


def made(v: int = 4, **values: Any) -> Any:
    versions = dict.fromkeys(values, 1)
    return {**empty_checkpoint(), "v": v, "channel_values": values, "channel_versions": versions}


def filled(saver: Any, count: int = 4, thread: str = "t", ns: str = "") -> list[Any]:
    config, found = config_for(thread, ns), []
    for step in range(count):
        config = saver.put(
            config, made(value=step), {"source": "loop", "step": step, "who": f"{step % 2}"}, {"value": 1}
        )
        found.append(config)
    return found


def ids(tuples: Any) -> list[str]:
    return [item.config["configurable"]["checkpoint_id"] for item in tuples]


@pytest.mark.parametrize(("table", "column"), [("checkpoints", "manifest"), ("segments", "payload")])
def test_a_damaged_row_is_an_error_that_names_the_thread_in_a_listing_too(
    saver: ClewSaver, database_url: str, table: str, column: str
) -> None:
    saver.put(config_for(), made(value="long " * 200), {"source": "loop", "step": 0}, {"value": 1})
    probe = Probe(database_url)
    with probe.connection() as connection:
        connection.execute(getattr(probe.tables, table).update().values({column: b"\x01damaged"}))
    with pytest.raises(clew.CorruptData, match="thread 't'"):
        list(saver.list(config_for()))


def test_a_listing_that_is_left_half_read_blocks_nothing(saver: ClewSaver) -> None:
    configs = filled(saver, 5)
    listing = saver.list(config_for(), limit=4)
    seen = [next(listing)]
    filled(saver, 3)
    for item in listing:
        assert saver.get_tuple(item.config) is not None
        saver.put_writes(item.config, [("channel", 1)], "task")
        seen.append(item)
    assert ids(seen) == [config["configurable"]["checkpoint_id"] for config in reversed(configs[1:])]


async def test_an_async_listing_that_is_left_half_read_blocks_nothing(async_saver: AsyncClewSaver) -> None:
    config = config_for()
    for step in range(5):
        config = await async_saver.aput(config, made(value=step), {"source": "loop", "step": step}, {"value": 1})
    seen = []
    async for item in async_saver.alist(config_for()):
        assert await async_saver.aget_tuple(item.config) is not None
        await async_saver.aput(item.config, made(value=9), {"source": "fork", "step": 9}, {"value": 1})
        seen.append(item)
        if len(seen) == 3:
            break
    assert [item.metadata["step"] for item in seen] == [4, 3, 2]


def test_a_listing_goes_over_all_its_pages(saver: ClewSaver) -> None:
    filled(saver, 120)
    steps = [item.metadata["step"] for item in saver.list(config_for())]
    assert steps == list(reversed(range(120)))
    assert [item.metadata["step"] for item in saver.list(config_for(), filter={"who": "1"}, limit=2)] == [119, 117]
    assert len(list(saver.list(config_for(), filter={"who": "1"}))) == 60
    assert list(saver.list(config_for(), limit=0)) == []


def test_before_counts_over_all_namespaces(saver: ClewSaver) -> None:
    [first, *_] = filled(saver, 2)
    filled(saver, 2, ns="child:1")
    [middle] = filled(saver, 1, ns="other|child:2")
    filled(saver, 2)
    everywhere = {"configurable": {"thread_id": "t"}}
    assert len(list(saver.list(everywhere))) == 7
    before = list(saver.list(everywhere, before=middle))
    assert [item.config["configurable"]["checkpoint_ns"] for item in before] == ["child:1", "child:1", "", ""]
    assert [item.config["configurable"]["checkpoint_ns"] for item in saver.list(config_for(ns="child:1"))] == [
        "child:1"
    ] * 2
    assert list(saver.list(everywhere, before=first)) == []


def test_no_config_means_all_threads(saver: ClewSaver) -> None:
    for thread in ("a", "b", "c"):
        filled(saver, 2, thread)
    threads = [item.config["configurable"]["thread_id"] for item in saver.list(None)]
    assert sorted(threads) == ["a", "a", "b", "b", "c", "c"]
    assert len(list(saver.list(None, limit=3))) == 3
    assert len(list(saver.list(None, filter={"step": 1}))) == 3


def test_writes_come_in_the_order_of_their_paths(saver: ClewSaver) -> None:
    config = config_for(checkpoint_id=str(uuid.uuid4()))
    theirs = InMemorySaver()
    long_path = "~__pregel_push, " * 100
    for each in (saver, theirs):
        each.put_writes(config, [("a", 1), (ERROR, "first"), ("b", 2)], "task-z", "~b")
        each.put_writes(config, [("c", 3)], "task-y", long_path)
        each.put_writes(config, [("d", 4), (INTERRUPT, 1)], "task-x", "~a")
        each.put_writes(config, [("other", 1), (ERROR, "second"), ("more", 2), ("new", 5)], "task-z", "~b")
        each.put_writes(config, [("e", (1, 2))], "task-a")
        each.put(config_for(), {**made(value=1), "id": config["configurable"]["checkpoint_id"]}, {}, {"value": 1})
    ours, expected = saver.get_tuple(config), theirs.get_tuple(config)
    assert ours is not None
    assert expected is not None
    assert ours.pending_writes == expected.pending_writes
    assert ours.config == expected.config


def test_sends_of_an_old_parent_are_given_to_its_child(saver: ClewSaver) -> None:
    parent = saver.put(config_for(), made(v=3, value=1), {"source": "loop", "step": 0}, {"value": 1})
    saver.put_writes(parent, [(TASKS, Send("second", 2))], "task-b", "~b")
    saver.put_writes(parent, [(TASKS, Send("first", 1)), ("other", 1)], "task-a", "~a")
    old = saver.put(parent, made(v=3, value=2), {"source": "loop", "step": 1}, {"value": 1})
    new = saver.put(parent, made(v=4, value=2), {"source": "loop", "step": 1}, {"value": 1})
    found = saver.get_tuple(old)
    assert found is not None
    assert found.checkpoint["channel_values"][TASKS] == [Send("first", 1), Send("second", 2)]
    assert found.checkpoint["channel_versions"] == {"value": 1, TASKS: 1}
    assert [TASKS in item.checkpoint["channel_values"] for item in saver.list(config_for())] == [False, True, False]
    unaffected = saver.get_tuple(new)
    assert unaffected is not None
    assert TASKS not in unaffected.checkpoint["channel_values"]
    saver.prune(["t"])
    assert len(list(saver.list(config_for()))) == 1


def test_pruning_keeps_the_parent_that_holds_the_sends_of_an_old_checkpoint(saver: ClewSaver) -> None:
    first = saver.put(config_for(), made(v=3, value=0), {"source": "loop", "step": 0}, {"value": 1})
    parent = saver.put(first, made(v=3, value=1), {"source": "loop", "step": 1}, {"value": 1})
    saver.put_writes(parent, [(TASKS, Send("node", 1))], "task", "~")
    child = saver.put(parent, made(v=3, value=2), {"source": "loop", "step": 2}, {"value": 1})
    saver.prune(["t"])
    assert ids(saver.list(config_for())) == ids(saver.get_tuple(config) for config in (child, parent))
    found = saver.get_tuple(child)
    assert found is not None
    assert found.checkpoint["channel_values"][TASKS] == [Send("node", 1)]


def test_each_delta_channel_is_followed_back_to_its_own_value(saver: ClewSaver) -> None:
    channels = ["a", "b", "c"]
    nothing: Any = {channel: {"writes": []} for channel in channels}
    assert saver.get_delta_channel_history(config=config_for("nobody"), channels=channels) == nothing
    config = config_for(checkpoint_id="never stored")
    for step, values in enumerate(({"a": 1, "b": 2}, {"b": 3}, {}, {"a": 9, "b": 9, "c": 9})):
        config = saver.put(config, made(**values), {"source": "loop", "step": step}, dict.fromkeys(values, 1))
        saver.put_writes(config, [(channel, f"{channel}{step}") for channel in channels], "task")
    assert saver.get_delta_channel_history(config=config, channels=channels) == {
        "a": {"writes": [("task", "a", "a0"), ("task", "a", "a1"), ("task", "a", "a2")], "seed": 1},
        "b": {"writes": [("task", "b", "b1"), ("task", "b", "b2")], "seed": 3},
        "c": {"writes": [("task", "c", "c0"), ("task", "c", "c1"), ("task", "c", "c2")]},
    }


def test_pruning_looks_for_a_delta_channels_value_beyond_what_is_no_graphs_checkpoint(
    saver: ClewSaver, database_url: str
) -> None:
    saver.put(config_for(), made(a=0), {"source": "loop", "step": 0}, {"a": 1})
    first = saver.put(config_for(), made(a=1), {"source": "loop", "step": 0}, {"a": 1})
    with clew.Checkpointer.open(database_url) as checkpointer:
        checkpointer.put(
            clew.Checkpoint(
                thread_id="t",
                checkpoint_id="list",
                parent_checkpoint_id=first["configurable"]["checkpoint_id"],
                state=["x" * 300],
            )
        )
    metadata: Any = {"source": "loop", "step": 1, "counters_since_delta_snapshot": {"a": [1, 1]}}
    last = saver.put(config_for(checkpoint_id="list"), made(), metadata, {})
    saver.prune(["t"])
    with clew.Checkpointer.open(database_url) as checkpointer:
        left = [item.checkpoint_id for item in checkpointer.list("t").items]
    named = [config["configurable"]["checkpoint_id"] for config in (last, first)]
    assert left == [named[0], "list", named[1]]


def test_a_lineage_that_bites_its_tail_comes_to_an_end(saver: ClewSaver) -> None:
    one, other = made(), made()
    metadata: Any = {"source": "loop", "step": 1, "counters_since_delta_snapshot": {"a": [1, 1]}}
    saver.put(config_for(checkpoint_id=other["id"]), one, metadata, {})
    last = saver.put(config_for(checkpoint_id=one["id"]), other, metadata, {})
    assert saver.get_delta_channel_history(config=last, channels=["a"]) == {"a": {"writes": []}}
    saver.prune(["t"])
    assert len(list(saver.list(config_for()))) == 2


def test_what_looks_like_a_secret_is_left_out_unless_it_is_allowed(database_url: str) -> None:
    names = ("api_key", "OPENAI_API_KEY", "auth_token", "db_password", "clientSecret", "authorization")
    fine = ("user", "author", "tokens_used", "max_tokens", "passenger", "monkey")
    config = {"configurable": {**config_for()["configurable"], **dict.fromkeys((*names, *fine), "x")}}
    with ClewSaver.from_url(database_url, metadata_keys={"auth_token"}) as saver:
        found = saver.get_tuple(saver.put(config, made(), {"source": "input", "step": -1, "token": "said"}, {}))
        assert found is not None
        assert sorted(found.metadata) == sorted([*fine, "auth_token", "source", "step", "token"])


def test_metadata_comes_back_as_it_was(saver: ClewSaver) -> None:
    for metadata in (
        {"source": "loop", "step": 1, "parents": {}},
        {"source": "loop", "step": 1},
        {"parents": {"": "x"}, "step": -1, "source": "input", "extra": [1, None, {"a": 1.5}]},
        {},
    ):
        found = saver.get_tuple(saver.put(config_for(), made(), metadata, {}))  # type: ignore[arg-type]
        assert found is not None
        assert found.metadata == metadata


def test_pruning_keeps_the_latest_of_each_namespace(saver: ClewSaver) -> None:
    filled(saver, 4)
    filled(saver, 3, ns="child:1")
    saver.prune(["t", "unknown"])
    assert [item.metadata["step"] for item in saver.list({"configurable": {"thread_id": "t"}})] == [2, 3]
    saver.prune(["t"], strategy="delete")
    assert list(saver.list(None)) == []
    with pytest.raises(clew.InvalidInput, match="strategy"):
        saver.prune(["t"], strategy="everything")


def test_a_copy_shares_everything_but_the_serializer(saver: ClewSaver) -> None:
    clone = saver.with_allowlist([("some.module", "Name")])
    [config] = filled(saver, 1)
    assert clone.get_tuple(config) == saver.get_tuple(config)


def test_versions_go_on_as_they_began(saver: ClewSaver) -> None:
    assert saver.get_next_version(None, None) == 1
    assert saver.get_next_version(1, None) == 2
    text = InMemorySaver().get_next_version(None, None)
    following = saver.get_next_version(text, None)
    assert following > text
    assert InMemorySaver().get_next_version(following, None) > following


async def test_the_sync_methods_of_the_async_saver_answer_other_threads(async_saver: AsyncClewSaver) -> None:
    def work() -> list[str]:
        filled(async_saver, 3)
        async_saver.put_writes(config_for(checkpoint_id="x"), [("a", 1)], "task")
        async_saver.copy_thread("t", "copy")
        async_saver.delete_thread("t")
        return [item.config["configurable"]["thread_id"] for item in async_saver.list(None)]

    assert await asyncio.to_thread(work) == ["copy"] * 3
    with pytest.raises(clew.WrongContext, match="its own event loop would wait for itself"):
        async_saver.get_tuple(config_for("copy"))


def test_a_sync_call_without_a_running_loop_says_what_it_needs(database_url: str) -> None:
    async def leave() -> AsyncClewSaver:
        async with AsyncClewSaver.from_url(database_url) as saver:
            return saver

    saver = asyncio.run(leave())
    with pytest.raises(clew.WrongContext, match="needs the event loop it was made in"):
        saver.get_tuple(config_for())


def test_eight_processes_set_up_an_empty_database_at_once(empty_database_url: str) -> None:
    program = (
        "import sys\nfrom clew.langgraph import ClewSaver\nwith ClewSaver.from_url(sys.argv[1]) as saver: saver.setup()"
    )
    running = [subprocess.Popen([sys.executable, "-c", program, empty_database_url]) for _ in range(8)]
    assert [process.wait(120) for process in running] == [0] * 8
    with ClewSaver.from_url(empty_database_url) as saver:
        filled(saver, 1)


@pytest.mark.parametrize(("saver", "wanted"), [(ClewSaver, "Checkpointer"), (AsyncClewSaver, "AsyncCheckpointer")])
async def test_a_saver_around_a_drivers_connection_says_what_it_wants(saver: Any, wanted: str) -> None:
    wants = rf"open clew\.{wanted}, not Connection; \w+\.from_url\(url\)"
    with contextlib.closing(sqlite3.connect(":memory:")) as connection, pytest.raises(clew.InvalidInput, match=wants):
        saver(connection)


@pytest.mark.parametrize("missing", ["langgraph", "langchain_core"])
def test_without_the_extra_the_import_says_what_to_install(missing: str) -> None:
    script = f"import sys; sys.modules[{missing!r}] = None\nimport clew.langgraph"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    last = done.stderr.splitlines()[-1]
    assert last == "ModuleNotFoundError: clew.langgraph needs an extra; run: pip install 'clew[langgraph]'"


async def test_a_saver_works_around_an_open_checkpointer(database_url: str) -> None:
    async with clew.AsyncCheckpointer.open(database_url) as checkpointer:
        saver = AsyncClewSaver(checkpointer)
        await saver.aput(config_for(), made(value=1), {"source": "loop", "step": 0}, {"value": 1})
        found = await checkpointer.get_tuple(clew.CheckpointConfig.latest("t"))
        assert found is not None
        assert found.metadata.step == 0


@pytest.mark.parametrize("face", ["sync", "async"])
async def test_an_empty_thread_id_is_named(database_url: str, face: str) -> None:
    async with opened(database_url, face) as saver:
        with pytest.raises(clew.InvalidInput, match="no thread_id"):
            await saver.aget_tuple({"configurable": {}})
