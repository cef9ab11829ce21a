"""``clew tree``, ``clew diff`` and ``clew fork``: a thread's branches, what differs, and going on another way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Final

import typer
from rich.text import Text

from clew.cli.connection import Json, Namespace, Schema, Url, not_stored, opened, opened_for_reading
from clew.cli.looking import ThreadId
from clew.cli.output import cell, moment, print_json, print_table, say
from clew.codec import as_json, json_text
from clew.records import ChannelChange, CheckpointConfig, CheckpointMetadata, Difference, StateDiff, ThreadTree

__all__ = ["COMMANDS"]

_RUN_COLOURS: Final = ("cyan", "green", "yellow", "blue", "magenta", "bright_red", "bright_cyan", "bright_green")
_VALUE: Final = 160
"""Characters of a value that are shown of a difference."""
_SIGNS: Final = {
    "added": ("+", "green"),
    "appended": ("+", "green"),
    "inserted": ("+", "green"),
    "removed": ("-", "red"),
    "dropped": ("-", "red"),
    "changed": ("~", "yellow"),
    "replaced": ("~", "yellow"),
    "reordered": ("↕", "yellow"),
}


async def tree(
    thread: ThreadId, namespace: Namespace = None, url: Url = None, schema: Schema = None, json: Json = False
) -> None:
    """Draw a thread's checkpoints as a tree: branches, forks, interrupts, the runs by colour."""
    async with opened_for_reading(url, schema) as checkpointer:
        found = await checkpointer.timeline.tree(thread, namespace=namespace)
    if not found.checkpoints:
        raise not_stored(thread)
    if json:
        print_json(record.model_dump(mode="json") for record in found.checkpoints)
    else:
        for line in _drawn(found):
            say(line)


async def diff(
    thread: ThreadId,
    before: Annotated[str, typer.Argument(metavar="BEFORE", help="A checkpoint's id.", show_default=False)],
    after: Annotated[
        str | None, typer.Argument(metavar="[AFTER]", help="Another's. None: the latest.", show_default=False)
    ] = None,
    other: Annotated[
        str | None, typer.Option("--other-thread", metavar="THREAD", help="The thread of AFTER, if it is another.")
    ] = None,
    namespace: Namespace = None,
    url: Url = None,
    schema: Schema = None,
    json: Json = False,
) -> None:
    """Show what changed between two checkpoints, on whatever branches they are."""
    parts = tuple(namespace or ())
    async with opened_for_reading(url, schema) as checkpointer:
        found = await checkpointer.timeline.diff(
            CheckpointConfig(thread_id=thread, checkpoint_id=before, namespace=parts),
            CheckpointConfig(thread_id=other or thread, checkpoint_id=after, namespace=parts),
        )
    if json:
        print_json([_plain(found)])
    else:
        _print_diff(found)


async def fork(
    thread: ThreadId,
    at: Annotated[
        str | None, typer.Option("--at", metavar="ID", help="The checkpoint to fork. None: the latest.")
    ] = None,
    to: Annotated[
        str | None, typer.Option("--to", metavar="THREAD", help="Fork into this new thread, not inside its own.")
    ] = None,
    name: Annotated[str | None, typer.Option("--id", metavar="ID", help="The new checkpoint's id.")] = None,
    namespace: Namespace = None,
    url: Url = None,
    schema: Schema = None,
    json: Json = False,
) -> None:
    """Copy a checkpoint to go on from it another way; nothing else changes."""
    config = CheckpointConfig(thread_id=thread, checkpoint_id=at, namespace=tuple(namespace or ()))
    async with opened(url, schema) as checkpointer:
        made = await checkpointer.timeline.fork(config, to, checkpoint_id=name)
    if json:
        print_json([made.model_dump(mode="json")])
    else:
        say(f"forked into {made.checkpoint_id} of thread {made.thread_id}")


COMMANDS: Final = (tree, diff, fork)


def _drawn(found: ThreadTree) -> Iterator[Text]:
    """A line for each checkpoint. Only a branch is indented, so that a long run stays narrow."""
    colours = _colours(found)
    namespaces = {record.namespace for record in found.checkpoints}
    stack: list[tuple[CheckpointMetadata, str, str]] = [(root, "", "") for root in reversed(found.roots)]
    while stack:
        record, stem, joint = stack.pop()
        yield cell(stem + joint, "dim") + _label(found, record, colours, with_namespace=len(namespaces) > 1)
        children = found.children(record)
        below = stem + {"": "", "├─ ": "│  ", "└─ ": "   "}[joint]
        if len(children) == 1:
            stack.append((children[0], below, ""))
        else:
            for number, child in enumerate(reversed(children)):
                stack.append((child, below, "└─ " if number == 0 else "├─ "))


def _label(
    found: ThreadTree, record: CheckpointMetadata, colours: dict[str | None, str], *, with_namespace: bool
) -> Text:
    colour = colours[record.run_id]
    line = cell("● " if found.children(record) else "◉ ", colour) + cell(record.checkpoint_id, colour)
    line += cell(f"  step {record.step}  {record.source.value}  {moment(record.created_at)}", "dim")
    if with_namespace and record.namespace:
        line += cell(f"  {' / '.join(record.namespace)}", "dim")
    if record.run_id is not None:
        line += cell(f"  run {record.run_id}", colour)
    if record.fork_origin is not None:
        origin = record.fork_origin
        where = f" of {origin.thread_id}" if origin.thread_id != found.thread_id else ""
        line += cell(f"  forked from {origin.checkpoint_id}{where}", "yellow")
    if record.has_interrupts:
        line += cell("  interrupted", "magenta")
    return line


def _colours(found: ThreadTree) -> dict[str | None, str]:
    runs = dict.fromkeys(record.run_id for record in found.checkpoints if record.run_id is not None)
    return {None: "default", **{run: _RUN_COLOURS[number % len(_RUN_COLOURS)] for number, run in enumerate(runs)}}


def _print_diff(found: StateDiff) -> None:
    if not found.differences:
        say("no difference")
        return
    table = [
        (cell(change.value, "dim" if change is ChannelChange.UNCHANGED else "bold"), cell(name, "bold cyan"))
        for name, change in found.channels.items()
    ]
    if table:
        print_table(("", "channel"), table)
    for item in found.differences:
        for line in _told(item):
            say(line)


def _told(item: Difference) -> Iterator[Text]:
    sign, colour = _SIGNS[item.kind.value]
    line = cell(f"{sign} ", colour) + cell(_path(item)) + cell(f"  {item.kind.value}", "dim")
    if item.before_position is not None and item.after_position not in (None, item.before_position):
        line += cell(f" at {item.before_position}, now at {item.after_position}", "dim")
    yield line
    if item.kind.value in ("removed", "changed", "dropped", "replaced"):
        yield cell("    - ", "red") + cell(_short(item.before))
    if item.kind.value in ("added", "changed", "appended", "inserted", "replaced"):
        yield cell("    + ", "green") + cell(_short(item.after))


def _path(item: Difference) -> str:
    path = ".".join(str(key) for key in item.path) or "state"
    position = item.after_position if item.after_position is not None else item.before_position
    return path if position is None else f"{path}[{position}]"


def _short(value: Any) -> str:
    text = json_text(as_json(value))
    return text if len(text) <= _VALUE else f"{text[: _VALUE - 1]}…"


def _plain(found: StateDiff) -> dict[str, Any]:
    written: dict[str, Any] = as_json(found.model_dump())
    return written
