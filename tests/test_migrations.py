"""Migrations: what they make, what they refuse, and that any number of processes may run them at once."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Column, Connection, Engine, Integer, MetaData, NullPool, Table, create_engine, event, text
from sqlalchemy.ext.asyncio import create_async_engine

from clew import migrate
from clew.errors import InvalidInput, SchemaMismatch
from clew.tables import tables_for

ROOT: Final = Path(__file__).parents[1]
OURS: Final = {
    "clew_alembic_version",
    "clew_checkpoint_metadata",
    "clew_checkpoints",
    "clew_pending_writes",
    "clew_resume_evidence",
    "clew_runs",
    "clew_segments",
    "clew_thread_versions",
    "clew_threads",
}


def sync_url(url: str) -> str:
    return url.replace("postgresql://", "postgresql+psycopg://", 1)


def async_url(url: str) -> str:
    return url.replace("postgresql://", "postgresql+asyncpg://", 1).replace("sqlite://", "sqlite+aiosqlite://", 1)


def opened(url: str) -> Engine:
    return create_engine(sync_url(url), poolclass=NullPool)


@pytest.fixture
def empty(empty_database_url: str) -> Engine:
    """An empty database, on each kind in turn. Its connections close when they are let go of."""
    return opened(empty_database_url)


@pytest.fixture
def migrated(database_url: str) -> Engine:
    return opened(database_url)


def catalogue(connection: Connection, schema: str | None = None) -> list[str]:
    """The database's own account of clew's tables: columns, defaults, constraints and indexes, with their names."""
    if connection.dialect.name == "sqlite":
        rows = connection.exec_driver_sql("SELECT type, name, sql FROM sqlite_master WHERE name LIKE '%clew%'")
        return sorted(" ".join(f"{kind} {name} {sql or ''}".split()) for kind, name, sql in rows)
    found = connection.execute(
        text("""
        SELECT 'column', c.relname, a.attname, format_type(a.atttypid, a.atttypmod), coalesce(l.collname, ''),
               a.attnotnull::text, a.attidentity::text, coalesce(pg_get_expr(d.adbin, d.adrelid), ''), a.attnum::text
          FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
          LEFT JOIN pg_collation l ON l.oid = a.attcollation
          LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
         WHERE c.relkind = 'r' AND a.attnum > 0 AND c.relname LIKE 'clew%' AND n.nspname = :schema
        UNION ALL
        SELECT 'constraint', c.relname, k.conname, pg_get_constraintdef(k.oid), '', '', '', '', ''
          FROM pg_constraint k JOIN pg_class c ON c.oid = k.conrelid JOIN pg_namespace n ON n.oid = c.relnamespace
         WHERE c.relname LIKE 'clew%' AND n.nspname = :schema
        UNION ALL
        SELECT 'index', tablename, indexname, indexdef, '', '', '', '', ''
          FROM pg_indexes WHERE tablename LIKE 'clew%' AND schemaname = :schema
        """),
        {"schema": schema or "public"},
    )
    return sorted(" ".join(row) for row in found)


def without_version_table(entries: list[str]) -> list[str]:
    return [entry for entry in entries if "clew_alembic_version" not in entry]


def tables(connection: Connection) -> set[str]:
    names = {"sqlite": "SELECT name FROM sqlite_master WHERE type = 'table'"}.get(
        connection.dialect.name, "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
    )
    return {str(name) for name in connection.exec_driver_sql(names).scalars() if not name.startswith("sqlite_")}


# What they make


def test_the_head_is_the_newest_revision_and_all_are_known() -> None:
    script = ScriptDirectory(str(ROOT / "migrations"))
    assert [found.revision for found in script.walk_revisions()][::-1] == list(migrate.REVISIONS)
    assert script.get_heads() == [migrate.HEAD]


@pytest.mark.invariant(31)
def test_the_migrated_schema_is_the_declared_one(empty: Engine) -> None:
    with empty.begin() as connection:
        tables_for().metadata.create_all(connection)
        declared = catalogue(connection)
        tables_for().metadata.drop_all(connection)
        migrate.upgrade(connection)
        assert without_version_table(catalogue(connection)) == declared
    assert {f"pk_{name}" for name in OURS - {"clew_alembic_version", "clew_threads"}} <= set(" ".join(declared).split())


def test_autogenerate_finds_nothing_to_do_in_a_migrated_database(migrated: Engine) -> None:
    with migrated.connect() as connection:
        options = {**migrate.options(), "compare_type": True}
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, tables_for().metadata) == []


def test_postgres_does_not_compress_payloads_again(postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        storage = connection.execute(
            "SELECT attstorage FROM pg_attribute WHERE attrelid = 'clew_segments'::regclass AND attname = 'payload'"
        ).fetchone()
    assert storage in (("e",), (b"e",))


def test_downgrade_leaves_no_table_of_clew_but_the_empty_version_table(migrated: Engine) -> None:
    with migrated.begin() as connection:
        migrate.downgrade(connection)
    with migrated.begin() as connection:
        assert tables(connection) == {"clew_alembic_version"}
        assert migrate.current(connection) is None


def test_upgrade_after_a_downgrade_makes_the_same_schema(migrated: Engine) -> None:
    with migrated.begin() as connection:
        before = catalogue(connection)
        migrate.downgrade(connection)
        migrate.upgrade(connection)
    with migrated.begin() as connection:
        assert catalogue(connection) == before


def test_upgrade_of_a_migrated_database_changes_nothing(migrated: Engine) -> None:
    with migrated.begin() as connection:
        before = catalogue(connection)
        migrate.upgrade(connection)
        migrate.upgrade(connection, to="0001")
        assert catalogue(connection) == before


def test_upgrade_is_undone_with_the_callers_transaction(empty: Engine) -> None:
    with empty.connect() as connection:
        migrate.upgrade(connection)
        assert migrate.current(connection) == "0001"
        connection.rollback()
    with empty.connect() as connection:
        assert tables(connection) == set()


async def test_upgrade_runs_on_async_drivers(empty_database_url: str) -> None:
    engine = create_async_engine(async_url(empty_database_url), poolclass=NullPool)
    async with engine.begin() as connection:
        await connection.run_sync(migrate.upgrade)
    async with engine.connect() as connection:
        await connection.run_sync(migrate.check)


def test_a_postgres_schema_can_be_chosen_and_is_created(empty_postgres_url: str) -> None:
    engine = opened(empty_postgres_url)
    with engine.begin() as connection:
        migrate.upgrade(connection, schema="time travel")
    with engine.begin() as connection:
        migrate.check(connection, "time travel")
        assert migrate.current(connection) is None
        assert tables(connection) == set()
        migrated = without_version_table(catalogue(connection, "time travel"))
        assert (
            compare_metadata(
                MigrationContext.configure(connection, opts=migrate.options("time travel")),
                tables_for("time travel").metadata,
            )
            == []
        )
        migrate.upgrade(connection)
        in_public = without_version_table(catalogue(connection))
        assert [entry.replace('"time travel".', "") for entry in migrated] == [
            entry.replace("public.", "") for entry in in_public
        ]
        migrate.downgrade(connection, schema="time travel")
        assert migrate.current(connection, "time travel") is None
        assert migrate.current(connection) == "0001"


def test_the_offline_sql_makes_the_same_schema_on_sqlite(tmp_path: Path, sqlite_url: str) -> None:
    with sqlite3.connect(tmp_path / "offline.db") as connection:
        connection.executescript(migrate.sql("sqlite"))
    connection.close()
    with opened(sqlite_url).connect() as by_upgrade, opened(f"sqlite:///{tmp_path}/offline.db").connect() as by_hand:
        migrate.check(by_hand)
        assert catalogue(by_hand) == catalogue(by_upgrade)


@pytest.mark.parametrize("schema", [None, "apart"])
def test_the_offline_sql_makes_the_same_schema_on_postgres(
    empty_postgres_url: str, postgres_url: str, schema: str | None
) -> None:
    with psycopg.connect(empty_postgres_url, autocommit=True) as connection:
        connection.execute(migrate.sql("postgresql", schema).encode())
    with opened(postgres_url).connect() as by_upgrade, opened(empty_postgres_url).connect() as by_hand:
        migrate.check(by_hand, schema)
        made = [entry.replace(f"{schema}.", "public.").replace("public.", "") for entry in catalogue(by_hand, schema)]
        assert made == [entry.replace("public.", "") for entry in catalogue(by_upgrade)]


# What they refuse


def test_a_postgres_connection_without_a_transaction_is_refused(empty_postgres_url: str) -> None:
    with opened(empty_postgres_url).connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        with pytest.raises(InvalidInput, match="AUTOCOMMIT"):
            migrate.upgrade(connection)
        assert tables(connection) == set()


async def test_an_asyncpg_connection_without_a_transaction_is_refused(empty_postgres_url: str) -> None:
    engine = create_async_engine(async_url(empty_postgres_url), poolclass=NullPool, isolation_level="AUTOCOMMIT")
    async with engine.connect() as connection:
        with pytest.raises(InvalidInput, match="AUTOCOMMIT"):
            await connection.run_sync(migrate.upgrade)
        assert await connection.run_sync(migrate.current) is None


def test_an_empty_database_is_behind_and_the_command_is_named(empty: Engine) -> None:
    with empty.connect() as connection, pytest.raises(SchemaMismatch, match=r"run `clew migrate`") as refused:
        migrate.check(connection)
    assert (refused.value.found, refused.value.expected) == (None, "0001")


def test_a_database_at_an_older_revision_is_behind(migrated: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrate, "REVISIONS", ("0001", "0002"))
    monkeypatch.setattr(migrate, "HEAD", "0002")
    with (
        migrated.connect() as connection,
        pytest.raises(SchemaMismatch, match=r"is at revision '0001'.*needs '0002'; run `clew migrate`") as refused,
    ):
        migrate.check(connection)
    assert (refused.value.found, refused.value.expected) == ("0001", "0002")


@pytest.mark.parametrize(
    ("revision", "reason"),
    [("0002", "ahead of this version of clew.*'0002'"), ("1975ea83b712", "not clew's.*'1975ea83b712'")],
)
def test_a_revision_from_elsewhere_is_refused_and_left_alone(migrated: Engine, revision: str, reason: str) -> None:
    with migrated.begin() as connection:
        connection.execute(text("UPDATE clew_alembic_version SET version_num = :revision"), {"revision": revision})
    for refuse in (migrate.check, migrate.upgrade, migrate.downgrade, migrate.current):
        with migrated.begin() as connection, pytest.raises(SchemaMismatch, match=reason) as refused:
            refuse(connection)
        assert refused.value.found == revision
        assert "clew migrate" in str(refused.value)
    with migrated.connect() as connection:
        assert tables(connection) == OURS


@pytest.mark.parametrize("refuse", [migrate.check, migrate.upgrade, migrate.downgrade, migrate.current])
def test_a_table_of_the_same_name_that_clew_did_not_make_is_refused(empty: Engine, refuse: Any) -> None:
    with empty.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE clew_runs (mine integer)")
    with empty.begin() as connection, pytest.raises(SchemaMismatch, match="clew_runs that clew's migrations did not"):
        refuse(connection)
    with empty.connect() as connection:
        assert tables(connection) == {"clew_runs"}


def test_check_on_postgres_is_one_statement_and_spoils_no_transaction(empty_postgres_url: str) -> None:
    engine, seen = opened(empty_postgres_url), []
    event.listen(engine, "before_cursor_execute", lambda *arguments: seen.append(arguments[2]))
    with engine.begin() as connection:
        seen.clear()
        with pytest.raises(SchemaMismatch):
            migrate.check(connection)
        assert len(seen) == 1
        assert connection.scalar(text("SELECT 1")) == 1


def test_check_does_not_load_alembic(sqlite_url: str) -> None:
    script = (
        "import sys; from clew import migrate; from sqlalchemy import create_engine\n"
        f"migrate.check(create_engine({sqlite_url!r}).connect())\n"
        f"migrate.upgrade(create_engine({sqlite_url!r}).connect())\n"
        "print('alembic' in sys.modules)"
    )
    printed = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert printed.stdout == "False\n"


def test_an_unknown_target_is_refused_by_name(empty: Engine) -> None:
    with empty.connect() as connection:
        with pytest.raises(InvalidInput, match=r"no revision '\+1'; known are head, 0001"):
            migrate.upgrade(connection, to="+1")
        with pytest.raises(InvalidInput, match="no revision 'head'; known are base, 0001"):
            migrate.downgrade(connection, to="head")


def test_a_schema_is_refused_on_sqlite(empty_sqlite_url: str) -> None:
    with opened(empty_sqlite_url).connect() as connection:
        for refuse in (migrate.upgrade, migrate.downgrade):
            with pytest.raises(InvalidInput, match="SQLite has no schemas"):
                refuse(connection, schema="apart")
        with pytest.raises(InvalidInput, match="SQLite has no schemas"):
            migrate.check(connection, "apart")
    with pytest.raises(InvalidInput, match="SQLite has no schemas"):
        migrate.sql("sqlite", "apart")


def test_an_unknown_dialect_is_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match="no migrations for 'oracle'"):
        migrate.sql("oracle")


# Many processes

FIRST_BOOT: Final = """
import sys
from sqlalchemy import create_engine
from clew import migrate
engine = create_engine(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
with engine.begin() as connection:
    migrate.upgrade(connection)
with engine.begin() as connection:
    migrate.check(connection)
print("done", flush=True)
"""


@pytest.fixture
def snapshot(empty: Engine, empty_database_url: str) -> Iterator[Connection]:
    """A connection that has looked at the database and stays inside that transaction."""
    with empty.connect() as connection:
        if connection.dialect.name == "sqlite":
            connection.exec_driver_sql("PRAGMA journal_mode = WAL")
            connection.exec_driver_sql("BEGIN")
        else:
            connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        assert tables(connection) == set()
        yield connection


@pytest.mark.invariant(30)
def test_eight_first_boots_at_once_all_succeed_beside_an_open_snapshot(
    empty: Engine, empty_database_url: str, snapshot: Connection
) -> None:
    boots = [
        subprocess.Popen(
            [sys.executable, "-c", FIRST_BOOT, sync_url(empty_database_url)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(8)
    ]
    try:
        for boot in boots:
            assert boot.stdout is not None
            assert boot.stdout.readline() == "ready\n"
        for boot in boots:
            assert boot.stdin is not None
            boot.stdin.write("\n")
            boot.stdin.flush()
        outcomes = [(*boot.communicate(timeout=30), boot.returncode) for boot in boots]
    finally:
        for boot in boots:
            boot.kill()
            boot.communicate()
    assert outcomes == [("done\n", "", 0)] * 8
    if empty.dialect.name == "sqlite":
        assert tables(snapshot) == set()  # it still sees what it saw
    with empty.connect() as connection:
        assert tables(connection) == OURS


# In a host's house


@pytest.mark.invariant(32)
def test_the_hosts_autogenerate_does_not_see_clews_tables(migrated: Engine) -> None:
    theirs = MetaData()
    Table("orders", theirs, Column("id", Integer, primary_key=True))
    with migrated.begin() as connection:
        theirs.create_all(connection)
        seen = MigrationContext.configure(connection)
        assert len(compare_metadata(seen, theirs)) >= 8
        filtered = MigrationContext.configure(connection, opts={"include_name": migrate.include_name})
        assert compare_metadata(filtered, theirs) == []
        ours = MigrationContext.configure(connection, opts=migrate.options())
        assert compare_metadata(ours, tables_for().metadata) == []


def test_a_table_of_the_hosts_that_only_starts_alike_stays_the_hosts() -> None:
    assert migrate.include_name("clew_customers", "table", {}) is True
    assert migrate.include_name("clew_threads", "table", {}) is False
    assert migrate.include_name("clew_threads", "column", {}) is True


HOST_ENV: Final = """
from alembic import context
from sqlalchemy import create_engine
engine = create_engine(context.config.get_main_option("sqlalchemy.url"))
with engine.begin() as connection:
    context.configure(connection=connection)
    with context.begin_transaction():
        context.run_migrations()
engine.dispose()
"""
HOST_REVISION: Final = """
import sqlalchemy as sa
from alembic import op
from clew import migrate
revision, down_revision = "a1", None
def upgrade():
    op.create_table("orders", sa.Column("id", sa.Integer, primary_key=True))
    migrate.upgrade(op.get_bind())
    op.create_table("invoices", sa.Column("id", sa.Integer, primary_key=True))
def downgrade():
    op.drop_table("invoices")
    migrate.downgrade(op.get_bind())
    op.drop_table("orders")
"""


def test_a_hosts_own_revision_can_run_clews_migrations(empty: Engine, empty_database_url: str, tmp_path: Path) -> None:
    from alembic import command

    (tmp_path / "host" / "versions").mkdir(parents=True)
    (tmp_path / "host" / "env.py").write_text(HOST_ENV)
    (tmp_path / "host" / "versions" / "a1.py").write_text(HOST_REVISION)
    config = Config()
    config.set_main_option("script_location", str(tmp_path / "host"))
    config.set_main_option("sqlalchemy.url", sync_url(empty_database_url))
    command.upgrade(config, "head")
    with empty.connect() as connection:
        migrate.check(connection)
        assert tables(connection) == OURS | {"alembic_version", "orders", "invoices"}
        assert connection.scalar(text("SELECT version_num FROM alembic_version")) == "a1"
    command.downgrade(config, "base")
    with empty.connect() as connection:
        assert tables(connection) == {"alembic_version", "clew_alembic_version"}


def alembic(*arguments: str, cwd: Path = ROOT, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "alembic", *arguments],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("spelled", [sync_url, async_url, str])
def test_alembics_own_commands_work_in_the_checkout(empty: Engine, empty_database_url: str, spelled: Any) -> None:
    url = spelled(empty_database_url)
    alembic("-x", f"url={url}", "upgrade", "head")
    assert "No new upgrade operations detected" in alembic("check", CLEW_URL=url)
    with empty.connect() as connection:
        migrate.check(connection)


def test_alembics_own_commands_take_a_schema(empty_postgres_url: str) -> None:
    chosen = ("-x", f"url={empty_postgres_url}", "-x", "schema=apart")
    alembic(*chosen, "upgrade", "head")
    assert "No new upgrade operations detected" in alembic(*chosen, "check")
    assert "CREATE TABLE apart.clew_threads" in alembic(*chosen, "upgrade", "head", "--sql")
    with opened(empty_postgres_url).connect() as connection:
        migrate.check(connection, "apart")


def test_alembic_writes_a_new_revision_in_the_form_that_clew_runs(sqlite_url: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "migrations", tmp_path / "migrations")
    shutil.copy(ROOT / "alembic.ini", tmp_path)
    alembic("-x", f"url={sqlite_url}", "revision", "-m", "more", "--rev-id", "0002", cwd=tmp_path)
    written = (tmp_path / "migrations" / "versions" / "0002_more.py").read_text()
    assert re.search(r"def upgrade\(op: Operations, schema: str \| None\) -> None:\n    pass", written)
    assert 'down_revision = "0001"' in written.replace("'", '"')
