"""Verifying a thread: what its rows say, checked against each other. Damage is reported, never raised, never mended."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

from sqlalchemy import Connection, Select, bindparam, exists, select

from clew.codec import Codec, UntypedCodec
from clew.errors import CorruptData
from clew.records import CheckpointSource, Problem, ProblemKind, Run, RunStatus, VerifyReport
from clew.repository.keys import namespace_text
from clew.repository.request import METADATA_STORED
from clew.repository.runs.evidence import evidence_of
from clew.repository.runs.records import run_of
from clew.repository.scanning import (
    checkpoints_in_order,
    companions_in_order,
    runs_in_order,
    segments_in_order,
    writes_in_order,
)
from clew.repository.soundness import UNREADABLE, read, readable, reason
from clew.repository.store import Store
from clew.structure import (
    Span,
    SpanSet,
    decode_payload,
    decode_spans,
    spans_of,
)
from clew.tables import Tables

__all__ = ["Findings", "orphans", "threads_to_verify", "verify_thread"]

MOST_PROBLEMS: Final = 1000
_BATCH: Final = 100


@dataclass(slots=True)
class Findings:
    """What was looked at so far, and what is wrong with it. ``thread_id`` is the one that is being looked at."""

    thread_id: str | None = None
    threads: int = 0
    checkpoints: int = 0
    segments: int = 0
    elements: int = 0
    writes: int = 0
    problems: list[Problem] = field(default_factory=list)
    problem_count: int = 0

    def add(self, kind: ProblemKind, where: str, what: str) -> None:
        """One more thing that is wrong; the first 1,000 are kept."""
        self.problem_count += 1
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(Problem(kind=kind, thread_id=self.thread_id, where=where, what=what))

    def include(self, other: Findings) -> None:
        """Add up two."""
        for name in ("threads", "checkpoints", "segments", "elements", "writes", "problem_count"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.problems += other.problems[: MOST_PROBLEMS - len(self.problems)]

    def report(self) -> VerifyReport:
        """As the caller gets it."""
        return VerifyReport(
            threads=self.threads,
            checkpoints=self.checkpoints,
            segments=self.segments,
            elements=self.elements,
            writes=self.writes,
            problems=tuple(self.problems),
            problem_count=self.problem_count,
        )


def threads_to_verify(store: Store, connection: Connection, after: int) -> list[tuple[int, str]]:
    """(key, id) of the threads behind ``after``, at most 100."""
    rows = connection.execute(_threads(store.tables), {"after": after, "most": _BATCH}).all()
    return [(row.thread_key, row.thread_id) for row in rows]


def verify_thread(
    store: Store, connection: Connection, thread_key: int, thread_id: str, *, lock: bool = False
) -> Findings | None:
    """What is wrong with one thread; None where it changed while it was being looked at, which ``lock`` prevents.

    Every manifest and every payload is read, a few at a time. An unknown thread has nothing wrong with it.
    """
    statement = _version(store.tables)
    before = connection.execute(
        store.dialect.delete_lock(statement) if lock else statement, {"key": thread_key}
    ).one_or_none()
    findings = Findings(thread_id)
    if before is None:
        if not _threads_row(store, connection, thread_key):
            return findings
        findings.add(ProblemKind.ORPHAN, "the thread's row", "it has no version")
    findings.threads = 1
    try:
        _check(store, connection, thread_key, findings, before.last_seq if before else 2**63)
    except UNREADABLE as exc:  # a value that its column's type cannot make anything of
        findings.add(ProblemKind.CHECKPOINT, "a row", f"a column cannot be read, the rest is unseen: {reason(exc)}")
    after = connection.execute(statement, {"key": thread_key}).one_or_none()
    return findings if after == before else None


def orphans(store: Store, connection: Connection) -> Findings:
    """Rows of threads that are not there, which foreign keys prevent as long as they are enforced."""
    findings, versions = Findings(), store.tables.versions
    for table in (*store.tables.owned, versions):
        owner = store.tables.threads if table is versions else versions
        strays = (
            select(table.c.thread_key)
            .where(~exists().where(owner.c.thread_key == table.c.thread_key))
            .distinct()
            .order_by(table.c.thread_key)
            .limit(_BATCH)
        )
        for key in connection.execute(strays).scalars().all():
            findings.add(ProblemKind.ORPHAN, table.name, f"rows of thread key {key}, which is not there")
    return findings


def _check(store: Store, connection: Connection, thread_key: int, findings: Findings, last_seq: int) -> None:
    codec = UntypedCodec()
    named = _check_checkpoints(store, connection, thread_key, codec, findings, last_seq)
    missing = _check_segments(store, connection, thread_key, codec, findings, named)
    if missing:
        _name_missing(store, connection, thread_key, findings, missing)
    _check_writes(store, connection, thread_key, codec, findings)
    _check_runs(store, connection, thread_key, findings)


def _check_checkpoints(
    store: Store, connection: Connection, thread_key: int, codec: Codec, findings: Findings, last_seq: int
) -> SpanSet:
    """Every checkpoint's row, and what all of them together name."""
    columns = [column for column in store.tables.checkpoints.c if column.name != "thread_key"]
    described = _described(store, connection, thread_key, findings)
    testified = _testified(store, connection, thread_key, codec, findings)
    named, fresh = SpanSet(), set[Span]()
    for row in checkpoints_in_order(store, connection, thread_key, columns, batch=_BATCH):
        findings.checkpoints += 1
        where = f"checkpoint {row.checkpoint_id!r} (namespace {row.namespace}, seq {row.seq})"
        try:
            fresh.update(spans_of(readable(codec, row)))
        except CorruptData as exc:
            findings.add(ProblemKind.CHECKPOINT, where, str(exc))
            fresh.update(_spans_of_damaged(row))
        for what in _contradictions(row, last_seq):
            findings.add(ProblemKind.CHECKPOINT, where, what)
        if (row.metadata_form == METADATA_STORED) != (row.seq in described):
            findings.add(ProblemKind.CHECKPOINT, where, "its metadata's row is missing or is one too many")
        described.discard(row.seq)
        testified.discard(row.seq)
        if len(fresh) > 20_000:
            named, fresh = SpanSet([*named, *fresh]), set()
    for table, left in ((store.tables.checkpoint_metadata, described), (store.tables.resume_evidence, testified)):
        for seq in sorted(left):
            findings.add(ProblemKind.ORPHAN, table.name, f"no checkpoint has seq {seq}")
    return SpanSet([*named, *fresh])


