"""``clew tree``, ``clew diff`` and ``clew fork``."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import CliRunner

import clew
from clew.cli.__main__ import app
from clew.records import Interrupt

Run = Callable[..., Any]


@pytest.fixture
def run(database_url: str) -> Run:
    """Runs a command on a database with the thread ``t``: a ─ b ─ c, interrupted, and a fork of b with a child."""

    def called(*words: str, code: int = 0) -> Any:
        result = CliRunner().invoke(app, list(words), env={"CLEW_URL": database_url, "COLUMNS": None})
        assert result.exit_code == code, result.output
        return result

    with clew.Checkpointer.open(database_url) as checkpointer:
        for name, parent, run_id, messages in (("a", None, "one", 1), ("b", "a", "one", 2), ("c", "b", "two", 3)):
            checkpointer.put(
                clew.Checkpoint(
                    thread_id="t",
                    checkpoint_id=name,
                    parent_checkpoint_id=parent,
                    run_id=run_id,
                    state={"messages": ["x" * 300] * messages, "plan": {"a": "sea"} if name == "a" else {"a": "hills"}},
                    interrupts=[Interrupt(id="i", node="n", payload=1)] if name == "c" else [],
                    metadata={"source": "loop", "step": messages},
                )
            )
        checkpointer.timeline.fork(clew.CheckpointConfig(thread_id="t", checkpoint_id="b"), checkpoint_id="f")
        checkpointer.put(
            clew.Checkpoint(thread_id="t", checkpoint_id="g", parent_checkpoint_id="f", state={"messages": ["y"]})
        )
    return called


def test_a_tree_shows_branches_forks_interrupts_and_runs(run: Run) -> None:
    lines = [line.partition("  step")[0] for line in run("tree", "t").stdout.splitlines()]
    assert lines == ["● a", "● b", "├─ ◉ c", "└─ ● f", "   ◉ g"]
    text = run("tree", "t").stdout
    assert [line.rpartition("  ")[2] for line in text.splitlines()][2:4] == ["interrupted", "forked from b"]
    assert "run two" in text


def test_a_tree_as_json_is_a_record_a_line(run: Run) -> None:
    records = [json.loads(line) for line in run("tree", "t", "--json").stdout.splitlines()]
    assert [(item["checkpoint_id"], item["parent_checkpoint_id"]) for item in records] == [
        ("a", None), ("b", "a"), ("c", "b"), ("f", "b"), ("g", "f"),
    ]  # fmt: skip


def test_a_diff_shows_what_changed(run: Run) -> None:
    text = run("diff", "t", "a", "b").stdout
    assert "+ messages[1]  appended" in text
    assert '~ plan.a  changed\n    - "sea"\n    + "hills"\n' in text


def test_a_diff_shows_what_is_gone_and_what_has_moved_and_states_that_are_no_records(
    sqlite_url: str,
) -> None:
    states = {
        "a": {"list": ["one", "two", "three"], "gone": 1},
        "b": {"list": ["new", "one", "three, too"]},
        "c": "text",
        "d": "other",
    }
    with clew.Checkpointer.open(sqlite_url) as checkpointer:
        for name, state in states.items():
            checkpointer.put(clew.Checkpoint(thread_id="t", checkpoint_id=name, namespace=("n",), state=state))

    def diff(*words: str) -> list[str]:
        called = CliRunner().invoke(
            app, ["diff", "t", *words, "--namespace", "n"], env={"CLEW_URL": sqlite_url, "COLUMNS": None}
        )
        assert called.exit_code == 0, called.output
        return [line.rstrip() for line in called.stdout.splitlines()]

    assert diff("a", "b") == [
        "         channel",
        "changed  list",
        "removed  gone",
        "+ list[0]  inserted",
        '    + "new"',
        "~ list[2]  replaced at 1, now at 2",
        '    - "two"',
        '    + "three, too"',
        "- list[2]  dropped",
        '    - "three"',
        "- gone  removed",
        "    - 1",
    ]
    assert diff("c", "d") == ["~ state  changed", '    - "text"', '    + "other"']


def test_a_tree_of_several_namespaces_names_them(sqlite_url: str) -> None:
    with clew.Checkpointer.open(sqlite_url) as checkpointer:
        for namespace in ((), ("inner", "a")):
            checkpointer.put(clew.Checkpoint(thread_id="t", checkpoint_id="c", namespace=namespace, state={}))
    called = CliRunner().invoke(app, ["tree", "t"], env={"CLEW_URL": sqlite_url, "COLUMNS": None})
    assert [line.rpartition("Z")[2].strip() for line in called.stdout.splitlines()] == ["", "inner / a"]


def test_a_diff_without_a_second_id_goes_to_the_latest(run: Run) -> None:
    [found] = [json.loads(line) for line in run("diff", "t", "a", "--json").stdout.splitlines()]
    assert found["after"]["checkpoint_id"] == "g"
    assert found["channels"] == {"messages": "changed", "plan": "removed"}


def test_equal_checkpoints_show_no_difference(run: Run) -> None:
    assert run("diff", "t", "b", "f").stdout == "no difference\n"


def test_a_fork_says_where_it_went(run: Run) -> None:
    assert run("fork", "t", "--at", "a", "--id", "again").stdout == "forked into again of thread t\n"
    [made] = [json.loads(line) for line in run("fork", "t", "--at", "b", "--to", "u", "--json").stdout.splitlines()]
    assert made["thread_id"] == "u"
    assert "forked from b of t" in run("tree", "u").stdout
    assert run("diff", "t", "b", made["checkpoint_id"], "--other-thread", "u").stdout == "no difference\n"


@pytest.mark.parametrize(
    "words",
    [("tree", "gone"), ("diff", "t", "gone"), ("diff", "gone", "a"), ("fork", "gone"), ("fork", "t", "--at", "gone")],
)
def test_what_is_not_there_is_one_line_and_exit_code_1(run: Run, words: tuple[str, ...]) -> None:
    result = run(*words, code=1)
    assert result.stdout == ""
    assert result.stderr.startswith("clew: ")
    assert result.stderr.count("\n") == 1
