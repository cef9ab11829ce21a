"""The records of the agent side: run state, usage, evidence, checkpoint and its envelope. Nothing is stored here.

Names, fields and JSON forms are those of starweaver-runtime 0.4.1, so that JSON written there is read here and written
back equal.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, ClassVar, Final, Self

from pydantic import Field, ValidationError
from pydantic_core import PydanticSerializationError

from clew.errors import InvalidInput, UnknownSchema, UnknownVersion
from clew.ids import new_checkpoint_id
from clew.records.record import Count, JsonObject, LeftOut, Record, Str

__all__ = [
    "AgentCheckpoint",
    "AgentExecutionNode",
    "AgentResumeCursor",
    "AgentResumeEvidence",
    "AgentRunState",
    "RunStatus",
    "TraceContext",
    "Usage",
]

ENVELOPE_SCHEMA: Final = "starweaver.runtime.checkpoint"
ENVELOPE_VERSION: Final = 1

_ENVELOPE_MARKERS = ("schema", "version", "payload")


class AgentExecutionNode(StrEnum):
    """The boundary of the agent's loop at which a checkpoint was made."""

    RUN_START = "run_start"
    PREPARE_MODEL_REQUEST = "prepare_model_request"
    BEFORE_MODEL_REQUEST = "before_model_request"
    MODEL_RESPONSE = "model_response"
    TOOL_CALL = "tool_call"
    TOOL_RETURN = "tool_return"
    VALIDATE_OUTPUT = "validate_output"
    RUN_COMPLETE = "run_complete"
    RUN_FAILED = "run_failed"


class RunStatus(StrEnum):
    """Where a run stands."""

    STARTING = "starting"
    RUNNING = "running"
    WAITING = "waiting"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_finished(self) -> bool:
        """Whether the run is completed, failed or cancelled: it takes no further checkpoint."""
        return self in (RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED)


class Usage(Record):
    """What a run has used so far. ``a + b`` adds field by field."""

    left_out: ClassVar[LeftOut] = {"cache_write_1h_tokens": 0}

    requests: Count
    input_tokens: Count
    cache_write_tokens: Count = 0
    cache_write_1h_tokens: Count = 0
    cache_read_tokens: Count = 0
    output_tokens: Count
    total_tokens: Count
    tool_calls: Count = 0

    def __add__(self, other: Usage) -> Usage:
        if not isinstance(other, Usage):
            return NotImplemented
        return Usage(**{name: getattr(self, name) + getattr(other, name) for name in Usage.model_fields})


