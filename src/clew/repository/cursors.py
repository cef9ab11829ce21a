"""Cursors: an opaque text for where a listing stopped, and what it says when it comes back. No statement is here."""

from __future__ import annotations

import base64
import json
from datetime import datetime
from typing import Any

from clew.errors import InvalidInput
from clew.repository.keys import fits_a_column
from clew.tables import EPOCH, MICROSECOND

__all__ = ["decode_cursor", "encode_cursor"]


def encode_cursor(kind: str, *parts: Any) -> str:
    """The cursor of a ``kind`` of listing that stopped at these strings, integers, booleans and instants."""
    written = [(part - EPOCH) // MICROSECOND if isinstance(part, datetime) else part for part in parts]
    return base64.urlsafe_b64encode(json.dumps([kind, *written]).encode()).decode().rstrip("=")


def decode_cursor(cursor: str, kind: str, *types: type) -> list[Any]:
    """The parts that ``encode_cursor`` was given, which are of these types; integers fit into a column.

    Raises:
        InvalidInput: it is of another kind of listing, or no cursor at all.
    """
    try:
        found, *parts = list(json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))))
        if found == kind:
            return [_part(part, of) for part, of in zip(parts, types, strict=True)]
    except (ValueError, TypeError, OverflowError) as exc:
        raise InvalidInput("cursor is not one that this listing returned") from exc
    raise InvalidInput(f"cursor belongs to another kind of listing ({found}, not {kind})")


def _part(part: Any, of: type) -> Any:
    if of is int or of is datetime:
        if not fits_a_column(part):
            raise ValueError("no integer that fits into a column")
        return part if of is int else EPOCH + part * MICROSECOND
    if type(part) is not of:
        raise TypeError(f"no {of.__name__}")
    return part
