"""Any sequence of puts, edits, branches, merges and deletes reads back equal to a plain model, over rows in memory.

The rows are kept as the repository keeps them, without a database; ``test_structure_stored`` does it over SQLite.
"""

from __future__ import annotations

from copy import deepcopy
from itertools import count
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clew.codec import Codec
from clew.repository.memory import Logs
from clew.repository.segments import changes_for, encoded
from clew.structure import (
    Node,
    Row,
    SegmentMap,
    Span,
    SpanSet,
    decode,
    decode_manifest,
    decode_payload,
    decode_spans,
    digest_of,
    encode,
    place,
    runs_of,
    spans_of,
    wanted,
    with_elements,
)
from clew.structure.segments import ROW_BYTES

from states import STATES, edits, same

CODEC = Codec()
MANIFEST_BOUND = 2 * 4096 + 256


class Shelf:
    """Segment rows and manifests of one thread, and the writer's memory of them."""

    def __init__(self) -> None:
        self.rows: dict[int, dict[int, tuple[int, bytes]]] = {}
        self.stored: dict[int, tuple[bytes, bytes]] = {}
        self.forms: dict[int, Node] = {}
        self.logs = Logs()
        self._logs = count(1)
        self._ids = count()

    def put(self, state: Any, base: int | None, *, warm: bool) -> int:
        """The new checkpoint's number. A writer that is not warm has only the rows to go by."""
        form, logs = None, self.logs
        if base is not None:
            form = self.forms[base] if warm and base in self.forms else self.read(base)
        if not warm:
            logs = self.read_logs({span.log for span in spans_of(form)} if form else set())
        root = encode(CODEC, state, form)
        if len(self.stored) < 20:
            assert digest_of(root) == digest_of(encode(CODEC, state)), "the digest depends on what the writer remembers"
        placement = place(root, form, logs, lambda: next(self._logs))
        changes = changes_for(logs, placement.appends, {span.log for span in spans_of(placement.root)} | set(logs.rows))
        assert len(changes.merged) <= 1
        for log, row in changes.merged:
            assert sum(map(len, row.elements or ())) <= ROW_BYTES
            self.rows[log][row.start] = (row.count, encoded(row))
        for log, start in changes.absorbed:
            del self.rows[log][start]
        for log, row in changes.added:
            at = self.rows.setdefault(log, {})
            assert row.start not in at, "a position is used twice"
            assert all(start + length <= row.start for start, (length, _) in at.items()), "not at the tip"
            at[row.start] = (row.count, encoded(row))
        number = next(self._ids)
        self.stored[number] = (placement.manifest, placement.spans)
        self.forms[number] = placement.root
        self.logs = Logs({**self.logs.rows, **changes.logs.rows})
        return number

    def delete(self, number: int) -> None:
        """As ``collect`` does it: rows of which nothing is named go, and a lost tip leaves a mark."""
        doomed = SpanSet(decode_spans(self.stored.pop(number)[1]))
        self.forms.pop(number, None)
        live = SpanSet(span for _, spans in self.stored.values() for span in decode_spans(spans))
        for log in doomed.logs:
            rows = self.rows[log]
            tip = max(start + length for start, (length, _) in rows.items())
            dead = [
                start for start, (length, _) in rows.items() if length and not live.covered(log, start, start + length)
            ]
            for start in dead:
                del rows[start]
            if not any(length for length, _ in rows.values()):
                del self.rows[log]
            elif max(start + length for start, (length, _) in rows.items()) < tip:
                rows[tip] = (0, b"")
        self.logs = Logs()
        self.forms.clear()

    def read(self, number: int) -> Node:
        root = decode_manifest(*self.stored[number])
        return with_elements(CODEC, root, self.segments(wanted([root])))

    def read_state(self, number: int) -> Any:
        root = decode_manifest(*self.stored[number])
        return decode(CODEC, root, self.segments(wanted([root])))

    def segments(self, spans: list[Span]) -> SegmentMap:
        return SegmentMap(
            decode_payload(log, start, length, payload)
            for log in {span.log for span in spans}
            for start, (length, payload) in self.rows.get(log, {}).items()
            if length and any(span.log == log and start < span.end and start + length > span.start for span in spans)
        )

    def read_logs(self, logs: set[int]) -> Logs:
        found = {}
        for log in logs:
            rows = []
            for start, (length, payload) in sorted(self.rows[log].items()):
                segment = decode_payload(log, start, length, payload) if length else None
                rows.append(Row(start, length, len(segment.body), segment.elements) if segment else Row(start, 0, 0))
            found[log] = tuple(rows)
        return Logs(found)

    def check(self, states: dict[int, Any]) -> None:
        for number, state in states.items():
            assert same(self.read_state(number), state), number
            manifest, spans = self.stored[number]
            assert len(manifest) + len(spans) <= MANIFEST_BOUND
        named = {
            (log, p)
            for _, spans in self.stored.values()
            for log, low, high in decode_spans(spans)
            for p in range(low, high)
        }
        for log, rows in self.rows.items():
            held = [p for start, (length, _) in rows.items() for p in range(start, start + length)]
            assert len(held) == len(set(held)), "rows overlap"
            for start, (length, _) in rows.items():
                assert not length or any((log, p) in named for p in range(start, start + length)), "nobody names a row"


