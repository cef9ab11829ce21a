"""The flows of runs and leases. What a boundary does is in ``executing``."""

from __future__ import annotations

from collections.abc import Collection

from clew.errors import InvalidInput
from clew.flows.steps import Core, Step
from clew.records import AgentCheckpoint, Boundary, CheckpointConfig, Lease, Page, ResumeSnapshot, Run, RunStatus, Usage
from clew.repository.keys import check_config, check_id, check_limit, shown
from clew.repository.runs import leases, records, resuming
from clew.repository.store import Fence

__all__ = ["RunFlows"]

Statuses = RunStatus | str | Collection[RunStatus | str] | None


class RunFlows:
    """Runs and leases over one core; each method gives a step for the face's driver."""

    def __init__(self, core: Core) -> None:
        self.core = core

    def get(self, run_id: str, thread_id: str | None) -> Step[Run | None]:
        return self.core.read(f"read run {run_id!r}", records.get_run, run_id, thread_id)

    def list(
        self,
        status: Statuses,
        thread_id: str | None,
        parent_run_id: str | None,
        limit: int,
        cursor: str | None,
    ) -> Step[Page[Run]]:
        check_limit(limit)
        return self.core.read(
            "list runs",
            records.list_runs,
            status=status,
            thread_id=thread_id,
            parent_run_id=parent_run_id,
            limit=limit,
            cursor=cursor,
        )

    def list_resumable(self, thread_id: str | None, limit: int, cursor: str | None) -> Step[Page[Run]]:
        check_limit(limit)
        return self.core.read(
            "list resumable runs", records.list_resumable, thread_id=thread_id, limit=limit, cursor=cursor
        )

    def finish(
        self,
        run_id: str,
        status: RunStatus | str,
        error: str | None,
        thread_id: str | None,
        lease_token: int | None,
    ) -> Step[Run]:
        """A failed run needs an error, the others have none."""
        finished = _finished(status)
        if error is not None:
            records.check_text("error", error)
        if finished is RunStatus.FAILED and error is None:
            raise InvalidInput(f"finish run {run_id!r}: a failed run needs an error")
        if finished is not RunStatus.FAILED and error is not None:
            raise InvalidInput(f"finish run {run_id!r}: a {finished.value} run has no error")
        return self.core.write(
            f"finish run {run_id!r}",
            records.finish_run,
            check_id("run_id", run_id),
            finished,
            error,
            thread_id,
            Fence(lease_token),
        )

    def request_suspend(self, run_id: str, reason: str, thread_id: str | None) -> Step[Run]:
        records.check_text("reason", reason)
        doing = f"request suspension of run {run_id!r}"
        return self.core.write(doing, records.request_suspend, check_id("run_id", run_id), reason, thread_id)

    def usage(self, thread_id: str) -> Step[Usage]:
        return self.core.read(f"sum up the usage of thread {thread_id!r}", records.thread_usage, thread_id)

    def boundaries(self, run_id: str, thread_id: str | None, limit: int, cursor: str | None) -> Step[Page[Boundary]]:
        check_limit(limit)
        doing = f"list the boundaries of run {run_id!r}"
        return self.core.read(doing, resuming.list_boundaries, run_id, thread_id=thread_id, limit=limit, cursor=cursor)

    def get_checkpoint(self, config: CheckpointConfig) -> Step[AgentCheckpoint | None]:
        doing = f"read agent checkpoint {check_config(config).checkpoint_id!r} of thread {config.thread_id!r}"
        return self.core.read(doing, resuming.get_agent_checkpoint, config)

    def resume_snapshot(self, run_id: str, thread_id: str | None) -> Step[ResumeSnapshot | None]:
        return self.core.read(f"read run {run_id!r}", resuming.resume_snapshot, run_id, thread_id)

    def acquire_lease(self, thread_id: str, owner: str, ttl_s: float) -> Step[Lease]:
        leases.check_ttl(ttl_s)
        doing = f"acquire the lease of thread {thread_id!r}"
        return self.core.write(doing, leases.acquire_lease, thread_id, owner, ttl_s)

    def renew_lease(self, thread_id: str, token: int, ttl_s: float) -> Step[Lease]:
        leases.check_ttl(ttl_s)
        return self.core.write(f"renew the lease of thread {thread_id!r}", leases.renew_lease, thread_id, token, ttl_s)

    def release_lease(self, thread_id: str, token: int) -> Step[bool]:
        return self.core.write(f"release the lease of thread {thread_id!r}", leases.release_lease, thread_id, token)

    def get_lease(self, thread_id: str) -> Step[Lease | None]:
        return self.core.read(f"read the lease of thread {thread_id!r}", leases.get_lease, thread_id)


def _finished(status: RunStatus | str) -> RunStatus:
    try:
        found = RunStatus(status)
    except ValueError as exc:
        raise InvalidInput(f"status {shown(status)} is none of a run's") from exc
    if not found.is_finished:
        raise InvalidInput(f"a run finishes as completed, failed or cancelled, not as {found.value}")
    return found
