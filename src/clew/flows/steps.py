"""The steps that a flow asks its driver for, and what all flows of one checkpointer share.

A flow is a generator: it yields steps, is sent their results, and returns the call's result. The synchronous face and
the asynchronous one each have one loop that drives any flow; so everything but the waiting is written once.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from sqlalchemy import Connection

from clew.engine import Mode
from clew.errors import CorruptData
from clew.repository import Memory, StateReader, Store
from clew.repository.soundness import located

__all__ = ["Core", "Flow", "Step", "Turn"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Step(Generic[T]):
    """Run ``unit`` on a connection in ``mode`` (see ``clew.engine``). ``doing`` completes "could not …"."""

    unit: Callable[[Connection], T]
    mode: Mode
    doing: str

    def carry_out(self, connection: Connection) -> T:
        """What the unit returns.

        Raises:
            CorruptData: with ``doing`` as its place where nobody could say a closer one.
        """
        try:
            return self.unit(connection)
        except CorruptData as exc:
            raise located(exc, f"could not {self.doing}") from exc.__cause__


@dataclass(frozen=True, slots=True)
class Turn:
    """Wait until no other flow of this process has the thread's turn; it is given back when the flow ends."""

    thread_id: str


Flow: TypeAlias = Generator[Step[Any] | Turn, Any, T]


@dataclass(frozen=True, slots=True)
class Core:
    """What all flows of one checkpointer share."""

    store: Store
    memory: Memory
    reader: StateReader[Any]

    def read(self, doing: str, operation: Callable[..., Any], *args: Any, **options: Any) -> Step[Any]:
        """The step of one operation of the repository that only reads."""
        return self._step("read", doing, operation, args, options)

    def write(self, doing: str, operation: Callable[..., Any], *args: Any, **options: Any) -> Step[Any]:
        """The step of one operation of the repository that is a transaction."""
        return self._step("write", doing, operation, args, options)

    def _step(self, mode: Mode, doing: str, operation: Callable[..., Any], args: Any, options: Any) -> Step[Any]:
        store = self.store
        return Step(lambda connection: operation(store, connection, *args, **options), mode, doing)
