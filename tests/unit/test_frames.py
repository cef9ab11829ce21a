"""Zstandard frames: what was packed comes back, and nothing becomes larger than it says or than anything stored is."""

from __future__ import annotations

import random
import tracemalloc

import pytest

from clew.codec import Serialized
from clew.codec.frames import MAX_BYTES, inflated, zstd
from clew.errors import CorruptData
from clew.structure import decode_payload, encode_payload

NOISE = random.Random(1).randbytes(3000)


SIZE = 50_000_000


def bomb(says: int) -> bytes:
    """A frame of 2 kB that becomes 50 MB, and says that it becomes ``says``."""
    frame = zstd.compress(bytes(SIZE))
    return frame.replace(SIZE.to_bytes(4, "little"), says.to_bytes(4, "little"), 1)


@pytest.mark.parametrize("content", [b"", b"a", b"a" * 131_072, b"a" * 131_073, NOISE, NOISE * 100], ids=len)
def test_what_was_packed_comes_back(content: bytes) -> None:
    assert inflated(zstd.compress(content)) == content


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"no frame",
        zstd.compress(NOISE)[:-1],
        zstd.compress(NOISE) + b"a",
        zstd.compress(NOISE) * 2,
        zstd.compress(b"a" * 500, options={zstd.CompressionParameter.content_size_flag: 0}),
    ],
    ids=["nothing", "other", "short", "followed", "two", "unsized"],
)
def test_what_is_not_one_whole_frame_of_known_size_is_damaged(frame: bytes) -> None:
    with pytest.raises(CorruptData):
        inflated(frame)


@pytest.mark.parametrize("says", [2**32 - 1, 1_000_000_001, SIZE - 1, 1000])
def test_a_small_row_does_not_fill_the_memory(says: int) -> None:
    frame = bomb(says)
    assert len(frame) < 5000
    tracemalloc.start()
    try:
        with pytest.raises(CorruptData, match="log 7, start 3"):
            decode_payload(7, 3, 1, b"\x01" + frame)
        with pytest.raises(CorruptData):
            Serialized("zstd/msgpack", frame).opened()
        assert tracemalloc.get_traced_memory()[1] < SIZE + 1_000_000
    finally:
        tracemalloc.stop()


def test_the_bound_is_what_a_database_takes_for_one_value() -> None:
    assert MAX_BYTES == 10**9
    assert decode_payload(1, 0, 1, encode_payload([b"\xc4\x02ab" * 100_000])).count == 1