def _spans_of_damaged(row: Any) -> list[Span]:
    """What the row still says that it names: a damaged manifest does not make its elements unreachable."""
    try:
        return [span for span in decode_spans(row.spans) if span.start < span.end]
    except UNREADABLE:
        return []


def _described(store: Store, connection: Connection, thread_key: int, findings: Findings) -> set[int]:
    """The sequence numbers that have free-form metadata, all of which is read."""
    table, found = store.tables.checkpoint_metadata, set[int]()
    for row in companions_in_order(connection, thread_key, table):
        found.add(row["seq"])
        try:
            json.loads(row["value"])
        except UNREADABLE as exc:
            what = f"the metadata of seq {row['seq']} cannot be read: {reason(exc)}"
            findings.add(ProblemKind.CHECKPOINT, table.name, what)
    return found


def _testified(store: Store, connection: Connection, thread_key: int, codec: Codec, findings: Findings) -> set[int]:
    """The sequence numbers that have resume evidence, all of which is read."""
    table, found = store.tables.resume_evidence, set[int]()
    for row in companions_in_order(connection, thread_key, table):
        found.add(row["seq"])
        try:
            evidence_of(codec, row)
        except UNREADABLE as exc:
            findings.add(ProblemKind.RUN, table.name, f"the evidence of seq {row['seq']} cannot be read: {reason(exc)}")
    return found


def _contradictions(row: Any, last_seq: int) -> Iterable[str]:
    if row.seq > last_seq:
        yield f"its seq is beyond the thread's last, {last_seq}"
    if row.parent_checkpoint_id == row.checkpoint_id:
        yield "it is its own parent"
    if row.source not in tuple(CheckpointSource):
        yield "its source is not one of those that there are"
    try:
        if namespace_text(json.loads(row.namespace)) != row.namespace:
            yield "its namespace is not in canonical form"
        if row.next_nodes is not None and not isinstance(json.loads(row.next_nodes), list):
            yield "next_nodes is not a list"
    except UNREADABLE:
        yield "its namespace or next_nodes cannot be read"


