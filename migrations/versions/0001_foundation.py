"""The foundation: threads, checkpoints, segments, writes, runs and resume evidence.

The first revision. Taking it back drops every table and everything in them.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic.operations import Operations

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

# Spelled out rather than imported: a revision stays what it was when clew.tables moves on.
KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
ID = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
MOMENT = sa.DateTime(timezone=True).with_variant(sa.BigInteger(), "sqlite")
BIG, TEXT, BYTES = sa.BigInteger(), sa.Text(), sa.LargeBinary()


def upgrade(op: Operations, schema: str | None) -> None:
    owner = f"{schema}." if schema else ""
    threads, versions = f"{owner}clew_threads.thread_key", f"{owner}clew_thread_versions.thread_key"

    op.create_table(
        "clew_threads",
        sa.Column("thread_key", KEY, sa.Identity(), nullable=False),
        sa.Column("thread_id", ID, nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("metadata", TEXT),
        sa.Column("expires_at", MOMENT),
        sa.Column("ttl_us", BIG),
        sa.Column("refresh_on_activity", sa.Boolean(), nullable=False, server_default=sa.text("false")),
        sa.PrimaryKeyConstraint("thread_key", name="pk_clew_threads"),
        sa.UniqueConstraint("thread_id", name="uq_clew_threads_thread_id"),
        schema=schema,
        sqlite_autoincrement=True,
    )
    op.create_index(
        "ix_clew_threads_expires_at",
        "clew_threads",
        ["expires_at"],
        schema=schema,
        **where("expires_at IS NOT NULL"),
    )

    op.create_table(
        "clew_thread_versions",
        sa.Column("thread_key", KEY, owned_by("versions_thread", threads), autoincrement=False, nullable=False),
        sa.Column("version", BIG, nullable=False),
        sa.Column("last_seq", BIG, nullable=False),
        sa.Column("activity", MOMENT, nullable=False),
        sa.Column("lease_owner", ID),
        sa.Column("lease_token", BIG, nullable=False, server_default=sa.text("0")),
        sa.Column("lease_until", MOMENT),
        sa.PrimaryKeyConstraint("thread_key", name="pk_clew_thread_versions"),
        schema=schema,
    )

    op.create_table(
        "clew_checkpoints",
        sa.Column("thread_key", BIG, owned_by("checkpoints_thread", versions), nullable=False),
        sa.Column("seq", BIG, nullable=False),
        sa.Column("step", BIG, nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("namespace", ID, nullable=False),
        sa.Column("checkpoint_id", ID, nullable=False),
        sa.Column("parent_checkpoint_id", ID),
        sa.Column("run_id", ID),
        sa.Column("source", TEXT, nullable=False),
        sa.Column("node", TEXT),
        sa.Column("next_nodes", TEXT),
        sa.Column("has_interrupts", sa.Boolean(), nullable=False),
        sa.Column("fork_thread_id", ID),
        sa.Column("fork_checkpoint_id", ID),
        sa.Column("metadata_form", sa.SmallInteger(), nullable=False),
        sa.Column("digest", BYTES, nullable=False),
        sa.Column("completed_tasks", BYTES),
        sa.Column("interrupts", BYTES),
        sa.Column("activations", BYTES),
        sa.Column("barriers", BYTES),
        sa.Column("spans", BYTES, nullable=False),
        sa.Column("manifest", BYTES, nullable=False),
        sa.PrimaryKeyConstraint("thread_key", "seq", name="pk_clew_checkpoints"),
        sa.UniqueConstraint("thread_key", "namespace", "checkpoint_id", name="uq_clew_checkpoints_id"),
        schema=schema,
        sqlite_with_rowid=False,
    )
    op.create_index(
        "ix_clew_checkpoints_latest",
        "clew_checkpoints",
        ["thread_key", "namespace", "seq"],
        schema=schema,
    )
    op.create_index(
        "ix_clew_checkpoints_run",
        "clew_checkpoints",
        ["run_id", "thread_key"],
        schema=schema,
        **where("run_id IS NOT NULL"),
    )

    op.create_table(
        "clew_checkpoint_metadata",
        sa.Column("thread_key", BIG, nullable=False),
        sa.Column("seq", BIG, nullable=False),
        sa.Column("terms", BYTES, nullable=False),
        sa.Column("value", TEXT, nullable=False),
        sa.PrimaryKeyConstraint("thread_key", "seq", name="pk_clew_checkpoint_metadata"),
        owned_by_checkpoint("metadata_checkpoint", owner),
        schema=schema,
        sqlite_with_rowid=False,
    )

    op.create_table(
        "clew_segments",
        sa.Column("thread_key", BIG, nullable=False),
        sa.Column("log", BIG, nullable=False),
        sa.Column("start", BIG, nullable=False),
        sa.Column("count", BIG, nullable=False),
        sa.Column("payload", BYTES, nullable=False),
        sa.PrimaryKeyConstraint("thread_key", "log", "start", name="pk_clew_segments"),
        schema=schema,
    )
    if op.get_context().dialect.name == "postgresql":
        # Payloads are zstd already; Postgres would try to compress each of them once more, and fail.
        segments = op.get_context().dialect.identifier_preparer.format_table(sa.table("clew_segments", schema=schema))
        op.execute(f"ALTER TABLE {segments} ALTER payload SET STORAGE EXTERNAL".replace(":", r"\:"))

    op.create_table(
        "clew_pending_writes",
        sa.Column("thread_key", BIG, owned_by("pending_writes_thread", versions), nullable=False),
        sa.Column("namespace", ID, nullable=False),
        sa.Column("checkpoint_id", ID, nullable=False),
        sa.Column("task_id", ID, nullable=False),
        sa.Column("idx", BIG, nullable=False),
        sa.Column("arrival", BIG, nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("carried", sa.Boolean(), nullable=False),
        sa.Column("node", TEXT, nullable=False),
        sa.Column("channel", TEXT, nullable=False),
        sa.Column("payload", BYTES, nullable=False),
        sa.PrimaryKeyConstraint(
            "thread_key", "namespace", "checkpoint_id", "task_id", "idx", name="pk_clew_pending_writes"
        ),
        schema=schema,
        sqlite_with_rowid=False,
    )

    op.create_table(
        "clew_runs",
        sa.Column("thread_key", BIG, owned_by("runs_thread", versions), nullable=False),
        sa.Column("run_id", ID, nullable=False),
        sa.Column("parent_run_id", ID),
        sa.Column("status", TEXT, nullable=False),
        sa.Column("node", TEXT),
        sa.Column("step", BIG, nullable=False),
        sa.Column("namespace", ID, nullable=False),
        sa.Column("checkpoint_id", ID),
        *usage(),
        sa.Column("started_at", MOMENT, nullable=False),
        sa.Column("updated_at", MOMENT, nullable=False),
        sa.Column("finished_at", MOMENT),
        sa.Column("error", TEXT),
        sa.Column("suspend_reason", TEXT),
        sa.Column("suspend_requested_at", MOMENT),
        sa.PrimaryKeyConstraint("thread_key", "run_id", name="pk_clew_runs"),
        schema=schema,
        sqlite_with_rowid=False,
    )
    op.create_index("ix_clew_runs_run_id", "clew_runs", ["run_id"], schema=schema)
    op.create_index("ix_clew_runs_started_at", "clew_runs", ["started_at", "thread_key"], schema=schema)
    op.create_index(
        "ix_clew_runs_unfinished",
        "clew_runs",
        ["status", "started_at"],
        schema=schema,
        **where("status IN ('starting', 'running', 'waiting')"),
    )

    op.create_table(
        "clew_resume_evidence",
        sa.Column("thread_key", BIG, nullable=False),
        sa.Column("seq", BIG, nullable=False),
        sa.Column("node", TEXT, nullable=False),
        sa.Column("status", TEXT, nullable=False),
        sa.Column("run_step", BIG, nullable=False),
        sa.Column("model_request_attempt", BIG, nullable=False),
        sa.Column("tool_call_batch_id", TEXT),
        sa.Column("output_validation_attempt", BIG, nullable=False),
        sa.Column("stream_cursor", BIG),
        sa.Column("message_cursor", BIG, nullable=False),
        *usage(),
        sa.Column("context_revision", TEXT),
        sa.Column("environment_ref", TEXT),
        sa.Column("pending_approval_count", BIG, nullable=False),
        sa.Column("deferred_tool_count", BIG, nullable=False),
        sa.Column("trace_id", TEXT),
        sa.Column("span_id", TEXT),
        sa.Column("details", BYTES),
        sa.PrimaryKeyConstraint("thread_key", "seq", name="pk_clew_resume_evidence"),
        owned_by_checkpoint("resume_evidence_checkpoint", owner),
        schema=schema,
        sqlite_with_rowid=False,
    )


def downgrade(op: Operations, schema: str | None) -> None:
    for table in (
        "clew_resume_evidence",
        "clew_runs",
        "clew_pending_writes",
        "clew_segments",
        "clew_checkpoint_metadata",
        "clew_checkpoints",
        "clew_thread_versions",
        "clew_threads",
    ):
        op.drop_table(table, schema=schema)


def where(condition: str) -> dict[str, Any]:
    return {"sqlite_where": sa.text(condition), "postgresql_where": sa.text(condition)}


def owned_by(name: str, column: str) -> sa.ForeignKey:
    return sa.ForeignKey(column, name=f"fk_clew_{name}", ondelete="CASCADE")


def owned_by_checkpoint(name: str, owner: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        ["thread_key", "seq"],
        [f"{owner}clew_checkpoints.thread_key", f"{owner}clew_checkpoints.seq"],
        name=f"fk_clew_{name}",
        ondelete="CASCADE",
    )


def usage() -> list[sa.Column[Any]]:
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
    return [sa.Column(name, BIG, nullable=False, server_default=sa.text("0")) for name in names]
