"""Verifying and compacting: damage is named, and rewriting rows changes no state."""

from __future__ import annotations

from typing import Any

import ormsgpack
import pytest
from sqlalchemy import delete, insert, select, update

from clew import Checkpoint, CheckpointConfig, CorruptData, NotFound, PendingWrite, ProblemKind, VerifyReport

from agents import boundary
from awaiting import executor
from probe import Probe


async def chain(checkpointer: Any, count: int, thread_id: str = "t") -> None:
    for number in range(1, count + 1):
        await checkpointer.put(
            Checkpoint(
                thread_id=thread_id,
                checkpoint_id=f"c{number}",
                parent_checkpoint_id=f"c{number - 1}" if number > 1 else None,
                state={"messages": [f"message {n} " * 30 for n in range(number)], "plan": f"plan {number} " * 50},
                metadata={"step": number, "who": "me"},
                pending_writes=(PendingWrite(node="n", payload=(number,)),),
            )
        )


def damage(probe: Probe, *statements: Any) -> None:
    with probe.connection() as connection:
        for statement in statements:
            connection.execute(statement)


async def found(checkpointer: Any) -> list[tuple[ProblemKind, str]]:
    report = await checkpointer.retention.verify("t")
    assert report.problem_count == len(report.problems)
    assert all(problem.thread_id == "t" for problem in report.problems)
    return [(problem.kind, problem.where) for problem in report.problems]


async def test_what_is_whole_verifies_clean(checkpointer: Any) -> None:
    await chain(checkpointer, 20)
    await chain(checkpointer, 3, "other")
    one, both = await checkpointer.retention.verify("t"), await checkpointer.retention.verify()
    assert one.ok
    assert (one.threads, one.checkpoints, one.elements, one.writes) == (1, 20, 40, 20)
    assert both.ok
    assert (both.threads, both.checkpoints) == (2, 23)


async def test_an_unknown_thread_has_nothing_wrong_with_it(checkpointer: Any) -> None:
    assert await checkpointer.retention.verify("nobody") == VerifyReport()


async def test_a_payload_that_was_changed_is_named(checkpointer: Any, probe: Probe) -> None:
    await chain(checkpointer, 2)
    s = probe.tables.segments
    [first] = probe.rows(select(s.c.log, s.c.start, s.c.payload).order_by(s.c.log, s.c.start).limit(1))
    damage(
        probe,
        update(s)
        .where(s.c.log == first.log, s.c.start == first.start)
        .values(payload=first.payload[:-1] + bytes([first.payload[-1] ^ 1])),
    )
    assert await found(checkpointer) == [(ProblemKind.SEGMENT, f"log {first.log}, the row at {first.start}")]


async def test_a_row_that_is_gone_is_named_with_every_checkpoint_that_misses_it(
    checkpointer: Any, probe: Probe
) -> None:
    await chain(checkpointer, 3)
    s = probe.tables.segments
    logs = [row.log for row in probe.rows(select(s.c.log).where(s.c.start == 1))]
    damage(probe, delete(s).where(s.c.start == 1))
    assert len(logs) == 2
    assert await found(checkpointer) == [
        (ProblemKind.MISSING, "checkpoint 'c2' (namespace [], seq 2)"),
        (ProblemKind.MISSING, "checkpoint 'c2' (namespace [], seq 2)"),
        (ProblemKind.MISSING, "checkpoint 'c3' (namespace [], seq 3)"),
    ]


async def test_a_row_that_nobody_names_and_one_that_overlaps_are_named(checkpointer: Any, probe: Probe) -> None:
    await chain(checkpointer, 1)
    s = probe.tables.segments
    [row] = probe.rows(select(s).order_by(s.c.log).limit(1))
    values = {"thread_key": row.thread_key, "start": 5, "count": 1, "payload": row.payload}
    damage(probe, insert(s).values(log=7, **values))
    assert await found(checkpointer) == [(ProblemKind.UNREACHABLE, "log 7, the row at 5")]
    damage(probe, delete(s).where(s.c.log == 7), update(s).where(s.c.log == row.log).values(count=2))
    kinds = [kind for kind, _ in await found(checkpointer)]
    assert kinds == [ProblemKind.SEGMENT]


async def test_a_manifest_a_write_and_metadata_that_cannot_be_read_are_named(checkpointer: Any, probe: Probe) -> None:
    await chain(checkpointer, 2)
    c, w, m = probe.tables.checkpoints, probe.tables.pending_writes, probe.tables.checkpoint_metadata
    damage(
        probe,
        update(c).where(c.c.seq == 1).values(manifest=b"\x01nonsense"),
        update(w).where(w.c.checkpoint_id == "c1").values(payload=b"\xc1"),
        update(m).where(m.c.seq == 2).values(value="{"),
    )
    assert await found(checkpointer) == [
        (ProblemKind.CHECKPOINT, "clew_checkpoint_metadata"),
        (ProblemKind.CHECKPOINT, "checkpoint 'c1' (namespace [], seq 1)"),
        (ProblemKind.WRITE, "write ('', 0) of checkpoint 'c1' (namespace [])"),
    ]


