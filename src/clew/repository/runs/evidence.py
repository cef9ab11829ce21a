"""Resume evidence as columns that SQL can query, and back. Nothing is read or written here.

What the columns do not hold (metadata, and the rest of the trace context) is packed into ``details``.
"""

from __future__ import annotations

from typing import Any, Final

from clew.codec import Codec
from clew.errors import CorruptData, InvalidInput
from clew.records import (
    AgentExecutionNode,
    AgentResumeCursor,
    AgentResumeEvidence,
    RunStatus,
    TraceContext,
    Usage,
)
from clew.repository.keys import check_label, fits_a_column, shown

__all__ = ["USAGE", "check_stored", "evidence_columns", "evidence_of", "usage_columns", "usage_of"]

USAGE: Final = tuple(Usage.model_fields)
"""The columns of a usage, in ``clew_runs`` and in ``clew_resume_evidence``."""


def evidence_columns(codec: Codec, evidence: AgentResumeEvidence) -> dict[str, Any]:
    """The columns of ``clew_resume_evidence`` but for the keys.

    Raises:
        InvalidInput: a count beyond 63 bits or a text that cannot be stored, by name.
        Unserializable: metadata that would not come back as it is.
    """
    cursor, trace = evidence.cursor, evidence.trace_context
    details = {
        "metadata": evidence.metadata or None,
        "parent_span_id": trace.parent_span_id,
        "trace_state": trace.trace_state,
        "trace_metadata": trace.metadata or None,
    }
    kept = {name: value for name, value in details.items() if value is not None}
    return {
        "node": evidence.node.value,
        "status": evidence.status.value,
        "run_step": check_stored("run_step", evidence.run_step),
        "model_request_attempt": check_stored("model_request_attempt", cursor.model_request_attempt),
        "tool_call_batch_id": _label("tool_call_batch_id", cursor.tool_call_batch_id),
        "output_validation_attempt": check_stored("output_validation_attempt", cursor.output_validation_attempt),
        "stream_cursor": None if cursor.stream_cursor is None else check_stored("stream_cursor", cursor.stream_cursor),
        "message_cursor": check_stored("message_cursor", cursor.message_cursor),
        **usage_columns(evidence.usage),
        "context_revision": _label("context_revision", evidence.context_revision),
        "environment_ref": _label("environment_ref", evidence.environment_ref),
        "pending_approval_count": check_stored("pending_approval_count", evidence.pending_approval_count),
        "deferred_tool_count": check_stored("deferred_tool_count", evidence.deferred_tool_count),
        "trace_id": _label("trace_id", trace.trace_id),
        "span_id": _label("span_id", trace.span_id),
        "details": codec.strict(kept, "resume") if kept else None,
    }


def evidence_of(codec: Codec, row: Any) -> AgentResumeEvidence:
    """The evidence of a row that holds these columns; ``row`` is a mapping.

    Raises:
        CorruptData: they do not hold evidence.
    """
    details = {} if row["details"] is None else codec.decode(row["details"])
    if not isinstance(details, dict):
        raise CorruptData(f"the details of resume evidence are a {type(details).__name__}, not a map")
    try:
        return AgentResumeEvidence(
            node=AgentExecutionNode(row["node"]),
            status=RunStatus(row["status"]),
            run_step=row["run_step"],
            cursor=AgentResumeCursor(
                model_request_attempt=row["model_request_attempt"],
                tool_call_batch_id=row["tool_call_batch_id"],
                output_validation_attempt=row["output_validation_attempt"],
                stream_cursor=row["stream_cursor"],
                message_cursor=row["message_cursor"],
            ),
            usage=usage_of(row),
            context_revision=row["context_revision"],
            environment_ref=row["environment_ref"],
            pending_approval_count=row["pending_approval_count"],
            deferred_tool_count=row["deferred_tool_count"],
            trace_context=TraceContext(
                trace_id=row["trace_id"],
                span_id=row["span_id"],
                parent_span_id=details.get("parent_span_id"),
                trace_state=details.get("trace_state"),
                metadata=details.get("trace_metadata", {}),
            ),
            metadata=details.get("metadata", {}),
        )
    except ValueError as exc:  # a word or a number that the records do not take
        raise CorruptData("the columns of resume evidence do not hold evidence") from exc


def usage_columns(usage: Usage) -> dict[str, int]:
    """The columns of a usage. Raises InvalidInput for a count beyond 63 bits."""
    return {name: check_stored(name, getattr(usage, name)) for name in USAGE}


def usage_of(row: Any) -> Usage:
    """The usage of a mapping that holds these columns. Raises ValueError where one is no count."""
    return Usage(**{name: row[name] for name in USAGE})


def check_stored(name: str, value: int) -> int:
    """``value``, if it fits into a column: the source system counts to 2**64, SQL to 2**63. Raises InvalidInput."""
    if not fits_a_column(value):
        raise InvalidInput(f"{name} must be an integer that fits into 63 bits, not {shown(value)}")
    return value


def _label(name: str, value: str | None) -> str | None:
    return None if value is None else check_label(name, value)
