"""Leases and expected heads: two writers to one thread, of whom one may write."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import select

from clew import (
    AgentCheckpoint,
    AgentExecutionNode,
    AgentRunState,
    Checkpoint,
    CheckpointConfig,
    ClewError,
    Contention,
    InvalidInput,
    LeaseHeld,
    PendingWrite,
    StaleFence,
    StaleHead,
    StorageUnavailable,
    Usage,
)

from awaiting import executor
from probe import Probe

LATEST = CheckpointConfig.latest("t")
SHORT_S = 0.8
"""A lease that is renewed in the background meanwhile, on a busy machine too."""


async def lapse(checkpointer: Any, token: int) -> None:
    """Let the lease lapse, whatever has been left of it."""
    await checkpointer.runs.renew_lease("t", token, 0.05)
    await asyncio.sleep(0.1)


def checkpoint(checkpoint_id: str, parent: str | None = None, state: Any = None, thread_id: str = "t") -> Any:
    return Checkpoint(thread_id=thread_id, checkpoint_id=checkpoint_id, parent_checkpoint_id=parent, state=state)


async def test_a_second_holder_is_told_who_holds_the_lease_and_until_when(checkpointer: Any) -> None:
    before = datetime.now(UTC)
    await checkpointer.runs.acquire_lease("t", "alice", 60)
    with pytest.raises(LeaseHeld) as refused:
        await checkpointer.runs.acquire_lease("t", "bob", 60)
    assert refused.value.owner == "alice"
    assert 50 < (refused.value.until - before).total_seconds() < 70


async def test_the_same_owner_is_a_second_holder_too(checkpointer: Any) -> None:
    await checkpointer.runs.acquire_lease("t", "worker", 60)
    with pytest.raises(LeaseHeld):
        await checkpointer.runs.acquire_lease("t", "worker", 60)


async def test_a_lease_is_given_after_the_last_one_lapsed_with_a_greater_token(checkpointer: Any) -> None:
    first = await checkpointer.runs.acquire_lease("t", "alice", 60)
    await lapse(checkpointer, first)
    second = await checkpointer.runs.acquire_lease("t", "bob", 60)
    assert second > first
    assert (await checkpointer.runs.get_lease("t")).owner == "bob"


async def test_a_released_lease_is_free_and_its_token_is_no_good_any_more(checkpointer: Any) -> None:
    token = await checkpointer.runs.acquire_lease("t", "alice", 60)
    assert await checkpointer.runs.release_lease("t", token) is True
    assert await checkpointer.runs.release_lease("t", token) is False
    assert await checkpointer.runs.get_lease("t") is None
    with pytest.raises(StaleFence):
        await checkpointer.put(checkpoint("a"), lease_token=token)
    with pytest.raises(StaleFence):
        await checkpointer.runs.renew_lease("t", token, 60)
    assert await checkpointer.runs.acquire_lease("t", "bob", 60) > token


async def test_the_lease_of_a_thread_that_is_not_there_is_neither_renewed_nor_released(checkpointer: Any) -> None:
    with pytest.raises(StaleFence) as refused:
        await checkpointer.runs.renew_lease("t", 1, 60)
    assert (refused.value.token, refused.value.current) == (1, None)
    assert await checkpointer.runs.release_lease("t", 1) is False
    assert await checkpointer.runs.get_lease("t") is None


async def test_a_refused_token_is_told_whether_it_lapsed_or_was_followed_by_another(checkpointer: Any) -> None:
    old = await checkpointer.runs.acquire_lease("t", "alice", 60)
    await lapse(checkpointer, old)
    with pytest.raises(StaleFence, match="its lease has lapsed") as lapsed:
        await checkpointer.put(checkpoint("a"), lease_token=old)
    newer = await checkpointer.runs.acquire_lease("t", "bob", 60)
    with pytest.raises(StaleFence, match="a newer token exists") as followed:
        await checkpointer.put(checkpoint("a"), lease_token=old)
    assert (lapsed.value.current, followed.value.current) == (old, newer)


@pytest.mark.invariant(48)
async def test_a_token_never_comes_back_when_the_thread_is_deleted_and_created_anew(checkpointer: Any) -> None:
    tokens = [await checkpointer.runs.acquire_lease("t", "alice", 60)]
    for _ in range(3):
        await checkpointer.put(checkpoint("a"), lease_token=tokens[-1])
        await checkpointer.delete_thread("t", lease_token=tokens[-1])
        with pytest.raises(StaleFence):
            await checkpointer.put(checkpoint("b"), lease_token=tokens[-1])
        tokens.append(await checkpointer.runs.acquire_lease("t", "alice", 60))
        for old in tokens[:-1]:
            with pytest.raises(StaleFence):
                await checkpointer.put(checkpoint("b"), lease_token=old)
    assert tokens == sorted(set(tokens))


async def test_a_token_is_its_threads_key_and_a_count_until_the_thread_has_used_up_its_leases(
    checkpointer: Any, probe: Probe
) -> None:
    first = await checkpointer.runs.acquire_lease("t", "alice", 60)
    [(key,)] = probe.rows(select(probe.tables.threads.c.thread_key))
    assert first == (key << 24) + 1
    await checkpointer.runs.release_lease("t", first)
    assert await checkpointer.runs.acquire_lease("t", "bob", 60) == first + 1
    await checkpointer.runs.release_lease("t", first + 1)
    with probe.connection() as connection:
        connection.execute(probe.tables.versions.update().values(lease_token=(key << 24) + 2**24 - 2))
    last = await checkpointer.runs.acquire_lease("t", "alice", 60)
    assert last == (key << 24) + 2**24 - 1
    await checkpointer.runs.release_lease("t", last)
    with pytest.raises(ClewError, match="thread 't' has used up its 16777215 leases"):
        await checkpointer.runs.acquire_lease("t", "alice", 60)
    assert await checkpointer.runs.acquire_lease("u", "alice", 60) > last


async def test_whom_a_lease_is_for_must_be_said(checkpointer: Any) -> None:
    for owner in ("", 5, None):
        with pytest.raises(InvalidInput, match="owner must"):
            await checkpointer.runs.acquire_lease("t", owner, 60)
    with pytest.raises(InvalidInput, match="thread_id must"):
        await checkpointer.runs.acquire_lease("", "alice", 60)


async def test_a_lease_creates_its_thread_which_is_not_listed_yet(checkpointer: Any) -> None:
    token = await checkpointer.runs.acquire_lease("t", "alice", 60)
    assert (await checkpointer.list_threads()).items == ()
    assert await checkpointer.get_thread("t") is None
    await checkpointer.put(checkpoint("a"), lease_token=token)
    assert [thread.thread_id for thread in (await checkpointer.list_threads()).items] == ["t"]


async def test_a_write_without_the_token_of_a_live_lease_is_refused_whatever_it_is(checkpointer: Any) -> None:
    await checkpointer.put(checkpoint("a", state={"n": 1}))
    token = await checkpointer.runs.acquire_lease("t", "alice", 60)
    write = PendingWrite(node="n", payload=1, task_id="task")
    for refused in (
        lambda: checkpointer.put(checkpoint("b", "a")),
        lambda: checkpointer.put_writes(CheckpointConfig(thread_id="t", checkpoint_id="a"), [write]),
        lambda: checkpointer.delete_checkpoints("t", ["a"]),
        lambda: checkpointer.delete_by_run("r", thread_id="t"),
        lambda: checkpointer.retention.compact("t"),
        lambda: checkpointer.delete_thread("t"),
    ):
        with pytest.raises(StaleFence) as told:
            await refused()
        assert (told.value.token, told.value.current) == (None, token)
    assert [item.checkpoint_id for item in (await checkpointer.list("t")).items] == ["a"]
    assert await checkpointer.get_writes(CheckpointConfig(thread_id="t", checkpoint_id="a")) == []


async def test_every_write_with_the_token_passes(checkpointer: Any) -> None:
    token = await checkpointer.runs.acquire_lease("t", "alice", 60)
    await checkpointer.put(checkpoint("a"), lease_token=token)
    for number in range(3):  # the later ones on what is remembered
        await checkpointer.put(checkpoint(f"b{number}", "a"), lease_token=token)
    config = CheckpointConfig(thread_id="t", checkpoint_id="a")
    await checkpointer.put_writes(config, [PendingWrite(node="n", payload=1)], lease_token=token)
    assert await checkpointer.delete_checkpoints("t", ["b1"], lease_token=token) == 1
    await checkpointer.put(Checkpoint(thread_id="t", run_id="r", state="a" * 500), lease_token=token)
    assert (await checkpointer.retention.compact("t", lease_token=token)).rows_after == 1
    assert await checkpointer.delete_by_run("r", lease_token=token) == 1
    assert await checkpointer.delete_thread("t", lease_token=token) is True


async def test_an_older_token_is_refused_once_a_newer_one_exists(opener: Any) -> None:
    async with opener() as one, opener() as other:
        old = await one.runs.acquire_lease("t", "alice", 60)
        await one.put(checkpoint("a"), lease_token=old)
        await lapse(one, old)
        new = await other.runs.acquire_lease("t", "bob", 60)
        with pytest.raises(StaleFence) as told:
            await one.put(checkpoint("b", "a"), lease_token=old)
        assert (told.value.token, told.value.current) == (old, new)
        await other.put(checkpoint("c", "a"), lease_token=new)
        assert (await one.get(LATEST)).checkpoint_id == "c"


async def test_a_token_whose_lease_has_lapsed_is_refused_though_nobody_took_over(checkpointer: Any) -> None:
    token = await checkpointer.runs.acquire_lease("t", "alice", 60)
    await checkpointer.put(checkpoint("a"), lease_token=token)
    await lapse(checkpointer, token)
    with pytest.raises(StaleFence):
        await checkpointer.put(checkpoint("b", "a"), lease_token=token)
    await checkpointer.runs.renew_lease("t", token, 60)
    await checkpointer.put(checkpoint("b", "a"), lease_token=token)


async def test_after_a_lease_has_lapsed_writes_without_a_token_pass_again(checkpointer: Any) -> None:
    token = await checkpointer.runs.acquire_lease("t", "alice", 60)
    await lapse(checkpointer, token)
    await checkpointer.put(checkpoint("a"))


async def test_an_advisory_checkpointer_writes_without_a_token_but_not_with_an_old_one(opener: Any) -> None:
    async with opener(leases="advisory") as checkpointer:
        token = await checkpointer.runs.acquire_lease("t", "alice", 60)
        await checkpointer.put(checkpoint("a"))
        await checkpointer.put(checkpoint("b", "a"))
        with pytest.raises(StaleFence):
            await checkpointer.put(checkpoint("c", "b"), lease_token=token - 1)


async def test_an_exact_retry_succeeds_whatever_lease_and_head_say(checkpointer: Any) -> None:
    token = await checkpointer.runs.acquire_lease("t", "alice", 60)
    stored = checkpoint("a", state={"n": 1})
    await checkpointer.put(stored, lease_token=token, expected_head=None)
    await lapse(checkpointer, token)
    newer = await checkpointer.runs.acquire_lease("t", "bob", 60)
    await checkpointer.put(checkpoint("b", "a"), lease_token=newer)
    await checkpointer.put(stored, lease_token=token, expected_head=None)
    await checkpointer.put(stored)
    assert [item.checkpoint_id for item in (await checkpointer.list("t")).items] == ["b", "a"]


async def test_an_exact_retry_of_writes_succeeds_and_any_other_write_is_refused(checkpointer: Any) -> None:
    token = await checkpointer.runs.acquire_lease("t", "alice", 60)
    config = CheckpointConfig(thread_id="t", checkpoint_id="a")
    stored = [PendingWrite(node="n", payload=number, task_id="x", idx=number) for number in (-1, 0, 1)]
    await checkpointer.put_writes(config, stored, lease_token=token)
    await lapse(checkpointer, token)
    newer = await checkpointer.runs.acquire_lease("t", "bob", 60)
    await checkpointer.put_writes(config, stored, lease_token=token)
    await checkpointer.put_writes(config, stored[:2])
    for other in (
        PendingWrite(node="n", payload=7, task_id="x", idx=-1),
        PendingWrite(node="n", payload=7, task_id="x", idx=0),
        PendingWrite(node="n", payload=7, task_id="x", idx=2),
    ):
        with pytest.raises(StaleFence):
            await checkpointer.put_writes(config, [stored[0], other], lease_token=token)
    assert await checkpointer.get_writes(config) == stored
    await checkpointer.put_writes(config, [PendingWrite(node="n", payload=7)], lease_token=newer)


async def test_lease_calls_do_not_make_a_writer_forget_the_thread(checkpointer: Any) -> None:
    token = await checkpointer.runs.acquire_lease("t", "alice", 60)
    await checkpointer.put(checkpoint("a"), lease_token=token)
    before = await checkpointer.get_thread("t")
    await checkpointer.runs.renew_lease("t", token, 120)
    assert await checkpointer.get_thread("t") == before


async def test_a_held_lease_is_renewed_while_its_block_runs_and_released_after_it(checkpointer: Any) -> None:
    async with checkpointer.runs.lease("t", "alice", SHORT_S) as lease:
        await asyncio.sleep(SHORT_S * 1.5)
        assert lease.lost is False
        await checkpointer.put(checkpoint("a"), lease_token=lease.token)
        with pytest.raises(LeaseHeld):
            await checkpointer.runs.acquire_lease("t", "bob", 60)
    assert await checkpointer.runs.get_lease("t") is None


async def test_a_held_lease_says_so_when_it_is_lost(checkpointer: Any) -> None:
    async with checkpointer.runs.lease("t", "alice", SHORT_S) as lease:
        await checkpointer.runs.release_lease("t", lease.token)
        taken = await checkpointer.runs.acquire_lease("t", "bob", 60)
        await asyncio.sleep(SHORT_S)
        assert lease.lost is True
    assert (await checkpointer.runs.get_lease("t")).token == taken


async def test_a_renewal_that_met_with_contention_is_tried_again(checkpointer: Any) -> None:
    async with checkpointer.runs.lease("t", "alice", SHORT_S) as lease:
        flows = getattr(lease, "_wrapped", lease)._flows
        genuine, attempts = flows.renew_lease, []

        def renew(*arguments: Any) -> Any:
            attempts.append(arguments)
            if len(attempts) == 1:
                raise Contention("others got in the way")
            return genuine(*arguments)

        flows.renew_lease = renew
        await asyncio.sleep(SHORT_S * 1.5)
        assert lease.lost is False
        assert len(attempts) > 1


async def test_a_held_lease_that_lapsed_stays_lost_when_renewing_would_succeed_again(checkpointer: Any) -> None:
    async with checkpointer.runs.lease("t", "alice", SHORT_S) as lease:
        flows = getattr(lease, "_wrapped", lease)._flows
        genuine, attempts = flows.renew_lease, []

        def renew(*arguments: Any) -> Any:
            attempts.append(arguments)
            raise StorageUnavailable("the network is gone")

        flows.renew_lease = renew
        await asyncio.sleep(SHORT_S * 1.5)
        assert attempts
        flows.renew_lease = genuine
        await checkpointer.put(checkpoint("between"))  # nobody holds the thread
        await asyncio.sleep(SHORT_S)
        assert lease.lost is True
        with pytest.raises(StaleFence):
            await checkpointer.put(checkpoint("late", "between"), lease_token=lease.token)


async def test_entering_a_lease_that_is_held_raises(checkpointer: Any) -> None:
    await checkpointer.runs.acquire_lease("t", "alice", 60)
    with pytest.raises(LeaseHeld):
        async with checkpointer.runs.lease("t", "bob", 60):
            pass


@pytest.mark.parametrize("ttl_s", [0, -1, float("nan"), float("inf"), True, "60", 10**9])
async def test_a_time_that_no_lease_can_last_is_refused(checkpointer: Any, ttl_s: Any) -> None:
    with pytest.raises(InvalidInput, match="ttl_s"):
        await checkpointer.runs.acquire_lease("t", "alice", ttl_s)


async def test_a_commit_of_an_executor_with_an_old_token_is_refused(checkpointer: Any) -> None:
    old = await checkpointer.runs.acquire_lease("t", "alice", 60)
    state = AgentRunState(
        run_id="r",
        conversation_id="t",
        message_history=(),
        usage=Usage(requests=0, input_tokens=0, output_tokens=0, total_tokens=0),
        run_step=0,
        status="running",
    )
    worker = executor(checkpointer, lease_token=old)
    await worker.checkpoint(AgentCheckpoint.new(AgentExecutionNode.RUN_START, state))
    await lapse(checkpointer, old)
    await checkpointer.runs.acquire_lease("t", "bob", 60)
    with pytest.raises(StaleFence):
        await worker.checkpoint(AgentCheckpoint.new(AgentExecutionNode.MODEL_RESPONSE, state))
    assert len((await checkpointer.list("t")).items) == 1


async def test_a_moved_head_is_told_with_both_ids_and_nothing_is_written(checkpointer: Any) -> None:
    await checkpointer.put(checkpoint("a"))
    await checkpointer.put(checkpoint("b", "a"), expected_head="a")
    with pytest.raises(StaleHead) as told:
        await checkpointer.put(checkpoint("c", "a"), expected_head="a")
    assert (told.value.expected, told.value.actual) == ("a", "b")
    assert (await checkpointer.get(LATEST)).checkpoint_id == "b"


async def test_expecting_an_empty_namespace_is_not_the_same_as_expecting_nothing(checkpointer: Any) -> None:
    await checkpointer.put(checkpoint("a"), expected_head=None)
    with pytest.raises(StaleHead) as told:
        await checkpointer.put(checkpoint("b"), expected_head=None)
    assert (told.value.expected, told.value.actual) == (None, "a")
    await checkpointer.put(checkpoint("b"))
    inner = Checkpoint(thread_id="t", checkpoint_id="x", namespace=["inner"], state=None)
    await checkpointer.put(inner, expected_head=None)


async def test_of_eight_writers_that_expect_the_same_head_one_wins(opener: Any) -> None:
    async with opener() as one, opener() as other:
        await one.put(checkpoint("root"))

        async def attempt(number: int) -> str | None:
            writer = (one, other)[number % 2]
            try:
                await writer.put(checkpoint(f"c{number}", "root"), expected_head="root")
            except StaleHead:
                return None
            return f"c{number}"

        won = [winner for winner in await asyncio.gather(*map(attempt, range(8))) if winner]
        assert won == [(await one.get(LATEST)).checkpoint_id]
