"""Changing a state by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel

from clew import Checkpoint, CheckpointConfig, InvalidInput, NotFound, StateUpdate, Unserializable
from clew.records import BarrierArrivals, Interrupt, PendingActivation, PendingWrite

LATEST = CheckpointConfig.latest("t")
BASE = Checkpoint(
    thread_id="t",
    checkpoint_id="c",
    run_id="run",
    state={"plan": "a", "count": 1},
    next_nodes=["model", "tools"],
    completed_tasks=["input"],
    pending_writes=[PendingWrite(node="model", payload=1, task_id="a")],
    interrupts=[Interrupt(id="i", node="model", payload=1)],
    metadata={"source": "loop", "step": 7, "user": "ada"},
    pending_activations=[
        PendingActivation(node="model", task_id="1"),
        PendingActivation(node="tools", task_id="2"),
        PendingActivation(node="model", task_id="3"),
    ],
    barrier_arrivals=[BarrierArrivals(node="join", arrived=["left"])],
)


async def test_an_update_is_a_child_of_what_it_changes(checkpointer: Any) -> None:
    await checkpointer.put(BASE)
    made = await checkpointer.timeline.update_state(LATEST, {"plan": "b", "new": [1]})
    found = await checkpointer.get_tuple(made)
    assert found.checkpoint == BASE.model_copy(
        update={
            "checkpoint_id": made.checkpoint_id,
            "parent_checkpoint_id": "c",
            "state": {"plan": "b", "count": 1, "new": [1]},
            "pending_writes": (),
            "interrupts": (),
            "metadata": {"source": "update", "step": 8, "user": "ada"},
        }
    )
    assert (found.metadata.source.value, found.metadata.step, found.pending_writes) == ("update", 8, ())
    assert (await checkpointer.timeline.get_state("t")).config == made


async def test_an_update_leaves_its_base_as_it_was(checkpointer: Any) -> None:
    before = await checkpointer.get_tuple(await checkpointer.put(BASE))
    await checkpointer.timeline.update_state(LATEST, {"plan": "b"})
    assert await checkpointer.get_tuple(before.config) == before


async def test_an_update_as_a_node_of_what_has_no_activations_has_none_either(checkpointer: Any) -> None:
    await checkpointer.put(Checkpoint(thread_id="t", checkpoint_id="c", state={"plan": "a"}))
    found = await checkpointer.get(await checkpointer.timeline.update_state(LATEST, {"plan": "b"}, as_node="model"))
    assert (found.state, found.pending_activations) == ({"plan": "b"}, None)
    assert found.metadata == {"source": "update", "step": 1, "as_node": "model"}


async def test_an_update_as_a_node_takes_its_activations_away(checkpointer: Any) -> None:
    await checkpointer.put(BASE)
    made = await checkpointer.timeline.update_state(LATEST, {}, as_node="model", next_nodes=["tools"])
    found = (await checkpointer.get_tuple(made)).checkpoint
    assert found.pending_activations == (PendingActivation(node="tools", task_id="2"),)
    assert found.next_nodes == ("tools",)
    assert found.metadata["as_node"] == "model"


async def test_no_next_node_is_not_the_same_as_the_bases_next_nodes(checkpointer: Any) -> None:
    await checkpointer.put(BASE)
    made = await checkpointer.timeline.update_state(LATEST, {}, next_nodes=[])
    assert (await checkpointer.get(made)).next_nodes == ()


@pytest.mark.parametrize("options", [{"next_nodes": "model"}, {"next_nodes": [5]}, {"as_node": 5}], ids=str)
async def test_nodes_that_are_none_are_refused(checkpointer: Any, options: dict[str, Any]) -> None:
    await checkpointer.put(BASE)
    with pytest.raises(InvalidInput, match="next_nodes"):
        await checkpointer.timeline.update_state(LATEST, {}, **options)


async def test_a_node_that_no_column_can_hold_is_refused(checkpointer: Any) -> None:
    await checkpointer.put(BASE)
    with pytest.raises(InvalidInput, match="node must not hold a NUL"):
        await checkpointer.timeline.update_state(LATEST, {}, as_node="a\0b")


async def test_a_reducer_makes_the_new_state(checkpointer: Any) -> None:
    await checkpointer.put(BASE)
    made = await checkpointer.timeline.update_state(
        LATEST, 5, reducer=lambda state, update: {**state, "count": state["count"] + update}
    )
    assert (await checkpointer.get(made)).state == {"plan": "a", "count": 6}


async def test_an_old_checkpoint_can_be_updated(checkpointer: Any) -> None:
    await checkpointer.put(BASE)
    await checkpointer.put(BASE.model_copy(update={"checkpoint_id": "d", "parent_checkpoint_id": "c", "state": 1}))
    made = await checkpointer.timeline.update_state(CheckpointConfig(thread_id="t", checkpoint_id="c"), {"plan": "b"})
    assert [item.checkpoint_id for item in await checkpointer.history(made)] == [made.checkpoint_id, "c"]
    assert {item.checkpoint_id for item in await checkpointer.timeline.heads("t")} == {made.checkpoint_id, "d"}


async def test_a_bulk_update_is_a_chain(checkpointer: Any) -> None:
    await checkpointer.put(BASE)
    updates = [
        StateUpdate(update={"count": 2}, as_node="model"),
        StateUpdate(update={"plan": "z"}),
        StateUpdate(update={"count": 3}, next_nodes=["end"]),
    ]
    made = await checkpointer.timeline.bulk_update_state(LATEST, updates)
    states = [item.values for item in reversed(await checkpointer.timeline.state_history("t"))]
    assert states == [
        {"plan": "a", "count": 1}, {"plan": "a", "count": 2}, {"plan": "z", "count": 2}, {"plan": "z", "count": 3},
    ]  # fmt: skip
    assert [item.checkpoint_id for item in await checkpointer.history(made[-1])] == [
        *(config.checkpoint_id for config in reversed(made)),
        "c",
    ]
    records = [await checkpointer.get(config) for config in made]
    assert [record.metadata for record in records] == [
        {"source": "update", "step": 8, "user": "ada", "as_node": "model"},
        {"source": "update", "step": 9, "user": "ada"},
        {"source": "update", "step": 10, "user": "ada"},
    ]
    assert [record.next_nodes for record in records] == [("model", "tools"), ("model", "tools"), ("end",)]


@pytest.mark.invariant(41)
async def test_a_bulk_update_that_fails_stores_nothing(checkpointer: Any, probe: Any) -> None:
    await checkpointer.put(BASE)
    updates = [StateUpdate(update={"count": 2}), StateUpdate(update={"count": object()})]
    with pytest.raises(Unserializable, match=r"state\.count"):
        await checkpointer.timeline.bulk_update_state(LATEST, updates)
    assert len((await checkpointer.list("t")).items) == 1
    assert probe.problems() == []


async def test_the_reducer_of_a_bulk_update_makes_each_state_of_the_one_before(checkpointer: Any) -> None:
    await checkpointer.put(BASE)
    made = await checkpointer.timeline.bulk_update_state(
        LATEST,
        [StateUpdate(update=10), StateUpdate(update=100)],
        reducer=lambda state, number: {**state, "count": state["count"] + number},
    )
    assert [(await checkpointer.get(config)).state["count"] for config in made] == [11, 111]


async def test_an_empty_bulk_update_changes_nothing(checkpointer: Any) -> None:
    assert await checkpointer.timeline.bulk_update_state(LATEST, []) == []
    assert await checkpointer.get_thread("t") is None


async def test_a_bulk_update_takes_state_updates_only(checkpointer: Any) -> None:
    with pytest.raises(InvalidInput, match="StateUpdate"):
        await checkpointer.timeline.bulk_update_state(LATEST, [{"a": 1}])


async def test_the_error_of_a_reducer_is_the_callers(checkpointer: Any) -> None:
    await checkpointer.put(BASE)

    def failing(state: Any, update: Any) -> Any:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await checkpointer.timeline.update_state(LATEST, {}, reducer=failing)
    await checkpointer.put(Checkpoint(thread_id="t", state=1))


@pytest.mark.parametrize(("state", "update"), [([1], {"a": 1}), ({"a": 1}, [1]), (None, {}), ({}, None)])
async def test_what_is_no_mapping_needs_a_reducer(checkpointer: Any, state: Any, update: Any) -> None:
    await checkpointer.put(Checkpoint(thread_id="t", state=state))
    with pytest.raises(InvalidInput, match="reducer"):
        await checkpointer.timeline.update_state(LATEST, update)


async def test_what_is_not_there_cannot_be_updated(checkpointer: Any) -> None:
    await checkpointer.put(BASE)
    for config in (CheckpointConfig.latest("unknown"), CheckpointConfig(thread_id="t", checkpoint_id="gone")):
        with pytest.raises(NotFound):
            await checkpointer.timeline.update_state(config, {})


class Model(BaseModel):
    plan: str
    count: int = 0


@dataclass
class Plain:
    plan: str
    count: int = 0


@pytest.mark.parametrize("kind", [Model, Plain])
async def test_fields_of_a_model_are_updated_and_validated(opener: Any, kind: Any) -> None:
    async with opener(state_type=kind) as checkpointer:
        await checkpointer.put(Checkpoint(thread_id="t", state=kind(plan="a")))
        made = await checkpointer.timeline.update_state(LATEST, {"count": 2})
        assert (await checkpointer.get(made)).state == kind(plan="a", count=2)
        with pytest.raises(InvalidInput):
            await checkpointer.timeline.update_state(LATEST, {"unknown": 2})
