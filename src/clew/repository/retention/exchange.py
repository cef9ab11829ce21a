"""The form in which a thread is exported: lines of JSON, and how a table's row becomes one and is read back.

::

    {"format": "clew.thread", "version": 1, "thread": {…}, "last_seq": …, "activity": …, "checkpoints": …, …}
    {"run": {…}}
    {"elements": [log, position, ["base64", …]]}
    {"checkpoint": {…}, "metadata": "JSON text"}
    {"evidence": {…}}
    {"write": {…}}
    {"end": {"checkpoints": …, "elements": …, "writes": …, "runs": …, "evidence": …, "digest": "…"}}

in this order, each kind in the order of its key. An element is written once, however many checkpoints name it: their
manifests stand as they are stored, with the numbers of the logs. Bytes are base64, instants are microseconds since 1970
(UTC). The digest is BLAKE2b of everything above the last line.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import BigInteger, Boolean, Column, Integer, LargeBinary, SmallInteger, Table

from clew.errors import InvalidInput
from clew.records import TransferReport
from clew.repository.keys import check_id, namespace_text, text_bytes
from clew.tables import EPOCH, MICROSECOND, Moment

__all__ = [
    "FORMAT",
    "VERSION",
    "Counts",
    "Progress",
    "check_counts",
    "check_ids",
    "check_namespace",
    "dump",
    "load",
    "read_bytes",
    "read_int",
    "read_moment",
    "row_of",
    "values_of",
]

FORMAT: Final = "clew.thread"
VERSION: Final = 1

Progress = Callable[[int, int], None]
"""Called with how many checkpoints and elements are done, and how many there are."""

_LATEST: Final = 253_370_764_800_000_000  # the year 9999: a time zone must not carry an instant out of the calendar


@dataclass(slots=True)
class Counts:
    """How much has gone through so far."""

    checkpoints: int = 0
    elements: int = 0
    writes: int = 0
    runs: int = 0
    evidence: int = 0

    @property
    def done(self) -> int:
        """What ``Progress`` is told."""
        return self.checkpoints + self.elements

    def closing(self, digest: str) -> dict[str, Any]:
        """What the last line says; ``digest`` is of everything above it."""
        return {**asdict(self), "digest": digest}

    def report(self, thread_id: str) -> TransferReport:
        """As the caller gets it."""
        return TransferReport(
            thread_id=thread_id,
            checkpoints=self.checkpoints,
            elements=self.elements,
            writes=self.writes,
            runs=self.runs,
        )


def dump(line: Mapping[str, Any]) -> bytes:
    """The line's bytes, all of them ASCII."""
    return json.dumps(line, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def load(data: bytes) -> dict[str, Any]:
    """What a line says. Raises InvalidInput."""
    try:
        line = json.loads(data)
    except (ValueError, RecursionError) as exc:
        raise InvalidInput("it is not JSON") from exc
    if not isinstance(line, dict):
        raise InvalidInput("it is not a JSON object")
    return line


def values_of(table: Table, row: Any) -> dict[str, Any]:
    """A row of the table in JSON's types, without the thread's key."""
    return {column.name: _to_json(column, getattr(row, column.name)) for column in _columns(table)}


def row_of(table: Table, values: Any, thread_key: int) -> dict[str, Any]:
    """The row that ``values_of`` was made from, for another thread.

    Raises:
        InvalidInput: a column is missing, unknown, or holds what it cannot hold.
    """
    if not isinstance(values, dict):
        raise InvalidInput("it holds no row")
    columns = _columns(table)
    names = {column.name for column in columns}
    if values.keys() != names:
        odd = sorted(map(str, values.keys() ^ names))
        raise InvalidInput(f"these fields are missing or not known: {', '.join(odd)[:200]}")
    row = {column.name: _from_json(column, values[column.name]) for column in columns}
    return {**row, "thread_key": thread_key}


def read_int(name: str, value: Any, low: int = 0, high: int = 2**62) -> int:
    """``value``, if it is an integer from ``low`` to ``high``. Raises InvalidInput."""
    if type(value) is not int or not low <= value <= high:
        raise InvalidInput(f"{name} must be an integer from {low} to {high}")
    return value


def read_bytes(name: str, value: Any) -> bytes:
    """The bytes of a base64 text. Raises InvalidInput."""
    try:
        return b64decode(value, validate=True)
    except (ValueError, TypeError) as exc:
        raise InvalidInput(f"{name} must be base64") from exc


def read_moment(name: str, value: Any) -> datetime:
    """The instant of so many microseconds since 1970. Raises InvalidInput."""
    return EPOCH + read_int(name, value, -_LATEST // 5, _LATEST) * MICROSECOND


def check_namespace(row: Mapping[str, Any]) -> None:
    """Refuse a row whose namespace is not one that a put stores. Raises InvalidInput."""
    if namespace_text(json.loads(row["namespace"])) != row["namespace"]:
        raise InvalidInput("namespace must be the canonical JSON text of a list of strings")


def check_ids(row: Mapping[str, Any], *names: str) -> None:
    """Refuse a row in which one of these, where it is not null, cannot be an id. Raises InvalidInput."""
    for name in names:
        if row[name] is not None:
            check_id(name, row[name])


def check_counts(row: Mapping[str, Any]) -> None:
    """Refuse a row in which any number is negative. Raises InvalidInput."""
    for name, value in row.items():
        if type(value) is int:
            read_int(name, value, 0, 2**63 - 1)


def _columns(table: Table) -> list[Column[Any]]:
    return [column for column in table.columns if column.name != "thread_key"]


def _to_json(column: Column[Any], value: Any) -> Any:
    if value is None:
        return None
    if isinstance(column.type, Moment):
        return (value - EPOCH) // MICROSECOND
    if isinstance(column.type, LargeBinary):
        return b64encode(value).decode()
    return value


def _from_json(column: Column[Any], value: Any) -> Any:
    name, kind = column.name, column.type
    if value is None:
        if not column.nullable:
            raise InvalidInput(f"{name} must not be null")
        return None
    if isinstance(kind, Moment):
        return read_moment(name, value)
    if isinstance(kind, LargeBinary):
        return read_bytes(name, value)
    if isinstance(kind, Boolean):
        if type(value) is not bool:
            raise InvalidInput(f"{name} must be true or false")
        return value
    if isinstance(kind, SmallInteger):
        return read_int(name, value, -(2**15), 2**15 - 1)
    if isinstance(kind, BigInteger | Integer):
        return read_int(name, value, -(2**63), 2**63 - 1)
    return _text(name, value)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidInput(f"{name} must be a string")
    text_bytes(name, value)
    return value
