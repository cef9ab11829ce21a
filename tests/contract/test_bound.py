"""``bind``: checkpoints inside the caller's own transaction, on both databases and faces, connections and sessions."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
from sqlalchemy.exc import IntegrityError

from clew import Checkpoint, CheckpointConfig, InvalidInput, PendingWrite, StaleHead, WrongContext

from hosting import Host, call, host_engine, inner
from probe import Probe

MATRIX = [
    (database, face, kind)
    for database in ("sqlite", "postgres")
    for face in ("async", "sync")
    for kind in ("connection", "session")
]


@pytest.fixture(params=MATRIX, ids="-".join)
async def host(request: pytest.FixtureRequest) -> AsyncIterator[Host]:
    database, face, kind = request.param
    # Its own database, not the shared one: the host's tables are in it.
    if database == "sqlite":
        url = request.getfixturevalue("sqlite_url")
        request.node.clew_url = url
        async for one in _hosted(url, face, kind):
            yield one
        return
    session, template = request.getfixturevalue("postgres"), request.getfixturevalue("postgres_template")
    with session.database(template=template) as url:
        request.node.clew_url = url
        async for one in _hosted(url, face, kind):
            yield one


async def _hosted(url: str, face: str, kind: str) -> AsyncIterator[Host]:
    host = Host(host_engine(url, face), face, kind)
    await host.prepare()
    yield host
    await host.close()


@pytest.fixture
def probe(request: pytest.FixtureRequest, host: Host) -> Probe:
    return Probe(request.node.clew_url)


def latest(thread_id: str = "t") -> CheckpointConfig:
    return CheckpointConfig.latest(thread_id)


def said(*words: str, thread_id: str = "t", **fields: Any) -> Checkpoint[Any]:
    """A checkpoint whose id is the last of its words."""
    fields.setdefault("checkpoint_id", words[-1])
    return Checkpoint(thread_id=thread_id, state={"messages": [{"text": word} for word in words]}, **fields)


async def words_of(checkpointer: Any, checkpoint_id: str | None = None, thread_id: str = "t") -> list[str] | None:
    found = await checkpointer.get(CheckpointConfig(thread_id=thread_id, checkpoint_id=checkpoint_id))
    return None if found is None else [message["text"] for message in found.state["messages"]]


async def test_a_checkpoint_and_the_hosts_rows_are_committed_together(host: Host) -> None:
    async with host.transaction() as one:
        await one.add(1)
        await one.bound.put(said("a"))
        await one.add(2)
        assert await host.checkpointer.get(latest()) is None
        await one.commit()
    assert await host.orders() == [1, 2]
    assert await words_of(host.checkpointer) == ["a"]


async def test_a_checkpoint_and_the_hosts_rows_are_rolled_back_together(host: Host) -> None:
    async with host.transaction() as one:
        await one.add(1)
        await one.bound.put(said("a"))
        await one.rollback()
    assert await host.orders() == []
    assert await host.checkpointer.get(latest()) is None
    assert await host.checkpointer.get_thread("t") is None


async def test_what_is_not_committed_is_seen_inside_the_transaction_only(host: Host) -> None:
    await host.checkpointer.put(said("a"))
    async with host.transaction() as one:
        await one.bound.put(said("a", "b"))
        assert await words_of(one.bound) == ["a", "b"]
        assert await words_of(host.checkpointer) == ["a"]
        await one.rollback()
        assert await words_of(one.bound) == ["a"]


async def test_a_transaction_that_is_closed_without_a_word_stores_nothing(host: Host) -> None:
    async with host.transaction() as one:
        await one.bound.put(said("a"))
    assert await host.checkpointer.get(latest()) is None


async def test_an_error_leaves_the_transaction_usable_and_as_it_was(host: Host, probe: Probe) -> None:
    await host.checkpointer.put(said("a"))
    async with host.transaction() as one:
        await one.add(1)
        with pytest.raises(StaleHead):
            await one.bound.put(said("a", "b"), expected_head="another")
        await one.add(2)
        await one.bound.put(said("a", "c"), expected_head="a")
        with pytest.raises(StaleHead):
            await one.bound.put(said("a", "d"), expected_head="a")
        assert await words_of(one.bound) == ["a", "c"]
        await one.commit()
    assert await host.orders() == [1, 2]
    assert await words_of(host.checkpointer) == ["a", "c"]
    assert [item.checkpoint_id for item in (await host.checkpointer.list("t")).items] == ["c", "a"]
    assert probe.problems() == []


async def test_a_repeated_put_is_recognised_inside_the_transaction(host: Host) -> None:
    async with host.transaction() as one:
        await one.bound.put(said("a"))
        await one.bound.put(said("a", "b"))
        await one.bound.put(said("a", "b"))
        await one.commit()
    assert [item.checkpoint_id for item in (await host.checkpointer.list("t")).items] == ["b", "a"]


async def test_numbers_given_out_again_after_a_savepoint_do_not_mix_up_what_is_remembered(
    host: Host, probe: Probe
) -> None:
    await host.checkpointer.put(said("a"))
    async with host.transaction() as one:
        await one.bound.put(said("a", "b"))
        savepoint = await one.savepoint()
        await one.bound.put(said("a", "b", "lost"))
        await call(savepoint.rollback)
        await one.bound.put(said("a", "b", "c"))
        await one.bound.put(said("a", "b", "c", "d"))
        await one.commit()
    await host.checkpointer.put(said("a", "b", "c", "d", "e"))
    assert await words_of(host.checkpointer) == ["a", "b", "c", "d", "e"]
    assert await words_of(host.checkpointer, "c") == ["a", "b", "c"]
    assert await words_of(host.checkpointer, "lost") is None
    assert probe.problems() == []


async def test_numbers_given_out_again_after_a_rollback_do_not_mix_up_what_is_remembered(
    host: Host, probe: Probe
) -> None:
    await host.checkpointer.put(said("a"))
    async with host.transaction() as one:
        await one.bound.put(said("a", "lost"))
        await one.rollback()
        await host.checkpointer.put(said("a", "b"))
        await one.bound.put(said("a", "b", "c"))
        await one.commit()
        await one.bound.put(said("a", "b", "c", "d"))
        await one.commit()
    assert await words_of(host.checkpointer) == ["a", "b", "c", "d"]
    assert probe.problems() == []


async def test_a_commit_that_fails_publishes_nothing(host: Host, probe: Probe) -> None:
    await host.checkpointer.put(said("a"))
    async with host.transaction() as one:
        await one.bound.put(said("a", "lost"))
        await one.add(1, customer=404)  # there is no such customer, and that is asked at the COMMIT
        with pytest.raises(IntegrityError):
            await one.commit()
        await one.rollback()
    remembered = host.own._driver.core.memory.get("t")
    assert remembered is None or "lost" not in {checkpoint_id for _, checkpoint_id in remembered.forms}
    await host.checkpointer.put(said("a", "b"))
    await host.checkpointer.put(said("a", "b", "c"))
    assert await words_of(host.checkpointer) == ["a", "b", "c"]
    assert await host.orders() == []
    assert probe.problems() == []


async def test_what_was_committed_is_remembered(host: Host) -> None:
    async with host.transaction() as one:
        await one.bound.put(said("a"))
        await one.bound.put(said("a", "b"))
        assert host.own._driver.core.memory.get("t") is None
        await one.commit()
    remembered = host.own._driver.core.memory.get("t")
    assert list(remembered.forms) == [("[]", "a"), ("[]", "b")]


async def test_a_thread_deleted_in_a_transaction_is_forgotten_with_its_commit(host: Host) -> None:
    await host.checkpointer.put(said("a"))
    async with host.transaction() as one:
        assert await one.bound.delete_thread("t") is True
        await one.rollback()
        assert await words_of(host.checkpointer) == ["a"]
        assert await one.bound.delete_thread("t") is True
        await one.bound.put(said("new"))
        await one.commit()
    assert await words_of(host.checkpointer) == ["new"]
    await host.checkpointer.put(said("new", "newer"))
    assert await words_of(host.checkpointer) == ["new", "newer"]


async def test_every_verb_takes_part_in_the_transaction(host: Host, probe: Probe) -> None:
    await host.checkpointer.put(said("a", run_id="r"))
    async with host.transaction() as one:
        bound = one.bound
        await bound.ping()
        at = CheckpointConfig(thread_id="t", checkpoint_id="a")
        await bound.put_writes(at, [PendingWrite(node="n", payload=1, task_id="task")])
        await bound.put(said("a", "b", run_id="s", parent_checkpoint_id="a"))
        assert [write.payload for write in await bound.get_writes(at)] == [1]
        assert (await bound.get_tuple(at)).pending_writes[0].task_id == "task"
        assert [item.checkpoint_id for item in (await bound.list("t")).items] == ["b", "a"]
        assert [item.checkpoint_id async for item in bound.iterate("t", page_size=1)] == ["b", "a"]
        assert [item.checkpoint_id for item in await bound.history(latest())] == ["b", "a"]
        assert (await bound.get_thread("t")).checkpoint_count == 2
        assert [thread.thread_id for thread in (await bound.list_threads()).items] == ["t"]
        assert await bound.delete_checkpoints("t", ["a"]) == 1
        assert await bound.delete_by_run("s") == 1
        await one.rollback()
    assert await words_of(host.checkpointer) == ["a"]
    assert await host.checkpointer.get_writes(CheckpointConfig(thread_id="t", checkpoint_id="a")) == []
    assert probe.problems() == []


async def test_the_groups_take_part_in_the_transaction(host: Host) -> None:
    await host.checkpointer.put(said("a"))
    async with host.transaction() as one:
        await one.bound.timeline.fork(latest(), thread_id="forked")
        assert await words_of(one.bound, thread_id="forked") == ["a"]
        await one.rollback()
    assert await host.checkpointer.get_thread("forked") is None


async def test_one_thread_put_to_from_many_transactions_loses_nothing(host: Host, probe: Probe) -> None:
    async def work(worker: int) -> None:
        for number in range(5):
            async with host.transaction() as one:
                order = worker * 100 + number
                await one.bound.put(said("start", str(order)))
                await one.add(order)
                await one.commit()

    await asyncio.gather(*(work(worker) for worker in range(4)))
    stored = {item.checkpoint_id async for item in host.checkpointer.iterate("t")}
    assert stored == {str(order) for order in await host.orders()}
    assert len(stored) == 20
    for checkpoint_id in stored:
        assert await words_of(host.checkpointer, checkpoint_id) == ["start", checkpoint_id]
    assert probe.problems() == []


async def test_a_put_of_its_own_waits_for_the_transaction_and_not_the_other_way_round(host: Host) -> None:
    async with host.transaction() as one:
        await one.bound.put(said("a"))
        waiting = asyncio.create_task(_put(host, said("z")))
        await asyncio.sleep(0.1)
        await one.bound.put(said("a", "b"))
        assert not waiting.done()
        await one.commit()
        await waiting
    assert [item.checkpoint_id for item in (await host.checkpointer.list("t")).items] == ["z", "b", "a"]


async def _put(host: Host, checkpoint: Checkpoint[Any]) -> None:
    await host.checkpointer.put(checkpoint)


async def test_any_order_of_puts_savepoints_rollbacks_and_commits_reads_back(host: Host, probe: Probe) -> None:
    chance = random.Random(7)
    committed: dict[str, list[str]] = {}
    head: list[str] = []
    number = 0
    for _ in range(12):
        async with host.transaction() as one:
            seen, tip = dict(committed), list(head)
            savepoints: list[tuple[Any, dict[str, list[str]], list[str]]] = []
            for _ in range(chance.randrange(1, 9)):
                step = chance.random()
                if step < 0.6:
                    number += 1
                    tip = [*tip, str(number)][-40:]
                    await one.bound.put(said(*tip))
                    seen[str(number)] = tip
                elif step < 0.8:
                    savepoints.append((await one.savepoint(), dict(seen), list(tip)))
                elif savepoints:
                    savepoint, before, tip_before = savepoints.pop()
                    if chance.random() < 0.7:
                        await call(savepoint.rollback)
                        seen, tip = before, tip_before
                    else:
                        await call(savepoint.commit)
            if chance.random() < 0.6:
                while savepoints:
                    await call(savepoints.pop()[0].commit)
                await one.commit()
                committed, head = seen, tip
            else:
                await one.rollback()
        if chance.random() < 0.4:
            number += 1
            head = [*head, str(number)]
            await host.checkpointer.put(said(*head))
            committed[str(number)] = head
    assert len(committed) > 10
    for checkpoint_id, words in committed.items():
        assert await words_of(host.checkpointer, checkpoint_id) == words
    assert {item.checkpoint_id async for item in host.checkpointer.iterate("t")} == set(committed)
    assert probe.problems() == []


async def test_nothing_is_left_on_the_hosts_engine(host: Host) -> None:
    engine = inner(host.engine)
    async with host.transaction() as one:
        await one.bound.put(said("a"))
        await one.commit()
    for name in ("commit", "rollback", "rollback_savepoint", "prepare_twophase", "begin"):
        assert len(list(getattr(engine.dispatch, name))) == 0
    assert engine._has_events is False


async def test_a_bound_checkpointer_is_not_bound_again_and_can_be_closed(host: Host) -> None:
    async with host.transaction() as one:
        bound = host.own.bind(one.target)
        with pytest.raises(InvalidInput, match="bound already"):
            bound.bind(one.target)
        await one.bound.put(said("a"))
        await one.bound.aclose()
        with pytest.raises(WrongContext, match="closed"):
            await one.bound.put(said("b"))
        await one.commit()
    assert await words_of(host.checkpointer) == ["a"]


async def test_what_cannot_be_bound_is_refused_by_name(host: Host) -> None:
    with pytest.raises(InvalidInput, match=type(host.engine).__name__):
        host.own.bind(host.engine)
