"""What looking back and changing course cost: the columns that are read, the statements, the memory."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Engine, event

from clew import Checkpoint, CheckpointConfig, Checkpointer
from clew.structure import segments


def message(number: int) -> dict[str, str]:
    return {"role": "user", "content": f"{number} {number * 7919} " * 60}


@pytest.fixture
def checkpointer(database_url: str) -> Iterator[Checkpointer[Any]]:
    with Checkpointer.open(database_url) as opened:
        yield opened


def grow(checkpointer: Checkpointer[Any], first: int, last: int, thread: str = "t") -> None:
    everything = [message(number) for number in range(last)]
    for count in range(first, last + 1):
        checkpointer.put(
            Checkpoint(
                thread_id=thread,
                checkpoint_id=f"c{count}",
                parent_checkpoint_id=f"c{count - 1}" if count > first else None,
                state={"messages": everything[:count], "plan": "a" if count < 20 else "b"},
            )
        )


@contextmanager
def watched() -> Iterator[list[str]]:
    """The statements that are sent while it lasts."""
    sent: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        sent.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield sent
    finally:
        event.remove(Engine, "before_cursor_execute", note)


def at(name: str, thread: str = "t") -> CheckpointConfig:
    return CheckpointConfig(thread_id=thread, checkpoint_id=name)


@pytest.mark.invariant(38)
def test_lineage_reads_no_manifest_no_span_and_no_payload(checkpointer: Checkpointer[Any]) -> None:
    grow(checkpointer, 1, 5)
    timeline = checkpointer.timeline
    with watched() as sent:
        timeline.ancestors(at("c5"))
        timeline.children(at("c1"))
        timeline.heads("t")
        timeline.common_ancestor(at("c5"), at("c3"))
        timeline.tree("t")
    assert [text for text in sent if "clew_checkpoints" in text]
    assert [text for text in sent if "manifest" in text or "spans" in text or "clew_segments" in text] == []


def test_a_hundred_snapshots_take_two_statements_and_decode_every_row_once(
    checkpointer: Checkpointer[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    grow(checkpointer, 1, 120)
    decoded: list[tuple[int, int]] = []
    plain = segments.decode_payload

    def counting(log: int, start: int, count: int, payload: bytes) -> Any:
        decoded.append((log, start))
        return plain(log, start, count, payload)

    monkeypatch.setattr("clew.repository.together.decode_payload", counting)
    with watched() as sent:
        history = checkpointer.timeline.state_history("t", 100)
    assert [len(item.values["messages"]) for item in history] == list(range(120, 20, -1))
    assert len([text for text in sent if "clew_" in text]) == 2
    assert len(decoded) == len(set(decoded))


def test_a_hundred_snapshots_take_at_most_three_times_the_memory_of_one_state(checkpointer: Checkpointer[Any]) -> None:
    everything = [message(number) for number in range(1000)]
    for count in (*range(0, 900, 100), *range(900, 1001)):
        checkpointer.put(Checkpoint(thread_id="t", state={"messages": everything[:count]}))
    checkpointer.timeline.state_history("t", 2)
    gc.collect()
    tracemalloc.start()
    try:
        one = [message(number) for number in range(1000)]
        size, _ = tracemalloc.get_traced_memory()
        del one
        gc.collect()
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        history = checkpointer.timeline.state_history("t", 100)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(history) == 100
    assert peak - before <= 3 * size


def test_a_channels_history_reads_no_row_of_another_channel(
    checkpointer: Checkpointer[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    grow(checkpointer, 1, 40)
    monkeypatch.setattr("clew.repository.together.decode_payload", None)  # the plan stands in the manifest
    found = checkpointer.timeline.channel_history("t", "plan")
    assert [(item.value, item.checkpoint.checkpoint_id) for item in found] == [("b", "c20"), ("a", "c1")]


@pytest.mark.parametrize("count", [100, 3000])
def test_a_diff_of_neighbours_decodes_one_row_whatever_the_length(
    checkpointer: Checkpointer[Any], monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    grow(checkpointer, count - 2, count)
    decoded: list[int] = []
    plain = segments.decode_payload

    def counting(log: int, start: int, count: int, payload: bytes) -> Any:
        decoded.append(count)
        return plain(log, start, count, payload)

    monkeypatch.setattr("clew.repository.together.decode_payload", counting)
    [found] = checkpointer.timeline.diff(at(f"c{count - 1}"), at(f"c{count}")).differences
    assert (found.kind, found.after_position, found.after) == ("appended", count - 1, message(count - 1))
    assert decoded == [1]


def test_a_fork_inside_a_thread_sends_the_same_statements_whatever_the_length(checkpointer: Checkpointer[Any]) -> None:
    sent = []
    for count in (10, 1000):
        grow(checkpointer, count - 1, count, f"t{count}")
        with watched() as seen:
            checkpointer.timeline.fork(at(f"c{count}", f"t{count}"))
        sent.append(seen)
    assert sent[0] == sent[1]
    assert [text for text in sent[0] if "clew_segments" in text] == []


def test_a_fork_into_another_thread_reads_only_the_rows_that_are_cut(
    checkpointer: Checkpointer[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    grow(checkpointer, 1, 100)
    monkeypatch.setattr("clew.repository.segments.decode_payload", None)
    checkpointer.timeline.fork(at("c100"), "whole")
    monkeypatch.undo()
    forked = checkpointer.timeline.fork(at("c99"), "cut")
    found = checkpointer.get(forked)
    assert found is not None
    assert found.state["messages"] == [message(number) for number in range(99)]
