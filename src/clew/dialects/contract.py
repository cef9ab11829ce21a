"""What a dialect has to answer. The implementations are the two modules beside this one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, Protocol

from sqlalchemy import Column, ColumnElement, Connection, Select

from clew.structure import Span
from clew.tables import Moment, Tables

__all__ = ["Dialect", "FastPut", "brought_forward"]


class FastPut(NamedTuple):
    """What the one-statement put answers: the new row's sequence number and its moment."""

    seq: int
    created_at: datetime


class Dialect(Protocol):
    """What differs between the two databases."""

    name: str

    puts_alone: bool
    """Whether ``put`` has to be a transaction of its own, being a single statement that may fail as a whole."""

    has_schemas: bool
    """Whether tables can stand in a schema of their own."""

    def __hash__(self) -> int:
        """Statements are built once for each dialect."""

    def now(self) -> ColumnElement[datetime]:
        """The database's clock at the moment the statement reaches it, not at the transaction's start."""

    def later(self, left: ColumnElement[Any], right: ColumnElement[Any]) -> ColumnElement[Any]:
        """The greater of two values."""

    def insert(self, table: Any) -> Any:
        """An insert that has ``on_conflict_do_nothing`` and ``on_conflict_do_update``."""

    def among(self, column: Column[Any] | ColumnElement[Any], name: str) -> ColumnElement[bool]:
        """Whether ``column`` is one of the values of the parameter ``name``, see ``values``."""

    def values(self, values: Sequence[Any]) -> Any:
        """A parameter for ``among``."""

    def contains(self, column: ColumnElement[Any], part: ColumnElement[Any]) -> ColumnElement[bool]:
        """Whether a byte string holds another."""

    def size(self, column: ColumnElement[Any]) -> ColumnElement[int]:
        """A byte string's length, without reading it where it is stored apart."""

    def segments(self, tables: Tables) -> Select[Any]:
        """(log, start, count, payload) of the rows that hold any part of the spans given by ``spans``.

        Parameters: ``thread_key`` and those of ``spans``. By index: the row that a span begins in is the one with the
        greatest start below it.
        """

    def spans(self, spans: Sequence[Span]) -> dict[str, Any]:
        """The parameters for ``segments``."""

    def share_lock(self, statement: Select[Any]) -> Select[Any]:
        """The statement, holding off the deletion of what it reads until the transaction ends."""

    def delete_lock(self, statement: Select[Any], *, skip_locked: bool = False) -> Select[Any]:
        """The statement, holding off everything else on what it reads."""

    def put(self, connection: Connection, tables: Tables, values: Mapping[str, Any]) -> FastPut | None:
        """The whole put, if the thread's version is the remembered one: that row's update is all it relies on.

        None, and nothing written, where the version has moved, the lease forbids it, or the id is there already. The
        values are those that ``clew.repository.putting`` gives; where a boundary's are among them (``evidence_…``,
        ``run_…``), its evidence is written too, and its run, which has to be there, is brought forward. On the driver,
        not through SQLAlchemy's constructs where those would cost more than the database does.
        """


def brought_forward(tables: Tables) -> list[Column[Any]]:
    """What a boundary sets in its run's row, but for the moments; ``put`` has it under these names after ``run_``."""
    return [
        column
        for column in tables.runs.columns
        if column.name not in ("thread_key", "run_id") and not isinstance(column.type, Moment)
    ]
