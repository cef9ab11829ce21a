"""What both savers do, written once: LangGraph's calls as flows over clew's own. Nothing is waited for here."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple, DeltaChannelHistory, get_checkpoint_id

from clew.errors import NotFound
from clew.flows import Core, Flow, Flows, Step
from clew.langgraph.ancestry import check_strategy, delta_history, keep_latest
from clew.langgraph.channels import Serde, Trail
from clew.langgraph.checkpoints import (
    address_of,
    config_of,
    metadata_for,
    namespace_of,
    put_request,
    tuple_of,
    with_sends,
    writes_for,
)
from clew.langgraph.listing import PAGE, Query, page
from clew.langgraph.loading import Loader
from clew.repository import Put, list_threads
from clew.repository.keys import namespace_text
from clew.repository.timeline.copying import copy_thread

__all__ = ["Place", "SaverFlows"]

_THREADS: Final = 100


@dataclass(slots=True)
class Place:
    """Where a listing stands: threads still to be listed, and how far it is in the first of them."""

    query: Query
    left: int | None
    threads: deque[str] = field(default_factory=deque)
    cursor: str | None = None
    more_threads: bool = False
    position: int | None = None


class SaverFlows:
    """LangGraph's calls over one core and one serializer; each gives a flow or a step for the saver's driver."""

    def __init__(self, core: Core, trail: Trail, serde: Serde, allowed: Collection[str]) -> None:
        store = replace(core.store, codec=core.store.codec.loading(Loader(serde)))
        self.core = replace(core, store=store)
        self._flows = Flows(self.core)
        self._trail = trail
        self._serde = serde
        self._allowed = allowed

    def put(
        self,
        config: Mapping[str, Any],
        checkpoint: Mapping[str, Any],
        metadata: Mapping[str, Any],
        new_versions: Mapping[str, Any],
    ) -> Flow[RunnableConfig]:
        address = address_of(config)
        namespace = namespace_text(address.namespace)
        request, entry = put_request(
            self.core.store.codec,
            self._serde,
            config,
            checkpoint,
            metadata_for(config, metadata, self._allowed),
            new_versions,
            self._trail.get(address.thread_id, namespace),
        )
        outcome = yield from self._flows.put_request(Put(request))
        self._trail.remember(address.thread_id, namespace, entry)
        stored: RunnableConfig = config_of(outcome.config)
        return stored

    def put_writes(
        self, config: Mapping[str, Any], writes: Sequence[tuple[str, Any]], task_id: str, task_path: str
    ) -> Flow[None]:
        yield from self._flows.put_writes(
            address_of(config), writes_for(self._serde, writes, task_id, task_path), lease_token=None
        )

    def get_tuple(self, config: Mapping[str, Any]) -> Flow[CheckpointTuple | None]:
        address = address_of(config)
        found = yield self._flows.get_tuple(address, True, None)
        if found is None:
            return None
        parent_id = found.checkpoint.parent_checkpoint_id
        made = tuple_of(
            found.config,
            parent_id,
            found.checkpoint.state,
            found.checkpoint.metadata,
            found.pending_writes,
            config if address.checkpoint_id else None,
        )
        if made.checkpoint["v"] < 4 and parent_id is not None:
            parent = found.config.model_copy(update={"checkpoint_id": parent_id})
            writes = yield self._flows.get_writes(parent)
            with_sends(made, tuple_of(parent, None, {}, {}, writes).pending_writes)
        return made

    def place(
        self,
        config: Any,
        filter: Mapping[str, Any] | None,  # noqa: A002  LangGraph's name
        before: Any,
        limit: int | None,
    ) -> Place:
        """Where the listing begins."""
        before_id = get_checkpoint_id(before) if before else None
        if config is None or config.get("configurable", {}).get("thread_id") is None:
            return Place(Query(before=before_id, filter=filter), limit, more_threads=True)
        address = address_of(config)
        ns = config["configurable"].get("checkpoint_ns")
        query = Query(
            None if ns is None else namespace_text(namespace_of(ns)), address.checkpoint_id, before_id, filter
        )
        return Place(query, limit, deque([address.thread_id]))

    def page(self, place: Place) -> Flow[list[CheckpointTuple]]:
        """The next tuples of a listing; an empty list at its end. Nothing is held between two pages."""
        while place.left is None or place.left > 0:
            if not place.threads:
                if not place.more_threads:
                    return []
                yield from self._more_threads(place)
                continue
            thread_id, position = place.threads[0], place.position
            size = PAGE if place.left is None else min(PAGE, place.left)
            doing = f"list thread {thread_id!r}"
            found, place.position = yield self.core.read(doing, page, thread_id, place.query, position, size)
            if place.position is None:
                place.threads.popleft()
            if place.left is not None:
                place.left -= len(found)
            if found:
                tuples: list[CheckpointTuple] = found
                return tuples
        return []

    def delete_thread(self, thread_id: str) -> Flow[None]:
        self._trail.forget(str(thread_id))
        yield from self._flows.delete_thread(str(thread_id), None)

    def delete_for_runs(self, run_ids: Iterable[str]) -> Flow[None]:
        for run_id in run_ids:
            yield from self._flows.delete_by_run(str(run_id), None, None)

    def copy_thread(self, source: str, target: str) -> Flow[None]:
        """A source that does not exist is copied as what it is: nothing."""
        doing = f"copy thread {source!r} to {target!r}"
        try:
            yield self.core.write(doing, copy_thread, str(source), str(target))
        except NotFound:
            return
        self.core.memory.forget(str(target))

    def prune(self, thread_ids: Iterable[str], strategy: str) -> Flow[None]:
        """A transaction for each thread."""
        check_strategy(strategy)
        for thread_id in map(str, thread_ids):
            if strategy == "delete":
                yield from self.delete_thread(thread_id)
            else:
                yield self.core.write(f"prune thread {thread_id!r}", keep_latest, thread_id)

    def delta_history(
        self, config: Mapping[str, Any], channels: Sequence[str]
    ) -> Step[Mapping[str, DeltaChannelHistory]]:
        address = address_of(config)
        doing = f"read the delta channels of thread {address.thread_id!r}"
        return self.core.read(doing, delta_history, address, list(channels))

    def _more_threads(self, place: Place) -> Flow[None]:
        found = yield self.core.read("list threads", list_threads, limit=_THREADS, cursor=place.cursor)
        place.threads.extend(thread.thread_id for thread in found.items)
        place.cursor = found.next_cursor
        place.more_threads = found.next_cursor is not None
