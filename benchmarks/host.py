"""Subject: clew inside an application. A put in the host's transaction, and what ``import clew`` takes."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import AsyncExitStack
from itertools import count
from tempfile import TemporaryDirectory
from typing import Any

from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine

from benchmarks.crowds import engine_url
from benchmarks.databases import Databases
from benchmarks.messages import Messages
from benchmarks.report import Report
from benchmarks.scale import Scale
from benchmarks.sides import ClewSide, checkpointer
from benchmarks.timing import Timings, interleaved

__all__ = ["run"]

_IMPORT = """
import time, pydantic, sqlalchemy
started = time.perf_counter()
import clew
print(time.perf_counter() - started)
"""


async def run(report: Report, databases: Databases, scale: Scale) -> None:
    """Measure bound puts on each database and face, then the import."""
    for kind, face in scale.places:
        await _bound(report, databases, scale, kind, face)
    # With bytecode, as an installed package has it, wherever this is run from: the first import writes it.
    with TemporaryDirectory() as cache:
        imports = Timings([_import(cache) for _ in range(scale.processes + 1)][1:])
    report.figure(
        "import clew beside pydantic and sqlalchemy, best",
        "",
        imports.best * 1000,
        "ms",
        ours=str(imports),
        at_most=150,
    )


def _import(cache: str) -> float:
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": cache}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-c", _IMPORT]
    found = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return float(found.stdout)


async def _bound(report: Report, databases: Databases, scale: Scale, kind: str, face: str) -> None:
    messages = Messages().take(20)
    async with AsyncExitStack() as stack:
        url = stack.enter_context(databases.fresh(kind))
        opened = await stack.enter_async_context(checkpointer(url, face))
        engine: Any = (
            create_engine(engine_url(url))
            if face == "sync"
            else create_async_engine(
                url.replace("sqlite:", "sqlite+aiosqlite:").replace("postgresql:", "postgresql+asyncpg:")
            )
        )
        stack.push_async_callback(engine.dispose) if face == "async" else stack.callback(engine.dispose)
        numbers = [count(), count()]

        async def bound() -> None:
            number = next(numbers[0])
            state = messages[: 1 + number % 20]
            if face == "sync":
                with engine.begin() as connection:
                    await ClewSide(opened.bind(connection)).put("bound", number, state)
            else:
                async with engine.begin() as connection:
                    await ClewSide(opened.bind(connection)).put("bound", number, state)

        async def own() -> None:
            number = next(numbers[1])
            await ClewSide(opened).put("own", number, messages[: 1 + number % 20])

        ours, plain = await interleaved(scale.rounds * 4, bound, own, warm=10)
        report.figure(
            "put in the host's transaction over one in its own",
            f"{kind}, {face}",
            ours.median / plain.median,
            "× the time",
            ours=f"{ours}; own {plain}",
            at_most=1.5,
        )
