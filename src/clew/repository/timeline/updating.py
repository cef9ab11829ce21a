"""Updating a state by hand: read, reduce and put, under one lock."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from pydantic import BaseModel, ValidationError
from sqlalchemy import Connection

from clew.errors import InvalidInput
from clew.records import Checkpoint, CheckpointConfig, CheckpointSource, StateUpdate, listing_step
from clew.repository.fetching import StateReader, get_tuple
from clew.repository.finding import no_such_checkpoint
from clew.repository.keys import check_thread_id
from clew.repository.locking import lock_thread
from clew.repository.putting import Put, put
from clew.repository.request import prepare
from clew.repository.store import Fence, Store

__all__ = ["Reducer", "update_states"]

Reducer: TypeAlias = Callable[[Any, Any], Any]


def update_states(
    store: Store,
    connection: Connection,
    config: CheckpointConfig,
    updates: Sequence[StateUpdate],
    *,
    ids: Sequence[str],
    reducer: Reducer | None,
    reader: StateReader[Any],
    fence: Fence,
) -> list[CheckpointConfig]:
    """A checkpoint under one of ``ids`` for each update: a child of the config's, then each of its predecessor.

    ``reducer`` is called while the thread is locked, and again where the transaction has to be repeated.

    Raises:
        NotFound: the checkpoint is not there.
        InvalidInput: the state is no mapping and there is no reducer.
    """
    if not updates:
        return []
    if lock_thread(store, connection, check_thread_id(config.thread_id), puts=0) is None:
        raise no_such_checkpoint(config)
    found = get_tuple(store, connection, config, reader=reader)
    if found is None:
        raise no_such_checkpoint(config)
    base, made = found.checkpoint, []
    hint = None
    for update, checkpoint_id in zip(updates, ids, strict=True):
        state = (reducer or _merged)(base.state, update.update)
        base = _updated(base, update, state, checkpoint_id)
        request = prepare(store.codec, base, hint, node=update.as_node)
        hint = request.root
        made.append(put(store, connection, Put(request, fence)).config)
    return made


def _merged(state: Any, update: Any) -> Any:
    """The reducer where none is given: a shallow merge of mappings, or of the fields of a model or dataclass.

    Raises:
        InvalidInput: one of the two is no mapping, or the result is no valid model.
    """
    if not isinstance(update, Mapping):
        raise InvalidInput(f"an update without a reducer must be a mapping, not {type(update).__name__}")
    try:
        if isinstance(state, Mapping):
            return {**state, **update}
        if isinstance(state, BaseModel):
            unknown = sorted(update.keys() - type(state).model_fields.keys())
            if unknown and type(state).model_config.get("extra") != "allow":
                raise InvalidInput(f"{type(state).__name__} has no field {unknown[0]!r}")
            return type(state).model_validate({**dict(state), **update})
        if dataclasses.is_dataclass(state) and not isinstance(state, type):
            return dataclasses.replace(state, **update)
    except (ValidationError, TypeError) as exc:
        raise InvalidInput(f"the update does not make a valid {type(state).__name__}") from exc
    raise InvalidInput(f"a state of type {type(state).__name__} is no mapping: give a reducer")


def _updated(base: Checkpoint[Any], update: StateUpdate, state: Any, checkpoint_id: str) -> Checkpoint[Any]:
    said = base.metadata if isinstance(base.metadata, dict) else {}
    metadata: dict[str, Any] = {key: value for key, value in said.items() if key not in ("source", "step", "as_node")}
    step = listing_step(base.metadata) + 1
    metadata = {"source": CheckpointSource.UPDATE.value, "step": step, **metadata}
    pending = base.pending_activations
    if update.as_node is not None:
        metadata["as_node"] = update.as_node
        if pending is not None:
            pending = tuple(item for item in pending if item.node != update.as_node)
    return Checkpoint.model_construct(
        thread_id=base.thread_id,
        checkpoint_id=checkpoint_id,
        run_id=base.run_id,
        parent_checkpoint_id=base.checkpoint_id,
        namespace=base.namespace,
        state=state,
        next_nodes=base.next_nodes if update.next_nodes is None else update.next_nodes,
        completed_tasks=base.completed_tasks,
        pending_writes=(),
        interrupts=(),
        metadata=metadata,
        pending_activations=pending,
        barrier_arrivals=base.barrier_arrivals,
    )
