"""Every public awaited call, cancelled at each of its moments: it happened wholly or not at all, nothing is left open,
and the same call afterwards does what it says."""

from __future__ import annotations

import asyncio
import gc
import inspect
import io
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from typing import Any

import psycopg
import pytest
from langgraph.checkpoint.base import empty_checkpoint
from sqlalchemy import Engine, bindparam, event, select
from sqlalchemy.ext.asyncio import AsyncSession

import clew
from clew import (
    AsyncCheckpointer,
    AsyncSqlAgentExecutor,
    Checkpoint,
    CheckpointConfig,
    Checkpointer,
    PendingWrite,
    SqlAgentExecutor,
    StateUpdate,
)
from clew.groups.leases import AsyncHeldLease
from clew.groups.retention import AsyncRetention
from clew.groups.runs import AsyncRuns
from clew.groups.timeline import AsyncTimeline
from clew.langgraph import AsyncClewSaver, ClewSaver
from clew.recorder import AsyncRecorder
from clew.tables import tables_for

from agents import boundary
from cancelling import Outcome, observed, watch_statements
from hosting import host_engine
from probe import Probe

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


def at(thread: str, checkpoint_id: str = "c2") -> CheckpointConfig:
    return CheckpointConfig(thread_id=thread, checkpoint_id=checkpoint_id)


def made(thread: str, checkpoint_id: str, step: int, parent: str | None = None) -> Checkpoint[Any]:
    return Checkpoint(
        thread_id=thread,
        checkpoint_id=checkpoint_id,
        parent_checkpoint_id=parent,
        run_id=f"plain {thread}",
        state={"items": [f"item {number} {'x' * 300}" for number in range(step)], "n": step},
        metadata={"step": step, "source": "loop"},
    )


def write(index: int, task: str = "task") -> PendingWrite:
    return PendingWrite(node="n", task_id=task, idx=index, payload=index)


@dataclass
class Around:
    """What a case has to work with."""

    checkpointer: Any
    outside: Checkpointer[Any]
    saver: AsyncClewSaver
    url: str


@dataclass(frozen=True)
class Case:
    """A call. ``prepare`` makes what it needs, from outside; ``within`` is what it is made inside of."""

    call: Callable[[Any, str, Any], Awaitable[Any]]
    prepare: Callable[[Checkpointer[Any], str], Any] | None = None
    within: Callable[[Any, str], AbstractAsyncContextManager[Any]] = lambda checkpointer, thread: nullcontext()
    reads: bool = False
    """It leaves everything as it was."""
    repeats: bool = False
    """What it would do a second time, it does not do where the first one was cancelled: it finds that it was done."""


def plain(outside: Checkpointer[Any], thread: str) -> None:
    outside.put(made(thread, "c1", 1))
    outside.put(made(thread, "c2", 2, "c1"))
    outside.put_writes(at(thread), [write(0)])


def of_a_run(outside: Checkpointer[Any], thread: str) -> None:
    SqlAgentExecutor(outside).checkpoint(boundary(1, "ck1", run_id=f"run {thread}", thread_id=thread))


def leased(outside: Checkpointer[Any], thread: str) -> None:
    plain(outside, thread)
    outside.runs.acquire_lease(thread, "somebody")


def token(case: Any, thread: str) -> int:
    found = case.outside.runs.get_lease(thread)
    return 1 if found is None else int(found.token)


def exported(outside: Checkpointer[Any], thread: str) -> bytes:
    target = io.BytesIO()
    outside.retention.export_thread(thread, target)
    return target.getvalue()


def of_langgraph(outside: Checkpointer[Any], thread: str) -> None:
    saver = ClewSaver(outside)
    config: Any = config_for(thread)
    for step in (1, 2):
        config = saver.put(config, graph_checkpoint(f"c{step}", step), {"source": "loop", "step": step}, {"n": step})
    saver.put_writes(config, [("n", 1)], "task")


def config_for(thread: str, checkpoint_id: str | None = None) -> Any:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": "", "checkpoint_id": checkpoint_id}}


def graph_checkpoint(checkpoint_id: str, step: int) -> Any:
    values = {"n": step, "items": ["x" * 300] * step}
    return {
        **empty_checkpoint(),
        "id": checkpoint_id,
        "ts": "2026-01-01T00:00:00+00:00",
        "channel_values": values,
        "channel_versions": dict.fromkeys(values, step),
    }


