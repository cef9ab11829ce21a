"""The two loops that drive a flow, one that waits in the calling thread and one that waits in the calling task.

All that the two faces do differently is here; what a flow does is in ``flows``, and how a unit is carried out in
``engine``.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import AsyncExitStack, ExitStack
from typing import Any, TypeVar

from clew.engine import AwaitedBoundDatabase, AwaitedDatabase, BoundDatabase, SyncDatabase
from clew.flows import Core, Flow, Step, Turn, Turns, schema_step

__all__ = ["AsyncDriver", "Driver"]

T = TypeVar("T")


class Driver:
    """Runs steps and flows on a database, waiting in the calling thread. Safe to share between threads."""

    def __init__(self, database: SyncDatabase | BoundDatabase, core: Core, *, migrate: bool = False) -> None:
        self.database = database
        self.core = core
        self._migrate = migrate
        self._ready = False
        self._turns = Turns(threading.Lock)
        self._readying = threading.Lock()

    def run(self, step: Step[T]) -> T:
        """What the step's unit returns."""
        if not self._ready:
            self.make_ready()
        return self.database.run(step.carry_out, step.mode, doing=step.doing)

    def bound(self, database: BoundDatabase, core: Core) -> Driver:
        """A driver inside a host's transaction. It has turns of its own: another's could wait for that transaction."""
        bound = Driver(database, core, migrate=self._migrate)
        bound._ready = self._ready
        return bound

    def drive(self, flow: Flow[T]) -> T:
        """What the flow returns, once all its steps are done."""
        with ExitStack() as turns:
            try:
                step = next(flow)
                while True:
                    try:
                        result = self._take(step, turns)
                    except BaseException as exc:  # noqa: BLE001  the flow decides, and usually lets it pass
                        step = flow.throw(exc)
                    else:
                        step = flow.send(result)
            except StopIteration as stop:
                value: T = stop.value
                return value

    def make_ready(self) -> None:
        """Check the schema, or bring it up to date; once."""
        self.database.check("check the schema")
        with self._readying:
            if not self._ready:
                step = schema_step(self.core, upgrade=self._migrate)
                self.database.run(step.carry_out, step.mode, doing=step.doing)
                self._ready = True

    def _take(self, step: Step[Any] | Turn, turns: ExitStack) -> Any:
        if isinstance(step, Turn):
            # Before the lock: in a forked child nobody gives back what a thread of the parent's held, and an asyncio
            # lock that is waited for on two loops wakes nobody.
            self.database.check(f"write to thread {step.thread_id!r}")
            lock = self._turns.want(step.thread_id)
            turns.callback(self._turns.leave, step.thread_id)
            return turns.enter_context(lock)
        return self.run(step)


class AsyncDriver:
    """Runs steps and flows on a database, waiting in the calling task. Safe to share between tasks of one loop."""

    def __init__(self, database: AwaitedDatabase | AwaitedBoundDatabase, core: Core, *, migrate: bool = False) -> None:
        self.database = database
        self.core = core
        self._migrate = migrate
        self._ready = False
        self._turns = Turns(asyncio.Lock)
        self._readying = asyncio.Lock()

    async def run(self, step: Step[T]) -> T:
        """What the step's unit returns."""
        if not self._ready:
            await self.make_ready()
        return await self.database.run(step.carry_out, step.mode, doing=step.doing)

    def bound(self, database: AwaitedBoundDatabase, core: Core) -> AsyncDriver:
        """A driver inside a host's transaction. It has turns of its own: another's could wait for that transaction."""
        bound = AsyncDriver(database, core, migrate=self._migrate)
        bound._ready = self._ready
        return bound

    async def drive(self, flow: Flow[T]) -> T:
        """What the flow returns, once all its steps are done."""
        async with AsyncExitStack() as turns:
            try:
                step = next(flow)
                while True:
                    try:
                        result = await self._take(step, turns)
                    except BaseException as exc:  # noqa: BLE001  the flow decides, and usually lets it pass
                        step = flow.throw(exc)
                    else:
                        step = flow.send(result)
            except StopIteration as stop:
                value: T = stop.value
                return value

    async def make_ready(self) -> None:
        """Check the schema, or bring it up to date; once."""
        self.database.check("check the schema")
        async with self._readying:
            if not self._ready:
                step = schema_step(self.core, upgrade=self._migrate)
                await self.database.run(step.carry_out, step.mode, doing=step.doing)
                self._ready = True

    async def _take(self, step: Step[Any] | Turn, turns: AsyncExitStack) -> Any:
        if isinstance(step, Turn):
            self.database.check(f"write to thread {step.thread_id!r}")
            lock = self._turns.want(step.thread_id)
            turns.callback(self._turns.leave, step.thread_id)
            return await turns.enter_async_context(lock)
        return await self.run(step)
