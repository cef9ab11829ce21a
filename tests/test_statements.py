"""What goes to the database: which tables and columns a call reads, and how many statements it takes."""

from __future__ import annotations

import re
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Engine, event, select, text

import clew
from clew import Checkpoint, CheckpointConfig, Checkpointer, PendingWrite

from probe import Probe

BIG = "x" * 1000


@pytest.fixture
def postgres_url(shared_postgres_url: str) -> str:
    return shared_postgres_url


@pytest.fixture
def checkpointer(database_url: str) -> Iterator[Checkpointer[Any]]:
    with Checkpointer.open(database_url) as opened:
        yield opened


@contextmanager
def watched(checkpointer: Any) -> Iterator[list[str]]:
    """The statements that the checkpointer sends, transaction control left out; on SQLite as the driver runs them."""
    engine = checkpointer._driver.database.engine
    engine = engine if isinstance(engine, Engine) else engine.sync_engine
    seen: list[str] = []

    def note(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
        seen.append(statement)

    def trace(driver: Any, *rest: Any) -> None:
        driver.set_trace_callback(lambda statement: seen.append(statement) if not _CONTROL.match(statement) else None)

    def untrace(driver: Any, *rest: Any) -> None:
        driver.set_trace_callback(None)

    if engine.dialect.name == "sqlite":
        event.listen(engine, "checkout", trace)
        event.listen(engine, "checkin", untrace)
    else:
        event.listen(engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        if engine.dialect.name == "sqlite":
            event.remove(engine, "checkout", trace)
            event.remove(engine, "checkin", untrace)
        else:
            event.remove(engine, "before_cursor_execute", note)


_CONTROL = re.compile(r"\s*(BEGIN|COMMIT|ROLLBACK|PRAGMA|--)")


def made(number: int, parent: int | None = None, thread_id: str = "t", **fields: Any) -> Checkpoint[Any]:
    return Checkpoint(
        thread_id=thread_id,
        checkpoint_id=f"c{number}",
        parent_checkpoint_id=None if parent is None else f"c{parent}",
        run_id=f"run-{number % 3}",
        state={"messages": [f"{n}-{BIG}" for n in range(number)]},
        metadata={"number": number},
        **fields,
    )


def grow(checkpointer: Checkpointer[Any], count: int) -> None:
    for number in range(1, count + 1):
        checkpointer.put(made(number, number - 1 if number > 1 else None))


def at(number: int | None = None) -> CheckpointConfig:
    return CheckpointConfig(thread_id="t", checkpoint_id=None if number is None else f"c{number}")


READS = {
    "list": lambda c: c.list("t"),
    "list filtered": lambda c: c.list("t", metadata={"number": 3}, run_id="run-0", namespace=(), step=0, source="loop"),
    "list around": lambda c: c.list("t", before="c5", after="c2", under=()),
    "iterate": lambda c: list(c.iterate("t", page_size=2)),
    "history": lambda c: c.history(at()),
    "get_thread": lambda c: c.get_thread("t"),
    "list_threads": lambda c: c.list_threads(),
    "get_tuple without state": lambda c: c.get_tuple(at(), load_state=False),
    "get_tuple by id without state": lambda c: c.get_tuple(at(3), load_state=False),
    "get_writes": lambda c: c.get_writes(at(3)),
    "prune without deleting": lambda c: c.retention.prune("t", keep_last=2, dry_run=True).pruned,
}


@pytest.mark.parametrize("call", READS)
def test_reading_records_touches_no_manifest_and_no_segment(checkpointer: Checkpointer[Any], call: str) -> None:
    grow(checkpointer, 6)
    checkpointer.put_writes(at(3), [PendingWrite(node="n", payload=1, task_id="x")])
    with watched(checkpointer) as seen:
        assert READS[call](checkpointer)
    assert seen
    assert [statement for statement in seen if "manifest" in statement or "clew_segments" in statement] == []
    assert [statement for statement in seen if re.search(r"\bspans\b", statement)] == []


DELETIONS = {
    "delete_checkpoints": lambda c: c.delete_checkpoints("t", ["c2", "c3", "c6"]),
    "delete_by_run": lambda c: c.delete_by_run("run-1"),
    "delete_thread": lambda c: c.delete_thread("t"),
    "prune": lambda c: c.retention.prune("t", keep_last=2).pruned,
}


@pytest.mark.parametrize("call", DELETIONS)
def test_deleting_reads_no_manifest_and_no_payload(checkpointer: Checkpointer[Any], call: str) -> None:
    grow(checkpointer, 6)
    with watched(checkpointer) as seen:
        assert DELETIONS[call](checkpointer)
    assert [statement for statement in seen if "manifest" in statement] == []
    reading = [statement for statement in seen if re.match(r"\s*(SELECT|WITH)\b", statement)]
    assert [statement for statement in reading if "payload" in statement] == []


def test_deleting_takes_a_bounded_number_of_statements(checkpointer: Checkpointer[Any]) -> None:
    counts = []
    grow(checkpointer, 40)
    for doomed in ([39], [1, 2], list(range(5, 35))):
        with watched(checkpointer) as seen:
            assert checkpointer.delete_checkpoints("t", [f"c{number}" for number in doomed]) == len(doomed)
        counts.append(len({re.sub(r"\d+|'[^']*'", "?", statement) for statement in seen}))
    assert max(counts) <= 16


def test_a_read_takes_two_statements(checkpointer: Checkpointer[Any], database_url: str) -> None:
    grow(checkpointer, 20)
    with Checkpointer.open(database_url) as cold:
        for config in (at(), at(7)):
            with watched(cold) as seen:
                assert cold.get(config) is not None
            assert len(seen) == 2


def test_only_the_segments_of_the_wanted_channels_are_read(checkpointer: Checkpointer[Any], database_url: str) -> None:
    state = {"messages": [f"{n}-{BIG}" for n in range(50)], "plan": ["p" * 500], "n": 1}
    checkpointer.put(Checkpoint(thread_id="t", checkpoint_id="c1", state=state))
    read: list[int] = []
    from clew.repository import fetching

    decode = fetching.decode_payload
    with pytest.MonkeyPatch.context() as patch, Checkpointer.open(database_url) as cold:
        patch.setattr(fetching, "decode_payload", lambda *row: read.append(row[2]) or decode(*row))
        assert cold.get_tuple(at(1), channels=["n"]).checkpoint.state == {"n": 1}
        assert read == []
        assert cold.get_tuple(at(1), channels=["plan"]).checkpoint.state == {"plan": ["p" * 500]}
        assert read == [1]


def test_a_put_whose_version_matches_is_one_statement_on_postgres(postgres_url: str) -> None:
    with Checkpointer.open(postgres_url) as checkpointer:
        grow(checkpointer, 2)
        probe = Probe(postgres_url)
        rows, merges = probe.count("segments"), 0
        for number in range(3, 60):
            given = made(number, number - 1, pending_writes=[PendingWrite(node="n", payload=number)])
            with watched(checkpointer) as seen:
                checkpointer.put(given)
            assert len(seen) == 1, number
            assert re.match(r"\s*WITH \w+ AS \(\s*UPDATE clew_thread_versions", seen[0])
            now = probe.count("segments")
            merges += now <= rows
            rows = now
        assert merges >= 3  # the statement that merges segments is one as well
        assert checkpointer.get(at(40)).state == made(40).state
        assert probe.problems() == []


async def test_it_is_one_statement_on_asyncpg_too(postgres_url: str) -> None:
    async with clew.AsyncCheckpointer.open(postgres_url) as checkpointer:
        await checkpointer.put(made(1))
        for number in range(2, 40):
            with watched(checkpointer) as seen:
                await checkpointer.put(made(number, number - 1))
            assert len(seen) == 1, number


def test_that_statement_commits_itself(postgres_url: str) -> None:
    with Checkpointer.open(postgres_url) as checkpointer:
        grow(checkpointer, 2)
        modes = []

        def look(connection: Any, *rest: Any) -> None:
            modes.append(connection.connection.dbapi_connection.autocommit)

        event.listen(checkpointer._driver.database.engine, "before_cursor_execute", look)
        checkpointer.put(made(3, 2))
        assert modes == [True]


def test_the_statements_of_a_put_do_not_grow_over_a_thousand_appends(checkpointer: Checkpointer[Any]) -> None:
    messages: list[str] = []
    counts = []
    for number in range(1000):
        messages.append(f"{number}-" + "x" * 100)
        given = Checkpoint(thread_id="t", checkpoint_id=f"c{number}", state={"messages": messages})
        with watched(checkpointer) as seen:
            checkpointer.put(given)
        counts.append(len({re.sub(r"X?'[^']*'|\d+", "?", statement) for statement in seen}))
    assert max(counts[900:]) <= max(counts[10:110])
    assert sum(counts[900:]) <= sum(counts[10:110]) + 5
    assert checkpointer.get(CheckpointConfig(thread_id="t", checkpoint_id="c499")).state == {"messages": messages[:500]}


def test_an_equal_put_leaves_every_row_as_it_was(checkpointer: Checkpointer[Any], database_url: str) -> None:
    grow(checkpointer, 3)
    probe = Probe(database_url)
    v = probe.tables.versions.c
    stored = (
        probe.tables.checkpoints,
        probe.tables.checkpoint_metadata,
        probe.tables.segments,
        probe.tables.pending_writes,
    )
    statements = [select(v.thread_key, v.version, v.last_seq), *[table.select() for table in stored]]
    before = [probe.rows(statement) for statement in statements]
    checkpointer.put(made(2, 1))
    checkpointer.put(made(3, 2))
    with Checkpointer.open(database_url) as cold:
        cold.put(made(3, 2))
    assert [probe.rows(statement) for statement in statements] == before


def test_a_refused_put_writes_nothing(checkpointer: Checkpointer[Any]) -> None:
    grow(checkpointer, 3)
    with watched(checkpointer) as seen, pytest.raises(clew.StaleHead):
        checkpointer.put(made(4, 3), expected_head="c1")
    assert [statement for statement in seen if re.match(r"\s*(INSERT|DELETE)", statement)] == []


def test_what_is_refused_before_anything_is_sent_sends_nothing(checkpointer: Checkpointer[Any]) -> None:
    grow(checkpointer, 1)
    with watched(checkpointer) as seen:
        for call in (
            lambda: checkpointer.put(Checkpoint(thread_id="t", state=object())),
            lambda: checkpointer.put(Checkpoint(thread_id="t\0", state=1)),
            lambda: checkpointer.put_writes(at(), [PendingWrite(node="n", payload=1)]),
            lambda: checkpointer.list_threads(limit=0),
        ):
            with pytest.raises(clew.InvalidInput):
                call()
        checkpointer.put_writes(at(1), [])
    assert seen == []


def test_listing_ten_thousand_page_by_page_takes_no_more_memory_than_a_thousand(
    checkpointer: Checkpointer[Any], database_url: str
) -> None:
    checkpointer.put(made(1))
    columns = [column.name for column in Probe(database_url).tables.checkpoints.columns]
    cloned = {"seq": "n", "checkpoint_id": "'clone-' || n"}
    with Probe(database_url).connection() as connection:
        connection.execute(
            text(
                f"""WITH RECURSIVE numbers(n) AS (SELECT 2 UNION ALL SELECT n + 1 FROM numbers WHERE n < 10000)
                INSERT INTO clew_checkpoints ({", ".join(columns)})
                SELECT {", ".join(cloned.get(name, name) for name in columns)} FROM clew_checkpoints, numbers"""
            )
        )

    def peak(count: int) -> int:
        found = 0
        tracemalloc.start()
        try:
            for _ in checkpointer.iterate("t", page_size=100):
                found += 1
                if found == count:
                    break
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
            assert found == count

    peak(200)  # what is cached once
    assert peak(10_000) <= 1.3 * peak(1000)
