"""Zstandard frames, taken apart only where they say beforehand how large they are. What they hold is not known here."""

from __future__ import annotations

import sys
from typing import Final

from clew.errors import CorruptData

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

__all__ = ["MAX_BYTES", "inflated", "zstd"]

MAX_BYTES: Final = 1_000_000_000
"""The most that one encoded value takes, which is what SQLite and Postgres take for one, too.

Without a bound a few kilobytes that somebody put into a row would become as many gigabytes of memory.
"""


def inflated(frame: bytes) -> bytes:
    """What the one frame holds.

    Raises:
        CorruptData: it is no frame, is not whole, has something behind it, or says that it is larger than anything
            that is stored, or not how large it is.
    """
    try:
        size: int | None = zstd.get_frame_info(frame).decompressed_size
        if size is None or size > MAX_BYTES:
            raise CorruptData("its zstd frame does not say how large it is, or is larger than anything that is stored")
        reader = zstd.ZstdDecompressor()
        content = reader.decompress(frame, max_length=size + 1)
        if len(content) == size and not reader.eof:
            content += reader.decompress(b"", max_length=1)  # the end is read when more is asked for
        whole = reader.eof and not reader.unused_data
    except (zstd.ZstdError, EOFError) as exc:
        raise CorruptData("its zstd frame cannot be read") from exc
    if not whole:
        raise CorruptData("its zstd frame is not whole, or something follows it")
    return content