async def gathered(items: AsyncIterator[Any]) -> list[Any]:
    return [item async for item in items]


def recorder(durability: str, *before: int) -> Callable[[Any, str], AbstractAsyncContextManager[Any]]:
    """An entered recorder that has recorded the boundaries ``before``; left again at the end."""

    @asynccontextmanager
    async def entered(case: Any, thread: str) -> AsyncIterator[AsyncRecorder]:
        async with case.checkpointer.recorder(thread, durability=durability) as found:
            for step in before:
                await found.record({"n": step}, checkpoint_id=f"r{step}")
            yield found

    return entered


@asynccontextmanager
async def not_entered(case: Any, thread: str) -> AsyncIterator[Any]:
    yield case.checkpointer.recorder(thread)


@asynccontextmanager
async def not_left(case: Any, thread: str) -> AsyncIterator[Any]:
    found = case.checkpointer.recorder(thread, durability="exit")
    await found.__aenter__()
    await found.record({"n": 1}, checkpoint_id="r1")
    yield found


async def held(case: Any, thread: str) -> None:
    async with case.checkpointer.runs.lease(thread, "me"):
        await asyncio.sleep(0)


async def left_half_way(items: Any) -> Any:
    item = await anext(items)
    await items.aclose()
    return item


CHECKPOINTER: dict[str, Case] = {
    "ping": Case(lambda c, t, _: c.checkpointer.ping(), reads=True),
    "put": Case(lambda c, t, _: c.checkpointer.put(made(t, "c3", 3, "c2")), plain),
    "put anew": Case(lambda c, t, _: c.checkpointer.put(made(t, "c1", 1))),
    "put_writes": Case(lambda c, t, _: c.checkpointer.put_writes(at(t), [write(1), write(2)]), plain),
    "get_writes": Case(lambda c, t, _: c.checkpointer.get_writes(at(t)), plain, reads=True),
    "get": Case(lambda c, t, _: c.checkpointer.get(at(t)), plain, reads=True),
    "get_tuple": Case(lambda c, t, _: c.checkpointer.get_tuple(at(t)), plain, reads=True),
    "list": Case(lambda c, t, _: c.checkpointer.list(t), plain, reads=True),
    "iterate": Case(lambda c, t, _: gathered(c.checkpointer.iterate(t, page_size=1)), plain, reads=True),
    "iterate half way": Case(lambda c, t, _: left_half_way(c.checkpointer.iterate(t, page_size=1)), plain, reads=True),
    "history": Case(lambda c, t, _: c.checkpointer.history(at(t)), plain, reads=True),
    "get_thread": Case(lambda c, t, _: c.checkpointer.get_thread(t), plain, reads=True),
    "list_threads": Case(lambda c, t, _: c.checkpointer.list_threads(), plain, reads=True),
    "statistics": Case(lambda c, t, _: c.checkpointer.statistics(t), plain, reads=True),
    "delete_thread": Case(lambda c, t, _: c.checkpointer.delete_thread(t), plain),
    "delete_checkpoints": Case(lambda c, t, _: c.checkpointer.delete_checkpoints(t, ["c1"]), plain),
    "delete_by_run": Case(lambda c, t, _: c.checkpointer.delete_by_run(f"plain {t}"), plain),
}
TIMELINE: dict[str, Case] = {
    "get_state": Case(lambda c, t, _: c.checkpointer.timeline.get_state(t), plain, reads=True),
    "state_history": Case(lambda c, t, _: c.checkpointer.timeline.state_history(t), plain, reads=True),
    "as_of": Case(
        lambda c, t, _: c.checkpointer.timeline.as_of(t, datetime.max.replace(tzinfo=UTC)), plain, reads=True
    ),
    "at_step": Case(lambda c, t, _: c.checkpointer.timeline.at_step(t, 2), plain, reads=True),
    "channel_history": Case(lambda c, t, _: c.checkpointer.timeline.channel_history(t, "n"), plain, reads=True),
    "diff": Case(lambda c, t, _: c.checkpointer.timeline.diff(at(t, "c1"), at(t)), plain, reads=True),
    "resume_point": Case(lambda c, t, _: c.checkpointer.timeline.resume_point(at(t)), plain, reads=True),
    "ancestors": Case(lambda c, t, _: c.checkpointer.timeline.ancestors(at(t)), plain, reads=True),
    "children": Case(lambda c, t, _: c.checkpointer.timeline.children(at(t, "c1")), plain, reads=True),
    "heads": Case(lambda c, t, _: c.checkpointer.timeline.heads(t), plain, reads=True),
    "common_ancestor": Case(
        lambda c, t, _: c.checkpointer.timeline.common_ancestor(at(t, "c1"), at(t)), plain, reads=True
    ),
    "tree": Case(lambda c, t, _: c.checkpointer.timeline.tree(t), plain, reads=True),
    "fork": Case(lambda c, t, _: c.checkpointer.timeline.fork(at(t, "c1"), checkpoint_id="f"), plain),
    "fork elsewhere": Case(lambda c, t, _: c.checkpointer.timeline.fork(at(t), f"{t}-b", checkpoint_id="f"), plain),
    "update_state": Case(lambda c, t, _: c.checkpointer.timeline.update_state(at(t), {"n": 7}), plain),
    "bulk_update_state": Case(
        lambda c, t, _: c.checkpointer.timeline.bulk_update_state(
            at(t), [StateUpdate(update={"n": 7}), StateUpdate(update={"n": 8})]
        ),
        plain,
    ),
    "copy_thread": Case(lambda c, t, _: c.checkpointer.timeline.copy_thread(t, f"{t}-b"), plain),
}
RETENTION: dict[str, Case] = {
    "prune": Case(lambda c, t, _: c.checkpointer.retention.prune(t, keep_last=1), plain),
    "set_expiry": Case(lambda c, t, _: c.checkpointer.retention.set_expiry(t, ttl=timedelta(days=9)), plain),
    "sweep": Case(
        lambda c, t, _: c.checkpointer.retention.sweep(),
        lambda outside, t: (plain(outside, t), outside.retention.set_expiry(t, at=LONG_AGO)),
    ),
    "verify": Case(lambda c, t, _: c.checkpointer.retention.verify(t), plain, reads=True),
    "compact": Case(
        lambda c, t, _: c.checkpointer.retention.compact(t),
        lambda outside, t: (
            outside.put(made(t, "c1", 40)),
            outside.put(
                Checkpoint(thread_id=t, checkpoint_id="c2", state={"items": made(t, "c1", 40).state["items"][:9]})
            ),
            outside.delete_checkpoints(t, ["c1"]),
        ),
    ),
    "export_thread": Case(lambda c, t, _: c.checkpointer.retention.export_thread(t, io.BytesIO()), plain, reads=True),
    "import_thread": Case(
        lambda c, t, _: c.checkpointer.retention.import_thread(io.BytesIO(exported(c.outside, t)), thread_id=f"{t}-b"),
        plain,
    ),
}
RUNS: dict[str, Case] = {
    "get": Case(lambda c, t, _: c.checkpointer.runs.get(f"run {t}"), of_a_run, reads=True),
    "list": Case(lambda c, t, _: c.checkpointer.runs.list(thread_id=t), of_a_run, reads=True),
    "list_resumable": Case(lambda c, t, _: c.checkpointer.runs.list_resumable(thread_id=t), of_a_run, reads=True),
    "finish": Case(lambda c, t, _: c.checkpointer.runs.finish(f"run {t}", "completed"), of_a_run),
    "request_suspend": Case(lambda c, t, _: c.checkpointer.runs.request_suspend(f"run {t}", "a pause"), of_a_run),
    "usage": Case(lambda c, t, _: c.checkpointer.runs.usage(t), of_a_run, reads=True),
    "boundaries": Case(lambda c, t, _: c.checkpointer.runs.boundaries(f"run {t}"), of_a_run, reads=True),
    "get_checkpoint": Case(lambda c, t, _: c.checkpointer.runs.get_checkpoint(at(t, "ck1")), of_a_run, reads=True),
    "resume_snapshot": Case(lambda c, t, _: c.checkpointer.runs.resume_snapshot(f"run {t}"), of_a_run, reads=True),
    "acquire_lease": Case(lambda c, t, _: c.checkpointer.runs.acquire_lease(t, "me"), plain),
    "renew_lease": Case(lambda c, t, _: c.checkpointer.runs.renew_lease(t, token(c, t)), leased, reads=True),
    "release_lease": Case(lambda c, t, _: c.checkpointer.runs.release_lease(t, token(c, t)), leased),
    "get_lease": Case(lambda c, t, _: c.checkpointer.runs.get_lease(t), leased, reads=True),
}
LEASE: dict[str, Case] = {"entered and left": Case(lambda c, t, _: held(c, t), plain, reads=True)}
RECORDER: dict[str, Case] = {
    "__aenter__": Case(lambda c, t, r: r.__aenter__(), plain, not_entered, reads=True),
    "__aexit__": Case(lambda c, t, r: r.__aexit__(None, None, None), plain, not_left, repeats=True),
    "record": Case(lambda c, t, r: r.record({"n": 1}, checkpoint_id="r1"), plain, recorder("sync"), repeats=True),
    "record, urgent": Case(
        lambda c, t, r: r.record({"n": 1}, checkpoint_id="r1", terminal=True), plain, recorder("exit", 0), repeats=True
    ),
    "put_writes": Case(lambda c, t, r: r.put_writes([write(0), write(1)]), plain, recorder("sync", 0)),
    "drain": Case(lambda c, t, r: r.drain(), plain, recorder("sync"), reads=True),
}
EXECUTOR: dict[str, Case] = {
    "checkpoint": Case(
        lambda c, t, _: AsyncSqlAgentExecutor(c.checkpointer).checkpoint(
            boundary(2, "ck2", run_id=f"run {t}", thread_id=t)
        ),
        of_a_run,
    ),
}
SAVER: dict[str, Case] = {
    "setup": Case(lambda c, t, _: c.saver.setup(), reads=True),
    "aget_tuple": Case(lambda c, t, _: c.saver.aget_tuple(config_for(t)), of_langgraph, reads=True),
    "aget": Case(lambda c, t, _: c.saver.aget(config_for(t)), of_langgraph, reads=True),
    "alist": Case(lambda c, t, _: gathered(c.saver.alist(config_for(t))), of_langgraph, reads=True),
    "alist half way": Case(lambda c, t, _: left_half_way(c.saver.alist(config_for(t))), of_langgraph, reads=True),
    "aput": Case(
        lambda c, t, _: c.saver.aput(
            config_for(t, "c2"), graph_checkpoint("c3", 3), {"source": "loop", "step": 3}, {"n": 3}
        ),
        of_langgraph,
    ),
    "aput_writes": Case(lambda c, t, _: c.saver.aput_writes(config_for(t, "c2"), [("n", 2)], "later"), of_langgraph),
    "adelete_thread": Case(lambda c, t, _: c.saver.adelete_thread(t), of_langgraph),
    "adelete_for_runs": Case(lambda c, t, _: c.saver.adelete_for_runs([f"plain {t}"]), plain),
    "acopy_thread": Case(lambda c, t, _: c.saver.acopy_thread(t, f"{t}-b"), of_langgraph),
    "aprune": Case(lambda c, t, _: c.saver.aprune([t]), of_langgraph),
    "aget_delta_channel_history": Case(
        lambda c, t, _: c.saver.aget_delta_channel_history(config=config_for(t), channels=["n"]),
        of_langgraph,
        reads=True,
    ),
}
CASES = {
    f"{where}.{name}": case
    for where, cases in {
        "checkpointer": CHECKPOINTER,
        "timeline": TIMELINE,
        "retention": RETENTION,
        "runs": RUNS,
        "lease": LEASE,
        "recorder": RECORDER,
        "executor": EXECUTOR,
        "saver": SAVER,
    }.items()
    for name, case in cases.items()
}
# aclose and open have tests of their own.
ELSEWHERE = {"checkpointer.aclose"}


