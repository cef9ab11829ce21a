"""SQLite: our own engines, and transactions of ours on a host's engine. No statement on clew's tables stands here.

Python's driver begins transactions by itself, and late; ours begin explicitly (``BEGIN IMMEDIATE`` before a write), so
its way of doing so is switched off: for good on our connections, for the length of a transaction on a host's.
"""

from __future__ import annotations

import sqlite3
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import URL, Connection, Engine, create_engine, event

from clew.engine.options import EngineOptions
from clew.engine.urls import DatabaseUrl
from clew.errors import InvalidUrl, SchemaMismatch

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

__all__ = ["BEGIN", "Anchor", "async_engine", "borrowed_transaction", "is_missing", "raw", "sync_engine"]

BEGIN: Final = {"read": "BEGIN", "write": "BEGIN IMMEDIATE"}

Anchor = sqlite3.Connection
"""The connection that keeps a database in memory alive; None for a file."""

_LEGACY: Final = -1  # sqlite3.LEGACY_TRANSACTION_CONTROL, from Python 3.12


def sync_engine(url: DatabaseUrl, options: EngineOptions) -> tuple[Engine, Anchor | None]:
    """An engine over the standard library's driver.

    Raises:
        InvalidUrl: the URL insists on aiosqlite, or the file's directory does not exist.
    """
    if url.driver == "aiosqlite":
        raise InvalidUrl(
            f"{url.label} names aiosqlite, which the sync face cannot use; write sqlite:///…, or open it with"
            " AsyncCheckpointer"
        )
    location, anchor = _location(url, "sqlite+pysqlite")
    engine = create_engine(location, connect_args=_connect_arguments(options), **_pool_arguments(url, options))
    _prepare(engine, url, options)
    return engine, anchor


def async_engine(url: DatabaseUrl, options: EngineOptions) -> tuple[AsyncEngine, Anchor | None]:
    """An engine over aiosqlite, which crosses threads for every statement; only for a URL that asks for it.

    Raises:
        InvalidUrl: the file's directory does not exist.
    """
    from sqlalchemy.ext.asyncio import create_async_engine

    location, anchor = _location(url, "sqlite+aiosqlite")
    engine = create_async_engine(location, connect_args=_connect_arguments(options), **_pool_arguments(url, options))
    _prepare(engine.sync_engine, url, options)
    return engine, anchor


def is_missing(url: DatabaseUrl) -> bool:
    """Whether ``url`` names an SQLite file that is not there, and that connecting would make."""
    return url.kind == "sqlite" and url.database is not None and not Path(url.database).exists()


def raw(connection: Connection) -> Any:
    """The driver's connection, or SQLAlchemy's stand-in for it where that is aiosqlite's."""
    return connection.connection.dbapi_connection


@contextmanager
def borrowed_transaction(connection: Connection, mode: str, timeout_s: float | None) -> Iterator[None]:
    """A transaction of ours on a host's connection, which is left as it was found.

    Rolled back when the block raises and in mode "read", committed otherwise. Journal mode and ``synchronous`` stay
    the host's; foreign keys are enforced, and ``timeout_s`` holds, until the transaction ends.
    """
    driver = raw(connection)
    target = getattr(driver, "_connection", driver)  # aiosqlite's, whose attributes SQLAlchemy does not pass on
    autocommit = getattr(driver, "autocommit", _LEGACY)
    isolation_level = driver.isolation_level
    restore: list[str] = []
    if autocommit == _LEGACY:
        driver.isolation_level = None
    else:
        driver.autocommit = True
    try:
        restore += _set(driver, "foreign_keys", 1)
        if timeout_s is not None:
            restore += _set(driver, "busy_timeout", max(1, round(timeout_s * 1000)))
        # A host may emit BEGIN from a listener, as SQLAlchemy's manual advises: let it, then begin in our own way.
        connection.begin()
        if target.in_transaction:
            driver.execute("ROLLBACK")
        if mode in BEGIN:
            driver.execute(BEGIN[mode])
        yield
        if target.in_transaction:
            driver.execute("ROLLBACK" if mode == "read" else "COMMIT")
    finally:
        if target.in_transaction:
            driver.execute("ROLLBACK")
        connection.rollback()
        for statement in restore:
            driver.execute(statement)
        if autocommit == _LEGACY:
            driver.isolation_level = isolation_level
        else:
            driver.autocommit = autocommit


def _set(driver: Any, pragma: str, value: int) -> list[str]:
    (found,) = driver.execute(f"PRAGMA {pragma}").fetchone()
    if found == value:
        return []
    driver.execute(f"PRAGMA {pragma} = {value}")
    return [f"PRAGMA {pragma} = {found}"]


def _location(url: DatabaseUrl, drivername: str) -> tuple[URL, Anchor | None]:
    if url.database is not None:
        file = Path(url.database)
        if not file.parent.is_dir():
            raise InvalidUrl(f"{url.label}: the directory {str(file.parent)!r} does not exist; create it first")
        if file.is_dir():
            raise InvalidUrl(f"{url.label} names a directory; name a file in it")
        return URL.create(drivername, database=url.database), None
    # Named, so that a connection lost to an interrupt does not take the database with it. The memdb VFS (SQLite 3.36)
    # locks like a file; the older shared cache fails at once where that waits.
    name = f"file:/clew-{uuid.uuid4().hex}"
    anchor = sqlite3.connect(f"{name}?vfs=memdb", uri=True, check_same_thread=False)
    return URL.create(drivername, database=name, query={"vfs": "memdb", "uri": "true"}), anchor


def _connect_arguments(options: EngineOptions) -> dict[str, Any]:
    return {
        "isolation_level": None,
        "timeout": options.busy_timeout_s,
        "check_same_thread": False,
        "cached_statements": 256,
    }


def _pool_arguments(url: DatabaseUrl, options: EngineOptions) -> dict[str, Any]:
    arguments = options.pool_arguments()
    if url.in_memory:
        # One connection, so that its users queue up in order instead of polling for the lock.
        arguments |= {"pool_size": 1, "max_overflow": 0, "pool_recycle": -1}
    return arguments


def _prepare(engine: Engine, url: DatabaseUrl, options: EngineOptions) -> None:
    @event.listens_for(engine, "do_connect")
    def look(*_: Any) -> None:
        if not options.create and is_missing(url):
            raise SchemaMismatch(
                f"{url.label}: there is no such file; correct its name, or run `clew migrate` to create it"
                " (or open with migrate=True)",
                found=None,
                expected="clew's tables",
            )

    @event.listens_for(engine, "connect")
    def connect(driver: Any, _: Any) -> None:
        if not url.in_memory:
            _write_ahead(driver, options.busy_timeout_s)
        driver.execute("PRAGMA synchronous = FULL")
        driver.execute("PRAGMA foreign_keys = ON")


def _write_ahead(driver: Any, patience_s: float) -> None:
    """Switch to WAL. SQLite does not wait when several processes do so at once, so that is done here."""
    deadline = time.monotonic() + patience_s
    while driver.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        try:
            driver.execute("PRAGMA journal_mode = WAL").fetchone()
        except sqlite3.OperationalError as exc:
            if exc.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            break  # a file system without shared memory keeps its journal, which is as durable
