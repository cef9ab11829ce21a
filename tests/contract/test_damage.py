"""Rows that were damaged by hand: each call works or says what is damaged, and deleting the thread always works."""

from __future__ import annotations

import io
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any
from zlib import crc32

import ormsgpack
import pytest
from sqlalchemy import delete, literal_column, select, update

import clew
from clew import (
    BarrierArrivals,
    Checkpoint,
    CheckpointConfig,
    Interrupt,
    PendingActivation,
    PendingWrite,
)
from clew.codec.frames import zstd

from agents import boundary
from awaiting import executor
from probe import Probe


def at(checkpoint_id: str | None, thread_id: str = "t") -> CheckpointConfig:
    return CheckpointConfig(thread_id=thread_id, checkpoint_id=checkpoint_id)


STATES = {
    f"c{number}": {
        "messages": [f"message {n} " * 30 for n in range(number * 3)],
        "plan": f"plan {number} " * 50,
        "table": {f"k{n}": f"v{n}" * 4 for n in range(70)},
        "n": number,
    }
    for number in (1, 2, 3)
}


async def fill(checkpointer: Any, thread_id: str) -> None:
    for number, (checkpoint_id, state) in enumerate(STATES.items(), start=1):
        await checkpointer.put(
            Checkpoint(
                thread_id=thread_id,
                checkpoint_id=checkpoint_id,
                parent_checkpoint_id=f"c{number - 1}" if number > 1 else None,
                run_id=f"{thread_id}-run",
                state=state,
                next_nodes=("go", "on"),
                completed_tasks=("task",),
                interrupts=(Interrupt(id="i", node="n", payload={"q": 1}),),
                pending_activations=(PendingActivation(node="n", send_arg=[1], task_id="task"),),
                barrier_arrivals=(BarrierArrivals(node="b", arrived=("x", "y")),),
                metadata={"step": number, "who": "me"},
                pending_writes=(PendingWrite(node="n", payload=(number,)),),
            )
        )
    checkpoint = boundary(1, "ck", run_id=f"{thread_id}-agent", thread_id=thread_id)
    await executor(checkpointer).checkpoint(checkpoint)


Call = Callable[[Any], Awaitable[Any]]


def export(checkpointer: Any) -> Awaitable[Any]:
    return checkpointer.retention.export_thread("t", io.BytesIO())  # type: ignore[no-any-return]


READING: dict[str, Call] = {
    **{f"get {name}": lambda c, name=name: c.get(at(name)) for name in ("c1", "c2", "c3", "ck", None)},  # type: ignore[misc]
    "get_tuple without state": lambda c: c.get_tuple(at("c2"), load_state=False),
    "get_tuple of channels": lambda c: c.get_tuple(at("c2"), channels=["table"]),
    "get_writes": lambda c: c.get_writes(at("c2")),
    "list": lambda c: c.list("t"),
    "list by metadata": lambda c: c.list("t", metadata={"who": "me"}),
    "history": lambda c: c.history(at("c3")),
    "get_thread": lambda c: c.get_thread("t"),
    "statistics": lambda c: c.statistics("t"),
    "state_history": lambda c: c.timeline.state_history("t"),
    "channel_history": lambda c: c.timeline.channel_history("t", "messages", checkpoint_id="c3"),
    "at_step": lambda c: c.timeline.at_step("t", 2),
    "diff": lambda c: c.timeline.diff(at("c1"), at("c3")),
    "resume_point": lambda c: c.timeline.resume_point(at("c2")),
    "children": lambda c: c.timeline.children(at("c1")),
    "heads": lambda c: c.timeline.heads("t"),
    "tree": lambda c: c.timeline.tree("t"),
    "get_run": lambda c: c.runs.get("t-agent", thread_id="t"),
    "list_runs": lambda c: c.runs.list(thread_id="t"),
    "list_resumable": lambda c: c.runs.list_resumable(thread_id="t"),
    "usage": lambda c: c.runs.usage("t"),
    "boundaries": lambda c: c.runs.boundaries("t-agent", thread_id="t"),
    "get_checkpoint": lambda c: c.runs.get_checkpoint(at("ck")),
    "resume_snapshot": lambda c: c.runs.resume_snapshot("t-agent", thread_id="t"),
    "verify": lambda c: c.retention.verify("t"),
    "export": export,
}
WRITING: dict[str, Call] = {
    "fork": lambda c: c.timeline.fork(at("c2"), checkpoint_id="fork"),
    "fork into another": lambda c: c.timeline.fork(at("c2"), "t2"),
    "copy_thread": lambda c: c.timeline.copy_thread("t", "t3"),
    "copy the latest": lambda c: c.timeline.copy_thread("t", "t4", latest_only=True),
    "update_state": lambda c: c.timeline.update_state(at("c2"), {"n": 9}),
    "put": lambda c: c.put(Checkpoint(thread_id="t", checkpoint_id="new", state={"n": 1})),
    "put again": lambda c: c.put(Checkpoint(thread_id="t", checkpoint_id="c2", state={"n": 1})),
    "put_writes": lambda c: c.put_writes(at("c2"), [PendingWrite(node="n", payload=1, task_id="x", idx=-1)]),
    "executor": lambda c: executor(c).checkpoint(boundary(2, run_id="t-agent", thread_id="t")),
    "finish": lambda c: c.runs.finish("t-agent", "completed", thread_id="t"),
    "set_expiry": lambda c: c.retention.set_expiry("t", ttl=timedelta(days=9), refresh_on_activity=True),
    "sweep": lambda c: c.retention.sweep(),
    "compact": lambda c: c.retention.compact("t"),
    "delete_checkpoints": lambda c: c.delete_checkpoints("t", ["c1"]),
    "prune": lambda c: c.retention.prune("t", keep_last=1),
    "delete_by_run": lambda c: c.delete_by_run("t-run", thread_id="t"),
}


