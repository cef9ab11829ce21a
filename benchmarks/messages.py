"""What is recorded: a seeded generator's 1 kB messages, and the runs of a trajectory file."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

from clew.cli.transcripts import Run, read_runs

__all__ = ["Messages", "information", "trajectories"]

SEED: Final = 7
BYTES: Final = 1000
_WORDS: Final = 5000


class Messages:
    """Messages of about 1 kB of JSON: made-up words in the frequencies of a natural language, the same in every run."""

    def __init__(self, seed: int = SEED) -> None:
        self._random = random.Random(seed)
        self._words = [self._word() for _ in range(_WORDS)]
        self._weights = list(accumulate(1 / rank for rank in range(2, _WORDS + 2)))  # Zipf's law

    def text(self, size: int = BYTES - 40) -> str:
        """Sentences of about ``size`` characters."""
        sentences: list[str] = []
        while size > 0:
            words = self._random.choices(self._words, cum_weights=self._weights, k=self._random.randint(5, 18))
            sentences.append(f"{' '.join(words).capitalize()}.")
            size -= len(sentences[-1]) + 1
        return " ".join(sentences)[: size - 1 if size < 0 else None]

    def message(self, number: int) -> dict[str, Any]:
        """A chat message, the user's and the assistant's in turn."""
        return {"role": "assistant" if number % 2 else "user", "content": self.text()}

    def take(self, count: int) -> list[dict[str, Any]]:
        return [self.message(number) for number in range(count)]

    def _word(self) -> str:
        syllables = self._random.choices((1, 2, 3, 4), weights=(4, 5, 3, 1))[0]
        choose = self._random.choice
        return "".join(
            choose(("", "b", "d", "f", "g", "h", "l", "m", "n", "p", "r", "s", "st", "t", "tr", "th", "w"))
            + choose("aaeeeiiou")
            + choose(("", "", "n", "r", "s", "l", "t", "nd"))
            for _ in range(syllables)
        )


def trajectories(path: Path, limit: int | None = None) -> list[Run]:
    """The runs of a trajectory file, at most ``limit``."""
    return read_runs(path)[:limit]


def information(messages: Iterable[Any]) -> int:
    """The bytes of what is new, as compact JSON."""
    return sum(len(json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()) for value in messages)
