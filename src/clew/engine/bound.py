"""Units on a host's connection, inside the host's transaction: savepoints, refusals, and word of how it ended.

Nothing here begins a second transaction, commits, rolls back more than its own savepoint, or runs a unit twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeVar
from weakref import WeakKeyDictionary, ref

from sqlalchemy import Connection, Pool, event
from sqlalchemy.engine import Transaction, TwoPhaseTransaction
from sqlalchemy.exc import SQLAlchemyError

from clew.engine.database import Mode, Unit, select_one
from clew.engine.failures import read
from clew.engine.sqlite import BEGIN, raw
from clew.errors import ClewError, Contention, InvalidInput, WrongContext

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
    from sqlalchemy.orm import Session

__all__ = ["AwaitedBoundDatabase", "BoundDatabase", "Witness", "bound_async", "bound_sync"]

T = TypeVar("T")

_SAVEPOINT: Final = "SAVEPOINT clew"
_RELEASE: Final = "RELEASE SAVEPOINT clew"
_UNDO: Final = "ROLLBACK TO SAVEPOINT clew"
_ABORTED: Final = "SQLSTATE 25P02"


class Witness(Protocol):
    """Somebody who wants to know how a transaction ended."""

    def settle(self) -> None:
        """It was committed."""

    def undo(self) -> None:
        """It was rolled back, or a part of it was, or nobody will ever know."""


class BoundDatabase:
    """A host's connection or session that runs units inside the host's transaction, for the sync face."""

    def __init__(self, target: Connection | Session, witness: Witness, dialect: str) -> None:
        self._target = target
        self._witness = witness
        self.closed = False
        bind = target if isinstance(target, Connection) else _bind_of(target)
        if bind.dialect.name != dialect:
            raise InvalidInput(f"the connection is to {bind.dialect.name}, the checkpointer is for {dialect}")
        self.dialect: Literal["sqlite", "postgresql"] = "sqlite" if dialect == "sqlite" else "postgresql"

    def run(self, unit: Unit[T], mode: Mode, *, doing: str = "use the database") -> T:
        """What ``unit`` returns. Where it raises, the host's transaction is as it was before, and can go on.

        Raises:
            WrongContext: this side was closed.
            InvalidInput: the connection is in AUTOCOMMIT, or its transaction above READ COMMITTED.
            Contention: on SQLite, the host's transaction has read what is out of date by now; repeat it as a whole.
        """
        self.check(doing)
        return self.perform(self._target, unit, mode, doing)

    def check(self, doing: str) -> None:
        """Refuse use after closing."""
        if self.closed:
            raise WrongContext(f"could not {doing}: this bound checkpointer is closed")

    def ping(self) -> None:
        """Ask the database for a sign of life, over the host's connection."""
        self.run(select_one, "read", doing="ping the database")

    def close(self) -> None:
        """Take on nothing more. Connection and transaction stay the host's."""
        self.closed = True

    def perform(self, target: Connection | Session, unit: Unit[T], mode: Mode, doing: str) -> T:
        """``run`` without its check, for the async face."""
        try:
            connection = target if isinstance(target, Connection) else target.connection()
            tie = _enter(connection, doing)
            tie.waiting[self._witness] = None
            if self.dialect == "sqlite":
                return _on_sqlite(connection, unit, mode)
            return _on_postgres(connection, unit, mode)
        except Exception as exc:
            raised = _explained(exc, doing)
            if raised is exc:
                raise
            raise raised from exc


