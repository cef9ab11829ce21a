"""Pruning: what the criteria keep, what goes, and what a dry run says."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from clew import Checkpoint, CheckpointConfig, InvalidInput, PendingWrite, PruneReport, StaleFence

from probe import Probe


async def put(checkpointer: Any, number: int, parent: int | None = None, **fields: Any) -> None:
    state = {"messages": [f"message {n} " * 30 for n in range(number)]}
    given = {"thread_id": "t", "state": state, "parent_checkpoint_id": None if parent is None else f"c{parent}"}
    await checkpointer.put(Checkpoint(checkpoint_id=f"c{number}", **{**given, **fields}))


async def chain(checkpointer: Any, count: int, **fields: Any) -> None:
    for number in range(1, count + 1):
        await put(checkpointer, number, number - 1 or None, **fields)


async def left(checkpointer: Any, **filters: Any) -> list[str]:
    return [item.checkpoint_id for item in (await checkpointer.list("t", newest_first=False, **filters)).items]


def pruned(report: PruneReport) -> list[str]:
    return [config.checkpoint_id for config in report.pruned]


async def test_the_newest_are_kept(checkpointer: Any, probe: Probe) -> None:
    await chain(checkpointer, 6)
    report = await checkpointer.retention.prune("t", keep_last=2)
    assert pruned(report) == ["c1", "c2", "c3", "c4"]
    assert report.kept == 2
    assert await left(checkpointer) == ["c5", "c6"]
    found = await checkpointer.get(CheckpointConfig(thread_id="t", checkpoint_id="c5"))
    assert found.state == {"messages": [f"message {n} " * 30 for n in range(5)]}
    assert found.parent_checkpoint_id is None
    assert probe.problems() == []


async def test_keeping_none_keeps_the_latest_of_each_namespace(checkpointer: Any) -> None:
    await chain(checkpointer, 2)
    await chain(checkpointer, 3, namespace=("child",))
    report = await checkpointer.retention.prune("t", keep_last=0)
    assert [(config.namespace, config.checkpoint_id) for config in report.pruned] == [
        ((), "c1"),
        (("child",), "c1"),
        (("child",), "c2"),
    ]
    assert await left(checkpointer, namespace=()) == ["c2"]
    assert await left(checkpointer, namespace=("child",)) == ["c3"]


async def test_a_prune_that_says_nothing_of_what_to_keep_is_refused(checkpointer: Any) -> None:
    await chain(checkpointer, 2)
    with pytest.raises(InvalidInput, match="keep_last=0 keeps the latest"):
        await checkpointer.retention.prune("t")
    assert await left(checkpointer) == ["c1", "c2"]


@pytest.mark.parametrize(
    "criteria",
    [
        {"keep_last": -1},
        {"keep_runs": True},
        {"keep_last": 1.0},
        {"newer_than": datetime(2026, 1, 1)},
        {"newer_than": timedelta(seconds=-1)},
        {"newer_than": 3600},
    ],
    ids=str,
)
async def test_criteria_that_make_no_sense_are_refused(checkpointer: Any, criteria: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        await checkpointer.retention.prune("t", **criteria)


async def test_the_newest_runs_are_kept_by_their_newest_checkpoints(checkpointer: Any) -> None:
    for number, run in enumerate(["a", "b", None, "a", "c"], start=1):
        await put(checkpointer, number, number - 1 or None, run_id=run)
    await checkpointer.retention.prune("t", keep_runs=2)
    assert await left(checkpointer) == ["c1", "c4", "c5"]


async def test_what_is_newer_than_an_instant_or_an_age_is_kept(checkpointer: Any) -> None:
    await chain(checkpointer, 2)
    await asyncio.sleep(0.05)
    await put(checkpointer, 3, 2)
    await put(checkpointer, 4, 3)
    second = (await checkpointer.list("t", newest_first=False)).items[1]
    kept = await checkpointer.retention.prune("t", newer_than=timedelta(hours=1))
    assert kept.pruned == ()
    report = await checkpointer.retention.prune("t", newer_than=second.created_at)
    assert pruned(report) == ["c1", "c2"]
    await checkpointer.retention.prune("t", newer_than=timedelta(0))
    assert await left(checkpointer) == ["c4"]


async def test_an_age_before_the_calendar_keeps_everything(checkpointer: Any) -> None:
    await chain(checkpointer, 2)
    assert (await checkpointer.retention.prune("t", newer_than=timedelta.max)).pruned == ()


async def test_kept_is_what_any_criterion_keeps(checkpointer: Any) -> None:
    for number, run in enumerate(["a", "a", "b", "b", None, None], start=1):
        await put(checkpointer, number, number - 1 or None, run_id=run)
    await checkpointer.retention.prune("t", keep_last=1, keep_runs=1)
    assert await left(checkpointer) == ["c3", "c4", "c6"]


async def test_the_lineage_of_what_is_kept_is_kept_when_asked_for(checkpointer: Any) -> None:
    await chain(checkpointer, 3)
    await put(checkpointer, 4, 1)
    await put(checkpointer, 5, 4)
    await checkpointer.retention.prune("t", keep_last=0, keep_ancestors=True)
    assert await left(checkpointer) == ["c1", "c4", "c5"]
    history = await checkpointer.history(CheckpointConfig.latest("t"))
    assert [item.checkpoint_id for item in history] == ["c5", "c4", "c1"]


async def test_a_survivor_gets_the_nearest_surviving_ancestor(checkpointer: Any) -> None:
    for number, run in enumerate(["keep", "a", "b", "keep"], start=1):
        await put(checkpointer, number, number - 1 or None, run_id=run)
    await checkpointer.retention.prune("t", keep_runs=1)
    found = await checkpointer.get(CheckpointConfig.latest("t"))
    assert found.parent_checkpoint_id == "c1"


async def test_a_dry_run_says_exactly_what_would_go_and_changes_nothing(checkpointer: Any) -> None:
    await chain(checkpointer, 5)
    before = await checkpointer.get_thread("t")
    planned = await checkpointer.retention.prune("t", keep_last=2, dry_run=True)
    assert planned.dry_run
    assert await checkpointer.get_thread("t") == before
    done = await checkpointer.retention.prune("t", keep_last=2)
    assert not done.dry_run
    assert (done.pruned, done.kept) == (planned.pruned, planned.kept)


async def test_writes_go_with_their_checkpoints(checkpointer: Any, probe: Probe) -> None:
    await chain(checkpointer, 3, pending_writes=(PendingWrite(node="n", payload=1),))
    await checkpointer.retention.prune("t", keep_last=1)
    assert probe.count("pending_writes") == 1


async def test_an_unknown_thread_has_nothing_to_prune(checkpointer: Any) -> None:
    assert await checkpointer.retention.prune("nobody", keep_last=1) == PruneReport(thread_id="nobody")
    previewed = await checkpointer.retention.prune("nobody", keep_last=1, dry_run=True)
    assert previewed == PruneReport(thread_id="nobody", dry_run=True)


async def test_a_leased_thread_is_not_pruned_without_its_token(checkpointer: Any) -> None:
    await chain(checkpointer, 3)
    lease = await checkpointer.runs.acquire_lease("t", "me", ttl_s=60)
    with pytest.raises(StaleFence):
        await checkpointer.retention.prune("t", keep_last=1)
    await checkpointer.retention.prune("t", keep_last=1, lease_token=lease)
    assert await left(checkpointer) == ["c3"]


async def test_pruning_is_no_activity(checkpointer: Any) -> None:
    await chain(checkpointer, 3)
    before = await checkpointer.get_thread("t")
    await checkpointer.retention.prune("t", keep_last=1)
    assert (await checkpointer.get_thread("t")).updated_at == before.updated_at <= datetime.now(UTC)


async def test_a_writer_with_a_memory_of_its_own_goes_on_after_a_prune(opener: Any, probe: Probe) -> None:
    async with opener() as writer, opener() as operator:
        await chain(writer, 20)
        await operator.retention.prune("t", keep_last=1)
        await put(writer, 21, 20)
        found = await operator.get(CheckpointConfig.latest("t"))
        assert found.state == {"messages": [f"message {n} " * 30 for n in range(21)]}
        assert probe.problems() == []
