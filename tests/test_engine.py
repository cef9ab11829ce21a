"""Units on real databases: transactions, lost connections, cancellation, wrong contexts, a host's engine."""

from __future__ import annotations

import asyncio
import inspect
import multiprocessing
import os
import random
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, Engine, NullPool, create_engine, event, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from clew import AsyncCheckpointer, Checkpointer
from clew.engine import (
    AsyncDatabase,
    EngineOptions,
    Mode,
    SyncDatabase,
    ThreadedDatabase,
    open_async,
    open_sync,
    wrap_async,
    wrap_sync,
)
from clew.engine.failures import read
from clew.errors import (
    ClewError,
    Contention,
    CorruptData,
    InvalidInput,
    InvalidUrl,
    SchemaMismatch,
    StorageUnavailable,
    WrongContext,
)


def prepare(connection: Connection) -> None:
    connection.exec_driver_sql("CREATE TABLE items (id integer PRIMARY KEY)")


def add(number: int) -> Any:
    def unit(connection: Connection) -> int:
        connection.execute(text("INSERT INTO items VALUES (:id)"), {"id": number})
        return number

    return unit


def ids(connection: Connection) -> list[int]:
    return [row[0] for row in connection.execute(text("SELECT id FROM items ORDER BY id"))]


def fail_after_adding(connection: Connection) -> None:
    add(1000)(connection)
    raise KeyError("a bug in the unit")


