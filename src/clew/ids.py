"""Ids that sort by the time they were made, and the clock they are made from. No record and no database is known here.

An id is 128 bits as 26 characters of Crockford's base 32, the form that ULIDs have: 48 bits of milliseconds since 1970,
then 80 random ones. Its order is a convenience for people: *latest* never depends on it (docs/design.md, "Order and
time").
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

__all__ = ["Clock", "SortableIds", "new_checkpoint_id", "new_id"]

Clock: TypeAlias = Callable[[], datetime]
"""Gives the present instant, with a time zone. Injected in tests; ``created_at`` comes from the database instead."""

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_SHIFTS = tuple(range(125, -1, -5))
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_RANDOM_BYTES = 10
_STEP_BYTES = 4
_MAX_ID = (1 << 128) - 1


def _utc_now() -> datetime:
    """The system's clock, in UTC."""
    return datetime.now(UTC)


class SortableIds:
    """A source of ids, each greater than the one before, also when ``clock`` stands still or jumps back.

    Threads may share one. ``randomness`` gives as many random bytes as it is asked for.
    """

    def __init__(self, clock: Clock = _utc_now, randomness: Callable[[int], bytes] = os.urandom) -> None:
        self._clock = clock
        self._randomness = randomness
        self._last = 0
        self._lock = threading.Lock()

    def __call__(self) -> str:
        """A new id of 26 characters.

        Raises:
            TypeError: the clock's instant has no time zone.
            OverflowError: all ids that sort behind the last one are used up, which takes a clock in the year 10889.
        """
        milliseconds = max(0, (self._clock() - _EPOCH) // _MILLISECOND)
        with self._lock:
            if milliseconds > self._last >> 80:
                value = milliseconds << 80 | int.from_bytes(self._randomness(_RANDOM_BYTES), "big")
            else:
                # A step of random width: two processes that share a millisecond stay apart, and an id does not tell
                # the next one. Where the random bits run over, the carry goes into the milliseconds.
                value = self._last + 1 + int.from_bytes(self._randomness(_STEP_BYTES), "big")
            if value > _MAX_ID:
                raise OverflowError("no id left that sorts behind the last one")
            self._last = value
        return "".join([_ALPHABET[value >> shift & 31] for shift in _SHIFTS])

    def forget(self) -> None:
        """Starts over from fresh random bits, as a forked child must: parent and child would go on from one id."""
        self._last = 0
        self._lock = threading.Lock()


_process_ids = SortableIds()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_process_ids.forget)


def new_id() -> str:
    """A new id: 26 characters, time-sortable, unique across processes, and increasing within this one."""
    return _process_ids()


def new_checkpoint_id() -> str:
    """A new id for an agent's checkpoint, which starts with ``ckpt_`` as starweaver-runtime's do."""
    return f"ckpt_{new_id()}"