def sealed(outline: bytes, spans: bytes = b"") -> bytes:
    """A manifest with a right checksum."""
    return b"\x01" + crc32(outline, crc32(spans)).to_bytes(4, "big") + outline


def unsized(size: int) -> bytes:
    """A zstd frame that does not say how large it becomes."""
    compressor = zstd.ZstdCompressor()
    return compressor.compress(bytes(size)) + compressor.flush()


DEEP = "[" * 100_000
DAMAGE: dict[tuple[str, str], tuple[Any, ...]] = {
    ("threads", "metadata"): ("{", DEEP),
    ("threads", "created_at"): (literal_column("'infinity'"),),
    ("versions", "activity"): (literal_column("'infinity'"),),
    ("versions", "lease_until"): (literal_column("'-infinity'"),),
    ("versions", "last_seq"): (0,),
    ("checkpoints", "created_at"): (literal_column("'infinity'"),),
    ("checkpoints", "manifest"): (b"", sealed(b"\x04"), sealed(b"\x93\xc0\xa1k" * 200 + b"\xc0")),
    ("checkpoints", "spans"): (ormsgpack.packb([[5], [0, 2**62, 2**62]]), b"\xc1"),
    ("checkpoints", "completed_tasks"): (ormsgpack.packb([1]),),
    ("checkpoints", "interrupts"): (b"\xc1", ormsgpack.packb([[1, 2, 3]])),
    ("checkpoints", "activations"): (ormsgpack.packb(5),),
    ("checkpoints", "barriers"): (ormsgpack.packb([["a"]]),),
    ("checkpoints", "next_nodes"): ("", "5", "[5]", DEEP),
    ("checkpoints", "namespace"): ("{", "[5]"),
    ("checkpoints", "source"): ("rewind",),
    ("checkpoints", "fork_checkpoint_id"): ("c1",),
    ("checkpoints", "metadata_form"): (7,),
    ("checkpoints", "parent_checkpoint_id"): ("c2",),
    ("checkpoint_metadata", "value"): ("5", "1" * 5000, DEEP, "{"),
    ("segments", "payload"): (b"", b"\x07" * 50, b"\x01" + unsized(10**8)),
    ("segments", "count"): (-1, 2**62, 0),
    ("segments", "start"): (2**62,),
    ("pending_writes", "payload"): (b"", b"\x91" * 5000),
    ("runs", "status"): ("x",),
    ("runs", "namespace"): ("5",),
    ("runs", "requests"): (-1,),
    ("resume_evidence", "status"): ("x",),
    ("resume_evidence", "stream_cursor"): (-1,),
    ("resume_evidence", "details"): (b"\x01", ormsgpack.packb({"metadata": 5})),
}
GONE = ["versions", "checkpoints", "checkpoint_metadata", "segments", "pending_writes", "runs", "resume_evidence"]


