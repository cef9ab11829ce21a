"""Where the elements of a new form go: onto those of its base where they are equal, to the end of a log where not.

Pure: from (base's placed form, new form, what is known of the logs) to a placement. Nothing here reads a database.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from clew.structure.encoding import common_prefix, common_suffix
from clew.structure.manifest import encode_manifest, encode_spans
from clew.structure.nodes import Node, Record, Run, Span, runs_of, slice_spans, spans_of

__all__ = ["Append", "Placement", "Tips", "place"]

SPAN_BYTES: Final = 4096
"""The bound of what a manifest's spans take beyond one for each run; above it, the most broken runs are rewritten."""
_SCANS: Final = 4
MATCHED_BYTES: Final = 16
"""An element shorter than this is cheaper stored again than pointed at, unless it continues a span."""


class Tips(Protocol):
    """What placing needs to know of the logs: ``tip(log)`` is the first position never used, or None if unknown."""

    def tip(self, log: int) -> int | None: ...


@dataclass(frozen=True, slots=True)
class Append:
    """New elements for ``log``, the first at position ``start``, which is the log's tip (0 for a new log)."""

    log: int
    start: int
    elements: list[bytes]


@dataclass(frozen=True, slots=True)
class Placement:
    """A placed form, its stored bytes, and what has to be appended for it to be readable."""

    root: Node
    manifest: bytes
    spans: bytes
    appends: tuple[Append, ...]


def place(form: Node, base: Node | None, tips: Tips, new_log: Callable[[], int]) -> Placement:
    """Match ``form`` against ``base``, both with their elements, and give every element a place.

    Elements match as encoded bytes: the common prefix and suffix of the run at the same path first, then by content
    among the base's own elements and no others. What does not match is appended to the log that the base's run ends
    in, if the base reaches that log's tip, else to a new log.
    """
    rewritten: frozenset[int] = frozenset()
    while True:
        draft = _Draft(base, tips, new_log)
        root = draft.node(form, base, rewritten)
        broken = _most_broken(root)
        if broken is None or broken in rewritten:
            manifest, spans = encode_manifest(root)
            return Placement(root, manifest, spans, tuple(draft.appends.values()))
        rewritten |= {broken}


def _most_broken(root: Node) -> int | None:
    """The ordinal of the run with the most spans, where the spans take more than they may."""
    runs = list(runs_of(root))
    if sum(len(run.spans) for run in runs) - len(runs) <= SPAN_BYTES // 14:  # 14: the most that one span takes
        return None
    firsts = [span for run in runs for span in run.spans[:1]]
    if len(encode_spans(spans_of(root))) - len(encode_spans(firsts)) <= SPAN_BYTES:
        return None
    return max(range(len(runs)), key=lambda ordinal: len(runs[ordinal].spans))


@dataclass(slots=True)
class _Draft:
    base: Node | None
    tips: Tips
    new_log: Callable[[], int]
    appends: dict[int, Append] = field(default_factory=dict)
    ordinal: int = -1
    log: int | None = None
    """Where the run that is being placed appends to, once it has."""
    _contents: _Contents | None = None
    _reach: dict[int, int] | None = None

    def node(self, form: Node, partner: Node | None, rewritten: frozenset[int]) -> Node:
        if isinstance(form, Run):
            self.ordinal += 1
            self.log = None
            if self.ordinal in rewritten:
                return form.placed((self.append(form.elements, None),) if form.elements else ())
            return form.placed(self.run(form.elements, partner if isinstance(partner, Run) else None))
        if isinstance(form, Record):
            known = partner if isinstance(partner, Record) else None
            children = [
                self.node(child, known.child(key) if known else None, rewritten)
                for key, child in zip(form.keys, form.children, strict=True)
            ]
            return Record(form.name, form.keys, tuple(children))
        return form

    def run(self, elements: list[bytes], partner: Run | None) -> tuple[Span, ...]:
        known = partner.elements if partner else []
        head = common_prefix(elements, known)
        tail = common_suffix(elements, known, head)
        middle = elements[head : len(elements) - tail]
        spans: list[Span] = []
        if partner:
            _extend(spans, slice_spans(partner.spans, 0, head))
        if middle:
            self.match(spans, middle, partner)
        if partner and tail:
            _extend(spans, slice_spans(partner.spans, len(known) - tail, len(known)))
        return tuple(spans)

    def match(self, spans: list[Span], elements: list[bytes], partner: Run | None) -> None:
        contents = self.contents
        fresh: list[bytes] = []
        previous: int | None = None
        for element in elements:
            found = contents.after(previous, element)
            if found is None and len(element) >= MATCHED_BYTES:
                found = contents.find(element)
            previous = found
            if found is None:
                fresh.append(element)
                continue
            if fresh:
                _extend(spans, [self.append(fresh, partner)])
                fresh = []
            _extend(spans, [contents.span(found)])
        if fresh:
            _extend(spans, [self.append(fresh, partner)])

    def append(self, elements: list[bytes], partner: Run | None) -> Span:
        """The place of new elements, behind what the base's run ends in wherever that can be continued."""
        log = self.log = self.continued(partner) if self.log is None else self.log
        if log in self.appends:
            pending = self.appends[log]
            start = pending.start + len(pending.elements)
            pending.elements.extend(elements)
        else:
            start = self.reach.get(log, 0)
            self.appends[log] = Append(log, start, list(elements))
        return Span(log, start, start + len(elements))

    def continued(self, partner: Run | None) -> int:
        # A log is continued only from its tip, and only by a base that reaches it: whatever lies behind the base's
        # last element belongs to a sibling, and a position that was ever used is never used again.
        for span in reversed(partner.spans[-8:] if partner else ()):
            if self.reach.get(span.log) == self.tips.tip(span.log):
                return span.log
        return self.new_log()

    @property
    def reach(self) -> dict[int, int]:
        """For each log of the base, the end of the base's last span in it."""
        if self._reach is None:
            self._reach = {}
            for log, _, end in spans_of(self.base) if self.base else ():
                self._reach[log] = max(end, self._reach.get(log, 0))
        return self._reach

    @property
    def contents(self) -> _Contents:
        if self._contents is None:
            self._contents = _Contents(list(runs_of(self.base)) if self.base else [])
        return self._contents


class _Contents:
    """The base's elements by content, and where each lies. Made once a placement, and only if something is new."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.elements = [element for run in runs for element in run.elements]
        self.spans = tuple(span for run in runs for span in run.spans)
        self._scans = 0
        self._index: dict[bytes, int] | None = None

    def find(self, element: bytes) -> int | None:
        """Where the base has the element, or None.

        The first few are looked for one by one: among 1,000 elements that takes 15 µs each, and an index 150.
        """
        if self._index is None and self._scans < _SCANS:
            self._scans += 1
            return self.elements.index(element) if element in self.elements else None
        if self._index is None:
            self._index = {known: ordinal for ordinal, known in enumerate(self.elements)}
        return self._index.get(element)

    def after(self, previous: int | None, element: bytes) -> int | None:
        """The element behind the previous match, if it is the one asked for: it continues that span for nothing."""
        if previous is None or previous + 1 >= len(self.elements) or self.elements[previous + 1] != element:
            return None
        return previous + 1

    def span(self, ordinal: int) -> Span:
        return slice_spans(self.spans, ordinal, ordinal + 1)[0]


def _extend(spans: list[Span], more: Sequence[Span]) -> None:
    """Add spans at the end, joining those that touch."""
    for span in more:
        if spans and spans[-1].log == span.log and spans[-1].end == span.start:
            spans[-1] = Span(span.log, spans[-1].start, span.end)
        else:
            spans.append(span)
