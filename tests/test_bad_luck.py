"""What happens around a call: a full disk, a database that cannot be written or is locked, clocks that jump back,
foreign event loops, forked children. Each gets a clear error or simply works, and nothing is lost."""

from __future__ import annotations

import asyncio
import gc
import io
import json
import logging
import sqlite3
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine, delete, event, select

import clew
from clew import AsyncCheckpointer, Checkpoint, CheckpointConfig, Checkpointer, PendingWrite, SqlAgentExecutor

from agents import boundary
from probe import Probe


def at(checkpoint_id: str, thread_id: str = "t") -> CheckpointConfig:
    return CheckpointConfig(thread_id=thread_id, checkpoint_id=checkpoint_id)


def made(step: int, thread_id: str = "t") -> Checkpoint[Any]:
    items = [f"item {number} {'x' * 40}" for number in range(step * 5)]
    return Checkpoint(thread_id=thread_id, checkpoint_id=f"c{step}", state={"items": items}, metadata={"step": step})


def on_connect(checkpointer: Checkpointer[Any], listen: Callable[[Any], Any]) -> None:
    """Do something to each connection that the checkpointer has from now on."""
    engine = checkpointer._driver.database.engine
    engine.dispose()
    event.listen(engine, "connect", lambda driver, _: listen(driver))


# A full disk


@pytest.fixture
def full(sqlite_url: str) -> Iterator[tuple[Checkpointer[Any], Callable[[bool], None]]]:
    """A checkpointer on a file of some threads, and what fills its disk and makes room again."""
    with Checkpointer.open(sqlite_url) as checkpointer:
        for step in (1, 2, 3):
            checkpointer.put(made(step))
            checkpointer.put(made(step, "other"))
        limit = [0]
        on_connect(checkpointer, lambda driver: driver.execute(f"PRAGMA max_page_count = {limit[0] or 2**30}"))

        def fill(is_full: bool) -> None:
            with Probe(sqlite_url).connection() as connection:
                limit[0] = connection.exec_driver_sql("PRAGMA page_count").scalar() if is_full else 0
            checkpointer._driver.database.engine.dispose()

        yield checkpointer, fill


def of_random(count: int) -> list[str]:
    """What no compression makes smaller."""
    import random

    return [random.Random(number).randbytes(40_000).hex() for number in range(count)]


NEEDS_ROOM: dict[str, Callable[[Checkpointer[Any], bytes], Any]] = {
    "put": lambda c, _: c.put(Checkpoint(thread_id="t", checkpoint_id="c4", state={"items": of_random(9)})),
    "put into a new thread": lambda c, _: c.put(
        Checkpoint(thread_id="new", checkpoint_id="c4", state={"items": of_random(9)})
    ),
    "put_writes": lambda c, _: c.put_writes(
        at("c3"),
        [PendingWrite(node="n", task_id="x", idx=number, payload=each) for number, each in enumerate(of_random(9))],
    ),
    "import_thread": lambda c, large: c.retention.import_thread(io.BytesIO(large), thread_id="new"),
    "record": lambda c, _: record_large(c),
}


def record_large(checkpointer: Checkpointer[Any]) -> None:
    with checkpointer.recorder("t", durability="async") as recorder:
        recorder.record({"items": of_random(9)}, checkpoint_id="c4")


