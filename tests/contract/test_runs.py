"""Runs: looking them up, finishing them, deleting them, and what a worker needs to go on with one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from clew import (
    AgentCheckpoint,
    AgentExecutionNode,
    Checkpoint,
    CheckpointConfig,
    InvalidInput,
    NotFound,
    PendingActivation,
    PendingWrite,
    RunFinished,
    RunStatus,
    StaleFence,
)

from agents import boundary, usage
from awaiting import executor


async def start(checkpointer: Any, run_id: str, thread_id: str = "t", **fields: Any) -> None:
    checkpoint = boundary(1, f"ck-{run_id}", run_id=run_id, thread_id=thread_id, **fields)
    await executor(checkpointer).checkpoint(checkpoint)


async def test_a_run_that_is_not_there_is_none(checkpointer: Any) -> None:
    assert await checkpointer.runs.get("r") is None
    assert await checkpointer.runs.resume_snapshot("r") is None
    assert (await checkpointer.runs.boundaries("r")).items == ()
    assert (await checkpointer.runs.list()).items == ()
    assert await checkpointer.runs.usage("t") == usage()


async def test_a_run_id_of_two_threads_needs_the_thread_named(checkpointer: Any) -> None:
    await start(checkpointer, "r", "one")
    await start(checkpointer, "r", "two")
    with pytest.raises(InvalidInput, match="several threads"):
        await checkpointer.runs.get("r")
    assert (await checkpointer.runs.get("r", thread_id="two")).thread_id == "two"
    await checkpointer.runs.finish("r", "cancelled", thread_id="one")
    assert (await checkpointer.runs.get("r", thread_id="two")).status is RunStatus.RUNNING


async def test_runs_are_listed_last_started_first_page_by_page(checkpointer: Any) -> None:
    for number in range(5):
        await start(checkpointer, f"r{number}", f"t{number % 2}")
    seen: list[str] = []
    cursor = None
    while True:
        page = await checkpointer.runs.list(limit=2, cursor=cursor)
        seen += [run.run_id for run in page.items]
        if (cursor := page.next_cursor) is None:
            break
    assert seen == ["r4", "r3", "r2", "r1", "r0"]
    assert [run.run_id for run in (await checkpointer.runs.list(thread_id="t1")).items] == ["r3", "r1"]


async def test_runs_are_listed_by_status_and_by_parent(checkpointer: Any) -> None:
    await start(checkpointer, "r0")
    await start(checkpointer, "r1", parent_run_id="r0")
    await start(checkpointer, "r2", status=RunStatus.WAITING, parent_run_id="r0")
    await checkpointer.runs.finish("r0", RunStatus.COMPLETED)

    async def named(**filters: Any) -> list[str]:
        return [run.run_id for run in (await checkpointer.runs.list(**filters)).items]

    assert await named(status="completed") == ["r0"]
    assert await named(status=RunStatus.WAITING) == ["r2"]
    assert await named(status=["waiting", RunStatus.RUNNING]) == ["r2", "r1"]
    assert await named(parent_run_id="r0") == ["r2", "r1"]
    assert await named(parent_run_id="r0", status="running") == ["r1"]
    with pytest.raises(InvalidInput, match="status 'done'"):
        await named(status="done")


@pytest.mark.parametrize("limit", [0, -1, True, 10_001])
async def test_a_limit_out_of_range_is_refused(checkpointer: Any, limit: Any) -> None:
    for listing in (checkpointer.runs.list, checkpointer.runs.list_resumable):
        with pytest.raises(InvalidInput, match="limit"):
            await listing(limit=limit)


async def test_a_cursor_of_another_listing_is_refused(checkpointer: Any) -> None:
    for number in range(2):
        await start(checkpointer, f"r{number}")
    cursor = (await checkpointer.runs.list(limit=1)).next_cursor
    for refused in (
        lambda: checkpointer.runs.list_resumable(cursor=cursor),
        lambda: checkpointer.runs.boundaries("r0", cursor=cursor),
        lambda: checkpointer.runs.list(cursor="x"),
    ):
        with pytest.raises(InvalidInput, match="cursor"):
            await refused()


async def test_a_failed_run_needs_an_error_and_no_other_has_one(checkpointer: Any) -> None:
    for run_id in ("a", "b", "c"):
        await start(checkpointer, run_id)
    with pytest.raises(InvalidInput, match="needs an error"):
        await checkpointer.runs.finish("a", "failed")
    for status in ("completed", "cancelled"):
        with pytest.raises(InvalidInput, match="has no error"):
            await checkpointer.runs.finish("a", status, "why")
    for status in ("running", "waiting", "done"):
        with pytest.raises(InvalidInput):
            await checkpointer.runs.finish("a", status)
    failed = await checkpointer.runs.finish("a", "failed", "tool 'x' timed out\nat step 3")
    assert (failed.status, failed.error) == (RunStatus.FAILED, "tool 'x' timed out\nat step 3")
    assert failed.finished_at == failed.updated_at
    assert (await checkpointer.runs.finish("b", RunStatus.COMPLETED)).error is None
    assert (await checkpointer.runs.finish("c", "cancelled")).status is RunStatus.CANCELLED


async def test_finishing_again_the_same_way_changes_nothing_another_way_is_refused(checkpointer: Any) -> None:
    await start(checkpointer, "r")
    first = await checkpointer.runs.finish("r", "failed", "why")
    assert await checkpointer.runs.finish("r", "failed", "why") == first
    for status, error in (("failed", "another"), ("completed", None)):
        with pytest.raises(RunFinished):
            await checkpointer.runs.finish("r", status, error)
    with pytest.raises(RunFinished):
        await checkpointer.runs.request_suspend("r", "too late")


async def test_what_is_asked_of_a_run_that_is_not_there_is_told(checkpointer: Any) -> None:
    for refused in (
        lambda: checkpointer.runs.finish("r", "completed"),
        lambda: checkpointer.runs.request_suspend("r", "why"),
        lambda: checkpointer.runs.finish("r", "completed", thread_id="t"),
    ):
        with pytest.raises(NotFound, match="'r'"):
            await refused()


async def test_a_run_of_a_leased_thread_is_finished_by_the_holder_and_asked_by_anybody(checkpointer: Any) -> None:
    await start(checkpointer, "r")
    token = await checkpointer.runs.acquire_lease("t", "alice", 60)
    with pytest.raises(StaleFence):
        await checkpointer.runs.finish("r", "cancelled")
    await checkpointer.runs.request_suspend("r", "please")
    await checkpointer.runs.finish("r", "cancelled", lease_token=token)


async def test_the_usage_of_a_thread_is_the_sum_of_its_runs(checkpointer: Any) -> None:
    for number in (1, 2, 3):
        await executor(checkpointer).checkpoint(boundary(number, run_id=f"r{number}"))
    await start(checkpointer, "elsewhere", "another")
    assert await checkpointer.runs.usage("t") == usage(6, 6)


async def test_resumable_are_the_waiting_runs_and_the_running_ones_that_nobody_holds(checkpointer: Any) -> None:
    await start(checkpointer, "waiting", "t1", status=RunStatus.WAITING)
    await start(checkpointer, "unheld", "t2")
    await start(checkpointer, "held", "t3")
    await start(checkpointer, "lapsed", "t4", status=RunStatus.STARTING)
    await start(checkpointer, "finished", "t5")
    await checkpointer.runs.finish("finished", "completed")
    await checkpointer.runs.acquire_lease("t3", "alice", 60)
    await checkpointer.runs.acquire_lease("t4", "bob", 0.05)
    await asyncio.sleep(0.1)
    found = await checkpointer.runs.list_resumable()
    assert [run.run_id for run in found.items] == ["waiting", "unheld", "lapsed"]
    page = await checkpointer.runs.list_resumable(limit=1)
    rest = await checkpointer.runs.list_resumable(limit=5, cursor=page.next_cursor)
    assert [run.run_id for run in (*page.items, *rest.items)] == ["waiting", "unheld", "lapsed"]
    assert [run.run_id for run in (await checkpointer.runs.list_resumable(thread_id="t2")).items] == ["unheld"]


async def test_a_resume_snapshot_says_everything_at_once(checkpointer: Any) -> None:
    calls = [{"id": "call-1", "name": "a"}, {"id": "call-2", "name": "b"}, {"name": "nameless"}]
    worker = executor(checkpointer)
    await worker.checkpoint(boundary(0))
    last = boundary(1, node="tool_call", pending_tool_calls=calls)
    await worker.checkpoint(last)
    config = CheckpointConfig(thread_id="t", checkpoint_id="ck1")
    write = PendingWrite(node="tool_call", payload={"result": 7}, task_id="call-1")
    failed = PendingWrite(node="tool_call", payload="error", task_id="call-2", idx=-2)
    await checkpointer.put_writes(config, [write, failed])
    snapshot = await checkpointer.runs.resume_snapshot("r")
    assert snapshot.run == await checkpointer.runs.get("r")
    assert snapshot.config == config
    assert snapshot.checkpoint == last
    assert snapshot.evidence == last.resume
    assert snapshot.writes == (write, failed)
    assert snapshot.to_run == (
        PendingActivation(node="tool_call", send_arg=calls[1], task_id="call-2"),
        PendingActivation(node="tool_call", send_arg=calls[2], task_id=""),
    )


async def test_a_copied_run_goes_on_in_the_copy(checkpointer: Any) -> None:
    worker = executor(checkpointer)
    await worker.checkpoint(boundary(0))
    await checkpointer.timeline.copy_thread("t", "copy")
    snapshot = await checkpointer.runs.resume_snapshot("r", thread_id="copy")
    state = snapshot.checkpoint.state.model_copy(update={"run_step": 1})
    await worker.checkpoint(AgentCheckpoint.new(AgentExecutionNode.MODEL_RESPONSE, state, checkpoint_id="next"))
    assert [item.checkpoint_id for item in (await checkpointer.list("t")).items] == ["ck0"]
    assert [item.checkpoint_id for item in (await checkpointer.list("copy")).items] == ["next", "ck0"]
    passed = await checkpointer.runs.boundaries("r", thread_id="copy")
    assert [item.checkpoint_id for item in passed.items] == ["next", "ck0"]


async def test_boundaries_are_paged_last_first(checkpointer: Any) -> None:
    worker = executor(checkpointer)
    for step in range(5):
        await worker.checkpoint(boundary(step))
    first = await checkpointer.runs.boundaries("r", limit=3)
    second = await checkpointer.runs.boundaries("r", limit=3, cursor=first.next_cursor)
    assert [item.checkpoint_id for item in first.items] == ["ck4", "ck3", "ck2"]
    assert [item.checkpoint_id for item in second.items] == ["ck1", "ck0"]
    assert second.next_cursor is None


async def test_deleting_by_run_takes_record_and_evidence_along(checkpointer: Any) -> None:
    for run_id in ("run-1", "run-2"):
        for step in range(2):
            checkpoint = boundary(step, f"{run_id}-{step}", run_id=run_id)
            await executor(checkpointer).checkpoint(checkpoint)
    await checkpointer.put(Checkpoint(thread_id="t", checkpoint_id="none", state=None))
    assert await checkpointer.delete_by_run("run-2") == 2
    assert await checkpointer.runs.get("run-2") is None
    assert (await checkpointer.runs.boundaries("run-2")).items == ()
    assert (await checkpointer.runs.get("run-1")).step == 1
    left = [item.checkpoint_id for item in (await checkpointer.list("t")).items]
    assert left == ["none", "run-1-1", "run-1-0"]


async def test_deleting_by_run_takes_a_record_without_checkpoints_too(checkpointer: Any) -> None:
    await start(checkpointer, "r")
    await checkpointer.delete_checkpoints("t", ["ck-r"])
    assert (await checkpointer.runs.get("r")).run_id == "r"
    assert await checkpointer.runs.resume_snapshot("r") is None
    assert await checkpointer.delete_by_run("r") == 0
    assert await checkpointer.runs.get("r") is None


async def test_a_deleted_run_starts_anew_under_the_same_executor(checkpointer: Any) -> None:
    worker = executor(checkpointer)
    for step in range(3):
        await worker.checkpoint(boundary(step))
    await checkpointer.delete_by_run("r")
    await worker.checkpoint(boundary(7))
    assert (await checkpointer.runs.get("r")).step == 7
    assert [item.parent_checkpoint_id for item in (await checkpointer.list("t")).items] == [None]


async def test_deleting_a_thread_takes_its_runs_along(checkpointer: Any) -> None:
    await start(checkpointer, "r")
    assert await checkpointer.delete_thread("t") is True
    assert (await checkpointer.runs.list()).items == ()
    await start(checkpointer, "r")
    assert (await checkpointer.runs.get("r")).checkpoint_id == "ck-r"
