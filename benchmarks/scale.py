"""How much is measured: the full run, whose sizes are those of the bars, a quick one, the smallest for the tests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from benchmarks.databases import KINDS

__all__ = ["FACES", "FULL", "QUICK", "SMALLEST", "Scale"]

FACES: Final = ("sync", "async")


@dataclass(frozen=True, slots=True)
class Scale:
    """Sizes. ``steps`` is the thread that most bars are about, ``far`` how far clew goes on from there."""

    name: str
    places: tuple[tuple[str, str], ...] = tuple((kind, face) for kind in KINDS for face in FACES)
    steps: int = 1000
    far: int = 4000
    window: int = 40
    short_threads: int = 10
    rounds: int = 30
    list_rounds: int = 3
    runs: int | None = None  # of the trajectory file; None means all
    tasks: int = 16
    puts_a_task: int = 60
    long_thread: int = 10_000
    deletes: int = 10
    listed: int = 100_000
    threads: int = 1000
    prunable: int = 2000
    recorded: int = 500
    turns: int = 300
    processes: int = 5


FULL: Final = Scale("full")
QUICK: Final = Scale(
    "quick",
    steps=300,
    far=600,
    window=20,
    short_threads=5,
    rounds=15,
    list_rounds=1,
    runs=15,
    puts_a_task=25,
    long_thread=1000,
    deletes=5,
    listed=20_000,
    threads=100,
    prunable=400,
    recorded=150,
    turns=40,
    processes=3,
)
SMALLEST: Final = Scale(
    "smallest",
    places=(("sqlite", "sync"), ("postgres", "async")),
    steps=24,
    far=30,
    window=4,
    short_threads=1,
    rounds=2,
    list_rounds=1,
    runs=1,
    tasks=3,
    puts_a_task=3,
    long_thread=40,
    deletes=1,
    listed=400,
    threads=3,
    prunable=30,
    recorded=8,
    turns=2,
    processes=1,
)
