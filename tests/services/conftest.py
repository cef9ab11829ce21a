"""Servers for the tests that need Debian's."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from debian import PgBouncer, Postgres


@pytest.fixture(scope="session")
def folder() -> Iterator[Path]:
    """Short, for a socket's path has little room, and open to the user that the servers run as."""
    with tempfile.TemporaryDirectory(prefix="clew-", ignore_cleanup_errors=True) as name:
        path = Path(name)
        path.chmod(0o755)
        yield path


@pytest.fixture(scope="session")
def server(folder: Path) -> Iterator[Postgres]:
    server = Postgres(folder / "plain")
    yield server
    server.stop()


@pytest.fixture(scope="session")
def tls_server(folder: Path) -> Iterator[Postgres]:
    server = Postgres(folder / "tls", tls=True)
    yield server
    server.stop()


@pytest.fixture(scope="session")
def pgbouncer(folder: Path, server: Postgres) -> Iterator[PgBouncer]:
    running = PgBouncer(folder / "bouncer", server)
    yield running
    running.stop()
