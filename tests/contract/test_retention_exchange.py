"""Export and import: a thread as lines of JSON, lossless from any database into any other, or refused as a whole."""

from __future__ import annotations

import base64
import io
import json
import os
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from hashlib import blake2b
from pathlib import Path
from typing import Any

import ormsgpack
import pytest

import clew
from clew import (
    AlreadyExists,
    Checkpoint,
    CheckpointConfig,
    Interrupt,
    InvalidInput,
    NotFound,
    PendingActivation,
    PendingWrite,
    TraceContext,
    TransferReport,
)

from agents import boundary
from awaiting import executor
from probe import Probe

STATE = {"when": datetime(2026, 5, 1, tzinfo=UTC), "cost": Decimal("1.10"), "big": 2**70, "pair": (1, b"2")}


async def fill(checkpointer: Any, thread_id: str = "t", count: int = 25) -> None:
    for number in range(1, count + 1):
        for namespace in ((), ("child", "a")):
            await checkpointer.put(
                Checkpoint(
                    thread_id=thread_id,
                    checkpoint_id=f"c{number}",
                    parent_checkpoint_id=f"c{number - 1}" if number > 1 else None,
                    namespace=namespace,
                    run_id=f"r{number // 10}",
                    state={
                        "messages": [f"message {n} " * 40 for n in range(number)],
                        "files": {f"file {n}": "x" * (n + number // 20) for n in range(70)},
                        **STATE,
                    },
                    metadata={"z": 1e22, "a": None, "step": number},
                    next_nodes=("a",),
                    completed_tasks=("task",),
                    pending_writes=(PendingWrite(node="n", payload={"tuple": (1, 2)}),),
                    interrupts=(Interrupt(id="i", node="n", payload=[1]),),
                    pending_activations=(PendingActivation(node="n", send_arg=(1,)),),
                )
            )
    await checkpointer.put_writes(
        CheckpointConfig(thread_id=thread_id, checkpoint_id="later"), [PendingWrite(node="n", payload=1, task_id="a")]
    )
    await checkpointer.timeline.fork(CheckpointConfig(thread_id=thread_id, checkpoint_id="c1"), checkpoint_id="forked")


async def fill_runs(checkpointer: Any) -> None:
    """Two runs that take turns in thread t; of one the evidence has details, and the other one is finished."""
    worker = executor(checkpointer)
    for step in (1, 2):
        for run_id in ("a", "B"):
            trace = TraceContext(span_id="s", parent_span_id="p", metadata={"n": step})
            await worker.checkpoint(
                boundary(step, f"{run_id}{step}", run_id=run_id, parent_run_id="0", trace_context=trace)
            )
    await checkpointer.runs.finish("B", "failed", "because")


async def runs_of(checkpointer: Any) -> list[Any]:
    runs = (await checkpointer.runs.list()).items
    boundaries = [(await checkpointer.runs.boundaries(run.run_id)).items for run in runs]
    return [runs, boundaries, await checkpointer.runs.resume_snapshot("a")]


async def everything(checkpointer: Any, thread_id: str) -> list[Any]:
    items = (await checkpointer.list(thread_id, limit=1000, newest_first=False)).items
    found: list[Any] = []
    for item in items:
        config = CheckpointConfig(
            thread_id=thread_id, checkpoint_id=item.checkpoint_id, namespace=tuple(item.namespace)
        )
        read = await checkpointer.get_tuple(config)
        found.append((item, read.checkpoint, read.pending_writes))
    thread = await checkpointer.get_thread(thread_id)
    late = await checkpointer.get_writes(CheckpointConfig(thread_id=thread_id, checkpoint_id="later"))
    return [*found, thread, late]


def exports_in(folder: Path) -> list[str]:
    """The files, half-written ones included."""
    return [path.name for path in folder.iterdir() if ".jsonl" in path.name]


async def exported(checkpointer: Any, thread_id: str = "t") -> bytes:
    file = io.BytesIO()
    await checkpointer.retention.export_thread(thread_id, file)
    return file.getvalue()


async def test_a_thread_comes_back_as_it_was_with_everything_of_it(checkpointer: Any, probe: Probe) -> None:
    await fill(checkpointer)
    await checkpointer.retention.set_expiry("t", ttl=timedelta(days=1), refresh_on_activity=True)
    before, file = await everything(checkpointer, "t"), io.BytesIO()
    report = await checkpointer.retention.export_thread("t", file)
    assert (report.checkpoints, report.writes) == (51, 52)
    await checkpointer.delete_thread("t")
    file.seek(0)
    assert await checkpointer.retention.import_thread(file) == report
    assert await everything(checkpointer, "t") == before
    assert (await checkpointer.retention.verify()).ok
    assert probe.problems() == []


async def test_runs_come_back_with_the_evidence_of_every_boundary(checkpointer: Any, probe: Probe) -> None:
    await fill_runs(checkpointer)
    before, file = await runs_of(checkpointer), io.BytesIO()
    assert [run.run_id for run in before[0]] == ["B", "a"]
    assert [len(boundaries) for boundaries in before[1]] == [2, 2]
    assert before[2].checkpoint.checkpoint_id == "a2"
    report = await checkpointer.retention.export_thread("t", file)
    assert (report.checkpoints, report.runs) == (4, 2)
    await checkpointer.delete_thread("t")
    file.seek(0)
    assert await checkpointer.retention.import_thread(file) == report
    assert await runs_of(checkpointer) == before
    assert probe.count("resume_evidence") == 4
    assert (await checkpointer.retention.verify()).ok


async def test_from_one_kind_of_database_to_the_other_and_back_it_is_the_same(
    sqlite_url: str, postgres_url: str
) -> None:
    with clew.Checkpointer.open(sqlite_url) as sqlite, clew.Checkpointer.open(postgres_url) as postgres:
        for number in range(1, 40):
            parent = f"c{number - 1}" if number > 1 else None
            state = {"messages": [f"message {n} " * 40 for n in range(number)], **STATE}
            sqlite.put(Checkpoint(thread_id="t", checkpoint_id=f"c{number}", parent_checkpoint_id=parent, state=state))
        there, back = io.BytesIO(), io.BytesIO()
        report = sqlite.retention.export_thread("t", there)
        there.seek(0)
        assert postgres.retention.import_thread(there) == report
        assert postgres.retention.verify().ok
        postgres.retention.export_thread("t", back)
        back.seek(0)
        sqlite.retention.import_thread(back, thread_id="again")
        assert sqlite.retention.verify().ok
        for item in sqlite.list("t").items:
            one = sqlite.get(CheckpointConfig(thread_id="t", checkpoint_id=item.checkpoint_id))
            other = sqlite.get(CheckpointConfig(thread_id="again", checkpoint_id=item.checkpoint_id))
            assert one is not None
            assert other == one.model_copy(update={"thread_id": "again"})


async def test_what_is_shared_stays_shared(checkpointer: Any, probe: Probe) -> None:
    await fill(checkpointer)
    elements, size = probe.elements(), probe.segment_bytes()
    data = await exported(checkpointer)
    await checkpointer.delete_thread("t")
    await checkpointer.retention.import_thread(io.BytesIO(data))
    assert probe.elements() == elements
    assert probe.segment_bytes() <= size


async def test_a_retry_of_a_put_is_recognised_after_an_import_and_the_next_put_goes_on(checkpointer: Any) -> None:
    await fill(checkpointer)
    data = await exported(checkpointer)
    await checkpointer.delete_thread("t")
    await checkpointer.retention.import_thread(io.BytesIO(data), thread_id="u")
    last = await checkpointer.get(CheckpointConfig(thread_id="u", checkpoint_id="c25"))
    before = (await checkpointer.list("u", limit=1)).items
    await checkpointer.put(last)
    assert (await checkpointer.list("u", limit=1)).items == before
    state = {**last.state, "messages": [*last.state["messages"], "new" * 100]}
    await checkpointer.put(Checkpoint(thread_id="u", checkpoint_id="new", parent_checkpoint_id="c25", state=state))
    assert (await checkpointer.get(CheckpointConfig.latest("u"))).state == state
    assert (await checkpointer.retention.verify()).ok


async def test_a_path_and_a_text_file_will_do_and_progress_is_told(checkpointer: Any, tmp_path: Path) -> None:
    await fill(checkpointer, count=3)
    seen: list[tuple[int, int]] = []
    report = await checkpointer.retention.export_thread(
        "t", tmp_path / "t.jsonl", progress=lambda done, total: seen.append((done, total))
    )
    total = report.checkpoints + report.elements
    assert seen[-1] == (total, total)
    assert exports_in(tmp_path) == ["t.jsonl"]
    text = io.StringIO()
    await checkpointer.retention.export_thread("t", text)
    assert text.getvalue().encode() == (tmp_path / "t.jsonl").read_bytes()
    seen.clear()
    text.seek(0)
    await checkpointer.retention.import_thread(
        text, thread_id="u", progress=lambda done, total: seen.append((done, total))
    )
    assert seen[-1] == (total, total)
    await checkpointer.retention.import_thread(str(tmp_path / "t.jsonl"), thread_id="v")


async def test_what_is_not_there_is_neither_exported_nor_imported(checkpointer: Any, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="nobody"):
        await checkpointer.retention.export_thread("nobody", tmp_path / "x.jsonl")
    assert exports_in(tmp_path) == []
    await fill(checkpointer, count=1)
    with pytest.raises(InvalidInput, match="directory"):
        await checkpointer.retention.export_thread("t", tmp_path / "none" / "x.jsonl")
    with pytest.raises(InvalidInput, match="no file"):
        await checkpointer.retention.import_thread(tmp_path / "none.jsonl")


async def test_a_thread_that_is_not_empty_is_not_imported_onto(checkpointer: Any) -> None:
    await fill(checkpointer, count=2)
    data = await exported(checkpointer)
    before = await everything(checkpointer, "t")
    with pytest.raises(AlreadyExists, match="'t' is not empty"):
        await checkpointer.retention.import_thread(io.BytesIO(data))
    assert await everything(checkpointer, "t") == before
    await checkpointer.put_writes(
        CheckpointConfig(thread_id="w", checkpoint_id="c1"), [PendingWrite(node="n", payload=1, task_id="a")]
    )
    with pytest.raises(AlreadyExists):
        await checkpointer.retention.import_thread(io.BytesIO(data), thread_id="w")


async def test_an_import_into_an_emptied_thread_is_not_taken_for_what_was_there(opener: Any, probe: Probe) -> None:
    async with opener() as one, opener() as other:
        await fill(one, count=1)
        data = await exported(one)
        await other.put(Checkpoint(thread_id="u", checkpoint_id="c1", state="old"))
        await one.delete_checkpoints("u", ["c1"])
        await one.retention.import_thread(io.BytesIO(data), thread_id="u")
        assert (await other.get(CheckpointConfig(thread_id="u", checkpoint_id="c1"))).state["cost"] == Decimal("1.10")
        await other.put(Checkpoint(thread_id="u", checkpoint_id="c2", parent_checkpoint_id="c1", state="next"))
        assert [item.checkpoint_id for item in (await one.list("u")).items] == ["c2", "forked", "c1", "c1"]
        assert probe.seqs() == [1, 2, 3, 1 + 1, 1 + 2, 1 + 3, 1 + 4]
        assert (await one.retention.verify()).ok


async def test_an_export_goes_into_a_pipe_and_not_in_its_place(checkpointer: Any, tmp_path: Path) -> None:
    await fill(checkpointer, count=1)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        await checkpointer.retention.export_thread("t", pipe)
        assert os.read(reader, 1 << 16).startswith(b'{"format":"clew.thread"')
    finally:
        os.close(reader)
    assert pipe.is_fifo()
    with pytest.raises(InvalidInput, match="is a directory"):
        await checkpointer.retention.export_thread("t", tmp_path)
    assert exports_in(tmp_path) == []


@pytest.mark.parametrize("mode", ["r", "rb"])
async def test_an_import_reads_from_a_pipe(checkpointer: Any, mode: str) -> None:
    await fill(checkpointer, count=2)
    data = await exported(checkpointer)
    reading, writing = os.pipe()

    def feed() -> None:
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(data)

    feeding = threading.Thread(target=feed)
    feeding.start()
    with os.fdopen(reading, mode) as pipe:
        report = await checkpointer.retention.import_thread(pipe, thread_id="u")
    feeding.join()
    assert (report.checkpoints, report.writes) == (5, 6)
    found = await checkpointer.get(CheckpointConfig.latest("u"))
    assert found.state == (await checkpointer.get(CheckpointConfig.latest("t"))).state


async def test_an_export_that_fails_half_way_leaves_the_file_that_was_there(checkpointer: Any, tmp_path: Path) -> None:
    await fill(checkpointer, count=2)
    file = tmp_path / "t.jsonl"
    file.write_text("the last one")

    def give_up(done: int, total: int) -> None:
        raise TimeoutError(f"{done} of {total}")

    with pytest.raises(TimeoutError):
        await checkpointer.retention.export_thread("t", file, progress=give_up)
    assert file.read_text() == "the last one"
    assert exports_in(tmp_path) == ["t.jsonl"]


async def test_checkpoints_that_all_went_leave_a_thread_that_can_be_exported(checkpointer: Any) -> None:
    await checkpointer.put(Checkpoint(thread_id="t", checkpoint_id="c1", state=["x" * 300]))
    await checkpointer.delete_checkpoints("t", ["c1"])
    data = await exported(checkpointer)
    assert await checkpointer.retention.import_thread(io.BytesIO(data), thread_id="u") == TransferReport(
        thread_id="u", checkpoints=0, elements=0, writes=0, runs=0
    )


def signed(lines: list[dict[str, Any]]) -> bytes:
    """The lines with the digest that they have now: a file that was made up, not one that was damaged."""
    written = [json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines]
    if "end" in lines[-1]:
        lines[-1]["end"]["digest"] = blake2b(b"".join(written[:-1]), digest_size=32).hexdigest()
        written[-1] = json.dumps(lines[-1], separators=(",", ":")).encode() + b"\n"
    return b"".join(written)


def first(lines: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    return next(line for line in lines[1:] if kind in line)


def changed(kind: str, **values: Any) -> Callable[[list[dict[str, Any]]], None]:
    def change(lines: list[dict[str, Any]]) -> None:
        (line := first(lines, kind))[kind].update(values)
        if "metadata" in values:
            line["metadata"] = values["metadata"]

    return change


def dropped(kind: str) -> Callable[[list[dict[str, Any]]], None]:
    return lambda lines: lines.remove(first(lines, kind))


def doubled(kind: str) -> Callable[[list[dict[str, Any]]], None]:
    return lambda lines: lines.insert(lines.index(first(lines, kind)), first(lines, kind))


def elements(position: int, *values: Any) -> Callable[[list[dict[str, Any]]], None]:
    def change(lines: list[dict[str, Any]]) -> None:
        first(lines, "elements")["elements"][position:] = values

    return change


def packed(value: Any) -> str:
    return base64.b64encode(ormsgpack.packb(value)).decode()


def extra(lines: list[dict[str, Any]]) -> None:
    log = max(line["elements"][0] for line in lines[1:] if "elements" in line)
    last = max(index for index, line in enumerate(lines) if "elements" in line)
    lines.insert(last + 1, {"elements": [log + 1, 0, [base64.b64encode(b"\x01").decode()]]})
    lines[-1]["end"]["elements"] += 1


HOSTILE: dict[str, Callable[[list[dict[str, Any]]], Any]] = {
    "another format": lambda lines: lines[0].update(format="x"),
    "another version": lambda lines: lines[0].update(version=2),
    "a header without a thread": lambda lines: lines[0].pop("thread"),
    "a sequence that ends before its checkpoints": lambda lines: lines[0].update(last_seq=1),
    "no end": lambda lines: lines.pop(),
    "a line behind the end": lambda lines: lines.append({"write": {}}),
    "a kind that is not known": lambda lines: lines.insert(1, {"pickle": "gA=="}),
    "lines in another order": lambda lines: lines.insert(1, lines.pop(-2)),
    "a checkpoint twice": doubled("checkpoint"),
    "a write twice": doubled("write"),
    "elements twice": doubled("elements"),
    "elements missing": dropped("elements"),
    "elements that nobody names": extra,
    "an element that is nothing": elements(2, ["wQ=="]),
    "an element that is no base64": elements(2, ["*"]),
    "elements at a negative position": elements(1, -1, ["AQ=="]),
    "elements that are no list": elements(2, "AQ=="),
    "a log beyond 64 bits": elements(0, 2**64, 0, ["AQ=="]),
    "a manifest that is nonsense": changed("checkpoint", manifest="AQID"),
    "spans of another manifest": changed("checkpoint", spans=""),
    "a column too many": changed("checkpoint", surprise=1),
    "a number for a text": changed("checkpoint", checkpoint_id=7),
    "a NUL in an id": changed("checkpoint", checkpoint_id="a\0b"),
    "a lone surrogate in an id": changed("checkpoint", checkpoint_id="\ud800"),
    "an id of 5 kB": changed("checkpoint", checkpoint_id="x" * 5000),
    "its own parent": changed("checkpoint", parent_checkpoint_id="c1"),
    "a namespace in another form": changed("checkpoint", namespace='[ "a"]'),
    "an unknown source": changed("checkpoint", source="dream"),
    "a moment beyond the calendar": changed("checkpoint", created_at=2**62),
    "a truth that is a number": changed("checkpoint", has_interrupts=1),
    "interrupts of another shape": changed("checkpoint", interrupts="kQE="),
    "an interrupt of no node": changed("checkpoint", interrupts=packed([["i", 5, 1]])),
    "an activation of no task": changed("checkpoint", activations=packed([["n", 1, 5]])),
    "arrivals that are no list": changed("checkpoint", barriers=packed([["n", 5]])),
    "an arrival that is no node": changed("checkpoint", barriers=packed([["n", [5]]])),
    "half of an origin": changed("checkpoint", fork_checkpoint_id="x"),
    "a sequence that nothing could come behind": lambda lines: lines[0].update(last_seq=2**62),
    "an expiry beyond the calendar": lambda lines: (
        lines[0].update(activity=253_000_000_000_000_000),
        lines[0]["thread"].update(expires_at=1, ttl_us=2**55, refresh_on_activity=True),
    ),
    "next nodes that are no texts": changed("checkpoint", next_nodes="[1]"),
    "interrupts that are said not to be there": changed("checkpoint", has_interrupts=False),
    "metadata of a form that there is not": lambda lines: (
        first(lines, "checkpoint")["checkpoint"].update(metadata_form=7),
        first(lines, "checkpoint").update(metadata=None),
    ),
    "nothing where a step must be": changed("checkpoint", step=None),
    "a checkpoint that is no row": lambda lines: first(lines, "checkpoint").update(checkpoint=[]),
    "a thread's metadata that is no JSON": lambda lines: lines[0]["thread"].update(metadata="{"),
    "metadata that is no JSON": changed("checkpoint", metadata="{"),
    "a write that is nothing": changed("write", payload="wQ=="),
    "counts that differ": changed("end", checkpoints=1),
}


@pytest.mark.parametrize("kind", HOSTILE)
async def test_a_file_that_was_made_up_is_refused_by_its_line_and_nothing_is_stored(
    checkpointer: Any, probe: Probe, kind: str
) -> None:
    await fill(checkpointer, count=2)
    lines = [json.loads(line) for line in (await exported(checkpointer)).splitlines()]
    await checkpointer.delete_thread("t")
    HOSTILE[kind](lines)
    with pytest.raises(InvalidInput, match=r"^import, line \d+: .*; nothing was stored$"):
        await checkpointer.retention.import_thread(io.BytesIO(signed(lines)))
    assert [probe.count(table) for table in ("threads", "checkpoints", "segments", "pending_writes")] == [0, 0, 0, 0]


async def test_a_list_of_which_an_element_has_not_come_is_refused(checkpointer: Any) -> None:
    await checkpointer.put(Checkpoint(thread_id="t", checkpoint_id="c", state={"list": ["x" * 300]}))
    lines = [json.loads(line) for line in (await exported(checkpointer)).splitlines()]
    del lines[1]
    lines[-1]["end"]["elements"] = 0
    with pytest.raises(InvalidInput, match="import, line 2: it names elements that have not come"):
        await checkpointer.retention.import_thread(io.BytesIO(signed(lines)), thread_id="u")


@pytest.mark.parametrize("element", [5, [1], [1, 2, 3], [[1], 2]], ids=str)
async def test_a_table_of_which_an_element_is_no_pair_is_refused(checkpointer: Any, element: Any) -> None:
    await checkpointer.put(Checkpoint(thread_id="t", checkpoint_id="c", state={f"{n}": n for n in range(70)}))
    lines = [json.loads(line) for line in (await exported(checkpointer)).splitlines()]
    lines[1]["elements"][2][3] = packed(element)
    with pytest.raises(InvalidInput, match="import, line 3: elements of a table must be pairs of a key and a value"):
        await checkpointer.retention.import_thread(io.BytesIO(signed(lines)), thread_id="u")


async def test_in_whatever_batches_a_thread_is_read_and_written_it_comes_back_as_it_was(
    checkpointer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(checkpointer, count=4)
    state = {"pairs": [[["no key"], 1], [{"nor": "this"}, "x" * 300]], "list": ["y" * 300]}
    for number, kept in enumerate(({"list": ["y" * 300]}, state)):
        await checkpointer.put(Checkpoint(thread_id="t", checkpoint_id=f"last {number}", namespace=("x",), state=kept))
    before, whole = await everything(checkpointer, "t"), await exported(checkpointer)
    monkeypatch.setattr("clew.repository.retention.exporting._BATCH", 2)
    monkeypatch.setattr("clew.repository.retention.exporting._ASKED", 1)
    monkeypatch.setattr("clew.repository.retention.importing._BATCH_ROWS", 2)
    monkeypatch.setattr("clew.repository.retention.arriving._MANY", 1)
    assert await exported(checkpointer) == whole
    await checkpointer.delete_thread("t")
    await checkpointer.retention.import_thread(io.BytesIO(whole))
    assert await everything(checkpointer, "t") == before


async def test_what_other_programs_may_write_into_an_export_is_kept(checkpointer: Any) -> None:
    await fill_runs(checkpointer)
    lines = [json.loads(line) for line in (await exported(checkpointer)).splitlines()]
    lines[0]["thread"].update(metadata='{"title":"kept"}')
    first(lines, "run")["run"].update(node=None, step=0)
    await checkpointer.delete_thread("t")
    await checkpointer.retention.import_thread(io.BytesIO(signed(lines)))
    again = [json.loads(line) for line in (await exported(checkpointer)).splitlines()]
    assert again[0]["thread"]["metadata"] == '{"title":"kept"}'
    assert again[1:-1] == lines[1:-1]


HOSTILE_RUNS: dict[str, Callable[[list[dict[str, Any]]], Any]] = {
    "a run twice": doubled("run"),
    "a run of no name": changed("run", run_id=""),
    "a run of a status that there is not": changed("run", status="asleep"),
    "a run at a node that there is not": changed("run", node="nowhere"),
    "a run in a namespace in another form": changed("run", namespace='[ "a"]'),
    "a run of an unstorable parent": changed("run", parent_run_id="a\0b"),
    "a run of fewer than no requests": changed("run", requests=-1),
    "evidence twice": doubled("evidence"),
    "evidence of no checkpoint": changed("evidence", seq=77),
    "evidence at a node that there is not": changed("evidence", node="nowhere"),
    "evidence of a status that there is not": changed("evidence", status="asleep"),
    "evidence of fewer than no tokens": changed("evidence", total_tokens=-1),
    "details that are no mapping": changed("evidence", details=packed([1])),
    "fewer runs than were counted": dropped("run"),
    "less evidence than was counted": dropped("evidence"),
}


@pytest.mark.parametrize("kind", HOSTILE_RUNS)
async def test_runs_and_evidence_that_were_made_up_are_refused_by_their_line(
    checkpointer: Any, probe: Probe, kind: str
) -> None:
    await fill_runs(checkpointer)
    lines = [json.loads(line) for line in (await exported(checkpointer)).splitlines()]
    await checkpointer.delete_thread("t")
    HOSTILE_RUNS[kind](lines)
    with pytest.raises(InvalidInput, match=r"^import, line \d+: .*; nothing was stored$"):
        await checkpointer.retention.import_thread(io.BytesIO(signed(lines)))
    assert [probe.count(table) for table in ("threads", "checkpoints", "runs", "resume_evidence")] == [0, 0, 0, 0]


@pytest.mark.parametrize("cut", [0, 1, 100, -1, -200])
async def test_a_file_that_breaks_off_leaves_nothing_behind(checkpointer: Any, probe: Probe, cut: int) -> None:
    await fill(checkpointer, count=8)
    data = await exported(checkpointer)
    await checkpointer.delete_thread("t")
    if cut == -1:
        await checkpointer.retention.import_thread(io.BytesIO(data[:cut]), thread_id="whole but for its newline")
        return
    with pytest.raises(InvalidInput, match=r"line \d+"):
        await checkpointer.retention.import_thread(io.BytesIO(data[:cut]))
    assert probe.count("threads") == 0


async def test_a_flipped_letter_is_noticed(checkpointer: Any, probe: Probe) -> None:
    await fill(checkpointer, count=2)
    data = await exported(checkpointer)
    await checkpointer.delete_thread("t")
    with pytest.raises(InvalidInput, match="digest"):
        await checkpointer.retention.import_thread(io.BytesIO(data.replace(b'"node":"n"', b'"node":"m"', 1)))
    assert probe.count("threads") == 0


@pytest.mark.parametrize(
    "data", [b"[" * 100_000, b"{}\n", b"\xff\xfe\n", b"null\n", b"\n"], ids=["deep", "empty", "bytes", "null", "blank"]
)
async def test_what_is_no_export_at_all_is_refused(checkpointer: Any, data: bytes) -> None:
    with pytest.raises(InvalidInput, match="line 1"):
        await checkpointer.retention.import_thread(io.BytesIO(data))
