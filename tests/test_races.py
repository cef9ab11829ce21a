"""The races of the concurrency rule, with barriers: each holds with the rule, and is lost where the rule is broken.

A *pause* stops a writer between two statements, or between what it remembers and what it sends. Threads stand for
processes: every checkpointer has a memory of its own.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import event, select

import clew
from clew import Checkpoint, CheckpointConfig, Checkpointer, PendingWrite, SqlAgentExecutor
from clew.dialects import POSTGRES
from clew.flows import checkpoints
from clew.repository import collecting, fetching, locking, putting
from clew.repository.runs import resuming
from clew.structure import placing

from agents import boundary
from probe import Probe

BIG = "x" * 400


def made(checkpoint_id: str, items: list[str], parent: str | None = None, **fields: Any) -> Checkpoint[Any]:
    return Checkpoint(
        thread_id="t", checkpoint_id=checkpoint_id, parent_checkpoint_id=parent, state={"items": items}, **fields
    )


def texts(count: int, name: str = "item") -> list[str]:
    return [f"{name}-{number}-{BIG}" for number in range(count)]


def grow(checkpointer: Checkpointer[Any], count: int, name: str = "item") -> None:
    """c1 to c<count>, each with one item more."""
    for number in range(1, count + 1):
        checkpointer.put(made(f"c{number}", texts(number, name), f"c{number - 1}" if number > 1 else None))


class Bench:
    """Checkpointers on one database, each as another process would have it, and what is wrong with what they left."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.probe = Probe(url)
        self.first, self.second = Checkpointer.open(url), Checkpointer.open(url)
        self.pool = ThreadPoolExecutor(16)
        for checkpointer in (self.first, self.second):
            checkpointer.ping()  # connected, so that a race is not lost to the connecting

    def close(self) -> None:
        self.pool.shutdown()
        self.first.close()
        self.second.close()

    def start(self, call: Callable[..., Any], *arguments: Any, **named: Any) -> Future[Any]:
        return self.pool.submit(call, *arguments, **named)

    def faults(self, expected: dict[str, list[str]]) -> list[str]:
        """What a reader without memory finds amiss; ``expected`` are the items by checkpoint."""
        found = self.probe.problems()
        with Checkpointer.open(self.url) as reader:
            for checkpoint_id, items in expected.items():
                try:
                    got = reader.get(CheckpointConfig(thread_id="t", checkpoint_id=checkpoint_id))
                except clew.ClewError as error:
                    found.append(f"{checkpoint_id}: {error}")
                else:
                    if got is None or got.state != {"items": items}:
                        found.append(f"{checkpoint_id}: not what was put")
        return found


@pytest.fixture
def postgres_url(shared_postgres_url: str) -> str:
    return shared_postgres_url


@pytest.fixture
def bench(database_url: str) -> Iterator[Bench]:
    opened = Bench(database_url)
    yield opened
    opened.close()


@pytest.fixture
def postgres_bench(postgres_url: str) -> Iterator[Bench]:
    """Where statements of two transactions can interleave: SQLite lets one writer in at a time."""
    opened = Bench(postgres_url)
    yield opened
    opened.close()


class Pause:
    """Stops one thread of control until it is let go."""

    def __init__(self) -> None:
        self.reached, self._go = threading.Event(), threading.Event()

    def here(self) -> None:
        if not self.reached.is_set():
            self.reached.set()
            assert self._go.wait(20)

    def wait(self) -> None:
        assert self.reached.wait(20)

    def go(self) -> None:
        self._go.set()


