"""The tables, declared once for both databases. No statement and no migration stands here.

Every primary key and unique constraint of a thread-owned table starts with ``thread_key``, and no foreign key leaves
the thread but to the two thread tables: so the schema can be distributed by ``thread_key``.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Dialect,
    ForeignKey,
    ForeignKeyConstraint,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
    text,
)

from clew.errors import CorruptData

__all__ = ["EPOCH", "MICROSECOND", "VERSION_TABLE", "Moment", "Tables", "tables_for"]

VERSION_TABLE: Final = "clew_alembic_version"

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


class Moment(TypeDecorator[datetime]):
    """An instant: ``timestamptz`` on Postgres, microseconds since 1970 (UTC) as an integer on SQLite."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> Any:
        return dialect.type_descriptor(BigInteger() if dialect.name == "sqlite" else DateTime(timezone=True))

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> Any:
        if value is None:
            return None
        return (value - EPOCH) // MICROSECOND if dialect.name == "sqlite" else value

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        try:
            moment: datetime = EPOCH + value * MICROSECOND if dialect.name == "sqlite" else value.astimezone(UTC)
        except (TypeError, ValueError, OverflowError) as exc:
            raise CorruptData("an instant that is stored lies beyond the calendar, or is none") from exc
        return moment


# SQLite's rowid alias must be spelled INTEGER; an id column compares bytewise, whatever the database's locale.
_KEY = BigInteger().with_variant(Integer(), "sqlite")
_ID = Text().with_variant(Text(collation="C"), "postgresql")


