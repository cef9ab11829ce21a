"""What a driver's error means to the caller: the one place where errors of lower libraries become clew's.

Meaning is read from SQLSTATE, SQLite's result codes, ``errno`` and constraint names, never from prose, and no prose of
a driver is repeated: it may quote payloads. What is no database's error (``CancelledError``, a bug) is not touched.
"""

from __future__ import annotations

import errno
import sqlite3
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final

from sqlalchemy import exc as sa

from clew.errors import ClewError, Contention, CorruptData, InvalidInput, SchemaMismatch, StorageUnavailable

__all__ = ["Failure", "Kind", "read"]


class Kind(Enum):
    """What can be done about a failure."""

    LOST = auto()
    """The connection is gone; what was sent last may have been carried out."""
    UNAVAILABLE = auto()
    """The database is there and declined; nothing was carried out."""
    UNCERTAIN = auto()
    """The connection is there, but what was sent last may have been carried out."""
    CONTENTION = auto()
    """Rolled back for the sake of another transaction; the same may succeed at once."""
    STALE = auto()
    """What the connection remembers is no longer valid; on a fresh one the same may succeed at once."""
    CORRUPT = auto()
    UNMIGRATED = auto()
    INVALID = auto()
    REFUSED = auto()
    """None of these: an error that clew has no word for."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One failure, understood. ``code`` is the database's own name for it, ``reason`` says it in words."""

    kind: Kind
    code: str
    reason: str

    @property
    def passing(self) -> bool:
        """Whether a second attempt on a fresh connection may succeed at once."""
        return self.kind in (Kind.LOST, Kind.CONTENTION, Kind.STALE)

    @property
    def uncertain(self) -> bool:
        """Whether what was sent last may have been carried out."""
        return self.kind in (Kind.LOST, Kind.UNCERTAIN)

    @property
    def spoils(self) -> bool:
        """Whether the connection is of no further use."""
        return self.kind in (Kind.LOST, Kind.STALE)

    def error(self, doing: str, *, sent: bool) -> ClewError:
        """The error that the caller gets; ``sent`` says that a commit, or a statement that commits itself, went out."""
        message = f"could not {doing}: {self.reason} [{self.code}]"
        if self.kind is Kind.CONTENTION:
            return Contention(f"{message}; nothing was stored, the call may be repeated")
        if self.kind is Kind.CORRUPT:
            return CorruptData(message)
        if self.kind is Kind.UNMIGRATED:
            return SchemaMismatch(f"{message}; run: clew migrate", found=None, expected="clew's tables")
        if self.kind is Kind.INVALID:
            return InvalidInput(message)
        if self.kind is Kind.REFUSED:
            return ClewError(message)
        if sent and self.uncertain:
            return StorageUnavailable(f"{message}; it may have been stored all the same: repeat it", maybe_stored=True)
        return StorageUnavailable(f"{message}; nothing was stored")


def read(exc: BaseException, *, connecting: bool = False) -> Failure | None:
    """What ``exc`` means; None where it is no database's error and should pass as it is.

    ``connecting`` says that no connection was at hand yet, so that an ``OSError`` is one.
    """
    if isinstance(exc, ClewError) or not isinstance(exc, Exception):
        return None
    if isinstance(exc, sa.TimeoutError):
        return Failure(Kind.UNAVAILABLE, "pool", "no connection of the pool became free in time; raise pool_size")
    original = exc.orig if isinstance(exc, sa.DBAPIError) else exc
    if isinstance(original, sqlite3.Error):
        return _sqlite(original)
    if type(original).__name__ == "InternalClientError":
        # asyncpg, on a connection whose farewell was read and whose end was not yet: nothing was sent.
        return Failure(Kind.STALE, "InternalClientError", "the driver's connection is out of step")
    if (state := getattr(original, "sqlstate", None)) and isinstance(state, str):
        return _postgres(state, original)
    if isinstance(original, TimeoutError):
        return Failure(Kind.LOST if connecting else Kind.UNCERTAIN, "timeout", "the database did not answer in time")
    if isinstance(original, OSError) and (connecting or isinstance(original, ConnectionError)):
        return Failure(Kind.LOST, _errno(original), "the connection failed")
    if _drivers_connection_error(exc, original):
        return Failure(Kind.LOST, type(original).__name__, "the connection failed")
    if isinstance(exc, sa.DataError):  # the server said nothing: psycopg cannot make a value of what it sent
        return Failure(Kind.CORRUPT, type(original).__name__, "a value that is stored cannot be read")
    if isinstance(exc, sa.SQLAlchemyError):
        return Failure(Kind.REFUSED, type(original).__name__, "the database layer refused")
    module = type(original).__module__.partition(".")[0]
    if module in ("asyncpg", "psycopg"):
        return Failure(Kind.LOST if connecting else Kind.REFUSED, type(original).__name__, "the driver refused")
    return None


def _drivers_connection_error(exc: Exception, original: BaseException | None) -> bool:
    if isinstance(exc, sa.DBAPIError) and exc.connection_invalidated:
        return True
    # psycopg reports a broken or refused connection as an OperationalError that carries no SQLSTATE.
    return any(
        cls.__name__ == "OperationalError" and cls.__module__.startswith("psycopg") for cls in type(original).__mro__
    )


