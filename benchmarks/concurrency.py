"""Subject: many at once. 16 tasks on one Postgres checkpointer, and a delete beside a put."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any
from uuid import uuid4

from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool

import clew
from benchmarks.databases import KINDS, Databases
from benchmarks.messages import Messages
from benchmarks.report import Report
from benchmarks.scale import Scale
from benchmarks.sides import ClewSide, SaverSide, Side, checkpointer
from benchmarks.timing import Timings, interleaved

__all__ = ["run"]

_POOL = 10


async def run(report: Report, databases: Databases, scale: Scale) -> None:
    """Measure the throughput, then what a delete holds up."""
    await _throughput(report, databases, scale)
    for kind in KINDS:
        await _delete_beside_put(report, databases, scale, kind)


async def _throughput(report: Report, databases: Databases, scale: Scale) -> None:
    async with AsyncExitStack() as stack:
        ours_url, theirs_url = [stack.enter_context(databases.fresh("postgres")) for _ in range(2)]
        ours = ClewSide(await stack.enter_async_context(checkpointer(ours_url, "async", pool_size=_POOL)))
        theirs = SaverSide(await stack.enter_async_context(_pooled_saver(theirs_url)), "async")
        messages = Messages().take(scale.puts_a_task)
        timings = await interleaved(3, *[partial(_all_tasks, side, scale, messages) for side in (ours, theirs)])
        puts = scale.tasks * scale.puts_a_task
        rates = [puts / each.median for each in timings]
        report.figure(
            f"{scale.tasks} tasks on {scale.tasks} threads, {scale.puts_a_task} puts each",
            "postgres, async",
            rates[0] / rates[1],
            "× the throughput",
            ours=f"{rates[0]:,.0f} puts/s",
            theirs=f"{rates[1]:,.0f} puts/s",
            at_least=2,
        )


@asynccontextmanager
async def _pooled_saver(url: str) -> AsyncIterator[Any]:
    arguments = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    async with AsyncConnectionPool(url, min_size=_POOL, max_size=_POOL, kwargs=arguments) as pool:
        saver = AsyncPostgresSaver(pool)
        await saver.setup()
        yield saver


async def _all_tasks(side: Side, scale: Scale, messages: list[Any]) -> None:
    async def one() -> None:
        thread = str(uuid4())
        for step in range(len(messages)):
            await side.put(thread, step, messages[: step + 1])

    async with asyncio.TaskGroup() as tasks:
        for _ in range(scale.tasks):
            tasks.create_task(one())


async def _delete_beside_put(report: Report, databases: Databases, scale: Scale, kind: str) -> None:
    """A process puts on and on; another deletes single checkpoints from the middle of the thread."""
    with databases.fresh(kind) as url:
        async with checkpointer(url, "async") as writer, checkpointer(url, "async") as deleter:
            thread = str(uuid4())
            state: list[Any] = []
            ids = []
            async with writer.recorder(thread, durability="async") as recorder:
                for step in range(scale.long_thread):
                    state.append(f"step {step}")
                    ids.append((await recorder.record({"log": state})).checkpoint_id)
            doomed = iter(ids[scale.long_thread // 3 :: 2])
            checkpoint = partial(clew.Checkpoint, thread_id=thread, state={"log": state})
            beside, deletes, alone = Timings(), Timings(), Timings()
            for _ in range(scale.deletes):
                # What it remembers is stale after either, so that both puts have to look the thread up again.
                await deleter.put(checkpoint())
                alone.seconds.append(await _seconds(writer.put(checkpoint())))
                deleting = asyncio.create_task(_seconds(deleter.delete_checkpoints(thread, [next(doomed)])))
                await asyncio.sleep(0)
                beside.seconds.append(await _seconds(writer.put(checkpoint())))
                deletes.seconds.append(await deleting)
            report.figure(
                f"put beside the deletion of 1 of {scale.long_thread:,}, held up at worst",
                f"{kind}, async",
                (beside.worst - alone.median) * 1000,
                "ms",
                ours=f"{beside}; alone {alone}, the deletion {deletes}",
                at_most=50,
            )


async def _seconds(awaitable: Any) -> float:
    started = time.perf_counter()
    await awaitable
    return time.perf_counter() - started
