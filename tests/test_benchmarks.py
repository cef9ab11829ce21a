"""The benchmark runs: the smallest case of each subject, in a process of its own. Nothing is held about its figures."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import postgres_server

ROOT = Path(__file__).parents[1]


def test_every_subject_runs_and_prints_its_lines(postgres: postgres_server.Session, tmp_path: Path) -> None:
    runs = tmp_path / "runs.jsonl"
    runs.write_text('{"run_id": "r1", "messages": [{"role": "user", "content": "hi"}, {"role": "assistant"}]}\n')
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--smallest", "--markdown", str(runs)],
        cwd=ROOT,
        env={**os.environ, postgres_server.ENVIRONMENT: postgres.url},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("|")]
    assert lines[0].startswith("| What | Where | clew | LangGraph |")
    for what in (
        "put at step 24",
        "get latest, 24 messages, warm",
        "list 100 of 24",
        "bytes on disk, 24",
        "put, runs.jsonl (1 runs)",
        "put's time in SQL",
        "3 tasks on 3 threads",
        "put beside the deletion",
        "peak memory of listing",
        "get latest beside 300 checkpoints",
        "put in the host's transaction",
        "import clew",
        "100 states of",
        "fork at",
        "diff of neighbours",
        "bytes after prune",
        "recorder, async durability",
        "executor's commit",
        "saver: put at",
        "graph: ReAct run",
    ):
        assert re.search(rf"^\| {re.escape(what)}", done.stdout, re.MULTILINE), what
    assert "a Postgres that is not durable" in done.stdout
