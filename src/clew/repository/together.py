"""Reading elements of several checkpoints of one thread in one statement that also checks that they are all there.

With what all reads of forms have in common: how one is made of a row, and how data that cannot be read is named.

As in ``fetching``, a checkpoint that is still there at the second statement was there all the time. Whoever calls this
starts over where one is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, Final, TypeVar

from sqlalchemy import (
    BigInteger,
    Connection,
    LargeBinary,
    SmallInteger,
    bindparam,
    literal_column,
    null,
    select,
    type_coerce,
    union_all,
)

from clew.dialects import Dialect
from clew.errors import Contention
from clew.repository.soundness import naming
from clew.repository.store import Store
from clew.structure import ElementPool, Node, Segment, Span, decode_manifest, decode_payload
from clew.tables import Tables

__all__ = ["attempts", "form_of", "gone_too_often", "read_together", "state_of"]

T = TypeVar("T")
_ATTEMPTS: Final = 10
_THERE, _SEGMENT = 0, 1


def read_together(
    store: Store,
    connection: Connection,
    thread_key: int,
    seqs: Sequence[int],
    spans: Sequence[Span],
    take: Callable[[Segment], object],
) -> bool:
    """Hand each row that holds a part of ``spans`` to ``take``, once and as it comes.

    False where one of ``seqs`` is gone, and then what was taken is of no use.

    Raises:
        CorruptData: naming the row that cannot be read.
    """
    if not spans:
        return True
    there: set[int] = set()
    taken: set[tuple[int, int]] = set()
    values = {"thread_key": thread_key, "seqs": store.dialect.values(sorted(set(seqs))), **store.dialect.spans(spans)}
    with connection.execute(_together(store.tables, store.dialect), values) as rows:
        for part, log, start, count, payload in rows:
            if part == _THERE:
                there.add(log)
            elif (log, start) not in taken:
                taken.add((log, start))
                take(decode_payload(log, start, count, payload))
    return there == set(seqs)


def attempts() -> Iterator[int]:
    """As many as a read may start over."""
    return iter(range(_ATTEMPTS))


def gone_too_often(thread_id: str) -> Contention:
    """The error for a read that had to start over each time."""
    return Contention(
        f"checkpoints of thread {thread_id!r} were deleted or replaced {_ATTEMPTS} times during one read; repeat it"
    )


def form_of(thread_id: str, row: Any) -> Node:
    """The placed form of a checkpoint's row, which has its id, ``manifest`` and ``spans``.

    Raises:
        CorruptData: naming the checkpoint.
    """
    with naming(thread_id, row.checkpoint_id):
        return decode_manifest(row.manifest, row.spans)


def state_of(pool: ElementPool, form: Node, thread_id: str, row: Any) -> Any:
    """The value of a checkpoint's form, whose elements are in the pool.

    Raises:
        CorruptData: naming the checkpoint.
    """
    with naming(thread_id, row.checkpoint_id):
        return pool.value(form)


@cache
def _together(tables: Tables, dialect: Dialect) -> Any:
    c, rows = tables.checkpoints.c, dialect.segments(tables).subquery()
    there = select(
        literal_column(str(_THERE), SmallInteger).label("part"),
        c.seq.label("log"),
        type_coerce(null(), BigInteger).label("start"),
        type_coerce(null(), BigInteger).label("count"),
        type_coerce(null(), LargeBinary).label("payload"),
    ).where(c.thread_key == bindparam("thread_key"), dialect.among(c.seq, "seqs"))
    segments = select(
        literal_column(str(_SEGMENT), SmallInteger), rows.c.log, rows.c.start, rows.c.count, rows.c.payload
    )
    return union_all(there, segments)