@pytest.fixture(scope="module")
def large(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    target = io.BytesIO()
    with Checkpointer.open(f"sqlite:///{tmp_path_factory.mktemp('large') / 'x.db'}", migrate=True) as checkpointer:
        checkpointer.put(Checkpoint(thread_id="t", checkpoint_id="c4", state={"items": of_random(9)}))
        checkpointer.retention.export_thread("t", target)
    return target.getvalue()


@pytest.mark.parametrize("call", NEEDS_ROOM)
def test_a_full_disk_is_said_and_nothing_is_lost(full: Any, large: bytes, sqlite_url: str, call: str) -> None:
    checkpointer, fill = full
    fill(True)
    with pytest.raises(clew.StorageUnavailable, match=r"the disk is full \[SQLITE_FULL\]; nothing was stored"):
        NEEDS_ROOM[call](checkpointer, large)
    for thread_id in ("t", "other"):
        assert [item.checkpoint_id for item in checkpointer.list(thread_id).items] == ["c3", "c2", "c1"]
        assert checkpointer.get(at("c3", thread_id)) == made(3, thread_id)
    assert checkpointer.get_thread("new") is None
    assert checkpointer.retention.verify().problems == ()
    fill(False)
    NEEDS_ROOM[call](checkpointer, large)
    assert checkpointer.retention.verify().problems == ()
    assert Probe(sqlite_url).problems() == []


MAKES_ROOM: dict[str, Callable[[Checkpointer[Any]], Any]] = {
    "delete_thread": lambda c: c.delete_thread("t"),
    "delete_checkpoints": lambda c: c.delete_checkpoints("t", ["c1", "c2"]),
    "prune": lambda c: c.retention.prune("t", keep_last=1),
    "compact": lambda c: c.retention.compact("t"),
}


@pytest.mark.parametrize("call", MAKES_ROOM)
def test_cleaning_up_works_on_a_full_disk(full: Any, sqlite_url: str, call: str) -> None:
    checkpointer, fill = full
    fill(True)
    MAKES_ROOM[call](checkpointer)
    assert checkpointer.get(at("c3", "other")) == made(3, "other")
    assert checkpointer.retention.verify().problems == ()
    assert Probe(sqlite_url).problems() == []


# A database that cannot be written


@contextmanager
def query_only(url: str) -> Iterator[Checkpointer[Any]]:
    with Checkpointer.open(url) as checkpointer:
        on_connect(checkpointer, lambda driver: driver.execute("PRAGMA query_only = ON"))
        yield checkpointer


@contextmanager
def hosts_read_only_file(url: str) -> Iterator[Checkpointer[Any]]:
    engine = create_engine(f"sqlite:///file:{url.removeprefix('sqlite:///')}?mode=ro&uri=true")
    with Checkpointer(engine) as checkpointer:
        yield checkpointer
    engine.dispose()


@contextmanager
def read_only_sessions(url: str) -> Iterator[Checkpointer[Any]]:
    with Checkpointer.open(f"{url}?options=-cdefault_transaction_read_only%3Don") as checkpointer:
        yield checkpointer


@contextmanager
def role_that_may_only_read(url: str) -> Iterator[Checkpointer[Any]]:
    role = f"reader_{time.monotonic_ns()}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'x'")  # type: ignore[call-overload]
        connection.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}")  # type: ignore[call-overload]
        with Checkpointer.open(f"{url}?options=-crole%3D{role}") as checkpointer:
            yield checkpointer
        connection.execute(f"DROP OWNED BY {role}")  # type: ignore[call-overload]
        connection.execute(f"DROP ROLE {role}")  # type: ignore[call-overload]


READ_ONLY = [
    ("sqlite", query_only, "SQLITE_READONLY"),
    ("sqlite", hosts_read_only_file, "SQLITE_READONLY"),
    ("postgres", read_only_sessions, "the server is read-only .SQLSTATE 25006"),
    ("postgres", role_that_may_only_read, "the role lacks a privilege .SQLSTATE 42501"),
]
WRITES: dict[str, Callable[[Checkpointer[Any]], Any]] = {
    "put": lambda c: c.put(made(2)),
    "put again": lambda c: c.put(Checkpoint(thread_id="t", checkpoint_id="c1", state={"n": 1})),
    "put_writes": lambda c: c.put_writes(at("c1"), [PendingWrite(node="n", payload=1)]),
    "fork": lambda c: c.timeline.fork(at("c1")),
    "prune": lambda c: c.retention.prune("t", keep_last=1),
    "compact": lambda c: c.retention.compact("t"),
    "set_expiry": lambda c: c.retention.set_expiry("t", ttl=timedelta(days=1)),
    "delete_thread": lambda c: c.delete_thread("t"),
    "acquire_lease": lambda c: c.runs.acquire_lease("t", "me"),
    "executor": lambda c: SqlAgentExecutor(c).checkpoint(boundary(1)),
}


