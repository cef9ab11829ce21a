"""What a database URL says, read once for every driver. How a driver is told stands in ``sqlite`` and ``postgres``.

SQLAlchemy's own parsing is not used for Postgres: it hands unknown parameters to the driver, and asyncpg and psycopg
do not mean the same by them. The rules here are libpq's (its manual, section "Connection URIs").
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Literal
from urllib.parse import unquote

from clew.errors import InvalidUrl

__all__ = ["DatabaseUrl", "parse"]

_DRIVERS: Final = {
    "sqlite": {"", "pysqlite", "aiosqlite"},
    "postgresql": {"", "asyncpg", "psycopg"},
}
_SSL_MODES: Final = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
_SESSION_ATTRS: Final = ("any", "read-write", "read-only", "primary", "standby", "prefer-standby")
# Both drivers take these under libpq's names and mean the same by them.
_TLS: Final = (
    "sslmode",
    "sslrootcert",
    "sslcert",
    "sslkey",
    "sslpassword",
    "sslcrl",
    "sslnegotiation",
    "ssl_min_protocol_version",
    "ssl_max_protocol_version",
)
# libpq's alone: psycopg is handed them, asyncpg only where leaving them out means the same.
_LIBPQ: Final = {
    "channel_binding": {"disable", "prefer"},
    "gssencmode": {"disable", "prefer"},
    "load_balance_hosts": {"disable"},
    "keepalives": set[str](),
    "keepalives_idle": set[str](),
    "keepalives_interval": set[str](),
    "keepalives_count": set[str](),
    "tcp_user_timeout": set[str](),
}
_FORMS: Final = "sqlite:///file.db, sqlite:// (in memory), sqlite+aiosqlite:///file.db, or postgresql://user@host/name"
_SETTING: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]*")


@dataclass(frozen=True, repr=False)
class DatabaseUrl:
    """A database URL, taken apart. Its ``repr`` and ``label`` are safe to log: they hold no password."""

    kind: Literal["sqlite", "postgresql"]
    driver: str = ""
    """The driver that the URL insists on; empty where each face takes its own."""
    database: str | None = None
    """The SQLite file (None: in memory) or the Postgres database (None: the driver's default)."""
    user: str | None = None
    password: str | None = field(default=None, compare=True)
    hosts: tuple[tuple[str, int], ...] = ()
    """Hosts and ports in the order in which they are tried; a host with a slash is a socket's directory."""
    tls: tuple[tuple[str, str], ...] = ()
    settings: tuple[tuple[str, str], ...] = ()
    """Server settings for every connection: ``application_name`` and what ``options=-c …`` names."""
    connect_timeout_s: float | None = None
    target_session_attrs: str | None = None
    passfile: str | None = None
    krbsrvname: str | None = None
    libpq: tuple[tuple[str, str], ...] = ()
    """Parameters that only libpq, and so only psycopg, knows."""
    pgbouncer: bool | None = None

    @property
    def in_memory(self) -> bool:
        return self.kind == "sqlite" and self.database is None

    @property
    def label(self) -> str:
        """The URL without user, password and parameters."""
        scheme = f"{self.kind}+{self.driver}" if self.driver else self.kind
        if self.kind == "sqlite":
            return f"{scheme}://" if self.database is None else f"{scheme}:///{self.database}"
        hosts = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.hosts)
        return f"{scheme}://{hosts}/{self.database or ''}"

    def __repr__(self) -> str:
        return f"DatabaseUrl({self.label!r})"

    def check_for_asyncpg(self) -> None:
        """Refuse what asyncpg has no way to honour.

        Raises:
            InvalidUrl: a parameter that only libpq knows asks for something else than asyncpg does anyway.
        """
        for name, value in self.libpq:
            if value not in _LIBPQ[name]:
                raise InvalidUrl(
                    f"the parameter {name} of {self.label} cannot be honoured by asyncpg, the driver of the async face"
                    " and of the command line; leave it out, or use the sync face with postgresql+psycopg://"
                )