@contextmanager
def paused(checkpointer: Checkpointer[Any], pattern: str, *, after: bool = False) -> Iterator[Pause]:
    """Stops the checkpointer once, before (or after) the first statement that matches."""
    pause, engine = Pause(), checkpointer._driver.database.engine

    def stop(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
        if re.search(pattern, statement):
            pause.here()

    name = "after_cursor_execute" if after else "before_cursor_execute"
    event.listen(engine, name, stop)
    try:
        yield pause
    finally:
        pause.go()
        event.remove(engine, name, stop)


@contextmanager
def holding(checkpointer: Checkpointer[Any]) -> Iterator[Pause]:
    """Stops the checkpointer before its next unit is sent: what it remembers is of then, the database is of later."""
    pause, database = Pause(), checkpointer._driver.database
    run = database.run

    def held(*arguments: Any, **named: Any) -> Any:
        pause.here()
        return run(*arguments, **named)

    database.run = held  # type: ignore[method-assign]
    try:
        yield pause
    finally:
        pause.go()
        del database.run


# What a writer remembers is valid exactly while the thread's version is the same.


def forge(bench: Bench) -> None:
    """Break the rule: the first checkpointer's memory passes for that of the present version."""
    memory = bench.first._driver.core.memory
    known = memory.get("t")
    [row] = bench.probe.rows(select(bench.probe.tables.versions.c.thread_key, bench.probe.tables.versions.c.version))
    assert known is not None
    memory.forget("t")
    memory.publish("t", replace(known, thread_key=row.thread_key, version=row.version))


def recreated(bench: Bench) -> dict[str, list[str]]:
    """The thread is deleted and created anew with the same ids and other contents."""
    grow(bench.first, 5)
    bench.second.delete_thread("t")
    grow(bench.second, 5, "other")
    return {f"c{number}": texts(number, "other") for number in range(1, 6)}


def collected(bench: Bench) -> dict[str, list[str]]:
    """The base is deleted with all its ancestors, and collected."""
    grow(bench.first, 5)
    bench.second.delete_checkpoints("t", ["c1", "c2", "c3", "c4", "c5"])
    return {}


def continued(bench: Bench) -> dict[str, list[str]]:
    """A sibling has been appended behind the same base, by somebody with another memory."""
    grow(bench.first, 5)
    bench.second.put(made("sibling", [*texts(5), f"sibling-{BIG}"], "c5"))
    return {"c5": texts(5), "sibling": [*texts(5), f"sibling-{BIG}"]}


def replaced(bench: Bench) -> dict[str, list[str]]:
    """The base itself holds something else now."""
    grow(bench.first, 5)
    bench.second.put(made("c5", texts(3, "new"), "c4"))
    return {"c4": texts(4), "c5": texts(3, "new")}


def sibling_gone(bench: Bench) -> dict[str, list[str]]:
    """The element that is put again was only a sibling's, which the writer has as its base; it is deleted."""
    grow(bench.first, 4)
    bench.first.put(made("c5", texts(5), "c4"))
    bench.second.put(made("side", texts(4), "c4"))
    bench.first.put(made("c5", texts(5), "c4"))
    bench.second.delete_checkpoints("t", ["c5"])
    return {"c4": texts(4), "side": texts(4)}


def merged(bench: Bench) -> dict[str, list[str]]:
    """Rows that the writer remembers as small ones have been merged, and a sibling was appended."""
    grow(bench.first, 16)
    bench.second.put(made("sibling", [*texts(16), f"sibling-{BIG}"], "c16"))
    return {"c16": texts(16), "sibling": [*texts(16), f"sibling-{BIG}"]}


CHANGES = [recreated, collected, continued, replaced, sibling_gone, merged]


def put_late(bench: Bench, change: Callable[[Bench], dict[str, list[str]]], *, broken: bool) -> list[str]:
    """The first checkpointer puts on what it remembers from before ``change``; what is amiss then."""
    expected = change(bench)
    parent = "c16" if change is merged else "c5"
    items = [*texts(int(parent[1:])), f"late-{BIG}"]
    if broken:
        forge(bench)
    try:
        bench.first.put(made("late", items, parent))
    except clew.ClewError as refused:
        return [f"refused: {refused}", *bench.faults(expected)]
    except Exception as escaped:  # noqa: BLE001  whatever it is, it should not have come
        return [f"escaped: {escaped}", *bench.faults(expected)]
    return bench.faults({**expected, "late": items})


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_put_with_an_old_memory_is_complete(bench: Bench, change: Callable[[Bench], Any]) -> None:
    assert put_late(bench, change, broken=False) == []


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_it_would_not_be_if_the_version_were_ignored(bench: Bench, change: Callable[[Bench], Any]) -> None:
    assert put_late(bench, change, broken=True) != []


@pytest.mark.parametrize("change", ["delete", "recreate", "sibling"])
def test_a_put_that_is_overtaken_on_its_way_is_complete_or_refused(bench: Bench, change: str) -> None:
    grow(bench.first, 5)
    with holding(bench.first) as pause:
        late = bench.start(bench.first.put, made("late", texts(6), "c5"))
        pause.wait()
        if change == "delete":
            bench.second.delete_checkpoints("t", ["c2", "c3", "c4", "c5"])
            expected = {"c1": texts(1)}
        elif change == "recreate":
            bench.second.delete_thread("t")
            grow(bench.second, 2, "other")
            expected = {"c2": texts(2, "other")}
        else:
            bench.second.put(made("sibling", [*texts(5), f"s-{BIG}"], "c5"))
            expected = {"sibling": [*texts(5), f"s-{BIG}"]}
        pause.go()
        late.result(20)
    assert bench.faults({**expected, "late": texts(6)}) == []


def test_a_put_that_is_overtaken_by_the_threads_deletion_is_refused(bench: Bench) -> None:
    grow(bench.first, 3)
    with holding(bench.first) as pause:
        late = bench.start(bench.first.put, made("late", texts(4), "c3"))
        pause.wait()
        bench.second.delete_thread("t")
        pause.go()
        with pytest.raises(clew.NotFound):
            late.result(20)
    assert bench.second.get_thread("t") is None
    assert bench.probe.count("threads") == bench.probe.count("segments") == 0


# Lock by updating the version row, as a statement of its own; everything else is looked at afterwards.


def without_a_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Break the rule: the version row is read, neither locked nor advanced."""

    def look(tables: Any, *rest: Any) -> Any:
        from sqlalchemy import bindparam

        v, now = tables.versions.c, POSTGRES.now()
        columns = [column for column in v if column.name != "last_seq"]
        seq = (v.last_seq + bindparam("puts", type_=v.last_seq.type)).label("last_seq")
        return select(*columns, seq, now.label("now")).where(v.thread_key == bindparam("key"))

    monkeypatch.setattr(locking, "_lock", look)
    monkeypatch.setattr(locking, "undo_lock", lambda *arguments, **named: None)


def base_deleted_under_a_put(bench: Bench, break_rule: Callable[[], None] = lambda: None) -> list[str]:
    """A put has looked its base up and is about to write; the base is being deleted and collected meanwhile."""
    grow(bench.second, 5)
    break_rule()
    late = made("late", texts(6), "c5")
    with paused(bench.first, "INSERT INTO clew_checkpoints ") as pause:
        putting = bench.start(bench.first.put, late)  # a cold memory: the locked way
        pause.wait()
        deleting = bench.start(bench.second.delete_checkpoints, "t", ["c1", "c2", "c3", "c4", "c5"])
        try:
            deleting.result(0.5)
            waited = False
        except TimeoutError:
            waited = True
        pause.go()
        try:
            putting.result(20)
            deleting.result(20)
        except clew.ClewError as error:
            return [str(error)]
    return [*([] if waited else ["the deletion did not wait"]), *bench.faults({"late": texts(6)})]


def test_a_deletion_waits_for_a_put_that_has_looked_its_base_up(postgres_bench: Bench) -> None:
    assert base_deleted_under_a_put(postgres_bench) == []


def test_without_the_lock_the_base_is_deleted_under_the_put(
    postgres_bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = base_deleted_under_a_put(postgres_bench, lambda: without_a_lock(monkeypatch))
    assert any("not stored" in fault for fault in found), found


def eight_puts(bench: Bench, break_rule: Callable[[], None] = lambda: None) -> list[str]:
    """Eight checkpointers with cold memories put at the same moment."""
    grow(bench.first, 3)
    break_rule()
    writers = [Checkpointer.open(bench.url) for _ in range(8)]
    barrier, failed = threading.Barrier(8), []

    def put(number: int) -> None:
        barrier.wait(20)
        try:
            writers[number].put(made(f"d{number}", [*texts(3), f"{number}-{BIG}"], "c3"))
        except Exception as error:  # noqa: BLE001  whatever it is, it should not have come
            failed.append(f"d{number}: {error}")

    for future in [bench.start(put, number) for number in range(8)]:
        future.result(30)
    for writer in writers:
        writer.close()
    return failed + bench.faults({f"d{number}": [*texts(3), f"{number}-{BIG}"] for number in range(8)})


def test_eight_cold_puts_at_one_moment_are_all_stored(bench: Bench) -> None:
    assert eight_puts(bench) == []
    assert bench.probe.seqs() == list(range(1, 12))


def test_without_the_lock_some_of_eight_are_lost(postgres_bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    assert eight_puts(postgres_bench, lambda: without_a_lock(monkeypatch)) != []


def checked_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Break the rule: the head is checked before the lock, and not again."""
    check, put = putting._check_head, putting.put

    def early(store: Any, connection: Any, asked: Any, memory: Any = None) -> Any:
        key = locking.find_thread(store, connection, "t")
        check(store, connection, SimpleNamespace(thread_key=key, thread_id="t"), asked, "put")  # type: ignore[arg-type]
        return put(store, connection, asked, memory)

    monkeypatch.setattr(putting, "_check_head", lambda *arguments: None)
    monkeypatch.setattr(checkpoints, "put", early)


def two_heads(bench: Bench) -> list[str]:
    """Two writers both expect the same head; the first is about to lock the thread when the second stores."""
    grow(bench.second, 1)
    with paused(bench.first, "UPDATE clew_thread_versions") as pause:
        one = bench.start(bench.first.put, made("one", texts(2), "c1"), expected_head="c1")
        pause.wait()
        bench.second.put(made("two", texts(2), "c1"), expected_head="c1")
        pause.go()
        error = one.exception(20)
    return ["stored" if error is None else type(error).__name__, "stored"]


def test_of_two_that_expect_one_head_the_later_is_told(postgres_bench: Bench) -> None:
    assert two_heads(postgres_bench) == ["StaleHead", "stored"]
    assert postgres_bench.faults({"c1": texts(1), "two": texts(2)}) == []


def test_checked_before_the_lock_both_would_be_stored(postgres_bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    checked_too_early(monkeypatch)
    assert two_heads(postgres_bench) == ["stored", "stored"]


def test_of_many_that_expect_one_head_exactly_one_is_stored(bench: Bench) -> None:
    grow(bench.first, 1)
    barrier = threading.Barrier(6)

    def put(number: int) -> str:
        barrier.wait(20)
        try:
            (bench.first, bench.second)[number % 2].put(made(f"d{number}", texts(2), "c1"), expected_head="c1")
        except clew.StaleHead:
            return "stale"
        return "stored"

    outcomes = [future.result(20) for future in [bench.start(put, number) for number in range(6)]]
    assert sorted(outcomes) == ["stale"] * 5 + ["stored"]


@pytest.mark.parametrize("first", ["put", "delete"])
def test_a_child_put_beside_the_deletion_of_its_parent_keeps_a_lineage_that_can_be_walked(
    postgres_bench: Bench, first: str
) -> None:
    bench = postgres_bench
    grow(bench.first, 3)
    put = (bench.second.put, made("child", [*texts(2), f"child-{BIG}"], "c2"))
    delete = (bench.first.delete_checkpoints, "t", ["c2"])
    leader, call, follower = (bench.second, put, delete) if first == "put" else (bench.first, delete, put)
    with paused(leader, "UPDATE clew_thread_versions", after=True) as pause:
        leading = bench.start(*call)
        pause.wait()
        following = bench.start(*follower)
        with pytest.raises(TimeoutError):
            following.result(0.3)
        pause.go()
        leading.result(20)
        following.result(20)
    assert bench.faults({"c1": texts(1), "c3": texts(3), "child": [*texts(2), f"child-{BIG}"]}) == []
    walked = [
        item.checkpoint_id for item in bench.first.history(CheckpointConfig(thread_id="t", checkpoint_id="child"))
    ]
    assert walked == (["child", "c1"] if first == "put" else ["child"])
    assert [
        item.checkpoint_id for item in bench.first.history(CheckpointConfig(thread_id="t", checkpoint_id="c3"))
    ] == [
        "c3",
        "c1",
    ]


# A log is continued only from its tip; a position is never used twice.


def without_tips(monkeypatch: pytest.MonkeyPatch) -> None:
    """Break the rule: any log is continued behind the base's last element, and lost tips leave no mark."""

    def reuse(draft: Any, partner: Any) -> int:
        return partner.spans[-1].log if partner and partner.spans else draft.new_log()

    monkeypatch.setattr(placing._Draft, "continued", reuse)


def contents(bench: Bench) -> dict[tuple[int, int], bytes]:
    from clew.structure import decode_payload

    rows = bench.probe.rows(bench.probe.tables.segments.select())
    return {
        (row.log, row.start + index): element
        for row in rows
        if row.count
        for index, element in enumerate(decode_payload(row.log, row.start, row.count, row.payload).elements)
    }


def positions_used_twice(bench: Bench) -> list[str]:
    """The tip of a log is deleted and collected, and its place in the list is taken by something else."""
    grow(bench.first, 5)
    seen = contents(bench)
    found = []
    for round_number in range(3):
        bench.second.delete_checkpoints("t", ["c5", f"new-{round_number - 1}"])
        items = [*texts(4), f"new-{round_number}-{BIG}"]
        bench.first.put(made(f"new-{round_number}", items, "c4"))
        now = contents(bench)
        found += [f"{place} used twice" for place in seen.keys() & now.keys() if seen[place] != now[place]]
        found += bench.faults({"c4": texts(4), f"new-{round_number}": items})
        seen |= now
    return found


def test_no_position_is_used_twice(bench: Bench) -> None:
    assert positions_used_twice(bench) == []


def test_without_the_tips_positions_are_used_twice(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    without_tips(monkeypatch)
    assert any("used twice" in fault for fault in positions_used_twice(bench))


def test_without_the_marks_positions_are_used_twice(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    collect = collecting._delete_dead

    def forgetful(store: Any, connection: Any, thread_key: int, *rest: Any) -> None:
        collect(store, connection, thread_key, *rest)
        segments = store.tables.segments
        connection.execute(segments.delete().where(segments.c.thread_key == thread_key, segments.c.count == 0))

    monkeypatch.setattr(collecting, "_delete_dead", forgetful)
    assert any("used twice" in fault for fault in positions_used_twice(bench))


# A read is of one moment.


def read_across_a_deletion(bench: Bench) -> Any:
    """A reader has the manifest; the checkpoint is deleted and collected, another branch is appended; it reads on."""
    grow(bench.second, 5)
    with Checkpointer.open(bench.url) as reader, paused(reader, "UNION ALL") as pause:
        reading = bench.start(reader.get, CheckpointConfig(thread_id="t", checkpoint_id="c5"))
        pause.wait()
        bench.first.delete_checkpoints("t", ["c5"])
        bench.first.put(made("other", [*texts(4), f"other-{BIG}", f"more-{BIG}"], "c4"))
        pause.go()
        return reading.result(20)


def test_a_reader_overtaken_by_a_deletion_gets_the_old_state_or_nothing(bench: Bench) -> None:
    found = read_across_a_deletion(bench)
    assert found is None or found.state == {"items": texts(5)}


def test_without_the_second_look_the_reader_gets_neither(
    postgres_bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "any", lambda found: True, raising=False)
    with pytest.raises(clew.CorruptData, match="not stored"):
        read_across_a_deletion(postgres_bench)


def test_without_second_look_and_tips_the_reader_gets_a_mixture(
    postgres_bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "any", lambda found: True, raising=False)
    without_tips(monkeypatch)
    assert read_across_a_deletion(postgres_bench).state == {"items": [*texts(4), f"other-{BIG}"]}


def test_a_reader_overtaken_by_a_replacement_gets_one_of_the_two(bench: Bench) -> None:
    grow(bench.second, 3)
    with Checkpointer.open(bench.url) as reader, paused(reader, "UNION ALL") as pause:
        reading = bench.start(reader.get_tuple, CheckpointConfig(thread_id="t", checkpoint_id="c3"))
        pause.wait()
        bench.first.put(made("c3", texts(3, "new"), "c2", pending_writes=[PendingWrite(node="n", payload="new")]))
        pause.go()
        found = reading.result(20)
    old = (texts(3), [])
    new = (texts(3, "new"), ["new"])
    assert (found.checkpoint.state["items"], [write.payload for write in found.pending_writes]) in (old, new)


def test_a_resume_overtaken_by_the_deletion_of_the_latest_gets_one_that_is_left(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = SqlAgentExecutor(bench.second)
    worker.checkpoint(boundary(0))
    worker.checkpoint(boundary(1))
    genuine = resuming._read

    def overtaken(*arguments: Any) -> Any:
        bench.second.delete_checkpoints("t", ["ck1"])
        return genuine(*arguments)

    monkeypatch.setattr(resuming, "_read", overtaken)
    snapshot = bench.first.runs.resume_snapshot("r")
    assert snapshot is not None
    assert snapshot.checkpoint in (boundary(0), boundary(1))


def test_a_reader_overtaken_by_merging_gets_the_state(bench: Bench) -> None:
    grow(bench.second, 16)
    with Checkpointer.open(bench.url) as reader, paused(reader, "UNION ALL") as pause:
        reading = bench.start(reader.get, CheckpointConfig(thread_id="t", checkpoint_id="c16"))
        pause.wait()
        before = bench.probe.count("segments")
        bench.second.put(made("c17", texts(17), "c16"))
        assert bench.probe.count("segments") < before
        pause.go()
        assert reading.result(20).state == {"items": texts(16)}


# put_writes holds off the deletion of its thread, and goes in order.


def writes_beside_a_deletion(bench: Bench) -> list[str]:
    """Writes are about to be inserted when the thread is deleted."""
    grow(bench.first, 1)
    config = CheckpointConfig(thread_id="t", checkpoint_id="c1")
    found = []
    with paused(bench.first, "INSERT INTO clew_pending_writes") as pause:
        writing = bench.start(bench.first.put_writes, config, [PendingWrite(node="n", payload=1, task_id="x")])
        pause.wait()
        deleting = bench.start(bench.second.delete_thread, "t")
        try:
            deleting.result(0.3)
            found.append("the deletion did not wait")
        except TimeoutError:
            pass
        pause.go()
        errors = [future.exception(20) for future in (writing, deleting)]
    return found + [str(error) for error in errors if error is not None]


def test_a_deletion_waits_for_writes_and_takes_them_along(postgres_bench: Bench) -> None:
    assert writes_beside_a_deletion(postgres_bench) == []
    for table in ("pending_writes", "threads", "versions"):
        assert postgres_bench.probe.count(table) == 0


def test_without_the_share_lock_the_thread_goes_under_the_writes(
    postgres_bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(POSTGRES), "share_lock", lambda self, statement: statement)
    locking.shared.cache_clear()
    try:
        assert writes_beside_a_deletion(postgres_bench) != []
    finally:
        locking.shared.cache_clear()


def test_writes_that_waited_for_a_deletion_land_on_a_new_thread_that_is_not_listed(postgres_bench: Bench) -> None:
    bench = postgres_bench
    grow(bench.first, 2)
    with paused(bench.second, "FOR UPDATE", after=True) as pause:
        deleting = bench.start(bench.second.delete_thread, "t")
        pause.wait()
        config = CheckpointConfig(thread_id="t", checkpoint_id="c2")
        writing = bench.start(bench.first.put_writes, config, [PendingWrite(node="n", payload=1, task_id="x")])
        with pytest.raises(TimeoutError):
            writing.result(0.3)
        pause.go()
        assert deleting.result(20) is True
        writing.result(20)
    assert bench.first.get_thread("t") is None
    owners = {row.thread_key for row in bench.probe.rows(bench.probe.tables.pending_writes.select())}
    assert owners <= {row.thread_key for row in bench.probe.rows(bench.probe.tables.versions.select())}


def opposite_batches(bench: Bench, caplog: pytest.LogCaptureFixture) -> int:
    """How often one of two batches in opposite orders had to be tried again."""
    config = CheckpointConfig(thread_id="t", checkpoint_id="c1")
    batch = [PendingWrite(node="n", payload=number, task_id=f"task-{number:03}", idx=-1) for number in range(250)]
    bench.first.put_writes(config, batch)
    barrier = threading.Barrier(2)

    def write(checkpointer: Checkpointer[Any], order: list[PendingWrite]) -> None:
        for _ in range(4):
            barrier.wait(30)
            try:
                checkpointer.put_writes(config, order)
            except clew.Contention:
                caplog.records.append(logging.makeLogRecord({"msg": "trying again"}))

    with caplog.at_level(logging.DEBUG, logger="clew"):
        futures = [bench.start(write, bench.first, batch), bench.start(write, bench.second, batch[::-1])]
        for future in futures:
            future.result(60)
    return sum("trying again" in record.getMessage() for record in caplog.records)


def test_batches_in_opposite_orders_do_not_deadlock(postgres_bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    assert opposite_batches(postgres_bench, caplog) == 0


def test_unsorted_batches_would_deadlock(
    postgres_bench: Bench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from clew.repository import request

    monkeypatch.setattr(request, "sorted", list, raising=False)
    assert any(opposite_batches(postgres_bench, caplog) for _ in range(20))  # a busy machine may part the two


# All at once.


@pytest.mark.parametrize("seconds", [5, pytest.param(25, marks=pytest.mark.soak)])
async def test_six_processes_at_random_read_nothing_wrong_and_lose_nothing(postgres_url: str, seconds: int) -> None:
    script = Path(__file__).with_name("race_writer.py")
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable, script, postgres_url, str(seed), str(seconds),
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )
        for seed in range(6)
    ]  # fmt: skip
    printed = await asyncio.gather(*[process.communicate() for process in processes])
    assert [errors.decode() for _, errors in printed] == [""] * 6
    reports = [json.loads(output) for output, _ in printed]
    assert [fault for report in reports for fault in report["wrong"]] == []
    assert sum(report["puts"] for report in reports) > 50
    assert sum(report["reads"] for report in reports) > 50
    stored = {tuple(item) for report in reports for item in report["stored"] if item[0] != "volatile"}
    deleted = {tuple(item) for report in reports for item in report["deleted"]}
    repeated = {tuple(item) for report in reports for item in report["repeated"]}
    with Checkpointer.open(postgres_url) as reader:
        there = {
            (thread_id, item.checkpoint_id)
            for thread_id in ("shared-0", "shared-1")
            for item in reader.iterate(thread_id, page_size=1000)
        }
        assert stored - deleted <= there
        assert there - (stored - deleted) <= repeated
        for thread_id, checkpoint_id in sorted(there)[:: max(1, len(there) // 300)]:
            reader.get(CheckpointConfig(thread_id=thread_id, checkpoint_id=checkpoint_id))
    assert Probe(postgres_url).problems() == []
