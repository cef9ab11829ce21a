"""What differs between the two databases in the SQL on clew's tables: the contract, and the choice."""

from __future__ import annotations

from clew.dialects.contract import Dialect
from clew.dialects.postgres import POSTGRES
from clew.dialects.sqlite import SQLITE
from clew.errors import InvalidInput

__all__ = ["POSTGRES", "Dialect", "dialect_named"]


def dialect_named(name: str) -> Dialect:
    """The dialect of an SQLAlchemy dialect's ``name``.

    Raises:
        InvalidInput: for anything but ``postgresql`` and ``sqlite``.
    """
    if name == "postgresql":
        return POSTGRES
    if name == "sqlite":
        return SQLITE
    raise InvalidInput(f"clew keeps checkpoints in PostgreSQL or SQLite, not in {name!r}")
