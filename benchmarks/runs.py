"""Subject: durable runs. The recorder in the background against one that waits, an executor's commit against a put."""

from __future__ import annotations

from contextlib import AsyncExitStack
from itertools import count
from typing import Any, Final

import clew
from benchmarks.databases import Databases
from benchmarks.messages import Messages
from benchmarks.report import Report
from benchmarks.scale import Scale
from benchmarks.sides import checkpointer
from benchmarks.timing import interleaved, settled

__all__ = ["run"]

_BACKGROUND: Final = {"sqlite": 3.0, "postgres": 2.0}
_A_RUN: Final = 50


async def run(report: Report, databases: Databases, scale: Scale) -> None:
    """Measure on each database and face."""
    for kind, face in scale.places:
        await _recorder(report, databases, scale, kind, face)
        await _executor(report, databases, scale, kind, face)


async def _recorder(report: Report, databases: Databases, scale: Scale, kind: str, face: str) -> None:
    messages, numbers = Messages().take(_A_RUN), count()
    runs = max(1, scale.recorded // _A_RUN)
    async with AsyncExitStack() as stack:
        url = stack.enter_context(databases.fresh(kind))
        opened = await stack.enter_async_context(checkpointer(url, face))

        async def record(durability: str) -> None:
            for _ in range(runs):
                await _record(opened, face, f"{durability}-{next(numbers)}", durability, messages)

        waiting, background = await interleaved(3, lambda: record("sync"), lambda: record("async"))
    puts = runs * _A_RUN
    report.figure(
        "recorder, async durability over sync",
        f"{kind}, {face}",
        waiting.median / background.median,
        "× the throughput",
        ours=f"{puts / waiting.median:,.0f} → {puts / background.median:,.0f} puts/s",
        at_least=_BACKGROUND[kind],
    )


async def _record(opened: Any, face: str, thread: str, durability: str, messages: list[Any]) -> None:
    recorder = opened.recorder(thread, run_id=thread, durability=durability)
    if face == "sync":
        with recorder:
            for step in range(len(messages)):
                recorder.record({"messages": messages[: step + 1]})
    else:
        async with recorder:
            for step in range(len(messages)):
                await recorder.record({"messages": messages[: step + 1]})


async def _executor(report: Report, databases: Databases, scale: Scale, kind: str, face: str) -> None:
    messages, numbers = Messages().take(_A_RUN), [count(), count()]
    async with AsyncExitStack() as stack:
        url = stack.enter_context(databases.fresh(kind))
        opened = await stack.enter_async_context(checkpointer(url, face))
        executor = clew.AsyncSqlAgentExecutor(opened) if face == "async" else clew.SqlAgentExecutor(opened)

        async def commit() -> None:
            state = _state(messages, next(numbers[0]))
            await settled(executor.checkpoint(clew.AgentCheckpoint.new(clew.AgentExecutionNode.MODEL_RESPONSE, state)))

        async def put() -> None:
            number = next(numbers[1])
            state = _state(messages, number)
            fields = {name: getattr(state, name) for name in type(state).model_fields}
            run_id = fields.pop("run_id")
            values = {**fields, "usage": state.usage.model_dump(), "status": state.status.value}
            await settled(
                opened.put(clew.Checkpoint(thread_id="put", run_id=run_id, state=values, metadata={"step": number}))
            )

        committed, plain = await interleaved(scale.rounds * 4, commit, put, warm=10)
    report.figure(
        "executor's commit over a plain put of its state",
        f"{kind}, {face}",
        committed.median / plain.median,
        "× the time",
        ours=f"{committed}; put {plain}",
        at_most=1.7,
    )


def _state(messages: list[Any], number: int) -> clew.AgentRunState:
    usage = clew.Usage(requests=number, input_tokens=number, output_tokens=number, total_tokens=2 * number)
    return clew.AgentRunState(
        run_id="run",
        conversation_id="conversation",
        message_history=tuple(messages[: 1 + number % len(messages)]),
        usage=usage,
        run_step=number,
        status=clew.RunStatus.RUNNING,
    )
