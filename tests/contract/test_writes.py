"""The ledger of pending writes: what identifies one, what replaces and what keeps, in which order they come back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import clew
from clew import Checkpoint, CheckpointConfig, PendingWrite

from probe import Probe


def at(checkpoint_id: str | None = "c1", namespace: tuple[str, ...] = (), thread_id: str = "t") -> CheckpointConfig:
    return CheckpointConfig(thread_id=thread_id, checkpoint_id=checkpoint_id, namespace=namespace)


def write(payload: Any, task_id: str = "task", idx: int = 0, node: str = "n", channel: str = "") -> PendingWrite:
    return PendingWrite(node=node, payload=payload, task_id=task_id, idx=idx, channel=channel)


def made(checkpoint_id: str = "c1", *writes: PendingWrite, **fields: Any) -> Checkpoint[Any]:
    return Checkpoint(thread_id="t", checkpoint_id=checkpoint_id, state=0, pending_writes=writes, **fields)


async def payloads(checkpointer: Any, *where: Any) -> list[Any]:
    return [found.payload for found in await checkpointer.get_writes(at(*where))]


async def test_writes_come_back_in_the_order_of_their_arrival(checkpointer: Any) -> None:
    await checkpointer.put(made())
    await checkpointer.put_writes(at(), [write("b", "z", 1), write("a", "z", 0)])
    await checkpointer.put_writes(at(), [write("c", "a", 0, channel="messages")])
    assert await checkpointer.get_writes(at()) == [
        write("b", "z", 1),
        write("a", "z", 0),
        write("c", "a", 0, channel="messages"),
    ]
    assert list((await checkpointer.get_tuple(at())).pending_writes) == await checkpointer.get_writes(at())


@pytest.mark.invariant(20)
async def test_an_index_from_zero_keeps_the_first_payload(checkpointer: Any) -> None:
    await checkpointer.put(made())
    await checkpointer.put_writes(at(), [write("first", idx=0), write("other", idx=1)])
    await checkpointer.put_writes(at(), [write("second", idx=0), write("third", idx=2)])
    assert await payloads(checkpointer) == ["first", "other", "third"]


@pytest.mark.invariant(20)
async def test_a_negative_index_replaces_in_its_old_place(checkpointer: Any) -> None:
    await checkpointer.put(made())
    await checkpointer.put_writes(at(), [write("v1", idx=-1), write("w", idx=0)])
    await checkpointer.put_writes(at(), [write("v2", idx=-1, node="m", channel="c")])
    assert await checkpointer.get_writes(at()) == [write("v2", idx=-1, node="m", channel="c"), write("w", idx=0)]


async def test_within_one_batch_the_same_rules_hold(checkpointer: Any) -> None:
    await checkpointer.put_writes(
        at(), [write("v1", idx=-1), write("w1", idx=0), write("v2", idx=-1), write("w2", idx=0), write("x", idx=5)]
    )
    assert await payloads(checkpointer) == ["v2", "w1", "x"]


async def test_it_is_decided_row_by_row_and_not_by_batch(checkpointer: Any) -> None:
    await checkpointer.put_writes(at(), [write("a", idx=0), write("e", idx=-4)])
    await checkpointer.put_writes(at(), [write("b", idx=0), write("f", idx=-4), write("c", idx=1)])
    assert await payloads(checkpointer) == ["a", "f", "c"]


async def test_another_task_is_another_write(checkpointer: Any) -> None:
    await checkpointer.put_writes(at(), [write("a", "t1"), write("b", "t2"), write("c", "")])
    assert await payloads(checkpointer) == ["a", "b", "c"]


async def test_three_carried_writes_with_node_and_payload_alone_are_three(checkpointer: Any) -> None:
    carried = [PendingWrite(node="a", payload=1), PendingWrite(node="a", payload=2), PendingWrite(node="b", payload=3)]
    await checkpointer.put(made("c1", *carried))
    found = await checkpointer.get_tuple(at())
    assert list(found.checkpoint.pending_writes) == carried
    assert [item.payload for item in found.pending_writes] == [1, 2, 3]
    assert [item.idx for item in found.pending_writes] == [0, 1, 2]


async def test_carried_writes_with_a_task_keep_their_index(checkpointer: Any) -> None:
    carried = [write("b", "task", 7), write("a", "task", -3)]
    await checkpointer.put(made("c1", *carried))
    assert list((await checkpointer.get(at())).pending_writes) == carried


async def test_the_checkpoint_has_what_it_carried_and_the_tuple_has_all(checkpointer: Any) -> None:
    await checkpointer.put_writes(at(), [write("before", "t0")])
    await checkpointer.put(made("c1", write("carried", "t1")))
    await checkpointer.put_writes(at(), [write("after", "t2")])
    found = await checkpointer.get_tuple(at())
    assert [item.payload for item in found.checkpoint.pending_writes] == ["carried"]
    assert [item.payload for item in found.pending_writes] == ["before", "carried", "after"]


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
async def test_a_write_that_came_before_the_checkpoint_that_carries_it_counts_as_carried(
    checkpointer: Any, warm: bool
) -> None:
    if warm:
        await checkpointer.put(made("c0"))
    await checkpointer.put_writes(at(), [write("first", "t", 0), write("old", "t", -1)])
    await checkpointer.put(made("c1", write("second", "t", 0), write("new", "t", -1)))
    found = await checkpointer.get_tuple(at())
    assert [item.payload for item in found.checkpoint.pending_writes] == ["first", "new"]
    assert [item.payload for item in found.pending_writes] == ["first", "new"]


async def test_replacing_a_checkpoint_leaves_what_others_carried(checkpointer: Any) -> None:
    await checkpointer.put(made("c1", write("one")))
    await checkpointer.put(made("c2", write("two")))
    await checkpointer.put(made("c2", write("namesake"), namespace=("n",)))
    await checkpointer.put(Checkpoint(thread_id="u", checkpoint_id="c2", state=0, pending_writes=(write("far"),)))
    await checkpointer.put(Checkpoint(thread_id="t", checkpoint_id="c2", state=1))
    assert (await checkpointer.get(at("c2"))).pending_writes == ()
    assert await payloads(checkpointer, "c2") == ["two"]
    others = (at("c1"), at("c2", ("n",)), at("c2", thread_id="u"))
    carried = [(await checkpointer.get(config)).pending_writes for config in others]
    assert [item.payload for [item] in carried] == ["one", "namesake", "far"]


async def test_a_carried_write_that_is_replaced_later_stays_a_carried_one(checkpointer: Any) -> None:
    await checkpointer.put(made("c1", write("old", "t", -1)))
    await checkpointer.put_writes(at(), [write("new", "t", -1)])
    assert [item.payload for item in (await checkpointer.get(at())).pending_writes] == ["new"]


async def test_writes_that_come_before_their_checkpoint_are_kept_and_found(checkpointer: Any) -> None:
    await checkpointer.put_writes(at(), [write("early")])
    assert await payloads(checkpointer) == ["early"]
    assert await checkpointer.get_thread("t") is None
    assert (await checkpointer.list_threads()).items == ()
    assert (await checkpointer.list("t")).items == ()
    assert await checkpointer.get(at(None)) is None
    await checkpointer.put(made())
    assert [item.payload for item in (await checkpointer.get_tuple(at())).pending_writes] == ["early"]
    assert (await checkpointer.list_threads()).items[0].thread_id == "t"


async def test_one_id_in_two_namespaces_has_two_ledgers(checkpointer: Any) -> None:
    await checkpointer.put_writes(at("w1"), [write("root")])
    await checkpointer.put_writes(at("w1", ("child",)), [write("child")])
    assert await payloads(checkpointer, "w1") == ["root"]
    assert await payloads(checkpointer, "w1", ("child",)) == ["child"]


async def test_writes_of_the_latest_are_found_without_an_id(checkpointer: Any) -> None:
    await checkpointer.put(made("c1", write("one")))
    await checkpointer.put(made("c2", write("two")))
    assert await payloads(checkpointer, None) == ["two"]


async def test_put_writes_without_an_id_is_an_error_and_stores_nothing(checkpointer: Any, probe: Probe) -> None:
    with pytest.raises(clew.InvalidInput, match="checkpoint_id"):
        await checkpointer.put_writes(at(None), [write(1)])
    assert (probe.count("pending_writes"), probe.count("threads")) == (0, 0)


async def test_an_empty_batch_is_fine(checkpointer: Any, probe: Probe) -> None:
    await checkpointer.put_writes(at(), [])
    assert probe.count("threads") == 0


async def test_a_batch_is_stored_whole_or_not_at_all(checkpointer: Any) -> None:
    with pytest.raises(clew.Unserializable, match=r"pending_writes\[1\]\.payload"):
        await checkpointer.put_writes(at(), [write(1), write(object(), idx=1)])
    assert await payloads(checkpointer) == []


@pytest.mark.parametrize("payload", [None, {"a": (1, 2)}, [1, "x" * 5000], b"\0", "a\0b", 2**70])
async def test_a_payload_comes_back_as_it_was(checkpointer: Any, payload: Any) -> None:
    await checkpointer.put_writes(at(), [write(payload)])
    [found] = await payloads(checkpointer)
    assert found == payload
    assert type(found) is type(payload)


@pytest.mark.parametrize("idx", [2**63, -(2**63) - 1])
async def test_an_index_that_no_column_can_hold_is_refused(checkpointer: Any, idx: int) -> None:
    with pytest.raises(clew.InvalidInput, match="idx"):
        await checkpointer.put_writes(at(), [write(1, idx=idx)])


async def test_the_outermost_indexes_are_stored(checkpointer: Any) -> None:
    await checkpointer.put_writes(at(), [write(1, idx=2**63 - 1), write(2, idx=-(2**63))])
    assert [item.idx for item in await checkpointer.get_writes(at())] == [2**63 - 1, -(2**63)]


async def test_putting_writes_does_not_touch_the_version(checkpointer: Any, probe: Probe) -> None:
    await checkpointer.put(made())
    versions = probe.rows(probe.tables.versions.select())
    await checkpointer.put_writes(at(), [write(1)])
    await checkpointer.put_writes(at(), [write(2)])
    assert probe.rows(probe.tables.versions.select()) == versions


async def test_writes_go_with_their_checkpoint(checkpointer: Any, probe: Probe) -> None:
    await checkpointer.put(made("c1", write("a")))
    await checkpointer.put(made("c1", write("b"), namespace=("child",)))
    await checkpointer.put_writes(at(), [write("later", "x")])
    await checkpointer.delete_checkpoints("t", ["c1"])
    assert await payloads(checkpointer) == []
    assert await payloads(checkpointer, "c1", ("child",)) == ["b"]
    assert probe.count("pending_writes") == 1


async def test_writes_go_with_their_thread(checkpointer: Any, probe: Probe) -> None:
    await checkpointer.put(made("c1", write("a")))
    await checkpointer.put_writes(at("not-yet"), [write("b")])
    await checkpointer.delete_thread("t")
    assert probe.count("pending_writes") == 0


async def test_late_writes_of_a_deleted_thread_list_nothing(checkpointer: Any) -> None:
    await checkpointer.put(made("c1"))
    await checkpointer.delete_thread("t")
    await checkpointer.put_writes(at(), [write("late")])
    assert await checkpointer.get_thread("t") is None
    assert (await checkpointer.list_threads()).items == ()
    assert await checkpointer.get_tuple(at()) is None
    with pytest.raises(clew.NotFound):
        await checkpointer.put(made("c2", parent_checkpoint_id="c1"))
    await checkpointer.put(made("c9"))
    assert (await checkpointer.get_thread("t")).checkpoint_count == 1


@pytest.mark.invariant(21)
async def test_the_same_batch_from_many_tasks_in_opposite_orders_does_not_deadlock(opener: Any) -> None:
    forwards = [write(f"p{number}", f"task-{number:02}", -1) for number in range(20)]
    async with opener() as first, opener() as second:
        await first.put(made())
        await asyncio.gather(
            *[first.put_writes(at(), forwards) for _ in range(6)],
            *[second.put_writes(at(), forwards[::-1]) for _ in range(6)],
        )
        assert sorted(await payloads(first)) == sorted(item.payload for item in forwards)


@pytest.mark.invariant(22)
async def test_writes_and_a_deletion_at_the_same_time_leave_no_orphan(opener: Any, probe: Probe) -> None:
    async with opener() as first, opener() as second:
        for round_number in range(5):
            await first.put(made(f"c{round_number}"))
            await asyncio.gather(
                *[first.put_writes(at(f"c{round_number}"), [write(n, f"t{n}")]) for n in range(4)],
                second.delete_thread("t"),
            )
            owners = {row.thread_key for row in probe.rows(probe.tables.pending_writes.select())}
            assert owners <= {row.thread_key for row in probe.rows(probe.tables.versions.select())}
            await first.delete_thread("t")
    assert probe.count("pending_writes") == 0
