"""``clew runs`` and ``clew suspend-run``."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from clew import Checkpointer, SqlAgentExecutor
from clew.cli.__main__ import app

from agents import boundary


def clew(url: str, *words: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(words), env={"CLEW_URL": url, "COLUMNS": None})
    assert result.exit_code == code, result.output
    return result.stdout + result.stderr


def store(url: str) -> None:
    with Checkpointer.open(url) as checkpointer:
        executor = SqlAgentExecutor(checkpointer)
        for run_id, step in (("first", 3), ("second", 1), ("third", 2)):
            executor.checkpoint(boundary(step, run_id=run_id, checkpoint_id=run_id))
        checkpointer.runs.finish("first", "failed", "no such tool")
        checkpointer.runs.finish("third", "completed")


def test_runs_are_listed_with_where_they_stand(database_url: str) -> None:
    store(database_url)
    lines = clew(database_url, "runs").splitlines()
    assert [line.split()[0] for line in lines] == ["run", "third", "second", "first"]
    assert lines[3].split()[1:7] == ["t", "failed", "model_response", "3", "3", "6"]
    assert lines[3].endswith("no such tool")


def test_runs_are_narrowed_by_status_thread_and_whether_they_can_be_resumed(database_url: str) -> None:
    store(database_url)

    def named(*words: str) -> list[str]:
        return [json.loads(line)["run_id"] for line in clew(database_url, "runs", "--json", *words).splitlines()]

    assert named("--status", "failed", "--status", "completed") == ["third", "first"]
    assert named("--resumable") == ["second"]
    assert named("--thread", "elsewhere") == []
    assert named("--limit", "1") == ["third"]
    assert clew(database_url, "runs", "--limit", "2").splitlines()[-1] == "and more; --limit 2 are shown"
    assert "done" in clew(database_url, "runs", "--status", "done", code=1)
    assert "--resumable" in clew(database_url, "runs", "--status", "failed", "--resumable", code=1)


def test_a_run_is_asked_to_suspend(database_url: str) -> None:
    store(database_url)
    assert "asked run second of thread t" in clew(database_url, "suspend-run", "second", "deploy")
    assert "asked to suspend: deploy" in clew(database_url, "runs", "--resumable")
    assert "'nobody' does not exist" in clew(database_url, "suspend-run", "nobody", "deploy", code=1)
    assert "failed already" in clew(database_url, "suspend-run", "first", "deploy", code=1)
