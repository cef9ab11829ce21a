"""The executor: checkpoint, evidence and run at once, and what its policy decides."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from clew import (
    AgentCheckpoint,
    AgentExecutionNode,
    AgentExecutorError,
    AgentResumeCursor,
    AgentResumeEvidence,
    AlreadyExists,
    Checkpoint,
    CheckpointConfig,
    Continue,
    InvalidInput,
    RunFinished,
    RunStatus,
    Suspend,
    TraceContext,
    Unserializable,
    Usage,
    always_continue,
    first_to_suspend,
    suspend_when_asked,
    suspend_while_approvals_are_pending,
)

from agents import boundary, run_state, usage
from awaiting import executor

LATEST = CheckpointConfig.latest("t")

FULL = AgentCheckpoint(
    checkpoint_id="ckpt_full",
    run_id="r",
    conversation_id="t",
    node=AgentExecutionNode.TOOL_CALL,
    run_step=3,
    resume=AgentResumeEvidence(
        node=AgentExecutionNode.TOOL_RETURN,
        status=RunStatus.WAITING,
        run_step=4,
        cursor=AgentResumeCursor(
            model_request_attempt=5,
            tool_call_batch_id="tool_batch_3",
            output_validation_attempt=6,
            stream_cursor=7,
            message_cursor=8,
        ),
        usage=Usage(
            requests=1,
            input_tokens=2,
            cache_write_tokens=3,
            cache_write_1h_tokens=4,
            cache_read_tokens=5,
            output_tokens=6,
            total_tokens=7,
            tool_calls=8,
        ),
        context_revision="rev-9",
        environment_ref="env-10",
        pending_approval_count=11,
        deferred_tool_count=12,
        trace_context=TraceContext(
            trace_id="tr", span_id="sp", parent_span_id="pa", trace_state="st", metadata={"x": [1, 2.5, None]}
        ),
        metadata={"a.b": {"deep": [True, None]}},
    ),
    state=run_state(
        3,
        status=RunStatus.RUNNING,
        output="so far",
        structured_output={"k": [1, {"z": None}]},
        latest_response={"parts": [{"text": "hi"}]},
        pending_tool_calls=[{"id": "call-1", "name": "search"}],
        pending_tool_returns=[{"id": "call-0"}],
        pending_approval_tool_returns=[{"id": "call-2"}],
        deferred_tool_returns=[{"id": "call-3"}],
        idle_messages=["wait"],
        parent_run_id="parent",
        parent_task_id="task",
        metadata={"context_revision": "rev-9", "n": 1},
    ),
    metadata={"why": "test", "flag": True},
)


async def test_committing_for_an_unknown_run_creates_thread_and_run(checkpointer: Any) -> None:
    decision = await executor(checkpointer).checkpoint(boundary(0, node="run_start"))
    assert decision == Continue()
    run = await checkpointer.runs.get("r")
    assert (run.thread_id, run.status, run.node, run.step) == ("t", RunStatus.RUNNING, "run_start", 0)
    assert (run.checkpoint_id, run.finished_at, run.error) == ("ck0", None, None)
    assert run.started_at == run.updated_at == (await checkpointer.list("t")).items[0].created_at
    assert (await checkpointer.get_thread("t")).checkpoint_count == 1


async def test_a_full_record_comes_back_equal_also_as_json(checkpointer: Any) -> None:
    await executor(checkpointer).checkpoint(FULL)
    read = await checkpointer.runs.get_checkpoint(LATEST)
    assert read == FULL
    assert read.to_json() == FULL.to_json()
    (passed,) = (await checkpointer.runs.boundaries("r")).items
    assert (passed.checkpoint_id, passed.evidence) == ("ckpt_full", FULL.resume)


async def test_each_boundary_brings_the_run_forward_and_follows_the_one_before(checkpointer: Any) -> None:
    worker = executor(checkpointer)
    for step in range(5):
        await worker.checkpoint(boundary(step))
    run = await checkpointer.runs.get("r")
    assert (run.step, run.checkpoint_id, run.usage) == (4, "ck4", usage(4, 4))
    assert run.updated_at >= run.started_at
    lineage = [item.checkpoint_id for item in await checkpointer.history(LATEST)]
    assert lineage == ["ck4", "ck3", "ck2", "ck1", "ck0"]
    assert [item.step for item in (await checkpointer.list("t")).items] == [4, 3, 2, 1, 0]
    passed = (await checkpointer.runs.boundaries("r")).items
    assert [item.evidence.cursor.message_cursor for item in passed] == [4, 3, 2, 1, 0]


async def test_the_keys_of_the_state_are_channels(checkpointer: Any) -> None:
    await executor(checkpointer).checkpoint(boundary(2))
    read = await checkpointer.get_tuple(LATEST, channels=["run_step", "usage"])
    assert read.checkpoint.state["run_step"] == 2
    assert set(read.checkpoint.state) == {"run_step", "usage"}


async def test_a_second_run_of_a_conversation_follows_the_head(checkpointer: Any) -> None:
    worker = executor(checkpointer)
    await worker.checkpoint(boundary(0, "a", run_id="one"))
    await worker.checkpoint(boundary(0, "b", run_id="two"))
    await worker.checkpoint(boundary(1, "c", run_id="one"))
    parents = {item.checkpoint_id: item.parent_checkpoint_id for item in (await checkpointer.list("t")).items}
    assert parents == {"a": None, "b": "a", "c": "a"}


async def test_a_run_goes_on_from_another_process_and_beside_plain_puts(opener: Any) -> None:
    async with opener() as one, opener() as other:
        await executor(one).checkpoint(boundary(0))
        await executor(other).checkpoint(boundary(1))
        await other.put(Checkpoint(thread_id="t", checkpoint_id="by-hand", state=None))
        await executor(one).checkpoint(boundary(2))
        parents = {item.checkpoint_id: item.parent_checkpoint_id for item in (await one.list("t")).items}
        assert parents == {"ck0": None, "ck1": "ck0", "by-hand": None, "ck2": "ck1"}


async def test_a_run_whose_last_checkpoint_was_deleted_follows_its_last_that_is_left(checkpointer: Any) -> None:
    worker = executor(checkpointer)
    for step in range(3):
        await worker.checkpoint(boundary(step))
    await checkpointer.delete_checkpoints("t", ["ck2"])
    await worker.checkpoint(boundary(3))
    assert [item.checkpoint_id for item in await checkpointer.history(LATEST)] == ["ck3", "ck1", "ck0"]


async def test_the_same_checkpoint_again_changes_nothing(checkpointer: Any) -> None:
    worker = executor(checkpointer)
    for step in range(3):
        await worker.checkpoint(boundary(step))
    before = (await checkpointer.runs.get("r"), await checkpointer.list("t"))
    for step in (2, 0):
        assert await worker.checkpoint(boundary(step)) == Continue()
    assert (await checkpointer.runs.get("r"), await checkpointer.list("t")) == before


@pytest.mark.invariant(45)
@pytest.mark.parametrize(
    "other",
    [
        boundary(1, "ck0"),
        boundary(0, "ck0", status=RunStatus.WAITING),
        boundary(0, "ck0").with_metadata({"n": 1}),
        boundary(0, "ck0").with_stream_cursor(1),
        boundary(0, "ck0", node="tool_call"),
    ],
    ids=["step", "status", "metadata", "evidence", "node"],
)
async def test_a_different_checkpoint_under_the_id_is_a_conflict(checkpointer: Any, other: Any) -> None:
    worker = executor(checkpointer)
    await worker.checkpoint(boundary(0))
    with pytest.raises(AlreadyExists):
        await worker.checkpoint(other)
    assert await checkpointer.runs.get_checkpoint(LATEST) == boundary(0)
    assert (await checkpointer.runs.get("r")).step == 0


async def test_a_finished_run_takes_no_further_checkpoint(checkpointer: Any) -> None:
    worker = executor(checkpointer)
    await worker.checkpoint(boundary(0))
    last = boundary(1, node="run_complete", status=RunStatus.COMPLETED)
    await worker.checkpoint(last)
    run = await checkpointer.runs.get("r")
    assert (run.status, run.error, run.finished_at) == (RunStatus.COMPLETED, None, run.updated_at)
    with pytest.raises(RunFinished):
        await worker.checkpoint(boundary(2))
    assert await worker.checkpoint(last) == Continue()
    assert len((await checkpointer.list("t")).items) == 2


async def test_a_run_finished_from_elsewhere_takes_no_further_checkpoint(opener: Any) -> None:
    async with opener() as one, opener() as other:
        worker = executor(one)
        for step in range(3):
            await worker.checkpoint(boundary(step))
        await other.runs.finish("r", "cancelled")
        with pytest.raises(RunFinished):
            await worker.checkpoint(boundary(3))


async def test_a_run_that_fails_at_a_boundary_has_the_error_that_its_metadata_names(checkpointer: Any) -> None:
    worker = executor(checkpointer)
    failed = boundary(0, "a", node="run_failed", status=RunStatus.FAILED, run_id="told")
    await worker.checkpoint(failed.with_metadata({"error": "no such tool"}))
    await worker.checkpoint(boundary(1, "b", node="run_failed", status=RunStatus.FAILED, run_id="untold"))
    assert (await checkpointer.runs.get("told")).error == "no such tool"
    assert (await checkpointer.runs.get("untold")).error == "failed at run_failed, step 1"


async def test_a_checkpoint_that_cannot_be_stored_leaves_neither_thread_nor_run(checkpointer: Any) -> None:
    with pytest.raises(Unserializable, match=r"message_history\[0\]\.content"):
        await executor(checkpointer).checkpoint(boundary(0, message_history=[{"content": object()}]))
    too_many = usage(2**63, 0)
    with pytest.raises(InvalidInput, match="requests"):
        await executor(checkpointer).checkpoint(boundary(0, usage=too_many))
    with pytest.raises(InvalidInput, match="parent_run_id"):
        await executor(checkpointer).checkpoint(boundary(0, parent_run_id="a\0b"))
    with pytest.raises(InvalidInput, match="context_revision"):
        await executor(checkpointer).checkpoint(boundary(0, metadata={"context_revision": "a\0b"}))
    assert await checkpointer.get_thread("t") is None
    assert await checkpointer.runs.get("r") is None


async def test_a_boundary_leaves_the_other_runs_of_its_thread_as_they_are(checkpointer: Any) -> None:
    worker = executor(checkpointer)
    await worker.checkpoint(boundary(1, "a1", run_id="a"))
    before = await checkpointer.runs.get("a")
    for step in (1, 2, 3):
        await worker.checkpoint(boundary(step, f"b{step}", run_id="b"))
    assert await checkpointer.runs.get("a") == before


async def test_a_key_that_the_states_json_leaves_out_is_no_channel(checkpointer: Any) -> None:
    await executor(checkpointer).checkpoint(boundary(1))
    stored = (await checkpointer.get(CheckpointConfig.latest("t"))).state
    assert sorted(stored) == ["conversation_id", "message_history", "run_id", "run_step", "status", "usage"]


async def test_pending_approvals_suspend_the_run_until_they_are_given(checkpointer: Any) -> None:
    worker = executor(checkpointer, policy=suspend_while_approvals_are_pending)
    assert await worker.checkpoint(boundary(0)) == Continue()
    asking = boundary(1, pending_approval_tool_returns=[{"id": "a"}, {"id": "b"}])
    assert await worker.checkpoint(asking) == Suspend(reason="2 approvals pending")
    run = await checkpointer.runs.get("r")
    assert (run.status, run.suspend_reason) == (RunStatus.WAITING, "2 approvals pending")
    assert await worker.checkpoint(asking) == Suspend(reason="2 approvals pending")
    assert await worker.checkpoint(boundary(2)) == Continue()
    run = await checkpointer.runs.get("r")
    assert (run.status, run.suspend_reason) == (RunStatus.RUNNING, None)


async def test_a_request_from_elsewhere_suspends_the_run_at_its_next_boundary_once(opener: Any) -> None:
    async with opener() as one, opener() as other:
        worker = executor(one)
        for step in range(2):
            assert await worker.checkpoint(boundary(step)) == Continue()
        asked = await other.runs.request_suspend("r", "deploy at noon")
        assert (asked.suspend_reason, asked.status) == ("deploy at noon", RunStatus.RUNNING)
        assert asked.suspend_requested_at is not None
        assert await worker.checkpoint(boundary(2)) == Suspend(reason="deploy at noon")
        run = await one.runs.get("r")
        assert (run.status, run.suspend_requested_at) == (RunStatus.WAITING, None)
        assert await worker.checkpoint(boundary(2)) == Suspend(reason="deploy at noon")
        assert await worker.checkpoint(boundary(3)) == Continue()
        assert await worker.checkpoint(boundary(4)) == Continue()


async def test_a_policy_that_does_not_listen_leaves_the_request_standing(checkpointer: Any) -> None:
    deaf, listening = executor(checkpointer, policy=always_continue), executor(checkpointer)
    await deaf.checkpoint(boundary(0))
    await checkpointer.runs.request_suspend("r", "stop")
    for step in (1, 2):
        assert await deaf.checkpoint(boundary(step)) == Continue()
    assert await listening.checkpoint(boundary(3)) == Suspend(reason="stop")


async def test_of_several_policies_the_first_that_suspends_decides(checkpointer: Any) -> None:
    policy = first_to_suspend(suspend_when_asked, suspend_while_approvals_are_pending)
    worker = executor(checkpointer, policy=policy)
    pending = [{"id": "a"}]
    assert await worker.checkpoint(boundary(0)) == Continue()
    first = await worker.checkpoint(boundary(1, pending_approval_tool_returns=pending))
    assert first == Suspend(reason="1 approval pending")
    await checkpointer.runs.request_suspend("r", "stop")
    second = await worker.checkpoint(boundary(2, pending_approval_tool_returns=pending))
    assert second == Suspend(reason="stop")


async def test_a_policy_sees_the_run_as_the_boundary_leaves_it(checkpointer: Any) -> None:
    seen: list[tuple[int, str | None, int]] = []

    def policy(evidence: Any, run: Any) -> Any:
        seen.append((evidence.run_step, run.checkpoint_id, run.usage.requests))
        return Continue()

    worker = executor(checkpointer, policy=policy)
    for step in range(3):
        await worker.checkpoint(boundary(step))
    assert seen == [(0, "ck0", 0), (1, "ck1", 1), (2, "ck2", 2)]


@pytest.mark.invariant(44)
async def test_a_policy_that_fails_stores_nothing(checkpointer: Any) -> None:
    def policy(evidence: Any, run: Any) -> Any:
        raise LookupError("secret")

    with pytest.raises(AgentExecutorError, match="LookupError") as told:
        await executor(checkpointer, policy=policy).checkpoint(boundary(0))
    assert isinstance(told.value.__cause__, LookupError)
    assert await checkpointer.get_thread("t") is None
    await executor(checkpointer).checkpoint(boundary(0))


async def test_a_failing_database_is_an_executor_error(checkpointer: Any) -> None:
    worker = executor(checkpointer)
    await worker.checkpoint(boundary(0))

    def broken(*_: Any, **__: Any) -> Any:
        from clew import StorageUnavailable

        raise StorageUnavailable("gone")

    wrapped = getattr(worker, "_wrapped", worker)
    wrapped._driver.database.run = broken
    with pytest.raises(AgentExecutorError, match="gone"):
        await worker.checkpoint(boundary(1))
    del wrapped._driver.database.run


async def test_runs_of_many_conversations_go_on_side_by_side(checkpointer: Any) -> None:
    worker = executor(checkpointer)

    async def converse(number: int) -> None:
        for step in range(6):
            await worker.checkpoint(boundary(step, f"{number}-{step}", run_id=f"r{number}", thread_id=f"t{number}"))

    await asyncio.gather(*map(converse, range(6)))
    runs = (await checkpointer.runs.list()).items
    assert sorted((run.run_id, run.step) for run in runs) == [(f"r{number}", 5) for number in range(6)]


async def test_a_namespace_that_is_one_string_is_refused(checkpointer: Any) -> None:
    with pytest.raises(InvalidInput, match="namespace"):
        executor(checkpointer, namespace="inner")


async def test_an_executor_in_a_namespace_keeps_to_it(checkpointer: Any) -> None:
    await checkpointer.put(Checkpoint(thread_id="t", checkpoint_id="root", state=None))
    worker = executor(checkpointer, namespace=("inner",))
    await worker.checkpoint(boundary(0))
    await worker.checkpoint(boundary(1))
    inner = CheckpointConfig.latest("t", ("inner",))
    assert [item.checkpoint_id for item in await checkpointer.history(inner)] == ["ck1", "ck0"]
    snapshot = await checkpointer.runs.resume_snapshot("r")
    assert snapshot.config == CheckpointConfig(thread_id="t", checkpoint_id="ck1", namespace=("inner",))
