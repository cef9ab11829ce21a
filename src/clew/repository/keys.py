"""Which ids, namespaces and metadata can be stored, and the text they are stored as: the same on both databases.

Postgres text takes no NUL, and an entry of its index ends at about 2,700 bytes (its manual, "B-Tree Indexes"). What
does not fit is refused by name, on SQLite too; nothing is ever cut short.
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final

from clew.errors import CorruptData, InvalidInput, Unserializable
from clew.records import CheckpointConfig, CheckpointSource

__all__ = [
    "canonical_json",
    "check_age",
    "check_config",
    "check_id",
    "check_instant",
    "check_label",
    "check_limit",
    "check_step",
    "check_texts",
    "check_thread_id",
    "filter_texts",
    "fits_a_column",
    "instant_before",
    "metadata_term",
    "metadata_terms",
    "metadata_text",
    "namespace_of",
    "namespace_parts",
    "namespace_text",
    "namespaces_below",
    "shown",
    "text_bytes",
    "texts_of",
]

ID_BYTES: Final = 512
THREAD_ID_BYTES: Final = 1024
NAMESPACE_BYTES: Final = 1024
METADATA_DEPTH: Final = 200
PAGE_LIMIT: Final = 10_000


def check_id(name: str, value: str, max_bytes: int = ID_BYTES) -> str:
    """``value``, if it can be stored as an id.

    Raises:
        InvalidInput: naming the argument.
    """
    if not isinstance(value, str):
        raise InvalidInput(f"{name} must be a string, not {type(value).__name__}")
    if not value:
        raise InvalidInput(f"{name} must not be empty")
    return _fitting(name, value, max_bytes)


def check_thread_id(value: str) -> str:
    """``value``, if it can be stored as a thread's id. Raises as ``check_id``."""
    return check_id("thread_id", value, THREAD_ID_BYTES)


def check_label(name: str, value: str) -> str:
    """``value``, if it can be stored as a task's id, a node or a channel; may be empty. Raises as ``check_id``."""
    if not isinstance(value, str):
        raise InvalidInput(f"{name} must be a string, not {type(value).__name__}")
    return _fitting(name, value, ID_BYTES) if value else value


def check_texts(name: str, values: Iterable[str]) -> Iterable[str]:
    """``values``, if all of them are strings, of any kind and length. Raises InvalidInput."""
    for value in values:
        if not isinstance(value, str):
            raise InvalidInput(f"{name} must hold strings, not {type(value).__name__}")
    return values


def check_config(config: CheckpointConfig) -> CheckpointConfig:
    """``config``, if it is one. Raises InvalidInput."""
    if not isinstance(config, CheckpointConfig):
        raise InvalidInput(
            f"config must be a CheckpointConfig, not {type(config).__name__}; "
            "CheckpointConfig.latest(thread_id) means a thread's latest checkpoint"
        )
    return config


def check_limit(limit: int) -> int:
    """``limit``, if a page can have so many items. Raises InvalidInput."""
    if type(limit) is not int or not 1 <= limit <= PAGE_LIMIT:
        raise InvalidInput(f"limit must be an integer from 1 to {PAGE_LIMIT}, not {shown(limit)}")
    return limit


def check_step(step: int) -> int:
    """``step``, if a checkpoint can be of it. Raises InvalidInput."""
    if not fits_a_column(step):
        raise InvalidInput(f"step must be an integer of 64 bits, not {shown(step)}")
    return step


def check_age(name: str, value: timedelta) -> timedelta:
    """``value``, if it is a time that has passed. Raises InvalidInput."""
    if not isinstance(value, timedelta):
        raise InvalidInput(f"{name} must be a timedelta, not {type(value).__name__}")
    if value < timedelta(0):
        raise InvalidInput(f"{name} must not be negative")
    return value


def instant_before(now: datetime, age: timedelta) -> datetime:
    """The instant that lies ``age`` before ``now``, or the calendar's first where it would lie before that one."""
    try:
        return now - age
    except OverflowError:
        return datetime.min.replace(tzinfo=now.tzinfo)


def check_instant(name: str, value: datetime) -> datetime:
    """``value``, if it is an instant of the calendar, in UTC too. Raises InvalidInput."""
    if not isinstance(value, datetime):
        raise InvalidInput(f"{name} must be an instant (datetime), not {type(value).__name__}")
    if value.utcoffset() is None:
        raise InvalidInput(f"{name} must have a time zone")
    try:
        value.astimezone(UTC)
    except OverflowError as exc:
        raise InvalidInput(f"{name} lies beyond the calendar in UTC") from exc
    return value


def text_bytes(name: str, value: str) -> int:
    """How many bytes the text takes in UTF-8. Raises InvalidInput where a column cannot hold it."""
    if "\0" in value:
        raise InvalidInput(f"{name} must not hold a NUL character")
    try:
        return len(value) if value.isascii() else len(value.encode())
    except UnicodeEncodeError as exc:
        raise InvalidInput(f"{name} must not hold a lone surrogate") from exc


def fits_a_column(value: Any) -> bool:
    """Whether ``value`` is an integer of 64 bits, as columns are."""
    return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63


