"""What differs between two checkpoints."""

from __future__ import annotations

from typing import Any

import pytest

from clew import Checkpoint, CheckpointConfig, NotFound


def message(number: int) -> dict[str, str]:
    return {"role": "user", "content": f"message {number} " * 4}


async def differences(checkpointer: Any, before: Any, after: Any) -> tuple[dict[str, str], list[Any]]:
    """What becomes of the channels, and the differences as plain tuples."""
    first = await checkpointer.put(Checkpoint(thread_id="t", state=before))
    second = await checkpointer.put(Checkpoint(thread_id="t", state=after))
    found = await checkpointer.timeline.diff(first, second)
    assert (found.before, found.after) == (first, second)
    return {name: change.value for name, change in found.channels.items()}, [
        (item.path, item.kind.value, item.before_position, item.after_position, item.before, item.after)
        for item in found.differences
    ]


async def test_equal_states_do_not_differ(checkpointer: Any) -> None:
    state = {"messages": [message(number) for number in range(20)], "plan": "a"}
    channels, found = await differences(checkpointer, state, state)
    assert (channels, found) == ({"messages": "unchanged", "plan": "unchanged"}, [])


async def test_channels_are_added_removed_and_changed(checkpointer: Any) -> None:
    channels, found = await differences(checkpointer, {"a": 1, "b": 2, "c": 3}, {"a": 1, "b": 2.0, "d": "x" * 300})
    assert channels == {"a": "unchanged", "b": "changed", "d": "added", "c": "removed"}
    assert found == [
        (("b",), "changed", None, None, 2, 2.0),
        (("d",), "added", None, None, None, "x" * 300),
        (("c",), "removed", None, None, 3, None),
    ]


async def test_true_is_not_one_in_a_diff(checkpointer: Any) -> None:
    _, found = await differences(checkpointer, {"a": 1}, {"a": True})
    assert found == [(("a",), "changed", None, None, 1, True)]
    assert found[0][5] is True


async def test_a_mapping_without_names_is_looked_into_as_one_with_names_is(checkpointer: Any) -> None:
    before = {"m": {1: {"x": 1, 2: "gone", "same": [0]}, 3: "a"}}
    after = {"m": {1: {"x": 5, "same": [0]}, 3: "a", 4: "come"}}
    _, found = await differences(checkpointer, before, after)
    assert found == [
        (("m", 1, "x"), "changed", None, None, 1, 5),
        (("m", 1, 2), "removed", None, None, "gone", None),
        (("m", 4), "added", None, None, None, "come"),
    ]


async def test_a_mapping_without_names_in_another_order_is_reordered(checkpointer: Any) -> None:
    _, found = await differences(checkpointer, {"m": {1: "a", 2: "b"}}, {"m": {2: "b", 1: "a"}})
    assert found == [(("m",), "reordered", None, None, None, None)]


async def test_an_appended_element_is_told_with_its_position(checkpointer: Any) -> None:
    before = [message(number) for number in range(30)]
    channels, found = await differences(checkpointer, {"m": before}, {"m": [*before, message(30), message(31)]})
    assert channels == {"m": "changed"}
    assert found == [
        (("m",), "appended", None, 30, None, message(30)),
        (("m",), "appended", None, 31, None, message(31)),
    ]


async def test_dropped_replaced_and_inserted_elements_are_told_with_their_positions(checkpointer: Any) -> None:
    before = [message(number) for number in range(30)]
    after = [*before[2:10], message(100), *before[11:20], message(101), *before[20:29], message(102)]
    _, found = await differences(checkpointer, {"m": before}, {"m": after})
    assert found == [
        (("m",), "dropped", 0, None, message(0), None),
        (("m",), "dropped", 1, None, message(1), None),
        (("m",), "replaced", 10, 8, message(10), message(100)),
        (("m",), "inserted", None, 18, None, message(101)),
        (("m",), "replaced", 29, 28, message(29), message(102)),
    ]


async def test_a_moved_block_is_dropped_in_one_place_and_inserted_in_the_other(checkpointer: Any) -> None:
    before = [message(number) for number in range(30)]
    _, found = await differences(checkpointer, {"m": before}, {"m": [*before[2:20], *before[:2], *before[20:]]})
    assert [item[1:4] for item in found] == [
        ("dropped", 0, None),
        ("dropped", 1, None),
        ("inserted", None, 18),
        ("inserted", None, 19),
    ]


async def test_a_short_list_that_grows_long_is_compared_by_elements(checkpointer: Any) -> None:
    before, after = ["a", "b"], ["a", *(str(number) * 40 for number in range(20))]
    _, found = await differences(checkpointer, {"m": before}, {"m": after})
    assert found[0] == (("m",), "replaced", 1, 1, "b", "0" * 40)
    assert [item[1:4] for item in found[1:]] == [("appended", None, position) for position in range(2, 21)]


