"""What database URLs mean, and that both Postgres drivers are told the same."""

from __future__ import annotations

from typing import Any

import pytest

import clew.engine.postgres as drivers
from clew.engine import EngineOptions, open_async, open_sync, parse
from clew.errors import ClewError, InvalidInput, InvalidUrl

PLAIN = EngineOptions()


def asyncpg(url: str, options: EngineOptions = PLAIN) -> dict[str, Any]:
    return drivers.asyncpg_arguments(parse(url), options)


def psycopg(url: str, options: EngineOptions = PLAIN) -> dict[str, Any]:
    return drivers.psycopg_arguments(parse(url), options)


@pytest.mark.parametrize(
    ("url", "database"),
    [
        ("sqlite://", None),
        ("sqlite:///:memory:", None),
        ("sqlite:///run.db", "run.db"),
        ("sqlite:////var/lib/run.db", "/var/lib/run.db"),
        ("sqlite+aiosqlite:///run.db", "run.db"),
        ("sqlite+pysqlite:///a b%20c#d.db", "a b%20c#d.db"),
    ],
)
def test_an_sqlite_url_names_a_file_as_it_is_written(url: str, database: str | None) -> None:
    assert parse(url).database == database
    assert parse(url).in_memory == (database is None)


@pytest.mark.parametrize(
    "url",
    [
        "postgres://u:p%40s%25s@h:5433/d",
        "postgresql://u:p%40s%25s@h:5433/d",
        "postgresql://u:p@s%25s@h:5433/d",
        "postgresql:///d?host=h&port=5433&user=u&password=p%40s%25s",
        "postgresql://u@h:5433/ignored?dbname=d&password=p@s%25s",
    ],
)
def test_both_drivers_log_in_alike(url: str) -> None:
    parsed = parse(url)
    assert (parsed.user, parsed.password, parsed.hosts, parsed.database) == ("u", "p@s%s", (("h", 5433),), "d")
    assert {name: psycopg(url)[name] for name in ("user", "password", "host", "port", "dbname")} == {
        "user": "u",
        "password": "p@s%s",
        "host": "h",
        "port": "5433",
        "dbname": "d",
    }
    assert {name: asyncpg(url)[name] for name in ("user", "password", "database")} == {
        "user": "u",
        "password": "p@s%s",
        "database": "d",
    }


@pytest.mark.parametrize(
    ("url", "hosts"),
    [
        ("postgresql://h1:5432,h2:5433/d", (("h1", 5432), ("h2", 5433))),
        ("postgresql://h1,h2/d?port=6000", (("h1", 6000), ("h2", 6000))),
        ("postgresql:///d?host=h1,h2&port=1,2", (("h1", 1), ("h2", 2))),
        ("postgresql://u@/d?host=/var/run/postgresql", (("/var/run/postgresql", 5432),)),
        ("postgresql://%2Fvar%2Frun%2Fpostgresql:6/d", (("/var/run/postgresql", 6),)),
        ("postgresql://[::1]:7,[fe80::2]/d", (("::1", 7), ("fe80::2", 5432))),
        ("postgresql:///d", ()),
    ],
)
def test_hosts_are_tried_in_the_order_of_the_url(url: str, hosts: tuple[tuple[str, int], ...]) -> None:
    assert parse(url).hosts == hosts
    assert psycopg(url).get("host") == (",".join(host for host, _ in hosts) or None)
    assert psycopg(url).get("port") == (",".join(str(port) for _, port in hosts) or None)


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ("-csearch_path%3Dapp", {"search_path": "app"}),
        ("-c%20search_path%3Dapp%20-c%20work_mem%3D64MB", {"search_path": "app", "work_mem": "64MB"}),
        ("--search-path%3Dapp", {"search_path": "app"}),
        ("-csearch_path%3Dapp,%5C%20public", {"search_path": "app, public"}),
    ],
)
def test_both_drivers_send_the_same_server_settings(options: str, settings: dict[str, str]) -> None:
    url = f"postgresql://h/d?options={options}&application_name=my%20app"
    assert asyncpg(url)["server_settings"] == {"application_name": "my app", **settings}
    assert psycopg(url)["application_name"] == "my app"
    escaped = {name: value.replace(" ", "\\ ") for name, value in settings.items()}
    assert psycopg(url)["options"] == " ".join(f"-c {name}={value}" for name, value in escaped.items())


