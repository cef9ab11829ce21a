"""A look into a test's database from outside: what the library stores, and whether it is sound.

Reads the tables as they are, on a connection of its own. It decodes spans, never a payload.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, func, select
from sqlalchemy.pool import NullPool

from clew.structure import decode_spans
from clew.tables import Tables, tables_for


class Probe:
    """Looks into one database. Use ``stored`` for bytes and ``problems`` for soundness."""

    def __init__(self, url: str) -> None:
        self.tables: Tables = tables_for(None)
        self._engine: Engine = create_engine(
            url.replace("postgresql://", "postgresql+psycopg://", 1), poolclass=NullPool
        )

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        with self._engine.begin() as connection:
            yield connection

    def rows(self, statement: Any) -> list[Any]:
        with self.connection() as connection:
            return list(connection.execute(statement).all())

    def count(self, table: str) -> int:
        """How many rows a table has; ``table`` is an attribute's name of ``Tables``."""
        return int(self.rows(select(func.count()).select_from(getattr(self.tables, table)))[0][0])

    def stored(self) -> int:
        """The bytes of all payloads, manifests and spans."""
        return self.segment_bytes() + sum(self.manifest_bytes())

    def segment_bytes(self) -> int:
        return sum(len(payload) for (payload,) in self.rows(select(self.tables.segments.c.payload)))

    def manifest_bytes(self) -> list[int]:
        """For each checkpoint the bytes of its manifest and spans, by thread and in order."""
        c = self.tables.checkpoints.c
        rows = self.rows(select(c.manifest, c.spans).order_by(c.thread_key, c.seq))
        return [len(manifest) + len(spans) for manifest, spans in rows]

    def elements(self) -> int:
        """How many elements the segments hold."""
        return sum(count for (count,) in self.rows(select(self.tables.segments.c.count)))

    def logs(self) -> int:
        """How many logs there are."""
        return len(self.rows(select(self.tables.segments.c.thread_key, self.tables.segments.c.log).distinct()))

    def seqs(self) -> list[int]:
        """The sequence numbers of all checkpoints, by thread and in order."""
        c = self.tables.checkpoints.c
        return [seq for (seq,) in self.rows(select(c.seq).order_by(c.thread_key, c.seq))]

    def problems(self) -> list[str]:
        """What is wrong with the segments: overlaps, dangling spans, rows nobody names. Empty where all is well."""
        s, c = self.tables.segments.c, self.tables.checkpoints.c
        held: dict[tuple[int, int], dict[int, int]] = defaultdict(dict)
        found: list[str] = []
        with self.connection() as connection:
            rows = connection.execute(select(s.thread_key, s.log, s.start, s.count)).all()
            named = connection.execute(select(c.thread_key, c.seq, c.spans)).all()
        for key, log, start, count in rows:
            for position in range(start, start + count):
                if position in held[key, log]:
                    found.append(f"log {log}: position {position} lies in two rows")
                held[key, log][position] = start
        live: set[tuple[int, int, int]] = set()
        for key, seq, spans in named:
            for log, low, high in decode_spans(spans):
                for position in range(low, high):
                    start = held[key, log].get(position)
                    if start is None:
                        found.append(f"checkpoint {seq}: position {position} of log {log} is not stored")
                    else:
                        live.add((key, log, start))
        found += [
            f"log {log}: nobody names the row at {start}"
            for key, log, start, count in rows
            if count and (key, log, start) not in live
        ]
        logs = {(key, log) for key, log, _ in live}
        found += [
            f"log {log}: a mark outlives it" for key, log, _, count in rows if not count and (key, log) not in logs
        ]
        return found