async def test_nested_records_differ_by_path(checkpointer: Any) -> None:
    before = {"agent": {"memory": {"goal": "a", "notes": ["n" * 300]}, "name": "x"}}
    after = {"agent": {"memory": {"goal": "b", "notes": ["n" * 300, "m"]}, "name": "x"}}
    channels, found = await differences(checkpointer, before, after)
    assert channels == {"agent": "changed"}
    assert found == [
        (("agent", "memory", "goal"), "changed", None, None, "a", "b"),
        (("agent", "memory", "notes"), "appended", None, 1, None, "m"),
    ]


async def test_large_mappings_differ_by_key(checkpointer: Any) -> None:
    before = {f"file{number}": f"content {number}" * 5 for number in range(300)}
    after = {**before, "file7": "edited", "new": "file"}
    del after["file9"]
    _, found = await differences(checkpointer, {"files": before}, {"files": after})
    assert found == [
        (("files", "file7"), "changed", None, None, before["file7"], "edited"),
        (("files", "new"), "added", None, None, None, "file"),
        (("files", "file9"), "removed", None, None, before["file9"], None),
    ]


async def test_a_mapping_that_becomes_large_differs_by_key(checkpointer: Any) -> None:
    before = {f"file{number}": number for number in range(64)}
    _, found = await differences(checkpointer, {"files": before}, {"files": {**before, "new": 1}})
    assert found == [(("files", "new"), "added", None, None, None, 1)]


async def test_keys_in_another_order_are_reordered(checkpointer: Any) -> None:
    small, large = {"a": 1, "b": 2}, {str(number): number for number in range(100)}
    channels, found = await differences(
        checkpointer,
        {"small": small, "large": large},
        {"small": {"b": 2, "a": 1}, "large": dict(reversed(large.items()))},
    )
    assert channels == {"small": "changed", "large": "changed"}
    assert found == [
        (("small",), "reordered", None, None, None, None),
        (("large",), "reordered", None, None, None, None),
    ]


@pytest.mark.parametrize(("before", "after"), [(1, 2), (None, []), ("x" * 300, "y" * 300), ({}, [])])
async def test_a_state_that_is_no_mapping_differs_as_a_whole(checkpointer: Any, before: Any, after: Any) -> None:
    assert await differences(checkpointer, before, after) == ({}, [((), "changed", None, None, before, after)])


async def test_a_state_that_is_a_list_differs_by_elements(checkpointer: Any) -> None:
    before = [message(number) for number in range(10)]
    assert await differences(checkpointer, before, [*before, 1]) == ({}, [((), "appended", None, 10, None, 1)])


async def test_branches_are_compared_without_their_common_past(checkpointer: Any) -> None:
    past = [message(number) for number in range(50)]
    for name, parent, own in (("root", None, []), ("left", "root", ["l"]), ("right", "root", ["r1", "r2"])):
        await checkpointer.put(
            Checkpoint(thread_id="t", checkpoint_id=name, parent_checkpoint_id=parent, state={"m": [*past, *own]})
        )
    found = await checkpointer.timeline.diff(
        CheckpointConfig(thread_id="t", checkpoint_id="left"), CheckpointConfig(thread_id="t", checkpoint_id="right")
    )
    assert [(item.kind.value, item.before, item.after) for item in found.of("m")] == [
        ("replaced", "l", "r1"),
        ("appended", None, "r2"),
    ]


async def test_checkpoints_of_two_threads_are_compared_by_content(checkpointer: Any) -> None:
    past = [message(number) for number in range(50)]
    await checkpointer.put(Checkpoint(thread_id="t", state={"m": [*past, "same"]}))
    await checkpointer.timeline.fork(CheckpointConfig.latest("t"), "u")
    for thread, own in (("t", "mine"), ("u", "yours")):
        await checkpointer.put(Checkpoint(thread_id=thread, state={"m": [*past, "same", own]}))
    found = await checkpointer.timeline.diff(CheckpointConfig.latest("t"), CheckpointConfig.latest("u"))
    assert [(item.kind.value, item.before_position, item.before, item.after) for item in found.differences] == [
        ("replaced", 51, "mine", "yours")
    ]


async def test_a_diff_needs_both_checkpoints(checkpointer: Any) -> None:
    there = await checkpointer.put(Checkpoint(thread_id="t", state={}))
    gone = CheckpointConfig(thread_id="t", checkpoint_id="gone")
    for pair in ((there, gone), (gone, there)):
        with pytest.raises(NotFound, match="'gone'"):
            await checkpointer.timeline.diff(*pair)


async def test_a_diff_can_be_written_as_json(checkpointer: Any) -> None:
    first = await checkpointer.put(Checkpoint(thread_id="t", checkpoint_id="a", state={"m": [1]}))
    second = await checkpointer.put(Checkpoint(thread_id="t", checkpoint_id="b", state={"m": [1, 2]}))
    written = (await checkpointer.timeline.diff(first, second)).model_dump(mode="json")
    assert written["channels"] == {"m": "changed"}
    assert written["differences"] == [
        {"path": ["m"], "kind": "appended", "after_position": 1, "before": None, "after": 2}
    ]
