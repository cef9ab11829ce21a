"""Statistics: information is what each state has and its base had not; stored bytes are what that takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from clew import Checkpoint

from agents import boundary
from awaiting import executor

LONG = "x" * 298
"""300 bytes as JSON: too long to stand in a manifest."""


@dataclass(frozen=True)
class Spot:
    x: int


@dataclass
class Note:
    text: str


async def information(checkpointer: Any, *states: Any, parents: dict[int, int] | None = None) -> int:
    """Of a thread that holds these states, each on the one before it or on the one that ``parents`` names."""
    for number, state in enumerate(states):
        parent = (parents or {}).get(number, number - 1)
        await checkpointer.put(
            Checkpoint(
                thread_id="t",
                checkpoint_id=f"c{number}",
                parent_checkpoint_id=f"c{parent}" if parent >= 0 else None,
                state=state,
            )
        )
    found = await checkpointer.statistics("t")
    assert found.checkpoints == len(states)
    return int(found.information_bytes)


async def test_an_unknown_thread_has_none(checkpointer: Any) -> None:
    assert await checkpointer.statistics("t") is None


async def test_an_appended_element_counts_once(checkpointer: Any) -> None:
    assert await information(checkpointer, *({"m": [LONG + str(i) for i in range(n)]} for n in range(1, 4))) == 903


async def test_an_element_that_was_only_moved_is_no_information(checkpointer: Any) -> None:
    assert await information(checkpointer, [LONG, LONG + "1"], [LONG + "1", LONG]) == 601


async def test_a_small_list_that_outgrows_its_manifest_counts_its_new_elements_alone(checkpointer: Any) -> None:
    assert await information(checkpointer, {"m": ["a"]}, {"m": ["a", LONG]}, {"m": ["a"]}) == 3 + 300


async def test_a_leaf_counts_whenever_it_changes_at_its_place(checkpointer: Any) -> None:
    assert await information(checkpointer, {"a": 1, "b": 1}, {"a": 1, "b": 1}, {"a": 10, "b": 1}) == 1 + 1 + 2


async def test_a_pair_of_a_large_mapping_counts_with_its_key(checkpointer: Any) -> None:
    table = {f"k{i:03}": i % 10 for i in range(100)}
    # The JSON of each pair: ["k000",0]
    assert await information(checkpointer, table, table | {"k007": 8}) == 101 * len('["k000",0]')


async def test_two_branches_with_the_same_message_both_count_it(checkpointer: Any) -> None:
    states = ([LONG], [LONG, LONG + "1"], [LONG, LONG + "1"])
    assert await information(checkpointer, *states, parents={2: 0}) == 300 + 301 + 301


async def test_without_a_parent_the_base_is_the_namespaces_latest(checkpointer: Any) -> None:
    assert await information(checkpointer, [LONG], [LONG, 1], parents={1: -1}) == 301


async def test_text_counts_as_utf_8(checkpointer: Any) -> None:
    assert await information(checkpointer, "ä☃") == 7


@pytest.mark.parametrize("reader_knows_it", [True, False])
async def test_a_class_counts_by_its_fields_also_where_it_is_not_registered(opener: Any, reader_knows_it: bool) -> None:
    async with opener(types=[Note]) as writer, opener(types=[Note] if reader_knows_it else []) as reader:
        await writer.put(Checkpoint(thread_id="t", state=[Note("a")]))
        assert (await reader.statistics("t")).information_bytes == len('{"text":"a"}')


async def test_a_long_integer_and_a_set_of_objects_are_counted(opener: Any) -> None:
    async with opener(types=[Spot]) as checkpointer:
        await checkpointer.put(Checkpoint(thread_id="t", state=[10**5000]))
        assert (await checkpointer.statistics("t")).information_bytes == len(hex(10**5000)) + 2
        await checkpointer.put(Checkpoint(thread_id="t", state=[{Spot(1)}]))
        assert (await checkpointer.statistics("t")).information_bytes == len(hex(10**5000)) + 2 + len('[{"x":1}]')


async def test_the_rows_of_runs_are_stored_bytes_too(checkpointer: Any) -> None:
    await executor(checkpointer).checkpoint(boundary(1))
    before = await checkpointer.statistics("t")
    await checkpointer.runs.request_suspend("r", "x" * 100)
    after = await checkpointer.statistics("t")
    assert after.stored_bytes >= before.stored_bytes + 100


async def test_what_a_deleted_checkpoint_alone_had_counts_no_more(checkpointer: Any) -> None:
    await information(checkpointer, [LONG], [LONG, LONG + "1"], [LONG])
    before = await checkpointer.statistics("t")
    await checkpointer.delete_checkpoints("t", ["c1"])
    after = await checkpointer.statistics("t")
    assert (before.information_bytes, after.information_bytes) == (601, 300)
    assert after.stored_bytes < before.stored_bytes
    assert after.ratio == after.stored_bytes / 300


async def test_a_thread_without_checkpoints_has_no_ratio(checkpointer: Any) -> None:
    await information(checkpointer, [LONG])
    await checkpointer.delete_checkpoints("t", ["c0"])
    found = await checkpointer.statistics("t")
    assert (found.checkpoints, found.information_bytes, found.ratio) == (0, 0, None)
