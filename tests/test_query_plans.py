"""What the databases say of the statements that are sent: each finds its rows by index, none looks through a table."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import event

from clew import Checkpoint, CheckpointConfig, Checkpointer, PendingWrite

LATEST = CheckpointConfig.latest("t7")
NAMED = CheckpointConfig(thread_id="t7", checkpoint_id="c3")
CALLS: dict[str, Callable[[Checkpointer[Any]], Any]] = {
    "get the latest": lambda c: c.get(LATEST),
    "get by id": lambda c: c.get(NAMED),
    "list 20": lambda c: c.list("t7", limit=20),
    "history": lambda c: c.history(LATEST, 10),
    "state_history": lambda c: (c.timeline.state_history("t7", 5), c.timeline.state_history("t7", before="c3")),
    "as_of": lambda c: c.timeline.as_of("t7", datetime(2200, 1, 1, tzinfo=UTC)),
    "at_step": lambda c: c.timeline.at_step("t7", 3),
    "channel_history": lambda c: c.timeline.channel_history("t7", "plan"),
    "diff": lambda c: c.timeline.diff(NAMED, LATEST),
    "lineage": lambda c: (
        c.timeline.heads("t7"),
        c.timeline.children(NAMED),
        c.timeline.common_ancestor(NAMED, LATEST),
    ),
    "tree": lambda c: c.timeline.tree("t7"),
    "put, remembered": lambda c: c.put(put(16, "t0")),
    "put, looked up": lambda c: c.put(put(16, "t7")),
    "put_writes": lambda c: c.put_writes(NAMED, [PendingWrite(node="n", payload=1)]),
    "fork": lambda c: (c.timeline.fork(LATEST), c.timeline.fork(LATEST, "elsewhere")),
    "update_state": lambda c: c.timeline.update_state(LATEST, {"plan": "z"}),
    "copy_thread": lambda c: (c.timeline.copy_thread("t7", "u"), c.timeline.copy_thread("t7", "v", latest_only=True)),
    "delete_checkpoints": lambda c: c.delete_checkpoints("t7", ["c3"]),
    "delete_by_run": lambda c: c.delete_by_run("run-2", thread_id="t7"),
    "prune": lambda c: c.retention.prune("t7", keep_last=2),
    "compact": lambda c: c.retention.compact("t7"),
    "set_expiry": lambda c: c.retention.set_expiry("t7"),
    "delete_thread": lambda c: c.delete_thread("t7"),
}


def put(number: int, thread_id: str) -> Checkpoint[Any]:
    return Checkpoint(
        thread_id=thread_id,
        checkpoint_id=f"c{number}",
        parent_checkpoint_id=f"c{number - 1}" if number > 1 else None,
        run_id=f"run-{number // 4}",
        state={"messages": [f"message {n} " * 40 for n in range(number)], "plan": f"{number}" * 300},
        metadata={"step": number, "who": "ada"},
    )


@pytest.fixture
def checkpointer(database_url: str) -> Iterator[Checkpointer[Any]]:
    with Checkpointer.open(database_url) as opened:
        for number in range(1, 16):
            opened.put(put(number, "t0"))
        for number in range(1, 30):
            opened.timeline.copy_thread("t0", f"t{number}")
        yield opened


def test_every_statement_finds_its_rows_by_index(checkpointer: Checkpointer[Any], database_url: str) -> None:
    watch = sqlite_plans if database_url.startswith("sqlite") else postgres_plans
    slow: dict[str, list[str]] = {}
    for name, call in CALLS.items():
        with watch(checkpointer, database_url) as plans:
            call(checkpointer)
        assert plans, name
        found = [f"{statement}: {line}" for statement, lines in plans for line in lines]
        if found:
            slow[name] = found
    assert slow == {}


@contextmanager
def sqlite_plans(checkpointer: Checkpointer[Any], url: str) -> Iterator[list[tuple[str, list[str]]]]:
    """(statement, the steps that look through one of our tables) as they are sent; the driver's own are seen, too."""
    plans: list[tuple[str, list[str]]] = []
    engine = checkpointer._driver.database.engine
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as beside:

        def explain(statement: str) -> None:
            if _PLANNED.match(statement):
                steps = [row[3] for row in beside.execute(f"EXPLAIN QUERY PLAN {statement}")]
                plans.append((statement, [step for step in steps if _LOOKED_THROUGH.match(step)]))

        def trace(driver: Any, *rest: Any) -> None:
            driver.set_trace_callback(explain)

        def untrace(driver: Any, *rest: Any) -> None:
            driver.set_trace_callback(None)

        event.listen(engine, "checkout", trace)
        event.listen(engine, "checkin", untrace)
        try:
            yield plans
        finally:
            event.remove(engine, "checkout", trace)
            event.remove(engine, "checkin", untrace)


@contextmanager
def postgres_plans(checkpointer: Checkpointer[Any], url: str) -> Iterator[list[tuple[str, list[str]]]]:
    """The same. So few rows are best read in one go: what is asked is whether an index could be used at all."""
    plans: list[tuple[str, list[str]]] = []
    engine = checkpointer._driver.database.engine

    def explain(connection: Any, _cursor: Any, statement: str, given: Any, _context: Any, many: bool) -> None:
        if not _PLANNED.match(statement):
            return
        with connection.connection.cursor() as cursor:
            cursor.execute("SET enable_seqscan = off")
            cursor.execute(f"EXPLAIN (FORMAT JSON) {statement}", given[0] if many else given)
            [[[plan]]] = cursor.fetchall()
        plans.append((statement, [str(node) for node in nodes(plan["Plan"]) if looks_through(node)]))

    event.listen(engine, "before_cursor_execute", explain)
    try:
        yield plans
    finally:
        event.remove(engine, "before_cursor_execute", explain)


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield {key: value for key, value in plan.items() if key != "Plans"}
    for inner in plan.get("Plans", ()):
        yield from nodes(inner)


def looks_through(node: dict[str, Any]) -> bool:
    reads = "Relation Name" in node and node["Node Type"] != "ModifyTable"
    return reads and not node.keys() & {"Index Cond", "Recheck Cond"}


_PLANNED = re.compile(r"\s*(SELECT|INSERT|UPDATE|DELETE|WITH)\b")
_LOOKED_THROUGH = re.compile(r"SCAN (?!(asked|walk|json_each|anon_\d+|first)\b|CONSTANT ROW|\()")
