"""What every operation needs besides the connection, and the row that a thread's transactions lock."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from clew.codec import Codec
from clew.dialects import Dialect
from clew.errors import InvalidInput
from clew.repository.keys import fits_a_column, shown
from clew.tables import Tables

__all__ = ["NO_FENCE", "Fence", "LockedThread", "Store"]


@dataclass(frozen=True, slots=True)
class Store:
    """Where the tables are, how the database speaks, and how values are encoded.

    ``advisory_leases`` lets writes without a token pass while somebody holds the thread's lease.
    """

    tables: Tables
    dialect: Dialect
    codec: Codec
    advisory_leases: bool = False


@dataclass(frozen=True, slots=True)
class Fence:
    """The lease token that a write presents; None where it presents none.

    Raises:
        InvalidInput: what can be no token.
    """

    token: int | None = None

    def __post_init__(self) -> None:
        if self.token is not None and not fits_a_column(self.token):
            raise InvalidInput(f"lease_token must be the number that acquiring the lease gave, not {shown(self.token)}")


NO_FENCE: Final = Fence()


@dataclass(frozen=True, slots=True)
class LockedThread:
    """A thread's row, locked by this transaction, as it stands behind the lock.

    ``now`` is the database's clock after the lock; ``activity`` is it, or the predecessor's moment if that is later.
    """

    thread_key: int
    thread_id: str
    version: int
    last_seq: int
    activity: datetime
    now: datetime
    lease_owner: str | None
    lease_token: int
    lease_until: datetime | None

    @classmethod
    def of(cls, thread_id: str, row: Any) -> LockedThread:
        """From a row that holds these columns."""
        return cls(
            row.thread_key,
            thread_id,
            row.version,
            row.last_seq,
            row.activity,
            row.now,
            row.lease_owner,
            row.lease_token,
            row.lease_until,
        )

    @property
    def leased(self) -> bool:
        """Whether somebody holds the lease, by the database's clock after the lock."""
        return self.lease_until is not None and self.lease_until > self.now