class AwaitedBoundDatabase:
    """A host's async connection or session that runs units inside the host's transaction, for the async face."""

    def __init__(self, target: AsyncConnection | AsyncSession, witness: Witness, dialect: str) -> None:
        self._target = target
        inner = target.sync_session if hasattr(target, "sync_session") else target.sync_connection
        if inner is None:
            raise InvalidInput("the AsyncConnection is not connected yet; enter it, or await its start()")
        self._core = BoundDatabase(inner, witness, dialect)

    @property
    def dialect(self) -> Literal["sqlite", "postgresql"]:
        return self._core.dialect

    @property
    def closed(self) -> bool:
        return self._core.closed

    async def run(self, unit: Unit[T], mode: Mode, *, doing: str = "use the database") -> T:
        """See ``BoundDatabase.run``. Cancelled on Postgres, the host's transaction is lost with it; on SQLite the unit
        comes to its end first."""
        self.check(doing)
        running = self._target.run_sync(self._core.perform, unit, mode, doing)
        result: T = await (running if self.dialect == "postgresql" else _to_its_end(running))
        return result

    def check(self, doing: str) -> None:
        """See ``BoundDatabase.check``."""
        self._core.check(doing)

    async def ping(self) -> None:
        await self.run(select_one, "read", doing="ping the database")

    async def close(self) -> None:
        self._core.close()


async def _to_its_end(running: Coroutine[Any, Any, T]) -> T:
    """What ``running`` returns; who is cancelled meanwhile is so afterwards.

    aiosqlite's connection is closed by a statement that is cut off, and SQLite keeps the lock until the garbage
    collector has found that statement; whoever sends the connection another one may wait for ever.
    """
    task = asyncio.create_task(running)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError as exc:
            cancelled = exc
    if cancelled is None:
        return task.result()
    if not task.cancelled():
        task.exception()
    raise cancelled


def bound_sync(target: object) -> tuple[Connection | Session, Pool]:
    """What the sync face can be bound to, and the pool that tells one database from another.

    Raises:
        InvalidInput: it is neither a ``Connection`` nor a ``Session``, or cannot be told apart from other tenants'.
    """
    from sqlalchemy.orm import Session, scoped_session

    found = target() if isinstance(target, scoped_session) else target
    if not isinstance(found, Connection | Session):
        raise InvalidInput(f"bind takes an sqlalchemy Connection or Session here, not {type(found).__name__}")
    return found, _pool_of(found)


def bound_async(target: object) -> tuple[AsyncConnection | AsyncSession, Pool]:
    """The same for the async face."""
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session

    found = target() if isinstance(target, async_scoped_session) else target
    if isinstance(found, AsyncConnection):
        return found, found.sync_engine.pool
    if isinstance(found, AsyncSession):
        return found, _pool_of(found.sync_session)
    raise InvalidInput(f"bind takes an sqlalchemy AsyncConnection or AsyncSession here, not {type(found).__name__}")


def _pool_of(target: Connection | Session) -> Pool:
    bind = target if isinstance(target, Connection) else _bind_of(target)
    return bind.engine.pool


def _bind_of(session: Session) -> Any:
    try:
        return session.get_bind()
    except SQLAlchemyError as exc:
        raise InvalidInput("the session has no engine for all of its tables; bind a connection of it instead") from exc


class _Tie:
    """Who waits for the end of a connection's transaction, and what is known of that transaction."""

    def __init__(self) -> None:
        self.transaction: ref[Transaction] | None = None
        self.waiting: dict[Witness, None] = {}

    def begin(self, transaction: Transaction) -> bool:
        """Whether the transaction is another than last time."""
        if self.transaction is not None and self.transaction() is transaction:
            return False
        self.undo()
        return True

    def undo(self) -> None:
        waiting, self.waiting = self.waiting, {}
        for witness in waiting:
            witness.undo()


# By connection; without a strong reference back, so that it goes with it.
_ties: WeakKeyDictionary[Connection, _Tie] = WeakKeyDictionary()


class _Commit:
    """Stands before ``commit`` on one checked-out connection, until that is given back to its pool.

    SQLAlchemy's event comes before the COMMIT, which may yet fail (a deferred constraint, a lost connection). What
    was published then would pass for valid as soon as its version number is given out again.
    """

    def __init__(self, commit: Callable[[], None], tie: _Tie) -> None:
        self._commit = commit
        self._tie = tie

    def __call__(self) -> None:
        waiting, self._tie.waiting = self._tie.waiting, {}
        try:
            self._commit()
        except BaseException:
            for witness in waiting:
                witness.undo()
            raise
        for witness in waiting:
            witness.settle()


def _undone(connection: Connection, *_: Any) -> None:
    if (tie := _ties.get(connection)) is not None:
        tie.undo()


