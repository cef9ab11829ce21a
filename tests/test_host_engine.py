"""A checkpointer around a host's engine leaves that as it found it; and what importing clew costs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event

import clew
from clew import Checkpoint, CheckpointConfig

from hosting import Host, call, host_engine, inner


def listeners(engine: Engine) -> dict[str, int]:
    """How many listeners each event of the engine, its dialect and its pool has."""
    return {
        f"{type(target).__name__}.{name}": len(list(getattr(target.dispatch, name)))
        for target in (engine, engine.dialect, engine.pool)
        for name in dir(target.dispatch)
        if not name.startswith("_") and hasattr(getattr(target.dispatch, name), "__iter__")
    }


async def settings(host: Host) -> list[Any]:
    """What a connection of the host's own is set to."""
    sqlite = inner(host.engine).dialect.name == "sqlite"
    names = (
        ("PRAGMA journal_mode", "PRAGMA synchronous", "PRAGMA foreign_keys", "PRAGMA busy_timeout")
        if sqlite
        else ("SHOW transaction_isolation", "SHOW statement_timeout", "SHOW lock_timeout", "SHOW search_path")
    )
    async with host.transaction() as one:
        found = [(await call(one.target.exec_driver_sql, name)).scalar() for name in names]
        connection = getattr(one.target, "sync_connection", one.target)
        driver = connection.connection.dbapi_connection
        # What SQLAlchemy sets back is the level by name, where it was the server's default without one before.
        return [*found, driver.isolation_level if sqlite else driver.autocommit]


@pytest.mark.parametrize("face", ["async", "sync"])
@pytest.mark.parametrize("level", [None, "SERIALIZABLE", "AUTOCOMMIT"])
async def test_a_hosts_engine_is_as_it_was_when_clew_is_done(database_url: str, face: str, level: Any) -> None:
    options = {} if level is None else {"isolation_level": level}
    engine = host_engine(database_url, face, pool_size=2, max_overflow=1, **options)
    heard: list[str] = []
    event.listen(inner(engine), "commit", lambda _: heard.append("commit"))
    host = Host(engine, face, "connection")
    pool, known, before = inner(engine).pool, listeners(inner(engine)), await settings(host)
    checkpointer = host.checkpointer
    for number in range(3):
        await checkpointer.put(Checkpoint(thread_id="t", state={"number": number}))
    await checkpointer.put_writes(await checkpointer.put(Checkpoint(thread_id="t", state=3)), [])
    assert (await checkpointer.get(CheckpointConfig.latest("t"))).state == 3
    assert len((await checkpointer.list("t")).items) == 4
    await checkpointer.delete_thread("t")
    await checkpointer.ping()
    assert await call(host.own.aclose if face == "async" else host.own.close) is None
    assert listeners(inner(engine)) == known
    assert inner(engine).pool is pool
    assert await settings(host) == before
    with pytest.raises(clew.WrongContext):
        await checkpointer.ping()
    await host.close()


def test_importing_clew_is_cheap_and_loads_no_driver(tmp_path: Path) -> None:
    script = (
        "import time, sys; import pydantic, sqlalchemy; begun = time.process_time(); import clew;"
        " print(time.process_time() - begun);"
        " print(sorted({'asyncpg', 'psycopg', 'aiosqlite', 'alembic', 'langgraph', 'typer'} & set(sys.modules)))"
    )
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(tmp_path)}  # the first run compiles
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    took: list[float] = []
    for _ in range(4):
        printed = subprocess.run(
            [sys.executable, "-c", script], env=environment, check=True, capture_output=True, text=True
        ).stdout
        seconds, loaded = printed.splitlines()
        assert loaded == "[]"
        took.append(float(seconds))
    assert min(took) < 0.45  # 0.15 s is what it may take on a machine that does nothing else