async def test_what_no_put_and_no_run_writes_is_named_with_what_is_wrong(checkpointer: Any, probe: Probe) -> None:
    await chain(checkpointer, 5)
    await executor(checkpointer).checkpoint(boundary(1, "b", run_id="r"))
    await checkpointer.runs.finish("r", "completed")
    c, r = probe.tables.checkpoints, probe.tables.runs
    damage(
        probe,
        update(c).where(c.c.seq == 1).values(namespace='[ "a"]'),
        update(c).where(c.c.seq == 2).values(next_nodes="5"),
        update(c).where(c.c.seq == 3).values(parent_checkpoint_id="c3"),
        update(c).where(c.c.seq == 4).values(source="dream"),
        update(probe.tables.versions).values(last_seq=4),
        update(r).values(status="failed"),
    )
    told = {(problem.where, problem.what) for problem in (await checkpointer.retention.verify("t")).problems}
    assert told >= {
        ("checkpoint 'c1' (namespace [ \"a\"], seq 1)", "its namespace is not in canonical form"),
        ("checkpoint 'c2' (namespace [], seq 2)", "next_nodes is not a list"),
        ("checkpoint 'c3' (namespace [], seq 3)", "it is its own parent"),
        ("checkpoint 'c4' (namespace [], seq 4)", "its source is not one of those that there are"),
        ("checkpoint 'c5' (namespace [], seq 5)", "its seq is beyond the thread's last, 4"),
        ("run 'r'", "it is failed, and has no error"),
    }


async def test_a_row_that_could_be_read_but_not_used_is_named(checkpointer: Any, probe: Probe) -> None:
    await chain(checkpointer, 3)
    c = probe.tables.checkpoints
    damage(
        probe,
        update(c).where(c.c.seq == 1).values(interrupts=ormsgpack.packb([["i", 5, None]])),
        update(c).where(c.c.seq == 2).values(barriers=ormsgpack.packb([["n", [5]]])),
        update(c).where(c.c.seq == 3).values(fork_checkpoint_id="c1"),
    )
    assert await found(checkpointer) == [
        (ProblemKind.CHECKPOINT, f"checkpoint 'c{number}' (namespace [], seq {number})") for number in (1, 2, 3)
    ]


async def test_a_run_and_evidence_that_cannot_be_read_or_contradict_themselves_are_named(
    checkpointer: Any, probe: Probe
) -> None:
    committing = executor(checkpointer)
    for step in range(3):
        await committing.checkpoint(boundary(step))
    await committing.checkpoint(boundary(3, run_id="r2"))
    await committing.checkpoint(boundary(4, run_id="r3"))
    assert await found(checkpointer) == []
    r, e = probe.tables.runs, probe.tables.resume_evidence
    damage(
        probe,
        update(r).where(r.c.run_id == "r").values(status="resting"),
        update(r).where(r.c.run_id == "r2").values(status="completed"),
        update(r).where(r.c.run_id == "r3").values(requests=-1),
        update(e).where(e.c.seq == 1).values(node="lunch"),
        update(e).where(e.c.seq == 2).values(details=ormsgpack.packb([1])),
        update(e).where(e.c.seq == 3).values(run_step=-1),
    )
    assert await found(checkpointer) == [
        (ProblemKind.RUN, "clew_resume_evidence"),
        (ProblemKind.RUN, "clew_resume_evidence"),
        (ProblemKind.RUN, "clew_resume_evidence"),
        (ProblemKind.RUN, "run 'r'"),
        (ProblemKind.RUN, "run 'r2'"),
        (ProblemKind.RUN, "run 'r3'"),
    ]


async def test_a_damaged_run_or_evidence_is_named_where_it_is_read(checkpointer: Any, probe: Probe) -> None:
    committing = executor(checkpointer)
    for step in range(2):
        await committing.checkpoint(boundary(step))
    r, e = probe.tables.runs, probe.tables.resume_evidence
    damage(probe, update(e).where(e.c.seq == 2).values(status="resting"))
    with pytest.raises(CorruptData, match="checkpoint 'ck1' of thread 't': the columns of resume evidence"):
        await checkpointer.runs.boundaries("r")
    with pytest.raises(CorruptData, match="checkpoint 'ck1' of thread 't': the columns of resume evidence"):
        await checkpointer.runs.resume_snapshot("r")
    damage(probe, update(r).values(status="resting"))
    for read in (checkpointer.runs.get("r"), checkpointer.runs.list(), checkpointer.runs.finish("r", "cancelled")):
        with pytest.raises(CorruptData, match="run 'r' of thread 't': its row holds no run"):
            await read