Change = Callable[[Any], Any]


@pytest.fixture
async def damage(opener: Any, probe: Probe) -> Callable[[Change], None]:
    """Damages the rows of the thread ``t``, of which only closed checkpointers have seen anything."""
    async with opener() as writer:
        await fill(writer, "t")
        await fill(writer, "other")
    key = select(probe.tables.threads.c.thread_key).where(probe.tables.threads.c.thread_id == "t").scalar_subquery()

    def damaged(change: Change) -> None:
        with probe.connection() as connection:
            connection.execute(change(key))

    return damaged


async def check(checkpointer: Any, calls: dict[str, Call]) -> None:
    """Whether each of the calls works, or says in the library's words what does not."""
    for name, call in calls.items():
        found = None
        try:
            found = await call(checkpointer)
        except (clew.CorruptData, clew.AgentExecutorError) as exc:
            found = exc
        except (clew.NotFound, clew.Contention):
            continue
        if isinstance(found, clew.ClewError):
            assert "thread 't'" in str(found) or "run 't-agent'" in str(found), name
        elif name in ("get c1", "get c2", "get c3") and found is not None:
            assert found.state == STATES[name[4:]], name


async def check_the_rest(checkpointer: Any, probe: Probe) -> None:
    """Whether another thread is as it was, and the damaged one can be deleted."""
    assert (await checkpointer.get(at("c3", "other"))).state == STATES["c3"]
    assert (await checkpointer.retention.verify("other")).ok
    assert await checkpointer.delete_thread("t")
    for copy in ("t2", "t3", "t4"):
        await checkpointer.delete_thread(copy)
    assert probe.rows(select(probe.tables.threads.c.thread_id)) == [("other",)]
    for table in probe.tables.owned:
        assert len(probe.rows(select(table.c.thread_key).distinct())) <= 1, table.name


@pytest.mark.parametrize(("table", "column"), DAMAGE)
async def test_a_damaged_column_is_an_error_of_ours_or_does_no_harm(
    checkpointer: Any, damage: Callable[[Change], None], probe: Probe, table: str, column: str
) -> None:
    rows = getattr(probe.tables, table)
    only = [rows.c.seq == 2] if table.startswith("checkpoint") else [rows.c.start == 0] if table == "segments" else []
    for value in DAMAGE[table, column]:
        damage(lambda key, value=value: update(rows).where(rows.c.thread_key == key, *only).values({column: value}))
        await check(checkpointer, READING)
    await check(checkpointer, WRITING)
    await check_the_rest(checkpointer, probe)


@pytest.mark.parametrize("table", GONE)
async def test_rows_that_are_gone_are_an_error_of_ours_or_do_no_harm(
    checkpointer: Any, damage: Callable[[Change], None], probe: Probe, table: str
) -> None:
    rows = getattr(probe.tables, table)
    damage(lambda key: delete(rows).where(rows.c.thread_key == key))
    await check(checkpointer, READING)
    await check(checkpointer, WRITING)
    await check_the_rest(checkpointer, probe)


async def test_checkpoints_whose_elements_are_gone_can_be_deleted_one_by_one(
    checkpointer: Any, damage: Callable[[Change], None], probe: Probe
) -> None:
    rows = probe.tables.segments
    damage(lambda key: delete(rows).where(rows.c.thread_key == key))
    assert await checkpointer.delete_checkpoints("t", ["c2"]) == 1
    assert await checkpointer.delete_checkpoints("t", ["c1", "c3"]) == 2
    assert [item.checkpoint_id for item in (await checkpointer.list("t")).items] == ["ck"]


async def test_a_damaged_thread_does_not_keep_others_from_being_swept(
    checkpointer: Any, damage: Callable[[Change], None], probe: Probe
) -> None:
    for thread_id in ("t", "other"):
        await checkpointer.retention.set_expiry(thread_id, ttl=timedelta(microseconds=1), refresh_on_activity=True)
    rows = probe.tables.threads
    damage(lambda key: update(rows).where(rows.c.thread_key == key).values(ttl_us=2**62))
    report = await checkpointer.retention.sweep()
    assert (report.expired, report.skipped) == (("other",), 1)
    assert await checkpointer.delete_thread("t")
