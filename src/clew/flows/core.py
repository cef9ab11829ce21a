"""Making the core of a checkpointer, and making sure that its database has the schema this version works with."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

from pydantic import TypeAdapter
from sqlalchemy import Connection

from clew import migrate
from clew.codec import Codec
from clew.dialects import dialect_named
from clew.errors import InvalidInput
from clew.flows.steps import Core, Step
from clew.repository import Memory, StateReader, Store
from clew.repository.keys import shown
from clew.tables import tables_for

__all__ = ["Leases", "core_for", "schema_step"]

Leases = Literal["strict", "advisory"]


def core_for(
    database: Literal["sqlite", "postgresql"],
    *,
    schema: str | None,
    state_type: Any,
    types: Iterable[type],
    codec: Codec | None,
    leases: Leases,
    memory_bytes: int,
) -> Core:
    """The core over one kind of database.

    Raises:
        InvalidInput: an option that makes no sense; a schema on SQLite, which has none.
    """
    dialect = dialect_named(database)
    if schema is not None and not dialect.has_schemas:
        raise InvalidInput(f"schema={schema!r}: SQLite has no schemas; use another file")
    if leases not in ("strict", "advisory"):
        raise InvalidInput(f"leases must be 'strict' or 'advisory', not {shown(leases)}")
    codec = Codec() if codec is None else codec
    for cls in types:
        codec.register(cls)
    adapter = None
    if state_type is not None:
        codec.register_annotation(state_type)
        adapter = TypeAdapter(state_type)
    return Core(
        Store(tables_for(schema), dialect, codec, advisory_leases=leases == "advisory"),
        Memory(memory_bytes),
        StateReader(adapter),
    )


def schema_step(core: Core, *, upgrade: bool) -> Step[None]:
    """Check the schema, or bring it to the one this version works with."""
    schema = core.store.tables.schema

    def checked(connection: Connection) -> None:
        migrate.check(connection, schema)

    def upgraded(connection: Connection) -> None:
        migrate.upgrade(connection, schema=schema)

    unit: Callable[[Connection], None] = upgraded if upgrade else checked
    doing = "migrate the database" if upgrade else "check the schema"
    return Step(unit, "write" if upgrade else "read", doing)
