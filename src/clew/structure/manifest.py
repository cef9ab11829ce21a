"""The stored form of a manifest and of its spans, two byte strings that are only read together.

The manifest is a version byte, a CRC-32 over the rest and the spans, and one msgpack value: bytes are an inline leaf,
an integer is a run (its kind in the two low bits, the number of its spans above), and an array
``[name, key, node, key, node, …]`` is a record; a run with a name is ``{name: integer}``. The spans are
``[logs, [log index, gap, length, …]]`` in the order in which the runs take them; a gap counts from the end of the log's
previous span, so that the pieces of a list that is edited here and there take a byte or two each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final
from zlib import crc32

import ormsgpack

from clew.errors import CorruptData
from clew.structure.nodes import RECORD_DEPTH, Inline, Kind, Node, Record, Run, Span, runs_of

__all__ = [
    "decode_manifest",
    "decode_spans",
    "encode_manifest",
    "encode_spans",
    "log_bytes",
    "manifest_size",
    "spans_within",
]

MANIFEST_VERSION: Final = 1
_HEADER = 5
_END: Final = 2**63 - 1


def encode_manifest(root: Node) -> tuple[bytes, bytes]:
    """(manifest, spans) of a placed form."""
    spans = encode_spans([span for run in runs_of(root) for span in run.spans])
    body = ormsgpack.packb(_outline(root))
    return bytes([MANIFEST_VERSION]) + crc32(body, crc32(spans)).to_bytes(4, "big") + body, spans


def decode_manifest(manifest: bytes, spans: bytes) -> Node:
    """The placed form, its runs without their elements.

    Raises:
        CorruptData: where a newer clew wrote the manifest, or the bytes are not what was written.
    """
    if manifest[:1] != bytes([MANIFEST_VERSION]):
        raise CorruptData(f"manifest version {manifest[:1].hex() or 'none'} is not known here; a newer clew wrote it")
    if int.from_bytes(manifest[1:_HEADER], "big") != crc32(manifest[_HEADER:], crc32(spans)):
        raise CorruptData("the checksum of a manifest and its spans does not match")
    left = iter(decode_spans(spans))
    try:
        root = _node(ormsgpack.unpackb(manifest[_HEADER:]), left, 0)
    except (ValueError, TypeError) as exc:
        raise CorruptData("a manifest cannot be read") from exc
    if next(left, None) is not None:
        raise CorruptData("a manifest and its spans do not fit together")
    return root


def encode_spans(spans: list[Span]) -> bytes:
    """The spans' stored form; empty for none."""
    if not spans:
        return b""
    logs = list(dict.fromkeys(span.log for span in spans))
    index = {log: position for position, log in enumerate(logs)}
    flat: list[int] = []
    ends = [0] * len(logs)
    for log, start, end in spans:
        place = index[log]
        flat += (place, start - ends[place], end - start)
        ends[place] = end
    return ormsgpack.packb([logs, flat])


def decode_spans(data: bytes) -> list[Span]:
    """The spans of ``encode_spans``, in their order.

    Raises:
        CorruptData: where these are no spans.
    """
    if not data:
        return []
    try:
        logs, flat = ormsgpack.unpackb(data)
        if not set(map(type, [*logs, *flat])) <= {int}:
            raise ValueError("spans are numbers")
        ends = [0] * len(logs)
        found: list[Span] = []
        for place, gap, length in zip(flat[::3], flat[1::3], flat[2::3], strict=True):
            start = ends[place] + gap
            end = ends[place] = start + length
            if not 0 <= start < end <= _END or place < 0:
                raise ValueError("no span looks like this")
            found.append(Span(logs[place], start, end))
        if any(not 0 <= log <= _END for log in logs):
            raise ValueError("no log has this number")
    except (ValueError, TypeError, IndexError) as exc:
        raise CorruptData("the spans of a checkpoint cannot be read") from exc
    return found


def spans_within(data: bytes, bounds: Mapping[int, tuple[int, int]]) -> list[Span]:
    """Those of the stored spans that have a position between their log's bounds, for looking through very many."""
    if not data:
        return []
    found: list[Span] = []
    try:
        logs, flat = ormsgpack.unpackb(data)
        wanted = {place: bounds[log] for place, log in enumerate(logs) if log in bounds}
        ends = dict.fromkeys(wanted, 0)
        for place, gap, length in zip(flat[::3], flat[1::3], flat[2::3], strict=True) if wanted else ():
            if place in wanted:
                start = ends[place] + gap
                end = ends[place] = start + length
                low, high = wanted[place]
                if start < high and end > low:
                    found.append(Span(logs[place], start, end))
    except (ValueError, TypeError, IndexError) as exc:
        raise CorruptData("the spans of a checkpoint cannot be read") from exc
    return found


def log_bytes(log: int) -> bytes:
    """What the stored spans of a checkpoint hold somewhere if one of them is of this log; few others hold it."""
    return ormsgpack.packb(log)


def manifest_size(node: Node) -> int:
    """About how many bytes the manifest takes without its spans."""
    if isinstance(node, Inline):
        return len(node.data) + 2
    if isinstance(node, Run):
        return 3 + len(node.name or "")
    keys = sum(len(key.encode()) + 2 for key in node.keys)
    return 4 + len(node.name or "") + keys + sum(manifest_size(child) for child in node.children)


def _outline(node: Node) -> Any:
    if isinstance(node, Inline):
        return node.data
    if isinstance(node, Run):
        number = len(node.spans) << 2 | node.kind
        return number if node.name is None else {node.name: number}
    flat: list[Any] = [node.name]
    for key, child in zip(node.keys, node.children, strict=True):
        flat += (key, _outline(child))
    return flat


def _node(outline: Any, spans: Iterator[Span], depth: int) -> Node:
    match outline:
        case bytes():
            return Inline(outline)
        case int():
            return _run(None, outline, spans)
        case dict():
            [(name, number)] = outline.items()
            return _run(name, number, spans)
        case [str() | None as name, *flat] if depth < RECORD_DEPTH:
            keys = tuple(flat[::2])
            if all(isinstance(key, str) for key in keys):
                nodes = tuple(_node(child, spans, depth + 1) for child in flat[1::2])
                if len(nodes) == len(keys):
                    return Record(name, keys, nodes)
    raise ValueError("no node looks like this")


def _run(name: str | None, number: int, spans: Iterator[Span]) -> Run:
    found = tuple(islice(spans, number >> 2))
    run = Run(Kind(number & 3), name, spans=found)
    if len(found) != number >> 2 or (run.kind is Kind.LEAF and run.count != 1):
        raise ValueError("a run's spans are not there, or a leaf has not exactly one element")
    return run
