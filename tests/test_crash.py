"""Workers, servers, connections that die: what was acknowledged is there, the rest is there wholly or not at all.

The processes are in ``crash_worker``.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine, text

from clew import (
    Checkpoint,
    CheckpointConfig,
    Checkpointer,
    ClewError,
    PendingWrite,
    SqlAgentExecutor,
    StorageUnavailable,
)

import postgres_server
from agents import boundary
from crash_worker import messages, operations
from probe import Probe

WORKER = Path(__file__).with_name("crash_worker.py")


def worker(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, WORKER, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def facts(process: subprocess.Popen[str], timeout_s: float = 120) -> list[Any]:
    output, _ = process.communicate(timeout=timeout_s)
    assert process.returncode == 0
    return [json.loads(line) for line in output.splitlines()]


def config(thread_id: str, checkpoint_id: str, *namespace: str) -> CheckpointConfig:
    return CheckpointConfig(thread_id=thread_id, checkpoint_id=checkpoint_id, namespace=namespace)


# A worker that is killed


def is_there(checkpointer: Any, thread_id: str, name: str) -> bool:
    """Whether the operation was carried out; fails where it was in part."""
    if name.startswith("ck"):
        step = int(name[2:])
        stored = checkpointer.get(config(thread_id, name))
        passed = {item.checkpoint_id: item.evidence for item in checkpointer.runs.boundaries(thread_id).items}
        run = checkpointer.runs.get(thread_id)
        assert (stored is not None) == (name in passed)
        assert (stored is not None) == (run is not None and run.step >= step)
        if stored is not None:
            expected = boundary(step, name, run_id=thread_id, thread_id=thread_id)
            assert checkpointer.runs.get_checkpoint(config(thread_id, name)) == expected
        return stored is not None
    if name == "ledger":
        late = [write for write in checkpointer.get_writes(config(thread_id, "p2", "plain")) if write.task_id[0] == "w"]
        assert len(late) in (0, 3)
        return bool(late)
    if name == "batch":
        stored = [checkpointer.get(config(thread_id, f"b{number}", "batch")) for number in range(4)]
        writes = checkpointer.get_writes(config(thread_id, "b2", "batch"))
        present = [checkpoint is not None for checkpoint in stored] + [bool(writes)]
        assert len(set(present)) == 1
        for number, checkpoint in enumerate(stored):
            assert checkpoint is None or checkpoint.state == messages(thread_id, number)
        return present[0]
    stored = checkpointer.get_tuple(config(thread_id, name, "plain"))
    if stored is None:
        return False
    number = 19 + int(name[1:])
    assert stored.checkpoint.state == messages(thread_id, number)
    assert [write.payload for write in stored.checkpoint.pending_writes] == [number]
    return True


# In SQLite a statement has been answered when the next one begins, and that is the first case.
@pytest.mark.invariant(42)
@pytest.mark.parametrize(("database", "when"), [("sqlite", "before"), ("postgres", "before"), ("postgres", "after")])
def test_a_worker_killed_at_any_statement_leaves_all_it_acknowledged_and_nothing_by_halves(
    request: pytest.FixtureRequest, tmp_path: Path, database: str, when: str
) -> None:
    database_url = request.getfixturevalue(f"{database}_url")
    acknowledged = tmp_path / "acknowledged"
    (told,) = facts(worker("kill_at_every_statement", database_url, str(acknowledged), when))
    assert told["status"] == 0
    assert told["statements"] >= 20
    lines = [json.loads(line) for line in acknowledged.read_text().splitlines()]
    assert Probe(database_url).problems() == []
    half = 0
    with Checkpointer.open(database_url) as checkpointer:
        for fatal in range(1, told["statements"] + 1):
            thread_id = f"t{fatal}"
            done = {name for number, name in lines if number == fatal}
            todo = operations(checkpointer, thread_id)
            found = [is_there(checkpointer, thread_id, name) for name, _ in todo]
            count = found.index(False) if False in found else len(found)
            assert not any(found[count:])
            assert done <= {name for name, _ in todo[:count]}
            assert count <= len(done) + 1  # the one that was underway may be there
            half += count - len(done)
            for _ in range(2):
                for _, operation in todo:
                    operation()
            assert all(is_there(checkpointer, thread_id, name) for name, _ in todo)
        assert checkpointer.retention.verify().problems == ()
    assert Probe(database_url).problems() == []
    if when == "after":
        assert half > 0


# A server that is killed


@pytest.fixture
def own_server() -> Iterator[postgres_server.Session]:
    """A server that may be stopped and started, and that keeps what it has acknowledged when it is."""
    if postgres_server.ENVIRONMENT in os.environ:
        pytest.skip("a server of somebody else's is not stopped")
    session = postgres_server.Session.begin({**postgres_server.SETTINGS, "synchronous_commit": "on", "fsync": "on"})
    try:
        yield session
    finally:
        session.end()


def restart(session: postgres_server.Session) -> None:
    server = postgres_server._Binaries.find(session.root)
    server.control("stop", "-m", "immediate")
    time.sleep(0.2)
    # It finds its options of the first start in the file that pg_ctl keeps them in.
    server.control("restart", "-l", str(server.log), "-m", "immediate")


@pytest.mark.invariant(42)
def test_a_server_stopped_at_once_five_times_under_load_loses_nothing_it_acknowledged(
    own_server: postgres_server.Session,
) -> None:
    url = own_server.url
    stop, acknowledged, told = threading.Event(), [], []
    with Checkpointer.open(url, migrate=True, timeout_s=10) as checkpointer:
        executor = SqlAgentExecutor(checkpointer)

        def repeat(operation: Any) -> None:
            while True:
                try:
                    operation()
                except ClewError as exc:
                    told.append(exc)
                    time.sleep(0.02)
                else:
                    return

        def put(name: str) -> None:
            number, parent = 0, None
            while not stop.is_set():
                checkpoint = Checkpoint(
                    thread_id=name, checkpoint_id=f"c{number}", parent_checkpoint_id=parent, state={"n": [number] * 9}
                )
                repeat(lambda: checkpointer.put(checkpoint))  # noqa: B023
                acknowledged.append((name, f"c{number}"))
                number, parent = number + 1, f"c{number}"

        def commit(name: str) -> None:
            number = 0
            while not stop.is_set():
                checkpoint = boundary(number, f"c{number}", run_id=name, thread_id=name)
                repeat(lambda: executor.checkpoint(checkpoint))  # noqa: B023
                acknowledged.append((name, f"c{number}"))
                number += 1

        threads = [
            threading.Thread(target=work, args=(f"{work.__name__}-{number}",))
            for work in (put, commit)
            for number in range(2)
        ]
        for thread in threads:
            thread.start()
        for _ in range(5):
            time.sleep(0.6)
            restart(own_server)
        time.sleep(0.6)
        stop.set()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        assert told
        causes = [exc.__cause__ if type(exc).__name__ == "AgentExecutorError" else exc for exc in told]
        assert {type(exc) for exc in causes} == {StorageUnavailable}
        assert all(str(exc).startswith("could not ") for exc in causes)
        by_thread: dict[str, list[str]] = {}
        for name, checkpoint_id in acknowledged:
            by_thread.setdefault(name, []).append(checkpoint_id)
        assert len(by_thread) == 4
        for name, ids in by_thread.items():
            lineage = [item.checkpoint_id for item in checkpointer.history(CheckpointConfig.latest(name), 10_000)]
            assert lineage[::-1] == ids
    assert Probe(url).problems() == []


# A connection that is cut


class Proxy:
    """Stands before Postgres. Told to, it passes a message on, and cuts the line in place of the answer."""

    def __init__(self, url: str) -> None:
        found = re.search(r"@([\w.]+):(\d+)/", url)
        assert found
        self._server = (found[1], int(found[2]))
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = url.replace(f"@{found[1]}:{found[2]}/", f"@127.0.0.1:{self._listening.getsockname()[1]}/")
        self.cut_after: bytes | None = None
        self.cuts = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listening.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = socket.create_connection(self._server)
                doomed = threading.Event()
                threading.Thread(target=self._forward, args=(client, server, doomed), daemon=True).start()
                threading.Thread(target=self._back, args=(server, client, doomed), daemon=True).start()

    def _forward(self, client: socket.socket, server: socket.socket, doomed: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                if self.cut_after is not None and self.cut_after in data:
                    self.cut_after = None
                    doomed.set()
                server.sendall(data)
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_WR)

    def _back(self, server: socket.socket, client: socket.socket, doomed: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(65536):
                if doomed.is_set():  # the server has done it, and nobody will hear of it
                    self.cuts += 1
                    break
                client.sendall(data)
        with contextlib.suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)
        client.close()
        server.close()


@pytest.fixture
def proxy(postgres_url: str) -> Iterator[Proxy]:
    made = Proxy(postgres_url)
    yield made
    made.close()


@pytest.mark.invariant(43)
@pytest.mark.parametrize("way", ["locked", "one statement"])
def test_a_connection_cut_after_the_commit_was_sent_is_told_and_the_retry_is_recognised(proxy: Proxy, way: str) -> None:
    with Checkpointer.open(proxy.url) as checkpointer:
        checkpointer.put(Checkpoint(thread_id="t", checkpoint_id="a", state={"n": 1}))
        if way == "locked":
            checkpointer._driver.core.memory.forget("t")
        checkpoint = Checkpoint(thread_id="t", checkpoint_id="b", parent_checkpoint_id="a", state={"n": 2})
        proxy.cut_after = b"COMMIT\0" if way == "locked" else b"clew_checkpoints"
        with pytest.raises(StorageUnavailable, match="may have been stored") as told:
            checkpointer.put(checkpoint)
        assert (told.value.maybe_stored, proxy.cuts) == (True, 1)
        assert checkpointer.get(CheckpointConfig.latest("t")) == checkpoint
        checkpointer.put(checkpoint)
        assert [item.checkpoint_id for item in checkpointer.list("t").items] == ["b", "a"]


@pytest.mark.parametrize("way", ["locked", "one statement"])
def test_an_executor_whose_commit_was_not_answered_gets_its_decision_from_the_retry(proxy: Proxy, way: str) -> None:
    with Checkpointer.open(proxy.url) as checkpointer:
        executor = SqlAgentExecutor(checkpointer)
        executor.checkpoint(boundary(0))
        if way == "locked":
            checkpointer._driver.core.memory.forget("t")
        proxy.cut_after = b"COMMIT\0" if way == "locked" else b"clew_resume_evidence"
        with pytest.raises(ClewError, match="may have been stored"):
            executor.checkpoint(boundary(1))
        assert proxy.cuts == 1
        executor.checkpoint(boundary(1))
        executor.checkpoint(boundary(2))
        assert checkpointer.runs.get("r").step == 2
        assert [item.checkpoint_id for item in checkpointer.list("t").items] == ["ck2", "ck1", "ck0"]


# Two writers


def compare_and_set(database_url: str, seconds: float) -> None:
    results = facts(worker("compare_and_set", database_url, "8", str(seconds)))
    assert len(results) == 8
    won = {checkpoint_id for result in results for checkpoint_id in result["won"]}
    assert sum(result["lost"] for result in results) > 0
    assert len(won) == sum(len(result["won"]) for result in results) > 8
    with Checkpointer.open(database_url) as checkpointer:
        stored = [item.checkpoint_id for item in checkpointer.iterate("t")]
        lineage = []
        latest = CheckpointConfig.latest("t")
        while page := checkpointer.history(latest, 10_000):
            lineage += [item.checkpoint_id for item in page]
            if page[-1].parent_checkpoint_id is None:
                break
            latest = config("t", page[-1].parent_checkpoint_id)
    assert lineage == stored
    assert set(lineage) == won


@pytest.mark.invariant(47)
def test_eight_processes_that_compare_and_set_make_one_chain(database_url: str) -> None:
    compare_and_set(database_url, 2)


@pytest.mark.soak
def test_eight_processes_that_compare_and_set_for_twenty_seconds_make_one_chain(database_url: str) -> None:
    compare_and_set(database_url, 20)


@pytest.mark.invariant(48)
def test_a_holder_that_was_stopped_while_another_took_over_is_refused(database_url: str) -> None:
    holder = worker("hold", database_url, "1.5")
    assert holder.stdin is not None
    assert holder.stdout is not None
    token = json.loads(holder.stdout.readline())["token"]
    holder.send_signal(signal.SIGSTOP)
    with Checkpointer.open(database_url) as checkpointer:
        time.sleep(1.8)
        promoted = checkpointer.runs.acquire_lease("t", "promoted", 60)
        checkpointer.put(
            Checkpoint(thread_id="t", checkpoint_id="taken", parent_checkpoint_id="mine", state=3), lease_token=promoted
        )
        holder.send_signal(signal.SIGCONT)
        holder.stdin.write("go\n")
        holder.stdin.flush()
        assert facts(holder) == [{"refused": token, "current": promoted, "lost": True}]
        assert [item.checkpoint_id for item in checkpointer.list("t").items] == ["taken", "mine"]
        lease = checkpointer.runs.get_lease("t")
        assert (lease.owner, lease.token) == ("promoted", promoted)


@contextlib.contextmanager
def holding_the_row(database_url: str) -> Iterator[None]:
    """Somebody else's transaction that holds the lock on every thread, and changes nothing."""
    engine = create_engine(database_url.replace("postgresql://", "postgresql+psycopg://", 1))
    try:
        with engine.connect() as connection:
            if database_url.startswith("sqlite"):
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            else:
                connection.execute(text("SELECT 1 FROM clew_thread_versions FOR UPDATE"))
            yield
            connection.rollback()
    finally:
        engine.dispose()