def _check_segments(
    store: Store, connection: Connection, thread_key: int, codec: Codec, findings: Findings, named: SpanSet
) -> SpanSet:
    """Every segment row against the others and against what is named; what is named and not there."""
    missing = SpanSet(named)
    log, end = -1, 0
    marks: dict[int, int] = {}
    filled: set[int] = set()
    for row in segments_in_order(store, connection, thread_key):
        where = f"log {row.log}, the row at {row.start}"
        if row.log != log:
            log, end = row.log, 0
        if row.start < end or row.start < 0 or row.count < 0:
            findings.add(ProblemKind.OVERLAP, where, f"the row before it reaches to {end}")
        end = max(end, row.start + row.count)
        if row.count == 0:
            marks[row.log] = row.start
            continue
        findings.segments += 1
        findings.elements += row.count
        if not named.covered(row.log, row.start, row.start + row.count):
            findings.add(ProblemKind.UNREACHABLE, where, "no checkpoint names any of its elements")
        filled.add(row.log)
        missing.remove([Span(row.log, row.start, row.start + row.count)])
        try:
            segment = decode_payload(row.log, row.start, row.count, row.payload)
            read("an element", lambda segment=segment: codec.decode_many(segment.count, [segment.body]))  # type: ignore[misc]
        except UNREADABLE as exc:
            findings.add(ProblemKind.SEGMENT, where, reason(exc))
    for log, mark in marks.items():
        if log not in filled:
            findings.add(ProblemKind.UNREACHABLE, f"log {log}, the mark at {mark}", "the log has no other row")
    return missing


def _name_missing(store: Store, connection: Connection, thread_key: int, findings: Findings, missing: SpanSet) -> None:
    """A second look at the checkpoints, for those that name what is not there."""
    c = store.tables.checkpoints.c
    columns = [c.seq, c.namespace, c.checkpoint_id, c.spans]
    for row in checkpoints_in_order(store, connection, thread_key, columns):
        for span in _spans_of_damaged(row):
            gaps = missing.within(*span)
            if gaps:
                where = f"checkpoint {row.checkpoint_id!r} (namespace {row.namespace}, seq {row.seq})"
                first, count = gaps[0], sum(gap.end - gap.start for gap in gaps)
                what = f"{count} of its elements are not stored, the first at {first.start} of log {first.log}"
                findings.add(ProblemKind.MISSING, where, what)


def _check_writes(store: Store, connection: Connection, thread_key: int, codec: Codec, findings: Findings) -> None:
    for row in writes_in_order(store, connection, thread_key):
        findings.writes += 1
        try:
            codec.decode(row.payload)
        except UNREADABLE as exc:
            where = (
                f"write ({row.task_id!r}, {row.idx}) of checkpoint {row.checkpoint_id!r} (namespace {row.namespace})"
            )
            findings.add(ProblemKind.WRITE, where, f"its payload cannot be read: {reason(exc)}")


def _check_runs(store: Store, connection: Connection, thread_key: int, findings: Findings) -> None:
    for row in runs_in_order(store, connection, thread_key):
        where = f"run {row['run_id']!r}"
        try:
            run = run_of({**row, "thread_id": findings.thread_id})
        except UNREADABLE as exc:
            findings.add(ProblemKind.RUN, where, reason(exc))
        else:
            for what in _contradictions_of(run):
                findings.add(ProblemKind.RUN, where, what)


def _contradictions_of(run: Run) -> Iterable[str]:
    if run.status.is_finished != (run.finished_at is not None):
        yield f"it is {run.status.value}, and {'has no' if run.finished_at is None else 'has a'} moment of its finish"
    if (run.status is RunStatus.FAILED) != (run.error is not None):
        yield f"it is {run.status.value}, and has {'no' if run.error is None else 'an'} error"


def _threads_row(store: Store, connection: Connection, thread_key: int) -> bool:
    t = store.tables.threads.c
    return connection.execute(select(t.thread_key).where(t.thread_key == thread_key)).one_or_none() is not None


@cache
def _version(tables: Tables) -> Select[Any]:
    v = tables.versions.c
    return select(v.version, v.last_seq).where(v.thread_key == bindparam("key"))


@cache
def _threads(tables: Tables) -> Select[Any]:
    t = tables.threads.c
    return (
        select(t.thread_key, t.thread_id)
        .where(t.thread_key > bindparam("after"))
        .order_by(t.thread_key)
        .limit(bindparam("most"))
    )
