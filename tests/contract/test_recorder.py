"""Recorders: what is stored when, in which order, and what becomes of a failure."""

# ruff: noqa: PT012  a recorder raises where its block ends

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from clew import (
    Checkpoint,
    CheckpointConfig,
    ClewError,
    Interrupt,
    InvalidInput,
    PendingWrite,
    StaleFence,
    StorageUnavailable,
    Unserializable,
    WrongContext,
)

LATEST = CheckpointConfig.latest("t")
MODES = ["sync", "async", "exit"]


def inner(recorder: Any) -> Any:
    return getattr(recorder, "_wrapped", recorder)


def fail_writes(recorder: Any, *, first: int = 0, count: int = 1_000_000) -> list[int]:
    """Make the recorder's writes fail from the ``first`` one on; how many items each attempt had."""
    flows = inner(recorder)._flows
    genuine, attempts = flows.write, []

    def write(items: Any) -> Any:
        attempts.append(len(items))
        if first <= len(attempts) - 1 < first + count:
            raise StorageUnavailable("the disk is gone")
        return genuine(items)

    flows.write = write
    return attempts


async def listed(checkpointer: Any) -> list[str]:
    return [item.checkpoint_id for item in (await checkpointer.list("t", newest_first=False)).items]


async def steps(checkpointer: Any) -> list[int]:
    return [item.step for item in (await checkpointer.list("t", newest_first=False)).items]


@pytest.mark.parametrize("durability", ["sync", "async"])
async def test_every_boundary_is_stored_in_order_as_the_child_of_the_one_before(
    checkpointer: Any, durability: str
) -> None:
    async with checkpointer.recorder("t", run_id="r", durability=durability) as recorder:
        given = [(await recorder.record({"n": number})).checkpoint_id for number in range(40)]
    assert await listed(checkpointer) == given
    history = await checkpointer.history(LATEST)
    assert [item.checkpoint_id for item in history] == given[::-1]
    assert [item.step for item in history] == list(range(40))[::-1]
    assert {item.run_id for item in history} == {"r"}
    for number in (0, 17, 39):
        found = await checkpointer.get(CheckpointConfig(thread_id="t", checkpoint_id=given[number]))
        assert found.state == {"n": number}


