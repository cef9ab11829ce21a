"""Reading the databases of LangGraph's own savers: their tables, and values as they are stored there.

Nothing is made of a stored value: an object stays the bytes that it is, so no class has to be importable.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import ormsgpack
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from sqlalchemy import Connection, Text, cast, column, func, inspect, literal, select, table, text, tuple_

from clew.codec import Serialized
from clew.errors import InvalidInput, Unserializable
from clew.langgraph.channels import Serde

__all__ = ["Source", "StoredCheckpoint", "StoredWrite", "detect", "table_bytes"]

_KEY: Final = ("thread_id", "checkpoint_ns", "checkpoint_id")
_PACKED: Final = ormsgpack.OPT_NON_STR_KEYS


class StoredWrite(NamedTuple):
    """A row of the writes' table."""

    task_path: str
    task_id: str
    idx: int
    channel: str
    value: Serialized


class StoredCheckpoint(NamedTuple):
    """A checkpoint with its values as ``serde`` takes them."""

    checkpoint_id: str
    parent_id: str | None
    checkpoint: dict[str, Any]
    metadata: dict[str, Any]
    serde: Serde


class KeptSerde:
    """A serializer that leaves objects as the extensions that LangGraph's made of them, and gives the same bytes."""

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        if isinstance(obj, Serialized):
            return obj.type, obj.data
        if obj is None:
            return "null", b""
        if isinstance(obj, bytes):
            return "bytes", obj
        return "msgpack", ormsgpack.packb(obj, option=_PACKED)

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        name, stored = data
        if name == "null":
            return None
        if name == "bytes":
            return stored
        if name != "msgpack":
            return Serialized(name, stored)
        return ormsgpack.unpackb(stored, ext_hook=ormsgpack.Ext, option=_PACKED)


@dataclass(frozen=True, slots=True)
class Source:
    """One of the two forms. ``blobs`` says that channels' values lie in a table of their own, as on Postgres."""

    writes_table: str
    value_column: str
    has_path: bool
    blobs: bool
    serde: Serde | None = None

    def count(self, connection: Connection) -> int:
        """How many checkpoints there are."""
        return connection.execute(select(func.count()).select_from(table("checkpoints"))).scalar_one()

    def size(self, connection: Connection) -> int:
        """The bytes that its tables take, on SQLite the whole file."""
        names = ["checkpoints", self.writes_table, *(["checkpoint_blobs"] if self.blobs else [])]
        return table_bytes(connection, names)

    def threads(self, connection: Connection) -> list[str]:
        """The threads that have anything, in order of their ids."""
        found: set[str] = set()
        for name in ("checkpoints", self.writes_table):
            source = table(name, column("thread_id"))
            found |= set(connection.execute(select(source.c.thread_id).distinct()).scalars().all())
        return sorted(found)

    def addresses(self, connection: Connection, thread_id: str) -> list[tuple[str, str]]:
        """(namespace, id) of the thread's checkpoints and of those that only have writes, in the order of ids."""
        found: set[tuple[str, str]] = set()
        for name in ("checkpoints", self.writes_table):
            source = table(name, *map(column, _KEY))
            rows = connection.execute(
                select(source.c.checkpoint_ns, source.c.checkpoint_id).where(source.c.thread_id == thread_id).distinct()
            ).all()
            found |= {(ns, checkpoint_id) for ns, checkpoint_id in rows}
        return sorted(found, key=lambda address: (address[1], address[0]))

    def writes(self, connection: Connection, thread_id: str, ns: str, checkpoint_id: str) -> list[StoredWrite]:
        """A checkpoint's writes."""
        names = (
            *_KEY,
            "task_id",
            "idx",
            "channel",
            "type",
            self.value_column,
            *(["task_path"] if self.has_path else []),
        )
        source = table(self.writes_table, *map(column, names))
        path = source.c.task_path if self.has_path else literal("").label("task_path")
        statement = select(
            path, source.c.task_id, source.c.idx, source.c.channel, source.c.type, source.c[self.value_column]
        )
        rows = connection.execute(_at(statement, source, thread_id, ns, checkpoint_id)).all()
        return [
            StoredWrite(task_path, task_id, idx, name, Serialized(kind or "null", bytes(value or b"")))
            for task_path, task_id, idx, name, kind, value in rows
        ]

    def checkpoint(
        self, connection: Connection, thread_id: str, ns: str, checkpoint_id: str, known: Mapping[tuple[str, Any], Any]
    ) -> StoredCheckpoint | None:
        """A checkpoint, or None where there is none of this id. ``known`` are values of channels by version."""
        columns = (*_KEY, "parent_checkpoint_id", "type", "checkpoint", "metadata")
        source = table("checkpoints", *map(column, columns))
        body: Any = cast(source.c.checkpoint, Text) if self.blobs else source.c.checkpoint
        metadata: Any = cast(source.c.metadata, Text) if self.blobs else source.c.metadata
        statement = select(source.c.parent_checkpoint_id, source.c.type, body, metadata)
        row = connection.execute(_at(statement, source, thread_id, ns, checkpoint_id)).one_or_none()
        if row is None:
            return None
        parent_id, name, stored, said = row
        metadata_ = json.loads(said) if said else {}
        if self.blobs:
            checkpoint = json.loads(stored)
            values = {
                **checkpoint.get("channel_values", {}),
                **self._blobs(connection, thread_id, ns, checkpoint, known),
            }
            serde: Serde = KeptSerde()
            checkpoint = {**checkpoint, "channel_values": values}
        else:
            serde = KeptSerde() if name == "msgpack" else self.serde or JsonPlusSerializer()
            checkpoint = _loaded(serde, name, bytes(stored), checkpoint_id)
        checkpoint.setdefault("versions_seen", {})
        return StoredCheckpoint(checkpoint_id, parent_id or None, checkpoint, metadata_, serde)

    def _blobs(
        self,
        connection: Connection,
        thread_id: str,
        ns: str,
        checkpoint: Mapping[str, Any],
        known: Mapping[tuple[str, Any], Any],
    ) -> dict[str, Any]:
        versions: dict[str, Any] = checkpoint["channel_versions"]
        missing = [(channel, str(version)) for channel, version in versions.items() if (channel, version) not in known]
        found = {
            channel: known[channel, version] for channel, version in versions.items() if (channel, version) in known
        }
        source = table(
            "checkpoint_blobs", *map(column, ("thread_id", "checkpoint_ns", "channel", "version", "type", "blob"))
        )
        if missing:
            rows = connection.execute(
                select(source.c.channel, source.c.type, source.c.blob).where(
                    source.c.thread_id == thread_id,
                    source.c.checkpoint_ns == ns,
                    tuple_(source.c.channel, source.c.version).in_(missing),
                )
            ).all()
            found |= {
                channel: KeptSerde().loads_typed((name, bytes(data or b"")))
                for channel, name, data in rows
                if name != "empty"
            }
        return found


