"""The flows of the plain verbs: put, get, list, delete."""

from __future__ import annotations

import builtins
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection

from clew.errors import InvalidInput
from clew.flows.steps import Core, Flow, Step, Turn
from clew.records import (
    Checkpoint,
    CheckpointConfig,
    CheckpointMetadata,
    CheckpointTuple,
    Page,
    PendingWrite,
    Thread,
    ThreadStatistics,
)
from clew.repository import (
    NOT_CHECKED,
    ExpectedHead,
    Fence,
    Filters,
    Put,
    PutOutcome,
    delete_checkpoints,
    delete_run,
    delete_thread,
    fast_put,
    get_thread,
    get_tuple,
    get_writes,
    history,
    list_checkpoints,
    list_threads,
    prepare,
    prepare_writes,
    put,
    put_writes,
    thread_statistics,
    threads_of_run,
)
from clew.repository.keys import check_config, check_id, check_limit, check_thread_id, namespace_of, namespace_text

__all__ = ["Flows", "repeatable"]


class Flows:
    """The plain verbs over one core; each gives a flow or a single step for the face's driver."""

    def __init__(self, core: Core) -> None:
        self.core = core

    def put(
        self,
        checkpoint: Checkpoint[Any],
        expected_head: ExpectedHead = NOT_CHECKED,
        lease_token: int | None = None,
    ) -> Flow[CheckpointConfig]:
        """One statement where memory suffices and the version is the remembered one, else the locked way."""
        if not isinstance(checkpoint, Checkpoint):
            raise InvalidInput(f"put takes a Checkpoint, not {type(checkpoint).__name__}")
        thread_id, memory = check_thread_id(checkpoint.thread_id), self.core.memory
        # The snapshot of the state is taken here, before anything is waited for. Any earlier state will do as a hint.
        known = memory.get(thread_id)
        hint = known.base(namespace_text(checkpoint.namespace), checkpoint.parent_checkpoint_id) if known else None
        request = prepare(self.core.store.codec, checkpoint, hint.root if hint else None)
        outcome = yield from self.put_request(Put(request, Fence(lease_token), expected_head))
        return outcome.config

    def put_request(self, asked: Put) -> Flow[PutOutcome]:
        """The put of a request that is ready; its memory is published once it is committed."""
        store, memory, thread_id = self.core.store, self.core.memory, asked.request.thread_id
        doing = f"put checkpoint {asked.request.checkpoint_id!r} of thread {thread_id!r}"
        yield Turn(thread_id)
        known = memory.get(thread_id)
        outcome: PutOutcome | None = None
        if store.dialect.puts_alone and known is not None:
            remembered = known

            def fast(connection: Connection) -> PutOutcome | None:
                return fast_put(store, connection, asked, remembered)

            outcome = yield Step(fast, "statement", doing)
        if outcome is None:
            outcome = yield Step(lambda connection: put(store, connection, asked, known), "write", doing)
        assert outcome is not None
        if outcome.memory is not None:
            memory.publish(thread_id, outcome.memory)
        return outcome

    def put_writes(
        self, config: CheckpointConfig, writes: Iterable[PendingWrite], lease_token: int | None
    ) -> Flow[None]:
        """Nothing is sent for an empty batch."""
        check_config(config)
        if config.checkpoint_id is None:
            raise InvalidInput(
                f"put_writes on thread {config.thread_id!r} needs a checkpoint_id: writes belong to one checkpoint"
            )
        thread_id, checkpoint_id = check_thread_id(config.thread_id), check_id("checkpoint_id", config.checkpoint_id)
        namespace, rows = namespace_text(config.namespace), prepare_writes(self.core.store.codec, writes)
        if not rows:
            return
        doing = f"put writes of checkpoint {checkpoint_id!r} of thread {thread_id!r}"
        yield self.core.write(doing, put_writes, thread_id, namespace, checkpoint_id, rows, Fence(lease_token))

    def get_writes(self, config: CheckpointConfig) -> Step[builtins.list[PendingWrite]]:
        return self.core.read(f"read {_named(config)}", get_writes, config)

    def get(self, config: CheckpointConfig) -> Flow[Checkpoint[Any] | None]:
        found = yield self.get_tuple(config, True, None)
        return None if found is None else found.checkpoint

    def get_tuple(
        self, config: CheckpointConfig, load_state: bool, channels: Collection[str] | None
    ) -> Step[CheckpointTuple[Any] | None]:
        if isinstance(channels, str):
            raise InvalidInput("channels must be a collection of names, not one string")
        return self.core.read(
            f"read {_named(config)}",
            get_tuple,
            config,
            load_state=load_state,
            channels=None if channels is None else frozenset(channels),
            reader=self.core.reader,
            memory=self.core.memory.get(config.thread_id),
        )

    def list(
        self, thread_id: str, limit: int, cursor: str | None, newest_first: bool, filters: Filters
    ) -> Step[Page[CheckpointMetadata]]:
        filters = replace(filters, **repeatable({"namespace": filters.namespace, "under": filters.under}))
        return self.core.read(
            f"list thread {thread_id!r}",
            list_checkpoints,
            thread_id,
            limit=limit,
            cursor=cursor,
            newest_first=newest_first,
            filters=filters,
        )

    def history(self, config: CheckpointConfig, limit: int) -> Step[builtins.list[CheckpointMetadata]]:
        return self.core.read(f"read the history of {_named(config)}", history, config, limit)

    def get_thread(self, thread_id: str) -> Step[Thread | None]:
        return self.core.read(f"read thread {thread_id!r}", get_thread, thread_id)

    def list_threads(self, limit: int, cursor: str | None) -> Step[Page[Thread]]:
        check_limit(limit)
        return self.core.read("list threads", list_threads, limit=limit, cursor=cursor)

    def statistics(self, thread_id: str) -> Step[ThreadStatistics | None]:
        return self.core.read(f"measure thread {thread_id!r}", thread_statistics, thread_id)

    def delete_thread(self, thread_id: str, lease_token: int | None) -> Flow[bool]:
        doing = f"delete thread {thread_id!r}"
        deleted: bool = yield self.core.write(doing, delete_thread, thread_id, Fence(lease_token))
        self.core.memory.forget(thread_id)
        return deleted

    def delete_checkpoints(
        self, thread_id: str, checkpoint_ids: Iterable[str], namespace: Iterable[str], lease_token: int | None
    ) -> Step[int]:
        ids = checkpoint_ids if isinstance(checkpoint_ids, str) else tuple(checkpoint_ids)
        namespace = namespace_of(namespace_text(namespace))  # a unit may run again, and an iterator only once
        return self.core.write(
            f"delete checkpoints of thread {thread_id!r}",
            delete_checkpoints,
            thread_id,
            ids,
            namespace=namespace,
            fence=Fence(lease_token),
        )

    def delete_by_run(self, run_id: str, thread_id: str | None, lease_token: int | None) -> Flow[int]:
        """A transaction for each thread, in the order of their keys."""
        doing, threads = f"delete run {run_id!r}", [thread_id]
        if thread_id is None:
            threads = yield self.core.read(doing, threads_of_run, run_id)
        total = 0
        for found in threads:
            total += yield self.core.write(
                f"{doing} of thread {found!r}", delete_run, run_id, found, Fence(lease_token)
            )
        return total


def repeatable(filters: Mapping[str, Any]) -> dict[str, Any]:
    """The filters of a listing, such that they hold for every page: an iterator can be gone through only once.

    Raises:
        InvalidInput: a namespace that cannot be stored.
    """
    given = {name: filters[name] for name in ("namespace", "under") if filters.get(name) is not None}
    return {**filters, **{name: namespace_of(namespace_text(parts)) for name, parts in given.items()}}


def _named(config: CheckpointConfig) -> str:
    which = (
        f"checkpoint {config.checkpoint_id!r}"
        if check_config(config).checkpoint_id is not None
        else "the latest checkpoint"
    )
    return f"{which} of thread {config.thread_id!r}"