@pytest.mark.parametrize("mode", ["disable", "allow", "prefer", "require"])
@pytest.mark.parametrize("name", ["sslmode", "ssl"])
def test_sslmode_reaches_both_drivers(name: str, mode: str) -> None:
    url = f"postgresql://h/d?{name}={mode}"
    assert psycopg(url)["sslmode"] == mode
    assert asyncpg(url)["dsn"] == f"postgresql://?sslmode={mode}"


def test_certificate_files_reach_both_drivers() -> None:
    url = "postgresql://h/d?sslmode=verify-full&sslrootcert=/a%20b/ca.pem"
    assert psycopg(url)["sslrootcert"] == "/a b/ca.pem"
    assert asyncpg(url)["dsn"] == "postgresql://?sslmode=verify-full&sslrootcert=%2Fa%20b%2Fca.pem"


def test_the_systems_certificates_check_the_host_on_both_drivers() -> None:
    url = "postgresql://h/d?sslrootcert=system"
    assert psycopg(url)["sslmode"] == "verify-full"
    assert asyncpg(url)["ssl"].check_hostname is True


@pytest.mark.parametrize(("given", "seconds"), [("7", 7), ("1", 2), ("0", None), ("-1", None)])
def test_connect_timeout_is_libpqs_on_both_drivers(given: str, seconds: int | None) -> None:
    url = f"postgresql://h/d?connect_timeout={given}"
    assert asyncpg(url)["timeout"] == seconds
    assert psycopg(url)["connect_timeout"] == (seconds or 0)


def test_a_server_that_never_answers_is_given_up_on_without_a_connect_timeout() -> None:
    assert asyncpg("postgresql://h/d")["timeout"] == psycopg("postgresql://h/d")["connect_timeout"] == 30


def test_time_limits_travel_in_the_start_up_packet() -> None:
    limited = EngineOptions(timeout_s=1.5)
    assert asyncpg("postgresql://h/d", limited)["server_settings"]["lock_timeout"] == "1500"
    assert psycopg("postgresql://h/d", limited)["options"] == "-c lock_timeout=1500 -c statement_timeout=1500"


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("postgresql://h/d", EngineOptions(pgbouncer=True, timeout_s=2)),
        ("postgresql://h/d?pgbouncer=true", EngineOptions(timeout_s=2)),
    ],
)
def test_pgbouncer_gets_no_prepared_statements_and_no_settings(url: str, options: EngineOptions) -> None:
    told = asyncpg(url, options)
    assert told["server_settings"] == {"application_name": "clew"}
    assert (told["statement_cache_size"], told["prepared_statement_cache_size"]) == (0, 0)
    assert "options" not in psycopg(url, options)
    assert psycopg(url, options)["prepare_threshold"] is None


@pytest.mark.parametrize(
    "parameter",
    ["channel_binding=require", "keepalives_idle=30", "gssencmode=require", "load_balance_hosts=random"],
)
def test_what_asyncpg_cannot_do_is_refused_by_name_and_left_to_psycopg(parameter: str) -> None:
    name, _, value = parameter.partition("=")
    url = f"postgresql://u:secret@h/d?{parameter}"
    with pytest.raises(InvalidUrl, match=name):
        asyncpg(url)
    assert psycopg(url)[name] == value


