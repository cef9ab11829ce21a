"""Segments: the stored form of neighbouring elements of one log, and which small ones are due to be merged.

A payload is a flag byte and a body: ``0``, the CRC-32, and the raw body, or ``1`` and a zstd frame that carries its
own checksum. The body of one element is that element; of several, their lengths (32 bits each, little-endian) and
then the elements, which under a msgpack array header decode in one call.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Final
from zlib import crc32

from clew.codec.frames import inflated, zstd
from clew.errors import CorruptData

__all__ = ["ROW_BYTES", "Row", "Segment", "chunked", "decode_payload", "due", "encode_payload"]

COMPRESSED_BYTES: Final = 512
"""A body below this is not worth compressing; it will be, once it is merged."""
ROW_BYTES: Final = 256 * 1024
"""The most that a merged or first-written row holds before compression, unless one element is larger."""
FULL_BYTES: Final = ROW_BYTES // 2
"""A row of at least this is not merged again; two that are below always fit into one."""
FAN: Final = 16
"""So many neighbouring rows of one tier are merged into one of the next."""

_RAW, _ZSTD = b"\x00", b"\x01"
_OPTIONS: Mapping[int, int] = {
    zstd.CompressionParameter.compression_level: 3,
    zstd.CompressionParameter.checksum_flag: 1,
}


@dataclass(frozen=True)
class Segment:
    """A row that was read: the elements ``start`` to ``start + count`` of ``log``, decompressed."""

    log: int
    start: int
    count: int
    lengths: Sequence[int]
    body: memoryview

    def chunk(self, low: int, high: int) -> memoryview:
        """The bytes of the elements ``low`` to ``high`` (excluded; positions in the log), as they stand."""
        if low == self.start and high == self.start + self.count:
            return self.body
        return self.body[self._ends[low - self.start] : self._ends[high - self.start]]

    @cached_property
    def elements(self) -> tuple[bytes, ...]:
        """All elements, one by one."""
        body, ends = bytes(self.body), self._ends
        return tuple(body[low:high] for low, high in pairwise(ends))

    @cached_property
    def _ends(self) -> tuple[int, ...]:
        return (0, *accumulate(self.lengths))


@dataclass(frozen=True, slots=True)
class Row:
    """What is remembered of a stored row. ``elements`` is None where they were not read, or will not be needed."""

    start: int
    count: int
    size: int
    elements: tuple[bytes, ...] | None = None

    @property
    def end(self) -> int:
        """The position behind the last element."""
        return self.start + self.count

    @property
    def full(self) -> bool:
        """Whether it is large enough to be left alone."""
        return self.size >= FULL_BYTES


def encode_payload(elements: Sequence[bytes]) -> bytes:
    """The payload of a row with these elements, of which there is at least one."""
    body = b"".join(elements)
    if len(elements) > 1:
        body = struct.pack(f"<{len(elements)}I", *map(len, elements)) + body
    if len(body) >= COMPRESSED_BYTES:
        packed = _compressed(body)
        if len(packed) < len(body) * 0.9:
            return _ZSTD + packed
    return _RAW + crc32(body).to_bytes(4, "big") + body


def decode_payload(log: int, start: int, count: int, payload: bytes) -> Segment:
    """The row's elements.

    Raises:
        CorruptData: naming the row, where the payload is not what was written.
    """
    try:
        body = _body(payload)
        if count == 1:
            return Segment(log, start, 1, (len(body),), body)
        lengths = struct.unpack_from(f"<{count}I", body)
        if sum(lengths) != len(body) - 4 * count:
            raise CorruptData("its count does not match its payload")
        return Segment(log, start, count, lengths, body[4 * count :])
    except (struct.error, CorruptData) as exc:
        raise CorruptData(f"segment (log {log}, start {start}, count {count}) cannot be read: {exc}") from exc


class _Compressors(threading.local):
    """One compressor for each thread: making one takes as long as compressing a message."""

    def __init__(self) -> None:
        self.compressor = zstd.ZstdCompressor(options=_OPTIONS)


_compressors = _Compressors()


def _compressed(body: bytes) -> bytes:
    compressor = _compressors.compressor
    compressor.set_pledged_input_size(len(body))  # so that the frame says how much memory reading it takes
    return compressor.compress(body, compressor.FLUSH_FRAME)


def _body(payload: bytes) -> memoryview:
    flag = payload[:1]
    if flag == _ZSTD:
        return memoryview(inflated(payload[1:]))
    if flag != _RAW:
        raise CorruptData(f"payload format {flag.hex() or 'none'} is not known here; a newer clew wrote it")
    body = memoryview(payload)[5:]
    if len(payload) < 5 or crc32(body) != int.from_bytes(payload[1:5], "big"):
        raise CorruptData("its checksum does not match")
    return body


def chunked(elements: Sequence[bytes]) -> list[Sequence[bytes]]:
    """``elements`` in their order, cut where a row would grow over ``ROW_BYTES``."""
    chunks: list[Sequence[bytes]] = []
    first = size = 0
    for index, element in enumerate(elements):
        if index > first and size + len(element) > ROW_BYTES:
            chunks.append(elements[first:index])
            first, size = index, 0
        size += len(element)
    chunks.append(elements[first:])
    return chunks


def due(rows: Sequence[Row]) -> slice | None:
    """Which neighbouring rows of a log, in the order of their positions, are due to be merged into one.

    Tiers are counted in elements: sixteen rows of one tier become one of the next, so that every element is merged
    about once a tier, and a put merges at most once. Looks back from the end to the first full row only.
    """
    end = len(rows)
    if end < FAN:
        return None
    while end > 0 and not rows[end - 1].full:
        tier, first = _tier(rows[end - 1]), end - 1
        while first > 0 and _tier(rows[first - 1]) == tier and rows[first - 1].end == rows[first].start:
            first -= 1
        if end - first >= FAN:
            return slice(first, first + _fitting(rows[first : first + FAN]))
        end = first
    return None


def _tier(row: Row) -> int:
    return -1 if row.full or row.count == 0 else (row.count.bit_length() - 1) // 4


def _fitting(rows: Sequence[Row]) -> int:
    """How many of the rows, at least two, stay within ``ROW_BYTES`` together."""
    total = 0
    for number, row in enumerate(rows):
        total += row.size
        if number >= 2 and total > ROW_BYTES:
            return number
    return len(rows)