def namespace_parts(namespace: Iterable[str]) -> tuple[str, ...]:
    """The namespace as a tuple, which an iterator can be read into once. Raises InvalidInput for a single string."""
    if isinstance(namespace, str):
        raise InvalidInput("namespace must be a sequence of strings, not one string")
    try:
        return tuple(namespace)
    except TypeError as exc:
        raise InvalidInput(f"namespace must be a sequence of strings, not {type(namespace).__name__}") from exc


def namespace_text(namespace: Iterable[str]) -> str:
    """The canonical JSON text of a namespace. Raises as ``check_id``."""
    try:
        return _namespace_text(namespace_parts(namespace))
    except TypeError as exc:  # a part that has no hash
        raise InvalidInput("namespace must be a sequence of strings") from exc


def namespaces_below(namespace: Iterable[str]) -> tuple[str, str, str]:
    """(itself, low, high): what is at or below the namespace is ``itself``, or bytewise in ``low`` to ``high``."""
    text = namespace_text(namespace)
    stem = text[:-1] + ("," if text != "[]" else "")
    return text, stem, stem[:-1] + chr(ord(stem[-1]) + 1)


@lru_cache(maxsize=4096)
def namespace_of(text: str) -> tuple[str, ...]:
    """The namespace of a canonical text. Raises as ``texts_of``."""
    return texts_of(text)


def texts_of(text: str) -> tuple[str, ...]:
    """The strings of the JSON list that is stored. Raises CorruptData."""
    try:
        texts = json.loads(text)
    except (ValueError, TypeError, RecursionError) as exc:
        raise CorruptData("a list of strings cannot be read") from exc
    if not isinstance(texts, list) or not all(isinstance(item, str) for item in texts):
        raise CorruptData("a list of strings holds something else")
    return tuple(texts)


def metadata_text(metadata: Any) -> str:
    """The JSON text that reads back as exactly ``metadata``.

    Raises:
        Unserializable: with the path of what is not a JSON value (a tuple, say, which would come back as a list). A
            ``CheckpointSource`` is taken as its text.
    """
    _check_json(metadata, "metadata", 0)
    try:
        return json.dumps(metadata, separators=(",", ":"))
    except ValueError as exc:  # an integer of more digits than the interpreter converts
        raise Unserializable("metadata", str(exc)) from exc


def metadata_terms(metadata: Any) -> bytes:
    """A hash of 8 bytes for each top-level key with its whole value: a filter narrows by them, exact text decides."""
    if not isinstance(metadata, dict):
        return b""
    return b"".join(metadata_term(key, value) for key, value in metadata.items())


def metadata_term(key: str, value: Any) -> bytes:
    """The hash that ``metadata_terms`` holds for this key and value."""
    return blake2b(canonical_json([key, value]).encode(), digest_size=8).digest()


def canonical_json(value: Any) -> str:
    """A text that is equal for equal JSON values and only for them: ``1``, ``1.0`` and ``true`` differ."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def filter_texts(metadata: Mapping[str, Any]) -> dict[str, str]:
    """The canonical text of each filter value. Raises InvalidInput."""
    if not isinstance(metadata, Mapping):
        raise InvalidInput(f"metadata must map keys to the values they have, not be of type {type(metadata).__name__}")
    _check_json(dict(metadata), "metadata", 0)
    try:
        return {key: canonical_json(value) for key, value in metadata.items()}
    except ValueError as exc:  # an integer of more digits than the interpreter converts, which no metadata holds
        raise Unserializable("metadata", str(exc)) from exc


def shown(value: object) -> str:
    """A refused ``value`` for a message: cut short, and there whatever its ``repr`` does."""
    try:
        return reprlib.repr(value)
    except Exception:  # noqa: BLE001  an integer of thousands of digits has none, for one
        return f"this {type(value).__name__}"


def _fitting(name: str, value: str, max_bytes: int) -> str:
    size = text_bytes(name, value)
    if size > max_bytes:
        raise InvalidInput(f"{name} may take at most {max_bytes} bytes, this one takes {size}")
    return value


@lru_cache(maxsize=4096)
def _namespace_text(parts: tuple[str, ...]) -> str:
    for part in parts:
        if not isinstance(part, str):
            raise InvalidInput(f"namespace must hold strings, not {type(part).__name__}")
        _fitting("namespace", part, NAMESPACE_BYTES)
    return _fitting("namespace", json.dumps(parts, ensure_ascii=False, separators=(",", ":")), NAMESPACE_BYTES)


def _check_json(value: Any, path: str, depth: int) -> None:
    kind = type(value)
    if kind is str or value is None or kind is bool or kind is int or kind is float or kind is CheckpointSource:
        return
    if depth >= METADATA_DEPTH:
        raise Unserializable(path[:200], f"nested more than {METADATA_DEPTH} levels deep")
    if kind is list:
        for index, item in enumerate(value):
            _check_json(item, f"{path}[{index}]", depth + 1)
    elif kind is dict:
        for key, item in value.items():
            if type(key) is not str:
                raise Unserializable(path, f"key of type {type(key).__name__}; JSON objects have string keys")
            _check_json(item, f"{path}.{key}", depth + 1)
    else:
        raise Unserializable(path, f"{kind.__name__} is not a JSON value")
