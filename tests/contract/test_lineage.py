"""Lineage: walking from a checkpoint to its ancestors."""

from __future__ import annotations

from typing import Any

import pytest

import clew
from clew import Checkpoint, CheckpointConfig


def at(checkpoint_id: str | None = None, namespace: tuple[str, ...] = ()) -> CheckpointConfig:
    return CheckpointConfig(thread_id="t", checkpoint_id=checkpoint_id, namespace=namespace)


async def chain(checkpointer: Any, *ids: str, namespace: tuple[str, ...] = (), parent: str | None = None) -> None:
    for checkpoint_id in ids:
        await checkpointer.put(
            Checkpoint(
                thread_id="t",
                checkpoint_id=checkpoint_id,
                parent_checkpoint_id=parent,
                namespace=namespace,
                state={"at": checkpoint_id},
                metadata={"step": len(checkpoint_id)},
            )
        )
        parent = checkpoint_id


async def walked(checkpointer: Any, config: CheckpointConfig, *limit: int) -> list[str]:
    return [item.checkpoint_id for item in await checkpointer.history(config, *limit)]


async def test_the_history_is_the_checkpoint_and_its_ancestors(checkpointer: Any) -> None:
    await chain(checkpointer, "c1", "c2", "c3")
    assert await walked(checkpointer, at("c3")) == ["c3", "c2", "c1"]
    assert await walked(checkpointer, at("c2")) == ["c2", "c1"]
    assert await walked(checkpointer, at()) == ["c3", "c2", "c1"]


async def test_the_history_ends_at_its_limit(checkpointer: Any) -> None:
    await chain(checkpointer, "c1", "c2", "c3")
    assert await walked(checkpointer, at(), 2) == ["c3", "c2"]
    assert await walked(checkpointer, at(), 1) == ["c3"]
    assert await walked(checkpointer, at(), 10_000) == ["c3", "c2", "c1"]


@pytest.mark.parametrize("limit", [0, -1, 10_001, True, 2.0, None])
async def test_a_limit_out_of_range_is_refused(checkpointer: Any, limit: Any) -> None:
    with pytest.raises(clew.InvalidInput, match="limit"):
        await checkpointer.history(at(), limit)


async def test_history_follows_parents_and_leaves_siblings_out(checkpointer: Any) -> None:
    await chain(checkpointer, "c1", "c2", "c3")
    await chain(checkpointer, "d2", "d3", parent="c1")
    assert await walked(checkpointer, at("c3")) == ["c3", "c2", "c1"]
    assert await walked(checkpointer, at("d3")) == ["d3", "d2", "c1"]


async def test_history_stays_in_its_namespace(checkpointer: Any) -> None:
    await chain(checkpointer, "c1", "c2")
    await chain(checkpointer, "c1", "c3", namespace=("child",))
    await chain(checkpointer, "d1", namespace=("other",), parent="c2")
    assert await walked(checkpointer, at("c3", ("child",))) == ["c3", "c1"]
    assert await walked(checkpointer, at(namespace=("other",))) == ["d1"]
    assert await walked(checkpointer, at("c3")) == []


async def test_history_ends_at_a_parent_that_is_missing(checkpointer: Any) -> None:
    await chain(checkpointer, "c1")
    await chain(checkpointer, "c3", "c4", parent="c2")
    assert await walked(checkpointer, at()) == ["c4", "c3"]


@pytest.mark.invariant(16)
async def test_history_ends_at_a_cycle(checkpointer: Any) -> None:
    await chain(checkpointer, "c1", "c2", "c3")
    await chain(checkpointer, "c1", parent="c3")
    assert await walked(checkpointer, at("c1")) == ["c1", "c3", "c2"]
    assert await walked(checkpointer, at("c2"), 10_000) == ["c2", "c1", "c3"]


async def test_history_loads_listing_records_only(checkpointer: Any) -> None:
    await chain(checkpointer, "c1", "c2")
    [newest, oldest] = await checkpointer.history(at())
    assert (newest.parent_checkpoint_id, oldest.parent_checkpoint_id) == ("c1", None)
    assert (newest.step, newest.source) == (2, clew.CheckpointSource.LOOP)
    assert not hasattr(newest, "state")


@pytest.mark.invariant(15)
async def test_deleting_in_the_middle_relinks_to_the_nearest_ancestor_that_is_left(checkpointer: Any) -> None:
    await chain(checkpointer, "c1", "c2", "c3", "c4", "c5")
    await chain(checkpointer, "d4", parent="c3")
    assert await checkpointer.delete_checkpoints("t", ["c2", "c3"]) == 2
    assert await walked(checkpointer, at("c5")) == ["c5", "c4", "c1"]
    assert await walked(checkpointer, at("d4")) == ["d4", "c1"]
    assert (await checkpointer.get(at("c4"))).parent_checkpoint_id == "c1"


async def test_deleting_a_root_leaves_its_children_as_roots(checkpointer: Any) -> None:
    await chain(checkpointer, "c1", "c2")
    await checkpointer.delete_checkpoints("t", ["c1"])
    assert (await checkpointer.get_tuple(at("c2"))).parent_config is None
    assert await walked(checkpointer, at()) == ["c2"]


async def test_relinking_goes_over_deletions_one_after_the_other(checkpointer: Any) -> None:
    await chain(checkpointer, "c1", "c2", "c3", "c4")
    await checkpointer.delete_checkpoints("t", ["c3"])
    await checkpointer.delete_checkpoints("t", ["c2"])
    assert await walked(checkpointer, at()) == ["c4", "c1"]


async def test_relinking_stays_in_the_namespace(checkpointer: Any) -> None:
    await chain(checkpointer, "c1", "c2", "c3")
    await chain(checkpointer, "c1", "c2", "c3", namespace=("child",))
    await checkpointer.delete_checkpoints("t", ["c2"], namespace=["child"])
    assert await walked(checkpointer, at()) == ["c3", "c2", "c1"]
    assert await walked(checkpointer, at(namespace=("child",))) == ["c3", "c1"]


async def test_relinking_a_cycle_leaves_no_checkpoint_as_its_own_parent(checkpointer: Any) -> None:
    await chain(checkpointer, "c1", "c2")
    await chain(checkpointer, "c1", parent="c2")
    await checkpointer.delete_checkpoints("t", ["c2"])
    assert (await checkpointer.get(at("c1"))).parent_checkpoint_id is None
    await chain(checkpointer, "c2", "c3", parent="c1")
    await chain(checkpointer, "c1", parent="c3")
    await checkpointer.delete_checkpoints("t", ["c2", "c3"])
    assert (await checkpointer.get(at("c1"))).parent_checkpoint_id is None


async def test_a_retry_of_a_relinked_child_is_recognised(checkpointer: Any) -> None:
    await chain(checkpointer, "c1", "c2", "c3")
    await checkpointer.delete_checkpoints("t", ["c2"])
    before = await checkpointer.list("t")
    await chain(checkpointer, "c3", parent="c2")
    assert await checkpointer.list("t") == before
