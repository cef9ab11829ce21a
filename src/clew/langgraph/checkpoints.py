"""Between LangGraph's checkpoints and clew's: addresses, states and metadata. No database is known here.

The state of a LangGraph checkpoint is its channels, and under ``FRAME`` everything else. A namespace is LangGraph's
text, cut at the bars.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    CheckpointTuple,
    get_checkpoint_id,
    get_checkpoint_metadata,
    writes_sort_key,
)
from langgraph.checkpoint.serde.types import TASKS

from clew.codec import Codec, Serialized
from clew.codec.extensions import is_plain_text
from clew.errors import InvalidInput, Unserializable
from clew.langgraph.channels import ChannelForm, Serde, TrailEntry, encode_channel, encode_whole, serialized
from clew.langgraph.versions import decode_frame, encode_frame, is_orphan, next_version, rest_of
from clew.records import Checkpoint, CheckpointConfig, PendingWrite
from clew.repository import PutRequest, prepare
from clew.structure import Record
from clew.structure.encoding import MANIFEST_BYTES, spilled
from clew.structure.manifest import manifest_size

__all__ = [
    "FRAME",
    "address_of",
    "config_of",
    "key_of",
    "metadata_for",
    "namespace_of",
    "namespace_text",
    "put_request",
    "tuple_of",
    "with_sends",
    "write_of_task",
    "writes_for",
]

FRAME: Final = "langgraph:checkpoint"
"""The key of a state under which a checkpoint's versions stand. A channel of this name gets an apostrophe."""

_LONG_PATH: Final = "~…"
_PATH_BYTES: Final = 512
_SECRET: Final = re.compile(
    r"(?i)(?:^|[^a-z])(?:pass(?:word|wd|phrase)|pwd|secret|token|credentials?|authorization|auth|cookie|bearer|jwt)(?![a-z])"
    r"|api[_-]?key|access[_-]?key|private[_-]?key|secret[_-]?key|signing[_-]?key|(?:Token|Secret|Password|ApiKey)$"
)


def namespace_of(checkpoint_ns: str) -> tuple[str, ...]:
    """The namespace for LangGraph's text."""
    return tuple(checkpoint_ns.split("|")) if checkpoint_ns else ()


def namespace_text(namespace: Iterable[str]) -> str:
    """LangGraph's text for the namespace."""
    return "|".join(namespace)


def address_of(config: Any) -> CheckpointConfig:
    """The address that a LangGraph config means; without a checkpoint id the latest.

    Raises:
        InvalidInput: the config has no ``thread_id``.
    """
    configurable = config.get("configurable", {})
    if configurable.get("thread_id") is None:
        raise InvalidInput('the config has no thread_id; pass {"configurable": {"thread_id": …}}')
    return CheckpointConfig(
        thread_id=str(configurable["thread_id"]),
        checkpoint_id=get_checkpoint_id(config) or None,
        namespace=namespace_of(configurable.get("checkpoint_ns") or ""),
    )


def config_of(address: CheckpointConfig) -> Any:
    """LangGraph's config of an address."""
    return {
        "configurable": {
            "thread_id": address.thread_id,
            "checkpoint_ns": namespace_text(address.namespace),
            "checkpoint_id": address.checkpoint_id,
        }
    }


def metadata_for(config: Mapping[str, Any], metadata: Any, allowed: Collection[str]) -> dict[str, Any]:
    """The metadata to store: as LangGraph's savers make it, without keys of the config that look like secrets.

    ``allowed`` are keys to keep although they do. Tuples become lists, as in JSON.
    """
    open_config: Any = {
        part: {
            key: value for key, value in (config.get(part) or {}).items() if key in allowed or not _SECRET.search(key)
        }
        for part in ("metadata", "configurable")
    }
    merged: Any = get_checkpoint_metadata(open_config, metadata)
    return {key: _as_json(value) for key, value in merged.items()}


def writes_for(serde: Serde, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str) -> list[PendingWrite]:
    """The writes of one ``put_writes``, each with LangGraph's index for its channel, else its place."""
    return [
        write_of_task(
            serialized(serde, value, f"writes[{place}]"),
            task_id,
            WRITES_IDX_MAP.get(channel, place),
            channel,
            task_path,
        )
        for place, (channel, value) in enumerate(writes)
    ]


def write_of_task(value: Serialized, task_id: str, idx: int, channel: str, task_path: str) -> PendingWrite:
    """One write. The path stands where other threads have the node."""
    payload: Any = value.compressed()
    if len(task_path.encode("utf-8", "surrogatepass")) > _PATH_BYTES:
        task_path, payload = _LONG_PATH, [task_path, payload]
    return PendingWrite(node=task_path, payload=payload, task_id=task_id, idx=idx, channel=channel)