@pytest.mark.parametrize(("database", "opened", "reason"), READ_ONLY, ids=lambda each: getattr(each, "__name__", ""))
def test_what_cannot_be_written_is_read_and_says_so(
    request: pytest.FixtureRequest, database: str, opened: Any, reason: str
) -> None:
    url = request.getfixturevalue(f"{database}_url")
    with Checkpointer.open(url) as checkpointer:
        checkpointer.put(made(1))
    with opened(url) as checkpointer:
        for name, call in WRITES.items():
            with pytest.raises((clew.StorageUnavailable, clew.AgentExecutorError), match=reason):
                call(checkpointer)
            assert checkpointer.get(at("c1")) == made(1), name
        assert [item.checkpoint_id for item in checkpointer.list("t").items] == ["c1"]
        assert checkpointer.timeline.get_state("t").values == made(1).state
        assert checkpointer.retention.verify().problems == ()


# Locked by a stranger


@contextmanager
def locked(url: str, how: str) -> Iterator[None]:
    if url.startswith("sqlite"):
        engine = create_engine(url.replace("+aiosqlite", ""), isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.exec_driver_sql("BEGIN EXCLUSIVE")
            yield
            connection.exec_driver_sql("ROLLBACK")
        engine.dispose()
    else:
        with psycopg.connect(url) as other:
            other.execute(how)  # type: ignore[call-overload]
            yield
            other.rollback()


@pytest.mark.parametrize(
    ("scheme", "how"),
    [
        ("sqlite:", "BEGIN EXCLUSIVE"),
        ("sqlite+aiosqlite:", "BEGIN EXCLUSIVE"),
        ("postgresql:", "LOCK TABLE clew_thread_versions"),
        ("postgresql:", "SELECT FROM clew_thread_versions FOR UPDATE"),
        ("postgresql:", "LOCK TABLE clew_segments"),
    ],
)
async def test_a_strangers_lock_is_waited_for_without_holding_up_the_event_loop(
    request: pytest.FixtureRequest, scheme: str, how: str
) -> None:
    name = "sqlite_url" if scheme.startswith("sqlite") else "postgres_url"
    url = scheme + str(request.getfixturevalue(name)).partition(":")[2]
    beats: list[float] = []

    async def beat() -> None:
        while True:
            beats.append(time.monotonic())
            await asyncio.sleep(0.005)

    async with AsyncCheckpointer[Any].open(url, timeout_s=0.6) as checkpointer:
        for step in (1, 2):
            await checkpointer.put(made(step))
        beating = asyncio.create_task(beat())
        await asyncio.sleep(0.02)
        with locked(url, how):
            begun, first = time.monotonic(), len(beats)
            with pytest.raises(clew.StorageUnavailable, match="longer than it may") as refused:
                await checkpointer.put(made(3))
            waited, counted = time.monotonic() - begun, len(beats) - first
        beating.cancel()
        assert refused.value.maybe_stored is False
        assert 0.5 < waited < 3
        assert counted > 20
        await checkpointer.put(made(3))
        assert await checkpointer.get(at("c3")) == made(3)
        assert (await checkpointer.retention.verify()).problems == ()


# A clock that jumps back


@pytest.fixture
def clock(request: pytest.FixtureRequest, database_url: str) -> Iterator[tuple[Checkpointer[Any], Callable[..., None]]]:
    """A checkpointer whose database's clock can be set off: ``jump(hours=-1)`` from the true time."""
    if database_url.startswith("sqlite"):
        with Checkpointer.open(database_url) as checkpointer:
            shift = [0.0]

            def julian(_: str) -> float:
                return time.time() / 86400 + 2440587.5 + shift[0]

            on_connect(checkpointer, lambda driver: driver.create_function("julianday", 1, julian))
            yield checkpointer, lambda **span: shift.__setitem__(0, timedelta(**span) / timedelta(days=1))
        return
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA fake")
        connection.execute("CREATE TABLE fake.shifts AS SELECT interval '0' AS shift")
        connection.execute(
            "CREATE FUNCTION fake.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS"
            " 'SELECT pg_catalog.clock_timestamp() + shift FROM fake.shifts'"
        )

        def jump(**span: float) -> None:
            connection.execute("UPDATE fake.shifts SET shift = %s", [timedelta(**span)])

        # A schema that stands before pg_catalog hides the real clock.
        with Checkpointer.open(f"{database_url}?options=-csearch_path%3Dfake,pg_catalog,public") as checkpointer:
            yield checkpointer, jump


def test_the_order_of_checkpoints_is_that_of_their_puts_whatever_the_clock_says(clock: Any) -> None:
    checkpointer, jump = clock
    for step, hours in ((1, 0), (2, -1), (3, -2), (4, 1), (5, -3)):
        jump(hours=hours)
        checkpointer.put(made(step))
    items = checkpointer.list("t", newest_first=False).items
    assert [item.checkpoint_id for item in items] == ["c1", "c2", "c3", "c4", "c5"]
    assert checkpointer.get(CheckpointConfig.latest("t")) == made(5)
    instants = [item.created_at for item in items]
    assert instants == sorted(instants)
    assert instants[3] - instants[0] > timedelta(minutes=59)
    assert instants[4] == instants[3]
    assert checkpointer.timeline.as_of("t", instants[0]).values == made(3).state


def test_what_is_pruned_by_age_is_never_what_is_newer_than_asked(clock: Any) -> None:
    checkpointer, jump = clock
    for step in (1, 2, 3):
        checkpointer.put(made(step))
    jump(hours=-5)
    assert checkpointer.retention.prune("t", newer_than=timedelta(hours=1)).pruned == ()
    jump(hours=5)
    checkpointer.put(made(4))
    jump(hours=0)
    checkpointer.retention.prune("t", newer_than=timedelta(hours=1))
    assert [item.checkpoint_id for item in checkpointer.list("t").items] == ["c4", "c3", "c2", "c1"]


def test_a_thread_does_not_expire_early_when_the_clock_jumps_back(clock: Any) -> None:
    checkpointer, jump = clock
    checkpointer.put(made(1))
    checkpointer.retention.set_expiry("t", ttl=timedelta(hours=1))
    jump(hours=-5)
    assert checkpointer.retention.sweep().expired == ()
    jump(hours=2)
    assert checkpointer.retention.sweep().expired == ("t",)


def test_a_lease_is_not_given_twice_when_the_clock_jumps_back(clock: Any) -> None:
    checkpointer, jump = clock
    checkpointer.put(made(1))
    token = checkpointer.runs.acquire_lease("t", "one", 60)
    jump(hours=-1)
    with pytest.raises(clew.LeaseHeld):
        checkpointer.runs.acquire_lease("t", "two", 60)
    checkpointer.put(made(2), lease_token=token)
    checkpointer.runs.renew_lease("t", token, 60)
    with pytest.raises(clew.LeaseHeld):
        checkpointer.runs.acquire_lease("t", "two", 60)
    jump(hours=0)
    later = checkpointer.runs.acquire_lease("t", "two", 60)
    assert later > token
    for lease_token in (token, None):
        with pytest.raises(clew.StaleFence):
            checkpointer.put(made(3), lease_token=lease_token)


def test_a_run_never_ends_before_it_began(clock: Any) -> None:
    checkpointer, jump = clock
    executor = SqlAgentExecutor(checkpointer)
    executor.checkpoint(boundary(1))
    jump(hours=-1)
    executor.checkpoint(boundary(2))
    begun = checkpointer.runs.get("r")
    jump(hours=-2)
    ended = checkpointer.runs.finish("r", "completed")
    assert begun.started_at <= begun.updated_at <= ended.updated_at
    assert ended.started_at <= ended.finished_at
    assert [item.evidence.run_step for item in checkpointer.runs.boundaries("r").items] in ([1, 2], [2, 1])


# Event loops, threads, and the end


async def test_a_second_event_loop_is_refused_at_once_also_where_it_would_wait_its_turn(database_url: str) -> None:
    async with AsyncCheckpointer[Any].open(database_url) as checkpointer:
        await checkpointer.put(made(1))
        turn = checkpointer._driver._turns.want("t")

        def elsewhere() -> str:
            with pytest.raises(clew.WrongContext, match="another event loop") as refused:
                asyncio.run(asyncio.wait_for(checkpointer.put(made(2)), 5))
            return str(refused.value)

        async with turn:
            assert "thread 't'" in await asyncio.to_thread(elsewhere)
        checkpointer._driver._turns.leave("t")
        recorder = checkpointer.recorder("t", durability="async")
        async with recorder:
            await recorder.record({"n": 1})

            def recorded_elsewhere() -> None:
                with pytest.raises(clew.WrongContext, match="another event loop"):
                    asyncio.run(asyncio.wait_for(recorder.record({"n": 2}), 5))

            await asyncio.to_thread(recorded_elsewhere)
        assert (await checkpointer.get_thread("t")).checkpoint_count == 2


# Python is right to complain of connections that nobody could close any more.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_checkpointer_of_a_loop_that_has_ended_says_so_and_can_be_closed(database_url: str) -> None:
    checkpointer: Any = AsyncCheckpointer.open(database_url)
    asyncio.run(checkpointer.put(made(1)))
    with pytest.raises(clew.WrongContext, match="another event loop"):
        asyncio.run(checkpointer.put(made(2)))
    for _ in range(2):
        asyncio.run(checkpointer.aclose())
    with pytest.raises(clew.WrongContext, match="closed"):
        asyncio.run(checkpointer.put(made(2)))
    del checkpointer
    gc.collect()


async def test_the_sync_face_works_inside_a_running_loop(database_url: str) -> None:
    with Checkpointer.open(database_url) as checkpointer:
        checkpointer.put(made(1))
        assert checkpointer.get(at("c1")) == made(1)
        with checkpointer.recorder("r", durability="async") as recorder:
            recorder.record({"n": 1})
        assert checkpointer.get_thread("r").checkpoint_count == 1


def test_closing_while_calls_run_lets_each_of_them_finish_or_says_that_it_is_closed(database_url: str) -> None:
    checkpointer = Checkpointer.open(database_url)
    done, failed = set[str](), list[BaseException]()

    def work(name: str) -> None:
        try:
            for step in range(1, 500):
                checkpointer.put(made(step, name))
                done.add(f"{name} {step}")
        except BaseException as exc:  # noqa: BLE001  it is looked at below
            failed.append(exc)

    threads = [threading.Thread(target=work, args=(f"t{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    while len(done) < 20 and not failed:
        time.sleep(0.001)
    checkpointer.close()
    for thread in threads:
        thread.join()
    assert [type(exc) for exc in failed] == [clew.WrongContext] * 4
    with Checkpointer.open(database_url) as other:
        stored = {f"t{n} {other.get_thread(f't{n}').checkpoint_count}" for n in range(4)}
        assert stored == {max((d for d in done if d.startswith(f"t{n} ")), key=lambda d: int(d[3:])) for n in range(4)}


def test_parent_and_forked_children_do_not_get_in_each_others_way(database_url: str) -> None:
    worker = Path(__file__).with_name("fork_worker.py")
    ran = subprocess.run([sys.executable, worker, database_url], capture_output=True, text=True, timeout=90)
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)
    for call in ("put", "get", "record", "drain"):
        assert told.pop(call).endswith("opened before fork(); open one in each process, after forking")
    assert told == {"close": None, "anew": "child", "parent": ["after", "child", "before"], "sound": True}


# A wrong password


SECRET = "s3cr3t"
WRONG_URLS = [
    f"postgresql://someone:{SECRET}@HOST",
    f"postgresql://someone:%2F%23{SECRET}%3F%40@HOST",
    f"postgresql://HOST?user=someone&password={SECRET}",
    f"postgresql://someone:{SECRET}@127.0.0.1:1/d",
    f"postgresql://someone:{SECRET}/{SECRET}@HOST",
    f"postgresql://someone:{SECRET}#{SECRET}@HOST",
    f"postgresql://someone:{SECRET}?{SECRET}@HOST",
    f"postgresql://someone:{SECRET}%zz@HOST",
    f"postgresql://someone:{SECRET}%ff@HOST",
    f"postgresql://someone:{SECRET}%00@HOST",
    f"postgresql://HOST?user=someone&passwort={SECRET}",
    f"postgresql://HOST?user=someone&password={SECRET}&password={SECRET}",
    f"postgresql://someone:{SECRET}@HOST?sslmode={SECRET}",
    f"postgresql+{SECRET}://someone:{SECRET}@HOST",
    f"someone:{SECRET}@HOST",
    f"postgresql:/someone:{SECRET}@HOST",
    f"sqlite://someone:{SECRET}@HOST",
]


@pytest.fixture(scope="module")
def guarded(postgres: Any) -> str:
    """A place on the server where nobody gets in, whatever the password."""
    host = postgres.url.partition("@")[2].partition("?")[0]
    return str(host.partition("/")[0]) + "/no_such_database"


def everything(exc: BaseException | None) -> str:
    """All that a handler could print of an error: its traceback without source, and the chain with all its facts."""
    told, seen = "", set[int]()
    while exc is not None and id(exc) not in seen:
        seen.add(id(exc))
        frames = traceback.format_exception_only(exc)
        told += "".join(frames) + repr(exc) + str(exc) + repr(exc.args)
        exc = exc.__cause__ or exc.__context__
    return told


@pytest.mark.parametrize("url", WRONG_URLS)
async def test_no_error_and_no_log_tells_the_password(url: str, guarded: str, caplog: pytest.LogCaptureFixture) -> None:
    url = url.replace("HOST", guarded)
    with caplog.at_level(logging.DEBUG):
        with pytest.raises(clew.ClewError) as in_thread:
            Checkpointer.open(url)
        with pytest.raises(clew.ClewError) as in_loop:
            async with AsyncCheckpointer.open(url):
                pass
    assert SECRET not in everything(in_thread.value)
    assert SECRET not in everything(in_loop.value)
    assert SECRET not in caplog.text


@pytest.mark.parametrize("program", [("clew.cli", "migrate"), ("alembic", "upgrade", "head")], ids=lambda each: each[0])
@pytest.mark.parametrize(
    "url", [f"postgresql://someone:{SECRET}@127.0.0.1:1/d", f"postgresql://someone:{SECRET}%ff@h/d"]
)
def test_no_program_tells_the_password(program: tuple[str, ...], url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLEW_URL", url)
    root = Path(__file__).parents[1]
    ran = subprocess.run([sys.executable, "-m", *program], capture_output=True, text=True, cwd=root, timeout=60)
    assert ran.returncode != 0
    assert SECRET not in ran.stdout + ran.stderr


# Rows without their thread


def test_rows_whose_thread_is_gone_are_named_table_by_table(sqlite_url: str) -> None:
    """As a tool leaves them that deletes rows without SQLite's foreign keys, which are off unless asked for."""
    with Checkpointer.open(sqlite_url) as checkpointer:
        checkpointer.put(made(1))
        checkpointer.put(made(1, "other"))
        probe = Probe(sqlite_url)
        with probe.connection() as connection:
            [key] = connection.execute(select(probe.tables.threads.c.thread_key).filter_by(thread_id="t")).scalars()
            connection.execute(delete(probe.tables.versions).filter_by(thread_key=key))
        told = [str(problem) for problem in checkpointer.retention.verify("t").problems]
        assert told == ["orphan: thread 't', the thread's row: it has no version"]
        with probe.connection() as connection:
            connection.execute(delete(probe.tables.threads).filter_by(thread_key=key))
        assert [str(problem) for problem in checkpointer.retention.verify().problems] == [
            f"orphan: no thread, {table}: rows of thread key {key}, which is not there"
            for table in ("clew_checkpoint_metadata", "clew_checkpoints")
        ]


# Other hands on a new file


def hold(path: str, held: threading.Event, seconds: float) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("BEGIN IMMEDIATE")  # which SQLite does not wait for when it changes the journal
        held.set()
        time.sleep(seconds)


def test_a_file_that_another_process_holds_is_waited_for_when_it_is_first_opened(sqlite_url: str) -> None:
    path = sqlite_url.removeprefix("sqlite:///")
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA journal_mode = DELETE").fetchone() == ("delete",)
    held = threading.Event()
    thread = threading.Thread(target=hold, args=(path, held, 0.3))
    thread.start()
    held.wait()
    with Checkpointer.open(sqlite_url) as checkpointer:
        checkpointer.put(made(1))
    thread.join()
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_file_that_is_held_for_longer_than_one_waits_is_unavailable(sqlite_url: str) -> None:
    path = sqlite_url.removeprefix("sqlite:///")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
    held = threading.Event()
    thread = threading.Thread(target=hold, args=(path, held, 1.0))
    thread.start()
    held.wait()
    with pytest.raises(clew.StorageUnavailable), Checkpointer.open(sqlite_url, timeout_s=0.05) as held_up:
        held_up.put(made(1))
    thread.join()