def awaited(face: type) -> set[str]:
    return {
        name
        for name in dir(face)
        if not name.startswith("_")
        and (inspect.iscoroutinefunction(getattr(face, name)) or inspect.isasyncgenfunction(getattr(face, name)))
    }


def test_every_awaited_call_is_cancelled() -> None:
    faces = {
        "checkpointer": AsyncCheckpointer,
        "timeline": AsyncTimeline,
        "retention": AsyncRetention,
        "runs": AsyncRuns,
        "lease": AsyncHeldLease,
        "recorder": AsyncRecorder,
        "executor": AsyncSqlAgentExecutor,
        "saver": AsyncClewSaver,
    }
    asked = {f"{where}.{name}" for where, face in faces.items() for name in awaited(face)}
    assert asked - CASES.keys() - ELSEWHERE == set()


DATABASES = ("sqlite", "aiosqlite", "postgres")
# aiosqlite's connections wait as asyncpg's do, and are never cut off: one of each kind of call is enough there.
ON_AIOSQLITE = ("checkpointer.put", "checkpointer.get", "timeline.fork", "retention.sweep", "lease.entered and left")
ON_AIOSQLITE += ("recorder.record", "executor.checkpoint", "saver.aput", "saver.alist half way")


@pytest.fixture
def postgres_url(shared_postgres_url: str) -> str:
    return shared_postgres_url


