"""Which positions of which logs are named by a set of manifests: arithmetic over spans alone."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

from clew.structure.nodes import Span

__all__ = ["SpanSet"]

_BEYOND = 2**63


class SpanSet:
    """A set of positions in logs, kept as disjoint spans in order."""

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        self._logs: dict[int, list[tuple[int, int]]] = {}
        by_log: dict[int, list[tuple[int, int]]] = {}
        for log, start, end in spans:
            by_log.setdefault(log, []).append((start, end))
        for log, ranges in by_log.items():
            ranges.sort()
            joined = [ranges[0]]
            for start, end in ranges[1:]:
                if start <= joined[-1][1]:
                    joined[-1] = (joined[-1][0], max(joined[-1][1], end))
                else:
                    joined.append((start, end))
            self._logs[log] = joined

    def __bool__(self) -> bool:
        return bool(self._logs)

    def __iter__(self) -> Iterator[Span]:
        for log, ranges in sorted(self._logs.items()):
            for start, end in ranges:
                yield Span(log, start, end)

    @property
    def logs(self) -> list[int]:
        """The logs that any position lies in, in order."""
        return sorted(self._logs)

    def remove(self, spans: Iterable[Span]) -> None:
        """Take positions out, wherever they are in."""
        for log, start, end in spans:
            ranges = self._logs.get(log)
            if ranges is None or start >= end:
                continue
            first = max(bisect_right(ranges, (start, _BEYOND)) - 1, 0)
            if ranges[first][1] <= start:
                first += 1
            last = bisect_left(ranges, (end,), first)
            if first >= last:
                continue
            kept = []
            if ranges[first][0] < start:
                kept.append((ranges[first][0], start))
            if ranges[last - 1][1] > end:
                kept.append((end, ranges[last - 1][1]))
            ranges[first:last] = kept
            if not ranges:
                del self._logs[log]

    def covered(self, log: int, start: int, end: int) -> int:
        """How many of the positions ``start`` to ``end`` (excluded) of ``log`` are in the set."""
        return sum(part.end - part.start for part in self.within(log, start, end))

    def within(self, log: int, start: int, end: int) -> list[Span]:
        """The spans of the set between the positions ``start`` and ``end`` (excluded) of ``log``, in order."""
        ranges = self._logs.get(log, [])
        found: list[Span] = []
        index = max(bisect_right(ranges, (start, _BEYOND)) - 1, 0)
        while index < len(ranges) and ranges[index][0] < end:
            low, high = max(ranges[index][0], start), min(ranges[index][1], end)
            if low < high:
                found.append(Span(log, low, high))
            index += 1
        return found
