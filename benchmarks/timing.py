"""Measuring time: medians and worst of what was done in turn by both sides, and memory at its peak."""

from __future__ import annotations

import inspect
import statistics
import time
import tracemalloc
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

__all__ = ["Peak", "Timings", "interleaved", "milliseconds", "peak_memory", "settled", "timed"]

Work = Callable[[], Any]
"""Something to do; what it returns is awaited where it can be."""


class Timings:
    """Seconds that one kind of work took."""

    def __init__(self, seconds: Sequence[float] = ()) -> None:
        self.seconds = list(seconds)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def best(self) -> float:
        return min(self.seconds)

    @property
    def worst(self) -> float:
        return max(self.seconds)

    def __str__(self) -> str:
        worst = f" (worst {milliseconds(self.worst)})" if len(self.seconds) > 2 else ""
        return f"{milliseconds(self.median)} ms{worst}"


def milliseconds(seconds: float) -> str:
    value = seconds * 1000
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


async def settled(value: Any) -> Any:
    """The value, awaited where it is to be: both faces are driven by the same lines."""
    return await value if inspect.isawaitable(value) else value


async def timed(work: Work) -> float:
    started = time.perf_counter()
    result = work()
    if isinstance(result, Awaitable):
        await result
    return time.perf_counter() - started


async def interleaved(rounds: int, *works: Work, warm: int = 1) -> list[Timings]:
    """Each of ``works`` once a round, in turn first and last, after ``warm`` rounds that do not count."""
    timings = [Timings() for _ in works]
    for number in range(warm + rounds):
        places = list(range(len(works)))
        for place in places if number % 2 else reversed(places):
            seconds = await timed(works[place])
            if number >= warm:
                timings[place].seconds.append(seconds)
    return timings


class Peak:
    """The most memory that was taken at once, beyond what there was at the beginning."""

    bytes = 0


@contextmanager
def peak_memory() -> Iterator[Peak]:
    peak = Peak()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        yield peak
        peak.bytes = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
