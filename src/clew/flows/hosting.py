"""What a checkpointer remembers where it takes part in hosts' transactions. How they end: ``engine.bound``."""

from __future__ import annotations

from dataclasses import replace
from weakref import WeakKeyDictionary

from sqlalchemy import Pool

from clew.flows.steps import Core
from clew.repository import Memory, StagedMemory

__all__ = ["HostMemories"]


class HostMemories:
    """Memories by pool, which stand for databases: thread keys and versions of one mean nothing in another.

    A host's pool may lead anywhere. Only the checkpointer's own, where it is the host's engine too, leads where its
    own memory was made.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._by_pool: WeakKeyDictionary[Pool, Memory] = WeakKeyDictionary()

    def staged(self, pool: Pool, own: Pool) -> tuple[Core, StagedMemory]:
        """A core for transactions on ``pool``, and what it will have staged there."""
        if pool is own:
            below = self._core.memory
        else:
            below = self._by_pool.setdefault(pool, Memory(self._core.memory.max_bytes))
        memory = StagedMemory(below)
        return replace(self._core, memory=memory), memory
