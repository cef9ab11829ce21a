"""How much a thread holds: its information and the bytes it is stored in. Every row of the thread is read for it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import Connection, Select, Table, bindparam, select

from clew.codec import UntypedCodec, json_text
from clew.records import ThreadStatistics
from clew.repository.keys import check_thread_id
from clew.repository.locking import find_thread
from clew.repository.soundness import naming
from clew.repository.store import Store
from clew.repository.together import form_of
from clew.structure import Inline, Node, Record, SpanSet, decode_payload, spans_of
from clew.structure.encoding import element_hash

__all__ = ["thread_statistics"]


class Element(NamedTuple):
    """One element: what it is recognised by, and how long its JSON is."""

    identity: bytes
    size: int


def thread_statistics(store: Store, connection: Connection, thread_id: str) -> ThreadStatistics | None:
    """What the thread holds, or None where there is no such thread. Types that are not registered do no harm.

    Counted without a lock: on Postgres, of a thread that is being written to, it is an estimate.

    Raises:
        CorruptData: naming the thread or the checkpoint, where a stored row cannot be read.
    """
    key = find_thread(store, connection, check_thread_id(thread_id))
    if key is None:
        return None
    tables, codec = store.tables, UntypedCodec()
    rows = connection.execute(_rows(tables.checkpoints).order_by(tables.checkpoints.c.seq), {"key": key}).all()
    stored, elements = 0, dict[tuple[int, int], Element]()
    with connection.execute(_rows(tables.segments), {"key": key}) as segments, naming(thread_id):
        row: Any
        for row in segments:
            stored += _size(row)
            if not row.count:  # marks the end of a log whose last elements are gone
                continue
            segment = decode_payload(row.log, row.start, row.count, row.payload)
            values = codec.decode_many(row.count, [segment.body])
            for position, (element, value) in enumerate(zip(segment.elements, values, strict=True), start=row.start):
                elements[row.log, position] = Element(element_hash(element), _json_bytes(value))
    for table in set(tables.owned) - {tables.checkpoints, tables.segments}:
        stored += sum(map(_size, connection.execute(_rows(table), {"key": key}).all()))
    stored += sum(map(_size, rows))
    information = sum(
        _new_bytes(codec, elements, form_of(thread_id, row), None if base is None else form_of(thread_id, base))
        for row, base in _with_base(rows)
    )
    return ThreadStatistics(
        thread_id=thread_id, checkpoints=len(rows), information_bytes=information, stored_bytes=stored
    )


def _with_base(rows: Any) -> Iterator[tuple[Any, Any]]:
    """(row, the row of what its state was matched against: its parent, else its namespace's latest before it)."""
    by_id = {(row.namespace, row.checkpoint_id): row for row in rows}
    latest: dict[str, Any] = {}
    for row in rows:
        yield row, by_id.get((row.namespace, row.parent_checkpoint_id)) or latest.get(row.namespace)
        latest[row.namespace] = row


def _new_bytes(codec: UntypedCodec, elements: dict[tuple[int, int], Element], root: Node, base: Node | None) -> int:
    """The JSON bytes of what ``root`` has and ``base`` has not. The cost follows the difference."""
    fresh, gone = SpanSet(spans_of(root)), SpanSet()
    had: set[bytes] = set()
    if base is not None:
        gone = SpanSet(spans_of(base))
        fresh.remove(spans_of(base))
        gone.remove(spans_of(root))
        # An element that was rewritten into another log has another position, and is no news.
        had = {element.identity for element in (*_at(elements, gone), *_inline(codec, base, ""))}
    return sum(
        element.size for element in (*_at(elements, fresh), *_inline(codec, root, "")) if element.identity not in had
    )


def _at(elements: dict[tuple[int, int], Element], spans: SpanSet) -> Iterator[Element]:
    for log, start, end in spans:
        for position in range(start, end):
            if (element := elements.get((log, position))) is not None:
                yield element


def _inline(codec: UntypedCodec, node: Node, path: str) -> Iterator[Element]:
    """What stands in the manifest itself: a small list's items, else the leaf as a whole, at its place."""
    if isinstance(node, Record):
        for key, child in zip(node.keys, node.children, strict=True):
            yield from _inline(codec, child, f"{path}.{key!r}")
    elif isinstance(node, Inline):
        value = codec.decode(node.data)
        if isinstance(value, list):
            yield from (Element(element_hash(codec.strict(item)), _json_bytes(item)) for item in value)
        else:
            yield Element(path.encode(errors="surrogatepass") + node.data, _json_bytes(value))


def _json_bytes(value: Any) -> int:
    return len(json_text(value).encode())


def _size(row: Any) -> int:
    return sum(map(_value_bytes, row))


def _value_bytes(value: Any) -> int:
    if value is None:
        return 0
    if isinstance(value, str):
        return len(value) if value.isascii() else len(value.encode())
    return len(value) if isinstance(value, bytes) else 8


@cache
def _rows(table: Table) -> Select[Any]:
    return select(table).where(table.c.thread_key == bindparam("key"))