def _enter(connection: Connection, doing: str) -> _Tie:
    """Take part in the connection's transaction, which is begun where SQLAlchemy would begin it by itself."""
    transaction = connection.get_transaction() or connection.begin()
    tie = _ties.get(connection)
    if tie is None:
        tie = _ties[connection] = _Tie()
        for name in ("rollback", "rollback_savepoint", "prepare_twophase"):
            event.listen(connection, name, _undone)
    if tie.begin(transaction):
        _refuse(connection, doing)
        if not isinstance(transaction, TwoPhaseTransaction):
            checked_out: Any = connection.connection
            if not isinstance(vars(checked_out).get("commit"), _Commit):
                checked_out.commit = _Commit(checked_out.commit, tie)
        tie.transaction = ref(transaction)
    return tie


def _refuse(connection: Connection, doing: str) -> None:
    """Refuse what would undo the host's trust in one transaction, or ours in what is remembered."""
    if connection.get_execution_options().get("schema_translate_map"):
        raise InvalidInput(
            f"could not {doing}: the connection has a schema_translate_map, which clew's statements do not follow;"
            " open a checkpointer with schema=… for each schema"
        )
    driver = raw(connection)
    if connection.dialect.name == "sqlite":
        autocommit = not _in_transaction(driver) and (
            driver.isolation_level is None or getattr(driver, "autocommit", None) is True
        )
    else:
        autocommit = bool(getattr(driver, "autocommit", False))
    if autocommit:
        raise InvalidInput(
            f"could not {doing}: the connection is in AUTOCOMMIT, so there is no transaction to take part in;"
            " bind one that is not, or use the checkpointer itself"
        )
    if connection.dialect.name == "postgresql":
        # Once for each transaction: what came before it counts, SET TRANSACTION and the role's default too.
        level = connection.exec_driver_sql("SHOW transaction_isolation").scalar()
        if level != "read committed":
            raise InvalidInput(
                f"could not {doing}: the transaction is {str(level).upper()}, and would not see what others committed"
                " while it waited for the thread; use READ COMMITTED for it"
            )


def _on_sqlite(connection: Connection, unit: Unit[T], mode: Mode) -> T:
    if mode == "read":
        return unit(connection)  # an error in a SELECT leaves the transaction as it was
    driver = raw(connection)
    if not _in_transaction(driver):
        driver.execute(BEGIN["write"])  # Python's driver would begin with the first INSERT, and without the lock
    driver.execute(_SAVEPOINT)
    try:
        result = unit(connection)
    except BaseException:
        with suppress(Exception):
            driver.execute(_UNDO)
            driver.execute(_RELEASE)
        if not _in_transaction(driver):  # a full disk: SQLite has rolled back everything, the host's rows too
            connection.invalidate()
        raise
    driver.execute(_RELEASE)
    return result


def _on_postgres(connection: Connection, unit: Unit[T], mode: Mode) -> T:
    connection.exec_driver_sql(_SAVEPOINT)
    try:
        result = unit(connection)
    except BaseException:
        with suppress(Exception):
            _undo(connection)
        raise
    try:
        connection.exec_driver_sql(_RELEASE)
    except Exception as exc:
        failure = read(exc)
        # A unit of one statement may have put up with its failure, and so is content with nothing having happened.
        if mode != "statement" or failure is None or failure.code != _ABORTED:
            raise
        _undo(connection)
    return result


def _undo(connection: Connection) -> None:
    connection.exec_driver_sql(_UNDO)
    connection.exec_driver_sql(_RELEASE)


def _in_transaction(driver: Any) -> bool:
    return bool(getattr(driver, "_connection", driver).in_transaction)  # aiosqlite's, which SQLAlchemy does not pass on


def _explained(exc: Exception, doing: str) -> Exception:
    failure = read(exc)
    if failure is None:
        return exc
    if failure.code == "SQLITE_BUSY_SNAPSHOT":
        return Contention(
            f"could not {doing}: the transaction has read what another writer has changed since [{failure.code}];"
            " roll it back and repeat it as a whole, best begun with BEGIN IMMEDIATE"
        )
    error: ClewError = failure.error(doing, sent=False)
    return error