def while_held(database_url: str, seconds: float, call: Any) -> Any:
    """What ``call`` returns, having waited for the row all this time."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(outcome(call)))
    with holding_the_row(database_url):
        thread.start()
        time.sleep(seconds)
        assert results == []
    thread.join(30)
    return results[0]


def outcome(call: Any) -> Any:
    try:
        return call()
    except ClewError as exc:
        return type(exc).__name__


@pytest.mark.invariant(49)
def test_a_renewal_that_waited_longer_than_its_lease_has_not_lapsed_on_return(database_url: str) -> None:
    with Checkpointer.open(database_url) as checkpointer:
        token = checkpointer.runs.acquire_lease("t", "alice", 0.5)
        renewed = while_held(database_url, 1.6, lambda: checkpointer.runs.renew_lease("t", token, 1.2))
        assert checkpointer.runs.get_lease("t") == renewed
        checkpointer.put(Checkpoint(thread_id="t", checkpoint_id="a", state=1), lease_token=token)


@pytest.mark.invariant(49)
@pytest.mark.parametrize("way", ["locked", "one statement", "writes"])
def test_a_write_that_waited_longer_than_its_lease_is_refused(database_url: str, way: str) -> None:
    with Checkpointer.open(database_url) as checkpointer:
        token = checkpointer.runs.acquire_lease("t", "alice", 60)
        checkpointer.put(Checkpoint(thread_id="t", checkpoint_id="a", state=1), lease_token=token)
        checkpointer.runs.renew_lease("t", token, 0.6)
        if way == "locked":
            checkpointer._driver.core.memory.forget("t")
        child = Checkpoint(thread_id="t", checkpoint_id="b", parent_checkpoint_id="a", state=2)
        write = PendingWrite(node="n", payload=1)
        if way == "writes":
            late = while_held(
                database_url, 1.0, lambda: checkpointer.put_writes(config("t", "a"), [write], lease_token=token)
            )
        else:
            late = while_held(database_url, 1.0, lambda: checkpointer.put(child, lease_token=token))
        assert late == "StaleFence"
        assert [item.checkpoint_id for item in checkpointer.list("t").items] == ["a"]
        checkpointer.put(child)  # nothing that it left behind is in the way
        assert checkpointer.get(CheckpointConfig.latest("t")) == child


def test_no_older_write_comes_in_once_a_lease_is_given(postgres_url: str) -> None:
    with Checkpointer.open(postgres_url) as checkpointer:
        checkpointer.put(Checkpoint(thread_id="t", checkpoint_id="a", state=1))
        with psycopg.connect(postgres_url) as underway:  # as put_writes holds it until it commits
            underway.execute("SELECT 1 FROM clew_thread_versions FOR KEY SHARE")
            tokens: list[int] = []
            thread = threading.Thread(target=lambda: tokens.append(checkpointer.runs.acquire_lease("t", "b", 60)))
            thread.start()
            time.sleep(0.3)
            assert tokens == []
        thread.join(30)
        assert len(tokens) == 1
