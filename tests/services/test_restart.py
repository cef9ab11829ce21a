"""The server is stopped, or crashes, and comes back, under a checkpointer that stays open."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clew import AsyncCheckpointer, Checkpoint, CheckpointConfig, Checkpointer, StorageUnavailable

from awaiting import Awaiting
from debian import Postgres

pytestmark = [
    pytest.mark.services,
    # asyncpg cannot close a connection whose server crashed in the middle of an answer; its socket goes with it.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
]


@pytest.fixture
def mortal(folder: Path, request: pytest.FixtureRequest) -> Iterator[Postgres]:
    server = Postgres(folder / f"m{abs(hash(request.node.name)) % 10**6}")
    yield server
    server.stop()


@pytest.mark.parametrize("mode", ["fast", "immediate"])
@pytest.mark.parametrize("face", ["async", "sync"])
async def test_a_restart_loses_nothing_that_was_acknowledged(mortal: Postgres, face: str, mode: str) -> None:
    url = mortal.database("app")
    opened: Any = (
        AsyncCheckpointer[Any].open(url, migrate=True)
        if face == "async"
        else Awaiting(await asyncio.to_thread(Checkpointer[Any].open, url, migrate=True))
    )
    async with opened as checkpointer:
        acknowledged: dict[str, int] = {}
        doubtful: dict[str, int] = {}
        refused: dict[str, int] = {}
        over = asyncio.Event()

        async def work(worker: int) -> None:
            number = 0
            while not over.is_set():
                number += 1
                messages = [f"{worker}:{n}" for n in range(number % 30)]
                checkpoint: Any = Checkpoint(thread_id=f"t{worker}", state={"messages": messages, "number": number})
                try:
                    await checkpointer.put(checkpoint)
                except StorageUnavailable as exc:
                    (doubtful if exc.maybe_stored else refused)[checkpoint.checkpoint_id] = number
                    await asyncio.sleep(0.05)
                else:
                    acknowledged[checkpoint.checkpoint_id] = number

        workers = [asyncio.create_task(work(worker)) for worker in range(6)]
        await asyncio.sleep(1)
        before = len(acknowledged)
        await asyncio.to_thread(mortal.stop, mode)
        await asyncio.sleep(0.5)
        with pytest.raises(StorageUnavailable):
            await checkpointer.ping()
        await asyncio.to_thread(mortal.start)
        deadline = time.monotonic() + 30
        while len(acknowledged) < before + 200 and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        over.set()
        await asyncio.gather(*workers)
        assert len(acknowledged) >= before + 200 > 200
        assert refused  # it was down for a while, after all
        await checkpointer.ping()
        for worker in range(6):
            async for item in checkpointer.iterate(f"t{worker}", page_size=1000):
                assert item.checkpoint_id not in refused
                number = acknowledged.pop(item.checkpoint_id, None) or doubtful[item.checkpoint_id]
                found = await checkpointer.get(
                    CheckpointConfig(thread_id=f"t{worker}", checkpoint_id=item.checkpoint_id)
                )
                assert found.state == {"messages": [f"{worker}:{n}" for n in range(number % 30)], "number": number}
        assert acknowledged == {}


@pytest.mark.parametrize("mode", ["fast", "immediate"])
async def test_idle_connections_that_a_restart_closed_are_replaced_unnoticed(mortal: Postgres, mode: str) -> None:
    url = mortal.database("app")
    async with AsyncCheckpointer[Any].open(url, migrate=True) as checkpointer:
        await checkpointer.put(Checkpoint(thread_id="t", state=1))
        await asyncio.to_thread(mortal.stop, mode)
        await asyncio.to_thread(mortal.start)
        await checkpointer.put(Checkpoint(thread_id="t", state=2))
        found = await checkpointer.get(CheckpointConfig.latest("t"))
        assert found is not None
        assert found.state == 2
