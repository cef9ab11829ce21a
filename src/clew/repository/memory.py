"""What a process remembers of the threads it writes to: valid exactly while the thread's version is the same.

It only saves work. Every write compares the version in the statement that takes the lock, and starts from the stored
rows where it differs. Entries are never changed in place: each put publishes a new one, after its commit.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from clew.structure import Node, Row, runs_of, spans_of

__all__ = ["DEFAULT_MEMORY_BYTES", "Logs", "Memory", "Remembered", "ThreadMemory"]

DEFAULT_MEMORY_BYTES: Final = 64 * 1024 * 1024
_FORMS = 8
_LOGS = 64
_ELEMENT_OVERHEAD = 130  # two bytes objects and two list slots
_THREAD_OVERHEAD = 1000


@dataclass(frozen=True, slots=True)
class Logs:
    """The stored rows of logs, by log and in order; from the last full row on they are complete."""

    rows: Mapping[int, tuple[Row, ...]] = field(default_factory=dict)

    def tip(self, log: int) -> int | None:
        """The first position of ``log`` that was never used, or None for a log that is not known here."""
        rows = self.rows.get(log)
        return rows[-1].end if rows else None


class Remembered(NamedTuple):
    """A checkpoint's placed form with its elements, as a base to match against."""

    seq: int
    root: Node
    size: int

    @classmethod
    def of(cls, seq: int, root: Node) -> Remembered:
        """With its size measured: the bytes that its elements take in memory."""
        return cls(
            seq, root, sum(sum(map(len, run.elements)) + _ELEMENT_OVERHEAD * len(run.elements) for run in runs_of(root))
        )


@dataclass(frozen=True, slots=True)
class ThreadMemory:
    """A thread as of ``version``.

    ``heads`` are the ids of the latest checkpoints by namespace text; a namespace that is not among them is not known.
    ``forms`` are keyed by (namespace text, checkpoint id), least recently used first.
    """

    thread_key: int
    version: int
    heads: Mapping[str, str] = field(default_factory=dict)
    forms: Mapping[tuple[str, str], Remembered] = field(default_factory=dict)
    logs: Logs = field(default_factory=Logs)

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        rows = (row for known in self.logs.rows.values() for row in known if row.elements is not None)
        return _THREAD_OVERHEAD + sum(form.size for form in self.forms.values()) + sum(row.size for row in rows)

    def advanced(
        self,
        version: int,
        namespace: str,
        checkpoint_id: str,
        form: Remembered,
        logs: Logs,
        parent_id: str | None = None,
    ) -> ThreadMemory:
        """The memory after a put on ``parent_id``: ``form`` is the head, and the least recently used form is gone."""
        key, used = (namespace, checkpoint_id), (namespace, parent_id or "")
        forms = {known: kept for known, kept in self.forms.items() if known not in (key, used)}
        if used in self.forms:
            forms[used] = self.forms[used]
        forms[key] = form
        while len(forms) > _FORMS:
            del forms[next(iter(forms))]
        if len(logs.rows) > _LOGS:
            named = {span.log for kept in forms.values() for span in spans_of(kept.root)}
            logs = Logs({log: rows for log, rows in logs.rows.items() if log in named})
        heads = {**self.heads, namespace: checkpoint_id}
        return ThreadMemory(self.thread_key, version, heads, forms, logs)

    def fitted(self, max_bytes: int) -> ThreadMemory:
        """The same without its least recently used forms, as far as it takes more than this; the last one stays."""
        forms, size = dict(self.forms), self.size
        while size > max_bytes and len(forms) > 1:
            size -= forms.pop(next(iter(forms))).size
        return self if len(forms) == len(self.forms) else replace(self, forms=forms)

    def form_of(self, thread_key: int, namespace: str, checkpoint_id: str, seq: int) -> Node | None:
        """The form of exactly this checkpoint, with its elements, or None."""
        form = self.forms.get((namespace, checkpoint_id))
        return form.root if form is not None and (thread_key, seq) == (self.thread_key, form.seq) else None

    def base(self, namespace: str, parent_id: str | None) -> Remembered | None:
        """The form of the parent, else of the namespace's latest; None where it takes a look to know."""
        head = self.heads.get(namespace) if parent_id is None else parent_id
        return None if head is None else self.forms.get((namespace, head))


class Memory:
    """The threads that were written last, up to ``max_bytes`` of encoded elements. Safe to share between threads."""

    def __init__(self, max_bytes: int = DEFAULT_MEMORY_BYTES) -> None:
        self.max_bytes = max_bytes
        self._bytes = 0
        self._threads: OrderedDict[str, tuple[ThreadMemory, int]] = OrderedDict()
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._threads))

    def get(self, thread_id: str) -> ThreadMemory | None:
        """What is remembered of the thread, or None."""
        with self._lock:
            if thread_id not in self._threads:
                return None
            self._threads.move_to_end(thread_id)
            return self._threads[thread_id][0]

    def publish(self, thread_id: str, memory: ThreadMemory) -> None:
        """Remember the thread as a committed transaction left it. An older state never replaces a newer one.

        A thread with large states is remembered by its newest alone.
        """
        size = memory.size
        if size > self.max_bytes // 4:
            memory = memory.fitted(self.max_bytes // 4)
            size = memory.size
        with self._lock:
            known = self._threads.get(thread_id)
            if known is not None and (known[0].thread_key, known[0].version) > (memory.thread_key, memory.version):
                return
            self._drop(thread_id)
            if size > self.max_bytes:
                return
            self._threads[thread_id] = (memory, size)
            self._bytes += size
            while self._bytes > self.max_bytes:
                self._drop(next(iter(self._threads)))

    def forget(self, thread_id: str) -> None:
        """Remember nothing of the thread."""
        with self._lock:
            self._drop(thread_id)

    def _drop(self, thread_id: str) -> None:
        known = self._threads.pop(thread_id, None)
        if known is not None:
            self._bytes -= known[1]
