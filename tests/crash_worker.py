"""What the processes of ``test_crash`` do. Run as ``python crash_worker.py COMMAND URL …``; one JSON line per fact.

Each process opens its checkpointer after it was forked, and acknowledges with one unbuffered write.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import psycopg
from sqlalchemy import event
from sqlalchemy.pool import Pool

from clew import Checkpoint, CheckpointConfig, Checkpointer, PendingWrite, SqlAgentExecutor, StaleFence, StaleHead
from clew.flows.recording import RecordingFlows
from clew.repository.batching import LedgerRows
from clew.repository.request import prepare, prepare_writes

from agents import boundary


class Counter:
    """Dies at the ``fatal``-th statement from ``arm`` on: before it is sent, or after it was answered."""

    def __init__(self, fatal: int, after: bool) -> None:
        self.fatal, self.after = fatal, after
        self.armed = False
        self.count = 0

    def before(self) -> None:
        if self.armed:
            self.count += 1
            if not self.after and self.count == self.fatal:
                os.kill(os.getpid(), signal.SIGKILL)

    def done(self) -> None:
        if self.armed and self.after and self.count == self.fatal:
            os.kill(os.getpid(), signal.SIGKILL)

    def watch(self, url: str) -> None:
        """Every statement that reaches the driver, BEGIN and COMMIT among them, whoever sends it."""
        if url.startswith("sqlite"):
            event.listen(Pool, "connect", self._traced)
        else:
            for cls, names in ((psycopg.Cursor, ("execute", "executemany")), (psycopg.Connection, ("commit",))):
                for name in names:
                    setattr(cls, name, self._counted(getattr(cls, name)))

    def _traced(self, connection: Any, _: Any) -> None:
        # Told when a statement begins. That it was answered shows when the next one begins.
        connection.set_trace_callback(lambda _: self.before())

    def _counted(self, genuine: Any) -> Any:
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.before()
            result = genuine(*args, **kwargs)
            self.done()
            return result

        return counted


def say(fact: Any, descriptor: int = 1) -> None:
    os.write(descriptor, json.dumps(fact).encode() + b"\n")


def messages(thread_id: str, count: int) -> dict[str, list[str]]:
    """A state of which every message is an element in a segment."""
    return {"messages": [f"{thread_id} {number} " * 20 for number in range(count)]}


def operations(checkpointer: Any, thread_id: str) -> list[tuple[str, Callable[[], object]]]:
    """Named operations, each of which may be repeated exactly."""
    executor = SqlAgentExecutor(checkpointer)

    def commit(step: int) -> Callable[[], object]:
        return lambda: executor.checkpoint(boundary(step, f"ck{step}", run_id=thread_id, thread_id=thread_id))

    def put(checkpoint_id: str, parent: str, number: int) -> Callable[[], object]:
        writes = (PendingWrite(node="n", payload=number, task_id="carried"),)
        checkpoint = Checkpoint(
            thread_id=thread_id,
            checkpoint_id=checkpoint_id,
            parent_checkpoint_id=parent,
            namespace=("plain",),
            state=messages(thread_id, number),
            pending_writes=writes,
            metadata={"n": number},
        )
        return lambda: checkpointer.put(checkpoint)

    def cold(operation: Callable[[], object]) -> Callable[[], object]:
        """The operation of a process that remembers nothing of the thread: on the locked way."""

        def forgetful() -> object:
            checkpointer._driver.core.memory.forget(thread_id)
            return operation()

        return forgetful

    def ledger() -> object:
        config = CheckpointConfig(thread_id=thread_id, checkpoint_id="p2", namespace=("plain",))
        return checkpointer.put_writes(config, [PendingWrite(node="n", payload=n, task_id=f"w{n}") for n in range(3)])

    def batch() -> object:
        flows = RecordingFlows(checkpointer._driver.core, thread_id, ("batch",), thread_id, None)
        codec = checkpointer._driver.core.store.codec
        requests = [
            prepare(
                codec,
                Checkpoint(
                    thread_id=thread_id,
                    checkpoint_id=f"b{number}",
                    parent_checkpoint_id=f"b{number - 1}" if number else None,
                    namespace=("batch",),
                    state=messages(thread_id, number),
                ),
            )
            for number in range(4)
        ]
        rows = prepare_writes(codec, [PendingWrite(node="n", payload=1, task_id="w")])
        return checkpointer._driver.drive(flows.write([*requests, LedgerRows('["batch"]', "b2", rows)]))

    return [
        ("ck0", commit(0)),
        ("ck1", commit(1)),
        ("ck2", commit(2)),
        ("p1", put("p1", "p0", 20)),
        ("p2", put("p2", "p1", 21)),
        ("p3", cold(put("p3", "p2", 22))),
        ("ledger", ledger),
        ("batch", batch),
        ("ck3", commit(3)),
    ]


def kill_at_every_statement(url: str, acknowledged: str, after: str) -> None:
    """For k = 1, 2, … a child that does the operations on thread ``t{k}`` and dies at the k-th statement."""
    fatal = 0
    while True:
        fatal += 1
        child = os.fork()
        if child == 0:
            descriptor = os.open(acknowledged, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            counter = Counter(fatal, after == "after")
            counter.watch(url)
            with Checkpointer.open(url) as checkpointer:
                checkpointer.put(
                    Checkpoint(thread_id=f"t{fatal}", checkpoint_id="p0", namespace=("plain",), state={"messages": []})
                )
                counter.armed = True
                for name, operation in operations(checkpointer, f"t{fatal}"):
                    operation()
                    say([fatal, name], descriptor)
                counter.armed = False
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            say({"statements": fatal - 1, "status": os.WEXITSTATUS(status)})
            return


def compare_and_set(url: str, processes: str, seconds: str) -> None:
    """Children that each put as the child of the head they read, and say what they won and how often they lost."""
    children = []
    for number in range(int(processes)):
        child = os.fork()
        if child == 0:
            _compare_and_set(url, f"w{number}", float(seconds))
            os._exit(0)
        children.append(child)
    if any(os.waitpid(child, 0)[1] for child in children):
        sys.exit(1)


def _compare_and_set(url: str, name: str, seconds: float) -> None:
    won, lost = [], 0
    with Checkpointer.open(url) as checkpointer:
        end = time.monotonic() + seconds
        while time.monotonic() < end or len(won) < 2:
            head = checkpointer.get_tuple(CheckpointConfig.latest("t"), load_state=False)
            parent = head.config.checkpoint_id if head else None
            checkpoint = Checkpoint(thread_id="t", parent_checkpoint_id=parent, state={"by": name})
            try:
                checkpointer.put(checkpoint, expected_head=parent)
            except StaleHead as told:
                lost += (told.expected, told.actual == parent) == (parent, False)
            else:
                won.append(checkpoint.checkpoint_id)
    say({"won": won, "lost": lost})


def hold(url: str, ttl_s: str) -> None:
    """Holds the lease and, told so by a line, puts with its token."""
    with Checkpointer.open(url) as checkpointer, checkpointer.runs.lease("t", "stopped", float(ttl_s)) as lease:
        checkpointer.put(Checkpoint(thread_id="t", checkpoint_id="mine", state=1), lease_token=lease.token)
        say({"token": lease.token})
        sys.stdin.readline()
        late = Checkpoint(thread_id="t", checkpoint_id="late", parent_checkpoint_id="mine", state=2)
        try:
            checkpointer.put(late, lease_token=lease.token)
        except StaleFence as refused:
            say({"refused": refused.token, "current": refused.current, "lost": lease.lost})
        else:
            say({"stored": "late"})


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
