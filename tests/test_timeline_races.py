"""Looking back while somebody deletes, and looking at what is damaged."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import create_engine, update

from clew import Checkpoint, CheckpointConfig, Checkpointer, Contention, CorruptData
from clew.repository.retention import exporting
from clew.repository.timeline import differing, snapshots
from clew.tables import tables_for

STATES = [
    {"m": [f"{number} {part} " * 40 for part in range(number + 1)], "plan": [number] * 300} for number in range(8)
]


def at(number: int) -> CheckpointConfig:
    return CheckpointConfig(thread_id="t", checkpoint_id=f"c{number}")


@pytest.fixture
def checkpointer(database_url: str) -> Iterator[Checkpointer[Any]]:
    with Checkpointer.open(database_url) as opened:
        for number, state in enumerate(STATES):
            opened.put(
                Checkpoint(
                    thread_id="t",
                    checkpoint_id=f"c{number}",
                    parent_checkpoint_id=f"c{number - 1}" if number else None,
                    state=state,
                )
            )
        yield opened


def interrupted(monkeypatch: pytest.MonkeyPatch, module: Any, url: str, *, checked: bool = True) -> None:
    """Between the manifests and the elements, somebody else deletes c3 to c6, once. Not ``checked``: nobody notices."""
    plain: Callable[..., bool] = module.read_together
    pending = [["c3", "c4", "c5", "c6"]]

    def read_together(*args: Any) -> bool:
        if pending:
            with Checkpointer.open(url) as other:
                other.delete_checkpoints("t", pending.pop())
        return plain(*args) or not checked

    monkeypatch.setattr(module, "read_together", read_together)


def test_a_history_is_never_a_mixture_of_before_and_after_a_deletion(
    checkpointer: Checkpointer[Any], database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted(monkeypatch, snapshots, database_url)
    history = checkpointer.timeline.state_history("t")
    numbers = [int(str(item.config.checkpoint_id)[1:]) for item in history]
    assert numbers in ([7, 2, 1, 0], [7, 6, 5, 4, 3, 2, 1, 0])
    assert [item.values for item in history] == [STATES[number] for number in numbers]


def test_a_channels_history_is_never_a_mixture_of_before_and_after_a_deletion(
    checkpointer: Checkpointer[Any], database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted(monkeypatch, snapshots, database_url)
    found = [(item.checkpoint.checkpoint_id, item.value) for item in checkpointer.timeline.channel_history("t", "plan")]
    whole = [(f"c{number}", STATES[number]["plan"]) for number in range(7, -1, -1)]
    assert found in (whole, [whole[0], *whole[5:]])


def test_a_long_channels_history_goes_on_over_what_is_deleted_between_two_batches(
    checkpointer: Checkpointer[Any], database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, pending = snapshots.walk, ["c4"]

    def walk(*args: Any, **options: Any) -> Any:
        rows = plain(*args, **options)
        if pending:
            with Checkpointer.open(database_url) as other:
                other.delete_checkpoints("t", [pending.pop()])
        return rows

    monkeypatch.setattr(snapshots, "walk", walk)
    monkeypatch.setattr(snapshots, "_BATCH", 3)
    numbers = [item.checkpoint.checkpoint_id for item in checkpointer.timeline.channel_history("t", "plan")]
    assert numbers in (["c7", "c6", "c5", "c3", "c2", "c1", "c0"], [f"c{number}" for number in range(7, -1, -1)])


def test_an_export_misses_what_is_deleted_while_it_begins(
    checkpointer: Checkpointer[Any], database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = exporting.live_spans

    def live_spans(*args: Any, **options: Any) -> Any:
        spans = plain(*args, **options)
        with Checkpointer.open(database_url) as other:
            other.delete_checkpoints("t", ["c7"])
        return spans

    checkpointer.retention.compact("t")  # c7's last element shares a row with what others name
    monkeypatch.setattr(exporting, "live_spans", live_spans)
    with pytest.raises(Contention, match="export it again"):
        checkpointer.retention.export_thread("t", io.BytesIO())


def test_without_the_check_a_history_is_torn(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Checkpointer.open(postgres_url) as checkpointer:
        for number, state in enumerate(STATES):
            checkpointer.put(Checkpoint(thread_id="t", checkpoint_id=f"c{number}", state=state))
        interrupted(monkeypatch, snapshots, postgres_url, checked=False)
        with pytest.raises(CorruptData, match="not stored"):
            checkpointer.timeline.state_history("t")


def test_a_diff_of_what_was_deleted_meanwhile_is_told_or_refused(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Checkpointer.open(postgres_url) as checkpointer:
        for number, state in enumerate(STATES):
            checkpointer.put(Checkpoint(thread_id="t", checkpoint_id=f"c{number}", state=state))
        interrupted(monkeypatch, differing, postgres_url)
        with pytest.raises(LookupError, match="'c4'"):
            checkpointer.timeline.diff(at(2), at(4))


@pytest.mark.parametrize("part", ["payload", "manifest"])
def test_what_is_damaged_is_an_error_that_names_the_thread(
    checkpointer: Checkpointer[Any], database_url: str, part: str
) -> None:
    tables = tables_for(None)
    table = tables.segments if part == "payload" else tables.checkpoints
    engine = create_engine(database_url.replace("postgresql://", "postgresql+psycopg://", 1))
    with engine.begin() as connection:
        connection.execute(update(table).values({part: b"\x00damaged"}))
    engine.dispose()
    with Checkpointer.open(database_url) as fresh:
        timeline = fresh.timeline
        for call in (
            lambda: timeline.state_history("t"),
            lambda: timeline.channel_history("t", "plan"),
            lambda: timeline.diff(at(1), at(2)),
            lambda: timeline.get_state("t"),
        ):
            with pytest.raises(CorruptData, match="thread 't'"):
                call()
        assert len(timeline.tree("t").checkpoints) == 8
