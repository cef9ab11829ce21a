"""Our own Postgres engines: what asyncpg and psycopg are told, and how PgBouncer is got along with.

Nothing here touches a host's engine.
"""

from __future__ import annotations

import select
import ssl
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, create_engine

from clew.engine.options import EngineOptions
from clew.engine.urls import DatabaseUrl
from clew.errors import ClewError, InvalidUrl

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

__all__ = ["async_engine", "asyncpg_arguments", "psycopg_arguments", "sync_engine", "went_away"]

_CONNECT_TIMEOUT_S: Final = 30.0
_FILES_BESIDE_SYSTEM: Final = ("sslcert", "sslkey", "sslcrl", "sslpassword")


def sync_engine(url: DatabaseUrl, options: EngineOptions) -> Engine:
    """An engine over psycopg.

    Raises:
        InvalidUrl: the URL insists on asyncpg.
        ClewError: psycopg is not installed.
    """
    if url.driver == "asyncpg":
        raise InvalidUrl(
            f"{url.label} names asyncpg, which the sync face cannot use; write postgresql:// or postgresql+psycopg://,"
            " or open it with AsyncCheckpointer"
        )
    if find_spec("psycopg") is None:
        raise ClewError("the sync face reaches Postgres through psycopg: pip install 'clew[postgres-sync]'")
    return create_engine(
        URL.create("postgresql+psycopg"),
        connect_args=psycopg_arguments(url, options),
        isolation_level="READ COMMITTED",
        use_native_hstore=False,  # looking hstore up costs a round trip on every new connection
        **options.pool_arguments(),
    )


def async_engine(url: DatabaseUrl, options: EngineOptions) -> AsyncEngine:
    """An engine over asyncpg.

    Raises:
        InvalidUrl: the URL insists on psycopg, or asks for something that asyncpg cannot do.
    """
    if url.driver == "psycopg":
        raise InvalidUrl(
            f"{url.label} names psycopg, which the async face does not use; write postgresql:// or"
            " postgresql+asyncpg://, or open it with Checkpointer"
        )
    from sqlalchemy.ext.asyncio import create_async_engine

    return create_async_engine(
        URL.create("postgresql+asyncpg"),
        connect_args=asyncpg_arguments(url, options),
        isolation_level="READ COMMITTED",
        **options.pool_arguments(),
    )


def psycopg_arguments(url: DatabaseUrl, options: EngineOptions) -> dict[str, Any]:
    """What ``psycopg.connect`` is called with; everything by name, so that no connection string holds the password."""
    settings = _settings(url, options)
    application_name = settings.pop("application_name", None)
    arguments: dict[str, Any] = {
        "host": ",".join(host for host, _ in url.hosts) or None,
        "port": ",".join(str(port) for _, port in url.hosts) or None,
        "user": url.user,
        "password": url.password,
        "dbname": url.database,
        "application_name": application_name,
        "options": " ".join(f"-c {name}={_escaped(value)}" for name, value in settings.items()) or None,
        # libpq counts whole seconds, for each host; 0 waits for ever.
        "connect_timeout": 0 if (timeout := _connect_timeout(url)) is None else max(2, round(timeout)),
        "target_session_attrs": url.target_session_attrs,
        "passfile": url.passfile,
        "krbsrvname": url.krbsrvname,
        **dict(url.tls),
        **dict(url.libpq),
    }
    arguments = {name: value for name, value in arguments.items() if value is not None}
    if options.uses_pgbouncer(url):
        arguments["prepare_threshold"] = None
    return arguments


