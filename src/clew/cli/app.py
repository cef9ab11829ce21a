"""The application: the list of subjects, and what all commands have in common. What a command does is its module's.

A subject is a module with ``COMMANDS``, a tuple of async functions with typer's annotations. A function's name is the
command's, its docstring the help; it raises ``ClewError`` where it cannot do what it was asked to.
"""

from __future__ import annotations

import asyncio
import functools
import os
import sys
from collections.abc import Callable, Coroutine
from importlib.metadata import version
from typing import Annotated, Any, Final

import typer

from clew.cli import deleting, demo, importing, looking, measuring, migrating, recording, retention, running, timeline
from clew.cli.output import fail
from clew.errors import ClewError

__all__ = ["app"]

SUBJECTS: Final = (demo, migrating, recording, looking, measuring, timeline, running, deleting, retention, importing)

app: Final = typer.Typer(
    name="clew",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"clew {version('clew')}")
        raise typer.Exit


@app.callback()
def _clew(
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Checkpoints of agent and graph runs in Postgres or SQLite: record them, look back into them, delete them."""


def _waited_for(command: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """The command as typer calls it. A ``ClewError`` becomes one line and exit code 1."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            asyncio.run(command(*args, **kwargs))
        except ClewError as exc:
            fail(str(exc))
            raise typer.Exit(1) from None
        except OSError as exc:  # a full disk, or a closed pipe as in `clew threads | head`, which is no failure to tell
            if not isinstance(exc, BrokenPipeError):
                fail(f"could not write: {exc.strerror or exc}")
            # Python would complain once more when it flushes.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(1) from None

    return run


for _subject in SUBJECTS:
    for _command in _subject.COMMANDS:
        app.command()(_waited_for(_command))