@settings(max_examples=120, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_any_sequence_of_puts_and_deletes_reads_back_as_it_was(data: st.DataObject) -> None:
    shelf, states = Shelf(), {}
    state: Any = data.draw(STATES)
    for _ in range(data.draw(st.integers(2, 14))):
        base = data.draw(st.sampled_from([None, *states])) if states else None
        if states and data.draw(st.integers(0, 3)) == 0:
            doomed = data.draw(st.sampled_from(sorted(states)))
            shelf.delete(doomed)
            del states[doomed]
        else:
            if base is not None and data.draw(st.booleans()):
                state = states[base]
            state = data.draw(edits(state)) if data.draw(st.integers(0, 5)) else data.draw(STATES)
            number = shelf.put(state, base, warm=data.draw(st.booleans()))
            states[number] = deepcopy(state)
        shelf.check(states)


@settings(max_examples=40)
@given(st.lists(st.tuples(st.sampled_from("aprbd"), st.integers(0, 10**6), st.booleans()), min_size=30, max_size=90))
def test_long_lists_survive_merges_branches_and_deletes(steps: list[tuple[str, int, bool]]) -> None:
    shelf, states = Shelf(), {}
    fresh = count()
    items: list[Any] = []
    base: int | None = None
    for kind, chance, warm in steps:
        if kind == "p" and len(items) > 2:
            items = [*items[:-2], f"popped-{next(fresh)}" * 5]
        elif kind == "r" and items:
            spot = chance % len(items)
            items = [*items[:spot], f"replaced-{next(fresh)}" * 5, *items[spot + 1 :]]
        elif kind == "b" and states:
            base = sorted(states)[chance % len(states)]
            items = list(states[base])
        elif kind == "d" and len(states) > 1:
            doomed = sorted(states)[chance % len(states)]
            shelf.delete(doomed)
            del states[doomed]
            base = base if base in states else max(states)
            continue
        items = [*items, *[f"new-{next(fresh)}" * 5 for _ in range(1 + chance % 2)]]
        base = shelf.put(items, base, warm=warm)
        states[base] = list(items)
    shelf.check(states)


@settings(max_examples=60)
@given(st.data())
def test_mutating_a_state_in_place_is_seen_by_the_next_put_alone(data: st.DataObject) -> None:
    shelf, states = Shelf(), {}
    items: list[Any] = [{"n": number, "blob": bytearray(b"x" * 300), "tags": ["t" * 50]} for number in range(6)]
    state = {"items": items, "leaf": {"k": (items[0],)}, "table": {str(n): items[n % 6] for n in range(70)}}
    base = None
    for step in range(5):
        victim = items[data.draw(st.integers(0, 5))]
        match data.draw(st.integers(0, 4)):
            case 0:
                victim["tags"].append(step)
            case 1:
                victim["blob"] = bytearray(victim["blob"]) if isinstance(victim["blob"], bytes) else victim["blob"]
                victim["blob"][data.draw(st.sampled_from([0, 150, 299]))] ^= 1
            case 2:
                victim["blob"] = bytes(victim["blob"])
            case 3:
                victim["blob"] = bytearray(victim["blob"])
            case _:
                victim["n"] = float(victim["n"])
        base = shelf.put(state, base, warm=data.draw(st.booleans()))
        states[base] = deepcopy(state)
    shelf.check(states)


def test_appends_are_stored_once_and_merged_into_few_rows() -> None:
    shelf, base = Shelf(), None
    items = [f"{number}-" + "x" * 100 for number in range(1000)]
    for length in range(1, 1001):
        base = shelf.put({"agent": {"messages": items[:length]}}, base, warm=True)
    [rows] = shelf.rows.values()
    assert sum(length for length, _ in rows.values()) == 1000
    assert len(rows) <= 16 + 16 + 4
    assert all(len(manifest) + len(spans) <= 80 for manifest, spans in list(shelf.stored.values())[3:])
    assert shelf.read_state(499) == {"agent": {"messages": items[:500]}}


def test_a_thousand_edits_of_a_thousand_elements_cost_at_most_six_times_what_is_new() -> None:
    shelf, base = Shelf(), None
    items = [f"{number}-" + "x" * 990 for number in range(1000)]
    base = shelf.put({"items": items}, None, warm=True)
    information = 1000 * 1000
    for step in range(1000):
        spot = step * 617 % 1000
        items = [*items[:spot], f"new-{step}-" + "y" * 990, *items[spot + 1 :]]
        information += 1000
        base = shelf.put({"items": items}, base, warm=True)
    assert shelf.read_state(base) == {"items": items}
    appended = sum(length for rows in shelf.rows.values() for length, _ in rows.values()) * 1000
    manifests = sum(len(manifest) + len(spans) for manifest, spans in shelf.stored.values())
    assert appended + manifests <= 6 * information
    assert max(len(manifest) + len(spans) for manifest, spans in shelf.stored.values()) <= 4096 + 64


def test_a_mapping_that_grows_to_thousands_of_keys_is_linear() -> None:
    shelf, base = Shelf(), None
    value: dict[str, str] = {}
    for number in range(3000):
        value[f"key-{number:05}"] = f"value-{number}"
        if number % 50 == 49:
            base = shelf.put({"files": value}, base, warm=True)
    elements = sum(length for rows in shelf.rows.values() for length, _ in rows.values())
    assert elements <= 3000 + 64
    assert shelf.read_state(base) == {"files": value}


def test_one_run_holds_every_element_once() -> None:
    shelf = Shelf()
    number = shelf.put({"items": ["x" * 300, "y" * 300]}, None, warm=True)
    [run] = runs_of(shelf.forms[number])
    assert (run.count, len(run.elements), len(run.hashes)) == (2, 2, 2)
