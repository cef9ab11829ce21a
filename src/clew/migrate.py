"""Brings a database to the schema that this version of clew works with, and tells whether it is there.

The steps themselves are the revisions in ``migrations/``. Alembic is loaded only where a step has to be taken.

Everything here works inside the transaction of the connection that it is handed, and never commits: with a host's own
rows, from a host's own Alembic revision, through PgBouncer. On Postgres that transaction has to be READ COMMITTED, as
it is by default: after waiting for another process' migration it must see what that process did.
"""

from __future__ import annotations

import io
import re
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Connection, text
from sqlalchemy.schema import CreateSchema
from sqlalchemy.sql.compiler import IdentifierPreparer

from clew.errors import InvalidInput, SchemaMismatch
from clew.tables import VERSION_TABLE, tables_for

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping

    from alembic.script import ScriptDirectory

__all__ = [
    "HEAD",
    "REVISIONS",
    "check",
    "current",
    "downgrade",
    "include_name",
    "options",
    "prepare",
    "sql",
    "upgrade",
]

REVISIONS: Final = ("0001",)
"""Every revision, oldest first; a test holds it equal to ``migrations/versions``."""

HEAD: Final = REVISIONS[-1]

_TURN_MS: Final = 60_000  # SQLite: how long to wait for other processes' migrations


def upgrade(connection: Connection, *, schema: str | None = None, to: str = "head") -> None:
    """Bring the database up to revision ``to``; nothing happens where it is there already, or beyond.

    Safe from any number of processes at once: they queue up behind a lock that ends with the transaction. The caller
    commits. A Postgres ``schema`` that does not exist is created.

    Raises:
        SchemaMismatch: the database is ahead of this version of clew, or its tables are not clew's.
        InvalidInput: ``to`` is no revision, ``schema`` was given for SQLite, or the connection is in AUTOCOMMIT.
    """
    target = _revision(to, head=True)
    if _rank(current(connection, schema)) >= _rank(target):
        return
    take = _steps_taken_by_alembic()  # the slow import comes before the lock
    prepare(connection, schema)
    if _rank(current(connection, schema)) < _rank(target):
        take(connection, schema, lambda script, found: script._upgrade_revs(target or HEAD, found))


def downgrade(connection: Connection, *, schema: str | None = None, to: str = "base") -> None:
    """Take the database back to revision ``to``; ``"base"`` drops clew's tables and everything in them.

    Nothing happens where the database is there already, or behind. The caller commits.

    Raises:
        SchemaMismatch: the database is ahead of this version of clew, or its tables are not clew's.
        InvalidInput: ``to`` is no revision, ``schema`` was given for SQLite, or the connection is in AUTOCOMMIT.
    """
    target = _revision(to, head=False)
    if _rank(current(connection, schema)) <= _rank(target):
        return
    take = _steps_taken_by_alembic()
    prepare(connection, schema)
    if _rank(current(connection, schema)) > _rank(target):
        take(connection, schema, lambda script, found: script._downgrade_revs(target or "base", found))


def current(connection: Connection, schema: str | None = None) -> str | None:
    """The revision that the database is at, or None where it has nothing of clew yet. One small query on Postgres.

    Raises:
        SchemaMismatch: the database is ahead of this version of clew, or its tables are not clew's.
        InvalidInput: ``schema`` was given for SQLite.
    """
    dialect = connection.dialect
    owner = _owner(dialect.identifier_preparer, dialect.name, schema)
    table, found = _look_sqlite(connection) if dialect.name == "sqlite" else _look_postgres(connection, owner)
    where = f" in schema {schema!r}" if schema else ""
    if found is None and table is not None:
        raise SchemaMismatch(
            f"the database{where} has a table {table} that clew's migrations did not make: {VERSION_TABLE} names no"
            f" revision (expected {HEAD}). Use another database or schema, or move that table away, then run"
            " `clew migrate`",
            found=None,
            expected=HEAD,
        )
    if found is not None and found not in REVISIONS:
        newer = re.fullmatch(r"\d{4}", found) and found > HEAD
        reason = "is ahead of this version of clew" if newer else "is at a revision that is not clew's"
        remedy = "upgrade the package clew" if newer else "use another database or schema"
        raise SchemaMismatch(
            f"the database{where} {reason}: it is at {found!r}, this version knows up to {HEAD!r};"
            f" {remedy}. `clew migrate --current` shows the revision",
            found=found,
            expected=HEAD,
        )
    return found