_STATES: Final = {
    "57014": (Kind.UNAVAILABLE, "the statement was cancelled, or ran longer than it may"),
    "55P03": (Kind.UNAVAILABLE, "a lock was waited for longer than it may"),
    "57P01": (Kind.LOST, "the server is shutting down"),
    "57P02": (Kind.LOST, "the server crashed"),
    "57P03": (Kind.LOST, "the server does not accept connections yet"),
    "57P04": (Kind.UNAVAILABLE, "the database was dropped"),
    "57P05": (Kind.LOST, "the server closed an idle connection"),
    "25P03": (Kind.LOST, "the server closed a transaction that was idle"),
    "25P04": (Kind.LOST, "the server ended a transaction that took too long"),
    "25006": (Kind.UNAVAILABLE, "the server is read-only"),
    "25P02": (Kind.REFUSED, "the transaction has already failed"),
    "40001": (Kind.CONTENTION, "a concurrent transaction got in between"),
    "40P01": (Kind.CONTENTION, "a deadlock was resolved against it"),
    "40003": (Kind.LOST, "the fate of the statement is unknown"),
    "23505": (Kind.CONTENTION, "a row with the same key came first"),
    "23503": (Kind.CONTENTION, "a row that it refers to is gone"),
    "0A000": (Kind.STALE, "a prepared statement no longer fits the schema, or the server lacks the feature"),
    "26000": (Kind.STALE, "the prepared statement is unknown; behind PgBouncer pass pgbouncer=True"),
    "42P05": (Kind.STALE, "the prepared statement exists already; behind PgBouncer pass pgbouncer=True"),
    "42P01": (Kind.UNMIGRATED, "a table is missing"),
    "42703": (Kind.UNMIGRATED, "a column is missing"),
    "3F000": (Kind.UNMIGRATED, "the schema is missing"),
    "3D000": (Kind.UNAVAILABLE, "the database does not exist"),
    "42501": (Kind.UNAVAILABLE, "the role lacks a privilege"),
    "XX001": (Kind.CORRUPT, "the server reports damaged data"),
    "XX002": (Kind.CORRUPT, "the server reports a damaged index"),
}
_CLASSES: Final = {
    "08": (Kind.LOST, "the connection failed"),
    "22": (Kind.INVALID, "the server cannot store a value as given"),
    "23": (Kind.REFUSED, "a constraint does not hold"),
    "28": (Kind.UNAVAILABLE, "the server refused user or password"),
    "53": (Kind.UNAVAILABLE, "the server is out of resources"),
    "54": (Kind.INVALID, "the value is larger than the server allows"),
    "57": (Kind.UNAVAILABLE, "an operator intervened"),
    "58": (Kind.UNAVAILABLE, "the server's system failed"),
}


def _postgres(state: str, original: Any) -> Failure:
    kind, reason = _STATES.get(state) or _CLASSES.get(state[:2]) or (Kind.REFUSED, "the server refused")
    constraint = _constraint(original)
    return Failure(kind, f"SQLSTATE {state}", f"{reason} ({constraint})" if constraint else reason)


def _constraint(original: Any) -> str | None:
    """The violated constraint's name: asyncpg has it on the error beneath SQLAlchemy's, psycopg in ``diag``."""
    for holder in (original.__cause__, getattr(original, "diag", None), original):
        name = getattr(holder, "constraint_name", None)
        if isinstance(name, str):
            return name
    return None


_PRIMARY: Final = {
    sqlite3.SQLITE_BUSY: (Kind.UNAVAILABLE, "the file was locked longer than it may be waited for"),
    sqlite3.SQLITE_LOCKED: (Kind.UNAVAILABLE, "a table was locked"),
    sqlite3.SQLITE_FULL: (Kind.UNAVAILABLE, "the disk is full"),
    sqlite3.SQLITE_READONLY: (Kind.UNAVAILABLE, "the file cannot be written"),
    sqlite3.SQLITE_CANTOPEN: (Kind.UNAVAILABLE, "the file cannot be opened"),
    sqlite3.SQLITE_PERM: (Kind.UNAVAILABLE, "access to the file is denied"),
    sqlite3.SQLITE_AUTH: (Kind.UNAVAILABLE, "access to the file is denied"),
    sqlite3.SQLITE_NOMEM: (Kind.UNAVAILABLE, "memory ran out"),
    sqlite3.SQLITE_INTERRUPT: (Kind.UNAVAILABLE, "the statement was interrupted"),
    sqlite3.SQLITE_PROTOCOL: (Kind.UNAVAILABLE, "the file's locks could not be had"),
    sqlite3.SQLITE_IOERR: (Kind.UNCERTAIN, "reading or writing the file failed"),
    sqlite3.SQLITE_CORRUPT: (Kind.CORRUPT, "the file is damaged"),
    sqlite3.SQLITE_NOTADB: (Kind.CORRUPT, "the file is no SQLite database"),
    sqlite3.SQLITE_TOOBIG: (Kind.INVALID, "the value is larger than SQLite allows"),
}
_EXTENDED: Final = {
    sqlite3.SQLITE_BUSY_SNAPSHOT: (Kind.CONTENTION, "another writer got in between"),
    sqlite3.SQLITE_CONSTRAINT_UNIQUE: (Kind.CONTENTION, "a row with the same key came first"),
    sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY: (Kind.CONTENTION, "a row with the same key came first"),
    sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY: (Kind.CONTENTION, "a row that it refers to is gone"),
}


def _sqlite(original: sqlite3.Error) -> Failure:
    code: int | None = getattr(original, "sqlite_errorcode", None)
    if code is None:  # raised by Python's module itself, as for a connection that was closed
        return Failure(Kind.REFUSED, type(original).__name__, "SQLite's driver refused")
    kind, reason = _EXTENDED.get(code) or _PRIMARY.get(code & 0xFF) or (Kind.REFUSED, "SQLite refused")
    return Failure(kind, getattr(original, "sqlite_errorname", str(code)), reason)


def _errno(original: OSError) -> str:
    return errno.errorcode.get(original.errno or 0, type(original).__name__)
