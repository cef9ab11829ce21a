"""Several processes on one database: nothing is lost, nothing is half there, and a killed one leaves no trace."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from typing import Any

import clew
from clew import Checkpoint, CheckpointConfig

from probe import Probe

WRITER = """
import sys, time, clew

url, name, seconds, shared = sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4]
with clew.Checkpointer.open(url) as checkpointer:
    own, deadline, step = [], time.monotonic() + seconds, 0
    print("ready", flush=True)
    while time.monotonic() < deadline or step < 10:
        own = [*own, f"{name}-{step}-" + "x" * 300]
        checkpointer.put(clew.Checkpoint(thread_id=name, checkpoint_id=f"c{step}", state={"items": own},
            pending_writes=[clew.PendingWrite(node="n", payload=step)]))
        checkpointer.put(clew.Checkpoint(thread_id=shared, checkpoint_id=f"{name}-{step}",
            state={"items": [f"{name}-{step}"] * 3}))
        print(step, flush=True)
        step += 1
"""


async def start(url: str, name: str, seconds: float) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", WRITER, url, name, str(seconds), "shared",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip


async def steps_of(process: asyncio.subprocess.Process) -> tuple[int, str]:
    """(how many steps the process has said were done, what it complained about)."""
    output, errors = await process.communicate()
    return len(output.decode().splitlines()) - 1, errors.decode()


async def check(reader: Any, name: str, steps: int) -> None:
    own = [f"{name}-{step}-" + "x" * 300 for step in range(steps)]
    for step in {0, steps // 2, steps - 1}:
        found = await reader.get(CheckpointConfig(thread_id=name, checkpoint_id=f"c{step}"))
        assert found.state == {"items": own[: step + 1]}
        assert [write.payload for write in found.pending_writes] == [step]
        found = await reader.get(CheckpointConfig(thread_id="shared", checkpoint_id=f"{name}-{step}"))
        assert found.state == {"items": [f"{name}-{step}"] * 3}


async def test_four_processes_write_to_one_database_and_nothing_is_lost(database_url: str) -> None:
    names = [f"writer-{number}" for number in range(4)]
    processes = [await start(database_url, name, 2.0) for name in names]
    results = dict(zip(names, await asyncio.gather(*map(steps_of, processes)), strict=True))
    assert {name: errors for name, (_, errors) in results.items()} == dict.fromkeys(names, "")
    assert [process.returncode for process in processes] == [0, 0, 0, 0]
    async with clew.AsyncCheckpointer.open(database_url) as reader:
        for name, (steps, _) in results.items():
            assert steps >= 10
            assert (await reader.get_thread(name)).checkpoint_count == steps
            await check(reader, name, steps)
        assert (await reader.get_thread("shared")).checkpoint_count == sum(steps for steps, _ in results.values())
    assert Probe(database_url).problems() == []


async def test_a_killed_writer_loses_nothing_that_was_acknowledged_and_leaves_nothing_half_done(
    database_url: str,
) -> None:
    survivor = await start(database_url, "survivor", 2.5)
    for round_number in range(3):
        victim = await start(database_url, f"victim-{round_number}", 60)
        assert victim.stdout is not None
        for _ in range(12):
            await victim.stdout.readline()
        victim.send_signal(signal.SIGKILL)
        rest = await victim.stdout.read()
        await victim.wait()
        assert victim.returncode == -signal.SIGKILL
        done = 11 + rest.count(b"\n")
        async with clew.AsyncCheckpointer.open(database_url, timeout_s=20) as reader:
            thread = await reader.get_thread(f"victim-{round_number}")
            assert done <= thread.checkpoint_count <= done + 1
            await check(reader, f"victim-{round_number}", done)
            # Another process goes on where it was.
            config = CheckpointConfig.latest(f"victim-{round_number}")
            last = await reader.get(config)
            state = {"items": [*last.state["items"], "more" * 100]}
            await reader.put(
                Checkpoint(thread_id=config.thread_id, parent_checkpoint_id=last.checkpoint_id, state=state)
            )
            assert (await reader.get(config)).state == state
    steps, errors = await steps_of(survivor)
    assert errors == ""
    async with clew.AsyncCheckpointer.open(database_url) as reader:
        await check(reader, "survivor", steps)
    assert Probe(database_url).problems() == []


async def test_what_one_process_has_put_the_next_finds(opener: Any) -> None:
    async with opener() as first:
        await first.put(Checkpoint(thread_id="t", checkpoint_id="c1", state={"n": [1]}))
    async with opener() as second:
        assert (await second.get(CheckpointConfig.latest("t"))).state == {"n": [1]}


async def test_readers_are_not_held_up_by_a_writer(opener: Any) -> None:
    async with opener() as writer, opener() as reader:
        await writer.put(Checkpoint(thread_id="t", checkpoint_id="c0", state={"items": ["x" * 300]}))
        stop = asyncio.Event()

        async def write() -> int:
            step = 0
            while not stop.is_set():
                step += 1
                await writer.put(
                    Checkpoint(thread_id="t", checkpoint_id=f"c{step}", state={"items": ["x" * 300] * step})
                )
            return step

        writing = asyncio.create_task(write())
        try:
            for _ in range(40):
                found = await reader.get(CheckpointConfig.latest("t"))
                count = int(found.checkpoint_id[1:]) or 1
                assert found.state == {"items": ["x" * 300] * count}
        finally:
            stop.set()
            with contextlib.suppress(asyncio.CancelledError):
                assert await writing > 0
