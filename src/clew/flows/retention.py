"""The flows of ``.retention``: pruning, expiry, verifying, compacting, export and import.

What goes over a whole database, or out of it, is many steps, so that nothing is locked or held in between.
"""

from __future__ import annotations

import io
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any, TypeAlias, TypeVar

from sqlalchemy import Connection

from clew.errors import CorruptData, InvalidInput
from clew.flows.steps import Core, Flow, Step
from clew.records import CompactReport, PruneReport, SweepReport, TransferReport, VerifyReport
from clew.repository import Fence
from clew.repository.keys import check_age, check_instant, check_limit, check_thread_id
from clew.repository.locking import find_thread
from clew.repository.retention.compacting import compact
from clew.repository.retention.exchange import Progress
from clew.repository.retention.expiry import (
    Expiry,
    Outcome,
    SweptThread,
    expired_threads,
    forlorn_threads,
    set_expiry,
    sweep_thread,
)
from clew.repository.retention.exporting import (
    Export,
    begin_export,
    element_lines,
    evidence_lines,
    finish_export,
    row_lines,
    write_lines,
)
from clew.repository.retention.importing import import_thread
from clew.repository.retention.pruning import Criteria, preview_prune, prune
from clew.repository.retention.verifying import Findings, orphans, threads_to_verify, verify_thread

__all__ = ["File", "RetentionFlows"]

T = TypeVar("T")

File: TypeAlias = "str | os.PathLike[str] | IO[bytes] | IO[str]"
"""A path, or an open file in binary or text mode."""

_LOOKS = 3
_log = logging.getLogger("clew")


class RetentionFlows:
    """Retention over one core; each call gives a flow or a single step for the face's driver."""

    def __init__(self, core: Core) -> None:
        self.core = core

    def prune(self, thread_id: str, criteria: Criteria, dry_run: bool, lease_token: int | None) -> Step[PruneReport]:
        doing = f"prune thread {thread_id!r}"
        if dry_run:
            return self.core.read(doing, preview_prune, thread_id, criteria)
        return self.core.write(doing, prune, thread_id, criteria, Fence(lease_token))

    def set_expiry(self, thread_id: str, expiry: Expiry, lease_token: int | None) -> Step[datetime | None]:
        doing = f"set the expiry of thread {thread_id!r}"
        return self.core.write(doing, set_expiry, thread_id, expiry, Fence(lease_token))

    def sweep(self, now: datetime | None, batch: int, writes_older_than: timedelta) -> Flow[SweepReport]:
        """A transaction for each thread; what is passed over now is found again by a later sweep."""
        check_limit(batch)
        if now is not None:
            check_instant("now", now)
        check_age("writes_older_than", writes_older_than)
        doing, swept = "sweep", list[tuple[SweptThread, str]]()
        place: tuple[datetime, int] | None = None
        while True:
            found = yield self.core.read(doing, expired_threads, now, place, batch)
            for _, key in found:
                swept.append((yield from self._sweep_thread(key, now, writes_older_than)))
            if len(found) < batch:
                break
            place = found[-1]
        after = 0
        while True:
            keys = yield self.core.read(doing, forlorn_threads, now, writes_older_than, after, batch)
            for key in keys:
                swept.append((yield from self._sweep_thread(key, now, writes_older_than)))
            if len(keys) < batch:
                break
            after = keys[-1]
        outcomes = [thread.outcome for thread, _ in swept]
        return SweepReport(
            expired=tuple(name for thread, name in swept if thread.outcome is Outcome.EXPIRED),
            writes=sum(thread.writes for thread, _ in swept),
            unborn=outcomes.count(Outcome.UNBORN),
            skipped=outcomes.count(Outcome.SKIPPED),
        )

    def _sweep_thread(
        self, thread_key: int, now: datetime | None, writes_older_than: timedelta
    ) -> Flow[tuple[SweptThread, str]]:
        try:
            swept, name = yield self.core.write("sweep", sweep_thread, thread_key, now, writes_older_than)
        except CorruptData as exc:  # the other threads are swept all the same
            _log.warning("a thread is left as it is: %s", exc)
            return SweptThread(Outcome.SKIPPED), ""
        if swept.outcome is Outcome.EXPIRED:
            self.core.memory.forget(name)
        return swept, name

    def verify(self, thread_id: str | None) -> Flow[VerifyReport]:
        """A thread at a time; one that keeps changing is locked for the last look."""
        findings, doing = Findings(), "verify"
        if thread_id is not None:
            key = yield self.core.read(doing, find_thread, check_thread_id(thread_id))
            if key is not None:
                findings.include((yield from self._verify_thread(key, thread_id)))
            return findings.report()
        after = 0
        while threads := (yield self.core.read(doing, threads_to_verify, after)):
            for key, name in threads:
                findings.include((yield from self._verify_thread(key, name)))
            after = threads[-1][0]
        findings.include((yield self.core.read(doing, orphans)))
        return findings.report()

    def _verify_thread(self, thread_key: int, thread_id: str) -> Flow[Findings]:
        doing = f"verify thread {thread_id!r}"
        for _ in range(_LOOKS):
            findings: Findings | None = yield self.core.read(doing, verify_thread, thread_key, thread_id)
            if findings is not None:
                return findings
        locked: Findings = yield self.core.write(doing, verify_thread, thread_key, thread_id, lock=True)
        return locked

    def compact(self, thread_id: str, lease_token: int | None) -> Step[CompactReport]:
        return self.core.write(f"compact thread {thread_id!r}", compact, thread_id, Fence(lease_token))

    def export_thread(self, thread_id: str, target: File, progress: Progress | None) -> Flow[TransferReport]:
        """A step for each batch; the file is written to in between, while nothing is held."""
        doing = f"export thread {thread_id!r}"
        export: Export = yield self.core.read(doing, begin_export, thread_id)
        digest = blake2b(digest_size=32)
        with _written(target) as write:

            def put_away(lines: Iterable[bytes]) -> None:
                for line in lines:
                    digest.update(line)
                    write(line)
                if progress is not None:
                    progress(export.counts.done, export.total)

            put_away(export.first_lines)
            while export.remaining:
                lines, export.remaining, count = yield self.core.read(doing, element_lines, export)
                export.counts.elements += count
                put_away(lines)
            while True:
                lines, export.seq = yield self.core.read(doing, row_lines, export)
                if not lines:
                    break
                export.counts.checkpoints += len(lines)
                put_away(lines)
            while True:
                lines, export.evidence_seq = yield self.core.read(doing, evidence_lines, export)
                if not lines:
                    break
                export.counts.evidence += len(lines)
                put_away(lines)
            while True:
                lines, export.place = yield self.core.read(doing, write_lines, export)
                if not lines:
                    break
                export.counts.writes += len(lines)
                put_away(lines)
            write((yield self.core.read(doing, finish_export, export, digest.hexdigest())))
        return export.counts.report(thread_id)

    def import_thread(self, source: File, thread_id: str | None, progress: Progress | None) -> Flow[TransferReport]:
        """One transaction, which may be begun again: so the lines are read from their beginning each time."""
        store = self.core.store
        with _again(source) as lines:

            def unit(connection: Connection) -> TransferReport:
                return import_thread(store, connection, lines(), thread_id=thread_id, progress=progress)

            report: TransferReport = yield Step(unit, "write", "import a thread")
        self.core.memory.forget(report.thread_id)
        return report


