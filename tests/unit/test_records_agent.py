"""The agent side's records: JSON as starweaver writes it, the evidence's rules, decisions, the envelope."""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from clew.errors import InvalidInput, UnknownSchema, UnknownVersion
from clew.records import (
    AgentCheckpoint,
    AgentExecutionDecision,
    AgentExecutionNode,
    AgentExecutor,
    AgentResumeCursor,
    AgentResumeEvidence,
    AgentRunState,
    AsyncAgentExecutor,
    AsyncDirectAgentExecutor,
    Continue,
    DirectAgentExecutor,
    RunStatus,
    Suspend,
    TraceContext,
    Usage,
    decision_adapter,
)
from clew.records.record import Record

UPSTREAM = Path(__file__).parents[2].parent / "shared" / "upstream"

needs_upstream = pytest.mark.skipif(
    not UPSTREAM.is_dir(), reason="the source systems' files are not beside the project"
)


def canonical(value: Any) -> str:
    """JSON text in which 1, 1.0 and true differ, and the order of keys does not matter."""
    return json.dumps(value, sort_keys=True)


def assert_unchanged(model: type[Record], text: str) -> None:
    record = model.model_validate_json(text)
    assert canonical(record.model_dump(mode="json")) == canonical(json.loads(text))
    assert canonical(json.loads(record.model_dump_json())) == canonical(json.loads(text))
    assert model.model_validate(json.loads(text)) == record


PLAIN_USAGE = """{"requests": 1, "input_tokens": 20, "cache_write_tokens": 0, "cache_read_tokens": 0,
  "output_tokens": 5, "total_tokens": 25, "tool_calls": 0}"""

FULL_USAGE = """{"requests": 3, "input_tokens": 20, "cache_write_tokens": 4, "cache_write_1h_tokens": 2,
  "cache_read_tokens": 6, "output_tokens": 5, "total_tokens": 18446744073709551615, "tool_calls": 7}"""

PLAIN_STATE = f"""{{"run_id": "r1", "conversation_id": "t1", "message_history": [], "usage": {PLAIN_USAGE},
  "run_step": 0, "status": "running"}}"""

FULL_STATE = f"""{{
  "run_id": "r1", "conversation_id": "t1",
  "message_history": [
    {{"kind": "request",
      "parts": [{{"text": "a\\u0000b", "vendor": {{"n": -0.0, "x": 1e22, "id": 18446744073709551616}}}}]}},
    {{"kind": "response", "parts": [], "metadata": {{}}, "extra": null}}
  ],
  "usage": {FULL_USAGE}, "run_step": 4, "status": "waiting", "output": "",
  "structured_output": {{"answer": [1, 1.0, true]}}, "latest_response": false,
  "pending_tool_calls": [{{"id": "call-1", "name": "search", "arguments": {{"q": null}}}}],
  "pending_tool_returns": [{{"id": "call-0", "content": ["x"]}}],
  "pending_approval_tool_returns": [{{"id": "call-2"}}, {{"id": "call-3"}}],
  "deferred_tool_returns": [{{"id": "call-4", "unknown": {{}}}}],
  "idle_messages": ["later"], "parent_run_id": "r0", "parent_task_id": "k0",
  "metadata": {{"context_revision": "rev-9", "environment_ref": "env-2", "empty": {{}}, "nothing": null}}
}}"""

PLAIN_EVIDENCE = f"""{{"node": "run_start", "status": "starting", "run_step": 0,
  "cursor": {{"model_request_attempt": 0, "output_validation_attempt": 0, "message_cursor": 0}},
  "usage": {PLAIN_USAGE}, "pending_approval_count": 0, "deferred_tool_count": 0}}"""

FULL_TRACE = """{"trace_id": "tr", "span_id": "sp", "parent_span_id": "pa", "trace_state": "st",
  "metadata": {"sampled": true, "nothing": null}}"""

FULL_EVIDENCE = f"""{{"node": "tool_call", "status": "waiting", "run_step": 4,
  "cursor": {{"model_request_attempt": 4, "tool_call_batch_id": "tool_batch_4", "output_validation_attempt": 1,
    "stream_cursor": 0, "message_cursor": 2}},
  "usage": {FULL_USAGE}, "context_revision": "rev-9", "environment_ref": "", "pending_approval_count": 2,
  "deferred_tool_count": 1, "trace_context": {FULL_TRACE}, "metadata": {{"shard": 3}}}}"""

