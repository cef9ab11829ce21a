"""Looking back: snapshots by id, by moment and by step, histories, one channel's values."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from clew import Checkpoint, CheckpointConfig, InvalidInput
from clew.records import Interrupt, PendingActivation, PendingWrite


def messages(count: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"message {number} " * 5} for number in range(count)]


async def grow(checkpointer: Any, steps: int, *, thread: str = "t", plan: Any = None) -> list[Any]:
    """c0 … with one message more in each; returns the messages."""
    everything = messages(steps)
    for step in range(steps):
        state = {"messages": everything[: step + 1], "plan": plan(step) if plan else "none"}
        await checkpointer.put(
            Checkpoint(
                thread_id=thread,
                checkpoint_id=f"c{step}",
                parent_checkpoint_id=f"c{step - 1}" if step else None,
                state=state,
                next_nodes=("model",),
                metadata={"source": "loop", "step": step},
            )
        )
    return everything


async def test_get_state_gives_the_latest_or_the_named_checkpoint(checkpointer: Any) -> None:
    everything = await grow(checkpointer, 3)
    latest = await checkpointer.timeline.get_state("t")
    assert latest.values == {"messages": everything, "plan": "none"}
    assert (latest.next_nodes, latest.tasks) == (("model",), ("model",))
    assert latest.config == CheckpointConfig(thread_id="t", checkpoint_id="c2")
    assert latest.parent_config == CheckpointConfig(thread_id="t", checkpoint_id="c1")
    first = await checkpointer.timeline.get_state("t", "c0")
    assert (first.values["messages"], first.parent_config) == (everything[:1], None)


async def test_what_is_not_there_has_no_snapshot(checkpointer: Any) -> None:
    await grow(checkpointer, 1)
    timeline = checkpointer.timeline
    assert await timeline.get_state("unknown") is None
    assert await timeline.get_state("t", "unknown") is None
    assert await timeline.get_state("t", namespace=["child"]) is None
    assert await timeline.at_step("t", 7) is None
    assert await timeline.as_of("unknown", datetime.now(UTC)) is None
    assert await timeline.state_history("unknown") == []
    assert await timeline.state_history("t", before="unknown") == []
    assert await timeline.channel_history("t", "unknown") == []
    assert await timeline.resume_point(CheckpointConfig.latest("unknown")) is None


@pytest.mark.invariant(36)
async def test_state_history_is_newest_first_and_every_state_is_as_it_was(checkpointer: Any) -> None:
    everything = await grow(checkpointer, 40)
    history = await checkpointer.timeline.state_history("t", 25)
    assert [item.config.checkpoint_id for item in history] == [f"c{step}" for step in range(39, 14, -1)]
    assert [len(item.values["messages"]) for item in history] == list(range(40, 15, -1))
    assert all(item.values["messages"] == everything[: item.metadata.step + 1] for item in history)
    assert history == [await checkpointer.timeline.get_state("t", item.config.checkpoint_id) for item in history]


async def test_state_history_goes_on_before_a_checkpoint(checkpointer: Any) -> None:
    await grow(checkpointer, 5)
    history = await checkpointer.timeline.state_history("t", 2, before="c3")
    assert [item.config.checkpoint_id for item in history] == ["c2", "c1"]


async def test_state_history_of_a_checkpoint_follows_its_own_branch(checkpointer: Any) -> None:
    await grow(checkpointer, 3)
    await checkpointer.put(
        Checkpoint(thread_id="t", checkpoint_id="branch", parent_checkpoint_id="c0", state={"messages": ["other"]})
    )
    timeline = checkpointer.timeline
    assert [item.config.checkpoint_id for item in await timeline.state_history("t", checkpoint_id="branch")] == [
        "branch",
        "c0",
    ]
    assert [item.config.checkpoint_id for item in await timeline.state_history("t")] == ["branch", "c2", "c1", "c0"]


async def test_snapshots_share_elements_but_not_lists(checkpointer: Any) -> None:
    await grow(checkpointer, 30)
    newer, older, *_ = await checkpointer.timeline.state_history("t")
    assert newer.values["messages"][0] is older.values["messages"][0]
    newer.values["messages"].append("mine")
    newer.values["plan"] = "mine"
    assert (len(older.values["messages"]), older.values["plan"]) == (29, "none")


async def test_interrupts_stand_in_the_snapshot(checkpointer: Any) -> None:
    asked = Interrupt(id="i", node="approve", payload={"question": "go on?"})
    await checkpointer.put(Checkpoint(thread_id="t", checkpoint_id="c", state={}, interrupts=[asked]))
    assert (await checkpointer.timeline.state_history("t"))[0].pending_interrupts == (asked,)
    assert (await checkpointer.timeline.get_state("t")).pending_interrupts == (asked,)


@pytest.mark.parametrize("state", [[], [1, 2], 7, None, {}, "text", {str(number): number for number in range(100)}])
async def test_a_state_of_any_shape_comes_back_in_a_history(checkpointer: Any, state: Any) -> None:
    await checkpointer.put(Checkpoint(thread_id="t", state=state))
    [found] = await checkpointer.timeline.state_history("t")
    assert found.values == state
    assert type(found.values) is type(state)


class Draft(BaseModel):
    title: str
    lines: list[str]


async def test_a_history_reads_states_as_the_state_type(opener: Any) -> None:
    async with opener(state_type=Draft) as checkpointer:
        await checkpointer.put(Checkpoint(thread_id="t", state=Draft(title="a", lines=["x" * 300])))
        [found] = await checkpointer.timeline.state_history("t")
        assert found.values == Draft(title="a", lines=["x" * 300])


async def test_as_of_gives_the_state_of_an_instant_itself_included(checkpointer: Any) -> None:
    await grow(checkpointer, 3)
    moments = [item.created_at for item in (await checkpointer.list("t", newest_first=False)).items]
    timeline = checkpointer.timeline
    assert (await timeline.as_of("t", moments[1])).config.checkpoint_id == "c1"
    assert (await timeline.as_of("t", moments[2] + timedelta(days=1))).config.checkpoint_id == "c2"
    assert await timeline.as_of("t", moments[0] - timedelta(microseconds=1)) is None


async def test_as_of_needs_a_time_zone(checkpointer: Any) -> None:
    with pytest.raises(InvalidInput, match="time zone"):
        await checkpointer.timeline.as_of("t", datetime(2026, 1, 1))
    with pytest.raises(InvalidInput, match="must be an instant"):
        await checkpointer.timeline.as_of("t", "2026-01-01")


async def test_at_step_gives_the_newest_of_that_step_in_its_namespace(checkpointer: Any) -> None:
    await grow(checkpointer, 3)
    for name, namespace in (("again", ()), ("child", ("child",))):
        await checkpointer.put(
            Checkpoint(thread_id="t", checkpoint_id=name, namespace=namespace, state=name, metadata={"step": 1})
        )
    timeline = checkpointer.timeline
    assert (await timeline.at_step("t", 1)).values == "again"
    assert (await timeline.at_step("t", 1, namespace=["child"])).values == "child"
    assert (await timeline.at_step("t", 2)).config.checkpoint_id == "c2"


async def test_a_history_begins_at_the_named_checkpoint_and_stays_in_its_namespace(checkpointer: Any) -> None:
    await grow(checkpointer, 4, plan=lambda step: step)
    for name, parent in (("c1", None), ("c2", "c1")):
        await checkpointer.put(
            Checkpoint(
                thread_id="t",
                checkpoint_id=name,
                parent_checkpoint_id=parent,
                namespace=["child"],
                state={"plan": f"child {name}"},
            )
        )
    timeline = checkpointer.timeline
    assert [found.value for found in await timeline.channel_history("t", "plan", checkpoint_id="c1")] == [1, 0]
    inside = ["child c2", "child c1"]
    assert [found.value for found in await timeline.channel_history("t", "plan", namespace=["child"])] == inside
    assert [found.values["plan"] for found in await timeline.state_history("t", namespace=["child"])] == inside


async def test_channel_history_names_the_checkpoint_that_brought_each_value(checkpointer: Any) -> None:
    await grow(checkpointer, 6, plan=lambda step: ["search", "answer"][: step // 2])
    found = await checkpointer.timeline.channel_history("t", "plan")
    assert [(item.value, item.checkpoint.checkpoint_id) for item in found] == [
        (["search", "answer"], "c4"),
        (["search"], "c2"),
        ([], "c0"),
    ]


async def test_channel_history_gives_at_most_limit_values(checkpointer: Any) -> None:
    everything = await grow(checkpointer, 6)
    found = await checkpointer.timeline.channel_history("t", "messages", 2)
    assert [(item.value, item.checkpoint.checkpoint_id) for item in found] == [
        (everything, "c5"),
        (everything[:5], "c4"),
    ]


async def test_channel_history_counts_a_channel_that_comes_back_again(checkpointer: Any) -> None:
    for number, state in enumerate([{"plan": "a"}, {}, {"plan": "a"}, {"plan": "a", "other": 1}]):
        await checkpointer.put(
            Checkpoint(
                thread_id="t",
                checkpoint_id=f"c{number}",
                parent_checkpoint_id=f"c{number - 1}" if number else None,
                state=state,
            )
        )
    found = await checkpointer.timeline.channel_history("t", "plan")
    assert [(item.value, item.checkpoint.checkpoint_id) for item in found] == [("a", "c2"), ("a", "c0")]


async def test_channel_history_sees_equal_values_that_are_stored_twice_as_one(checkpointer: Any) -> None:
    body = ["x" * 400, "y" * 400]
    for number, (parent, state) in enumerate([(None, {"a": body}), ("c0", {"a": 1}), ("c1", {"a": body})]):
        await checkpointer.put(
            Checkpoint(thread_id="t", checkpoint_id=f"c{number}", parent_checkpoint_id=parent, state=state)
        )
    await checkpointer.delete_checkpoints("t", ["c1"])
    found = await checkpointer.timeline.channel_history("t", "a")
    assert [(item.value, item.checkpoint.checkpoint_id) for item in found] == [(body, "c0")]


async def test_channel_history_looks_past_equal_values_for_as_many_as_were_asked_for(
    checkpointer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clew.repository.timeline.snapshots._BATCH", 2)  # or it takes a lineage of thousands
    body = ["x" * 400, "y" * 400]
    states: list[Any] = ["first", body, 1, body, 2, body, 3, body]
    for number, value in enumerate(states):
        parent = f"c{number - 1}" if number else None
        await checkpointer.put(
            Checkpoint(thread_id="t", checkpoint_id=f"c{number}", parent_checkpoint_id=parent, state={"a": value})
        )
    await checkpointer.delete_checkpoints("t", ["c2", "c4", "c6"])
    for limit, expected in ((1, ["c1"]), (2, ["c1", "c0"]), (3, ["c1", "c0"])):
        found = await checkpointer.timeline.channel_history("t", "a", limit=limit)
        assert [item.checkpoint.checkpoint_id for item in found] == expected


async def test_channel_history_walks_a_long_lineage(checkpointer: Any) -> None:
    for number in range(520):
        await checkpointer.put(
            Checkpoint(
                thread_id="t",
                checkpoint_id=f"c{number}",
                parent_checkpoint_id=f"c{number - 1}" if number else None,
                state={"plan": number // 260},
            )
        )
    found = await checkpointer.timeline.channel_history("t", "plan")
    assert [(item.value, item.checkpoint.checkpoint_id) for item in found] == [(1, "c260"), (0, "c0")]


async def test_a_resume_point_says_which_activations_are_still_to_run(checkpointer: Any) -> None:
    pending = [
        PendingActivation(node="search", send_arg=1, task_id="done"),
        PendingActivation(node="search", send_arg=2, task_id="failed"),
        PendingActivation(node="search", send_arg=3, task_id="open"),
        PendingActivation(node="answer"),
    ]
    config = await checkpointer.put(
        Checkpoint(thread_id="t", checkpoint_id="c", state={"a": 1}, pending_activations=pending)
    )
    writes = [
        PendingWrite(node="search", payload="found", task_id="done", idx=0, channel="results"),
        PendingWrite(node="search", payload="timeout", task_id="failed", idx=-2),
        PendingWrite(node="answer", payload="?", task_id="", idx=0),
    ]
    await checkpointer.put_writes(config, writes)
    point = await checkpointer.timeline.resume_point(CheckpointConfig.latest("t"))
    assert point.snapshot.values == {"a": 1}
    assert point.pending_writes == tuple(writes)
    assert point.still_to_run == tuple(pending[1:])


async def test_a_resume_point_without_activations_takes_the_next_nodes(checkpointer: Any) -> None:
    await checkpointer.put(Checkpoint(thread_id="t", state={}, next_nodes=["a", "b"]))
    point = await checkpointer.timeline.resume_point(CheckpointConfig.latest("t"))
    assert [item.node for item in point.still_to_run] == ["a", "b"]
    await checkpointer.put(Checkpoint(thread_id="t", state={}, next_nodes=["a", "b"], pending_activations=[]))
    assert (await checkpointer.timeline.resume_point(CheckpointConfig.latest("t"))).still_to_run == ()


@pytest.mark.parametrize("limit", [0, -1, 10_001, True])
async def test_a_limit_out_of_range_is_refused(checkpointer: Any, limit: Any) -> None:
    for call in (
        lambda: checkpointer.timeline.state_history("t", limit),
        lambda: checkpointer.timeline.channel_history("t", "a", limit),
        lambda: checkpointer.timeline.ancestors(CheckpointConfig.latest("t"), limit),
    ):
        with pytest.raises(InvalidInput, match="limit"):
            await call()


async def test_what_cannot_be_asked_for_is_refused_by_name(checkpointer: Any) -> None:
    timeline = checkpointer.timeline
    for call, named in (
        (lambda: timeline.at_step("t", True), "step"),
        (lambda: timeline.at_step("t", 2**63), "step"),
        (lambda: timeline.state_history("t", before="c1", checkpoint_id="c2"), "before"),
        (lambda: timeline.as_of("t", datetime.now(UTC), namespace="child"), "namespace"),
        (lambda: timeline.get_state("t", namespace="child"), "namespace"),
        (lambda: timeline.get_state(""), "thread_id"),
    ):
        with pytest.raises(InvalidInput, match=named):
            await call()


async def test_channel_history_ends_at_a_cycle(checkpointer: Any) -> None:
    await grow(checkpointer, 3, plan=lambda step: step)
    await checkpointer.put(Checkpoint(thread_id="t", checkpoint_id="c0", parent_checkpoint_id="c2", state={"plan": 9}))
    found = await checkpointer.timeline.channel_history("t", "plan")
    assert [(item.value, item.checkpoint.checkpoint_id) for item in found] == [(9, "c0"), (2, "c2"), (1, "c1")]
