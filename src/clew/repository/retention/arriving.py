"""The elements of an import: packed into rows as they come, and held against what the checkpoints name.

Nothing is written here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from clew.codec import Codec
from clew.errors import InvalidInput
from clew.repository.retention.exchange import read_bytes, read_int
from clew.structure import Kind, Node, Span, SpanSet, encode_payload, runs_of, spans_of
from clew.structure.segments import ROW_BYTES

__all__ = ["ArrivedElements"]

_NOWHERE: Final = Span(-1, 0, 0)
_MANY: Final = 20_000


@dataclass(slots=True)
class ArrivedElements:
    """Which elements have come, and which of them a checkpoint has named. All come before the first checkpoint."""

    _row: list[bytes] = field(default_factory=list)
    _row_at: Span = _NOWHERE
    _row_bytes: int = 0
    _stored: list[Span] = field(default_factory=list)
    _pairs: list[Span] = field(default_factory=list)
    _there: SpanSet = field(default_factory=SpanSet)
    _tables: SpanSet = field(default_factory=SpanSet)
    _named: set[Span] = field(default_factory=set)

    def take(self, codec: Codec, log: Any, start: Any, texts: Any) -> Iterator[tuple[Span, bytes]]:
        """(place, payload) of the rows that are full, now that the elements at ``start`` and behind it have come.

        Raises:
            InvalidInput: they are not in order, or are nothing that could be stored.
        """
        read_int("log", log, 0, 2**63 - 1)
        read_int("position", start)
        if not isinstance(texts, list) or not texts:
            raise InvalidInput("elements must be a list that is not empty")
        if (log, start) < self._row_at[::2]:
            raise InvalidInput("elements must come in the order of their positions, each once")
        for position, text in enumerate(texts, start=start):
            element = read_bytes("element", text)
            value = codec.decode(element)
            if isinstance(value, list) and len(value) == 2 and _is_key(value[0]):
                _extend(self._pairs, log, position)
            if (log, position) != self._row_at[::2] or self._row_bytes + len(element) > ROW_BYTES:
                yield from self.rest()
                self._row_at = Span(log, position, position)
            self._row.append(element)
            self._row_bytes += len(element)
            self._row_at = self._row_at._replace(end=position + 1)
            _extend(self._stored, log, position)

    def rest(self) -> Iterator[tuple[Span, bytes]]:
        """(place, payload) of the row that is not full yet, if there is one."""
        if self._row:
            yield self._row_at, encode_payload(self._row)
            self._row, self._row_bytes = [], 0

    def claim(self, root: Node) -> None:
        """Note what a checkpoint names.

        Raises:
            InvalidInput: elements that have not come, or elements of a table that are no pairs.
        """
        if self._stored:
            self._there, self._tables, self._stored, self._pairs = SpanSet(self._stored), SpanSet(self._pairs), [], []
        for run in runs_of(root):
            if run.kind is Kind.TABLE and any(self._tables.covered(*s) != s.end - s.start for s in run.spans):
                raise InvalidInput("elements of a table must be pairs of a key and a value")
        fresh = set(spans_of(root)) - self._named
        if any(self._there.covered(*span) != span.end - span.start for span in fresh):
            raise InvalidInput("it names elements that have not come")
        self._named |= fresh
        if len(self._named) > _MANY:
            self._named = set(SpanSet(self._named))

    def check_all_claimed(self) -> None:
        """Whether everything that has come is named. Raises InvalidInput."""
        unnamed = SpanSet(self._there or self._stored)
        unnamed.remove(SpanSet(self._named))
        if unnamed:
            raise InvalidInput("elements have come that no checkpoint names")


def _extend(spans: list[Span], log: int, position: int) -> None:
    if spans and spans[-1].log == log and spans[-1].end == position:
        spans[-1] = spans[-1]._replace(end=position + 1)
    else:
        spans.append(Span(log, position, position + 1))


def _is_key(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True
