"""Putting and getting graph checkpoints: what is stored under which id, and what comes back."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pydantic
import pytest

import clew
from clew import BarrierArrivals, Checkpoint, CheckpointConfig, Interrupt, PendingActivation, PendingWrite

from probe import Probe


def at(checkpoint_id: str | None = None, thread_id: str = "t", namespace: tuple[str, ...] = ()) -> CheckpointConfig:
    return CheckpointConfig(thread_id=thread_id, checkpoint_id=checkpoint_id, namespace=namespace)


def made(checkpoint_id: str, state: Any = None, parent: str | None = None, **fields: Any) -> Checkpoint[Any]:
    given = {"thread_id": "t", "state": state, "parent_checkpoint_id": parent, **fields}
    return Checkpoint(checkpoint_id=checkpoint_id, **given)


async def latest(checkpointer: Any, namespace: tuple[str, ...] = ()) -> Any:
    return await checkpointer.get(at(namespace=namespace))


async def listed(checkpointer: Any, thread_id: str = "t", **filters: Any) -> list[str]:
    return [item.checkpoint_id for item in (await checkpointer.list(thread_id, **filters)).items]


async def test_the_latest_is_the_last_that_was_put(checkpointer: Any) -> None:
    await checkpointer.put(made("c1", {"n": 1}))
    await checkpointer.put(made("c2", {"n": 2}, "c1"))
    assert (await latest(checkpointer)).checkpoint_id == "c2"
    assert (await latest(checkpointer)).state == {"n": 2}


async def test_put_returns_the_address_of_what_it_stored(checkpointer: Any) -> None:
    config = await checkpointer.put(made("c1", {}, namespace=("child", "a")))
    assert config == CheckpointConfig(thread_id="t", checkpoint_id="c1", namespace=("child", "a"))


async def test_a_checkpoint_without_an_id_gets_one(checkpointer: Any) -> None:
    config = await checkpointer.put(Checkpoint(thread_id="t", state=1))
    assert len(config.checkpoint_id) == 26
    assert (await checkpointer.get(config)).state == 1


@pytest.mark.invariant(1)
async def test_every_field_comes_back_as_it_was_put(checkpointer: Any) -> None:
    given = Checkpoint(
        thread_id="t",
        checkpoint_id="c2",
        run_id="r1",
        parent_checkpoint_id="c1",
        namespace=("outer", "inner"),
        state={"messages": ["a", "b"], "plan": None},
        next_nodes=("tools", "model"),
        completed_tasks=("task-1", "task-2"),
        pending_writes=(PendingWrite(node="n", payload={"x": 1}),),
        interrupts=(Interrupt(id="i1", node="tools", payload={"ask": ["y", "n"]}),),
        metadata={"source": "update", "step": 7, "who": "me"},
        pending_activations=(PendingActivation(node="n", send_arg=[1, 2, 3], task_id="x"),),
        barrier_arrivals=(BarrierArrivals(node="join", arrived=("a", "b")),),
    )
    await checkpointer.put(made("c1", 0, namespace=("outer", "inner")))
    await checkpointer.put(given)
    found = await checkpointer.get_tuple(at("c2", namespace=("outer", "inner")))
    assert found.checkpoint == given
    assert found.config == at("c2", namespace=("outer", "inner"))
    assert found.parent_config == at("c1", namespace=("outer", "inner"))
    assert found.metadata.created_at <= datetime.now(UTC)
    assert found.metadata == given.to_metadata().model_copy(update={"created_at": found.metadata.created_at})


async def test_a_root_has_no_parent(checkpointer: Any) -> None:
    await checkpointer.put(made("c1"))
    assert (await checkpointer.get_tuple(at("c1"))).parent_config is None


async def test_the_order_and_the_arguments_of_activations_stay(checkpointer: Any) -> None:
    activations = (
        PendingActivation(node="b", send_arg=[1, 2, 3]),
        PendingActivation(node="a", send_arg=None, task_id="t9"),
        PendingActivation(node="b", send_arg={"k": (1,)}),
    )
    await checkpointer.put(made("c1", pending_activations=activations))
    found = (await checkpointer.get(at("c1"))).pending_activations
    assert found == activations
    assert found[0].send_arg == [1, 2, 3]
    assert type(found[2].send_arg["k"]) is tuple


async def test_no_activations_and_an_empty_tuple_of_them_are_two_things(checkpointer: Any) -> None:
    await checkpointer.put(made("c1", pending_activations=None))
    await checkpointer.put(made("c2", pending_activations=()))
    assert (await checkpointer.get(at("c1"))).pending_activations is None
    assert (await checkpointer.get(at("c2"))).pending_activations == ()


async def test_json_without_the_later_fields_is_stored_with_their_defaults(checkpointer: Any) -> None:
    text = """{"thread_id": "t", "checkpoint_id": "c1", "run_id": null, "parent_checkpoint_id": null, "namespace": [],
        "state": {"n": 1}, "next_nodes": ["a"], "completed_tasks": [], "interrupts": [], "metadata": null,
        "pending_writes": [{"node": "a", "payload": 1}]}"""
    await checkpointer.put(Checkpoint.model_validate_json(text))
    found = await checkpointer.get(at("c1"))
    assert found.pending_activations is None
    assert found.barrier_arrivals == ()
    assert found.pending_writes == (PendingWrite(node="a", payload=1, task_id=""),)
    assert found.metadata is None


async def test_the_same_id_with_another_state_replaces_and_becomes_the_latest(checkpointer: Any) -> None:
    await checkpointer.put(made("c1", 1))
    await checkpointer.put(made("c2", 2, "c1"))
    await checkpointer.put(made("c1", 9))
    assert (await checkpointer.get(at("c1"))).state == 9
    assert (await latest(checkpointer)).checkpoint_id == "c1"
    assert await listed(checkpointer) == ["c1", "c2"]


@pytest.mark.invariant(4)
async def test_replacing_keeps_the_ledger_and_the_children(checkpointer: Any) -> None:
    await checkpointer.put(made("c1", 1, pending_writes=[PendingWrite(node="n", payload="carried")]))
    await checkpointer.put(made("c2", 2, "c1"))
    await checkpointer.put_writes(at("c1"), [PendingWrite(node="n", payload="later", task_id="x")])
    await checkpointer.put(made("c1", 9))
    found = await checkpointer.get_tuple(at("c1"))
    assert [write.payload for write in found.pending_writes] == ["carried", "later"]
    assert found.checkpoint.pending_writes == ()
    assert (await checkpointer.get_tuple(at("c2"))).parent_config == at("c1")


@pytest.mark.invariant(3)
async def test_an_equal_put_changes_nothing_the_sequence_included(checkpointer: Any, probe: Probe) -> None:
    await checkpointer.put(made("c1", {"n": [1]}))
    await checkpointer.put(made("c2", {"n": [1, 2]}, "c1"))
    before, seqs = await checkpointer.list("t"), probe.seqs()
    await checkpointer.put(made("c1", {"n": [1]}))
    await checkpointer.put(made("c2", {"n": [1, 2]}, "c1"))
    assert await checkpointer.list("t") == before
    assert probe.seqs() == seqs == [1, 2]
    await checkpointer.put(made("c3", {"n": [1, 2, 3]}, "c2"))
    assert probe.seqs() == [1, 2, 3]


async def test_an_equal_put_does_not_move_the_latest(checkpointer: Any) -> None:
    await checkpointer.put(made("c1", 1))
    await checkpointer.put(made("c2", 2, "c1"))
    await checkpointer.put(made("c1", 1))
    assert (await latest(checkpointer)).checkpoint_id == "c2"


@pytest.mark.parametrize(
    "changed",
    [
        {"state": True},
        {"state": 1.0},
        {"run_id": "r2"},
        {"next_nodes": ("b",)},
        {"completed_tasks": ("x",)},
        {"interrupts": (Interrupt(id="i", node="n", payload=0),)},
        {"metadata": {"step": 1}},
        {"pending_activations": ()},
        {"barrier_arrivals": (BarrierArrivals(node="j", arrived=("a",)),)},
        {"pending_writes": (PendingWrite(node="n", payload=1),)},
        {"parent_checkpoint_id": "c0"},
    ],
    ids=lambda changed: next(iter(changed)),
)
async def test_a_put_that_differs_in_one_field_is_not_taken_for_a_repetition(
    checkpointer: Any, changed: dict[str, Any]
) -> None:
    await checkpointer.put(made("c0", 0))
    given = made("c1", 1, run_id="r1", next_nodes=("a",))
    await checkpointer.put(given)
    await checkpointer.put(made("c2", 2))
    await checkpointer.put(given.model_copy(update=changed))
    assert (await latest(checkpointer)).checkpoint_id == "c1"
    assert await latest(checkpointer) == given.model_copy(update=changed)


async def test_a_repeated_put_succeeds_after_the_head_has_moved(checkpointer: Any, probe: Probe) -> None:
    await checkpointer.put(made("c1", 1), expected_head=None)
    await checkpointer.put(made("c2", 2, "c1"), expected_head="c1")
    await checkpointer.put(made("c3", 3, "c2"), expected_head="c2")
    await checkpointer.put(made("c2", 2, "c1"), expected_head="c1")
    assert (await latest(checkpointer)).checkpoint_id == "c3"
    assert probe.seqs() == [1, 2, 3]


async def test_a_repeated_put_succeeds_although_its_parent_was_deleted(checkpointer: Any) -> None:
    await checkpointer.put(made("c1", 1))
    await checkpointer.put(made("c2", 2, "c1"))
    await checkpointer.put(made("c3", 3, "c2"))
    await checkpointer.delete_checkpoints("t", ["c1"])
    await checkpointer.put(made("c2", 2, "c1"))
    assert (await latest(checkpointer)).checkpoint_id == "c3"
    assert (await checkpointer.get(at("c2"))).parent_checkpoint_id is None


async def test_the_wrong_head_is_refused_and_nothing_is_stored(checkpointer: Any) -> None:
    await checkpointer.put(made("c1", 1))
    with pytest.raises(clew.StaleHead) as refused:
        await checkpointer.put(made("c2", 2), expected_head="c0")
    assert (refused.value.expected, refused.value.actual) == ("c0", "c1")
    with pytest.raises(clew.StaleHead) as refused:
        await checkpointer.put(made("c2", 2), expected_head=None)
    assert (refused.value.expected, refused.value.actual) == (None, "c1")
    assert await listed(checkpointer) == ["c1"]
    await checkpointer.put(made("c2", 2), expected_head="c1")
    assert await listed(checkpointer) == ["c2", "c1"]


async def test_the_head_is_that_of_the_namespace(checkpointer: Any) -> None:
    await checkpointer.put(made("c1", 1))
    await checkpointer.put(made("d1", 1, namespace=("child",)), expected_head=None)
    await checkpointer.put(made("c2", 2), expected_head="c1")
    with pytest.raises(clew.StaleHead):
        await checkpointer.put(made("c3", 3), expected_head="d1")


async def test_an_empty_thread_expects_no_head(checkpointer: Any) -> None:
    with pytest.raises(clew.StaleHead) as refused:
        await checkpointer.put(made("c1", 1), expected_head="c0")
    assert refused.value.actual is None
    assert await checkpointer.get_thread("t") is None
    await checkpointer.put(made("c1", 1), expected_head=None)


async def test_an_unknown_thread_and_an_unknown_id_have_nothing(checkpointer: Any) -> None:
    assert await checkpointer.get(at()) is None
    assert await checkpointer.get_tuple(at("c1")) is None
    assert await checkpointer.get_writes(at("c1")) == []
    assert await checkpointer.history(at()) == []
    assert (await checkpointer.list("t")).items == ()
    assert (await checkpointer.list("t")).next_cursor is None
    assert await checkpointer.get_thread("t") is None
    await checkpointer.put(made("c1"))
    assert await checkpointer.get(at("c2")) is None
    assert await checkpointer.get(at("c1", namespace=("child",))) is None
    assert await checkpointer.get(at(namespace=("child",))) is None


async def test_the_latest_of_a_namespace_is_its_own(checkpointer: Any) -> None:
    await checkpointer.put(made("root1", 1))
    await checkpointer.put(made("child1", 2, namespace=("child",)))
    assert (await latest(checkpointer)).checkpoint_id == "root1"
    assert (await latest(checkpointer, ("child",))).checkpoint_id == "child1"


@pytest.mark.invariant(7)
async def test_one_id_in_two_namespaces_is_two_checkpoints(checkpointer: Any) -> None:
    await checkpointer.put(made("c1", "root"))
    await checkpointer.put(made("c1", "child", namespace=("child",)))
    await checkpointer.put(made("c1", "deeper", namespace=("child", "")))
    assert (await checkpointer.get(at("c1"))).state == "root"
    assert (await checkpointer.get(at("c1", namespace=("child",)))).state == "child"
    assert (await checkpointer.get(at("c1", namespace=("child", "")))).state == "deeper"


@pytest.mark.invariant(5)
@pytest.mark.parametrize("ids", [("2", "10"), ("b", "a"), ("é", "e"), ("Z", "a", "B")])
async def test_the_latest_is_the_last_committed_whatever_the_ids_say(checkpointer: Any, ids: tuple[str, ...]) -> None:
    parent = None
    for checkpoint_id in ids:
        await checkpointer.put(made(checkpoint_id, checkpoint_id, parent))
        parent = checkpoint_id
    assert (await latest(checkpointer)).checkpoint_id == ids[-1]
    assert await listed(checkpointer) == list(reversed(ids))
    assert [item.checkpoint_id for item in await checkpointer.history(at())] == list(reversed(ids))


@pytest.mark.invariant(6)
async def test_created_at_never_falls(checkpointer: Any) -> None:
    for number in range(5):
        await checkpointer.put(made(f"c{number}", number))
    moments = [item.created_at for item in (await checkpointer.list("t", newest_first=False)).items]
    assert moments == sorted(moments)
    assert all(moment.tzinfo is not None and moment.utcoffset().total_seconds() == 0 for moment in moments)


async def test_eight_concurrent_puts_to_one_thread_are_all_stored(opener: Any, probe: Probe) -> None:
    async with opener() as first, opener() as second:
        await first.put(made("c0", {"n": ["x" * 300]}))
        puts = [
            (first, second)[number % 2].put(made(f"c{number}", {"n": ["x" * 300, str(number) * 300]}, "c0"))
            for number in range(1, 9)
        ]
        await asyncio.gather(*puts)
        for number in range(1, 9):
            assert (await first.get(at(f"c{number}"))).state == {"n": ["x" * 300, str(number) * 300]}
    assert probe.seqs() == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert probe.problems() == []


async def test_eight_concurrent_first_puts_create_one_thread(opener: Any, probe: Probe) -> None:
    async with opener() as first, opener() as second:
        await asyncio.gather(*[(first, second)[n % 2].put(made(f"c{n}", n)) for n in range(8)])
        assert (await first.get_thread("t")).checkpoint_count == 8
    assert probe.count("threads") == 1
    assert probe.seqs() == [1, 2, 3, 4, 5, 6, 7, 8]


async def test_a_checkpoint_that_is_its_own_parent_is_refused(checkpointer: Any) -> None:
    with pytest.raises(clew.InvalidInput, match="its parent"):
        await checkpointer.put(made("c1", 1, "c1"))
    assert await checkpointer.get_thread("t") is None


async def test_a_parent_may_be_missing_in_a_thread_that_exists(checkpointer: Any) -> None:
    await checkpointer.put(made("c1", {"l": ["x" * 300]}))
    await checkpointer.put(made("c3", {"l": ["x" * 300, "y"]}, "c2"))
    assert (await checkpointer.get(at("c3"))).state == {"l": ["x" * 300, "y"]}
    assert (await checkpointer.get_tuple(at("c3"))).parent_config == at("c2")
    assert [item.checkpoint_id for item in await checkpointer.history(at())] == ["c3"]


async def test_a_put_that_names_a_parent_does_not_create_a_thread(checkpointer: Any, probe: Probe) -> None:
    with pytest.raises(clew.NotFound, match="'c0'"):
        await checkpointer.put(made("c1", 1, "c0"))
    assert await checkpointer.get_thread("t") is None
    assert probe.count("threads") == 0
    await checkpointer.put(made("c1", 1))
    assert await listed(checkpointer) == ["c1"]


async def test_a_state_that_was_not_loaded_cannot_be_put_back(checkpointer: Any) -> None:
    await checkpointer.put(made("c1", {"n": 1}))
    found = (await checkpointer.get_tuple(at("c1"), load_state=False)).checkpoint
    assert found.state is clew.NOT_LOADED
    with pytest.raises(clew.InvalidInput, match="load_state"):
        await checkpointer.put(found)
    assert (await checkpointer.get(at("c1"))).state == {"n": 1}


async def test_without_its_state_a_checkpoint_has_everything_else(checkpointer: Any) -> None:
    given = made("c1", {"n": 1}, next_nodes=("a",), pending_writes=[PendingWrite(node="n", payload=1)], metadata=[1])
    await checkpointer.put(given)
    found = await checkpointer.get_tuple(at("c1"), load_state=False)
    assert found.checkpoint.model_copy(update={"state": {"n": 1}}) == given
    assert found.pending_writes == given.pending_writes


async def test_only_the_named_channels_are_loaded(checkpointer: Any) -> None:
    await checkpointer.put(made("c1", {"messages": ["m" * 400] * 3, "plan": {"a": 1}, "n": 3}))
    assert (await checkpointer.get_tuple(at("c1"), channels=["n", "messages", "nope"])).checkpoint.state == {
        "messages": ["m" * 400] * 3,
        "n": 3,
    }
    assert (await checkpointer.get_tuple(at("c1"), channels=[])).checkpoint.state == {}
    with pytest.raises(clew.InvalidInput, match="channels"):
        await checkpointer.get_tuple(at("c1"), channels="n")


async def test_channels_of_a_table_are_its_keys(checkpointer: Any) -> None:
    state = {f"key-{number}": number for number in range(100)}
    await checkpointer.put(made("c1", state))
    assert (await checkpointer.get_tuple(at("c1"), channels=["key-7", "key-99"])).checkpoint.state == {
        "key-7": 7,
        "key-99": 99,
    }


async def test_channels_of_a_model_that_is_stored_as_a_table_are_a_dict_too(opener: Any) -> None:
    fields: dict[str, Any] = {f"field_{number}": (int, number) for number in range(70)}
    model = pydantic.create_model("Wide", **fields)
    async with opener(state_type=model) as checkpointer:
        await checkpointer.put(made("c1", model()))
        for channels in (["field_7", "nope"], iter(["nope", "field_7"])):
            assert (await checkpointer.get_tuple(at("c1"), channels=channels)).checkpoint.state == {"field_7": 7}
        assert (await checkpointer.get(at("c1"))).state == model()


async def test_a_checkpoint_that_was_read_can_be_put_into_another_thread(checkpointer: Any) -> None:
    await checkpointer.put(made("c1", {"n": ["x" * 400]}, pending_writes=[PendingWrite(node="n", payload=1)]))
    found = await checkpointer.get(at("c1"))
    await checkpointer.put(found.model_copy(update={"thread_id": "u"}))
    assert (await checkpointer.get(at("c1", "u"))).state == {"n": ["x" * 400]}
    await checkpointer.put(found)
    assert (await checkpointer.get_thread("t")).checkpoint_count == 1


async def test_threads_do_not_see_each_other(checkpointer: Any) -> None:
    await checkpointer.put(made("c1", 1))
    await checkpointer.put(made("c1", 2, thread_id="u"))
    assert (await checkpointer.get(at("c1"))).state == 1
    assert (await checkpointer.get(at("c1", "u"))).state == 2
    assert await listed(checkpointer) == ["c1"]


async def test_something_else_than_a_checkpoint_is_refused(checkpointer: Any) -> None:
    with pytest.raises(clew.InvalidInput, match="dict"):
        await checkpointer.put({"thread_id": "t", "state": 1})


async def test_after_an_error_the_checkpointer_still_works(checkpointer: Any) -> None:
    await checkpointer.put(made("c1", 1))
    for _ in range(25):  # more often than the pool has connections
        with pytest.raises(clew.Unserializable):
            await checkpointer.put(made("c2", object()))
        with pytest.raises(clew.StaleHead):
            await checkpointer.put(made("c2", 2), expected_head="nope")
    await checkpointer.put(made("c2", 2, "c1"))
    assert await listed(checkpointer) == ["c2", "c1"]


async def test_a_sign_of_life_is_given(checkpointer: Any) -> None:
    assert await checkpointer.ping() is None
