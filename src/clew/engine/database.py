"""Running a unit of work: connection, transaction, retries, errors. How the async faces wait stands in ``awaited``.

A *unit* is a function of a connection that may be run again: what it does happens inside the transaction or nowhere.
The core here carries it out for all faces; what differs is only who waits.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from enum import IntEnum
from typing import Final, Literal, TypeVar

from sqlalchemy import URL, Connection, Engine
from sqlalchemy.util import await_only

from clew.engine import postgres, sqlite
from clew.engine.failures import Failure, Kind, read
from clew.errors import ClewError, InvalidInput, SchemaMismatch, StorageUnavailable, WrongContext

__all__ = ["Mode", "Progress", "Stage", "SyncDatabase", "Unit", "select_one"]

T = TypeVar("T")
Unit = Callable[[Connection], T]
Mode = Literal["read", "write", "statement"]
"""read: one snapshot on SQLite, a snapshot for each statement on Postgres. write: a transaction that is committed.
statement: one statement that commits itself; no transaction where that can be avoided."""

_log = logging.getLogger("clew")
_RETRIES: Final = 2
_SEEN: Final = "clew_seen"


class Stage(IntEnum):
    CHECKOUT = 0
    UNIT = 1
    COMMIT = 2
    DONE = 3


class Progress:
    """How far a unit has come, and whether its caller still wants it. Shared with a cancelled caller."""

    __slots__ = ("abandoned", "stage")

    def __init__(self) -> None:
        self.stage = Stage.CHECKOUT
        self.abandoned = False


class SyncDatabase:
    """An engine, ours or a host's, that runs units. Safe to share between threads.

    ``own`` says that the engine was made for us: closed with us, and prepared so that less is to be done for each
    transaction. A host's engine keeps its listeners, pragmas, pool and isolation level. ``label`` names the database
    where it cannot be reached; it must hold no password.

    Raises:
        InvalidInput: the engine speaks neither SQLite nor Postgres.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        own: bool = False,
        timeout_s: float | None = None,
        pgbouncer: bool = False,
        anchor: sqlite.Anchor | None = None,
        label: str | None = None,
    ) -> None:
        if engine.dialect.name not in ("sqlite", "postgresql"):
            raise InvalidInput(f"clew stores in SQLite and Postgres; this engine is for {engine.dialect.name}")
        self.engine = engine
        self.dialect: Literal["sqlite", "postgresql"] = "sqlite" if engine.dialect.name == "sqlite" else "postgresql"
        self.closed = False
        self._own = own
        self._timeout_s = timeout_s
        self._anchor = anchor
        if anchor is not None:
            weakref.finalize(self, anchor.close)  # nobody closes a checkpointer whose other options were refused
        self._label = _label(engine.url) if label is None else label
        self._pid = os.getpid()
        # SQLite's own waiting is polling, up to 100 ms apart and in no order: within the process writers queue here.
        self._gate = threading.Lock() if own and self.dialect == "sqlite" and not engine.dialect.is_async else None
        # PgBouncer may send the halves of a statement outside a transaction to different servers (asyncpg), and it
        # refuses our time limits at start-up: a transaction holds the one together and the other inside.
        local_limit = timeout_s is not None and (pgbouncer or not own)
        self._limits = _limits(timeout_s) if local_limit and timeout_s is not None else None
        self._autocommits = self._limits is None and not (pgbouncer and engine.dialect.is_async)

    def run(self, unit: Unit[T], mode: Mode, *, doing: str = "use the database") -> T:
        """What ``unit`` returns, once its transaction has ended. ``doing`` completes "could not …" in messages.

        A connection that is lost before anything can have been stored is replaced, and the unit run again, as after
        a deadlock.

        Raises:
            StorageUnavailable: the database cannot be reached or answers too late; ``maybe_stored`` as it says.
            Contention: other transactions kept getting in the way.
            CorruptData: the database itself is damaged.
            SchemaMismatch: clew's tables are not there.
            WrongContext: closed, or opened before ``fork()``.
        """
        self.check(doing)
        return self.perform(unit, mode, doing, Progress())

    @property
    def cheapest(self) -> Mode:
        """The mode for one reading statement; SQLite's "statement" queues with the writers."""
        return "read" if self.dialect == "sqlite" else "statement"

    def ping(self) -> None:
        """Ask the database for a sign of life.

        Raises:
            StorageUnavailable: there is none.
        """
        self.run(select_one, self.cheapest, doing="ping the database")

    def close(self) -> None:
        """Close our own engine; a host's stays open. Closing twice is fine, and after ``fork()`` harms nobody."""
        if self.closed:
            return
        self.closed = True
        self.release()

    def release(self) -> None:
        """Let go of the connections that are not in use; the others are closed when they are given back."""
        if self._own:
            self.engine.dispose(close=os.getpid() == self._pid)
        self.release_anchor()

    def release_anchor(self) -> None:
        """Let go of a database in memory."""
        if self._anchor is not None:
            self._anchor.close()

    def check(self, doing: str) -> None:
        """Refuse use after closing and after ``fork()``."""
        if self.closed:
            raise WrongContext(f"could not {doing}: the checkpointer is closed")
        if os.getpid() != self._pid:
            raise WrongContext(
                f"could not {doing}: the checkpointer was opened before fork(); open one in each process, after forking"
            )

    def perform(self, unit: Unit[T], mode: Mode, doing: str, progress: Progress) -> T:
        """``run`` without its checks, for the async faces, which share ``progress``."""
        attempt = 0
        while True:
            progress.stage = Stage.CHECKOUT
            try:
                return self._once(unit, mode, doing, progress)
            except Exception as exc:
                stage = progress.stage
                failure = read(exc, connecting=stage is Stage.CHECKOUT)
                if failure is None:
                    raise
                # A read may be repeated at any stage: nothing it sends can be stored.
                sent = mode != "read" and stage >= (Stage.UNIT if mode == "statement" else Stage.COMMIT)
                again = failure.passing and stage > Stage.CHECKOUT and not (sent and failure.uncertain)
                if not again or attempt == _RETRIES or progress.abandoned:
                    where = f" at {self._label}" if stage is Stage.CHECKOUT else ""
                    raise self._error(failure, doing + where, sent) from exc
                attempt += 1
                if failure.kind is Kind.CONTENTION:
                    self._pause(random.uniform(0.002, 0.02) * attempt)  # or the same two meet again
                _log.info("trying again to %s: %s [%s]", doing, failure.reason, failure.code)

    def _once(self, unit: Unit[T], mode: Mode, doing: str, progress: Progress) -> T:
        if self._gate is None or mode == "read":
            return self._on_connection(unit, mode, progress)
        if not self._gate.acquire(timeout=-1 if self._timeout_s is None else self._timeout_s):
            raise StorageUnavailable(f"could not {doing}: other writes of this process took too long")
        try:
            return self._on_connection(unit, mode, progress)
        finally:
            self._gate.release()

    def _on_connection(self, unit: Unit[T], mode: Mode, progress: Progress) -> T:
        connection = self._checkout()
        try:
            if self.dialect == "postgresql":
                result = self._on_postgres(connection, unit, mode, progress)
            elif self._own:
                result = self._on_sqlite(connection, unit, mode, progress)
            else:
                with sqlite.borrowed_transaction(connection, mode, self._timeout_s):
                    result = _carry_out(connection, unit, progress)
            progress.stage = Stage.DONE
            return result
        except Exception as exc:
            if (failure := read(exc)) is not None and failure.spoils:
                connection.invalidate()
            raise
        finally:
            self._give_back(connection)

    def _on_sqlite(self, connection: Connection, unit: Unit[T], mode: Mode, progress: Progress) -> T:
        if mode == "statement":
            return _carry_out(connection, unit, progress)
        # On the driver, not through SQLAlchemy, which costs 10 µs a statement. Giving the connection back rolls back.
        driver = sqlite.raw(connection)
        driver.execute(sqlite.BEGIN[mode])
        result = _carry_out(connection, unit, progress)
        if mode == "write":
            driver.execute("COMMIT")
        return result

    def _on_postgres(self, connection: Connection, unit: Unit[T], mode: Mode, progress: Progress) -> T:
        # A read's statements each see their own moment under READ COMMITTED anyway, so they need no transaction either.
        level = "AUTOCOMMIT" if mode != "write" and self._autocommits else "READ COMMITTED"
        if not self._own or level != "READ COMMITTED":
            connection.execution_options(isolation_level=level)
        if self._limits is not None:
            connection.exec_driver_sql(self._limits)
        result = _carry_out(connection, unit, progress)
        if mode != "read":
            connection.commit()
        return result

    def _checkout(self) -> Connection:
        connection = self.engine.connect()
        if self.dialect == "postgresql":
            # A connection not seen before is not asked: whatever it has to say belongs to its greeting.
            while connection.info.setdefault(_SEEN, False) and postgres.went_away(connection):
                connection.invalidate()
                connection.close()
                connection = self.engine.connect()
            connection.info[_SEEN] = True
        return connection

    def _give_back(self, connection: Connection) -> None:
        try:
            if self.closed and self._own:
                connection.detach()  # the pool it came from is gone
            connection.close()
        except Exception:  # noqa: BLE001
            # What the unit raised, or returned, counts for more than a rollback on a broken connection.
            _log.debug("a connection could not be given back and is dropped", exc_info=True)
            with suppress(Exception):
                connection.invalidate()

    def _pause(self, seconds: float) -> None:
        if self.engine.dialect.is_async:
            await_only(asyncio.sleep(seconds))
        else:
            time.sleep(seconds)

    def _error(self, failure: Failure, doing: str, sent: bool) -> ClewError:
        if self.dialect == "sqlite" and failure.code == "SQLITE_ERROR" and not self._migrated():
            message = f"could not {doing}: clew's tables are not in this database; run: clew migrate"
            return SchemaMismatch(message, found=None, expected="clew's tables")
        return failure.error(doing, sent=sent)

    def _migrated(self) -> bool:
        """Whether our tables are there; SQLite has no code of its own for a table that is missing."""
        with suppress(Exception), self.engine.connect() as connection:
            statement = "SELECT count(*) FROM sqlite_master WHERE name = 'clew_threads'"
            return bool(connection.exec_driver_sql(statement).scalar())
        return True


def _carry_out(connection: Connection, unit: Unit[T], progress: Progress) -> T:
    if progress.abandoned:
        raise asyncio.CancelledError
    progress.stage = Stage.UNIT
    result = unit(connection)
    if progress.abandoned:
        raise asyncio.CancelledError
    progress.stage = Stage.COMMIT
    return result


def select_one(connection: Connection) -> None:
    connection.exec_driver_sql("SELECT 1").scalar()


def _label(url: URL) -> str:
    """What may be said of a host's URL: neither user nor password nor parameters."""
    place = URL.create(url.drivername, host=url.host, port=url.port, database=url.database)
    return place.render_as_string()


def _limits(timeout_s: float) -> str:
    milliseconds = max(1, round(timeout_s * 1000))
    names = ("lock_timeout", "statement_timeout")
    return "SELECT " + ", ".join(f"set_config('{name}', '{milliseconds}', true)" for name in names)