def parse(url: str) -> DatabaseUrl:
    """What ``url`` says, or a refusal that names the part which cannot be honoured.

    Raises:
        InvalidUrl: not a URL of SQLite or Postgres, a driver that is not supported, a malformed part, or a parameter
            that is unknown or has no meaning here. The message never holds the password.
    """
    if not isinstance(url, str):
        raise InvalidUrl(f"a database URL is a string, such as {_FORMS}; got {type(url).__name__}")
    scheme, separator, rest = url.partition("://")
    kind, _, driver = scheme.lower().partition("+")
    kind = "postgresql" if kind == "postgres" else kind
    if not separator or kind not in _DRIVERS:
        # What stands before "://" may be anything, a password too, so it is not repeated.
        raise InvalidUrl(f"not a database URL that clew knows; write {_FORMS}")
    if driver not in _DRIVERS[kind]:
        known = ", ".join(f"{kind}+{name}://" if name else f"{kind}://" for name in sorted(_DRIVERS[kind]))
        raise InvalidUrl(f"clew has no use for the driver that {kind}+…:// names; write {known}")
    return _sqlite(driver, rest) if kind == "sqlite" else _postgres(driver, rest)


def _sqlite(driver: str, rest: str) -> DatabaseUrl:
    path, question, query = rest.partition("?")
    if question and query:
        raise InvalidUrl(
            f"the parameter {_names(query)[0]} of an sqlite:// URL is not supported;"
            " pass pool and timeout options when opening"
        )
    if path and not path.startswith("/"):
        raise InvalidUrl(
            "an sqlite:// URL names a file after three slashes (four for an absolute path): sqlite:///run.db"
        )
    if "\0" in path:
        raise InvalidUrl("the file name of an sqlite:// URL holds a NUL")
    file = path[1:]
    if file.startswith("file:"):
        raise InvalidUrl("SQLite's own file: URIs are not supported; write sqlite:///run.db")
    return DatabaseUrl("sqlite", driver, None if file in ("", ":memory:") else file)


def _postgres(driver: str, rest: str) -> DatabaseUrl:
    if "#" in rest:
        raise InvalidUrl("a Postgres URL holds a bare '#'; write it as %23 where it belongs to the password")
    address, _, query = rest.partition("?")
    parameters = _parameters(query)
    authority, _, database = address.partition("/")
    credentials, at, hostlist = authority.rpartition("@")
    user, colon, password = credentials.partition(":") if at else ("", "", "")

    def take(name: str, otherwise: str | None = None) -> str | None:
        return parameters.pop(name, None) or otherwise

    hosts = _hosts(hostlist, take("host"), take("port"))
    tls = _tls(parameters)
    settings = _options(take("options"))
    if application_name := take("application_name"):
        settings["application_name"] = application_name
    attrs = take("target_session_attrs")
    if attrs is not None and attrs not in _SESSION_ATTRS:
        raise InvalidUrl(f"the parameter target_session_attrs must be one of {', '.join(_SESSION_ATTRS)}")
    parsed = DatabaseUrl(
        "postgresql",
        driver,
        database=take("dbname", _decoded(database, "database name") or None),
        user=take("user", _decoded(user, "user") or None),
        password=take("password", _decoded(password, "password") if colon else None),
        hosts=hosts,
        tls=tuple(tls.items()),
        settings=tuple(settings.items()),
        connect_timeout_s=_seconds(take("connect_timeout")),
        target_session_attrs=attrs,
        passfile=take("passfile"),
        krbsrvname=take("krbsrvname"),
        libpq=tuple((name, parameters.pop(name)) for name in _LIBPQ if name in parameters),
        pgbouncer=_boolean("pgbouncer", take("pgbouncer")),
    )
    if parameters:
        raise InvalidUrl(f"the parameter {min(parameters)} of the Postgres URL is not known to clew; leave it out")
    if parsed.pgbouncer and (refused := [name for name in settings if name != "application_name"]):
        raise InvalidUrl(
            f"the parameter options sets {refused[0]}, which PgBouncer does not pass on in transaction mode; set it"
            " with ALTER ROLE … SET, or choose the schema when opening"
        )
    return parsed


