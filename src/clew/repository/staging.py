"""What a transaction that is not ours has changed so far. How it ends is for others to tell."""

from __future__ import annotations

from clew.repository.memory import Memory, ThreadMemory

__all__ = ["StagedMemory"]


class StagedMemory(Memory):
    """A memory over that of committed transactions, kept apart from it until ``settle`` or ``undo``.

    ``undo`` forgets all of it, also where only a part was undone: after a rollback to a savepoint, version numbers are
    given out again for other contents, and the numbers alone would not tell.
    """

    def __init__(self, below: Memory) -> None:
        super().__init__(below.max_bytes)
        self._below = below
        self._gone: set[str] = set()

    def get(self, thread_id: str) -> ThreadMemory | None:
        """What the transaction left of the thread, else what was remembered of it before."""
        staged = super().get(thread_id)
        return staged if staged is not None or thread_id in self._gone else self._below.get(thread_id)

    def publish(self, thread_id: str, memory: ThreadMemory) -> None:
        """Stage the thread as the transaction's last put left it; whatever its number, it is the newest."""
        super().forget(thread_id)
        super().publish(thread_id, memory)

    def forget(self, thread_id: str) -> None:
        """Remember nothing of the thread, now and, once the transaction is committed, below."""
        super().forget(thread_id)
        self._gone.add(thread_id)

    def settle(self) -> None:
        """The transaction was committed: hand on what it left."""
        for thread_id in self._gone:
            self._below.forget(thread_id)
        for thread_id in self:
            staged = super().get(thread_id)
            if staged is not None:
                self._below.publish(thread_id, staged)
        self.undo()

    def undo(self) -> None:
        """The transaction, or a part of it, was rolled back: forget what it did."""
        self._gone.clear()
        for thread_id in self:
            super().forget(thread_id)