async def test_looking_back_names_the_checkpoint_that_misses_an_element(checkpointer: Any, probe: Probe) -> None:
    await chain(checkpointer, 3)
    s = probe.tables.segments
    damage(probe, delete(s).where(s.c.start == 1))
    with pytest.raises(CorruptData, match="checkpoint 'c3' of thread 't'"):
        await checkpointer.timeline.state_history("t")
    with pytest.raises(CorruptData, match="checkpoint 'c2' of thread 't'"):
        await checkpointer.timeline.state_history("t", checkpoint_id="c2")


async def test_only_so_many_problems_are_kept_but_all_are_counted(checkpointer: Any, probe: Probe) -> None:
    await chain(checkpointer, 1)
    s = probe.tables.segments
    [row] = probe.rows(select(s).limit(1))
    values = {"thread_key": row.thread_key, "count": 1, "payload": row.payload, "start": 0}
    damage(probe, *(insert(s).values(log=number, **values) for number in range(1100)))
    report = await checkpointer.retention.verify()
    assert (len(report.problems), report.problem_count, report.ok) == (1000, 1100, False)


async def test_compacting_merges_small_rows_and_changes_no_state(checkpointer: Any, probe: Probe) -> None:
    await chain(checkpointer, 40)
    report = await checkpointer.retention.compact("t")
    assert report.rows_before > report.rows_after == 2
    assert report.bytes_before > report.bytes_after == probe.segment_bytes()
    for number in (1, 17, 40):
        state = (await checkpointer.get(CheckpointConfig(thread_id="t", checkpoint_id=f"c{number}"))).state
        assert state["messages"] == [f"message {n} " * 30 for n in range(number)]
        assert state["plan"] == f"plan {number} " * 50
    assert (await checkpointer.retention.verify()).ok


async def test_a_row_that_is_mostly_dead_sheds_what_is(checkpointer: Any, probe: Probe) -> None:
    items = [f"item {n} " * 30 for n in range(10)]
    await checkpointer.put(Checkpoint(thread_id="t", checkpoint_id="c1", state={"items": items}))
    kept = [items[1], items[2], items[7]]
    await checkpointer.put(
        Checkpoint(thread_id="t", checkpoint_id="c2", parent_checkpoint_id="c1", state={"items": kept})
    )
    await checkpointer.delete_checkpoints("t", ["c1"])
    assert probe.elements() == 10
    await checkpointer.retention.compact("t")
    assert probe.elements() == 3
    assert probe.problems() == []
    # the log has lost its end, whose positions must not come again
    await checkpointer.put(
        Checkpoint(thread_id="t", checkpoint_id="c3", parent_checkpoint_id="c2", state={"items": [*kept, "new " * 90]})
    )
    assert (await checkpointer.get(CheckpointConfig.latest("t"))).state == {"items": [*kept, "new " * 90]}
    assert (await checkpointer.retention.verify()).ok


async def test_compacting_writes_what_it_has_made_whenever_that_is_much(
    checkpointer: Any, probe: Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clew.repository.retention.compacting._PENDING_BYTES", 1)
    await chain(checkpointer, 20)
    await chain(checkpointer, 1, "other")
    other = await checkpointer.get(CheckpointConfig.latest("other"))
    await checkpointer.retention.compact("t")
    assert probe.problems() == []
    state = (await checkpointer.get(CheckpointConfig(thread_id="t", checkpoint_id="c20"))).state
    assert state == {"messages": [f"message {n} " * 30 for n in range(20)], "plan": "plan 20 " * 50}
    assert await checkpointer.get(CheckpointConfig.latest("other")) == other


async def test_compacting_again_writes_nothing(checkpointer: Any, probe: Probe) -> None:
    await chain(checkpointer, 20)
    await checkpointer.retention.compact("t")
    v = probe.tables.versions.c
    before = probe.rows(select(v.version, v.last_seq, v.activity))
    await checkpointer.retention.compact("t")
    assert probe.rows(select(v.version, v.last_seq, v.activity)) == before


async def test_a_branch_from_the_middle_after_compacting_is_complete_with_a_warm_and_a_cold_memory(
    opener: Any, probe: Probe
) -> None:
    async with opener() as warm, opener() as cold:
        await chain(warm, 30)
        await cold.retention.compact("t")
        for name, writer in (("warm", warm), ("cold", cold)):
            state = {"messages": [*(f"message {n} " * 30 for n in range(15)), name * 100], "plan": name}
            await writer.put(Checkpoint(thread_id="t", checkpoint_id=name, parent_checkpoint_id="c15", state=state))
            assert (await cold.get(CheckpointConfig(thread_id="t", checkpoint_id=name))).state == state
        assert probe.problems() == []


async def test_only_a_thread_that_is_there_is_compacted(checkpointer: Any) -> None:
    with pytest.raises(NotFound):
        await checkpointer.retention.compact("nobody")