@pytest.fixture(params=DATABASES)
def url(request: pytest.FixtureRequest) -> str:
    """A migrated database, over each of the three ways of waiting."""
    found = str(request.getfixturevalue(f"{request.param.removeprefix('aio')}_url"))
    return found.replace("sqlite:", "sqlite+aiosqlite:") if "aio" in request.param else found


@pytest.fixture
async def complaints() -> AsyncIterator[list[Any]]:
    """What the event loop had to complain about; to be empty at the end."""
    found: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: found.append(context))
    yield found
    gc.collect(1)  # what is older is collected before the session ends: all of it takes a tenth of a second
    await asyncio.sleep(0)
    assert found == []


@pytest.fixture
def outside(url: str) -> Iterator[Checkpointer[Any]]:
    """Another application on the same database, with little patience."""
    with Checkpointer.open(url.replace("+aiosqlite", ""), timeout_s=3) as found:
        hasty(found._driver.database.engine)
        yield found


def hasty(engine: Engine) -> None:
    """No power cut is tried here: let SQLite's new connections not wait for the disk."""
    if engine.dialect.name == "sqlite":
        engine.dispose()
        event.listen(engine, "connect", lambda driver, _: driver.execute("PRAGMA synchronous = OFF"))


@pytest.fixture
async def around(url: str, outside: Checkpointer[Any], complaints: list[Any]) -> AsyncIterator[Around]:
    async with opened(url) as checkpointer:
        yield Around(checkpointer, outside, AsyncClewSaver(checkpointer), url)


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Any]:
    checkpointer: Any = AsyncCheckpointer.open(url, pool_size=2, max_overflow=0, timeout_s=10)
    engine = checkpointer._driver.database.engine
    hasty(getattr(engine, "sync_engine", engine))
    if url.startswith("sqlite:"):
        watch_statements(engine, asyncio.get_running_loop())
    async with checkpointer:
        yield checkpointer