async def test_the_contents_are_the_same_in_the_background_as_in_the_foreground(checkpointer: Any) -> None:
    messages: list[Any] = []
    for thread, durability in (("one", "sync"), ("two", "async")):
        messages.clear()
        async with checkpointer.recorder(thread, durability=durability) as recorder:
            for number in range(60):
                messages.append({"role": "user", "content": f"{number}" * 50})
                if number % 7 == 3:
                    messages[number // 2] = {"role": "edited", "content": number}
                writes = [PendingWrite(node="n", payload=number)] if number % 5 == 0 else []
                config = await recorder.record(
                    {"messages": messages, "n": number}, pending_writes=writes, metadata={"number": number}
                )
                if number % 4 == 0:
                    await recorder.put_writes([PendingWrite(node="late", payload=number, task_id="x")])
        assert config.thread_id == thread
    read = []
    for thread in ("one", "two"):
        page = await checkpointer.list(thread, newest_first=False)
        tuples = [
            await checkpointer.get_tuple(CheckpointConfig(thread_id=thread, checkpoint_id=item.checkpoint_id))
            for item in page.items
        ]
        read.append([(t.checkpoint.state, t.checkpoint.metadata, t.pending_writes) for t in tuples])
    assert read[0] == read[1]
    assert len(read[0]) == 60
    assert read[0][59][0]["messages"] == messages


async def test_sync_is_durable_before_record_returns(opener: Any) -> None:
    async with opener() as one, opener() as other, one.recorder("t", durability="sync") as recorder:
        config = await recorder.record({"n": 1})
        assert (await other.get(config)).state == {"n": 1}


async def test_a_state_may_be_changed_as_soon_as_record_returns(checkpointer: Any) -> None:
    state = {"list": [1]}
    async with checkpointer.recorder("t", durability="async") as recorder:
        config = await recorder.record(state)
        state["list"].append(2)
    assert (await checkpointer.get(config)).state == {"list": [1]}


async def test_a_recorder_goes_on_where_the_thread_has_left_off(checkpointer: Any) -> None:
    async with checkpointer.recorder("t") as recorder:
        first = await recorder.record(1)
    async with checkpointer.recorder("t", durability="async") as recorder:
        second = await recorder.record(2)
    (child,) = [item for item in await checkpointer.history(LATEST) if item.checkpoint_id == second.checkpoint_id]
    assert (child.parent_checkpoint_id, child.step) == (first.checkpoint_id, 1)


async def test_a_recorder_keeps_to_its_namespace(checkpointer: Any) -> None:
    await checkpointer.put(Checkpoint(thread_id="t", checkpoint_id="root", state=None))
    async with checkpointer.recorder("t", ("child", "1"), durability="async") as recorder:
        config = await recorder.record(1)
    assert config.namespace == ("child", "1")
    assert (await checkpointer.get(config)).parent_checkpoint_id is None
    assert (await checkpointer.get(LATEST)).checkpoint_id == "root"


async def test_a_slow_first_put_keeps_the_order(checkpointer: Any) -> None:
    async with checkpointer.recorder("t", durability="async") as recorder:
        flows = inner(recorder)._flows
        genuine = flows.write

        def slow(items: Any) -> Any:
            time.sleep(0.05)
            return genuine(items)

        flows.write = slow
        given = [(await recorder.record(number)).checkpoint_id for number in range(20)]
    assert await listed(checkpointer) == given


async def test_what_queues_up_is_written_in_few_transactions(checkpointer: Any) -> None:
    async with checkpointer.recorder("t", durability="async") as recorder:
        attempts = fail_writes(recorder, first=1_000_000)
        for number in range(100):
            await recorder.record(number)
    assert sum(attempts) == 100
    assert len(attempts) < 60


@pytest.mark.invariant(46)
async def test_a_failure_stops_what_is_behind_it_and_surfaces_at_the_next_record(checkpointer: Any) -> None:
    with pytest.raises(StorageUnavailable, match="the disk is gone"):
        async with checkpointer.recorder("t", durability="async") as recorder:
            attempts = fail_writes(recorder, count=1)
            for number in range(1000):
                await recorder.record(number)
                await asyncio.sleep(0.001)
    assert len(attempts) == 1
    assert await listed(checkpointer) == []


async def test_a_failure_surfaces_at_the_drain_where_nothing_is_recorded_after_it(checkpointer: Any) -> None:
    with pytest.raises(StorageUnavailable, match="the disk is gone"):
        async with checkpointer.recorder("t", durability="async") as recorder:
            fail_writes(recorder, count=1)
            await recorder.record(1)
    with pytest.raises(StorageUnavailable):
        async with checkpointer.recorder("t", durability="async") as recorder:
            fail_writes(recorder, count=1)
            await recorder.record(1)
            with pytest.raises(StorageUnavailable):
                await recorder.drain()
    assert await listed(checkpointer) == []


async def test_nothing_is_stored_behind_a_lease_that_was_lost(checkpointer: Any) -> None:
    token = await checkpointer.runs.acquire_lease("t", "alice", 60)
    with pytest.raises(StaleFence):
        async with checkpointer.recorder("t", durability="async", lease_token=token) as recorder:
            kept = await recorder.record(1)
            await recorder.drain()
            await checkpointer.runs.release_lease("t", token)
            await checkpointer.runs.acquire_lease("t", "bob", 60)
            for number in range(10):
                await recorder.record(number)
            await recorder.drain()
    assert await listed(checkpointer) == [kept.checkpoint_id]


@pytest.mark.parametrize("durability", MODES)
async def test_the_applications_own_error_is_never_replaced_and_what_was_recorded_is_stored(
    checkpointer: Any, durability: str
) -> None:
    with pytest.raises(KeyError, match="mine"):
        async with checkpointer.recorder("t", durability=durability) as recorder:
            for number in range(5):
                await recorder.record(number)
            raise KeyError("mine")
    assert await steps(checkpointer) == ([4] if durability == "exit" else [0, 1, 2, 3, 4])


@pytest.mark.parametrize("durability", ["async", "exit"])
async def test_a_storage_error_beside_the_applications_own_is_noted_on_it(checkpointer: Any, durability: str) -> None:
    with pytest.raises(KeyError, match="mine") as told:
        async with checkpointer.recorder("t", durability=durability) as recorder:
            fail_writes(recorder)
            await recorder.record(1)
            raise KeyError("mine")
    assert any("the disk is gone" in note for note in told.value.__notes__)


async def test_exit_stores_the_interrupt_and_the_last_boundary_alone(checkpointer: Any) -> None:
    async with checkpointer.recorder("t", durability="exit") as recorder:
        for number in range(50):
            interrupts = [Interrupt(id="i", node="n", payload="ok?")] if number == 20 else []
            await recorder.record({"n": number}, interrupts=interrupts)
            if number == 20:
                assert await steps(checkpointer) == [20]
    assert await steps(checkpointer) == [20, 49]
    last, interrupted = await checkpointer.history(LATEST)
    assert last.parent_checkpoint_id == interrupted.checkpoint_id
    assert (interrupted.has_interrupts, interrupted.parent_checkpoint_id) == (True, None)


async def test_exit_writes_nothing_twice_where_the_last_boundary_was_terminal(checkpointer: Any) -> None:
    async with checkpointer.recorder("t", durability="exit") as recorder:
        for number in range(5):
            await recorder.record(number, terminal=number == 4)
        assert await steps(checkpointer) == [4]
    assert await steps(checkpointer) == [4]


@pytest.mark.parametrize("urgent", [{"terminal": True}, {"interrupts": [Interrupt(id="i", node="n", payload=1)]}])
async def test_terminal_and_interrupting_boundaries_are_durable_with_all_before_them(
    opener: Any, urgent: dict[str, Any]
) -> None:
    async with opener() as one, opener() as other, one.recorder("t", durability="async") as recorder:
        for number in range(10):
            await recorder.record(number)
        await recorder.record(10, **urgent)
        assert await steps(other) == list(range(11))


@pytest.mark.parametrize("durability", MODES)
async def test_writes_go_with_their_checkpoint(checkpointer: Any, durability: str) -> None:
    async with checkpointer.recorder("t", durability=durability) as recorder:
        for number in range(3):
            config = await recorder.record(number, pending_writes=[PendingWrite(node="carried", payload=number)])
            await recorder.put_writes([PendingWrite(node="a", payload=1, task_id="x")])
            await recorder.put_writes([PendingWrite(node="b", payload=2, task_id="x", idx=1)])
    found = await checkpointer.get_tuple(config)
    assert [write.node for write in found.pending_writes] == ["carried", "a", "b"]
    assert [write.node for write in found.checkpoint.pending_writes] == ["carried"]


async def test_in_exit_the_writes_of_a_boundary_that_is_never_stored_go_with_it(checkpointer: Any) -> None:
    async with checkpointer.recorder("t", durability="exit") as recorder:
        passed = await recorder.record(1)
        await recorder.put_writes([PendingWrite(node="a", payload=1)])
        last = await recorder.record(2)
        late = [PendingWrite(node="late", payload=1)]
        await recorder.put_writes(late, checkpoint_id=passed.checkpoint_id)
    assert await checkpointer.get_writes(passed) == []
    assert await checkpointer.get_writes(last) == []


async def test_in_exit_a_boundary_that_is_recorded_again_as_terminal_takes_writes(checkpointer: Any) -> None:
    async with checkpointer.recorder("t", durability="exit") as recorder:
        await recorder.record(1, checkpoint_id="c")
        again = await recorder.record(1, checkpoint_id="c", terminal=True)
        await recorder.put_writes([PendingWrite(node="a", payload=1)])
        assert [write.node for write in await checkpointer.get_writes(again)] == ["a"]


async def test_writes_before_anything_is_recorded_are_refused(checkpointer: Any) -> None:
    async with checkpointer.recorder("t", durability="async") as recorder:
        with pytest.raises(InvalidInput, match="nothing is recorded"):
            await recorder.put_writes([PendingWrite(node="a", payload=1)])


@pytest.mark.parametrize("durability", MODES)
async def test_a_state_that_cannot_be_stored_is_refused_at_once_and_breaks_no_chain(
    checkpointer: Any, durability: str
) -> None:
    async with checkpointer.recorder("t", durability=durability) as recorder:
        first = await recorder.record({"n": 1}, terminal=True)
        with pytest.raises(Unserializable, match=r"state\.n"):
            await recorder.record({"n": object()})
        await recorder.record({"n": 2})
    (last, before) = await checkpointer.history(LATEST)
    assert before.checkpoint_id == first.checkpoint_id
    assert (last.step, before.step) == (1, 0)


@pytest.mark.parametrize(
    "fields",
    [
        {"next_nodes": "answer"},
        {"next_nodes": 5},
        {"completed_tasks": [1]},
        {"interrupts": ["x"]},
        {"checkpoint_id": 5},
    ],
)
async def test_a_field_that_no_checkpoint_can_have_is_refused_by_name(
    checkpointer: Any, fields: dict[str, Any]
) -> None:
    async with checkpointer.recorder("t") as recorder:
        with pytest.raises(InvalidInput, match=next(iter(fields))):
            await recorder.record(1, **fields)
    assert await listed(checkpointer) == []


async def test_fields_may_be_any_iterables_and_the_namespace_too(checkpointer: Any) -> None:
    async with checkpointer.recorder("t", (part for part in ["child"])) as recorder:
        config = await recorder.record(1, next_nodes=map(str, [1, 2]), completed_tasks={"done": 1}.keys())
    found = await checkpointer.get(config)
    assert (found.namespace, found.next_nodes, found.completed_tasks) == (("child",), ("1", "2"), ("done",))
    assert (await checkpointer.get(CheckpointConfig.latest("t", ["child"]))).checkpoint_id == config.checkpoint_id


async def test_a_bounded_queue_pushes_back(checkpointer: Any) -> None:
    async with checkpointer.recorder("t", durability="async", max_pending=3) as recorder:
        most = 0
        for number in range(60):
            await recorder.record(number)
            most = max(most, inner(recorder)._pending)
    assert most <= 3
    assert await steps(checkpointer) == list(range(60))


async def test_ids_may_come_from_the_caller_and_an_exact_repetition_is_recognised(checkpointer: Any) -> None:
    async with checkpointer.recorder("t", durability="async") as recorder:
        for checkpoint_id in ("a", "b", "c"):
            await recorder.record(checkpoint_id, checkpoint_id=checkpoint_id)
    await checkpointer.put(
        Checkpoint(
            thread_id="t",
            checkpoint_id="b",
            parent_checkpoint_id="a",
            state="b",
            metadata={"source": "loop", "step": 1},
        )
    )
    assert await listed(checkpointer) == ["a", "b", "c"]


async def test_a_batch_that_meets_an_id_that_exists_replaces_it_as_a_put_does(checkpointer: Any) -> None:
    await checkpointer.put(Checkpoint(thread_id="t", checkpoint_id="b", state="old"))
    async with checkpointer.recorder("t", durability="async") as recorder:
        for checkpoint_id in ("a", "c", "d"):
            await recorder.record({"is": checkpoint_id}, checkpoint_id=checkpoint_id)
        await recorder.record({"is": "new"}, checkpoint_id="a")
    assert await listed(checkpointer) == ["b", "c", "d", "a"]
    assert (await checkpointer.get(LATEST)).state == {"is": "new"}


async def test_a_late_recorder_of_a_deleted_thread_does_not_bring_it_back(checkpointer: Any) -> None:
    with pytest.raises(LookupError):
        async with checkpointer.recorder("t", durability="async") as recorder:
            await recorder.record(1)
            await recorder.drain()
            await checkpointer.delete_thread("t")
            for number in range(5):
                await recorder.record(number)
            await recorder.drain()
    assert await checkpointer.get_thread("t") is None


async def test_a_recorder_is_used_inside_its_block_only(checkpointer: Any) -> None:
    async with checkpointer.recorder("t") as recorder:
        pass
    with pytest.raises(WrongContext):
        await recorder.record(1)


async def test_what_makes_no_sense_is_refused(checkpointer: Any) -> None:
    for options in ({"durability": "soon"}, {"max_pending": 0}, {"run_id": ""}, {"namespace": "text"}):
        with pytest.raises(ClewError):
            async with checkpointer.recorder("t", **options):
                pass
    async with checkpointer.recorder("t") as recorder:
        with pytest.raises(TypeError, match="next_node"):
            await recorder.record(1, next_node=["x"])
