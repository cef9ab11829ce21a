"""``.retention`` on both faces: cleaning up, checking, moving. What it does is written once, in ``flows``."""

from __future__ import annotations

from datetime import datetime, timedelta

from clew.drivers import AsyncDriver, Driver
from clew.flows import documented_by
from clew.flows.retention import File, RetentionFlows
from clew.records import CompactReport, PruneReport, SweepReport, TransferReport, VerifyReport
from clew.repository.retention.exchange import Progress
from clew.repository.retention.expiry import Expiry
from clew.repository.retention.pruning import Criteria

__all__ = ["AsyncRetention", "Retention"]

_DAY = timedelta(days=1)


class Retention:
    """Cleans up threads, checks them, and takes them from one database to another."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._flows = RetentionFlows(driver.core)

    def prune(
        self,
        thread_id: str,
        *,
        keep_last: int | None = None,
        keep_runs: int | None = None,
        newer_than: datetime | timedelta | None = None,
        keep_ancestors: bool = False,
        dry_run: bool = False,
        lease_token: int | None = None,
    ) -> PruneReport:
        """Delete old checkpoints of a thread with their writes, atomically; which ones, and how many are kept.

        Kept is, in each namespace by itself, what any criterion keeps, and always the latest: the ``keep_last`` newest,
        those of the ``keep_runs`` newest runs, those made after ``newer_than`` (an instant, or an age by the database's
        clock). ``keep_ancestors`` keeps the lineage of everything that is kept, too; alone, that of the latest. What is
        kept reads back in full and its parents are relinked, as after ``delete_checkpoints``. With ``dry_run`` nothing
        is deleted and the report says what would be. An unknown thread has nothing to prune. No state is read.

        Raises:
            InvalidInput: no criterion, a number below 0, an instant without a time zone.
            StaleFence: see ``Checkpointer.put``.
        """
        criteria = Criteria(keep_last, keep_runs, newer_than, keep_ancestors)
        return self._driver.run(self._flows.prune(thread_id, criteria, dry_run, lease_token))

    def set_expiry(
        self,
        thread_id: str,
        *,
        at: datetime | None = None,
        ttl: timedelta | None = None,
        refresh_on_activity: bool = False,
        lease_token: int | None = None,
    ) -> datetime | None:
        """Say until when the thread is kept; the moment. From then on a ``sweep`` deletes it.

        ``at`` is an instant; ``ttl`` counts from now or, with ``refresh_on_activity``, from the thread's last activity,
        again and again: a put, a fork or an update, not a pending write, and not cleaning up. Neither of the two means
        that the thread is kept for good.

        Raises:
            InvalidInput: both, a ``ttl`` that is not positive, an instant without a time zone.
            NotFound: there is no such thread.
            StaleFence: see ``Checkpointer.put``.
        """
        return self._driver.run(self._flows.set_expiry(thread_id, Expiry(at, ttl, refresh_on_activity), lease_token))

    def sweep(
        self, *, now: datetime | None = None, batch: int = 100, writes_older_than: timedelta = _DAY
    ) -> SweepReport:
        """Delete every thread that has expired by ``now`` (None: the database's clock), and what was left lying.

        That is: writes whose checkpoint has not come for ``writes_older_than``, and threads that for as long have had
        neither a checkpoint nor a write. Each thread is a transaction of its own; ``batch`` of them (1 to 10,000) are
        looked up at a time. A thread that is leased, or that somebody is working on at this moment, is passed over.
        Any number of processes may sweep at once. Repeating it is fine.

        Raises:
            InvalidInput: ``batch`` is out of range, an instant without a time zone, a negative age.
        """
        return self._driver.drive(self._flows.sweep(now, batch, writes_older_than))

    def verify(self, thread_id: str | None = None) -> VerifyReport:
        """Check one thread, or all of them: every manifest resolves, every count and checksum agrees, nothing overlaps.

        Damage does not raise: it is in the report, each with where it is. Everything is read, a few rows at a time, and
        nothing is changed. A thread that is written to is looked at again, in the end under its lock. An unknown thread
        has nothing wrong with it.
        """
        return self._driver.drive(self._flows.verify(thread_id))

    def compact(self, thread_id: str, *, lease_token: int | None = None) -> CompactReport:
        """Rewrite the rows that a thread's states are stored in, atomically; what they took before and after.

        Rows more than half dead shed what is dead, small neighbours become one row of up to 256 kB. No checkpoint
        changes. The thread is locked meanwhile. The database gives the space back in its own way: SQLite on ``VACUUM``,
        Postgres by its autovacuum.

        Raises:
            NotFound: there is no such thread.
            StaleFence: see ``Checkpointer.put``.
            CorruptData: a row cannot be read; nothing is changed.
        """
        return self._driver.run(self._flows.compact(thread_id, lease_token))

    def export_thread(self, thread_id: str, target: File, *, progress: Progress | None = None) -> TransferReport:
        """Write a thread to a file, lossless, as lines of JSON: checkpoints, writes, metadata, runs and evidence.

        ``target`` is a path or an open file. An element that many checkpoints share is written once. Under a path the
        file appears when it is whole, in place of one that was there; a pipe or device is written to. Puts may go on
        meanwhile and are not in it. ``progress`` is called with how many checkpoints and elements are done, and how
        many there are. Leases are not exported.

        Raises:
            NotFound: there is no such thread.
            Contention: checkpoints of it were deleted meanwhile.
            CorruptData: a row cannot be read.
            InvalidInput: the target is a directory, or in one that is not there.
        """
        return self._driver.drive(self._flows.export_thread(thread_id, target, progress))

    def import_thread(
        self, source: File, *, thread_id: str | None = None, progress: Progress | None = None
    ) -> TransferReport:
        """Store a thread that ``export_thread`` wrote, from any database, under its own id or as ``thread_id``.

        One transaction: whatever goes wrong, nothing is stored. Ids, order, moments and activity stay as they were, and
        so does what the thread shares within itself. Everything in the file is checked before it is stored, but types
        that are not registered here do no harm until they are read. ``progress`` is as for ``export_thread``; where the
        transaction has to be begun again, so does it.

        Raises:
            AlreadyExists: the thread is there and not empty.
            InvalidInput: naming the line that is not what an export writes.
            StaleFence: the thread, empty, is leased.
        """
        return self._driver.drive(self._flows.import_thread(source, thread_id, progress))


@documented_by(Retention)
class AsyncRetention:
    """Cleans up threads, checks them, and takes them from one database to another.

    Files are read and written in between the waiting, a few rows at a time.
    """

    def __init__(self, driver: AsyncDriver) -> None:
        self._driver = driver
        self._flows = RetentionFlows(driver.core)

    async def prune(
        self,
        thread_id: str,
        *,
        keep_last: int | None = None,
        keep_runs: int | None = None,
        newer_than: datetime | timedelta | None = None,
        keep_ancestors: bool = False,
        dry_run: bool = False,
        lease_token: int | None = None,
    ) -> PruneReport:
        criteria = Criteria(keep_last, keep_runs, newer_than, keep_ancestors)
        return await self._driver.run(self._flows.prune(thread_id, criteria, dry_run, lease_token))

    async def set_expiry(
        self,
        thread_id: str,
        *,
        at: datetime | None = None,
        ttl: timedelta | None = None,
        refresh_on_activity: bool = False,
        lease_token: int | None = None,
    ) -> datetime | None:
        expiry = Expiry(at, ttl, refresh_on_activity)
        return await self._driver.run(self._flows.set_expiry(thread_id, expiry, lease_token))

    async def sweep(
        self, *, now: datetime | None = None, batch: int = 100, writes_older_than: timedelta = _DAY
    ) -> SweepReport:
        return await self._driver.drive(self._flows.sweep(now, batch, writes_older_than))

    async def verify(self, thread_id: str | None = None) -> VerifyReport:
        return await self._driver.drive(self._flows.verify(thread_id))

    async def compact(self, thread_id: str, *, lease_token: int | None = None) -> CompactReport:
        return await self._driver.run(self._flows.compact(thread_id, lease_token))

    async def export_thread(self, thread_id: str, target: File, *, progress: Progress | None = None) -> TransferReport:
        return await self._driver.drive(self._flows.export_thread(thread_id, target, progress))

    async def import_thread(
        self, source: File, *, thread_id: str | None = None, progress: Progress | None = None
    ) -> TransferReport:
        return await self._driver.drive(self._flows.import_thread(source, thread_id, progress))