@contextmanager
def counting(url: str, condition: str) -> Iterator[Callable[[], int]]:
    """Counts the server's sessions in this database of which the condition holds; SQLite has none."""
    if url.startswith("sqlite"):
        yield lambda: 0
        return
    statement = f"SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND {condition}"
    with psycopg.connect(url, autocommit=True) as connection:

        def count() -> int:
            row = connection.execute(statement.encode()).fetchone()
            assert row is not None
            return int(row[0])

        yield count


@pytest.fixture
def watcher(url: str) -> Iterator[Callable[[], int]]:
    """How many sessions of the server are inside a transaction and wait for their client."""
    with counting(url, "state LIKE 'idle in transaction%'") as count:
        yield count


def told(thing: Any, thread: str) -> str:
    """The thing in words, without what differs from one thread to the next."""
    text = repr(thing).replace(thread, "THREAD")
    text = re.sub(r" object at 0x\w+", "", text)
    text = re.sub(r"datetime\.datetime\([^)]*\)|'\d{4}-\d\d-\d\dT[^']*'", "WHEN", text)
    return re.sub(r"[0-9A-HJKMNP-TV-Z]{26}|token=\d+|\b\d{7,}\b", "NEW", text)


# What tells one stored thread from another: keys, instants, random ids of logs, and what is compressed or hashed.
UNLIKE = {
    "thread_key",
    "created_at",
    "updated_at",
    "started_at",
    "finished_at",
    "activity",
    "lease_until",
    "lease_token",
}
UNLIKE |= {"expires_at", "log", "spans", "manifest", "digest", "terms", "details", "suspend_requested_at"}


@cache
def rows_of_threads() -> list[Any]:
    threads = tables_for(None).threads
    keys = select(threads.c.thread_key).where(threads.c.thread_id.in_(bindparam("names", expanding=True)))
    return [
        select(*[column for column in table.c if column.name not in UNLIKE]).where(table.c.thread_key.in_(keys))
        for table in threads.metadata.sorted_tables
    ]


