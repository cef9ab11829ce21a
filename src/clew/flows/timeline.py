"""The flows of ``.timeline``: looking back, lineage, changing course."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from clew import repository
from clew.errors import InvalidInput
from clew.flows.steps import Core, Step
from clew.ids import new_id
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
from clew.repository import Fence, Reducer
from clew.repository.keys import check_config, check_thread_id, namespace_parts

__all__ = ["TimelineFlows", "state_update"]


class TimelineFlows:
    """The timeline over one core: a single step for each call, so that each is one transaction."""

    def __init__(self, core: Core) -> None:
        self.core = core

    def get_state(self, config: CheckpointConfig) -> Step[StateSnapshot[Any] | None]:
        return self._read(repository.get_state, config, reader=self.core.reader)

    def state_history(self, config: CheckpointConfig, limit: int, before: str | None) -> Step[list[StateSnapshot[Any]]]:
        return self._read(repository.state_history, config, limit, before, reader=self.core.reader)

    def as_of(self, thread_id: str, when: datetime, namespace: Iterable[str]) -> Step[StateSnapshot[Any] | None]:
        return self._read(
            repository.as_of, check_thread_id(thread_id), when, namespace_parts(namespace), reader=self.core.reader
        )

    def at_step(self, thread_id: str, step: int, namespace: Iterable[str]) -> Step[StateSnapshot[Any] | None]:
        return self._read(
            repository.at_step, check_thread_id(thread_id), step, namespace_parts(namespace), reader=self.core.reader
        )

    def channel_history(self, config: CheckpointConfig, channel: str, limit: int) -> Step[list[ChannelValue]]:
        return self._read(repository.channel_history, config, channel, limit)

    def diff(self, before: CheckpointConfig, after: CheckpointConfig) -> Step[StateDiff]:
        return self._read(repository.diff, check_config(before), check_config(after))

    def resume_point(self, config: CheckpointConfig) -> Step[ResumePoint[Any] | None]:
        return self._read(repository.resume_point, check_config(config), reader=self.core.reader)

    def ancestors(self, config: CheckpointConfig, limit: int) -> Step[list[CheckpointMetadata]]:
        return self._read(repository.ancestors, check_config(config), limit)

    def children(self, config: CheckpointConfig) -> Step[list[CheckpointMetadata]]:
        return self._read(repository.children, check_config(config))

    def heads(self, thread_id: str, namespace: Iterable[str]) -> Step[list[CheckpointMetadata]]:
        return self._read(repository.heads, check_thread_id(thread_id), namespace_parts(namespace))

    def common_ancestor(self, one: CheckpointConfig, other: CheckpointConfig) -> Step[CheckpointMetadata | None]:
        return self._read(repository.common_ancestor, check_config(one), check_config(other))

    def tree(self, thread_id: str, namespace: Iterable[str] | None) -> Step[ThreadTree]:
        return self._read(
            repository.tree, check_thread_id(thread_id), None if namespace is None else namespace_parts(namespace)
        )

    def fork(
        self,
        config: CheckpointConfig,
        thread_id: str | None,
        checkpoint_id: str | None,
        run_id: str | None,
        lease_token: int | None,
    ) -> Step[CheckpointConfig]:
        return self._write(
            repository.fork,
            check_config(config),
            new_id() if checkpoint_id is None else checkpoint_id,
            thread_id=thread_id,
            run_id=run_id,
            fence=Fence(lease_token),
        )

    def update_states(
        self,
        config: CheckpointConfig,
        updates: Iterable[StateUpdate],
        reducer: Reducer | None,
        lease_token: int | None,
    ) -> Step[list[CheckpointConfig]]:
        steps = tuple(updates)
        for step in steps:
            if not isinstance(step, StateUpdate):
                raise InvalidInput(f"bulk_update_state takes StateUpdate items, not {type(step).__name__}")
        ids = [new_id() for _ in steps]
        return self._write(
            repository.update_states,
            check_config(config),
            steps,
            ids=ids,
            reducer=reducer,
            reader=self.core.reader,
            fence=Fence(lease_token),
        )

    def copy_thread(self, source: str, target: str, latest_only: bool, lease_token: int | None) -> Step[int]:
        return self._write(
            repository.copy_thread, check_thread_id(source), target, latest_only=latest_only, fence=Fence(lease_token)
        )

    def _read(self, operation: Callable[..., Any], *args: Any, **options: Any) -> Step[Any]:
        return self.core.read(_doing(operation, args[0]), operation, *args, **options)

    def _write(self, operation: Callable[..., Any], *args: Any, **options: Any) -> Step[Any]:
        return self.core.write(_doing(operation, args[0]), operation, *args, **options)


def _doing(operation: Callable[..., Any], subject: CheckpointConfig | str) -> str:
    thread_id = subject if isinstance(subject, str) else subject.thread_id
    return f"{operation.__name__.replace('_', ' ')} of thread {thread_id!r}"


def state_update(update: Any, as_node: str | None, next_nodes: Iterable[str] | None) -> StateUpdate:
    """The one step of ``update_state``.

    Raises:
        InvalidInput: ``as_node`` is no string, ``next_nodes`` no sequence of strings.
    """
    if isinstance(next_nodes, str):
        raise InvalidInput("next_nodes must be a sequence of strings, not one string")
    nodes = None if next_nodes is None else tuple(next_nodes)
    try:
        return StateUpdate(update=update, as_node=as_node, next_nodes=nodes)
    except ValidationError as exc:
        raise InvalidInput("as_node must be a string and next_nodes strings") from exc
