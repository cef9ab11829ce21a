"""The commands that prune, expire, sweep, verify, compact, export and import."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update
from typer.testing import CliRunner

import clew
from clew import Checkpoint
from clew.cli.__main__ import app

from probe import Probe


@pytest.fixture
def url(database_url: str) -> str:
    """A database with a thread of five checkpoints."""
    with clew.Checkpointer.open(database_url) as checkpointer:
        for number in range(1, 6):
            state = {"messages": [f"message {n} " * 30 for n in range(number)]}
            checkpointer.put(Checkpoint(thread_id="t", checkpoint_id=f"c{number}", run_id=f"r{number}", state=state))
    return database_url


def run(url: str, *words: str, code: int = 0, stdin: bytes | None = None) -> Any:
    result = CliRunner().invoke(app, list(words), input=stdin, env={"CLEW_URL": url, "COLUMNS": None})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result


def test_prune_without_a_criterion_names_the_options(url: str) -> None:
    assert "--keep-last, --keep-runs, --newer-than or --keep-ancestors" in run(url, "prune", "t", code=1).stderr


def test_prune_says_what_would_go_and_then_deletes_it(url: str) -> None:
    assert run(url, "prune", "t", "--keep-last", "2", "--dry-run").stdout.splitlines() == [
        "c1",
        "c2",
        "c3",
        "would delete 3 checkpoints of thread t, keeping 2",
    ]
    done = json.loads(run(url, "prune", "t", "--keep-runs", "1", "--newer-than", "2020-01-01T00:00Z", "--json").stdout)
    assert (done["pruned"], done["kept"]) == ([], 5)
    assert "deleted 4 checkpoints" in run(url, "prune", "t", "--keep-last", "0", "--keep-runs", "1").stdout


@pytest.mark.parametrize(
    "words",
    [
        ("prune", "t"),
        ("prune", "nobody", "--keep-last", "1"),
        ("prune", "t", "--newer-than", "yesterday"),
        ("prune", "t", "--newer-than", "2026-01-01"),
        ("expire", "t"),
        ("expire", "t", "--after", "99999999999w"),
        ("sweep", "--writes-older-than", "yesterday"),
        ("verify", "nobody"),
        ("compact", "nobody"),
        ("export", "nobody"),
        ("import", "nothing.jsonl"),
    ],
    ids=" ".join,
)
def test_what_cannot_be_done_is_said_in_one_line(url: str, words: tuple[str, ...]) -> None:
    result = run(url, *words, code=1)
    assert result.stdout == ""
    assert result.stderr.startswith("clew: ")
    assert result.stderr.count("\n") == 1


def test_a_thread_that_expires_is_swept(url: str) -> None:
    expired = run(url, "expire", "t", "--after", "2020-01-01T00:00:00Z").stdout
    assert expired == "thread t is kept until 2020-01-01 00:00:00.000Z\n"
    assert "thread t is kept for good" in run(url, "expire", "t", "--never").stdout
    assert run(url, "sweep").stdout == "deleted 0 threads and 0 lost writes; passed over 0\n"
    run(url, "expire", "t", "--after", "2020-01-01T00:00:00Z")
    assert json.loads(run(url, "sweep", "--json").stdout)["expired"] == ["t"]


def test_a_thread_is_kept_for_an_age_from_now_or_from_its_last_activity_on(url: str) -> None:
    def kept(*words: str) -> clew.Thread:
        run(url, "expire", "t", "--after", "2h", *words)
        with clew.Checkpointer.open(url) as checkpointer:
            thread = checkpointer.get_thread("t")
        assert thread is not None
        return thread

    thread = kept()
    assert thread.expires_at is not None
    assert thread.expires_at > thread.updated_at + timedelta(hours=2)
    thread = kept("--idle")
    assert thread.expires_at == thread.updated_at + timedelta(hours=2)


def test_verify_ends_with_1_where_something_is_wrong(url: str) -> None:
    assert run(url, "verify").stdout == "1 thread, 5 checkpoints, 5 elements: 0 problems\n"
    probe = Probe(url)
    with probe.connection() as connection:
        checkpoints = probe.tables.checkpoints
        connection.execute(update(checkpoints).where(checkpoints.c.seq == 2).values(manifest=b"\x01"))
    result = run(url, "verify", "t", code=1)
    assert result.stdout.startswith("checkpoint: thread 't', checkpoint 'c2' (namespace [], seq 2): ")
    assert json.loads(run(url, "verify", "--json", code=1).stdout)["problem_count"] == 1


def test_compact_says_what_it_saved(url: str) -> None:
    assert json.loads(run(url, "compact", "t", "--json").stdout)["rows_after"] == 1
    assert run(url, "compact", "t").stdout.startswith("thread t: 1 row of ")


def test_a_thread_goes_to_a_file_or_a_pipe_and_comes_back_under_another_name(url: str, tmp_path: Path) -> None:
    file = str(tmp_path / "t.jsonl")
    assert "exported 5 checkpoints of thread t" in run(url, "export", "t", file).stdout
    assert run(url, "import", file, "--thread", "copy").stdout == "imported 5 checkpoints as thread copy\n"
    piped = run(url, "export", "t").stdout_bytes
    assert piped == Path(file).read_bytes()
    run(url, "import", "-", "--thread", "piped", stdin=piped)
    assert "is not empty" in run(url, "import", file, code=1).stderr
    assert json.loads(run(url, "verify", "--json").stdout)["checkpoints"] == 15