def look(outside: Checkpointer[Any], thread: str) -> str:
    """All rows of a thread, and of the one that is copied to."""
    names = {"names": [thread, f"{thread}-b"]}
    with outside._driver.database.engine.connect() as connection:
        found = [sorted(map(str, connection.execute(each, names))) for each in rows_of_threads()]
    return told(found, thread)


def result(outcome: Outcome, thread: str) -> str:
    if outcome.error is not None:
        return type(outcome.error).__name__
    return told(outcome.value, thread)


async def settled(checkpointer: Any, tasks: set[asyncio.Task[Any]]) -> None:
    """A call that was given up while it waited for its connection may still be on its way to giving it back, and what
    it leaves to be tidied up may have a task of its own. ``tasks`` are those that were there before."""
    database = checkpointer._driver.database
    for _ in range(500):
        if not database._running and database.pool.checkedout() == 0 and asyncio.all_tasks() <= tasks:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"{database.pool.checkedout()} connections are not given back")


@pytest.mark.parametrize(
    ("url", "name"),
    [(url, name) for url in DATABASES for name in (ON_AIOSQLITE if url == "aiosqlite" else CASES)],
    indirect=["url"],
)
async def test_a_call_cancelled_at_any_moment_happened_wholly_or_not_at_all(
    name: str, around: Around, watcher: Callable[[], int], complaints: list[Any]
) -> None:
    case, outside = CASES[name], around.outside

    prepared = set[str]()

    @asynccontextmanager
    async def ready(thread: str) -> AsyncIterator[Callable[[], Awaitable[Any]]]:
        if case.prepare is not None and thread not in prepared:
            case.prepare(outside, thread)
        prepared.add(thread)
        async with case.within(around, thread) as within:
            yield lambda: case.call(around, thread, within)

    # What the call does, and what it does where it is made again.
    async with ready("thread-0") as call:
        looks, results = [look(outside, "thread-0")], []
        for _ in range(2):
            results.append(result(await observed(call), "thread-0"))
            looks.append(look(outside, "thread-0"))
    assert (looks[0] == looks[1]) == case.reads
    for moment in range(1, 300):
        thread = "thread-0" if case.reads else f"thread-{moment}"
        async with ready(thread) as call:
            tasks = asyncio.all_tasks()
            outcome = await observed(call, moment, twice=moment % 2 == 0)
            if not outcome.delivered:
                assert result(outcome, thread) in results
                break
            assert isinstance(outcome.error, asyncio.CancelledError), outcome.places
            await settled(around.checkpointer, tasks)
            assert watcher() == 0
            done = looks.index(look(outside, thread))
            assert done < 2, outcome.places
            again = result(await observed(call), thread)
            assert again in ((results[0], results[done]) if case.repeats else (results[done],))
            assert look(outside, thread) == looks[1 if case.repeats else done + 1]
    else:
        raise AssertionError("the call never came to its end")
    assert outside.retention.verify().problems == ()
    assert Probe(around.url.replace("+aiosqlite", "")).problems() == []


# Opening and closing


@pytest.fixture
def sessions(url: str) -> Iterator[Callable[[], int]]:
    """How many sessions the server has in this database beside the one that counts; SQLite has none."""
    with counting(url, "backend_type = 'client backend' AND pid <> pg_backend_pid()") as count:
        yield count


async def none_left(sessions: Callable[[], int], tasks: set[asyncio.Task[Any]]) -> None:
    for _ in range(500):
        if asyncio.all_tasks() <= tasks and sessions() == 0:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"{sessions()} sessions are left")


async def test_opening_that_is_cancelled_leaves_nothing_open(
    url: str, sessions: Callable[[], int], complaints: list[Any]
) -> None:
    async def entered() -> None:
        async with AsyncCheckpointer.open(url):
            pass

    tasks = asyncio.all_tasks()
    for moment in range(1, 100):
        outcome = await observed(entered, moment)
        await none_left(sessions, tasks)
        if not outcome.delivered:
            break
        assert isinstance(outcome.error, asyncio.CancelledError)
    assert outcome.error is None
    assert moment > 2


