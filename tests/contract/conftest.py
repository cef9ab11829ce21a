"""What contract tests share: one Postgres database for all of them, emptied after each, and a probe into it."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

import postgres_server
from probe import Probe


@pytest.fixture(scope="session")
def contract_database(postgres: postgres_server.Session, postgres_template: str) -> Iterator[str]:
    with postgres.database(template=postgres_template) as url:
        yield url


@pytest.fixture
def postgres_url(contract_database: str) -> Iterator[str]:
    """A migrated database without a thread in it; copying one for each test takes ten times as long."""
    yield contract_database
    with psycopg.connect(contract_database, options="-c lock_timeout=10s") as connection:
        connection.execute("DELETE FROM clew_thread_versions")
        connection.execute("DELETE FROM clew_threads")


@pytest.fixture
def probe(request: pytest.FixtureRequest) -> Probe:
    """Looks into the database of this test's ``opener`` and ``checkpointer``."""
    database, _ = request.node.callspec.params["opener"]
    return Probe(request.getfixturevalue(f"{database}_url"))
