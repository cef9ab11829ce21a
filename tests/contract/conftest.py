"""What contract tests share: one Postgres database for all of them, emptied after each, and a probe into it."""

from __future__ import annotations

import pytest

from probe import Probe


@pytest.fixture
def postgres_url(shared_postgres_url: str) -> str:
    return shared_postgres_url


@pytest.fixture
def probe(request: pytest.FixtureRequest) -> Probe:
    """Looks into the database of this test's ``opener`` and ``checkpointer``."""
    database, _ = request.node.callspec.params["opener"]
    return Probe(request.getfixturevalue(f"{database}_url"))