@pytest.mark.parametrize("twice", [False, True], ids=["once", "twice"])
async def test_closing_that_is_cancelled_goes_on_and_can_be_waited_for(
    url: str, sessions: Callable[[], int], complaints: list[Any], twice: bool
) -> None:
    tasks = asyncio.all_tasks()
    for moment in range(1, 100):
        checkpointer: Any = AsyncCheckpointer.open(url)
        await checkpointer.get_thread("t")
        putting = asyncio.create_task(checkpointer.put(made("t", f"c{moment}", 1)))
        await asyncio.sleep(0)
        outcome = await observed(checkpointer.aclose, moment, twice=twice)
        await checkpointer.aclose()
        await putting
        await none_left(sessions, tasks)
        if not outcome.delivered:
            break
        assert isinstance(outcome.error, asyncio.CancelledError)
    assert outcome.error is None


async def test_whoever_closes_second_waits_for_the_first(url: str, sessions: Callable[[], int]) -> None:
    checkpointer: Any = AsyncCheckpointer.open(url)
    await checkpointer.get_thread("t")
    putting = asyncio.create_task(checkpointer.put(made("t", "c1", 1)))
    await asyncio.sleep(0)
    first = asyncio.create_task(checkpointer.aclose())
    await asyncio.sleep(0)
    await checkpointer.aclose()
    assert putting.done()
    await first
    assert sessions() == 0


# In a host's transaction


@pytest.mark.parametrize("name", ["put", "put_writes", "get", "delete_thread", "delete_checkpoints"])
async def test_a_bound_call_that_is_cancelled_leaves_the_hosts_connection_to_be_rolled_back(
    url: str, outside: Checkpointer[Any], watcher: Callable[[], int], name: str
) -> None:
    engine = host_engine(url.replace("+aiosqlite", ""), "async", pool_size=1, max_overflow=0)
    plain(outside, "t")
    before = look(outside, "t")
    host: Any = AsyncCheckpointer(engine)
    await host.ping()
    for moment in range(1, 100):
        async with AsyncSession(engine) as session:
            await session.connection()
            around = Around(host.bind(session), outside, AsyncClewSaver(host), url)
            outcome = await observed(partial(CHECKPOINTER[name].call, around, "t", None), moment)
            if outcome.delivered:
                assert isinstance(outcome.error, asyncio.CancelledError)
        assert engine.pool.checkedout() == 0
        assert watcher() == 0
        assert outside.delete_checkpoints("t", ["none"]) == 0
        assert look(outside, "t") == before
        if not outcome.delivered:
            break
    async with AsyncSession(engine) as session:
        assert await host.bind(session).put(made("t", "c3", 3, "c2")) == at("t", "c3")
        await session.commit()
    assert (await host.get(at("t", "c3"))).state == made("t", "c3", 3).state
    await engine.dispose()


# What goes on in the background


async def test_a_recorder_whose_writer_was_cancelled_says_so_and_waits_for_nothing(url: str) -> None:
    """As at the end of ``asyncio.run``, which cancels all tasks at once: nobody would be left to wake it up."""
    async with opened(url) as checkpointer:
        recorder = checkpointer.recorder("t", durability="async")
        await recorder.__aenter__()
        for number in range(3):
            await recorder.record({"n": number})
        await recorder.drain()
        await recorder.record({"n": 3})
        recorder._writer.cancel()
        with pytest.raises(clew.StorageUnavailable, match="task that writes was cancelled"):
            await asyncio.wait_for(recorder.drain(), 5)
        with pytest.raises(clew.StorageUnavailable):
            await recorder.record({"n": 4})
        with pytest.raises(clew.StorageUnavailable):
            await asyncio.wait_for(recorder.__aexit__(None, None, None), 5)
        assert [item.step for item in (await checkpointer.list("t")).items] in ([2, 1, 0], [3, 2, 1, 0])


async def test_leaving_a_recorder_that_is_cancelled_stores_a_beginning_of_what_was_queued(
    url: str, complaints: list[Any]
) -> None:
    async with opened(url) as checkpointer:
        for moment in range(1, 100):
            thread = f"t{moment}"
            recorder = checkpointer.recorder(thread, durability="async")
            await recorder.__aenter__()
            for number in range(3):
                await recorder.record({"n": number})
            tasks = asyncio.all_tasks() - {recorder._writer}
            outcome = await observed(partial(recorder.__aexit__, None, None, None), moment)
            await settled(checkpointer, tasks)
            steps = [item.step for item in (await checkpointer.list(thread, newest_first=False)).items]
            assert steps == [0, 1, 2][: len(steps)]
            if not outcome.delivered:
                break
            assert isinstance(outcome.error, asyncio.CancelledError)
        assert steps == [0, 1, 2]
