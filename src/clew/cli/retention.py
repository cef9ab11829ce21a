"""``clew prune``, ``sweep``, ``expire``, ``verify``, ``compact``, ``export`` and ``import``."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from clew.cli.connection import Json, Schema, Url, not_stored, opened
from clew.cli.looking import ThreadId
from clew.cli.output import cell, counted, moment, print_json, progress, say, size
from clew.errors import CorruptData, InvalidInput

__all__ = ["COMMANDS"]

_AGE: Final = re.compile(r"(\d+)(s|m|h|d|w)")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


async def prune(
    thread: ThreadId,
    keep_last: Annotated[
        int | None, typer.Option("--keep-last", metavar="N", help="Keep the N newest of each namespace.")
    ] = None,
    keep_runs: Annotated[
        int | None, typer.Option("--keep-runs", metavar="N", help="Keep those of the N newest runs.")
    ] = None,
    newer_than: Annotated[
        str | None,
        typer.Option("--newer-than", metavar="AGE", help="Keep what is younger (90m, 12h, 30d) or after an instant."),
    ] = None,
    keep_ancestors: Annotated[
        bool, typer.Option("--keep-ancestors", help="Keep the lineage of everything that is kept.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    url: Url = None,
    schema: Schema = None,
    json: Json = False,
) -> None:
    """Delete a thread's old checkpoints. What any option keeps stays, and the latest of each namespace always."""
    if keep_last is None and keep_runs is None and newer_than is None and not keep_ancestors:
        raise InvalidInput(
            "prune: say what to keep: --keep-last, --keep-runs, --newer-than or --keep-ancestors;"
            " --keep-last 0 keeps the latest of each namespace and nothing else"
        )
    younger_than = None if newer_than is None else _age_or_instant(newer_than)
    async with opened(url, schema) as checkpointer:
        if await checkpointer.get_thread(thread) is None:
            raise not_stored(thread)
        report = await checkpointer.retention.prune(
            thread,
            keep_last=keep_last,
            keep_runs=keep_runs,
            newer_than=younger_than,
            keep_ancestors=keep_ancestors,
            dry_run=dry_run,
        )
    if json:
        print_json([report.model_dump(mode="json")])
        return
    if dry_run:
        for config in report.pruned:
            say("/".join((*config.namespace, config.checkpoint_id or "")))
    verb = "would delete" if dry_run else "deleted"
    say(f"{verb} {counted(len(report.pruned), 'checkpoint')} of thread {thread}, keeping {report.kept}")


async def expire(
    thread: ThreadId,
    after: Annotated[
        str | None, typer.Option("--after", metavar="AGE", help="That long from now (12h, 30d), or at an instant.")
    ] = None,
    idle: Annotated[
        bool, typer.Option("--idle", help="Count the time from the last activity, again and again.")
    ] = False,
    never: Annotated[bool, typer.Option("--never", help="Keep it for good.")] = False,
    url: Url = None,
    schema: Schema = None,
) -> None:
    """Say until when a thread is kept; `clew sweep` deletes it then."""
    if (after is None) is not never:
        raise InvalidInput("expire: give either --after or --never")
    limit = None if after is None else _age_or_instant(after)
    async with opened(url, schema) as checkpointer:
        if isinstance(limit, timedelta):
            until = await checkpointer.retention.set_expiry(thread, ttl=limit, refresh_on_activity=idle)
        else:
            until = await checkpointer.retention.set_expiry(thread, at=limit, refresh_on_activity=idle)
    say(f"thread {thread} is kept {'for good' if until is None else f'until {moment(until)}'}")


async def sweep(
    batch: Annotated[int, typer.Option("--batch", metavar="N", help="Look up so many threads at a time.")] = 100,
    writes_older_than: Annotated[
        str, typer.Option("--writes-older-than", metavar="AGE", help="How old a write without a checkpoint may grow.")
    ] = "1d",
    url: Url = None,
    schema: Schema = None,
    json: Json = False,
) -> None:
    """Delete the threads that have expired, and writes whose checkpoint never came. Any number may run at once."""
    async with opened(url, schema) as checkpointer:
        report = await checkpointer.retention.sweep(batch=batch, writes_older_than=_age(writes_older_than))
    if json:
        print_json([report.model_dump(mode="json")])
        return
    say(
        f"deleted {counted(len(report.expired) + report.unborn, 'thread')} and {counted(report.writes, 'lost write')}; "
        f"passed over {report.skipped}"
    )


