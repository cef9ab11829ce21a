"""What retention's operations answer: what went, what was found, what it weighed. Nothing is stored here."""

from __future__ import annotations

from enum import StrEnum

from clew.records.graph import CheckpointConfig
from clew.records.record import Flag, Number, Record, Str

__all__ = ["CompactReport", "Problem", "ProblemKind", "PruneReport", "SweepReport", "TransferReport", "VerifyReport"]


class PruneReport(Record):
    """What a prune took, or with ``dry_run`` would take: ``pruned``, oldest first. ``kept`` counts the others."""

    thread_id: Str
    pruned: tuple[CheckpointConfig, ...] = ()
    kept: Number = 0
    dry_run: Flag = False


class SweepReport(Record):
    """What a sweep did. ``expired`` are the ids of the threads that it deleted, in the order of their expiry.

    ``writes`` counts the writes whose checkpoint never came, ``unborn`` the threads that never had a checkpoint and now
    have nothing else either, and ``skipped`` the threads that somebody was working on or has leased, or
    that cannot be read: for a later sweep.
    """

    expired: tuple[Str, ...] = ()
    writes: Number = 0
    unborn: Number = 0
    skipped: Number = 0


class ProblemKind(StrEnum):
    """What is wrong. Each but ``UNREACHABLE`` may cost somebody a state; that one costs space."""

    CHECKPOINT = "checkpoint"
    """A checkpoint's row, its metadata included, cannot be read or contradicts itself."""
    SEGMENT = "segment"
    """A segment's row cannot be read, or its count or checksum does not match."""
    MISSING = "missing"
    """Elements that a checkpoint names are not stored."""
    OVERLAP = "overlap"
    """An element is stored in two rows."""
    UNREACHABLE = "unreachable"
    """A segment's row of which no checkpoint names an element."""
    WRITE = "write"
    """A pending write cannot be read."""
    RUN = "run"
    """A run's record, or the resume evidence of a checkpoint, cannot be read or contradicts itself."""
    ORPHAN = "orphan"
    """Rows whose thread or checkpoint is not there."""


class Problem(Record):
    """One thing that is wrong: in which thread, in which row, and what. No payload is in it.

    ``thread_id`` is None for rows that belong to no thread.
    """

    kind: ProblemKind
    thread_id: Str | None
    where: Str
    what: Str

    def __str__(self) -> str:
        thread = "no thread" if self.thread_id is None else f"thread {self.thread_id!r}"
        return f"{self.kind}: {thread}, {self.where}: {self.what}"


class VerifyReport(Record):
    """What was looked at and what is wrong with it.

    ``problems`` holds the first 1,000; ``problem_count`` counts them all.
    """

    threads: Number = 0
    checkpoints: Number = 0
    segments: Number = 0
    elements: Number = 0
    writes: Number = 0
    problems: tuple[Problem, ...] = ()
    problem_count: Number = 0

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return self.problem_count == 0


class CompactReport(Record):
    """A thread's segment rows before and after, and the bytes of their payloads."""

    thread_id: Str
    rows_before: Number
    rows_after: Number
    bytes_before: Number
    bytes_after: Number


class TransferReport(Record):
    """How much of a thread was exported or imported."""

    thread_id: Str
    checkpoints: Number
    elements: Number
    writes: Number
    runs: Number
