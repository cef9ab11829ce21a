"""``checkpointer.runs`` of both faces: runs, their boundaries, leases. What the methods do is in ``flows.runs``."""

from __future__ import annotations

from collections.abc import Collection

from clew.drivers import AsyncDriver, Driver
from clew.flows import documented_by
from clew.flows.runs import RunFlows
from clew.groups.leases import AsyncHeldLease, HeldLease
from clew.records import AgentCheckpoint, Boundary, CheckpointConfig, Lease, Page, ResumeSnapshot, Run, RunStatus, Usage

__all__ = ["AsyncRuns", "Runs"]

Statuses = RunStatus | str | Collection[RunStatus | str] | None


class Runs:
    """Agent runs and leases. A run comes into being with its first boundary, see ``SqlAgentExecutor``.

    Where a ``thread_id`` may be left out, all threads are looked through, and ``InvalidInput`` says so where several
    hold a run of that id (a copied thread has its runs too).
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._flows = RunFlows(driver.core)

    def get(self, run_id: str, *, thread_id: str | None = None) -> Run | None:
        """The run, or None."""
        return self._driver.run(self._flows.get(run_id, thread_id))

    def list(
        self,
        *,
        status: Statuses = None,
        thread_id: str | None = None,
        parent_run_id: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[Run]:
        """A page of runs, the last started first, at most ``limit`` (1 to 10,000). ``status`` is one or several.

        Raises:
            InvalidInput: an unknown status, a limit out of range, a cursor of another listing.
        """
        return self._driver.run(self._flows.list(status, thread_id, parent_run_id, limit, cursor))

    def list_resumable(self, *, thread_id: str | None = None, limit: int = 100, cursor: str | None = None) -> Page[Run]:
        """A page of runs that a worker may go on with, the first started first, at most ``limit`` (1 to 10,000).

        They are the waiting ones, and of those that are starting or running the ones whose thread nobody holds the
        lease of: it has lapsed, was released, or was never taken.

        Raises:
            InvalidInput: a limit out of range, a cursor of another listing.
        """
        return self._driver.run(self._flows.list_resumable(thread_id, limit, cursor))

    def finish(
        self,
        run_id: str,
        status: RunStatus | str,
        error: str | None = None,
        *,
        thread_id: str | None = None,
        lease_token: int | None = None,
    ) -> Run:
        """Finish a run as ``completed``, ``failed`` or ``cancelled``; it takes no further checkpoint.

        A failed run needs an ``error``, the others have none. Repeating the call changes nothing and succeeds.

        Raises:
            InvalidInput: a status that is no end, an error missing or too much.
            NotFound: no such run.
            RunFinished: it is finished already, in another way.
            StaleFence: the lease is somebody else's, or the token's lease has lapsed.
        """
        return self._driver.run(self._flows.finish(run_id, status, error, thread_id, lease_token))

    def request_suspend(self, run_id: str, reason: str, *, thread_id: str | None = None) -> Run:
        """Ask a run to suspend at its next boundary, for ``reason``; from any process, without a lease.

        It is the executor's policy that listens: ``suspend_when_asked`` does, and is the default. A later request
        replaces an earlier one.

        Raises:
            InvalidInput: an empty reason.
            NotFound: no such run.
            RunFinished: it has no next boundary.
        """
        return self._driver.run(self._flows.request_suspend(run_id, reason, thread_id))

    def usage(self, thread_id: str) -> Usage:
        """What all runs of the thread have used together; zeros where there is none."""
        return self._driver.run(self._flows.usage(thread_id))

    def boundaries(
        self, run_id: str, *, thread_id: str | None = None, limit: int = 100, cursor: str | None = None
    ) -> Page[Boundary]:
        """A page of the boundaries that a run has passed, the last first, without any state.

        Raises:
            InvalidInput: a limit out of range, a cursor of another listing.
        """
        return self._driver.run(self._flows.boundaries(run_id, thread_id, limit, cursor))

    def get_checkpoint(self, config: CheckpointConfig) -> AgentCheckpoint | None:
        """The agent checkpoint at ``config``, JSON-equal to what was committed; None where no executor put one there.

        Raises:
            CorruptData: naming the checkpoint, where a stored row cannot be read.
        """
        return self._driver.run(self._flows.get_checkpoint(config))

    def resume_snapshot(self, run_id: str, *, thread_id: str | None = None) -> ResumeSnapshot | None:
        """The run, its latest checkpoint with state and evidence, the checkpoint's writes and what is still to run.

        All as of one moment. None where there is no such run, or no checkpoint of it is left. In a copied thread the
        state's conversation is the copy, so that the run goes on there.

        Raises:
            CorruptData: a stored row cannot be read.
        """
        return self._driver.run(self._flows.resume_snapshot(run_id, thread_id))

    def acquire_lease(self, thread_id: str, owner: str, ttl_s: float = 30.0) -> int:
        """A token for ``ttl_s`` seconds, by the database's clock: the right to write to the thread, for one holder.

        ``ttl_s`` is more than 0 and at most 366 days, here and in ``renew_lease``.

        The token is greater than any before it, and never comes back, not even after the thread was deleted. From now
        on no write without it, or with an older one, is stored. The thread is created where there is none. ``owner``
        says to people who holds the lease: the same owner is refused too, until it is released or has lapsed.

        Raises:
            LeaseHeld: somebody holds it; ``owner`` and ``until`` say who and how long.
        """
        return self._driver.run(self._flows.acquire_lease(thread_id, owner, ttl_s)).token

    def renew_lease(self, thread_id: str, token: int, ttl_s: float = 30.0) -> Lease:
        """The lease, lasting ``ttl_s`` seconds from now. A lapsed one can be renewed until somebody else takes it.

        Raises:
            StaleFence: it was released, somebody else has taken it, or the thread was deleted.
        """
        return self._driver.run(self._flows.renew_lease(thread_id, token, ttl_s))

    def release_lease(self, thread_id: str, token: int) -> bool:
        """Give the lease up; False where it is not the newest, or was released already."""
        return self._driver.run(self._flows.release_lease(thread_id, token))

    def get_lease(self, thread_id: str) -> Lease | None:
        """Who holds the thread, until when; None where nobody does."""
        return self._driver.run(self._flows.get_lease(thread_id))

    def lease(self, thread_id: str, owner: str, ttl_s: float = 30.0) -> HeldLease:
        """The lease for the length of a ``with`` block, renewed in the background and released at the end.

        Inside, ``token`` is what writes take, and ``lost`` says that it is time to stop.
        """
        return HeldLease(self._driver, self._flows, thread_id, owner, ttl_s)


@documented_by(Runs)
class AsyncRuns:
    """``Runs``, awaited."""

    def __init__(self, driver: AsyncDriver) -> None:
        self._driver = driver
        self._flows = RunFlows(driver.core)

    async def get(self, run_id: str, *, thread_id: str | None = None) -> Run | None:
        return await self._driver.run(self._flows.get(run_id, thread_id))

    async def list(
        self,
        *,
        status: Statuses = None,
        thread_id: str | None = None,
        parent_run_id: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[Run]:
        return await self._driver.run(self._flows.list(status, thread_id, parent_run_id, limit, cursor))

    async def list_resumable(
        self, *, thread_id: str | None = None, limit: int = 100, cursor: str | None = None
    ) -> Page[Run]:
        return await self._driver.run(self._flows.list_resumable(thread_id, limit, cursor))

    async def finish(
        self,
        run_id: str,
        status: RunStatus | str,
        error: str | None = None,
        *,
        thread_id: str | None = None,
        lease_token: int | None = None,
    ) -> Run:
        return await self._driver.run(self._flows.finish(run_id, status, error, thread_id, lease_token))

    async def request_suspend(self, run_id: str, reason: str, *, thread_id: str | None = None) -> Run:
        return await self._driver.run(self._flows.request_suspend(run_id, reason, thread_id))

    async def usage(self, thread_id: str) -> Usage:
        return await self._driver.run(self._flows.usage(thread_id))

    async def boundaries(
        self, run_id: str, *, thread_id: str | None = None, limit: int = 100, cursor: str | None = None
    ) -> Page[Boundary]:
        return await self._driver.run(self._flows.boundaries(run_id, thread_id, limit, cursor))

    async def get_checkpoint(self, config: CheckpointConfig) -> AgentCheckpoint | None:
        return await self._driver.run(self._flows.get_checkpoint(config))

    async def resume_snapshot(self, run_id: str, *, thread_id: str | None = None) -> ResumeSnapshot | None:
        return await self._driver.run(self._flows.resume_snapshot(run_id, thread_id))

    async def acquire_lease(self, thread_id: str, owner: str, ttl_s: float = 30.0) -> int:
        return (await self._driver.run(self._flows.acquire_lease(thread_id, owner, ttl_s))).token

    async def renew_lease(self, thread_id: str, token: int, ttl_s: float = 30.0) -> Lease:
        return await self._driver.run(self._flows.renew_lease(thread_id, token, ttl_s))

    async def release_lease(self, thread_id: str, token: int) -> bool:
        return await self._driver.run(self._flows.release_lease(thread_id, token))

    async def get_lease(self, thread_id: str) -> Lease | None:
        return await self._driver.run(self._flows.get_lease(thread_id))

    def lease(self, thread_id: str, owner: str, ttl_s: float = 30.0) -> AsyncHeldLease:
        return AsyncHeldLease(self._driver, self._flows, thread_id, owner, ttl_s)