def asyncpg_arguments(url: DatabaseUrl, options: EngineOptions) -> dict[str, Any]:
    """What SQLAlchemy's asyncpg dialect is given, our own way of connecting included."""
    url.check_for_asyncpg()
    arguments: dict[str, Any] = {
        "user": url.user,
        "password": url.password,
        "database": url.database,
        "server_settings": _settings(url, options),
        "timeout": _connect_timeout(url),
        "passfile": url.passfile,
        "krbsrvname": url.krbsrvname,
    }
    arguments = {name: value for name, value in arguments.items() if value is not None or name == "timeout"}
    tls = dict(url.tls)
    if tls.get("sslrootcert") == "system":
        if beside := [name for name in _FILES_BESIDE_SYSTEM if name in tls]:
            raise InvalidUrl(f"the parameter {beside[0]} beside sslrootcert=system cannot be honoured by asyncpg")
        arguments["ssl"] = ssl.create_default_context()
    elif tls:
        # asyncpg reads the files that libpq reads, with libpq's defaults, only from a connection string.
        arguments["dsn"] = "postgresql://?" + "&".join(f"{name}={quote(value, safe='')}" for name, value in tls.items())
    if options.uses_pgbouncer(url):
        # A named statement stays on a server connection that the next transaction may not get. The unnamed one lives
        # as long as its transaction, and nothing has to be deallocated; unique names (SQLAlchemy's manual) leak.
        arguments["statement_cache_size"] = 0
        arguments["prepared_statement_cache_size"] = 0
        arguments["prepared_statement_name_func"] = str
    arguments["async_creator_fn"] = _Connector(url.hosts, url.target_session_attrs)
    return arguments


def went_away(connection: Connection) -> bool:
    """Whether an idle connection was closed by the other side. Costs one system call, no round trip.

    Both drivers notice an end of file only when they next read, and by then a statement has been sent whose fate is
    unknown. Pre-ping answers the same at the price of a round trip. What an idle connection has to say is a farewell,
    or else so rare (a setting reported anew) that replacing the connection costs nothing that counts.
    """
    driver: Any = connection.connection.driver_connection
    if connection.dialect.driver == "psycopg":
        return bool(driver.closed) or _readable(driver.pgconn.socket)
    if connection.dialect.driver == "asyncpg":
        transport = getattr(driver, "_transport", None)
        socket = transport.get_extra_info("socket") if transport is not None else None
        return bool(driver.is_closed()) or (socket is not None and _readable(socket.fileno()))
    return False


class _Connector:
    """Connects to the first host that answers and fits, as libpq does.

    asyncpg takes several hosts too, but one timeout for all: a first host that swallows packets would use it up.
    """

    def __init__(self, hosts: tuple[tuple[str, int], ...], attrs: str | None) -> None:
        self._hosts = hosts
        self._passes = ("standby", "any") if attrs == "prefer-standby" else (attrs,)

    async def __call__(self, **arguments: Any) -> Any:
        asyncpg: Any = import_module("asyncpg")
        go_on = (OSError, asyncpg.TargetServerAttributeNotMatched, asyncpg.CannotConnectNowError)
        failure: BaseException | None = None
        for attrs in self._passes:
            for host, port in self._hosts or ((None, None),):
                try:
                    return await asyncpg.connect(
                        host=host,
                        port=port,
                        target_session_attrs=attrs,
                        connection_class=_without_codecs(),
                        **arguments,
                    )
                except go_on as exc:
                    failure = exc
        assert failure is not None
        raise failure


def _without_codecs() -> type[Any]:
    """asyncpg's connection, without the JSON codecs that SQLAlchemy installs on each new one.

    clew has no JSON column; installing them costs two round trips a connection, and outside a transaction, so that
    PgBouncer may send the halves of one to different servers.
    """
    global _connection_class
    if _connection_class is None:
        base: Any = import_module("asyncpg").Connection

        class Connection(base):  # type: ignore[misc]
            async def set_type_codec(self, *_: Any, **__: Any) -> None:
                return None

        _connection_class = Connection
    return _connection_class


_connection_class: type[Any] | None = None


def _settings(url: DatabaseUrl, options: EngineOptions) -> dict[str, str]:
    settings = {"application_name": "clew", **dict(url.settings)}
    if options.timeout_s is not None and not options.uses_pgbouncer(url):
        # In the start-up packet they cost nothing. PgBouncer refuses them there; see SyncDatabase.
        milliseconds = str(options.timeout_ms)
        settings |= {"lock_timeout": milliseconds, "statement_timeout": milliseconds}
    return settings


def _connect_timeout(url: DatabaseUrl) -> float | None:
    timeout = _CONNECT_TIMEOUT_S if url.connect_timeout_s is None else max(2.0, url.connect_timeout_s)
    return None if timeout == float("inf") else timeout


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace(" ", "\\ ")


def _readable(descriptor: int) -> bool:
    if not hasattr(select, "poll"):  # Windows
        return bool(select.select([descriptor], [], [], 0)[0])
    poll = select.poll()  # select() fails beyond descriptor 1023
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))