FULL_CHECKPOINT = f"""{{"checkpoint_id": "ckpt_1", "run_id": "r1", "conversation_id": "t1", "node": "tool_call",
  "run_step": 4, "resume": {FULL_EVIDENCE}, "state": {FULL_STATE}, "metadata": {{"tool": "search"}}}}"""

PLAIN_CHECKPOINT = f"""{{"checkpoint_id": "ckpt_1", "run_id": "r1", "conversation_id": "t1", "node": "run_start",
  "run_step": 0, "resume": {PLAIN_EVIDENCE}, "state": {PLAIN_STATE}}}"""


def full_state() -> AgentRunState:
    return AgentRunState.model_validate_json(FULL_STATE)


def plain_state(**changes: Any) -> AgentRunState:
    return AgentRunState.model_validate({**json.loads(PLAIN_STATE), **changes})


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (Usage, PLAIN_USAGE),
        (Usage, FULL_USAGE),
        (AgentRunState, PLAIN_STATE),
        (AgentRunState, FULL_STATE),
        (TraceContext, "{}"),
        (TraceContext, '{"span_id": ""}'),
        (TraceContext, FULL_TRACE),
        (AgentResumeCursor, '{"model_request_attempt": 1, "output_validation_attempt": 2, "message_cursor": 3}'),
        (AgentResumeEvidence, PLAIN_EVIDENCE),
        (AgentResumeEvidence, FULL_EVIDENCE),
        (AgentCheckpoint, PLAIN_CHECKPOINT),
        (AgentCheckpoint, FULL_CHECKPOINT),
    ],
)
def test_json_of_starweaver_goes_through_unchanged(model: type[Record], text: str) -> None:
    assert_unchanged(model, text)


TEXT = st.text(st.characters(exclude_categories=["Cs"]))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
OBJECTS = st.dictionaries(TEXT, JSON, max_size=3)
PRESENT = JSON.filter(lambda value: value is not None)


@given(
    st.fixed_dictionaries(
        {"message_history": st.lists(JSON, max_size=3)},
        optional={
            "structured_output": PRESENT,
            "latest_response": PRESENT,
            "output": TEXT,
            "pending_tool_calls": st.lists(OBJECTS, min_size=1, max_size=2),
            "deferred_tool_returns": st.lists(OBJECTS, min_size=1, max_size=2),
            "idle_messages": st.lists(TEXT, min_size=1, max_size=2),
            "metadata": OBJECTS.filter(bool),
        },
    )
)
def test_any_run_state_goes_through_unchanged(fields: dict[str, Any]) -> None:
    assert_unchanged(AgentRunState, json.dumps({**json.loads(PLAIN_STATE), **fields}))


def test_what_is_null_or_empty_is_read_and_left_out_again() -> None:
    document = json.loads(PLAIN_STATE)
    spelled_out = {**document, "output": None, "structured_output": None, "pending_tool_calls": [], "metadata": {}}
    assert AgentRunState.model_validate(spelled_out).model_dump(mode="json") == document


def test_an_empty_trace_context_is_left_out_of_the_evidence() -> None:
    document = json.loads(PLAIN_EVIDENCE)
    read = AgentResumeEvidence.model_validate({**document, "trace_context": {"trace_id": None, "metadata": {}}})
    assert read.trace_context.is_empty
    assert read.model_dump(mode="json") == document


@pytest.mark.parametrize("said", [{"trace_id": "t"}, {"trace_state": ""}, {"metadata": {"a": None}}])
def test_a_trace_context_that_says_anything_is_not_empty(said: dict[str, Any]) -> None:
    assert not TraceContext.model_validate(said).is_empty


def test_unknown_keys_beside_a_records_fields_are_ignored() -> None:
    assert Usage.model_validate({**json.loads(PLAIN_USAGE), "audio_tokens": 1}) == Usage.model_validate_json(
        PLAIN_USAGE
    )


@pytest.mark.parametrize("wrong", [True, 1.0, "1", -1, None, 2**64])
def test_a_count_is_an_unsigned_integer(wrong: Any) -> None:
    with pytest.raises(ValidationError) as refusal:
        Usage.model_validate({**json.loads(PLAIN_USAGE), "requests": wrong})
    assert refusal.value.errors()[0]["loc"] == ("requests",)


