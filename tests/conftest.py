"""Databases and checkpointers for every test; the Postgres server itself is in ``postgres_server``."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import hypothesis
import psycopg
import pytest
from sqlalchemy import create_engine

import postgres_server
from awaiting import Awaiting

DATABASES = ("sqlite", "postgres")
FACES = ("async", "sync")

Opener = Callable[..., AbstractAsyncContextManager[Any]]
SESSION = pytest.StashKey[postgres_server.Session]()


# A deadline would fail what is right, on a machine that is busy with other things.
hypothesis.settings.register_profile("clew", deadline=None)
hypothesis.settings.load_profile("clew")


def pytest_configure(config: pytest.Config) -> None:
    given = getattr(config, "workerinput", None)
    root = given and Path(given["clew_session"])
    config.stash[SESSION] = postgres_server.Session(root) if root else postgres_server.Session.begin()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput["clew_session"] = str(node.config.stash[SESSION].root)


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.stash[SESSION].end()


def pytest_report_header() -> str:
    return f"postgres: {postgres_server.version()}"


@pytest.fixture(scope="session")
def postgres(request: pytest.FixtureRequest) -> postgres_server.Session:
    """The session's server; a test that needs it fails where it cannot start."""
    session = request.config.stash[SESSION]
    assert session.url
    return session


@pytest.fixture(scope="session")
def postgres_template(postgres: postgres_server.Session) -> str:
    """The name of a migrated database, to be copied."""
    from clew import migrate

    def make() -> str:
        name = postgres.create_database()
        engine = create_engine(postgres.url_of(name).replace("postgresql://", "postgresql+psycopg://", 1))
        with engine.begin() as connection:
            migrate.upgrade(connection)
        engine.dispose()
        return name

    return postgres.once("template", make)


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated file, to be copied."""
    from clew import migrate

    path = tmp_path_factory.mktemp("template") / "clew.db"
    engine = create_engine(f"sqlite:///{path}")
    with engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA journal_mode = WAL")
    with engine.begin() as connection:
        migrate.upgrade(connection)
    engine.dispose()
    return path


@pytest.fixture
def postgres_url(postgres: postgres_server.Session, postgres_template: str) -> Iterator[str]:
    """A migrated database of this test's own."""
    with postgres.database(template=postgres_template) as url:
        yield url


@pytest.fixture(scope="session")
def shared_postgres_database(postgres: postgres_server.Session, postgres_template: str) -> Iterator[str]:
    with postgres.database(template=postgres_template) as url:
        yield url


@pytest.fixture
def shared_postgres_url(shared_postgres_database: str) -> Iterator[str]:
    """A migrated database without a thread in it, emptied afterwards: copying one takes ten times as long.

    For modules of many small tests, which name it ``postgres_url``.
    """
    yield shared_postgres_database
    with psycopg.connect(shared_postgres_database, options="-c lock_timeout=10s") as connection:
        connection.execute("DELETE FROM clew_segments")  # which has no foreign key
        connection.execute("DELETE FROM clew_thread_versions")
        connection.execute("DELETE FROM clew_threads")


@pytest.fixture
def empty_postgres_url(postgres: postgres_server.Session) -> Iterator[str]:
    with postgres.database() as url:
        yield url


@pytest.fixture
def sqlite_url(tmp_path: Path, sqlite_template: Path) -> str:
    """A migrated file of this test's own."""
    return f"sqlite:///{shutil.copy(sqlite_template, tmp_path / 'clew.db')}"


@pytest.fixture
def empty_sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'empty.db'}"


@pytest.fixture(params=DATABASES)
def database_url(request: pytest.FixtureRequest) -> str:
    """A migrated database, on each kind in turn."""
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture(params=DATABASES)
def empty_database_url(request: pytest.FixtureRequest) -> str:
    """An empty database, on each kind in turn."""
    return str(request.getfixturevalue(f"empty_{request.param}_url"))


@pytest.fixture(params=[(database, face) for database in DATABASES for face in FACES], ids="-".join)
def opener(request: pytest.FixtureRequest) -> Opener:
    """Opens checkpointers on this test's database, each as another process would: ``async with opener(…) as other``.

    Keyword arguments are those of ``open``.
    """
    import clew

    database, face = request.param
    url = request.getfixturevalue(f"{database}_url")

    @asynccontextmanager
    async def opened(**options: Any) -> AsyncIterator[Any]:
        if face == "async":
            async with clew.AsyncCheckpointer.open(url, **options) as checkpointer:
                yield checkpointer
        else:
            async with Awaiting(clew.Checkpointer.open(url, **options)) as checkpointer:
                yield checkpointer

    return opened


@pytest.fixture
async def checkpointer(opener: Opener) -> AsyncIterator[Any]:
    """One checkpointer over {SQLite, Postgres} × {async, sync}; every method is awaited, on each of them."""
    async with opener() as opened:
        yield opened
