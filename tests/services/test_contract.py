"""The contract suite on Debian's Postgres, which is older than the one that ``make test`` brings."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import postgres_server
from debian import Postgres

ROOT = Path(__file__).parents[2]


@pytest.mark.services
def test_the_contract_holds_on_debians_postgres(server: Postgres) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", "-k", "postgres"),
            *("tests/contract", "tests/test_migrations.py", "tests/test_bound.py"),
        ],
        cwd=ROOT,
        env={**os.environ, postgres_server.ENVIRONMENT: server.url},
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5_000:]
    assert "passed" in done.stdout