def put_request(
    codec: Codec,
    serde: Serde,
    config: Mapping[str, Any],
    checkpoint: Mapping[str, Any],
    metadata: Mapping[str, Any],
    new_versions: Collection[str],
    trail: TrailEntry | None,
) -> tuple[PutRequest, TrailEntry]:
    """A checkpoint ready to be put, and what to remember of it. ``metadata`` is as ``metadata_for`` gives it.

    A channel whose version is still the parent's is not encoded again, which is also what LangGraph's in-memory saver
    does: what was changed in place without a new version stays unseen.
    """
    configurable = config["configurable"]
    parent_id = configurable.get("checkpoint_id") or None
    versions = dict(checkpoint["channel_versions"])
    channels: dict[str, ChannelForm] = {}
    for name, value in checkpoint["channel_values"].items():
        if not is_plain_text(name):
            raise Unserializable("channel_values", "a channel's name with lone surrogates cannot be stored")
        form = None
        if trail is not None and name not in new_versions:
            form = trail.unmoved(name, parent_id, versions.get(name))
        if form is None:
            hint = trail.channels.get(name) if trail is not None else None
            form = encode_channel(codec, serde, name, value, hint)
        channels[name] = form
    rest = rest_of(checkpoint)
    rest_node = encode_whole(serde, "checkpoint", rest) if rest else None
    # A root graph's metadata mostly is a source and a step, which clew keeps in columns, and an empty mapping.
    orphan = metadata.get("parents") == {}
    stored = {key: value for key, value in metadata.items() if key != "parents"} if orphan else dict(metadata)
    frame = encode_frame(codec, checkpoint, rest_node, orphan)
    root = Record(None, (*map(key_of, channels), FRAME), (*(form.node for form in channels.values()), frame))
    run_id = metadata.get("run_id")
    record: Checkpoint[Any] = Checkpoint(
        thread_id=str(configurable["thread_id"]),
        checkpoint_id=checkpoint["id"],
        run_id=run_id if isinstance(run_id, str) and run_id else None,
        parent_checkpoint_id=parent_id,
        namespace=namespace_of(configurable.get("checkpoint_ns") or ""),
        state=None,
        metadata=stored,
    )
    fits = manifest_size(root) <= MANIFEST_BYTES
    request = replace(prepare(codec, record, root=root if fits else spilled(codec, root)), founding=True)
    return request, TrailEntry(record.checkpoint_id, versions, channels)


def tuple_of(
    address: CheckpointConfig,
    parent_id: str | None,
    state: Any,
    metadata: Any,
    writes: Iterable[PendingWrite],
    config: Any = None,
) -> CheckpointTuple:
    """LangGraph's tuple for a checkpoint that was read. ``config`` is what the caller asked with, if it had an id."""
    parent = None if parent_id is None else address.model_copy(update={"checkpoint_id": parent_id})
    rows = []
    for write in writes:
        path, value = write.payload if write.node == _LONG_PATH else (write.node, write.payload)
        rows.append((writes_sort_key(path, write.task_id, write.idx), (write.task_id, write.channel, value)))
    rows.sort(key=lambda row: row[0])
    if isinstance(state, dict) and FRAME in state and is_orphan(state[FRAME]):
        metadata = {**metadata, "parents": {}}
    asked: Any = config_of(address) if config is None else dict(config)
    return CheckpointTuple(
        config=asked,
        checkpoint=_checkpoint(str(address.checkpoint_id), state),
        metadata=metadata,
        parent_config=None if parent is None else config_of(parent),
        pending_writes=[write for _, write in rows],
    )


def with_sends(found: CheckpointTuple, parent_writes: Sequence[tuple[str, str, Any]] | None) -> CheckpointTuple:
    """The tuple with the sends of its parent, which checkpoints before version 4 kept there."""
    sends = [value for _, channel, value in parent_writes or () if channel == TASKS]
    if sends:
        checkpoint: Any = found.checkpoint
        versions = checkpoint["channel_versions"]
        checkpoint["channel_values"][TASKS] = sends
        versions[TASKS] = max(versions.values()) if versions else next_version(None)
    return found


def _channel_of(key: Any) -> Any:
    """The channel that has this key in a state; a key of clew's own interface may be no text, and stays as it is."""
    return key[:-1] if isinstance(key, str) and key.startswith(FRAME) else key


def _checkpoint(checkpoint_id: str, state: Any) -> Any:
    if not isinstance(state, dict):
        state = {"__root__": state}
    frame = state.pop(FRAME, None)
    values = {_channel_of(key): value for key, value in state.items()}
    if frame is None:  # written by clew's own interface
        return {
            "v": 4,
            "id": checkpoint_id,
            "ts": "",
            "channel_values": values,
            "channel_versions": dict.fromkeys(values, 1),
            "versions_seen": {},
            "updated_channels": None,
        }
    return {**decode_frame(frame), "id": checkpoint_id, "channel_values": values}


def key_of(channel: str) -> str:
    """The key of a channel in the state."""
    return f"{channel}'" if channel.startswith(FRAME) else channel


def _as_json(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_as_json(item) for item in value]
    if isinstance(value, dict):
        return {key: _as_json(item) for key, item in value.items()}
    return value
