"""Deleting checkpoints, runs and threads: what goes, what stays, and that what stays reads back in full."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select

import clew
from clew import Checkpoint, CheckpointConfig, PendingWrite
from clew.structure import decode_spans

from probe import Probe

BIG = "x" * 400


def at(checkpoint_id: str | None = None, namespace: tuple[str, ...] = (), thread_id: str = "t") -> CheckpointConfig:
    return CheckpointConfig(thread_id=thread_id, checkpoint_id=checkpoint_id, namespace=namespace)


def messages(count: int) -> dict[str, Any]:
    return {"messages": [f"{number}-{BIG}" for number in range(count)]}


async def grow(checkpointer: Any, count: int, *, thread_id: str = "t", runs: tuple[str | None, ...] = (None,)) -> None:
    """c1 to c<count>, each with one message more; the runs take turns."""
    for number in range(1, count + 1):
        await checkpointer.put(
            Checkpoint(
                thread_id=thread_id,
                checkpoint_id=f"c{number}",
                parent_checkpoint_id=f"c{number - 1}" if number > 1 else None,
                run_id=runs[(number - 1) % len(runs)],
                state=messages(number),
                metadata={"number": number},
            )
        )


async def listed(checkpointer: Any, thread_id: str = "t") -> list[str]:
    return [item.checkpoint_id for item in (await checkpointer.list(thread_id, newest_first=False)).items]


async def intact(checkpointer: Any, *numbers: int, thread_id: str = "t") -> bool:
    found = [await checkpointer.get(at(f"c{number}", thread_id=thread_id)) for number in numbers]
    return [checkpoint.state for checkpoint in found] == [messages(number) for number in numbers]


async def test_deleting_counts_what_was_there(checkpointer: Any) -> None:
    await grow(checkpointer, 3)
    assert await checkpointer.delete_checkpoints("t", ["c1", "c3", "unknown", "c1"]) == 2
    assert await checkpointer.delete_checkpoints("t", ["c1", "c3"]) == 0
    assert await checkpointer.delete_checkpoints("t", []) == 0
    assert await checkpointer.delete_checkpoints("unknown", ["c1"]) == 0
    assert await listed(checkpointer) == ["c2"]


@pytest.mark.parametrize("channels", [3, 40])
async def test_logs_that_die_together_are_all_gone(checkpointer: Any, probe: Probe, channels: int) -> None:
    for number in (1, 2):
        state = {f"{channel}": [f"{channel}-{number}{part}{BIG}" for part in (1, 2)] for channel in range(channels)}
        await checkpointer.put(
            Checkpoint(thread_id="t", checkpoint_id=f"c{number}", namespace=(str(number),), state=state)
        )
    assert (probe.elements(), probe.logs()) == (4 * channels, 2 * channels)
    assert await checkpointer.delete_checkpoints("t", ["c1"], namespace=("1",)) == 1
    assert (probe.elements(), probe.logs()) == (2 * channels, channels)
    assert probe.problems() == []


@pytest.mark.parametrize("channels", [1, 40])
async def test_what_only_a_checkpoint_far_away_names_stays(checkpointer: Any, probe: Probe, channels: int) -> None:
    """Far away is more than eight: so many neighbours are looked at before the whole thread is."""
    shared = {f"{number}": [f"{number}{BIG}"] for number in range(channels)}
    await checkpointer.put(Checkpoint(thread_id="t", checkpoint_id="far", state=shared))
    state = {name: [*values, f"more{BIG}"] for name, values in shared.items()}
    near = Checkpoint(thread_id="t", checkpoint_id="near", parent_checkpoint_id="far", state=state)
    for number in range(9):
        await checkpointer.put(
            Checkpoint(thread_id="t", checkpoint_id=f"{number}", namespace=("x",), state={"n": [f"{number}{BIG}"]})
        )
    await checkpointer.put(near)
    for number in range(9, 18):
        await checkpointer.put(
            Checkpoint(thread_id="t", checkpoint_id=f"{number}", namespace=("x",), state={"n": [f"{number}{BIG}"]})
        )
    assert await checkpointer.delete_checkpoints("t", ["near"]) == 1
    assert (await checkpointer.get(at("far"))).state == shared
    assert probe.elements() == channels + 18
    assert probe.problems() == []


async def test_of_two_that_name_each_other_as_parents_the_one_that_stays_has_none(checkpointer: Any) -> None:
    await checkpointer.put(Checkpoint(thread_id="t", checkpoint_id="root", state=1))
    for checkpoint_id, parent in (("a", "b"), ("b", "a"), ("c", "b")):
        await checkpointer.put(
            Checkpoint(thread_id="t", checkpoint_id=checkpoint_id, parent_checkpoint_id=parent, state=1)
        )
    assert await checkpointer.delete_checkpoints("t", ["a"]) == 1
    assert (await checkpointer.get(at("b"))).parent_checkpoint_id is None
    assert (await checkpointer.get(at("c"))).parent_checkpoint_id == "b"


async def test_of_a_circle_that_goes_as_a_whole_its_children_have_no_parent(checkpointer: Any) -> None:
    await checkpointer.put(Checkpoint(thread_id="t", checkpoint_id="root", state=1))
    for checkpoint_id, parent in (("a", "b"), ("b", "a"), ("c", "b")):
        await checkpointer.put(
            Checkpoint(thread_id="t", checkpoint_id=checkpoint_id, parent_checkpoint_id=parent, state=1)
        )
    assert await checkpointer.delete_checkpoints("t", ["a", "b"]) == 2
    assert (await checkpointer.get(at("c"))).parent_checkpoint_id is None


async def test_relinking_leaves_the_children_of_another_thread_alone(checkpointer: Any) -> None:
    await grow(checkpointer, 3)
    await grow(checkpointer, 3, thread_id="u")
    await checkpointer.delete_checkpoints("t", ["c2"])
    parents = [(await checkpointer.get(at("c3", thread_id=name))).parent_checkpoint_id for name in ("t", "u")]
    assert parents == ["c1", "c2"]


@pytest.mark.invariant(10)
@pytest.mark.parametrize("doomed", [1, 2, 3, 4, 5])
async def test_whichever_is_deleted_the_others_read_back_in_full(checkpointer: Any, probe: Probe, doomed: int) -> None:
    await grow(checkpointer, 5)
    await checkpointer.delete_checkpoints("t", [f"c{doomed}"])
    assert await checkpointer.get(at(f"c{doomed}")) is None
    assert await intact(checkpointer, *({1, 2, 3, 4, 5} - {doomed}))
    assert probe.problems() == []


async def test_all_but_the_last_can_be_deleted_and_all_but_the_first(checkpointer: Any, probe: Probe) -> None:
    await grow(checkpointer, 5)
    assert await checkpointer.delete_checkpoints("t", ["c1", "c2", "c3", "c4"]) == 4
    assert await intact(checkpointer, 5)
    await grow(checkpointer, 5, thread_id="u")
    assert await checkpointer.delete_checkpoints("u", ["c2", "c3", "c4", "c5"]) == 4
    assert await intact(checkpointer, 1, thread_id="u")
    assert probe.problems() == []
    assert probe.elements() == 6


@pytest.mark.invariant(11)
async def test_deleting_the_latest_gives_its_bytes_back(checkpointer: Any, probe: Probe) -> None:
    await grow(checkpointer, 2)
    before = probe.stored()
    await checkpointer.put(
        Checkpoint(thread_id="t", checkpoint_id="big", state={"messages": [f"new-{n}-{BIG}" for n in range(50)]})
    )
    await checkpointer.delete_checkpoints("t", ["big"])
    assert probe.stored() == before


async def test_after_deleting_everything_nothing_is_left_but_the_thread(checkpointer: Any, probe: Probe) -> None:
    await grow(checkpointer, 4)
    assert await checkpointer.delete_checkpoints("t", ["c1", "c2", "c3", "c4"]) == 4
    for table in ("segments", "checkpoints", "checkpoint_metadata", "pending_writes"):
        assert probe.count(table) == 0
    assert (await checkpointer.get_thread("t")).checkpoint_count == 0
    await grow(checkpointer, 2)
    assert await intact(checkpointer, 1, 2)
    assert probe.seqs() == [5, 6]


async def test_a_put_after_a_deletion_goes_on_from_what_is_left(opener: Any, probe: Probe) -> None:
    async with opener() as first, opener() as second:
        await grow(first, 5)
        await second.delete_checkpoints("t", ["c4", "c5"])
        await first.put(Checkpoint(thread_id="t", checkpoint_id="c6", parent_checkpoint_id="c5", state=messages(6)))
        await second.put(Checkpoint(thread_id="t", checkpoint_id="c4", parent_checkpoint_id="c3", state=messages(4)))
        for reader in (first, second):
            assert await intact(reader, 1, 2, 3, 4, 6)
        assert (await first.get(at("c6"))).parent_checkpoint_id == "c5"
    assert probe.problems() == []


@pytest.mark.invariant(12)
async def test_a_position_is_never_used_twice(opener: Any, probe: Probe) -> None:
    c = probe.tables.checkpoints.c

    def last_position() -> tuple[int, int]:
        [(spans,)] = probe.rows(select(c.spans).where(c.checkpoint_id == "c3"))
        last = decode_spans(spans)[-1]
        return last.log, last.end

    async with opener() as checkpointer:
        await grow(checkpointer, 3)
        used = [last_position()]
        for round_number in range(4):
            await checkpointer.delete_checkpoints("t", ["c3"])
            state = {"messages": [*messages(2)["messages"], f"{round_number}-{BIG}"]}
            await checkpointer.put(
                Checkpoint(thread_id="t", checkpoint_id="c3", parent_checkpoint_id="c2", state=state)
            )
            assert (await checkpointer.get(at("c3"))).state == state
            assert await intact(checkpointer, 1, 2)
            assert probe.problems() == []
            used.append(last_position())
    assert len(set(used)) == 5


async def test_a_run_is_deleted_in_one_thread_or_in_all(checkpointer: Any, probe: Probe) -> None:
    for thread_id in ("t", "u"):
        await grow(checkpointer, 6, thread_id=thread_id, runs=("run-1", "run-2", None))
    assert await checkpointer.delete_by_run("run-2", thread_id="t") == 2
    assert await listed(checkpointer, "t") == ["c1", "c3", "c4", "c6"]
    assert await listed(checkpointer, "u") == ["c1", "c2", "c3", "c4", "c5", "c6"]
    await grow(checkpointer, 1, thread_id="v", runs=("run-2",))
    assert await checkpointer.delete_by_run("run-2") == 3
    assert await listed(checkpointer, "u") == ["c1", "c3", "c4", "c6"]
    assert await checkpointer.delete_by_run("run-2") == 0
    assert await intact(checkpointer, 1, 3, 4, 6)
    assert await intact(checkpointer, 1, 3, 4, 6, thread_id="u")
    assert probe.problems() == []


async def test_a_run_in_the_middle_of_a_lineage_leaves_a_history_that_walks_across_the_gap(checkpointer: Any) -> None:
    await grow(checkpointer, 5, runs=("run-1", "run-2", "run-2", "run-2", "run-3"))
    assert await checkpointer.delete_by_run("run-2") == 3
    assert [item.checkpoint_id for item in await checkpointer.history(at())] == ["c5", "c1"]
    assert await intact(checkpointer, 1, 5)


async def test_a_run_is_deleted_in_all_namespaces(checkpointer: Any) -> None:
    for namespace in ((), ("child",)):
        await checkpointer.put(Checkpoint(thread_id="t", checkpoint_id="a", state=0, run_id="r", namespace=namespace))
        await checkpointer.put(Checkpoint(thread_id="t", checkpoint_id="b", state=0, namespace=namespace))
    assert await checkpointer.delete_by_run("r") == 2
    assert await listed(checkpointer) == ["b", "b"]


@pytest.mark.invariant(14)
async def test_no_run_never_matches(checkpointer: Any) -> None:
    await grow(checkpointer, 3, runs=("run-1", None, "None"))
    assert await checkpointer.delete_by_run("none") == 0
    for run_id in (None, ""):
        with pytest.raises(clew.InvalidInput, match="run_id"):
            await checkpointer.delete_by_run(run_id)
        with pytest.raises(clew.InvalidInput, match="run_id"):
            await checkpointer.delete_by_run(run_id, thread_id="t")
    assert await listed(checkpointer) == ["c1", "c2", "c3"]


async def test_a_deleted_thread_is_gone_with_everything_of_it(checkpointer: Any, probe: Probe) -> None:
    await grow(checkpointer, 3)
    await checkpointer.put_writes(at("c3"), [PendingWrite(node="n", payload=1)])
    await grow(checkpointer, 2, thread_id="u")
    assert await checkpointer.delete_thread("t") is True
    assert await checkpointer.delete_thread("t") is False
    assert await checkpointer.get_thread("t") is None
    assert await checkpointer.get(at()) is None
    assert await listed(checkpointer) == []
    assert [thread.thread_id for thread in (await checkpointer.list_threads()).items] == ["u"]
    assert await intact(checkpointer, 1, 2, thread_id="u")
    for table in ("threads", "versions"):
        assert probe.count(table) == 1
    assert probe.count("checkpoints") == 2


async def test_a_late_put_to_a_deleted_thread_is_refused(opener: Any) -> None:
    async with opener() as late, opener() as other:
        await grow(late, 3)
        await other.delete_thread("t")
        with pytest.raises(clew.NotFound, match="deleted"):
            await late.put(Checkpoint(thread_id="t", checkpoint_id="c4", parent_checkpoint_id="c3", state=messages(4)))
        assert await late.get_thread("t") is None
        assert (await other.list_threads()).items == ()
        await late.put(Checkpoint(thread_id="t", checkpoint_id="c1", state=messages(1)))
        assert await listed(other) == ["c1"]


@pytest.mark.invariant(13)
async def test_a_late_put_to_a_thread_created_anew_is_complete_by_the_new_contents(opener: Any, probe: Probe) -> None:
    async with opener() as late, opener() as other:
        await grow(late, 5)
        await other.delete_thread("t")
        for number in range(1, 6):
            await other.put(
                Checkpoint(
                    thread_id="t",
                    checkpoint_id=f"c{number}",
                    parent_checkpoint_id=f"c{number - 1}" if number > 1 else None,
                    state={"messages": [f"other-{n}-{BIG}" for n in range(number)]},
                )
            )
        await late.put(Checkpoint(thread_id="t", checkpoint_id="c6", parent_checkpoint_id="c5", state=messages(6)))
        for reader in (late, other):
            assert await intact(reader, 6)
            assert (await reader.get(at("c5"))).state == {"messages": [f"other-{n}-{BIG}" for n in range(5)]}
    assert probe.problems() == []


async def test_a_deleted_id_can_be_put_again(checkpointer: Any) -> None:
    await grow(checkpointer, 3)
    await checkpointer.delete_checkpoints("t", ["c2"])
    await checkpointer.put(Checkpoint(thread_id="t", checkpoint_id="c2", parent_checkpoint_id="c1", state="new"))
    assert (await checkpointer.get(at())).state == "new"
    assert await listed(checkpointer) == ["c1", "c3", "c2"]


async def test_replacing_collects_what_only_the_old_one_named(checkpointer: Any, probe: Probe) -> None:
    await grow(checkpointer, 2)
    before = probe.elements()
    for round_number in range(5):
        await checkpointer.put(
            Checkpoint(thread_id="t", checkpoint_id="c9", state={"messages": [f"{round_number}-{BIG}"] * 3})
        )
        assert (await checkpointer.get(at("c9"))).state == {"messages": [f"{round_number}-{BIG}"] * 3}
        assert await intact(checkpointer, 1, 2)
        assert probe.problems() == []
    assert probe.elements() <= before + 3


async def test_what_only_a_sibling_had_survives_the_siblings_deletion(checkpointer: Any, probe: Probe) -> None:
    shared = f"shared-{BIG}"
    await grow(checkpointer, 2)
    left = {"messages": [*messages(2)["messages"], shared]}
    right = {"messages": [*messages(2)["messages"], f"right-{BIG}", shared]}
    await checkpointer.put(Checkpoint(thread_id="t", checkpoint_id="left", parent_checkpoint_id="c2", state=left))
    await checkpointer.put(Checkpoint(thread_id="t", checkpoint_id="right", parent_checkpoint_id="c2", state=right))
    await checkpointer.delete_checkpoints("t", ["left"])
    assert (await checkpointer.get(at("right"))).state == right
    assert await intact(checkpointer, 1, 2)
    assert probe.problems() == []


async def test_one_string_in_place_of_ids_is_refused(checkpointer: Any) -> None:
    await grow(checkpointer, 1)
    with pytest.raises(clew.InvalidInput, match="checkpoint_ids"):
        await checkpointer.delete_checkpoints("t", "c1")
    with pytest.raises(clew.InvalidInput, match="namespace"):
        await checkpointer.delete_checkpoints("t", ["c1"], namespace="child")
    assert await listed(checkpointer) == ["c1"]


async def test_a_deletion_that_finds_nothing_changes_nothing(checkpointer: Any, probe: Probe) -> None:
    await grow(checkpointer, 2)
    versions = probe.rows(probe.tables.versions.select())
    await checkpointer.delete_checkpoints("t", ["unknown"])
    await checkpointer.delete_by_run("unknown", thread_id="t")
    await checkpointer.retention.prune("t", keep_last=2)
    assert [(row.version, row.last_seq) for row in probe.rows(probe.tables.versions.select())] == [
        (row.version, row.last_seq) for row in versions
    ]