def test_usage_is_added_field_by_field() -> None:
    first = Usage(
        requests=1,
        input_tokens=2,
        cache_write_tokens=3,
        cache_write_1h_tokens=4,
        cache_read_tokens=5,
        output_tokens=6,
        total_tokens=7,
        tool_calls=8,
    )
    assert first + Usage(requests=10, input_tokens=20, output_tokens=60, total_tokens=70) == Usage(
        requests=11,
        input_tokens=22,
        cache_write_tokens=3,
        cache_write_1h_tokens=4,
        cache_read_tokens=5,
        output_tokens=66,
        total_tokens=77,
        tool_calls=8,
    )


def test_usage_is_not_added_to_a_number() -> None:
    with pytest.raises(TypeError):
        Usage.model_validate_json(PLAIN_USAGE) + 1  # type: ignore[operator]


def test_completed_failed_and_cancelled_runs_are_finished() -> None:
    assert [(str(status), status.is_finished) for status in RunStatus] == [
        ("starting", False),
        ("running", False),
        ("waiting", False),
        ("completed", True),
        ("failed", True),
        ("cancelled", True),
    ]


def test_boundaries_have_their_snake_case_names() -> None:
    assert [str(node) for node in AgentExecutionNode] == [
        "run_start",
        "prepare_model_request",
        "before_model_request",
        "model_response",
        "tool_call",
        "tool_return",
        "validate_output",
        "run_complete",
        "run_failed",
    ]


def test_the_evidence_of_a_run_that_waits_for_tools() -> None:
    evidence = AgentResumeEvidence.new(AgentExecutionNode.TOOL_CALL, full_state())
    assert canonical(evidence.model_dump(mode="json")) == canonical(
        {
            "node": "tool_call",
            "status": "waiting",
            "run_step": 4,
            "cursor": {
                "model_request_attempt": 4,
                "tool_call_batch_id": "tool_batch_4",
                "output_validation_attempt": 0,
                "message_cursor": 2,
            },
            "usage": json.loads(FULL_USAGE),
            "context_revision": "rev-9",
            "environment_ref": "env-2",
            "pending_approval_count": 2,
            "deferred_tool_count": 1,
        }
    )


def test_there_is_no_tool_call_batch_without_pending_tool_calls() -> None:
    state = plain_state(run_step=3, pending_tool_returns=[{"id": "call-1"}])
    assert AgentResumeEvidence.new(AgentExecutionNode.TOOL_RETURN, state).cursor.tool_call_batch_id is None


@pytest.mark.parametrize("value", [7, None, ["rev"], {"rev": 1}, True])
def test_revision_and_environment_are_taken_from_string_metadata_only(value: Any) -> None:
    state = plain_state(metadata={"context_revision": value, "environment_ref": value})
    evidence = AgentResumeEvidence.new(AgentExecutionNode.RUN_START, state)
    assert (evidence.context_revision, evidence.environment_ref) == (None, None)


def test_copies_of_evidence_change_one_thing_and_leave_the_original() -> None:
    evidence = AgentResumeEvidence.model_validate_json(PLAIN_EVIDENCE)
    traced = evidence.with_trace_context(TraceContext(trace_id="tr"))
    changed = traced.with_stream_cursor(9).with_metadata({"shard": 3})
    assert canonical(changed.model_dump(mode="json")) == canonical(
        {
            **json.loads(PLAIN_EVIDENCE),
            "cursor": {
                "model_request_attempt": 0,
                "output_validation_attempt": 0,
                "stream_cursor": 9,
                "message_cursor": 0,
            },
            "trace_context": {"trace_id": "tr"},
            "metadata": {"shard": 3},
        }
    )
    assert evidence == AgentResumeEvidence.model_validate_json(PLAIN_EVIDENCE)


@pytest.mark.parametrize("wrong", [-1, True, 1.5])
def test_a_copy_is_validated_as_a_new_record_is(wrong: Any) -> None:
    with pytest.raises(ValidationError):
        AgentResumeEvidence.model_validate_json(PLAIN_EVIDENCE).with_stream_cursor(wrong)