async def verify(
    thread: Annotated[
        str | None, typer.Argument(metavar="[THREAD]", help="The thread's id. None: all of them.", show_default=False)
    ] = None,
    url: Url = None,
    schema: Schema = None,
    json: Json = False,
) -> None:
    """Check that everything stored can be read and fits together; ends with 1 where something does not."""
    async with opened(url, schema) as checkpointer:
        if thread is not None and await checkpointer.get_thread(thread) is None:
            raise not_stored(thread)
        report = await checkpointer.retention.verify(thread)
    if json:
        print_json([report.model_dump(mode="json")])
    else:
        for problem in report.problems:
            say(cell(str(problem), "red"))
        looked = (counted(report.threads, "thread"), counted(report.checkpoints, "checkpoint"))
        say(f"{', '.join(looked)}, {counted(report.elements, 'element')}: {counted(report.problem_count, 'problem')}")
    if not report.ok:
        raise CorruptData(f"verify found {counted(report.problem_count, 'problem')}")


async def compact(thread: ThreadId, url: Url = None, schema: Schema = None, json: Json = False) -> None:
    """Rewrite what a thread's states are stored in, so that it takes less. No checkpoint changes."""
    async with opened(url, schema) as checkpointer:
        report = await checkpointer.retention.compact(thread)
    if json:
        print_json([report.model_dump(mode="json")])
        return
    rows = f"{counted(report.rows_before, 'row')} of {size(report.bytes_before)}"
    say(f"thread {thread}: {rows} before, {report.rows_after} of {size(report.bytes_after)} now")


async def export(
    thread: ThreadId,
    file: Annotated[str, typer.Argument(metavar="[FILE]", help="Where to; - is the standard output.")] = "-",
    url: Url = None,
    schema: Schema = None,
) -> None:
    """Write a thread, with everything of it, to a file of JSON lines that `clew import` reads.

    A file that is there is replaced, once the new one is whole.
    """
    target: Any = sys.stdout.buffer if file == "-" else file
    async with opened(url, schema) as checkpointer:
        with progress("exporting", None) as advance:
            report = await checkpointer.retention.export_thread(thread, target, progress=_moving(advance))
    if file != "-":
        say(f"exported {counted(report.checkpoints, 'checkpoint')} of thread {thread} to {file}")


async def import_(
    file: Annotated[str, typer.Argument(metavar="FILE", help="What export wrote; - is the standard input.")],
    thread: Annotated[
        str | None, typer.Option("--thread", metavar="ID", help="Store it under this id. None: under its own.")
    ] = None,
    url: Url = None,
    schema: Schema = None,
) -> None:
    """Store a thread that `clew export` wrote, from whatever database; wholly or not at all."""
    source: Any = sys.stdin.buffer if file == "-" else Path(file)
    async with opened(url, schema) as checkpointer:
        with progress("importing", None) as advance:
            report = await checkpointer.retention.import_thread(source, thread_id=thread, progress=_moving(advance))
    say(f"imported {counted(report.checkpoints, 'checkpoint')} as thread {report.thread_id}")


import_.__name__ = "import"  # the command's name, which is no name that a function can be defined under


def _moving(advance: Callable[..., None]) -> Callable[[int, int], None]:
    """What moves a bar to where an export or import stands."""
    reached = 0

    def move(done: int, total: int) -> None:
        nonlocal reached
        if done != reached:
            advance(total, by=done - reached)
            reached = done

    return move


def _age(text: str) -> timedelta:
    match = _AGE.fullmatch(text)
    if match is None:
        raise InvalidInput(f"{text!r} is no age: a whole number and s, m, h, d or w, as in 12h or 30d")
    try:
        return timedelta(**{_UNITS[match[2]]: int(match[1])})
    except OverflowError as exc:
        raise InvalidInput(f"{text!r} is longer than can be reckoned with") from exc


def _age_or_instant(text: str) -> timedelta | datetime:
    if _AGE.fullmatch(text):
        return _age(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise InvalidInput(f"{text!r} is neither an age (12h, 30d) nor an instant with a zone (2026-01-31T12:00:00Z)")
    return moment


COMMANDS: Final = (prune, expire, sweep, verify, compact, export, import_)
