"""A thread that grows on both sides at once, step by step in turn, with the time that each put took."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any
from uuid import uuid4

from benchmarks.sides import Side
from benchmarks.timing import Timings, timed

__all__ = ["Course", "short"]


class Course:
    """``sides`` is (ours, theirs); ``message`` makes the message of a step. Threads are named by UUIDs."""

    def __init__(
        self, sides: Sequence[Side], message: Callable[[int], Any], *, tend: Callable[[], None] | None = None
    ) -> None:
        self.thread = str(uuid4())
        self.sides = sides
        self.messages: list[Any] = []
        self._message, self._tend = message, tend
        self._seconds: list[dict[int, float]] = [{} for _ in sides]

    async def grow(self, steps: int, *, spared: int = 0) -> None:
        """Put one checkpoint a message until there are ``steps``.

        ``tend`` is called every 100 steps, outside of what is timed. The other side is spared the puts up to
        ``spared``: each of theirs costs as much whether or not those before it were stored.
        """
        while len(self.messages) < steps:
            number = len(self.messages)
            self.messages.append(self._message(number))
            places = range(len(self.sides))
            for place in places if number % 2 else reversed(places):
                if place == 0 or number >= spared:
                    self._seconds[place][number] = await timed(partial(self._put, self.sides[place], number))
            if self._tend is not None and number % 100 == 99:
                self._tend()

    def puts(self, low: int, high: int) -> list[Timings]:
        """Each side's puts of the steps from ``low`` to before ``high``."""
        return [
            Timings([seconds[number] for number in range(low, high) if number in seconds]) for seconds in self._seconds
        ]

    def around(self, step: int, window: int) -> list[Timings]:
        """Each side's puts of the ``window`` steps up to ``step``."""
        return self.puts(step - window, step)

    async def check(self) -> None:
        """Hold that both sides give back what was put.

        Raises:
            RuntimeError: one does not.
        """
        for side in self.sides:
            if [*await side.latest(self.thread)] != self.messages:
                raise RuntimeError(f"{type(side).__name__} gives back something else than was put")

    def works(self, ask: Callable[[Side, str], Any]) -> Iterator[Callable[[], Any]]:
        """What to do on each side: ``ask`` it about the thread."""
        for side in self.sides:
            yield partial(ask, side, self.thread)

    async def _put(self, side: Side, number: int) -> None:
        await side.put(self.thread, number, self.messages)


async def short(sides: Sequence[Side], message: Callable[[int], Any], threads: int, steps: int = 15) -> list[Timings]:
    """Each side's puts of the steps 5 to ``steps``, over several new threads."""
    found = [Timings() for _ in sides]
    for number in range(threads + 1):
        course = Course(sides, message)
        await course.grow(steps)
        for timings, more in zip(found, course.puts(5, steps), strict=True):
            timings.seconds.extend(more.seconds if number else ())  # the first thread warms both sides up
    return found