def test_a_new_checkpoint_takes_its_fields_from_the_state() -> None:
    state = full_state()
    checkpoint = AgentCheckpoint.new(AgentExecutionNode.TOOL_CALL, state)
    assert checkpoint.checkpoint_id.startswith("ckpt_")
    assert (checkpoint.run_id, checkpoint.conversation_id, checkpoint.run_step) == ("r1", "t1", 4)
    assert checkpoint.resume == AgentResumeEvidence.new(AgentExecutionNode.TOOL_CALL, state)
    assert checkpoint.state is state
    assert checkpoint.metadata == {}


def test_two_new_checkpoints_have_different_ids_and_a_given_id_is_taken() -> None:
    state = plain_state()
    made = [AgentCheckpoint.new(AgentExecutionNode.RUN_START, state).checkpoint_id for _ in range(2)]
    assert made[0] < made[1]
    named = AgentCheckpoint.new(AgentExecutionNode.RUN_START, state, checkpoint_id="c1")
    assert named.checkpoint_id == "c1"


def test_copies_of_a_checkpoint_keep_its_id_and_the_evidences_own_metadata() -> None:
    checkpoint = AgentCheckpoint.model_validate_json(FULL_CHECKPOINT)
    changed = checkpoint.with_metadata({"tool": "book"}).with_stream_cursor(12)
    expected = json.loads(FULL_CHECKPOINT)
    expected["metadata"] = {"tool": "book"}
    expected["resume"]["cursor"]["stream_cursor"] = 12
    assert canonical(changed.model_dump(mode="json")) == canonical(expected)
    assert changed.state is checkpoint.state


def test_a_copys_metadata_is_not_the_callers_dict() -> None:
    metadata = {"tool": "book"}
    changed = AgentCheckpoint.model_validate_json(PLAIN_CHECKPOINT).with_metadata(metadata)
    metadata["tool"] = "search"
    assert changed.metadata == {"tool": "book"}


def test_decisions_in_json() -> None:
    assert decision_adapter.validate_json('{"kind": "continue"}') == Continue()
    assert decision_adapter.validate_json('{"kind": "suspend", "reason": "approval"}') == Suspend(reason="approval")
    assert Continue().model_dump_json() == '{"kind":"continue"}'
    assert Suspend(reason="approval").model_dump_json() == '{"kind":"suspend","reason":"approval"}'


@pytest.mark.parametrize("text", ["{}", '{"kind": "stop"}', '{"kind": "suspend"}', '{"kind": "suspend", "reason": 1}'])
def test_what_is_no_decision_is_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        decision_adapter.validate_json(text)


def test_the_direct_executors_always_continue() -> None:
    checkpoint = AgentCheckpoint.model_validate_json(FULL_CHECKPOINT)
    executor: AgentExecutor = DirectAgentExecutor()
    awaited: AsyncAgentExecutor = AsyncDirectAgentExecutor()
    decision: AgentExecutionDecision = executor.checkpoint(checkpoint)
    assert decision == Continue()
    assert asyncio.run(awaited.checkpoint(checkpoint)) == Continue()


def test_a_bare_record_and_an_enveloped_one_are_read_alike() -> None:
    enveloped = f'{{"schema": "starweaver.runtime.checkpoint", "version": 1, "payload": {FULL_CHECKPOINT}}}'
    expected = AgentCheckpoint.model_validate_json(FULL_CHECKPOINT)
    assert AgentCheckpoint.from_json(FULL_CHECKPOINT) == expected
    assert AgentCheckpoint.from_json(enveloped) == expected
    assert AgentCheckpoint.from_json(enveloped.encode()) == expected
    assert AgentCheckpoint.from_json(json.loads(enveloped)) == expected


def test_the_current_version_is_always_written() -> None:
    checkpoint = AgentCheckpoint.from_json(FULL_CHECKPOINT)
    written = {"schema": "starweaver.runtime.checkpoint", "version": 1, "payload": json.loads(FULL_CHECKPOINT)}
    assert canonical(checkpoint.to_envelope()) == canonical(written)
    assert canonical(json.loads(checkpoint.to_json())) == canonical(written)
    assert AgentCheckpoint.from_json(checkpoint.to_json()) == checkpoint


def test_a_lone_surrogate_goes_through_the_envelope() -> None:
    checkpoint = AgentCheckpoint.new(AgentExecutionNode.RUN_START, plain_state(message_history=[{"text": "\ud800"}]))
    assert AgentCheckpoint.from_json(checkpoint.to_json()).state.message_history == ({"text": "\ud800"},)


