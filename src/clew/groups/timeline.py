"""``.timeline`` on both faces: looking back, lineage, changing course. What it does is written once, in ``flows``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

from clew.drivers import AsyncDriver, Driver
from clew.flows import documented_by
from clew.flows.timeline import TimelineFlows, state_update
from clew.records import (
    ChannelValue,
    CheckpointConfig,
    CheckpointMetadata,
    ResumePoint,
    StateDiff,
    StateSnapshot,
    StateUpdate,
    ThreadTree,
)

__all__ = ["AsyncTimeline", "Timeline"]


class Timeline:
    """Looks back into a thread and changes its course. Every change is one transaction.

    Where a ``CheckpointConfig`` has no id, the latest checkpoint of its namespace is meant.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._flows = TimelineFlows(driver.core)

    def get_state(
        self, thread_id: str, checkpoint_id: str | None = None, *, namespace: Iterable[str] = ()
    ) -> StateSnapshot[Any] | None:
        """The state as it stood at a checkpoint, and what would run from there, or None.

        Raises:
            CorruptData: naming the checkpoint, where a stored row cannot be read.
        """
        return self._driver.run(self._flows.get_state(_config(thread_id, checkpoint_id, namespace)))

    def state_history(
        self,
        thread_id: str,
        limit: int = 100,
        *,
        checkpoint_id: str | None = None,
        before: str | None = None,
        namespace: Iterable[str] = (),
    ) -> list[StateSnapshot[Any]]:
        """Snapshots with their states, newest first, at most ``limit`` (1 to 10,000).

        All of the namespace in the order of their commits, branches included, those before the checkpoint ``before``
        where it is given, and none where that is not there; or with ``checkpoint_id`` that one and its ancestors.

        What several states have in common is read and decoded once, and **shared: treat these snapshots as read-only**,
        or ``copy.deepcopy`` what you want to change. Lists and records are each snapshot's own, their elements are not.

        Raises:
            InvalidInput: a limit out of range, or both ``before`` and ``checkpoint_id``.
            CorruptData: a stored row cannot be read.
        """
        return self._driver.run(self._flows.state_history(_config(thread_id, checkpoint_id, namespace), limit, before))

    def as_of(self, thread_id: str, when: datetime, *, namespace: Iterable[str] = ()) -> StateSnapshot[Any] | None:
        """The state as it stood at an instant, by the database's clock; None where there was none yet.

        What was deleted since is not there; a checkpoint that was replaced counts from its replacement.

        Raises:
            InvalidInput: an instant without a time zone.
        """
        return self._driver.run(self._flows.as_of(thread_id, when, namespace))

    def at_step(self, thread_id: str, step: int, *, namespace: Iterable[str] = ()) -> StateSnapshot[Any] | None:
        """The newest snapshot whose metadata says this ``step``, or None. Branches may each have one."""
        return self._driver.run(self._flows.at_step(thread_id, step, namespace))

    def channel_history(
        self,
        thread_id: str,
        channel: str,
        limit: int = 100,
        *,
        checkpoint_id: str | None = None,
        namespace: Iterable[str] = (),
    ) -> list[ChannelValue]:
        """The values that one channel took along a lineage, newest first, at most ``limit`` (1 to 10,000).

        Each comes with the checkpoint that brought it. The lineage is that of ``checkpoint_id``, by default of the
        latest; it follows parents. Nothing but this channel is read. Values share elements, as in ``state_history``.

        Raises:
            InvalidInput: a limit out of range.
            CorruptData: a stored row cannot be read.
        """
        return self._driver.run(
            self._flows.channel_history(_config(thread_id, checkpoint_id, namespace), channel, limit)
        )

    def diff(self, before: CheckpointConfig, after: CheckpointConfig) -> StateDiff:
        """What changed from one checkpoint to another, which may be on any branch and in any thread.

        Lists differ by elements with their positions, mappings by key, nested records by path. What both share is
        not read, so the cost is that of the difference; between two threads everything is read.

        Raises:
            NotFound: one of the two is not there.
            CorruptData: a stored row cannot be read.
        """
        return self._driver.run(self._flows.diff(before, after))

    def resume_point(self, config: CheckpointConfig) -> ResumePoint[Any] | None:
        """The snapshot to resume from, its writes, and the activations that are still to run, or None.

        An activation has run where its task has a write with ``idx`` ≥ 0 in the ledger (negative ones are control
        data, as in tinyagents); one with an empty task id is always still to run. Where the checkpoint holds no
        activations (None), each of its next nodes is one.
        """
        return self._driver.run(self._flows.resume_point(config))

    def ancestors(self, config: CheckpointConfig, limit: int = 100) -> list[CheckpointMetadata]:
        """The checkpoint's ancestors, its parent first, at most ``limit`` (1 to 10,000). No state is read.

        It ends at a root, at a parent that is not there, and at a cycle.
        """
        return self._driver.run(self._flows.ancestors(config, limit))

    def children(self, config: CheckpointConfig) -> list[CheckpointMetadata]:
        """The checkpoints whose parent this is, oldest first. No state is read."""
        return self._driver.run(self._flows.children(config))

    def heads(self, thread_id: str, *, namespace: Iterable[str] = ()) -> list[CheckpointMetadata]:
        """The tips of all branches of a namespace: those that are nobody's parent, newest first. No state is read."""
        return self._driver.run(self._flows.heads(thread_id, namespace))

    def common_ancestor(self, one: CheckpointConfig, other: CheckpointConfig) -> CheckpointMetadata | None:
        """The nearest checkpoint that both descend from, which may be one of the two, or None. No state is read.

        Raises:
            NotFound: one of the two is not there.
            InvalidInput: they are not of one thread and namespace.
        """
        return self._driver.run(self._flows.common_ancestor(one, other))

    def tree(self, thread_id: str, *, namespace: Iterable[str] | None = None) -> ThreadTree:
        """All checkpoints of a thread, or of one namespace of it, as a forest. No state is read."""
        return self._driver.run(self._flows.tree(thread_id, namespace))

    def fork(
        self,
        config: CheckpointConfig,
        thread_id: str | None = None,
        *,
        checkpoint_id: str | None = None,
        run_id: str | None = None,
        lease_token: int | None = None,
    ) -> CheckpointConfig:
        """Copy a checkpoint to go on from it another way: as its child, or as a root into another, empty thread.

        The copy has the source ``fork``, says in ``fork_origin`` where it came from, and carries the state, the step,
        what is pending and the ledger of writes; it belongs to ``run_id`` or to no run. Nothing else changes. Inside a
        thread the cost does not depend on the state's size; into another the elements of this state are copied within
        the database. Repeating a fork under the same ``checkpoint_id`` changes nothing. ``lease_token`` is that of the
        thread written to.

        Raises:
            NotFound: the checkpoint is not there.
            AlreadyExists: the id holds something else, or the other thread is not empty.
            StaleFence: the lease is somebody else's, or the token's lease has lapsed.
        """
        return self._driver.run(self._flows.fork(config, thread_id, checkpoint_id, run_id, lease_token))

    def update_state(
        self,
        config: CheckpointConfig,
        update: Any,
        *,
        reducer: Callable[[Any, Any], Any] | None = None,
        as_node: str | None = None,
        next_nodes: Iterable[str] | None = None,
        lease_token: int | None = None,
    ) -> CheckpointConfig:
        """Change a state by hand: a new checkpoint of source ``update``, the child of the one that was changed.

        ``reducer`` makes the new state of (state, update), by default by a shallow merge of mappings; it is called
        while the thread is locked, and again where the transaction has to be repeated. The step is one higher,
        interrupts and writes are cleared. ``as_node`` takes that node's pending activations away and stands in the
        metadata. ``next_nodes`` are those of the changed checkpoint unless given.

        Raises:
            NotFound: the checkpoint is not there.
            InvalidInput: there is no reducer, and state or update is no mapping.
            Unserializable: the new state holds a value that would not come back as it is.
            StaleFence: see ``fork``.
        """
        step = state_update(update, as_node, next_nodes)
        return self._driver.run(self._flows.update_states(config, [step], reducer, lease_token))[0]

    def bulk_update_state(
        self,
        config: CheckpointConfig,
        updates: Iterable[StateUpdate],
        *,
        reducer: Callable[[Any, Any], Any] | None = None,
        lease_token: int | None = None,
    ) -> list[CheckpointConfig]:
        """Apply a sequence of updates in one transaction; a checkpoint for each, every one the child of the one before.

        An empty sequence changes nothing. The rest and the errors are ``update_state``'s; after one nothing is stored.
        """
        return self._driver.run(self._flows.update_states(config, updates, reducer, lease_token))

    def copy_thread(
        self, source: str, target: str, *, latest_only: bool = False, lease_token: int | None = None
    ) -> int:
        """Copy a thread into one that is empty or not there, atomically; how many checkpoints.

        Ids, order, moments, namespaces, metadata, writes, runs and evidence are the source's; its lease and its expiry
        are not copied. With ``latest_only`` it is the latest checkpoint of each namespace with its writes, as a root,
        and only the elements that these need. ``lease_token`` is the target's.

        Raises:
            NotFound: there is no such source.
            AlreadyExists: the target holds something.
            InvalidInput: source and target are one thread.
            StaleFence: see ``fork``.
        """
        return self._driver.run(self._flows.copy_thread(source, target, latest_only, lease_token))