class Tables:
    """The tables of one Postgres schema, or of the connection's default one where ``schema`` is None."""

    def __init__(self, schema: str | None = None) -> None:
        self.schema = schema
        self.metadata = MetaData(schema=schema)
        owner = f"{schema}." if schema else ""
        threads, versions = f"{owner}clew_threads.thread_key", f"{owner}clew_thread_versions.thread_key"

        self.threads = Table(
            "clew_threads",
            self.metadata,
            Column("thread_key", _KEY, Identity(), nullable=False),
            Column("thread_id", _ID, nullable=False),
            Column("created_at", Moment, nullable=False),
            Column("metadata", Text),
            Column("expires_at", Moment),
            Column("ttl_us", BigInteger),
            Column("refresh_on_activity", Boolean, nullable=False, server_default=text("false")),
            PrimaryKeyConstraint("thread_key", name="pk_clew_threads"),
            UniqueConstraint("thread_id", name="uq_clew_threads_thread_id"),
            Index("ix_clew_threads_expires_at", "expires_at", **_where("expires_at IS NOT NULL")),
            sqlite_autoincrement=True,  # a deleted thread's key is never given out again
        )
        self.versions = Table(
            "clew_thread_versions",
            self.metadata,
            Column("thread_key", _KEY, _owner("versions_thread", threads), autoincrement=False, nullable=False),
            Column("version", BigInteger, nullable=False),
            Column("last_seq", BigInteger, nullable=False),
            Column("activity", Moment, nullable=False),
            Column("lease_owner", _ID),
            Column("lease_token", BigInteger, nullable=False, server_default=text("0")),
            Column("lease_until", Moment),
            PrimaryKeyConstraint("thread_key", name="pk_clew_thread_versions"),
        )
        self.checkpoints = Table(
            "clew_checkpoints",
            self.metadata,
            Column("thread_key", BigInteger, _owner("checkpoints_thread", versions), nullable=False),
            Column("seq", BigInteger, nullable=False),
            Column("step", BigInteger, nullable=False),
            Column("created_at", Moment, nullable=False),
            Column("namespace", _ID, nullable=False),
            Column("checkpoint_id", _ID, nullable=False),
            Column("parent_checkpoint_id", _ID),
            Column("run_id", _ID),
            Column("source", Text, nullable=False),
            Column("node", Text),
            Column("next_nodes", Text),
            Column("has_interrupts", Boolean, nullable=False),
            Column("fork_thread_id", _ID),
            Column("fork_checkpoint_id", _ID),
            Column("metadata_form", SmallInteger, nullable=False),
            Column("digest", LargeBinary, nullable=False),
            # Never selected by a listing; behind everything else, so that SQLite need not read their overflow pages.
            Column("completed_tasks", LargeBinary),
            Column("interrupts", LargeBinary),
            Column("activations", LargeBinary),
            Column("barriers", LargeBinary),
            Column("spans", LargeBinary, nullable=False),
            Column("manifest", LargeBinary, nullable=False),
            PrimaryKeyConstraint("thread_key", "seq", name="pk_clew_checkpoints"),
            UniqueConstraint("thread_key", "namespace", "checkpoint_id", name="uq_clew_checkpoints_id"),
            Index("ix_clew_checkpoints_latest", "thread_key", "namespace", "seq"),
            Index("ix_clew_checkpoints_run", "run_id", "thread_key", **_where("run_id IS NOT NULL")),
            sqlite_with_rowid=False,
        )
        self.checkpoint_metadata = Table(
            "clew_checkpoint_metadata",
            self.metadata,
            Column("thread_key", BigInteger, nullable=False),
            Column("seq", BigInteger, nullable=False),
            Column("terms", LargeBinary, nullable=False),
            Column("value", Text, nullable=False),
            PrimaryKeyConstraint("thread_key", "seq", name="pk_clew_checkpoint_metadata"),
            _checkpoint_owner("metadata_checkpoint", owner),
            sqlite_with_rowid=False,
        )
        self.segments = Table(
            "clew_segments",
            self.metadata,
            # No foreign key: the put's largest part would pay 40 µs for what the locked version row guarantees.
            Column("thread_key", BigInteger, nullable=False),
            Column("log", BigInteger, nullable=False),
            Column("start", BigInteger, nullable=False),
            Column("count", BigInteger, nullable=False),
            Column("payload", LargeBinary, nullable=False),
            PrimaryKeyConstraint("thread_key", "log", "start", name="pk_clew_segments"),
        )
        self.pending_writes = Table(
            "clew_pending_writes",
            self.metadata,
            Column("thread_key", BigInteger, _owner("pending_writes_thread", versions), nullable=False),
            Column("namespace", _ID, nullable=False),
            Column("checkpoint_id", _ID, nullable=False),
            Column("task_id", _ID, nullable=False),
            Column("idx", BigInteger, nullable=False),
            Column("arrival", BigInteger, nullable=False),
            Column("created_at", Moment, nullable=False),
            Column("carried", Boolean, nullable=False),
            Column("node", Text, nullable=False),
            Column("channel", Text, nullable=False),
            Column("payload", LargeBinary, nullable=False),
            PrimaryKeyConstraint(
                "thread_key", "namespace", "checkpoint_id", "task_id", "idx", name="pk_clew_pending_writes"
            ),
            sqlite_with_rowid=False,
        )
        self.runs = Table(
            "clew_runs",
            self.metadata,
            Column("thread_key", BigInteger, _owner("runs_thread", versions), nullable=False),
            Column("run_id", _ID, nullable=False),
            Column("parent_run_id", _ID),
            Column("status", Text, nullable=False),
            Column("node", Text),
            Column("step", BigInteger, nullable=False),
            Column("namespace", _ID, nullable=False),
            Column("checkpoint_id", _ID),
            *_usage_columns(),
            Column("started_at", Moment, nullable=False),
            Column("updated_at", Moment, nullable=False),
            Column("finished_at", Moment),
            Column("error", Text),
            Column("suspend_reason", Text),
            Column("suspend_requested_at", Moment),
            PrimaryKeyConstraint("thread_key", "run_id", name="pk_clew_runs"),
            Index("ix_clew_runs_run_id", "run_id"),
            Index("ix_clew_runs_started_at", "started_at", "thread_key"),
            Index(
                "ix_clew_runs_unfinished",
                "status",
                "started_at",  # not updated_at: a boundary would then change the index each time
                **_where("status IN ('starting', 'running', 'waiting')"),
            ),
            sqlite_with_rowid=False,
        )
        self.resume_evidence = Table(
            "clew_resume_evidence",
            self.metadata,
            Column("thread_key", BigInteger, nullable=False),
            Column("seq", BigInteger, nullable=False),
            Column("node", Text, nullable=False),
            Column("status", Text, nullable=False),
            Column("run_step", BigInteger, nullable=False),
            Column("model_request_attempt", BigInteger, nullable=False),
            Column("tool_call_batch_id", Text),
            Column("output_validation_attempt", BigInteger, nullable=False),
            Column("stream_cursor", BigInteger),
            Column("message_cursor", BigInteger, nullable=False),
            *_usage_columns(),
            Column("context_revision", Text),
            Column("environment_ref", Text),
            Column("pending_approval_count", BigInteger, nullable=False),
            Column("deferred_tool_count", BigInteger, nullable=False),
            Column("trace_id", Text),
            Column("span_id", Text),
            Column("details", LargeBinary),
            PrimaryKeyConstraint("thread_key", "seq", name="pk_clew_resume_evidence"),
            _checkpoint_owner("resume_evidence_checkpoint", owner),
            sqlite_with_rowid=False,
        )

    @property
    def owned(self) -> tuple[Table, ...]:
        """The tables whose rows belong to one thread, those that refer to others first."""
        return (
            self.resume_evidence,
            self.checkpoint_metadata,
            self.pending_writes,
            self.runs,
            self.checkpoints,
            self.segments,
        )


@lru_cache(maxsize=64)
def tables_for(schema: str | None = None) -> Tables:
    """The tables of ``schema``, built once a process, so that compiled statements are shared."""
    return Tables(schema)


def _where(condition: str) -> dict[str, Any]:
    return {"sqlite_where": text(condition), "postgresql_where": text(condition)}


def _owner(name: str, column: str) -> ForeignKey:
    return ForeignKey(column, name=f"fk_clew_{name}", ondelete="CASCADE")


def _checkpoint_owner(name: str, owner: str) -> ForeignKeyConstraint:
    return ForeignKeyConstraint(
        ["thread_key", "seq"],
        [f"{owner}clew_checkpoints.thread_key", f"{owner}clew_checkpoints.seq"],
        name=f"fk_clew_{name}",
        ondelete="CASCADE",
    )


def _usage_columns() -> list[Column[Any]]:
    names = (
        "requests",
        "input_tokens",
        "cache_write_tokens",
        "cache_write_1h_tokens",
        "cache_read_tokens",
        "output_tokens",
        "total_tokens",
        "tool_calls",
    )
    return [Column(name, BigInteger, nullable=False, server_default=text("0")) for name in names]
