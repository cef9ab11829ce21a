"""The options of an engine that clew opens itself. A host's engine keeps its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from clew.engine.urls import DatabaseUrl
from clew.errors import InvalidInput

__all__ = ["EngineOptions"]

_BUSY_TIMEOUT_S: Final = 30.0


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Pool and time limits. The defaults suit one service process.

    Raises:
        InvalidInput: a size or a time that makes no sense.
    """

    pool_size: int = 10
    """Connections that are kept."""
    max_overflow: int = 10
    """Connections beyond them, closed again when given back."""
    pool_recycle_s: float | None = None
    """Replace connections older than this before use; below a firewall's idle limit where there is one."""
    pre_ping: bool = False
    """Ask the server before each use. Needed only where connections are dropped without a word on the wire: one that
    the server closed is recognised and replaced without this, and without a round trip."""
    timeout_s: float | None = None
    """Longest wait for a lock, a statement, SQLite's busy state, and a free connection. None: Postgres' own limits,
    30 seconds for the rest."""
    pgbouncer: bool | None = None
    """True where PgBouncer in transaction mode stands before Postgres; None takes the URL's ``pgbouncer=``."""
    create: bool = True
    """Whether an SQLite file that is not there is made. Without it a mistyped name would leave an empty file behind."""

    def __post_init__(self) -> None:
        checks = {
            "pool_size": type(self.pool_size) is int and self.pool_size >= 1,
            "max_overflow": type(self.max_overflow) is int and self.max_overflow >= 0,
            "pool_recycle_s": self.pool_recycle_s is None or _is_time(self.pool_recycle_s),
            "timeout_s": self.timeout_s is None or _is_time(self.timeout_s, most=2_000_000),
        }
        for name, holds in checks.items():
            if not holds:
                raise InvalidInput(f"{name}={getattr(self, name)!r} is not a number in its range")

    @property
    def timeout_ms(self) -> int:
        """``timeout_s`` in whole milliseconds; at least 1, since 0 means no limit to Postgres."""
        return max(1, round((self.timeout_s or 0) * 1000))

    @property
    def busy_timeout_s(self) -> float:
        """How long SQLite and the pool are waited for."""
        return _BUSY_TIMEOUT_S if self.timeout_s is None else self.timeout_s

    def uses_pgbouncer(self, url: DatabaseUrl) -> bool:
        return bool(url.pgbouncer if self.pgbouncer is None else self.pgbouncer)

    def pool_arguments(self) -> dict[str, Any]:
        """The pool's part of ``create_engine``'s arguments."""
        return {
            "pool_size": self.pool_size,
            "max_overflow": self.max_overflow,
            "pool_recycle": -1 if self.pool_recycle_s is None else self.pool_recycle_s,
            "pool_pre_ping": self.pre_ping,
            "pool_timeout": self.busy_timeout_s,
            "pool_use_lifo": True,  # what is not needed grows old and is recycled
            "hide_parameters": True,  # a driver's error must not print payloads
        }


def _is_time(value: float, *, most: float = float("inf")) -> bool:
    return type(value) in (int, float) and 0.001 <= value <= most
