"""Parents, children, heads, common ancestors and the tree of a thread."""

from __future__ import annotations

from typing import Any

import pytest

from clew import Checkpoint, CheckpointConfig, InvalidInput, NotFound


async def plant(checkpointer: Any, shape: dict[str, str | None], namespace: tuple[str, ...] = ()) -> None:
    for name, parent in shape.items():
        await checkpointer.put(
            Checkpoint(
                thread_id="t", checkpoint_id=name, parent_checkpoint_id=parent, namespace=namespace, state={"at": name}
            )
        )


#: a ─ b ─ c ─ d
#:      └─ x ─ y
FORKED = {"a": None, "b": "a", "c": "b", "x": "b", "d": "c", "y": "x"}


def at(name: str | None, namespace: tuple[str, ...] = ()) -> CheckpointConfig:
    return CheckpointConfig(thread_id="t", checkpoint_id=name, namespace=namespace)


def ids(found: Any) -> list[str]:
    return [item.checkpoint_id for item in found]


async def test_ancestors_come_nearest_first(checkpointer: Any) -> None:
    await plant(checkpointer, FORKED)
    assert ids(await checkpointer.timeline.ancestors(at("d"))) == ["c", "b", "a"]
    assert ids(await checkpointer.timeline.ancestors(at("d"), 2)) == ["c", "b"]
    assert ids(await checkpointer.timeline.ancestors(at(None))) == ["x", "b", "a"]
    assert ids(await checkpointer.timeline.ancestors(at("a"))) == []
    assert ids(await checkpointer.timeline.ancestors(at("unknown"))) == []


async def test_ancestors_end_at_a_cycle(checkpointer: Any) -> None:
    await plant(checkpointer, {"a": None, "b": "a", "c": "b"})
    await plant(checkpointer, {"a": "c"})
    assert ids(await checkpointer.timeline.ancestors(at("c"))) == ["b", "a"]


async def test_children_are_those_of_the_namespace_in_the_order_of_commits(checkpointer: Any) -> None:
    await plant(checkpointer, FORKED)
    await plant(checkpointer, {"z": "b"}, ("child",))
    assert ids(await checkpointer.timeline.children(at("b"))) == ["c", "x"]
    assert ids(await checkpointer.timeline.children(at("b", ("child",)))) == ["z"]
    assert ids(await checkpointer.timeline.children(at(None))) == []
    assert ids(await checkpointer.timeline.children(CheckpointConfig.latest("unknown"))) == []


async def test_heads_are_the_tips_of_all_branches(checkpointer: Any) -> None:
    await plant(checkpointer, FORKED)
    await plant(checkpointer, {"z": None}, ("child",))
    assert ids(await checkpointer.timeline.heads("t")) == ["y", "d"]
    assert ids(await checkpointer.timeline.heads("t", namespace=["child"])) == ["z"]
    assert await checkpointer.timeline.heads("unknown") == []


async def test_the_common_ancestor_of_two_branches_is_where_they_part(checkpointer: Any) -> None:
    await plant(checkpointer, {**FORKED, "other": None})
    common = checkpointer.timeline.common_ancestor
    assert (await common(at("d"), at("y"))).checkpoint_id == "b"
    assert (await common(at("y"), at("d"))).checkpoint_id == "b"
    assert (await common(at("d"), at("c"))).checkpoint_id == "c"
    assert (await common(at("d"), at("d"))).checkpoint_id == "d"
    assert await common(at("d"), at(None)) is None


async def test_a_common_ancestor_needs_two_checkpoints_of_one_namespace(checkpointer: Any) -> None:
    await plant(checkpointer, {"a": None})
    with pytest.raises(NotFound, match="'gone'"):
        await checkpointer.timeline.common_ancestor(at("a"), at("gone"))
    with pytest.raises(InvalidInput, match="one thread and namespace"):
        await checkpointer.timeline.common_ancestor(at("a"), at("a", ("child",)))


async def test_a_tree_holds_every_branch_and_namespace(checkpointer: Any) -> None:
    await plant(checkpointer, FORKED)
    await plant(checkpointer, {"z": None}, ("child",))
    tree = await checkpointer.timeline.tree("t")
    assert ids(tree.roots) == ["a", "z"]
    assert ids(tree.heads) == ["d", "y", "z"]
    assert [(depth, item.checkpoint_id) for depth, item in tree.walk()] == [
        (0, "a"), (1, "b"), (2, "c"), (3, "d"), (2, "x"), (3, "y"), (0, "z"),
    ]  # fmt: skip
    assert ids((await checkpointer.timeline.tree("t", namespace=["child"])).roots) == ["z"]
    assert (await checkpointer.timeline.tree("unknown")).checkpoints == ()


async def test_a_tree_of_a_deep_thread_is_walked_without_recursion(checkpointer: Any) -> None:
    await plant(checkpointer, {f"c{number}": f"c{number - 1}" if number else None for number in range(1500)})
    depths = [depth for depth, _ in (await checkpointer.timeline.tree("t")).walk()]
    assert depths == list(range(1500))


async def test_after_a_deletion_the_lineage_closes_over_the_gap(checkpointer: Any) -> None:
    await plant(checkpointer, FORKED)
    await checkpointer.delete_checkpoints("t", ["b", "c"])
    assert ids(await checkpointer.timeline.ancestors(at("d"))) == ["a"]
    assert ids(await checkpointer.timeline.children(at("a"))) == ["x", "d"]
    assert (await checkpointer.timeline.common_ancestor(at("d"), at("y"))).checkpoint_id == "a"
