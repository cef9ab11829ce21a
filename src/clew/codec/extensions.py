"""The stored format's extension types, and the values that are leaves of it. No container is taken apart here.

The tags are a stored format: a number once given keeps its meaning for ever, and is not given twice.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from typing import Any, Final
from uuid import UUID, SafeUUID
from zoneinfo import ZoneInfo

import ormsgpack

from clew.codec.serialized import Serialized

__all__ = ["LEAVES", "OPTIONS", "READERS", "Refused", "Tag", "array_header", "is_plain_text"]

OPTIONS: Final = (
    ormsgpack.OPT_PASSTHROUGH_BIG_INT
    | ormsgpack.OPT_PASSTHROUGH_DATACLASS
    | ormsgpack.OPT_PASSTHROUGH_DATETIME
    | ormsgpack.OPT_PASSTHROUGH_ENUM
    | ormsgpack.OPT_PASSTHROUGH_SUBCLASS
    | ormsgpack.OPT_PASSTHROUGH_TUPLE
    | ormsgpack.OPT_PASSTHROUGH_UUID
)
"""Whatever msgpack has no exact form for is left to us. Never ``OPT_NON_STR_KEYS``: it turns keys into strings."""


class Tag:
    """The extension types. Each payload is msgpack, but for those marked raw."""

    INT: Final = 1  # raw: two's complement, big-endian
    TEXT: Final = 2  # raw: UTF-8 with lone surrogates
    TUPLE: Final = 3  # [element, …]
    SET: Final = 4  # [element, …], sorted by encoded bytes
    FROZENSET: Final = 5  # likewise
    BYTEARRAY: Final = 6  # raw
    DATETIME: Final = 7  # [year, month, day, hour, minute, second, microsecond, fold, zone]
    DATE: Final = 8  # [year, month, day]
    TIME: Final = 9  # [hour, minute, second, microsecond, fold, zone]
    TIMEDELTA: Final = 10  # [days, seconds, microseconds]
    DECIMAL: Final = 11  # raw: text
    UUID: Final = 12  # raw: 16 bytes, and one more where ``is_safe`` is known
    MAPPING: Final = 13  # [key, value, …] in order: a dict with a key that is not a plain string
    ENUM: Final = 14  # [class, member], or [class, None, value] for combined flags
    OBJECT: Final = 15  # {"": class, field: value, …}: a dataclass or model
    CUSTOM: Final = 16  # [class, what its ``encode`` returned]
    SERIALIZED: Final = 17  # raw: see ``Serialized.packed``
    END: Final = 127  # never stored: ends what is handed to one unpack call


class Refused(Exception):
    """A value that cannot be kept as it is. ``steps`` lead to it, innermost first; the codec makes the path of them."""

    def __init__(self, reason: str, *steps: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.steps = list(steps)


def is_plain_text(text: str) -> bool:
    """Whether `text` is valid Unicode, which is what msgpack strings hold; lone surrogates are not."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def array_header(count: int) -> bytes:
    """What msgpack puts before the `count` elements of an array."""
    if count < 16:
        return bytes((0x90 | count,))
    return b"\xdc" + count.to_bytes(2) if count < 2**16 else b"\xdd" + count.to_bytes(4)


def _pack(*parts: Any) -> bytes:
    return ormsgpack.packb(list(parts))


def _zone(zone: tzinfo | None) -> Any:
    if zone is None:
        return None
    if type(zone) is ZoneInfo:
        if zone.key is None:
            raise Refused("a ZoneInfo without a key cannot be stored")
        return zone.key
    if type(zone) is timezone:
        # Only its pickle form tells a zone named "UTC+01:00" from one without a name.
        offset, *name = zone.__getinitargs__()  # type: ignore[attr-defined]
        if not all(map(is_plain_text, name)):
            raise Refused("a timezone's name with lone surrogates cannot be stored")
        return [offset // timedelta(microseconds=1), *name]
    raise Refused(
        f"time zone of type {type(zone).__name__} cannot be stored; use zoneinfo.ZoneInfo or datetime.timezone"
    )


def _read_zone(stored: Any) -> tzinfo | None:
    if stored is None:
        return None
    if isinstance(stored, str):
        return ZoneInfo(stored)
    return timezone(timedelta(microseconds=stored[0]), *stored[1:])


def _datetime(d: datetime) -> bytes:
    return _pack(d.year, d.month, d.day, d.hour, d.minute, d.second, d.microsecond, d.fold, _zone(d.tzinfo))


def _read_datetime(data: bytes) -> datetime:
    *parts, fold, zone = ormsgpack.unpackb(data)
    return datetime(*parts).replace(tzinfo=_read_zone(zone), fold=fold)


def _time(t: time) -> bytes:
    return _pack(t.hour, t.minute, t.second, t.microsecond, t.fold, _zone(t.tzinfo))


def _read_time(data: bytes) -> time:
    *parts, fold, zone = ormsgpack.unpackb(data)
    return time(*parts).replace(tzinfo=_read_zone(zone), fold=fold)


def _uuid(value: UUID) -> bytes:
    known = value.is_safe.value
    return value.bytes if known is None else value.bytes + known.to_bytes(1, signed=True)


def _read_uuid(data: bytes) -> UUID:
    known = int.from_bytes(data[16:], signed=True) if data[16:] else None
    return UUID(bytes=data[:16], is_safe=SafeUUID(known))


# Decimal's text depends on the context's `capitals`, and its constructor does not: hence upper().
LEAVES: Final[dict[type, tuple[int, Callable[[Any], bytes]]]] = {
    int: (Tag.INT, lambda value: value.to_bytes(value.bit_length() // 8 + 1, signed=True)),
    str: (Tag.TEXT, lambda value: value.encode("utf-8", "surrogatepass")),
    bytearray: (Tag.BYTEARRAY, bytes),
    datetime: (Tag.DATETIME, _datetime),
    date: (Tag.DATE, lambda value: _pack(value.year, value.month, value.day)),
    time: (Tag.TIME, _time),
    timedelta: (Tag.TIMEDELTA, lambda value: _pack(value.days, value.seconds, value.microseconds)),
    Decimal: (Tag.DECIMAL, lambda value: str(value).upper().encode()),
    UUID: (Tag.UUID, _uuid),
    Serialized: (Tag.SERIALIZED, Serialized.packed),
}
"""For each type its tag and what makes the payload; an int or str only where msgpack has no form for it."""

READERS: Final[dict[int, Callable[[bytes], Any]]] = {
    Tag.INT: lambda data: int.from_bytes(data, signed=True),
    Tag.TEXT: lambda data: data.decode("utf-8", "surrogatepass"),
    Tag.BYTEARRAY: bytearray,
    Tag.DATETIME: _read_datetime,
    Tag.DATE: lambda data: date(*ormsgpack.unpackb(data)),
    Tag.TIME: _read_time,
    Tag.TIMEDELTA: lambda data: timedelta(*ormsgpack.unpackb(data)),
    Tag.DECIMAL: lambda data: Decimal(data.decode()),
    Tag.UUID: _read_uuid,
    Tag.SERIALIZED: Serialized.unpacked,
}
"""The inverse of `LEAVES`, by tag."""