def test_what_asyncpg_does_anyway_is_accepted() -> None:
    assert "channel_binding" not in asyncpg("postgresql://h/d?channel_binding=prefer&gssencmode=disable")


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("mysql://u:secret@h/d", "not a database URL"),
        ("secret", "not a database URL"),
        ("", "not a database URL"),
        ("postgresql+psycopg2://u:secret@h/d", "driver"),
        ("postgresql+secret://h/d", "driver"),
        ("sqlite://run.db", "three slashes"),
        ("sqlite:///run.db?secret=1&mode=ro", "parameter"),
        ("sqlite:///file:run.db", "file: URIs"),
        ("sqlite:///a\0b", "NUL"),
        ("postgresql://u:secret/x@h/d", "%2F"),
        ("postgresql://u:secret#x@h/d", "%23"),
        ("postgresql://u:secret%@h/d", "%25"),
        ("postgresql://u:secret%ff@h/d", "UTF-8"),
        ("postgresql://u:secret%00@h/d", "NUL"),
        ("postgresql://u:secret@h:70000/d", "port"),
        ("postgresql://u:secret@h1,/d", "empty"),
        ("postgresql://u:secret@h1,h2/d?port=1,2,3", "port"),
        ("postgresql://u:secret@h/d?sslmode=maybe", "sslmode"),
        ("postgresql://u:secret@h/d?sslmode=require&sslrootcert=system", "verify-full"),
        ("postgresql://u:secret@h/d?target_session_attrs=fast", "target_session_attrs"),
        ("postgresql://u:secret@h/d?connect_timeout=soon", "connect_timeout"),
        ("postgresql://u:secret@h/d?options=endpoint%3Dx", "options"),
        ("postgresql://u:secret@h/d?pgbouncer=yes", "pgbouncer"),
        ("postgresql://u:secret@h/d?pgbouncer=true&options=-csearch_path%3Da", "search_path"),
        ("postgresql://u:secret@h/d?schema=public", "schema"),
        ("postgresql://u:secret@h/d?user=a&user=b", "user"),
        ("postgresql://u:secret@h/d?verbose", "name=value"),
    ],
)
def test_what_cannot_be_honoured_is_refused_without_the_password(url: str, named: str) -> None:
    with pytest.raises(InvalidUrl, match=named) as refusal:
        parse(url)
    assert "secret" not in str(refusal.value).replace("parameter secret", "")


def test_a_url_is_a_string() -> None:
    with pytest.raises(InvalidUrl, match="NoneType"):
        parse(None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("url", "label"),
    [
        ("postgresql://u:secret@h1,[::1]:7/d?password=secret", "postgresql://h1:5432,[::1]:7/d"),
        ("postgres://u:secret@h/d", "postgresql://h:5432/d"),
        ("sqlite:///run.db", "sqlite:///run.db"),
        ("sqlite+aiosqlite://", "sqlite+aiosqlite://"),
    ],
)
def test_a_urls_repr_holds_no_password(url: str, label: str) -> None:
    assert parse(url).label == label
    assert repr(parse(url)) == f"DatabaseUrl({label!r})"


def test_an_engines_repr_holds_no_password() -> None:
    database = open_sync("postgresql://u:secret@h/d")
    assert "secret" not in repr(database.engine) + repr(database.engine.url)


@pytest.mark.parametrize("url", ["postgresql+asyncpg://h/d", "sqlite+aiosqlite:///x.db"])
def test_the_sync_face_refuses_an_async_driver(url: str) -> None:
    with pytest.raises(InvalidUrl, match="AsyncCheckpointer"):
        open_sync(url)


def test_the_async_face_refuses_psycopg() -> None:
    with pytest.raises(InvalidUrl, match="with Checkpointer"):
        open_async("postgresql+psycopg://h/d")


def test_without_psycopg_the_install_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drivers, "find_spec", lambda name: None)
    with pytest.raises(ClewError, match=r"pip install 'clew\[postgres-sync\]'"):
        open_sync("postgresql://h/d")


@pytest.mark.parametrize(
    "options",
    [
        {"pool_size": 0},
        {"pool_size": "8"},
        {"pool_size": 2.5},
        {"max_overflow": -1},
        {"pool_recycle_s": 0},
        {"timeout_s": 0},
        {"timeout_s": -1.0},
        {"timeout_s": "2"},
    ],
)
def test_options_that_make_no_sense_are_refused_by_name(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(options))):
        EngineOptions(**options)
