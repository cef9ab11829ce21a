"""What a boundary and a batch cost: in statements, which no machine makes faster or slower."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import event

from clew import Checkpoint, CheckpointConfig, Checkpointer, SqlAgentExecutor
from clew.flows.recording import RecordingFlows
from clew.repository import prepare

from agents import boundary
from probe import Probe


@contextmanager
def counted(checkpointer: Any) -> Iterator[list[str]]:
    """The statements that go through SQLAlchemy; one sent for many rows counts once."""
    seen: list[str] = []

    def note(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
        seen.append(statement)

    engine = checkpointer._driver.database.engine
    event.listen(engine, "before_cursor_execute", note)
    yield seen
    event.remove(engine, "before_cursor_execute", note)


def test_a_boundary_of_a_run_that_is_remembered_is_one_statement_on_postgres(postgres_url: str) -> None:
    with Checkpointer.open(postgres_url) as checkpointer:
        executor = SqlAgentExecutor(checkpointer)
        executor.checkpoint(boundary(0))
        with counted(checkpointer) as statements:
            for step in range(1, 40):  # rows are merged meanwhile
                executor.checkpoint(boundary(step))
        assert len(statements) == 39
        assert checkpointer.runs.get("r").step == 39


def batch(checkpointer: Any, count: int, states: list[Any]) -> None:
    flows = RecordingFlows(checkpointer._driver.core, "t", (), None, None)
    checkpointer._driver.drive(flows.begin())
    requests, parent = [], flows.parent_id
    for state in states[:count]:
        checkpoint: Any = Checkpoint(thread_id="t", parent_checkpoint_id=parent, state=state)
        requests.append(prepare(checkpointer._driver.core.store.codec, checkpoint))
        parent = checkpoint.checkpoint_id
    checkpointer._driver.drive(flows.write(requests))


def test_a_batch_takes_as_many_statements_for_a_hundred_boundaries_as_for_ten(database_url: str) -> None:
    with Checkpointer.open(database_url) as checkpointer:
        messages = [f"message {number} {'x' * 300}" for number in range(200)]
        batch(checkpointer, 2, [{"messages": messages[:number]} for number in range(2)])
        costs = []
        for first, count in ((2, 10), (12, 100)):
            with counted(checkpointer) as statements:
                batch(checkpointer, count, [{"messages": messages[: first + number]} for number in range(count)])
            costs.append(len(statements))
        assert costs[1] <= costs[0] + 2  # a merge of rows that were there before


@pytest.mark.parametrize("seed", range(6))
def test_batches_of_any_edits_store_what_single_puts_would(sqlite_url: str, seed: int) -> None:
    chance = random.Random(seed)
    items: list[Any] = []
    expected: dict[str, Any] = {}
    with Checkpointer.open(sqlite_url) as checkpointer, checkpointer.recorder("t", durability="async") as recorder:
        for number in range(400):
            edit = chance.random()
            if edit < 0.7 or not items:
                items.append(f"{number} " + "y" * chance.randrange(900))
            elif edit < 0.8:
                items[chance.randrange(len(items))] = number
            elif edit < 0.9:
                del items[: chance.randrange(1, 4)]
            else:
                items.insert(chance.randrange(len(items) + 1), [number] * 80)
            config = recorder.record({"items": items, "other": {"n": number, "big": "z" * (number // 50) * 300}})
            assert config.checkpoint_id is not None
            expected[config.checkpoint_id] = list(items)
            if chance.random() < 0.02:
                recorder.drain()
        recorder.drain()
        assert Probe(sqlite_url).problems() == []
        with Checkpointer.open(sqlite_url) as other:
            for checkpoint_id, state in expected.items():
                found = other.get(CheckpointConfig(thread_id="t", checkpoint_id=checkpoint_id))
                assert found.state["items"] == state
            ids = list(expected)
            other.delete_checkpoints("t", chance.sample(ids[:-1], 200))
            assert other.get(CheckpointConfig.latest("t")).state["items"] == items
            assert other.retention.verify().problems == ()
        assert Probe(sqlite_url).problems() == []