@documented_by(Timeline)
class AsyncTimeline:
    """``Timeline``, awaited."""

    def __init__(self, driver: AsyncDriver) -> None:
        self._driver = driver
        self._flows = TimelineFlows(driver.core)

    async def get_state(
        self, thread_id: str, checkpoint_id: str | None = None, *, namespace: Iterable[str] = ()
    ) -> StateSnapshot[Any] | None:
        return await self._driver.run(self._flows.get_state(_config(thread_id, checkpoint_id, namespace)))

    async def state_history(
        self,
        thread_id: str,
        limit: int = 100,
        *,
        checkpoint_id: str | None = None,
        before: str | None = None,
        namespace: Iterable[str] = (),
    ) -> list[StateSnapshot[Any]]:
        return await self._driver.run(
            self._flows.state_history(_config(thread_id, checkpoint_id, namespace), limit, before)
        )

    async def as_of(
        self, thread_id: str, when: datetime, *, namespace: Iterable[str] = ()
    ) -> StateSnapshot[Any] | None:
        return await self._driver.run(self._flows.as_of(thread_id, when, namespace))

    async def at_step(self, thread_id: str, step: int, *, namespace: Iterable[str] = ()) -> StateSnapshot[Any] | None:
        return await self._driver.run(self._flows.at_step(thread_id, step, namespace))

    async def channel_history(
        self,
        thread_id: str,
        channel: str,
        limit: int = 100,
        *,
        checkpoint_id: str | None = None,
        namespace: Iterable[str] = (),
    ) -> list[ChannelValue]:
        return await self._driver.run(
            self._flows.channel_history(_config(thread_id, checkpoint_id, namespace), channel, limit)
        )

    async def diff(self, before: CheckpointConfig, after: CheckpointConfig) -> StateDiff:
        return await self._driver.run(self._flows.diff(before, after))

    async def resume_point(self, config: CheckpointConfig) -> ResumePoint[Any] | None:
        return await self._driver.run(self._flows.resume_point(config))

    async def ancestors(self, config: CheckpointConfig, limit: int = 100) -> list[CheckpointMetadata]:
        return await self._driver.run(self._flows.ancestors(config, limit))

    async def children(self, config: CheckpointConfig) -> list[CheckpointMetadata]:
        return await self._driver.run(self._flows.children(config))

    async def heads(self, thread_id: str, *, namespace: Iterable[str] = ()) -> list[CheckpointMetadata]:
        return await self._driver.run(self._flows.heads(thread_id, namespace))

    async def common_ancestor(self, one: CheckpointConfig, other: CheckpointConfig) -> CheckpointMetadata | None:
        return await self._driver.run(self._flows.common_ancestor(one, other))

    async def tree(self, thread_id: str, *, namespace: Iterable[str] | None = None) -> ThreadTree:
        return await self._driver.run(self._flows.tree(thread_id, namespace))

    async def fork(
        self,
        config: CheckpointConfig,
        thread_id: str | None = None,
        *,
        checkpoint_id: str | None = None,
        run_id: str | None = None,
        lease_token: int | None = None,
    ) -> CheckpointConfig:
        return await self._driver.run(self._flows.fork(config, thread_id, checkpoint_id, run_id, lease_token))

    async def update_state(
        self,
        config: CheckpointConfig,
        update: Any,
        *,
        reducer: Callable[[Any, Any], Any] | None = None,
        as_node: str | None = None,
        next_nodes: Iterable[str] | None = None,
        lease_token: int | None = None,
    ) -> CheckpointConfig:
        step = state_update(update, as_node, next_nodes)
        return (await self._driver.run(self._flows.update_states(config, [step], reducer, lease_token)))[0]

    async def bulk_update_state(
        self,
        config: CheckpointConfig,
        updates: Iterable[StateUpdate],
        *,
        reducer: Callable[[Any, Any], Any] | None = None,
        lease_token: int | None = None,
    ) -> list[CheckpointConfig]:
        return await self._driver.run(self._flows.update_states(config, updates, reducer, lease_token))

    async def copy_thread(
        self, source: str, target: str, *, latest_only: bool = False, lease_token: int | None = None
    ) -> int:
        return await self._driver.run(self._flows.copy_thread(source, target, latest_only, lease_token))


def _config(thread_id: str, checkpoint_id: str | None, namespace: Iterable[str]) -> CheckpointConfig:
    parts = namespace if isinstance(namespace, str) else tuple(namespace)
    return CheckpointConfig.model_construct(thread_id=thread_id, checkpoint_id=checkpoint_id, namespace=parts)
