"""What a thread takes in the database, against what was told to it. Nothing is measured here."""

from __future__ import annotations

from clew.records.record import Number, Record, Str

__all__ = ["ThreadStatistics"]


class ThreadStatistics(Record):
    """How much a thread holds.

    ``information_bytes`` is, summed over its checkpoints, the compact UTF-8 JSON of the elements of the state that the
    checkpoint's base did not have. ``stored_bytes`` are the values of all its rows, numbers at eight bytes; indexes and
    the database's own overhead are not in it.
    """

    thread_id: Str
    checkpoints: Number
    information_bytes: Number
    stored_bytes: Number

    @property
    def ratio(self) -> float | None:
        """Stored bytes over information; None where there is no information."""
        return self.stored_bytes / self.information_bytes if self.information_bytes else None