@needs_upstream
@pytest.mark.parametrize("name", ["agent-checkpoint-v0.json", "agent-checkpoint-v1.json"])
def test_stored_records_of_starweaver_are_written_back_as_version_1(name: str) -> None:
    current = json.loads((UPSTREAM / "agent-checkpoint-v1.json").read_bytes())
    checkpoint = AgentCheckpoint.from_json((UPSTREAM / name).read_bytes())
    assert canonical(checkpoint.to_envelope()) == canonical(current)
    assert checkpoint.node is AgentExecutionNode.RUN_START
    assert checkpoint.state.status is RunStatus.STARTING


@pytest.mark.parametrize("schema", ["starweaver.session.run_record", "", None, 1])
def test_an_envelope_of_another_schema_is_refused(schema: Any) -> None:
    document = {"schema": schema, "version": 1, "payload": json.loads(PLAIN_CHECKPOINT)}
    with pytest.raises(UnknownSchema) as refusal:
        AgentCheckpoint.from_json(document)
    assert refusal.value.schema == schema
    assert refusal.value.expected == "starweaver.runtime.checkpoint"


@pytest.mark.parametrize("version", [2, 0, -1, True, 1.0, "1", None])
def test_an_envelope_of_another_version_is_refused(version: Any) -> None:
    document = {
        "schema": "starweaver.runtime.checkpoint",
        "version": version,
        "payload": json.loads(PLAIN_CHECKPOINT),
    }
    with pytest.raises(UnknownVersion) as refusal:
        AgentCheckpoint.from_json(document)
    assert refusal.value.version == version
    assert refusal.value.expected == 1


def test_another_schema_is_told_before_another_version() -> None:
    with pytest.raises(UnknownSchema):
        AgentCheckpoint.from_json({"schema": "other", "version": 2, "payload": {}})


@pytest.mark.parametrize("marker", ["schema", "version", "payload"])
def test_a_broken_envelope_is_no_bare_record(marker: str) -> None:
    envelope = {"schema": "starweaver.runtime.checkpoint", "version": 1, "payload": json.loads(PLAIN_CHECKPOINT)}
    del envelope[marker]
    with pytest.raises(InvalidInput):
        AgentCheckpoint.from_json({**json.loads(PLAIN_CHECKPOINT), **envelope})


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '"text"', b"\xff\xfe\x00", "[" * 100_000])
def test_what_is_no_json_object_is_invalid_input(text: str | bytes) -> None:
    with pytest.raises(InvalidInput):
        AgentCheckpoint.from_json(text)


def test_a_record_with_wrong_fields_is_refused_by_their_names_and_without_their_values() -> None:
    document = json.loads(PLAIN_CHECKPOINT)
    document["resume"]["cursor"]["message_cursor"] = "hunter2"
    del document["state"]["run_id"]
    with pytest.raises(InvalidInput) as refusal:
        AgentCheckpoint.from_json(document)
    assert str(refusal.value) == (
        "not an agent checkpoint of starweaver-runtime 0.4.1: "
        "resume.cursor.message_cursor: Input should be a valid integer; state.run_id: Field required"
    )


def test_a_payload_that_is_no_record_is_refused() -> None:
    with pytest.raises(InvalidInput):
        AgentCheckpoint.from_json({"schema": "starweaver.runtime.checkpoint", "version": 1, "payload": [1]})


def test_what_has_no_json_form_is_refused_with_the_checkpoints_id() -> None:
    checkpoint = AgentCheckpoint.new(
        AgentExecutionNode.RUN_START, plain_state(message_history=[object()]), checkpoint_id="c1"
    )
    with pytest.raises(InvalidInput, match="'c1'"):
        checkpoint.to_json()


@pytest.mark.parametrize("error", [UnknownSchema("other", "starweaver.runtime.checkpoint"), UnknownVersion(2, 1)])
def test_the_envelopes_errors_can_be_copied_and_sent_to_another_process(error: InvalidInput) -> None:
    for copied in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert type(copied) is type(error)
        assert str(copied) == str(error)
        assert vars(copied) == vars(error)


def test_a_very_long_version_is_not_quoted_in_full() -> None:
    assert len(str(UnknownVersion("9" * 10_000, 1))) < 300
