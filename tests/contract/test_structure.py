"""What a put costs and what it stores: only what its base does not have. Every version reads back as it was.

*Information* is the compact UTF-8 JSON of the elements that a put's base did not have (behaviours, structural state).
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

import clew
from clew import Checkpoint, CheckpointConfig
from clew.structure import decode_spans

from probe import Probe

MANIFEST_BOUND = 2 * 4096 + 256
"""Keys and inline leaves, spans, and the headers of both."""
WORDS = random.Random(1).choices(
    [("".join(random.Random(n).choices("abcdefghijklmnopqrstuvwxyz", k=3 + n % 8))) for n in range(2000)], k=40_000
)


def at(checkpoint_id: str | None = None) -> CheckpointConfig:
    return CheckpointConfig(thread_id="t", checkpoint_id=checkpoint_id)


def message(number: int, size: int = 1000) -> dict[str, Any]:
    """A message of about ``size`` bytes, like no other one."""
    start = number * 37 % 30_000
    return {"role": "user", "id": number, "content": " ".join(WORDS[start : start + size // 6])[: size - 40]}


def information(*elements: Any) -> int:
    return sum(len(json.dumps(element, separators=(",", ":"), ensure_ascii=False).encode()) for element in elements)


async def put(checkpointer: Any, number: int, state: Any, parent: int | None = None) -> None:
    await checkpointer.put(
        Checkpoint(
            thread_id="t",
            checkpoint_id=f"c{number}",
            parent_checkpoint_id=None if parent is None else f"c{parent}",
            state=state,
        )
    )


async def state_of(checkpointer: Any, number: int) -> Any:
    return (await checkpointer.get(at(f"c{number}"))).state


async def check(checkpointer: Any, probe: Probe, states: dict[int, Any], *, every: int = 1) -> None:
    """Every version is as it was, for a reader that remembers and by the rows alone; no manifest is too large."""
    for number in sorted(states)[::every]:
        assert await state_of(checkpointer, number) == states[number]
    assert probe.problems() == []
    assert max(probe.manifest_bytes()) <= MANIFEST_BOUND


@pytest.mark.parametrize("nested", [False, True], ids=["top", "nested"])
async def test_a_list_that_grows_is_stored_once(checkpointer: Any, probe: Probe, nested: bool) -> None:
    def shaped(messages: list[Any]) -> dict[str, Any]:
        return {"agent": {"memory": {"messages": messages}, "n": 1}} if nested else {"messages": messages}

    messages = [message(number) for number in range(300)]
    for step in range(1, 301):
        await put(checkpointer, step, shaped(messages[:step]))
    assert probe.segment_bytes() <= 1.0 * information(*messages)
    assert probe.stored() <= 1.1 * information(*messages)
    assert max(probe.manifest_bytes()) <= 120
    assert probe.elements() == 300
    assert probe.logs() == 1
    await check(checkpointer, probe, {step: shaped(messages[:step]) for step in range(1, 301)}, every=23)


async def test_a_mapping_that_grows_by_a_key_a_step_is_linear(opener: Any, probe: Probe) -> None:
    value = {f"key-{number:05}": f"value-{number}" for number in range(2000)}
    pairs = list(value.items())
    async with opener() as checkpointer:
        for step in range(20, 2001, 20):
            await put(checkpointer, step, {"files": dict(pairs[:step])})
        assert probe.segment_bytes() <= 2 * information(*pairs)
        assert probe.elements() <= 2000 + 65
        await check(checkpointer, probe, {step: {"files": dict(pairs[:step])} for step in range(20, 2001, 20)}, every=9)


async def test_random_edits_of_a_long_list_cost_what_is_new(checkpointer: Any, probe: Probe) -> None:
    chance = random.Random(7)
    items = [message(number, 200) for number in range(1000)]
    fresh, states = information(*items), {0: {"items": list(items)}}
    await put(checkpointer, 0, {"items": items})
    for step in range(1, 151):
        items[chance.randrange(1000)] = edited = message(1000 + step, 200)
        fresh += information(edited)
        states[step] = {"items": list(items)}
        await put(checkpointer, step, states[step])
    assert probe.stored() <= 6 * fresh
    await check(checkpointer, probe, states, every=11)


async def test_a_streamed_answer_costs_one_element_a_step(checkpointer: Any, probe: Probe) -> None:
    past = [message(number, 400) for number in range(50)]
    states = {step: {"messages": [*past, {"role": "assistant", "content": "word " * step}]} for step in range(1, 101)}
    for step, state in states.items():
        await put(checkpointer, step, state)
    assert probe.elements() == 50 + 100
    await check(checkpointer, probe, states, every=9)


async def test_dropping_a_prefix_stores_only_what_is_new(checkpointer: Any, probe: Probe) -> None:
    items = [message(number, 300) for number in range(101)]
    await put(checkpointer, 1, {"items": items[:100]})
    await put(checkpointer, 2, {"items": items[50:]})
    assert probe.elements() == 101
    await check(checkpointer, probe, {1: {"items": items[:100]}, 2: {"items": items[50:]}})


@pytest.mark.parametrize(
    ("edit", "fresh"),
    [
        (lambda items: [*items, message(999, 300)], 1),
        (lambda items: [message(999, 300), *items], 1),
        (lambda items: [*items[:40], message(999, 300), *items[40:]], 1),
        (lambda items: [*items[:40], message(999, 300), *items[41:]], 1),
        (lambda items: items[60:] + items[:60], 0),
        (lambda items: items[10:20] + items[:10] + items[20:], 0),
        (lambda items: items[:50], 0),
        (lambda items: items[::2], 0),
        (lambda items: items + items, 0),
        (lambda items: items[::-1], 0),
        (lambda items: [message(900 + n, 300) for n in range(3)] + items[3:-1] + [message(990, 300)], 4),
    ],
    ids=["append", "prepend", "insert", "replace", "rotate", "move", "cut", "thin", "double", "reverse", "both-ends"],
)
async def test_an_edit_stores_only_what_is_new(
    checkpointer: Any, probe: Probe, edit: Callable[[list[Any]], list[Any]], fresh: int
) -> None:
    items = [message(number, 300) for number in range(100)]
    await put(checkpointer, 1, {"items": items})
    await put(checkpointer, 2, {"items": edit(items)})
    assert probe.elements() == 100 + fresh
    await check(checkpointer, probe, {1: {"items": items}, 2: {"items": edit(items)}})


async def test_an_element_that_moves_to_another_channel_is_not_stored_again(checkpointer: Any, probe: Probe) -> None:
    items = [message(number, 300) for number in range(10)]
    await put(checkpointer, 1, {"todo": items, "done": []})
    await put(checkpointer, 2, {"todo": items[5:], "done": items[:5]})
    assert probe.elements() == 10
    await check(checkpointer, probe, {2: {"todo": items[5:], "done": items[:5]}})


async def test_of_300_files_one_edited_costs_one_entry(checkpointer: Any, probe: Probe) -> None:
    files = {f"src/file_{number}.py": message(number, 500)["content"] for number in range(300)}
    changed = {**files, "src/file_150.py": "new " * 100}
    await put(checkpointer, 1, {"files": files})
    await put(checkpointer, 2, {"files": changed})
    assert probe.elements() == 301
    await check(checkpointer, probe, {1: {"files": files}, 2: {"files": changed}})


async def test_a_large_leaf_is_shared_while_it_is_unchanged(checkpointer: Any, probe: Probe) -> None:
    plan = {"a": "x" * 3000, "b": (1, 2)}
    for step in range(1, 21):
        await put(checkpointer, step, {"plan": ("frozen", plan), "step": step})
    assert probe.elements() == 1
    await check(checkpointer, probe, {step: {"plan": ("frozen", plan), "step": step} for step in range(1, 21)})


async def test_sharing_does_not_depend_on_naming_a_parent(checkpointer: Any, probe: Probe) -> None:
    items = [message(number, 300) for number in range(30)]
    for step in range(1, 31):
        await put(checkpointer, step, {"items": items[:step]}, parent=None)
    assert probe.elements() == 30


async def test_two_namespaces_do_not_share_but_both_are_linear(checkpointer: Any, probe: Probe) -> None:
    items = [message(number, 300) for number in range(30)]
    for step in range(1, 31):
        for namespace in ((), ("child",)):
            await checkpointer.put(
                Checkpoint(thread_id="t", checkpoint_id=f"c{step}", namespace=namespace, state={"items": items[:step]})
            )
    assert probe.elements() == 60
    assert probe.problems() == []


async def test_branches_of_one_parent_from_two_processes_are_both_complete(opener: Any, probe: Probe) -> None:
    items = [message(number, 300) for number in range(20)]
    async with opener() as first, opener() as second:
        await put(first, 0, {"items": items})
        assert await state_of(second, 0) == {"items": items}
        states = {0: {"items": items}}
        for step in range(1, 9):
            parent = max(0, step - 2)
            states[step] = {"items": [*states[parent]["items"], message(100 + step, 300)]}
            await put((first, second)[step % 2], step, states[step], parent)
        for reader in (first, second):
            await check(reader, probe, states)


@pytest.mark.parametrize("cold", [True, False], ids=["cold", "warm"])
async def test_a_branch_from_the_middle_after_merges_is_complete(opener: Any, probe: Probe, cold: bool) -> None:
    items = [message(number, 300) for number in range(80)]
    async with opener() as first:
        for step in range(1, 81):
            await put(first, step, {"items": items[:step]})
        assert probe.count("segments") < 40  # merged
        async with opener() as other:
            writer = other if cold else first
            branch = {"items": [*items[:37], message(500, 300)]}
            await put(writer, 100, branch, 37)
            await put(writer, 101, {"items": [*branch["items"], message(501, 300)]}, 100)
            states = {step: {"items": items[:step]} for step in range(1, 81)}
            states |= {100: branch, 101: {"items": [*branch["items"], message(501, 300)]}}
            await check(writer, probe, states, every=7)
            assert await state_of(writer, 100) == branch
    assert probe.elements() == 82


async def test_pop_two_append_one_again_and_again(opener: Any, probe: Probe) -> None:
    async with opener() as first, opener() as second:
        items = [message(number, 300) for number in range(100)]
        states = {0: {"items": items}}
        await put(first, 0, states[0])
        for step in range(1, 91):
            items = [*items[:-2], message(1000 + step, 300)]
            states[step] = {"items": items}
            await put((first, second)[step // 30 % 2], step, states[step])
        for reader in (first, second):
            await check(reader, probe, states, every=6)


async def test_a_shuffled_list_stays_within_the_manifests_bound(checkpointer: Any, probe: Probe) -> None:
    chance = random.Random(3)
    items, states = [message(number, 60) for number in range(1000)], {}
    for step in range(6):
        chance.shuffle(items)
        states[step] = {"items": list(items), "n": step}
        await put(checkpointer, step, states[step])
    await check(checkpointer, probe, states)


async def test_many_channels_stay_within_the_manifests_bound(checkpointer: Any, probe: Probe) -> None:
    states = {
        1: {f"channel-{number}": "v" * 200 for number in range(64)},
        2: {f"channel-{number}": {"a" * 50 + str(n): "v" * 100 for n in range(20)} for number in range(60)},
        3: {"k" * 300: 1, "x": "y" * 600},
        4: {f"{number}" * 60: number for number in range(64)},
        5: {"deep": {"a": {"b": {"c": {"d": {"e": {"f": {"g": {"h": {"i": ["x" * 300]}}}}}}}}}},
    }
    for step, state in states.items():
        await put(checkpointer, step, state)
    await check(checkpointer, probe, states)


async def test_a_list_that_shrinks_to_nothing_and_grows_again(checkpointer: Any, probe: Probe) -> None:
    items, states = [message(number, 300) for number in range(12)], {}
    for step, length in enumerate([*range(12), *range(12, -1, -1), *range(13)]):
        states[step] = {"items": items[:length]}
        await put(checkpointer, step, states[step])
    await check(checkpointer, probe, states)


async def test_a_mappings_keys_in_another_order_come_back_in_that_order(checkpointer: Any, probe: Probe) -> None:
    small = {f"k{number}": number for number in range(5)}
    large = {f"k{number}": f"{number}" * 30 for number in range(100)}
    states = {
        1: {"small": small, "large": large},
        2: {"small": dict(reversed(small.items())), "large": dict(reversed(large.items()))},
        3: {"large": large, "small": small},
        4: {"small": dict(sorted(small.items(), key=lambda item: -item[1] % 3)), "large": large},
    }
    for step, state in states.items():
        await put(checkpointer, step, state)
    for step, state in states.items():
        found = await state_of(checkpointer, step)
        assert json.dumps(found) == json.dumps(state)
    assert probe.elements() == 100


async def test_a_record_becomes_a_table_and_a_record_again(checkpointer: Any, probe: Probe) -> None:
    states = {count: {"m": {f"k{number}": number for number in range(count)}} for count in (1, 64, 65, 64, 66, 0)}
    for step, state in states.items():
        await put(checkpointer, step, state)
    await check(checkpointer, probe, states)


async def test_the_shape_under_a_key_may_change_at_every_step(checkpointer: Any, probe: Probe) -> None:
    values: list[Any] = [
        1, "x" * 500, ["x" * 500], {"a": ["x" * 500]}, {str(n): "x" * 50 for n in range(70)}, None, ("x" * 500,),
        ["x" * 500, 1], [], {}, {"a": {"b": "x" * 500}}, b"x" * 500, [["x" * 500]],
    ]  # fmt: skip
    states = {step: {"k": value, "same": ["s" * 300]} for step, value in enumerate(values * 2)}
    for step, state in states.items():
        await put(checkpointer, step, state)
    await check(checkpointer, probe, states)
    assert probe.elements() <= 2 * 90


async def test_rows_are_merged_as_a_list_grows(checkpointer: Any, probe: Probe) -> None:
    items = [message(number, 1000) for number in range(260)]
    for step in range(1, 261):
        await put(checkpointer, step, {"items": items[:step]})
    assert probe.count("segments") <= 40
    async_rows = probe.rows(probe.tables.segments.select())
    assert max(row.count for row in async_rows) >= 128


async def test_rows_are_merged_where_two_processes_take_turns(opener: Any, probe: Probe) -> None:
    items = [message(number, 300) for number in range(60)]
    async with opener() as first, opener() as second:
        for step in range(1, 61):
            await put((first, second)[step % 2], step, {"items": items[:step]})
        assert probe.count("segments") <= 20
        await check(first, probe, {step: {"items": items[:step]} for step in range(1, 61)}, every=7)
    assert probe.elements() == 60


async def test_what_nobody_names_any_more_is_gone_after_every_kind_of_edit(checkpointer: Any, probe: Probe) -> None:
    chance = random.Random(11)
    items: list[Any] = [message(number, 300) for number in range(40)]
    states: dict[int, Any] = {}
    for step in range(60):
        roll = chance.random()
        if roll < 0.4:
            items = [*items, message(100 + step, 300)]
        elif roll < 0.6:
            cut = chance.randrange(len(items))
            items = items[cut:] + items[:cut]
        elif roll < 0.8:
            items = [*items[:-3], message(200 + step, 300)]
        else:
            items = chance.sample(items, len(items))
        states[step] = {"items": items}
        await put(checkpointer, step, states[step])
        if step % 4 == 3:
            doomed = chance.sample(sorted(states), 3)
            assert await checkpointer.delete_checkpoints("t", [f"c{number}" for number in doomed]) == 3
            for number in doomed:
                del states[number]
            assert probe.problems() == []
    await check(checkpointer, probe, states)
    await checkpointer.delete_checkpoints("t", [f"c{number}" for number in sorted(states)[:-1]])
    assert await state_of(checkpointer, max(states)) == states[max(states)]
    assert probe.problems() == []


async def test_a_damaged_row_is_an_error_that_names_it_and_hides_no_other(opener: Any, probe: Probe) -> None:
    async with opener() as writer:
        await put(writer, 1, {"items": [message(1, 300)]})
        await put(writer, 2, {"other": [message(2, 300)]})
        await put(writer, 3, {"n": 1})
    c, s = probe.tables.checkpoints, probe.tables.segments
    stored = {row.checkpoint_id: row for row in probe.rows(c.select())}
    [span] = decode_spans(stored["c1"].spans)
    [payload] = [row.payload for row in probe.rows(s.select()) if row.log == span.log]
    manifest = b"\xee" + stored["c3"].manifest[1:]
    with probe.connection() as connection:
        connection.execute(
            s.update().where(s.c.log == span.log).values(payload=payload[:-1] + bytes([payload[-1] ^ 1]))
        )
        connection.execute(c.update().where(c.c.checkpoint_id == "c3").values(manifest=manifest))
    async with opener() as reader:
        with pytest.raises(clew.CorruptData, match=rf"'c1'.*log {span.log}"):
            await state_of(reader, 1)
        assert await state_of(reader, 2) == {"other": [message(2, 300)]}
        with pytest.raises(clew.CorruptData, match=r"'c3'.*newer clew"):
            await state_of(reader, 3)
        with pytest.raises(clew.CorruptData, match=r"'c3' of thread 't'.*newer clew"):
            await put(reader, 4, {"n": 2}, parent=3)
        with pytest.raises(clew.CorruptData, match=rf"'c1' of thread 't'.*log {span.log}"):
            await put(reader, 4, {"n": 2}, parent=1)
        with pytest.raises(clew.CorruptData, match=rf"thread 't'.*log {span.log}"):
            await reader.statistics("t")
        assert [item.checkpoint_id for item in (await reader.list("t")).items] == ["c3", "c2", "c1"]
        assert (await reader.get_tuple(at("c3"), load_state=False)).checkpoint.state is clew.NOT_LOADED
        assert await reader.delete_checkpoints("t", ["c1", "c2", "c3"]) == 3
