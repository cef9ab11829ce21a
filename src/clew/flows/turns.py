"""The queue of each thread's writers within a process: a lock per thread that somebody wants, and no more."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["Turns"]

Lock = TypeVar("Lock")


class Turns(Generic[Lock]):
    """Locks by thread id, made by ``new_lock``, kept only while anybody holds or awaits them."""

    def __init__(self, new_lock: Callable[[], Lock]) -> None:
        self._new_lock = new_lock
        self._locks: dict[str, tuple[Lock, int]] = {}
        self._guard = threading.Lock()

    def want(self, thread_id: str) -> Lock:
        """The thread's lock. To be followed by one ``leave``."""
        with self._guard:
            lock, users = self._locks.get(thread_id) or (self._new_lock(), 0)
            self._locks[thread_id] = (lock, users + 1)
            return lock

    def leave(self, thread_id: str) -> None:
        """Say that the lock, released or never acquired, is not wanted any more."""
        with self._guard:
            lock, users = self._locks.pop(thread_id)
            if users > 1:
                self._locks[thread_id] = (lock, users - 1)