def detect(connection: Connection, serde: Serde | None = None) -> Source:
    """Which of LangGraph's two forms the database has.

    Raises:
        InvalidInput: it has neither.
    """
    inspector = inspect(connection)
    names = set(inspector.get_table_names())
    for writes, value, blobs in (("checkpoint_writes", "blob", True), ("writes", "value", False)):
        if {"checkpoints", writes} <= names and blobs == ("checkpoint_blobs" in names):
            columns = {found["name"] for found in inspector.get_columns(writes)}
            return Source(writes, value, "task_path" in columns, blobs, serde)
    raise InvalidInput("this is no database of LangGraph's SqliteSaver or PostgresSaver: their tables are not there")


def table_bytes(connection: Connection, names: Iterable[str]) -> int:
    """The bytes that these tables take with their indexes, on SQLite those of the whole file."""
    if connection.dialect.name == "sqlite":
        statement = text("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size")
        return int(connection.execute(statement).scalar_one())
    statement = text("SELECT pg_total_relation_size(to_regclass(:name))")
    return sum(connection.execute(statement, {"name": name}).scalar_one() for name in names)


def _at(statement: Any, source: Any, thread_id: str, ns: str, checkpoint_id: str) -> Any:
    return statement.where(
        source.c.thread_id == thread_id, source.c.checkpoint_ns == ns, source.c.checkpoint_id == checkpoint_id
    )


def _loaded(serde: Serde, name: str, stored: bytes, checkpoint_id: str) -> dict[str, Any]:
    try:
        loaded = serde.loads_typed((name, stored))
    except Exception as exc:
        raise Unserializable(
            f"checkpoint {checkpoint_id}", f"stored as {name!r}, which cannot be loaded: {exc}"
        ) from exc
    if not isinstance(loaded, dict):
        raise Unserializable(f"checkpoint {checkpoint_id}", f"stored as {name!r}; give the serializer that wrote it")
    return loaded
