"""Cancelling a call at each of its moments: the suspensions of its task and of all tasks it starts, and the statements
that it has a worker thread carry out."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Engine, event

__all__ = ["Moments", "Outcome", "observed"]

NEVER = -1


@dataclass
class Moments:
    """Counts the moments of one call, and cancels its task at the one that is asked for, once or twice."""

    at: int = NEVER
    twice: bool = False
    count: int = 0
    delivered: int = 0
    task: asyncio.Task[Any] | None = None
    places: list[str] = field(default_factory=list)

    def passed(self, place: str) -> None:
        """The loop's thread is about to wait for something."""
        self.count += 1
        self.places.append(place)
        if self.count == self.at:
            self._cancel()

    def passed_elsewhere(self, place: str, loop: asyncio.AbstractEventLoop) -> None:
        """Another thread is about to run a statement: it goes on once the cancellation has been taken note of."""
        self.count += 1
        self.places.append(place)
        if self.count == self.at:
            noticed = threading.Event()

            def cancel() -> None:
                self._cancel()
                # A few turns of the loop: the task has to wake up and say that it does not want the unit any more.
                loop.call_soon(loop.call_soon, loop.call_soon, noticed.set)

            loop.call_soon_threadsafe(cancel)
            noticed.wait(5)

    def _cancel(self) -> None:
        assert self.task is not None
        if not self.task.done():
            self.delivered += 1
            self.task.cancel()
            if self.twice:
                loop = self.task.get_loop()
                loop.call_soon(loop.call_soon, self.task.cancel)


@dataclass(frozen=True)
class Outcome:
    """What became of a call: its value or its error, and how many moments it had."""

    value: Any
    error: BaseException | None
    count: int
    delivered: int
    places: tuple[str, ...]


async def observed(call: Callable[[], Awaitable[Any]], at: int = NEVER, *, twice: bool = False) -> Outcome:
    """Make the call in a task of its own, and cancel that at moment ``at``, counted from one."""
    moments = Moments(at, twice)
    loop = asyncio.get_running_loop()
    value, error = None, None

    async def made() -> Any:
        return await call()

    with _counted(loop, moments):
        moments.task = asyncio.Task(_Counted(made(), moments), loop=loop)
        try:
            value = await moments.task
        except BaseException as exc:  # noqa: BLE001  it is what the test looks at
            error = exc
    return Outcome(value, error, moments.count, moments.delivered, tuple(moments.places))


class _Counted(Coroutine[Any, Any, Any]):
    """A coroutine each of whose suspensions is a moment."""

    def __init__(self, inner: Any, moments: Moments) -> None:
        self._inner = inner
        self._moments = moments
        self.__name__ = getattr(inner, "__qualname__", "coroutine")
        self.__qualname__ = self.__name__

    def send(self, value: Any) -> Any:
        waited_for = self._inner.send(value)
        self._moments.passed(self.__name__)
        return waited_for

    def throw(self, *raised: Any) -> Any:
        waited_for = self._inner.throw(*raised)
        self._moments.passed(self.__name__)
        return waited_for

    def close(self) -> None:
        self._inner.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        raise NotImplementedError


_current: Moments | None = None


@contextlib.contextmanager
def _counted(loop: asyncio.AbstractEventLoop, moments: Moments) -> Iterator[None]:
    """Count in the tasks that are begun meanwhile too, and in the statements of watched engines."""
    global _current

    def factory(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
        return asyncio.Task(_Counted(coro, moments), loop=loop, **options)

    loop.set_task_factory(factory)
    _current = moments
    try:
        yield
    finally:
        _current = None
        loop.set_task_factory(None)


def watch_statements(engine: Engine, loop: asyncio.AbstractEventLoop) -> None:
    """Make each statement on connections of SQLite's own driver a moment; to be called before any is opened."""

    def about_to_run(statement: str) -> None:
        if (moments := _current) is not None:
            moments.passed_elsewhere(statement.partition(" ")[0], loop)

    @event.listens_for(engine, "connect")
    def connect(driver: Any, _: Any) -> None:
        driver.set_trace_callback(about_to_run)