class TraceContext(Record):
    """Which trace a checkpoint belongs to."""

    left_out: ClassVar[LeftOut] = {
        "trace_id": None,
        "span_id": None,
        "parent_span_id": None,
        "trace_state": None,
        "metadata": {},
    }

    trace_id: Str | None = None
    span_id: Str | None = None
    parent_span_id: Str | None = None
    trace_state: Str | None = None
    metadata: JsonObject = Field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether it says nothing at all; evidence then leaves it out of its JSON."""
        return self == TraceContext()


class AgentRunState(Record):
    """All that a run needs to go on. Its keys are the thread's channels, so the history is shared structurally.

    Messages and tool parts are the application's: any keys in them come back untouched. They are not copied, so treat
    what a state was built from as read-only.
    """

    left_out: ClassVar[LeftOut] = {
        "output": None,
        "structured_output": None,
        "latest_response": None,
        "pending_tool_calls": (),
        "pending_tool_returns": (),
        "pending_approval_tool_returns": (),
        "deferred_tool_returns": (),
        "idle_messages": (),
        "parent_run_id": None,
        "parent_task_id": None,
        "metadata": {},
    }

    run_id: Str
    conversation_id: Str
    message_history: tuple[Any, ...]
    usage: Usage
    run_step: Count
    status: RunStatus
    output: Str | None = None
    structured_output: Any = None
    latest_response: Any = None
    pending_tool_calls: tuple[JsonObject, ...] = ()
    pending_tool_returns: tuple[JsonObject, ...] = ()
    pending_approval_tool_returns: tuple[JsonObject, ...] = ()
    deferred_tool_returns: tuple[JsonObject, ...] = ()
    idle_messages: tuple[Str, ...] = ()
    parent_run_id: Str | None = None
    parent_task_id: Str | None = None
    metadata: JsonObject = Field(default_factory=dict)


class AgentResumeCursor(Record):
    """How far a run has come, in the numbers that resuming and auditing it need."""

    left_out: ClassVar[LeftOut] = {"tool_call_batch_id": None, "stream_cursor": None}

    model_request_attempt: Count = 0
    tool_call_batch_id: Str | None = None
    output_validation_attempt: Count = 0
    stream_cursor: Count | None = None
    message_cursor: Count = 0


class AgentResumeEvidence(Record):
    """What a checkpoint says about its run without the state being read."""

    left_out: ClassVar[LeftOut] = {
        "context_revision": None,
        "environment_ref": None,
        "trace_context": TraceContext(),
        "metadata": {},
    }

    node: AgentExecutionNode
    status: RunStatus
    run_step: Count
    cursor: AgentResumeCursor
    usage: Usage
    context_revision: Str | None = None
    environment_ref: Str | None = None
    pending_approval_count: Count
    deferred_tool_count: Count
    trace_context: TraceContext = Field(default_factory=TraceContext)
    metadata: JsonObject = Field(default_factory=dict)

    @classmethod
    def new(cls, node: AgentExecutionNode, state: AgentRunState) -> Self:
        """The evidence of ``state`` at ``node``, by the rules of starweaver-runtime 0.4.1.

        The model request attempt is the run step; there is a tool call batch, ``tool_batch_{step}``, exactly while tool
        calls are pending; the message cursor is the length of the history. ``context_revision`` and ``environment_ref``
        are the state's metadata of those names where they are strings.
        """
        return cls(
            node=node,
            status=state.status,
            run_step=state.run_step,
            cursor=AgentResumeCursor(
                model_request_attempt=state.run_step,
                tool_call_batch_id=f"tool_batch_{state.run_step}" if state.pending_tool_calls else None,
                message_cursor=len(state.message_history),
            ),
            usage=state.usage,
            context_revision=_text(state.metadata.get("context_revision")),
            environment_ref=_text(state.metadata.get("environment_ref")),
            pending_approval_count=len(state.pending_approval_tool_returns),
            deferred_tool_count=len(state.deferred_tool_returns),
        )

    def with_stream_cursor(self, stream_cursor: int) -> Self:
        """A copy whose cursor says that the stream is stored up to ``stream_cursor``."""
        return self._replaced(cursor=self.cursor._replaced(stream_cursor=stream_cursor))

    def with_trace_context(self, trace_context: TraceContext) -> Self:
        """A copy with ``trace_context`` in place of its own."""
        return self._replaced(trace_context=trace_context)

    def with_metadata(self, metadata: Mapping[str, Any]) -> Self:
        """A copy with ``metadata`` in place of its own."""
        return self._replaced(metadata=metadata)


class AgentCheckpoint(Record):
    """A run at a durable boundary: the state in full, and the evidence beside it."""

    left_out: ClassVar[LeftOut] = {"metadata": {}}

    checkpoint_id: Str
    run_id: Str
    conversation_id: Str
    node: AgentExecutionNode
    run_step: Count
    resume: AgentResumeEvidence
    state: AgentRunState
    metadata: JsonObject = Field(default_factory=dict)

    @classmethod
    def new(cls, node: AgentExecutionNode, state: AgentRunState, *, checkpoint_id: str | None = None) -> Self:
        """A checkpoint of ``state`` at ``node``, under a new id that starts with ``ckpt_`` unless one is given.

        The state is held, not copied, so that a long history costs nothing here.
        """
        return cls(
            checkpoint_id=new_checkpoint_id() if checkpoint_id is None else checkpoint_id,
            run_id=state.run_id,
            conversation_id=state.conversation_id,
            node=node,
            run_step=state.run_step,
            resume=AgentResumeEvidence.new(node, state),
            state=state,
        )

    def with_metadata(self, metadata: Mapping[str, Any]) -> Self:
        """A copy with ``metadata`` in place of its own; the evidence keeps its own."""
        return self._replaced(metadata=metadata)

    def with_stream_cursor(self, stream_cursor: int) -> Self:
        """A copy whose evidence says that the stream is stored up to ``stream_cursor``."""
        return self._replaced(resume=self.resume.with_stream_cursor(stream_cursor))

    @classmethod
    def from_json(cls, document: str | bytes | bytearray | Mapping[str, Any]) -> Self:
        """The checkpoint in a JSON text, or in what was parsed from one; enveloped (version 1) or bare (version 0).

        What has any of an envelope's keys is taken for an envelope, so a broken one is an error and no bare record, as
        in starweaver. Version 0 inside an envelope is no version.

        Raises:
            UnknownSchema: the envelope holds something else.
            UnknownVersion: the envelope's version is not read here.
            InvalidInput: it is not JSON, or not an agent checkpoint; the message names the fields.
        """
        record = _opened(_parsed(document))
        try:
            return cls.model_validate(record)
        except ValidationError as exc:
            found = exc.errors(include_url=False, include_context=False, include_input=False)
            wrong = "; ".join(f"{'.'.join(map(str, error['loc'])) or 'payload'}: {error['msg']}" for error in found[:5])
            raise InvalidInput(f"not an agent checkpoint of starweaver-runtime 0.4.1: {wrong}") from exc

    def to_envelope(self) -> dict[str, Any]:
        """The envelope of the current version, as plain JSON values.

        Raises:
            InvalidInput: something in it has no JSON form.
        """
        try:
            payload = self.model_dump(mode="json")
        except PydanticSerializationError as exc:
            raise InvalidInput(f"agent checkpoint {self.checkpoint_id!r} cannot be written as JSON: {exc}") from exc
        return {"schema": ENVELOPE_SCHEMA, "version": ENVELOPE_VERSION, "payload": payload}

    def to_json(self) -> str:
        """``to_envelope()`` as text.

        Raises:
            InvalidInput: something in it has no JSON form.
        """
        return json.dumps(self.to_envelope(), separators=(",", ":"))


def _parsed(document: str | bytes | bytearray | Mapping[str, Any]) -> Mapping[str, Any]:
    if isinstance(document, str | bytes | bytearray):
        try:
            # The standard library's parser: pydantic's refuses a lone surrogate, which to_json can write.
            document = json.loads(document)
        except (ValueError, RecursionError) as exc:
            raise InvalidInput("agent checkpoint: the text is not JSON that can be read") from exc
    if not isinstance(document, Mapping):
        raise InvalidInput(f"agent checkpoint: a JSON object is needed, not {type(document).__name__}")
    return document


def _opened(document: Mapping[str, Any]) -> Any:
    if not any(marker in document for marker in _ENVELOPE_MARKERS):
        return document
    schema, version = document.get("schema"), document.get("version")
    if schema != ENVELOPE_SCHEMA:
        raise UnknownSchema(schema, ENVELOPE_SCHEMA)
    # True and 1.0 equal 1, and are no version.
    if type(version) is not int or version != ENVELOPE_VERSION:
        raise UnknownVersion(version, ENVELOPE_VERSION)
    if "payload" not in document:
        raise InvalidInput("agent checkpoint: the envelope has no payload")
    return document["payload"]


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