@pytest.fixture(params=["sqlite", "memory", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    if request.param == "memory":
        return "sqlite://"
    return str(request.getfixturevalue(f"empty_{request.param}_url"))


@pytest.fixture
def database(url: str) -> Iterator[SyncDatabase]:
    database = open_sync(url, EngineOptions(timeout_s=10))
    database.run(prepare, "write")
    yield database
    database.close()


@pytest.fixture(params=["sqlite", "memory", "aiosqlite", "aiosqlite memory", "postgres"])
def async_url(request: pytest.FixtureRequest) -> str:
    if "memory" in request.param:
        return "sqlite+aiosqlite://" if "aio" in request.param else "sqlite://"
    url = str(request.getfixturevalue(f"empty_{request.param.removeprefix('aio')}_url"))
    return url.replace("sqlite:", "sqlite+aiosqlite:") if "aio" in request.param else url


@pytest.fixture
async def adatabase(async_url: str) -> Any:
    database = open_async(async_url, EngineOptions(timeout_s=10, pool_size=4, max_overflow=0))
    await database.run(prepare, "write")
    yield database
    await database.close()


def checked_out(database: Any) -> int:
    return int(database.engine.pool.checkedout())


def backends(url: str, state: str = "%") -> int:
    """How many other sessions the server has in this database, in ``state``."""
    with psycopg.connect(url, autocommit=True) as watcher:
        row = watcher.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            " AND backend_type = 'client backend' AND state LIKE %s",
            [state],
        ).fetchone()
        assert row is not None
        return int(row[0])


def kill_backends(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as killer:
        killer.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )


# -- transactions ------------------------------------------------------------------------------------------------------


def test_a_write_is_kept_and_so_is_a_statement(database: SyncDatabase) -> None:
    assert database.run(add(1), "write") == 1
    database.run(add(3), "statement")
    assert database.run(ids, "read") == [1, 3]
    assert checked_out(database) == 0


@pytest.mark.invariant(26)
def test_what_a_failing_unit_did_is_rolled_back(database: SyncDatabase) -> None:
    with pytest.raises(KeyError, match="a bug in the unit"):
        database.run(fail_after_adding, "write")
    assert database.run(ids, "read") == []
    assert checked_out(database) == 0


async def test_the_async_faces_keep_and_roll_back_alike(adatabase: Any) -> None:
    await adatabase.run(add(1), "write")
    await adatabase.run(add(3), "statement")
    with pytest.raises(KeyError):
        await adatabase.run(fail_after_adding, "write")
    assert await adatabase.run(ids, "read") == [1, 3]
    assert checked_out(adatabase) == 0


def test_threads_share_a_database(database: SyncDatabase) -> None:
    def work(worker: int) -> None:
        for number in range(20):
            database.run(add(worker * 100 + number), "write")

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(database.run(ids, "read")) == 160


async def test_tasks_share_a_database(adatabase: Any) -> None:
    await asyncio.gather(*(adatabase.run(add(number), "write") for number in range(100)))
    assert len(await adatabase.run(ids, "read")) == 100


async def test_a_health_check_does_not_wait_for_a_writer(empty_sqlite_url: str) -> None:
    database = open_async(empty_sqlite_url)
    release = threading.Event()
    writer = asyncio.create_task(database.run(lambda _: release.wait(10), "write"))
    await asyncio.sleep(0.05)
    await asyncio.wait_for(database.ping(), 2)
    release.set()
    assert await writer is True
    await database.close()


@pytest.mark.invariant(28)
def test_our_sqlite_files_are_durable(empty_sqlite_url: str) -> None:
    database = open_sync(empty_sqlite_url)

    def settings(connection: Connection) -> list[Any]:
        names = ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        return [connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in names]

    assert database.run(settings, "read") == ["wal", 2, 1, 30_000]
    database.close()


@pytest.mark.parametrize("mode", ["read", "write"])
def test_postgres_transactions_are_read_committed_and_statements_commit_themselves(
    empty_postgres_url: str, mode: Mode
) -> None:
    database = open_sync(empty_postgres_url)

    def isolation(connection: Connection) -> Any:
        return connection.exec_driver_sql("SHOW transaction_isolation").scalar()

    assert database.run(isolation, mode) == "read committed"
    database.run(lambda connection: connection.exec_driver_sql("VACUUM"), "statement")
    database.close()


# -- failures ----------------------------------------------------------------------------------------------------------


def test_a_locked_file_is_unavailable_after_the_timeout(empty_sqlite_url: str, tmp_path: Path) -> None:
    database = open_sync(empty_sqlite_url, EngineOptions(timeout_s=0.1))
    database.run(prepare, "write")
    other = sqlite3.connect(tmp_path / "empty.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    expected = r"could not put thread 't1' at sqlite:.*locked.* \[SQLITE_BUSY\]"
    with pytest.raises(StorageUnavailable, match=expected) as refusal:
        database.run(add(1), "write", doing="put thread 't1'")
    assert refusal.value.maybe_stored is False
    other.close()
    database.run(add(1), "write")
    database.close()


def test_a_write_waits_for_another_of_its_process_no_longer_than_it_may(empty_sqlite_url: str) -> None:
    database = open_sync(empty_sqlite_url, EngineOptions(timeout_s=0.1))
    database.run(prepare, "write")
    inside, done = threading.Event(), threading.Event()

    def slow(connection: Connection) -> None:
        inside.set()
        done.wait(10)

    thread = threading.Thread(target=database.run, args=(slow, "write"))
    thread.start()
    inside.wait(10)
    with pytest.raises(StorageUnavailable, match=r"could not put thread 't1'.*: other writes of this process took"):
        database.run(add(1), "write", doing="put thread 't1'")
    done.set()
    thread.join()
    database.run(add(1), "write")
    database.close()


def test_an_engine_of_another_database_is_refused_by_its_name() -> None:
    engine = create_engine("sqlite://")
    engine.dialect.name = "mysql"
    with pytest.raises(InvalidInput, match="clew stores in SQLite and Postgres; this engine is for mysql"):
        wrap_sync(engine)


@pytest.mark.parametrize("pgbouncer", [False, True])
@pytest.mark.parametrize("mode", ["write", "statement"])
def test_a_locked_row_is_unavailable_after_the_timeout(empty_postgres_url: str, mode: Mode, pgbouncer: bool) -> None:
    database = open_sync(empty_postgres_url, EngineOptions(timeout_s=0.2, pgbouncer=pgbouncer))
    database.run(prepare, "write")
    with psycopg.connect(empty_postgres_url) as other:
        other.execute("INSERT INTO items VALUES (1)")
        with pytest.raises(StorageUnavailable, match="SQLSTATE 5") as refusal:
            database.run(add(1), mode)
        other.rollback()
    assert refusal.value.maybe_stored is False
    assert database.run(add(1), mode) == 1
    database.close()


async def test_a_slow_statement_is_unavailable_after_the_timeout(empty_postgres_url: str) -> None:
    database = open_async(empty_postgres_url, EngineOptions(timeout_s=0.2))
    with pytest.raises(StorageUnavailable, match="SQLSTATE 57014"):
        await database.run(lambda connection: connection.exec_driver_sql("SELECT pg_sleep(5)"), "read")
    await database.ping()
    await database.close()


def test_a_full_pool_is_unavailable_after_the_timeout(empty_postgres_url: str) -> None:
    database = open_sync(empty_postgres_url, EngineOptions(timeout_s=0.1, pool_size=1, max_overflow=0))
    with database.engine.connect(), pytest.raises(StorageUnavailable, match="pool_size"):
        database.ping()
    database.close()


def test_a_file_that_is_no_database_is_corrupt(tmp_path: Path) -> None:
    (tmp_path / "x.db").write_bytes(b"no database at all" * 100)
    database = open_sync(f"sqlite:///{tmp_path / 'x.db'}")
    with pytest.raises(CorruptData, match="SQLITE_NOTADB"):
        database.ping()
    database.close()


@pytest.mark.parametrize("scheme", ["sqlite", "sqlite+aiosqlite"])
def test_opening_without_migrating_makes_no_file(tmp_path: Path, scheme: str) -> None:
    async def opening() -> None:
        async with AsyncCheckpointer.open(f"{scheme}:///{tmp_path / 'typo.db'}"):
            pass

    with pytest.raises(SchemaMismatch, match=r"typo\.db: there is no such file.*clew migrate"):
        asyncio.run(opening())
    assert list(tmp_path.iterdir()) == []


def test_opening_the_sync_face_without_migrating_makes_no_file(tmp_path: Path) -> None:
    with pytest.raises(SchemaMismatch, match=r"typo\.db: there is no such file.*clew migrate"):
        Checkpointer.open(f"sqlite:///{tmp_path / 'typo.db'}")
    assert list(tmp_path.iterdir()) == []


async def test_a_file_that_was_migrated_meanwhile_is_found(tmp_path: Path) -> None:
    late = AsyncCheckpointer.open(f"sqlite:///{tmp_path / 'run.db'}")
    Checkpointer.open(f"sqlite:///{tmp_path / 'run.db'}", migrate=True).close()
    async with late:
        assert (await late.list_threads()).items == ()


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidUrl, match="nowhere"):
        open_sync(f"sqlite:///{tmp_path / 'nowhere' / 'x.db'}")
    with pytest.raises(InvalidUrl, match="directory"):
        open_sync(f"sqlite:///{tmp_path}")


def test_a_missing_table_asks_for_migration(database: SyncDatabase) -> None:
    with pytest.raises(SchemaMismatch, match="clew migrate"):
        database.run(lambda connection: connection.exec_driver_sql("SELECT 1 FROM clew_threads"), "read")


def test_a_taken_key_that_the_unit_did_not_expect_is_contention(database: SyncDatabase) -> None:
    database.run(add(1), "write")
    with pytest.raises(Contention):
        database.run(add(1), "write")
    assert database.run(ids, "read") == [1]


def test_an_error_without_a_name_of_its_own_is_still_ours(database: SyncDatabase) -> None:
    with pytest.raises(ClewError) as refusal:
        database.run(lambda connection: connection.exec_driver_sql("SELEC 'secret payload'"), "write")
    assert "secret payload" not in str(refusal.value)


@pytest.mark.parametrize(
    "url", ["postgresql://u:secret@127.0.0.1:1/d", "postgresql://u:secret@127.0.0.1:1,127.0.0.1:2/d"]
)
async def test_an_unreachable_server_is_unavailable(url: str) -> None:
    for_loop, for_threads = open_async(url), open_sync(url)
    with pytest.raises(StorageUnavailable) as refusal:
        await for_loop.ping()
    assert "secret" not in str(refusal.value)
    with pytest.raises(StorageUnavailable) as refusal:
        for_threads.ping()
    assert (refusal.value.maybe_stored, "secret" in str(refusal.value)) == (False, False)
    await for_loop.close()
    for_threads.close()


async def test_a_database_that_cannot_be_reached_is_named(tmp_path: Path) -> None:
    url = "postgresql://me:secret@127.0.0.1:1/agents?connect_timeout=5"
    engine = create_engine("postgresql+psycopg://me:secret@127.0.0.1:1/agents?connect_timeout=5", poolclass=NullPool)
    for database in (open_async(url), open_sync(url), wrap_sync(engine)):
        with pytest.raises(StorageUnavailable, match=r" at postgresql(\+psycopg)?://127\.0\.0\.1:1/agents: "):
            await value_of(database.ping())
        await value_of(database.close())
    locked = tmp_path / "locked.db"
    locked.mkdir(mode=0o700)
    found = wrap_sync(create_engine(f"sqlite:///{locked}"))
    with pytest.raises(StorageUnavailable, match=rf" at sqlite:///{locked}: the file cannot be opened"):
        found.ping()


async def value_of(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


async def test_the_second_host_is_tried_when_the_first_is_down(empty_postgres_url: str) -> None:
    url = empty_postgres_url.replace("@127.0.0.1:", "@127.0.0.1:1,127.0.0.1:")
    for_loop, for_threads = open_async(f"{url}?target_session_attrs=read-write"), open_sync(url)
    await for_loop.ping()
    for_threads.ping()
    await for_loop.close()
    for_threads.close()


async def test_options_reach_the_server_through_both_drivers(empty_postgres_url: str) -> None:
    url = f"{empty_postgres_url}?options=-csearch_path%3Dapp,%5C%20public&application_name=my%20app&sslmode=prefer"

    def settings(connection: Connection) -> list[Any]:
        return [connection.exec_driver_sql(f"SHOW {name}").scalar() for name in ("search_path", "application_name")]

    for_loop, for_threads = open_async(url), open_sync(url)
    assert await for_loop.run(settings, "read") == for_threads.run(settings, "read") == ["app, public", "my app"]
    await for_loop.close()
    for_threads.close()


class Refused(Exception):
    """Stands for a driver's error: they carry their SQLSTATE under this name."""

    def __init__(self, sqlstate: str) -> None:
        super().__init__("prose with a secret payload")
        self.sqlstate = sqlstate


@pytest.mark.parametrize(
    ("state", "kind", "maybe_stored"),
    [
        ("08006", StorageUnavailable, True),
        ("57P01", StorageUnavailable, True),
        ("57014", StorageUnavailable, False),
        ("55P03", StorageUnavailable, False),
        ("53100", StorageUnavailable, False),
        ("25006", StorageUnavailable, False),
        ("28P01", StorageUnavailable, False),
        ("40001", Contention, None),
        ("40P01", Contention, None),
        ("23505", Contention, None),
        ("42P01", SchemaMismatch, None),
        ("XX001", CorruptData, None),
        ("22021", InvalidInput, None),
        ("54000", InvalidInput, None),
        ("42601", ClewError, None),
    ],
)
def test_a_servers_code_decides_what_an_error_means(
    state: str, kind: type[ClewError], maybe_stored: bool | None
) -> None:
    failure = read(Refused(state))
    assert failure is not None
    error = failure.error("put", sent=True)
    assert type(error) is kind
    assert state in str(error)
    assert "secret" not in str(error)
    assert getattr(error, "maybe_stored", None) == maybe_stored


@pytest.mark.parametrize("exc", [KeyError("x"), asyncio.CancelledError(), KeyboardInterrupt(), WrongContext("x")])
def test_what_is_no_databases_error_is_left_alone(exc: BaseException) -> None:
    assert read(exc) is None


# -- lost connections --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["read", "write", "statement"])
async def test_connections_that_died_while_idle_are_replaced(empty_postgres_url: str, mode: Mode) -> None:
    for_loop, for_threads = open_async(empty_postgres_url), open_sync(empty_postgres_url)
    for_threads.run(prepare, "write")
    await asyncio.gather(*(for_loop.ping() for _ in range(5)))
    kill_backends(empty_postgres_url)
    for number in range(3):
        await for_loop.run(add(number), mode)
    for_threads.run(add(10), mode)
    await for_loop.close()
    for_threads.close()


async def test_a_transaction_that_lost_its_connection_before_commit_runs_again(empty_postgres_url: str) -> None:
    runs = []

    def unit(connection: Connection) -> None:
        runs.append(1)
        add(1)(connection)
        if len(runs) == 1:
            kill_backends(empty_postgres_url)
        add(2)(connection)

    for database in (open_async(empty_postgres_url), open_sync(empty_postgres_url)):
        runs.clear()
        outcome = database.run(lambda c: c.exec_driver_sql("CREATE TABLE IF NOT EXISTS items (id int)"), "write")
        await outcome if asyncio.iscoroutine(outcome) else outcome
        outcome = database.run(unit, "write")
        await outcome if asyncio.iscoroutine(outcome) else outcome
        assert len(runs) == 2
        outcome = database.close()
        await outcome if asyncio.iscoroutine(outcome) else outcome
    database = open_sync(empty_postgres_url)
    assert database.run(ids, "read") == [1, 1, 2, 2]
    database.close()


@pytest.mark.parametrize("mode", ["write", "statement"])
async def test_a_connection_lost_when_it_may_have_been_stored_says_so(empty_postgres_url: str, mode: Mode) -> None:
    def killed_at_the_end(connection: Connection) -> None:
        add(1)(connection)
        if mode == "statement":
            connection.exec_driver_sql("SELECT pg_terminate_backend(pg_backend_pid())")
        kill_backends(empty_postgres_url)

    for_threads, for_loop = open_sync(empty_postgres_url), open_async(empty_postgres_url)
    for_threads.run(prepare, "write")
    with pytest.raises(StorageUnavailable, match="repeat it") as refusal:
        for_threads.run(killed_at_the_end, mode)
    assert refusal.value.maybe_stored is True
    for_threads.run(lambda connection: connection.exec_driver_sql("DELETE FROM items"), "write")
    with pytest.raises(StorageUnavailable, match="repeat it") as refusal:
        await for_loop.run(killed_at_the_end, mode)
    assert refusal.value.maybe_stored is True
    await for_loop.ping()
    await for_loop.close()
    for_threads.close()


def test_a_deadlock_is_resolved_by_running_again(empty_postgres_url: str) -> None:
    database = open_sync(empty_postgres_url)
    database.run(prepare, "write")
    database.run(add(1), "write")
    database.run(add(2), "write")
    meet = threading.Barrier(2)
    runs: list[int] = []
    done: list[int] = []

    def lock(first: int, second: int) -> None:
        def unit(connection: Connection) -> None:
            runs.append(first)
            connection.execute(text("SELECT 1 FROM items WHERE id = :id FOR UPDATE"), {"id": first})
            if runs.count(first) == 1:
                meet.wait(10)
            connection.execute(text("SELECT 1 FROM items WHERE id = :id FOR UPDATE"), {"id": second})

        database.run(unit, "write")
        done.append(first)

    threads = [threading.Thread(target=lock, args=pair) for pair in ((1, 2), (2, 1))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(runs) >= 3
    assert done == [1, 2] or done == [2, 1]
    database.close()


# -- cancellation ------------------------------------------------------------------------------------------------------


@pytest.mark.invariant(27)
async def test_cancelling_at_any_moment_loses_no_connection(adatabase: Any, async_url: str) -> None:
    seed = random.Random(7)

    def unit(connection: Connection) -> None:
        for number in range(3):
            add(seed.randrange(1_000_000_000))(connection)
            if number == 1 and adatabase.dialect == "postgresql" and seed.random() < 0.3:
                connection.exec_driver_sql("SELECT pg_sleep(0.02)")

    for _ in range(120):
        asked = [seed.choice(((ids, "read"), (unit, "write"), (unit, "write"))) for _ in range(seed.choice((1, 6)))]
        tasks = [asyncio.create_task(adatabase.run(*each)) for each in asked]
        await asyncio.sleep(seed.random() * 0.008)
        for task in tasks:
            task.cancel()
        if seed.random() < 0.3:
            await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    await adatabase.run(ids, "read")
    await adatabase.ping()
    await wait_until_idle(adatabase)
    if adatabase.dialect == "postgresql":
        assert backends(async_url, "idle in transaction%") == 0
        assert backends(async_url, "active") == 0
        assert backends(async_url) <= 4
    assert len(await adatabase.run(ids, "read")) % 3 == 0


async def wait_until_idle(database: Any) -> None:
    if database._running:
        await asyncio.wait(tuple(database._running), timeout=10)
    assert checked_out(database) == 0


async def test_a_cancelled_statement_is_stopped_on_the_server(empty_postgres_url: str) -> None:
    database = open_async(empty_postgres_url)
    sleep = asyncio.create_task(database.run(lambda c: c.exec_driver_sql("SELECT pg_sleep(60)"), "write"))
    await asyncio.sleep(0.3)
    begun = time.monotonic()
    sleep.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sleep
    assert time.monotonic() - begun < 2
    assert backends(empty_postgres_url, "active") == 0
    assert checked_out(database) == 0
    await database.close()


async def test_a_cancelled_unit_on_sqlite_is_rolled_back(adatabase: Any) -> None:
    if adatabase.dialect == "postgresql":
        return
    begun = threading.Event()

    def slow(connection: Connection) -> None:
        add(1)(connection)
        begun.set()
        time.sleep(0.2)
        add(2)(connection)

    task = asyncio.create_task(adatabase.run(slow, "write"))
    await asyncio.sleep(0.05) if isinstance(adatabase, AsyncDatabase) else await asyncio.to_thread(begun.wait, 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert checked_out(adatabase) == 0
    assert await adatabase.run(ids, "read") in ([], [1, 2])  # aiosqlite's unit blocks the loop: done before the cancel


async def test_closing_waits_for_what_runs(adatabase: Any) -> None:
    tasks = [asyncio.create_task(adatabase.run(add(number), "write")) for number in range(20)]
    await asyncio.sleep(0)
    await adatabase.close()
    assert await asyncio.gather(*tasks) == list(range(20))


# -- wrong contexts ----------------------------------------------------------------------------------------------------


def test_a_closed_database_says_so(database: SyncDatabase) -> None:
    database.close()
    database.close()
    with pytest.raises(WrongContext, match=r"could not put thread 't1': .*closed"):
        database.run(ids, "read", doing="put thread 't1'")


async def test_a_closed_async_database_says_so(adatabase: Any) -> None:
    await adatabase.close()
    await adatabase.close()
    with pytest.raises(WrongContext, match="closed"):
        await adatabase.ping()


async def test_a_foreign_loop_is_refused(adatabase: Any) -> None:
    def elsewhere() -> None:
        with pytest.raises(WrongContext, match="event loop"):
            asyncio.run(adatabase.ping())

    await asyncio.to_thread(elsewhere)
    await adatabase.ping()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_use_after_fork_is_refused_and_closing_there_harms_nobody(database: SyncDatabase) -> None:
    def child(answers: Any) -> None:
        try:
            database.ping()
        except WrongContext as exc:
            answers.put(str(exc))
        database.close()
        answers.close()
        answers.join_thread()
        os._exit(0)

    forking = multiprocessing.get_context("fork")
    answers = forking.Queue()
    process = forking.Process(target=child, args=(answers,))
    process.start()
    assert "before fork()" in answers.get(timeout=20)
    process.join(20)
    database.ping()
    answers.close()
    answers.join_thread()


# -- a host's engine ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("isolation_level", ["SERIALIZABLE", "AUTOCOMMIT", "REPEATABLE READ"])
async def test_a_hosts_isolation_is_pinned_for_us_and_kept_for_it(
    empty_postgres_url: str, isolation_level: Any
) -> None:
    base = empty_postgres_url.removeprefix("postgresql://")
    engine = create_engine(f"postgresql+psycopg://{base}", isolation_level=isolation_level, pool_size=1)
    aengine = create_async_engine(f"postgresql+asyncpg://{base}", isolation_level=isolation_level, pool_size=1)

    def isolation(connection: Connection) -> Any:
        return connection.exec_driver_sql("SHOW transaction_isolation").scalar()

    def level() -> Any:
        with engine.connect() as connection:
            driver: Any = connection.connection.driver_connection
            return driver.autocommit, driver.isolation_level

    async def alevel() -> Any:
        async with aengine.connect() as connection:
            adapter: Any = (await connection.get_raw_connection()).dbapi_connection
            return adapter.isolation_level

    before = level(), await alevel()
    sync, for_loop = wrap_sync(engine, timeout_s=5), wrap_async(aengine)
    sync.run(prepare, "write")
    assert sync.run(isolation, "write") == await for_loop.run(isolation, "write") == "read committed"
    await for_loop.run(add(1), "statement")
    sync.run(add(2), "statement")
    await for_loop.run(add(3), "write")
    sync.close()
    await for_loop.close()
    with engine.connect() as connection:
        assert ids(connection) == [1, 2, 3]
    assert (level(), await alevel()) == before
    engine.dispose()
    await aengine.dispose()


def host(path: Path, kind: str) -> Engine:
    engine = create_engine(f"sqlite:///{path}", pool_size=1)
    if kind == "explicit begin":  # the recipe of SQLAlchemy's manual

        @event.listens_for(engine, "connect")
        def connect(driver: Any, _: Any) -> None:
            driver.isolation_level = None

        @event.listens_for(engine, "begin")
        def begin(connection: Connection) -> None:
            connection.exec_driver_sql("BEGIN")

    return engine


@pytest.mark.invariant(29)
@pytest.mark.parametrize("kind", ["plain", "explicit begin"])
def test_a_hosts_sqlite_engine_is_left_as_it_was_found(tmp_path: Path, kind: str) -> None:
    engine = host(tmp_path / "host.db", kind)

    def settings() -> list[Any]:
        with engine.connect() as connection:
            names = ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
            found = [connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in names]
            driver: Any = connection.connection.driver_connection
            return [*found, driver.isolation_level, driver.in_transaction]

    before = settings()
    database = wrap_sync(engine, timeout_s=3)
    database.run(prepare, "write")
    database.run(add(1), "write")
    database.run(add(2), "read")
    database.run(add(3), "statement")
    with pytest.raises(KeyError):
        database.run(fail_after_adding, "write")
    assert database.run(lambda c: c.exec_driver_sql("PRAGMA foreign_keys").scalar(), "read") == 1
    assert database.run(ids, "read") == [1, 3]
    database.close()
    assert settings() == before
    engine.dispose()


@pytest.mark.parametrize("kind", ["plain", "explicit begin"])
def test_a_write_on_a_hosts_engine_takes_the_lock_at_once(tmp_path: Path, kind: str) -> None:
    engine = host(tmp_path / "host.db", kind)
    database = wrap_sync(engine, timeout_s=0.1)
    other = sqlite3.connect(tmp_path / "host.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    entered = []
    with pytest.raises(StorageUnavailable, match="SQLITE_BUSY"):
        database.run(entered.append, "write")
    assert entered == []
    other.close()
    engine.dispose()


async def test_a_hosts_async_sqlite_engine_stays_open(tmp_path: Path) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'host.db'}")
    database = wrap_async(engine)
    await database.run(prepare, "write")
    await database.run(add(1), "write")
    await database.run(add(2), "read")
    await database.close()
    async with engine.connect() as connection:
        assert await connection.run_sync(ids) == [1]
    await engine.dispose()


def test_an_engine_of_the_wrong_kind_is_refused(tmp_path: Path) -> None:
    engine = create_engine("sqlite://")
    with pytest.raises(InvalidInput, match="AsyncEngine"):
        wrap_async(engine)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="Engine"):
        wrap_sync(create_async_engine("sqlite+aiosqlite://"))  # type: ignore[arg-type]
    engine.dispose()


@pytest.mark.parametrize("timeout_s", [0, -1, float("nan"), float("inf")])
def test_a_time_that_makes_no_sense_is_refused_on_a_hosts_engine_too(timeout_s: float) -> None:
    with pytest.raises(InvalidInput, match="timeout_s"):
        wrap_sync(create_engine("sqlite://"), timeout_s=timeout_s)
    with pytest.raises(InvalidInput, match="timeout_s"):
        wrap_async(create_async_engine("sqlite+aiosqlite://"), timeout_s=timeout_s)


def test_opening_connects_to_nothing_and_picks_the_face(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'x.db'}"
    assert isinstance(open_sync(url), SyncDatabase)
    assert isinstance(open_async(url), ThreadedDatabase)
    by_name = open_async(f"sqlite+aiosqlite:///{tmp_path / 'x.db'}")
    assert isinstance(by_name, AsyncDatabase)
    assert isinstance(by_name.engine, AsyncEngine)
    assert not (tmp_path / "x.db").exists()
