"""Through a real PgBouncer in transaction mode: its pool of four serves far more connections."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from clew import AsyncCheckpointer, Checkpoint, CheckpointConfig, Checkpointer

from debian import PgBouncer, Postgres

TASKS = 32


@pytest.fixture
def url(server: Postgres, pgbouncer: PgBouncer) -> str:
    name = f"t{uuid4().hex}"
    server.database(name)
    return pgbouncer.url(name)


def state(task: int, number: int) -> dict[str, Any]:
    return {"messages": [{"task": task, "text": f"message {n}"} for n in range(number % 40)], "number": number}


@pytest.mark.parametrize(
    "seconds", [pytest.param(10, marks=pytest.mark.services), pytest.param(60, marks=pytest.mark.soak)]
)
async def test_32_tasks_over_a_pool_of_8_lose_nothing(url: str, seconds: int) -> None:
    acknowledged: dict[tuple[str, str], int] = {}
    options: dict[str, Any] = {"pgbouncer": True, "pool_size": 8, "max_overflow": 0, "timeout_s": 30}
    async with AsyncCheckpointer[Any].open(url, migrate=True, **options) as checkpointer:
        end = time.monotonic() + seconds

        async def work(task: int) -> None:
            number = 0
            while time.monotonic() < end:
                number += 1
                # Every other put goes to a thread that four tasks share.
                thread_id = f"shared-{task % 8}" if number % 2 else f"own-{task}"
                checkpoint: Any = Checkpoint(thread_id=thread_id, state=state(task, number))
                config = await checkpointer.put(checkpoint)
                acknowledged[thread_id, checkpoint.checkpoint_id] = number
                if number % 5 == 0:
                    found = await checkpointer.get(config)
                    assert found is not None
                    assert found.state == state(task, number)

        await asyncio.gather(*(work(task) for task in range(TASKS)))
    assert len(acknowledged) > 10 * seconds
    async with AsyncCheckpointer[Any].open(url, pgbouncer=True) as reader:
        for thread_id in {thread_id for thread_id, _ in acknowledged}:
            stored = {item.checkpoint_id async for item in reader.iterate(thread_id, page_size=1000)}
            assert stored == {checkpoint_id for other, checkpoint_id in acknowledged if other == thread_id}
        for (thread_id, checkpoint_id), number in list(acknowledged.items())[:: max(1, len(acknowledged) // 500)]:
            found = await reader.get(CheckpointConfig(thread_id=thread_id, checkpoint_id=checkpoint_id))
            assert found is not None
            assert found.state["number"] == number
            assert len(found.state["messages"]) == number % 40


@pytest.mark.services
def test_threads_share_the_sync_face(url: str) -> None:
    with Checkpointer[Any].open(url, migrate=True, pgbouncer=True, pool_size=8, timeout_s=30) as checkpointer:

        def work(worker: int) -> None:
            for number in range(30):
                checkpointer.put(Checkpoint(thread_id=f"t{worker % 4}", state=state(worker, number)))
                assert checkpointer.get(CheckpointConfig.latest(f"t{worker % 4}")) is not None

        with ThreadPoolExecutor(16) as workers:
            list(workers.map(work, range(16)))
        threads = checkpointer.list_threads().items
        counts = [getattr(checkpointer.get_thread(thread.thread_id), "checkpoint_count", None) for thread in threads]
        assert counts == [120] * 4


@pytest.mark.services
async def test_a_url_can_say_it_too(url: str) -> None:
    async with AsyncCheckpointer[Any].open(f"{url}?pgbouncer=true", migrate=True) as checkpointer:
        for number in range(20):
            await checkpointer.put(Checkpoint(thread_id="t", state=state(0, number)))
        assert len((await checkpointer.list("t")).items) == 20


@pytest.mark.services
async def test_a_hosts_engine_binds_through_it(url: str) -> None:
    engine = create_async_engine(
        url.replace("postgresql:", "postgresql+psycopg:"), connect_args={"prepare_threshold": None}
    )
    async with AsyncCheckpointer[Any].open(url, migrate=True, pgbouncer=True) as checkpointer:
        async with engine.begin() as connection:
            await connection.execute(text("CREATE TABLE orders (id integer)"))

        async def work(worker: int) -> None:
            for number in range(10):
                async with engine.begin() as connection:
                    await connection.execute(text("INSERT INTO orders VALUES (:id)"), {"id": number})
                    await checkpointer.bind(connection).put(
                        Checkpoint(thread_id=f"t{worker % 3}", state=state(worker, number))
                    )

        await asyncio.gather(*(work(worker) for worker in range(9)))
        async with engine.connect() as connection:
            assert await connection.scalar(text("SELECT count(*) FROM orders")) == 90
        assert [len((await checkpointer.list(f"t{number}")).items) for number in range(3)] == [30] * 3
    await engine.dispose()