def _parameters(query: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in query.split("&") if query else ():
        name, equals, value = part.partition("=")
        if not equals or not name:
            raise InvalidUrl("a Postgres URL's parameters are written name=value and joined by '&'")
        name = _decoded(name, "parameter's name")
        if name in found:
            raise InvalidUrl(f"the parameter {name} stands twice in the Postgres URL")
        # A plus is a plus: libpq does not read it as a space.
        found[name] = _decoded(value, f"parameter {name}")
    return found


def _names(query: str) -> list[str]:
    return [part.partition("=")[0] for part in query.split("&")]


def _decoded(text: str, what: str) -> str:
    if re.search(r"%(?![0-9A-Fa-f]{2})", text):
        raise InvalidUrl(f"the {what} in the Postgres URL holds a bare '%'; write it as %25")
    plain: str | None = None
    with suppress(UnicodeDecodeError):  # which holds the password, and would be the refusal's context
        plain = unquote(text, errors="strict")
    if plain is None:
        raise InvalidUrl(f"the {what} in the Postgres URL is not UTF-8 once decoded")
    if "\0" in plain:
        raise InvalidUrl(f"the {what} in the Postgres URL holds a NUL")
    return plain


def _hosts(hostlist: str, host: str | None, port: str | None) -> tuple[tuple[str, int], ...]:
    """Hosts and ports; a ``host`` parameter stands in for the hosts before the path, as libpq has it."""
    pairs = [_host(part) for part in hostlist.split(",")] if hostlist else []
    names = [name for name, _ in pairs]
    ports: list[int | None] = [number for _, number in pairs]
    if host is not None:
        names = host.split(",")
        ports = ports if len(ports) == len(names) else [None] * len(names)
    if port is not None:
        given: list[int | None] = [_port(number) for number in port.split(",")]
        names = names or [""]
        if len(given) not in (1, len(names)):
            raise InvalidUrl("the parameter port names another number of ports than there are hosts")
        ports = given * len(names) if len(given) == 1 else given
    if len(names) > 1 and not all(names):
        raise InvalidUrl("one of the several hosts in the Postgres URL is empty")
    return tuple((name or "localhost", number or 5432) for name, number in zip(names, ports, strict=True))


def _host(text: str) -> tuple[str, int | None]:
    bracketed = re.fullmatch(r"\[([^\]]+)\](?::(.*))?", text)
    name, port = bracketed.groups() if bracketed else (text.partition(":")[0], text.partition(":")[2])
    return _decoded(name, "host"), _port(port) if port else None


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 65536:
        # The text may be half a password: an unescaped '/' in one ends the host early.
        raise InvalidUrl(
            "a port in the Postgres URL is not a number from 1 to 65535; where the password holds '/', '?' or '#',"
            " write %2F, %3F or %23"
        )
    return int(text)


def _tls(parameters: dict[str, str]) -> dict[str, str]:
    # ssl=true is JDBC's spelling, which libpq reads too; ssl=require is what SQLAlchemy's asyncpg users write.
    if (ssl := parameters.pop("ssl", None)) is not None:
        parameters.setdefault("sslmode", {"true": "require", "false": "disable"}.get(ssl, ssl))
    tls = {name: parameters.pop(name) for name in _TLS if parameters.get(name)}
    if (root := tls.get("sslrootcert")) == "system":
        tls.setdefault("sslmode", "verify-full")
    if tls.get("sslmode", "prefer") not in _SSL_MODES:
        raise InvalidUrl(f"the parameter sslmode must be one of {', '.join(_SSL_MODES)}")
    if root == "system" and tls["sslmode"] != "verify-full":
        raise InvalidUrl("the parameter sslrootcert=system needs sslmode=verify-full")
    return tls


def _options(text: str | None) -> dict[str, str]:
    """The settings in ``-c name=value``, ``-cname=value`` and ``--name=value``; backslashes escape spaces."""
    words = [re.sub(r"\\(.)", r"\1", word) for word in re.findall(r"(?:\\.|\S)+", text or "")]
    settings: dict[str, str] = {}
    while words:
        word = words.pop(0)
        setting = word[2:] if word[:2] in ("-c", "--") else ""
        if word == "-c" and words:
            setting = words.pop(0)
        name, equals, value = setting.partition("=")
        if not equals or not _SETTING.fullmatch(name):
            raise InvalidUrl("the parameter options may hold server settings only, as in options=-csearch_path%3Dapp")
        settings[name.replace("-", "_") if word.startswith("--") else name] = value
    return settings


def _seconds(text: str | None) -> float | None:
    if text is None:
        return None
    if not re.fullmatch(r"-?\d+", text):
        raise InvalidUrl("the parameter connect_timeout must be a whole number of seconds")
    # libpq: zero and below wait for ever.
    return float(text) if int(text) > 0 else float("inf")


def _boolean(name: str, text: str | None) -> bool | None:
    if text is not None and text.lower() not in ("true", "false"):
        raise InvalidUrl(f"the parameter {name} must be true or false")
    return None if text is None else text.lower() == "true"
