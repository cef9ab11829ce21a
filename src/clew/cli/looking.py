"""``clew threads``, ``clew history`` and ``clew show``: what is stored, as it is. Nothing is changed here."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any, Final

import typer

from clew.async_checkpointer import AsyncCheckpointer
from clew.cli.connection import Json, Namespace, Schema, Url, not_stored, opened_for_reading
from clew.cli.output import cell, moment, print_json, print_state, print_table, say, warn
from clew.codec import as_json
from clew.errors import InvalidInput, NotFound
from clew.records import CheckpointConfig, CheckpointMetadata, CheckpointTuple, Thread

__all__ = ["COMMANDS", "ThreadId", "all_threads", "print_history"]

ThreadId = Annotated[str, typer.Argument(metavar="THREAD", help="The thread's id.", show_default=False)]
_PAGE: Final = 1000


async def threads(
    limit: Annotated[int, typer.Option("--limit", min=1, metavar="N", help="At most this many.")] = 100,
    url: Url = None,
    schema: Schema = None,
    json: Json = False,
) -> None:
    """List the threads, the last active first."""
    found: list[Thread] = []
    more = False
    async with opened_for_reading(url, schema) as checkpointer:
        async for thread in all_threads(checkpointer):
            if more := len(found) == limit:
                break
            found.append(thread)
    if json:
        print_json(thread.model_dump(mode="json", exclude={"checkpoint_count"}) for thread in found)
    elif found:
        print_table(
            ("thread", "last active", "created"),
            [(thread.thread_id, moment(thread.updated_at), moment(thread.created_at)) for thread in found],
        )
    else:
        say("no threads")
    if more:
        warn(f"there are more than {limit}; --limit shows them")


async def history(
    thread: ThreadId,
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000, metavar="N", help="At most this many.")] = 100,
    at: Annotated[str | None, typer.Option("--at", metavar="ID", help="Begin here, not at the latest.")] = None,
    namespace: Namespace = None,
    url: Url = None,
    schema: Schema = None,
    json: Json = False,
) -> None:
    """List a checkpoint and its ancestors, the newest first."""
    config = CheckpointConfig(thread_id=thread, checkpoint_id=at, namespace=tuple(namespace or ()))
    async with opened_for_reading(url, schema) as checkpointer:
        found = await checkpointer.history(config, limit)
        if not found:
            raise await _missing(checkpointer, config)
    if json:
        print_json(record.model_dump(mode="json") for record in found)
    else:
        print_history(found)


async def show(
    thread: ThreadId,
    at: Annotated[str | None, typer.Option("--at", metavar="ID", help="The checkpoint. None: the latest.")] = None,
    step: Annotated[int | None, typer.Option("--step", metavar="N", help="The newest checkpoint of this step.")] = None,
    channel: Annotated[
        list[str] | None, typer.Option("--channel", metavar="NAME", help="Only this key of the state; repeatable.")
    ] = None,
    namespace: Namespace = None,
    url: Url = None,
    schema: Schema = None,
    json: Json = False,
) -> None:
    """Show a checkpoint with its state: the latest, or the one that --at or --step names.

    Classes of the application that are in a state are shown as what they hold.
    """
    if at is not None and step is not None:
        raise InvalidInput("--at and --step name two checkpoints; give one of them")
    config = CheckpointConfig(thread_id=thread, checkpoint_id=at, namespace=tuple(namespace or ()))
    async with opened_for_reading(url, schema) as checkpointer:
        if step is not None:
            page = await checkpointer.list(thread, limit=1, namespace=config.namespace, step=step)
            if not page.items:
                raise await _missing(checkpointer, config, f"checkpoint of step {step}")
            config = config.model_copy(update={"checkpoint_id": page.items[0].checkpoint_id})
        found = await checkpointer.get_tuple(config, channels=channel)
        if found is None:
            raise await _missing(checkpointer, config)
    if channel and isinstance(found.checkpoint.state, dict) and (unknown := set(channel) - set(found.checkpoint.state)):
        raise NotFound(f"the state has no channel {', '.join(map(repr, sorted(unknown)))}")
    if json:
        print_json([_whole(found)])
    else:
        _print_checkpoint(found)


COMMANDS: Final = (threads, history, show)


async def all_threads(checkpointer: AsyncCheckpointer[Any]) -> AsyncIterator[Thread]:
    """Every thread, the last active first, page by page."""
    cursor: str | None = None
    while True:
        page = await checkpointer.list_threads(limit=_PAGE, cursor=cursor)
        for thread in page.items:
            yield thread
        if (cursor := page.next_cursor) is None:
            return


def print_history(records: list[CheckpointMetadata]) -> None:
    """Listing records as a table, in their order."""
    print_table(
        ("checkpoint", "step", "source", "created", "run", "next"),
        [
            (
                record.checkpoint_id,
                str(record.step),
                record.source.value,
                moment(record.created_at),
                record.run_id,
                cell(", ".join(record.next_nodes)) + cell(" interrupted" if record.has_interrupts else "", "magenta"),
            )
            for record in records
        ],
        numbers=("step",),
    )


async def _missing(checkpointer: AsyncCheckpointer[Any], config: CheckpointConfig, what: str | None = None) -> NotFound:
    """Why nothing was found: there is no such thread, or no such checkpoint in it."""
    if await checkpointer.get_thread(config.thread_id) is None:
        return not_stored(config.thread_id)
    what = what or ("checkpoint" if config.checkpoint_id is None else f"checkpoint {config.checkpoint_id!r}")
    where = f"namespace {list(config.namespace)}" if config.namespace else "the root namespace"
    return NotFound(f"thread {config.thread_id!r} has no {what} in {where}")


def _whole(found: CheckpointTuple[Any]) -> dict[str, Any]:
    """Everything of a checkpoint; ``pending_writes`` are all, with those that came later."""
    created = found.metadata.created_at
    whole: dict[str, Any] = as_json(
        {
            **found.checkpoint.model_dump(),
            "created_at": created,
            "pending_writes": [write.model_dump() for write in found.pending_writes],
        }
    )
    return whole


def _print_checkpoint(found: CheckpointTuple[Any]) -> None:
    checkpoint, listed = found.checkpoint, found.metadata
    facts = {
        "thread": checkpoint.thread_id,
        "namespace": " / ".join(checkpoint.namespace),
        "checkpoint": checkpoint.checkpoint_id,
        "parent": checkpoint.parent_checkpoint_id,
        "forked from": listed.fork_origin and f"{listed.fork_origin.checkpoint_id} of {listed.fork_origin.thread_id}",
        "run": checkpoint.run_id,
        "step": f"{listed.step} ({listed.source.value})",
        "created": moment(listed.created_at),
        "next": ", ".join(checkpoint.next_nodes),
        "interrupts": ", ".join(f"{item.id} at {item.node}" for item in checkpoint.interrupts),
        "writes": len(found.pending_writes) or None,
    }
    print_table(("", ""), [(cell(name, "dim"), value) for name, value in facts.items() if value])
    print_state(checkpoint.state)