@contextmanager
def _written(target: File) -> Iterator[Callable[[bytes], Any]]:
    """Writes to the target. A file that is named appears under its name when it is whole."""
    if isinstance(target, io.TextIOBase):
        text: Any = target
        yield lambda line: text.write(line.decode())
    elif not isinstance(target, str | os.PathLike):
        binary: Any = target
        yield binary.write
    else:
        path = Path(target)
        if path.is_dir() or not path.parent.is_dir():
            raise InvalidInput(f"export: {str(path)!r} is a directory, or is in none that exists")
        if path.exists() and not path.is_file():  # a device or a pipe, which a file must not take the place of
            with path.open("wb") as stream:
                yield stream.write
            return
        number, part = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(number, "wb") as file:
                yield file.write
            Path(part).replace(path)
        except BaseException:
            with suppress(OSError):
                Path(part).unlink()
            raise


@contextmanager
def _again(source: File) -> Iterator[Callable[[], Iterator[bytes]]]:
    """Gives the source's lines, from the beginning each time it is called."""
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        if not path.is_file():
            raise InvalidInput(f"import: there is no file {str(path)!r}")
        with path.open("rb") as file:
            yield lambda: _lines(file, 0)
    elif source.seekable():
        start = source.tell()
        yield lambda: _lines(source, start)
    else:
        with tempfile.TemporaryFile() as copy:
            if isinstance(source, io.TextIOBase):
                copy.writelines(line.encode() for line in source)
            else:
                binary: Any = source
                shutil.copyfileobj(binary, copy)
            yield lambda: _lines(copy, 0)


def _lines(file: Any, start: int) -> Iterator[bytes]:
    file.seek(start)
    for line in file:
        yield line.encode() if isinstance(line, str) else line
