"""A lease that is held: renewed in the background while a block runs, released at its end. No statement is here."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self

from clew.drivers import AsyncDriver, Driver
from clew.engine import AwaitedBoundDatabase, BoundDatabase
from clew.errors import ClewError, InvalidInput, StaleFence
from clew.flows import documented_by
from clew.flows.runs import RunFlows
from clew.records import Lease

__all__ = ["AsyncHeldLease", "HeldLease"]

_log = logging.getLogger("clew")
_RENEWALS: Final = 3
"""So many renewals fall into one ``ttl_s``: two may fail before the lease lapses."""
_PATIENCE_S: Final = 5.0
"""So long a lease is waited for that is given up as soon as it comes."""


class Holding:
    """What both faces know of a lease that they hold."""

    def __init__(self, database: object, flows: RunFlows, thread_id: str, owner: str, ttl_s: float) -> None:
        if isinstance(database, BoundDatabase | AwaitedBoundDatabase):
            raise InvalidInput("a bound checkpointer cannot hold a lease; hold it with the one that it came from")
        self._flows = flows
        self._asked = (thread_id, owner, ttl_s)
        self._lease: Lease | None = None
        self._good_until = 0.0
        self._lost = False

    @property
    def lease(self) -> Lease:
        """The lease as it was last renewed."""
        if self._lease is None:
            raise RuntimeError("the lease is held inside its with block only")
        return self._lease

    @property
    def token(self) -> int:
        """What to hand to writes as ``lease_token``."""
        return self.lease.token

    @property
    def lost(self) -> bool:
        """Whether the lease is gone: somebody else took it, or it could not be renewed in time. Stop working then.

        Once lost it stays lost, and is not renewed any more.
        """
        return self._lost or (self._lease is not None and time.monotonic() > self._good_until)

    def check(self) -> None:
        """Do nothing while the lease is held.

        Raises:
            StaleFence: it is lost.
        """
        if self.lost:
            raise StaleFence(
                f"the lease of thread {self._asked[0]!r} is lost; stop working on it",
                token=self.token,
                current=None,
            )

    def _renewed(self, lease: Lease, asked_at: float) -> None:
        self._lost = self.lost  # a renewal that came too late: others may have written in between
        # By our own clock it lapses ttl_s after it was asked for at the latest: the database counts from later on.
        self._lease, self._good_until = lease, asked_at + self._asked[2]

    def _failed(self, error: ClewError) -> bool:
        """Whether there is no use in trying again."""
        _log.warning("the lease of thread %r could not be renewed: %s", self._asked[0], error)
        self._lost = self._lost or isinstance(error, StaleFence)
        return self._lost

    @property
    def _pause_s(self) -> float:
        return self._asked[2] / _RENEWALS


class HeldLease(Holding):
    """A lease for the length of a ``with`` block, renewed by a thread in the background.

    Entering acquires it, and raises ``LeaseHeld`` where somebody else has it. Leaving releases it; where that fails it
    lapses by itself.
    """

    def __init__(self, driver: Driver, flows: RunFlows, thread_id: str, owner: str, ttl_s: float) -> None:
        super().__init__(driver.database, flows, thread_id, owner, ttl_s)
        self._driver = driver
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="clew-lease", daemon=True)

    def __enter__(self) -> Self:
        asked_at = time.monotonic()
        self._renewed(self._driver.run(self._flows.acquire_lease(*self._asked)), asked_at)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()
        with suppress(ClewError):
            self._driver.run(self._flows.release_lease(self._asked[0], self.token))

    def _renew(self) -> None:
        thread_id, _, ttl_s = self._asked
        while not self._done.wait(self._pause_s) and not self.lost:
            asked_at = time.monotonic()
            try:
                lease = self._driver.run(self._flows.renew_lease(thread_id, self.token, ttl_s))
            except ClewError as error:
                if self._failed(error):
                    return
            else:
                self._renewed(lease, asked_at)


@documented_by(HeldLease)
class AsyncHeldLease(Holding):
    """``HeldLease`` for ``async with``, renewed by a task in the background."""

    def __init__(self, driver: AsyncDriver, flows: RunFlows, thread_id: str, owner: str, ttl_s: float) -> None:
        super().__init__(driver.database, flows, thread_id, owner, ttl_s)
        self._driver = driver
        self._task: asyncio.Task[Any] | None = None

    async def __aenter__(self) -> Self:
        asked_at = time.monotonic()
        # In a task of its own, as leaving is: a lease that nobody knows of would keep everybody out until it lapses.
        acquiring = asyncio.create_task(self._driver.run(self._flows.acquire_lease(*self._asked)))
        try:
            lease = await asyncio.shield(acquiring)
        except asyncio.CancelledError:
            self._task = asyncio.create_task(self._return(acquiring))
            raise
        self._renewed(lease, asked_at)
        self._task = asyncio.create_task(self._renew())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.shield(asyncio.create_task(self._leave()))

    async def _leave(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
        await self._release(self.token)

    async def _return(self, acquiring: asyncio.Task[Lease]) -> None:
        """Give up the lease that comes to a cancelled caller all the same."""
        await asyncio.wait((acquiring,), timeout=_PATIENCE_S)
        acquiring.cancel()
        if acquiring.done() and not acquiring.cancelled() and acquiring.exception() is None:
            await self._release(acquiring.result().token)

    async def _release(self, token: int) -> None:
        with suppress(ClewError):
            await self._driver.run(self._flows.release_lease(self._asked[0], token))

    async def _renew(self) -> None:
        thread_id, _, ttl_s = self._asked
        while True:
            await asyncio.sleep(self._pause_s)
            if self.lost:
                return
            asked_at = time.monotonic()
            try:
                lease = await self._driver.run(self._flows.renew_lease(thread_id, self.token, ttl_s))
            except ClewError as error:
                if self._failed(error):
                    return
            else:
                self._renewed(lease, asked_at)
