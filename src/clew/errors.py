"""Every error that clew raises on purpose. Nothing here knows a database or a record.

::

    ClewError
    ├── InvalidInput            the call cannot be carried out as written
    │   ├── Unserializable      a value that the codec cannot keep without changing it
    │   ├── InvalidUrl          a database URL that cannot be honoured as written
    │   ├── UnknownSchema       an agent checkpoint's envelope that names another schema
    │   └── UnknownVersion      an agent checkpoint's envelope of a version not read here
    ├── NotFound                what was named is not stored
    ├── Conflict                stored data says otherwise
    │   ├── AlreadyExists       something else stands where this should go
    │   ├── StaleHead           the namespace's latest is not the expected one
    │   ├── StaleFence          the lease token is lapsed, missing or superseded
    │   ├── LeaseHeld           somebody else holds the lease
    │   ├── RunFinished         the run takes no further checkpoint
    │   └── Contention          the same rows kept changing under the call
    ├── SchemaMismatch          the database is behind, ahead of, or not clew's
    ├── StorageUnavailable      the database could not be reached, or answered too late
    ├── CorruptData             a stored row cannot be read
    │   └── UnknownType         a stored value names a type that is not registered here
    ├── WrongContext            closed, after ``fork()``, on a foreign event loop
    └── AgentExecutorError      the executor's storage or policy failed

A class exists only where a caller would act differently. Facts are attributes; messages say what was attempted,
on which ids, why it was refused and what to do, and never hold payloads or passwords.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable
from datetime import datetime

__all__ = [
    "AgentExecutorError",
    "AlreadyExists",
    "ClewError",
    "Conflict",
    "Contention",
    "CorruptData",
    "InvalidInput",
    "InvalidUrl",
    "LeaseHeld",
    "NotFound",
    "RunFinished",
    "SchemaMismatch",
    "StaleFence",
    "StaleHead",
    "StorageUnavailable",
    "UnknownSchema",
    "UnknownType",
    "UnknownVersion",
    "Unserializable",
    "WrongContext",
]


class ClewError(Exception):
    """The root of everything that clew raises on purpose. Every one can be pickled, its facts included."""

    def __reduce__(self) -> tuple[Callable[..., ClewError], tuple[object, ...]]:
        return _rebuilt, (type(self), self.args, vars(self))


class InvalidInput(ClewError, ValueError):
    """The call cannot be carried out as written; nothing was stored."""


class Unserializable(InvalidInput):
    """A value that the codec cannot keep without changing it.

    ``path`` says where the value stands, as in ``state.plan[3].owner``.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class InvalidUrl(InvalidInput):
    """A database URL that cannot be honoured as written. Its password is never in the message."""


class UnknownSchema(InvalidInput):
    """An envelope that holds something else than an agent checkpoint; ``schema`` is what it names, or None."""

    def __init__(self, schema: object, expected: str) -> None:
        super().__init__(f"envelope of schema {reprlib.repr(schema)}; an agent checkpoint's is {expected!r}")
        self.schema = schema
        self.expected = expected


class UnknownVersion(InvalidInput):
    """An agent checkpoint's envelope of a version that is not read here; ``version`` is what it names, or None."""

    def __init__(self, version: object, expected: int) -> None:
        super().__init__(
            f"agent checkpoint in an envelope of version {reprlib.repr(version)}; bare JSON and version {expected} "
            "are read here: upgrade clew, or have it written again"
        )
        self.version = version
        self.expected = expected


class NotFound(ClewError, LookupError):
    """What the call names is not stored."""


class Conflict(ClewError):
    """Stored data says otherwise; nothing was stored."""


class AlreadyExists(Conflict):
    """Something else stands where this should go."""


class StaleHead(Conflict):
    """The namespace's latest checkpoint is not the expected one; ``None`` stands for an empty namespace."""

    def __init__(self, message: str, *, expected: str | None, actual: str | None) -> None:
        super().__init__(message)
        self.expected = expected
        self.actual = actual


class StaleFence(Conflict):
    """The write's lease token is missing, lapsed or superseded. Acquire the lease again, or stop."""

    def __init__(self, message: str, *, token: int | None, current: int | None) -> None:
        super().__init__(message)
        self.token = token
        self.current = current


class LeaseHeld(Conflict):
    """Somebody else holds the thread's lease until ``until``."""

    def __init__(self, message: str, *, owner: str, until: datetime) -> None:
        super().__init__(message)
        self.owner = owner
        self.until = until


class RunFinished(Conflict):
    """The run is completed, failed or cancelled and takes no further checkpoint."""


class Contention(Conflict):
    """The same rows kept changing under the call. Nothing was stored; the call may be repeated."""


class SchemaMismatch(ClewError):
    """The database's schema is behind, ahead of, or not clew's. The message names the command to run."""

    def __init__(self, message: str, *, found: str | None, expected: str) -> None:
        super().__init__(message)
        self.found = found
        self.expected = expected


class StorageUnavailable(ClewError):
    """The database could not be reached, or answered too late.

    ``maybe_stored`` is True where the call may have been carried out all the same: repeat it, an exact repetition
    is recognised.
    """

    def __init__(self, message: str, *, maybe_stored: bool = False) -> None:
        super().__init__(message)
        self.maybe_stored = maybe_stored


class CorruptData(ClewError):
    """A stored row cannot be read; others are not affected. The message begins with ``where``.

    ``where`` is the thread, checkpoint or run that the row belongs to, or what could not be done where that is not
    known.
    """

    where: str | None = None


class UnknownType(CorruptData):
    """A stored value names a type that is not registered with this checkpointer."""

    def __init__(self, name: str) -> None:
        super().__init__(f"stored type {name!r} is not registered here; pass it in types=[…] when opening")
        self.name = name


class WrongContext(ClewError, RuntimeError):
    """A checkpointer used after it was closed, after ``fork()``, or from a foreign event loop."""


class AgentExecutorError(ClewError):
    """The executor's storage or policy failed; the cause is chained."""


def _rebuilt(cls: type[ClewError], args: tuple[object, ...], facts: dict[str, object]) -> ClewError:
    """An error as it was, made without its constructor, which takes the facts apart from the message."""
    error = cls.__new__(cls, *args)
    vars(error).update(facts)
    return error