def check(connection: Connection, schema: str | None = None) -> None:
    """Return only if the database is at the revision that this version of clew works with.

    Raises:
        SchemaMismatch: it is behind, ahead, or not clew's; the message names the revision and the command to run.
        InvalidInput: ``schema`` was given for SQLite.
    """
    found = current(connection, schema)
    if found != HEAD:
        where = f" in schema {schema!r}" if schema else ""
        state = "has no clew tables yet" if found is None else f"is at revision {found!r}"
        command = f"clew migrate --schema {schema}" if schema else "clew migrate"
        raise SchemaMismatch(
            f"the database{where} {state}, this version of clew needs {HEAD!r}; run `{command}`"
            " (or open with migrate=True)",
            found=found,
            expected=HEAD,
        )


def sql(dialect_name: str, schema: str | None = None) -> str:
    """The statements that take an empty database to the newest revision, as one transaction, to run by hand.

    Raises:
        InvalidInput: ``dialect_name`` is neither ``"sqlite"`` nor ``"postgresql"``, or ``schema`` was given for SQLite.
    """
    from alembic.operations import Operations
    from alembic.runtime.migration import MigrationContext

    if dialect_name not in ("postgresql", "sqlite"):
        raise InvalidInput(f"no migrations for {dialect_name!r}; the dialects are 'postgresql' and 'sqlite'")
    script, written = _script(), io.StringIO()
    context = MigrationContext.configure(
        dialect_name=dialect_name,
        opts={
            **options(schema),
            "as_sql": True,
            "literal_binds": True,
            "output_buffer": written,
            "fn": lambda found, _: script._upgrade_revs("head", found),
        },
    )
    owner = _owner(context.dialect.identifier_preparer, dialect_name, schema)
    with context.begin_transaction():
        if owner:
            context.impl.static_output(f"CREATE SCHEMA IF NOT EXISTS {owner[:-1]};")
        context.run_migrations(op=Operations(context), schema=schema)
    return written.getvalue()


def include_name(name: str | None, type_: str, parent_names: MutableMapping[str, str | None]) -> bool:  # noqa: ARG001
    """Whether Alembic's autogenerate of the *host* should look at ``name``: at everything but clew's tables.

    For ``context.configure(include_name=clew.migrate.include_name)`` in the host's ``env.py``; without it the host's
    autogenerate proposes to drop clew's tables, which its own models do not have.
    """
    return type_ != "table" or name not in (*_tables(), VERSION_TABLE)


def prepare(connection: Connection, schema: str | None = None) -> None:
    """Wait until no other process migrates this schema, and create it if it is missing.

    What is waited for ends with the connection's transaction, as this one's turn does.

    Raises:
        InvalidInput: there is no transaction, the connection being in AUTOCOMMIT (Postgres).
    """
    if connection.dialect.name == "sqlite":
        _begin_immediate(connection)
        return
    driver: Any = connection.connection.dbapi_connection
    if getattr(driver, "autocommit", False):
        raise InvalidInput(
            "migrations take a transaction, and this connection is in AUTOCOMMIT: neither their turn nor what they did"
            " so far would hold; use a connection that is not"
        )
    key = int.from_bytes(blake2b(f"clew migrate {schema or ''}".encode(), digest_size=8).digest(), signed=True)
    connection.execute(text("SELECT pg_advisory_xact_lock(CAST(:key AS bigint))"), {"key": key})
    # CREATE SCHEMA IF NOT EXISTS asks for the privilege to create one even where there is nothing to create.
    if schema and not connection.dialect.has_schema(connection, schema):
        connection.execute(CreateSchema(schema))


def options(schema: str | None = None) -> dict[str, Any]:
    """What an Alembic context of clew's own is configured with, whoever runs it."""

    def only_ours(name: str | None, type_: str, _: MutableMapping[str, str | None]) -> bool:
        if type_ == "schema":
            return name == schema
        return type_ != "table" or name in (*_tables(), VERSION_TABLE)

    return {
        "target_metadata": tables_for(schema).metadata,
        "version_table": VERSION_TABLE,
        "version_table_schema": schema,
        "include_schemas": schema is not None,
        "include_name": only_ours,
        "transactional_ddl": True,  # SQLite's is too, once a transaction was really begun
    }


