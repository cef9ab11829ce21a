"""Forking a checkpoint, inside its thread and into another, and copying whole threads."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from clew import AlreadyExists, Checkpoint, CheckpointConfig, InvalidInput, NotFound, StaleFence, StateUpdate
from clew.records import BarrierArrivals, Interrupt, PendingActivation, PendingWrite


def message(number: int) -> dict[str, str]:
    return {"role": "user", "content": f"message {number} " * 6}


FULL = Checkpoint(
    thread_id="t",
    checkpoint_id="c",
    run_id="run",
    state={"messages": [message(number) for number in range(30)], "plan": "a"},
    next_nodes=["model"],
    completed_tasks=["input"],
    pending_writes=[PendingWrite(node="model", payload=1, task_id="a", channel="x")],
    interrupts=[Interrupt(id="i", node="model", payload=[1, 2])],
    metadata={"source": "loop", "step": 7, "user": "ada"},
    pending_activations=[PendingActivation(node="model", send_arg={"n": 1}, task_id="b")],
    barrier_arrivals=[BarrierArrivals(node="join", arrived=["left"])],
)
LATER = PendingWrite(node="model", payload="later", task_id="a", idx=3, channel="y")
HERE = CheckpointConfig(thread_id="t", checkpoint_id="c")


def at(thread: str, name: str | None = None) -> CheckpointConfig:
    return CheckpointConfig(thread_id=thread, checkpoint_id=name)


async def grow(checkpointer: Any, count: int, thread: str = "t") -> None:
    for number in range(count):
        await checkpointer.put(
            Checkpoint(
                thread_id=thread,
                checkpoint_id=f"c{number}",
                parent_checkpoint_id=f"c{number - 1}" if number else None,
                state={"messages": [message(index) for index in range(number + 1)]},
                metadata={"step": number},
            )
        )


@pytest.mark.parametrize("thread", ["t", "other"])
async def test_a_fork_is_the_same_checkpoint_under_another_id(checkpointer: Any, thread: str) -> None:
    await checkpointer.put(FULL)
    await checkpointer.put_writes(HERE, [LATER])
    forked = await checkpointer.timeline.fork(HERE, thread, checkpoint_id="f")
    assert forked == at(thread, "f")
    found = await checkpointer.get_tuple(forked)
    assert found.checkpoint == FULL.model_copy(
        update={
            "thread_id": thread,
            "checkpoint_id": "f",
            "run_id": None,
            "parent_checkpoint_id": "c" if thread == "t" else None,
            "metadata": {"source": "fork", "step": 7, "user": "ada"},
        }
    )
    assert found.pending_writes == (*FULL.pending_writes, LATER)
    assert (found.metadata.source.value, found.metadata.step) == ("fork", 7)
    assert (found.metadata.fork_origin.thread_id, found.metadata.fork_origin.checkpoint_id) == ("t", "c")


@pytest.mark.invariant(39)
@pytest.mark.parametrize("thread", [None, "other"])
async def test_a_fork_leaves_its_origin_untouched(checkpointer: Any, thread: str | None) -> None:
    await checkpointer.put(FULL)
    await checkpointer.put_writes(HERE, [LATER])
    before, activity = await checkpointer.get_tuple(HERE), (await checkpointer.get_thread("t")).updated_at
    await checkpointer.timeline.fork(HERE, thread)
    assert await checkpointer.get_tuple(HERE) == before
    if thread is not None:
        assert (await checkpointer.get_thread("t")).updated_at == activity


async def test_a_fork_takes_the_latest_where_no_id_is_given_and_makes_an_id(checkpointer: Any) -> None:
    await grow(checkpointer, 3)
    forked = await checkpointer.timeline.fork(CheckpointConfig.latest("t"))
    assert (await checkpointer.get(forked)).parent_checkpoint_id == "c2"
    assert (await checkpointer.timeline.get_state("t")).config == forked


async def test_a_fork_does_not_see_later_siblings(checkpointer: Any) -> None:
    await grow(checkpointer, 3)
    forked = await checkpointer.timeline.fork(at("t", "c1"), checkpoint_id="f")
    await checkpointer.put(
        Checkpoint(thread_id="t", checkpoint_id="g", parent_checkpoint_id="f", state={"messages": [message(9)]})
    )
    assert [len((await checkpointer.get(at("t", name))).state["messages"]) for name in ("c2", "f", "g")] == [3, 2, 1]
    assert [item.checkpoint_id for item in await checkpointer.history(at("t", "g"))] == ["g", "f", "c1", "c0"]
    assert forked == at("t", "f")


async def test_a_fork_inside_a_thread_stores_no_element(checkpointer: Any, probe: Any) -> None:
    await grow(checkpointer, 40)
    before = probe.segment_bytes()
    await checkpointer.timeline.fork(at("t", "c20"))
    assert probe.segment_bytes() == before
    assert probe.problems() == []


@pytest.mark.invariant(39)
@pytest.mark.parametrize("step", [7, 16, 47])
async def test_a_fork_into_a_thread_stores_exactly_the_elements_of_its_state(
    checkpointer: Any, probe: Any, step: int
) -> None:
    await grow(checkpointer, 48)
    await checkpointer.delete_checkpoints("t", ["c2"])
    forked = await checkpointer.timeline.fork(at("t", f"c{step}"), "other")
    await checkpointer.delete_thread("t")
    assert (await checkpointer.get(forked)).state == {"messages": [message(index) for index in range(step + 1)]}
    assert probe.elements() == step + 1
    assert probe.problems() == []


async def test_a_fork_of_scattered_elements_is_cut_at_every_edge(checkpointer: Any, probe: Any) -> None:
    everything = [message(number) for number in range(100)]
    await checkpointer.put(Checkpoint(thread_id="t", state={"m": everything}))
    scattered = [*everything[3:10], *everything[90:], *everything[40:60], message(1000)]
    await checkpointer.put(Checkpoint(thread_id="t", state={"m": scattered}))
    forked = await checkpointer.timeline.fork(CheckpointConfig.latest("t"), "other")
    await checkpointer.delete_thread("t")
    assert (await checkpointer.get(forked)).state == {"m": scattered}
    assert probe.elements() == len(scattered)
    assert probe.problems() == []


async def test_origin_and_fork_go_on_apart(opener: Any, probe: Any) -> None:
    async with opener() as one, opener() as other:
        await grow(one, 20)
        await one.timeline.fork(at("t", "c19"), "u", checkpoint_id="f")
        base = [message(number) for number in range(20)]
        for number in range(20):
            for checkpointer, thread in ((one, "t"), (other, "u")):
                latest = (await checkpointer.get(CheckpointConfig.latest(thread))).state["messages"]
                await checkpointer.put(
                    Checkpoint(thread_id=thread, state={"messages": [*latest, f"{thread}{number}" * 20]})
                )
        for thread in ("t", "u"):
            state = (await one.get(CheckpointConfig.latest(thread))).state
            assert state == {"messages": [*base, *(f"{thread}{number}" * 20 for number in range(20))]}
        assert probe.problems() == []


async def test_repeating_a_fork_under_its_id_changes_nothing(checkpointer: Any) -> None:
    await grow(checkpointer, 2)
    for thread in (None, "other"):
        first = await checkpointer.timeline.fork(at("t", "c0"), thread, checkpoint_id="f")
        listed = await checkpointer.list(first.thread_id)
        assert await checkpointer.timeline.fork(at("t", "c0"), thread, checkpoint_id="f") == first
        assert await checkpointer.list(first.thread_id) == listed


async def test_repeating_a_fork_of_the_latest_changes_nothing(checkpointer: Any) -> None:
    await grow(checkpointer, 2)
    first = await checkpointer.timeline.fork(at("t"), checkpoint_id="f")
    listed = await checkpointer.list("t")
    assert await checkpointer.timeline.fork(at("t"), checkpoint_id="f") == first
    assert await checkpointer.list("t") == listed
    with pytest.raises(AlreadyExists, match="'f'"):
        await checkpointer.timeline.fork(at("t"), checkpoint_id="f", run_id="another")


async def test_a_write_that_came_before_the_fork_stays_as_it_is(checkpointer: Any) -> None:
    await grow(checkpointer, 1)
    await checkpointer.put_writes(at("t", "c0"), [LATER, LATER.model_copy(update={"idx": 4})])
    early = LATER.model_copy(update={"payload": "early"})
    await checkpointer.put_writes(at("t", "f"), [early])
    await checkpointer.timeline.fork(at("t", "c0"), checkpoint_id="f")
    assert await checkpointer.get_writes(at("t", "f")) == [early, LATER.model_copy(update={"idx": 4})]


async def test_a_fork_takes_no_id_and_no_thread_that_is_taken(checkpointer: Any) -> None:
    await grow(checkpointer, 2)
    with pytest.raises(AlreadyExists, match="'c1'"):
        await checkpointer.timeline.fork(at("t", "c0"), checkpoint_id="c1")
    await checkpointer.put(Checkpoint(thread_id="other", state=1))
    with pytest.raises(AlreadyExists, match="not empty"):
        await checkpointer.timeline.fork(at("t", "c0"), "other")
    assert len((await checkpointer.list("other")).items) == 1


async def test_what_is_not_there_cannot_be_forked_and_makes_no_thread(checkpointer: Any, probe: Any) -> None:
    await grow(checkpointer, 1)
    for config in (at("t", "gone"), at("unknown")):
        for thread in (None, "other"):
            with pytest.raises(NotFound):
                await checkpointer.timeline.fork(config, thread)
    assert await checkpointer.get_thread("other") is None
    assert probe.count("threads") == 1


async def test_a_fork_stays_in_its_namespace(checkpointer: Any) -> None:
    await checkpointer.put(Checkpoint(thread_id="t", checkpoint_id="c", namespace=["child"], state=1))
    origin = CheckpointConfig(thread_id="t", checkpoint_id="c", namespace=["child"])
    forked = await checkpointer.timeline.fork(origin, "other", run_id="again")
    found = await checkpointer.get_tuple(forked)
    assert (found.config.namespace, found.checkpoint.run_id) == (("child",), "again")
    assert found.metadata.fork_origin.namespace == ("child",)


@pytest.mark.parametrize("metadata", [{}, {"step": 3}, {"source": "input", "step": 3}, None, [1], {"a": 1}])
async def test_a_fork_says_so_in_metadata_of_any_form(checkpointer: Any, metadata: Any) -> None:
    await checkpointer.put(Checkpoint(thread_id="t", checkpoint_id="c", state=1, metadata=metadata))
    found = await checkpointer.get_tuple(await checkpointer.timeline.fork(HERE))
    assert found.metadata.source.value == "fork"
    if isinstance(metadata, dict):
        assert found.checkpoint.metadata == {"step": 0, **metadata, "source": "fork"}
    else:
        assert found.checkpoint.metadata == metadata


async def everything(checkpointer: Any, thread: str) -> list[Any]:
    listed = (await checkpointer.list(thread, newest_first=False)).items
    found = []
    for item in listed:
        config = CheckpointConfig(thread_id=thread, checkpoint_id=item.checkpoint_id, namespace=item.namespace)
        record = await checkpointer.get_tuple(config)
        found.append(
            (
                item.model_copy(update={"thread_id": ""}),
                record.checkpoint.model_copy(update={"thread_id": ""}),
                record.pending_writes,
            )
        )
    return found


async def test_a_copied_thread_is_equal_to_its_source(checkpointer: Any, probe: Any) -> None:
    await grow(checkpointer, 40)
    await checkpointer.put(FULL)
    await checkpointer.put_writes(HERE, [LATER])
    await checkpointer.put(FULL.model_copy(update={"namespace": ("child",), "state": [1, 2]}))
    await checkpointer.put_writes(at("t", "not yet"), [LATER])
    await checkpointer.delete_checkpoints("t", ["c3", "c39"])
    assert await checkpointer.timeline.copy_thread("t", "u") == 40
    assert await everything(checkpointer, "u") == await everything(checkpointer, "t")
    assert await checkpointer.get_writes(at("u", "not yet")) == [LATER]
    assert probe.problems() == []


async def test_a_copied_thread_goes_on_where_its_source_was(checkpointer: Any, probe: Any) -> None:
    await grow(checkpointer, 20)
    await checkpointer.timeline.copy_thread("t", "u")
    for thread in ("t", "u"):
        await checkpointer.put(
            Checkpoint(
                thread_id=thread, parent_checkpoint_id="c19", state={"messages": [*map(message, range(20)), thread]}
            )
        )
    assert [(await checkpointer.get(at(thread))).state["messages"][20:] for thread in ("t", "u")] == [["t"], ["u"]]
    await checkpointer.delete_thread("t")
    assert [len(item[1].state["messages"]) for item in await everything(checkpointer, "u")] == list(range(1, 22))
    assert probe.problems() == []


@pytest.mark.invariant(40)
async def test_a_second_copy_is_refused_and_nothing_is_half_copied(checkpointer: Any, probe: Any) -> None:
    await grow(checkpointer, 5)
    await checkpointer.timeline.copy_thread("t", "u")
    before, rows = await everything(checkpointer, "u"), probe.count("segments")
    await grow(checkpointer, 9)
    with pytest.raises(AlreadyExists, match="'u' is not empty"):
        await checkpointer.timeline.copy_thread("t", "u")
    assert await everything(checkpointer, "u") == before
    assert probe.count("segments") > rows
    assert probe.problems() == []


async def test_a_thread_that_only_has_writes_is_not_empty(checkpointer: Any) -> None:
    await grow(checkpointer, 1)
    await checkpointer.put_writes(at("u", "c0"), [LATER])
    with pytest.raises(AlreadyExists):
        await checkpointer.timeline.copy_thread("t", "u")


async def test_only_the_latest_of_each_namespace_is_copied_when_asked(checkpointer: Any, probe: Any) -> None:
    await grow(checkpointer, 40)
    await checkpointer.put_writes(at("t", "c39"), [LATER])
    await checkpointer.put_writes(at("t", "c1"), [LATER])
    for name in ("x", "y"):
        await checkpointer.put(Checkpoint(thread_id="t", checkpoint_id=name, namespace=["child"], state=[name * 300]))
    assert await checkpointer.timeline.copy_thread("t", "u", latest_only=True) == 2
    await checkpointer.delete_thread("t")
    found = await everything(checkpointer, "u")
    assert [(item.checkpoint_id, item.namespace, item.parent_checkpoint_id) for item, _, _ in found] == [
        ("c39", (), None),
        ("y", ("child",), None),
    ]
    assert found[0][1].state == {"messages": [message(number) for number in range(40)]}
    assert found[0][2] == (LATER,)
    assert probe.count("pending_writes") == 1
    assert probe.problems() == []


@pytest.mark.parametrize("latest_only", [False, True])
async def test_a_copy_into_an_emptied_thread_is_not_taken_for_what_was_there(
    opener: Any, probe: Any, latest_only: bool
) -> None:
    async with opener() as one, opener() as other:
        await other.put(Checkpoint(thread_id="u", checkpoint_id="c0", state="old"))
        await one.put(Checkpoint(thread_id="t", checkpoint_id="c0", state="new", metadata={"who": "ada"}))
        await one.delete_checkpoints("u", ["c0"])
        assert await one.timeline.copy_thread("t", "u", latest_only=latest_only) == 1
        for checkpointer in (one, other):
            found = await checkpointer.get(at("u", "c0"))
            assert (found.state, found.metadata) == ("new", {"who": "ada"})
        assert await other.put(Checkpoint(thread_id="u", checkpoint_id="c1", state="next")) == at("u", "c1")
        assert probe.seqs() == [1 + 1, 1 + 2, 1]
        assert (await one.retention.verify()).ok


async def test_a_copy_needs_two_threads_and_a_source(checkpointer: Any) -> None:
    await grow(checkpointer, 1)
    with pytest.raises(InvalidInput, match="onto itself"):
        await checkpointer.timeline.copy_thread("t", "t")
    with pytest.raises(NotFound, match="'unknown'"):
        await checkpointer.timeline.copy_thread("unknown", "u")
    with pytest.raises(InvalidInput, match="thread_id"):
        await checkpointer.timeline.copy_thread("t", "")


async def test_a_copy_may_go_to_a_thread_that_is_older_than_its_source(checkpointer: Any, probe: Any) -> None:
    await grow(checkpointer, 3, "older")
    await grow(checkpointer, 3)
    await checkpointer.delete_checkpoints("older", ["c0", "c1", "c2"])
    assert await checkpointer.timeline.copy_thread("t", "older") == 3
    await checkpointer.put(Checkpoint(thread_id="older", checkpoint_id="next", parent_checkpoint_id="c2", state=1))
    assert (await checkpointer.get(at("older"))).checkpoint_id == "next"
    assert probe.problems() == []


CHANGES: dict[str, Any] = {
    "fork": lambda timeline: timeline.fork(at("t", "c0"), lease_token=7),
    "fork into another": lambda timeline: timeline.fork(at("t", "c0"), "u", lease_token=7),
    "copy": lambda timeline: timeline.copy_thread("t", "u", lease_token=7),
    "update": lambda timeline: timeline.update_state(at("t"), {"a": 1}, lease_token=7),
    "bulk update": lambda timeline: timeline.bulk_update_state(at("t"), [StateUpdate(update={})], lease_token=7),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
async def test_a_stale_lease_token_changes_nothing(checkpointer: Any, probe: Any, change: Any) -> None:
    await grow(checkpointer, 2)
    with pytest.raises(StaleFence) as refused:
        await change(checkpointer.timeline)
    assert refused.value.token == 7
    assert (probe.count("threads"), probe.count("checkpoints")) == (1, 2)


async def test_of_rows_that_are_needed_in_part_that_part_alone_is_copied(checkpointer: Any, probe: Any) -> None:
    lists = {name: [f"{name}{number} " * 100 for number in range(3)] for name in "ab"}
    parts = {"a": lists["a"][:2], "b": lists["b"][1:]}
    await checkpointer.put(Checkpoint(thread_id="t", checkpoint_id="c1", state=lists))
    await checkpointer.put(Checkpoint(thread_id="t", checkpoint_id="c2", parent_checkpoint_id="c1", state=parts))
    assert probe.elements() == 6
    made = await checkpointer.timeline.fork(CheckpointConfig.latest("t"), "copy")
    assert (await checkpointer.get(made)).state == parts
    assert probe.elements() == 10
    assert probe.problems() == []


async def test_copies_made_while_the_source_is_written_to_are_each_of_one_moment(opener: Any, probe: Any) -> None:
    async with opener() as writer, opener() as copier:
        await grow(writer, 5)

        async def write() -> None:
            for number in range(5, 25):
                state = {"messages": [message(index) for index in range(number + 1)]}
                await writer.put(Checkpoint(thread_id="t", checkpoint_id=f"c{number}", state=state))
                await writer.delete_checkpoints("t", [f"c{number - 5}"])

        async def copy() -> None:
            for number in range(8):
                await copier.timeline.copy_thread("t", f"copy{number}", latest_only=bool(number % 2))

        await asyncio.gather(write(), copy())
        for number in range(8):
            for item in await copier.timeline.state_history(f"copy{number}"):
                count = int(item.config.checkpoint_id[1:]) + 1
                assert item.values == {"messages": [message(index) for index in range(count)]}
    assert probe.problems() == []