def _steps_taken_by_alembic() -> Callable[[Connection, str | None, Callable[[ScriptDirectory, Any], Any]], None]:
    """A function that takes the steps chosen by its third argument over the connection.

    Not ``alembic.command``: that installs ``alembic.op`` and ``alembic.context`` for the whole process and takes them
    away afterwards, also from the host's revision that called us. So the revisions get their operations as arguments.
    """
    from alembic.operations import Operations
    from alembic.runtime.migration import MigrationContext

    script = _script()

    def run(connection: Connection, schema: str | None, steps: Callable[[ScriptDirectory, Any], Any]) -> None:
        context = MigrationContext.configure(
            connection, opts={**options(schema), "fn": lambda found, _: steps(script, found)}
        )
        context.run_migrations(op=Operations(context), schema=schema)

    return run


def _begin_immediate(connection: Connection) -> None:
    """Take SQLite's write lock, where the caller has not begun: its driver opens no transaction for DDL by itself."""
    driver: Any = connection.connection.driver_connection
    if driver.in_transaction:
        return
    before = connection.exec_driver_sql("PRAGMA busy_timeout").scalar_one()
    connection.exec_driver_sql(f"PRAGMA busy_timeout = {max(before, _TURN_MS)}")
    try:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    finally:
        connection.exec_driver_sql(f"PRAGMA busy_timeout = {before}")


@cache
def _tables() -> tuple[str, ...]:
    """Their names. Not at import: making tables loads SQLAlchemy's dialects, a fifth of an import of clew."""
    return tuple(table.name for table in tables_for().metadata.sorted_tables)


def _script() -> ScriptDirectory:
    from alembic.script import ScriptDirectory

    shipped = Path(__file__).with_name("migrations")  # in the wheel; in a checkout the top-level folder counts
    return ScriptDirectory(str(shipped if shipped.is_dir() else Path(__file__).parents[2] / "migrations"))


def _look_postgres(connection: Connection, owner: str) -> tuple[str | None, str | None]:
    """One of clew's tables that is there, and the revision.

    A statement that names a missing table spoils the transaction, and a savepoint around it makes three round trips
    of one. ``ts_stat`` takes its query as text and runs it only if the CASE gets there (``query_to_xml`` would do as
    well, but not every Postgres is built with libxml).
    """
    seen = ", ".join(f"to_regclass(:table_{number})" for number in range(len(_tables())))
    row = connection.execute(
        text(
            f"SELECT CAST(coalesce({seen}) AS text), CASE WHEN to_regclass(:version) IS NOT NULL"
            " THEN (SELECT word FROM ts_stat(:query) LIMIT 1) END"
        ),
        {
            **{f"table_{number}": owner + name for number, name in enumerate(_tables())},
            "version": owner + VERSION_TABLE,
            "query": f"SELECT array_to_tsvector(ARRAY[CAST(version_num AS text)]) FROM {owner}{VERSION_TABLE}",
        },
    ).one()
    return row[0], row[1]


def _look_sqlite(connection: Connection) -> tuple[str | None, str | None]:
    """The same on SQLite, where a second statement costs no round trip."""
    names = connection.exec_driver_sql("SELECT name FROM sqlite_master WHERE type = 'table'").scalars().all()
    row = None
    if VERSION_TABLE in names:
        row = connection.exec_driver_sql(f"SELECT * FROM {VERSION_TABLE}").mappings().first()
    return next((name for name in _tables() if name in names), None), row.get("version_num") if row else None


def _owner(preparer: IdentifierPreparer, dialect_name: str, schema: str | None) -> str:
    if not schema:
        return ""
    if dialect_name == "sqlite":
        raise InvalidInput(f"schema={schema!r}: SQLite has no schemas; use another file instead")
    return f"{preparer.quote_schema(schema)}."


def _revision(name: str, *, head: bool) -> str | None:
    """The revision called ``name``; None is the state before the first."""
    ends = {"head": HEAD} if head else {"base": None}
    if name not in ends and name not in REVISIONS:
        raise InvalidInput(f"no revision {name!r}; known are {', '.join((*ends, *REVISIONS))}")
    return ends.get(name, name)


def _rank(revision: str | None) -> int:
    return -1 if revision is None else REVISIONS.index(revision)
