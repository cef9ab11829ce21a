"""How commands print: tables and states for people, one JSON record a line for programs. No database is touched here.

What was stored is never taken for markup, and its control characters never reach the terminal.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from clew.codec import as_json, json_text

__all__ = [
    "cell",
    "counted",
    "fail",
    "moment",
    "print_json",
    "print_state",
    "print_table",
    "progress",
    "say",
    "size",
    "warn",
]

_OUT: Final = Console(highlight=False)
_ERR: Final = Console(highlight=False, stderr=True)
_WIDE: Final = 200
"""Columns where nobody looks at a terminal: a table in a pipe is not cut to 80."""

_LINE: Final = 100
"""Characters of JSON that still go on one line."""

_CONTROLS: Final = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}

# JSON itself escapes those below 32 only, and a terminal takes U+009B for the start of a sequence, too.
_JSON_CONTROLS: Final = {code: f"\\u{code:04x}" for code in range(127, 160)}


def say(text: str | Text, style: str = "") -> None:
    """A line for people; a ``Text`` as it is."""
    _OUT.print(text if isinstance(text, Text) else cell(text, style), soft_wrap=True)


def warn(text: str) -> None:
    """A line for people, beside what is printed."""
    _ERR.print(cell(text, "dim"), soft_wrap=True)


def fail(text: str) -> None:
    """The one line that says why a command did not do what it was asked to."""
    _ERR.print(cell(f"clew: {' '.join(text.split())}", "red"), soft_wrap=True)


def cell(value: object, style: str = "") -> Text:
    """Stored text, harmless; nothing for None."""
    text = "" if value is None else str(value)
    return Text(text.encode(errors="backslashreplace").decode().translate(_CONTROLS), style=style)


def moment(instant: datetime | None) -> str:
    """An instant in UTC, to the millisecond."""
    return "" if instant is None else instant.astimezone(UTC).isoformat(" ", "milliseconds").replace("+00:00", "Z")


def counted(count: int, noun: str) -> str:
    """``1 run``, ``2 runs``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def size(count: int) -> str:
    """A number of bytes, as a person reads it."""
    value, unit = float(count), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 1000 or unit == "TB":
            break
        value /= 1000
    return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"


def print_json(records: Iterable[Any]) -> None:
    """Each record on a line of its own."""
    for record in records:
        typer.echo(json_text(record).translate(_JSON_CONTROLS))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, numbers: Sequence[str] = ()) -> None:
    """Rows under their columns' names, if they have any; those in ``numbers`` to the right."""
    table = Table(box=None, pad_edge=False, show_header=any(columns))
    for column in columns:
        table.add_column(column, justify="right" if column in numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(value if isinstance(value, Text) else cell(value) for value in row))
    # A width given to print() would be cut down to the console's.
    narrow = _OUT.is_terminal or "COLUMNS" in os.environ
    (_OUT if narrow else Console(highlight=False, width=_WIDE)).print(table)


def print_state(state: Any) -> None:
    """A state channel by channel: chat messages a line each, everything else as JSON."""
    channels = state if isinstance(state, dict) and state else {"state": state}
    for name, value in channels.items():
        _OUT.print(cell(name, "bold cyan"), soft_wrap=True)
        if isinstance(value, list) and value and all(map(_is_message, value)):
            for number, message in enumerate(value):
                _OUT.print(_message(number, message), soft_wrap=True)
        else:
            _OUT.print(cell(f"  {_laid_out(as_json(value), '  ')}"), soft_wrap=True)


@contextmanager
def progress(label: str, total: int | None) -> Iterator[Callable[..., None]]:
    """A bar on stderr while its context lasts; gives what moves it, by one, and takes a total that was not known yet.

    Nothing is shown where nobody looks.
    """
    if not _ERR.is_terminal:
        yield lambda *_, **__: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=_ERR, transient=True) as bar:
        task = bar.add_task(label, total=total)
        yield lambda total=None, by=1: bar.update(task, advance=by, total=total)


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("role"), str)


def _message(number: int, message: dict[str, Any]) -> Text:
    """``3 assistant  what was said``, with the calls that it makes."""
    line = cell(f"  {number:>3} ", "dim") + cell(f"{message['role']:<10}", "green")
    said = message.get("content")
    if said is not None:
        line += cell(_indented(said if isinstance(said, str) else json_text(said), 16).lstrip())
    for call in message.get("tool_calls") or ():
        function = call.get("function", call) if isinstance(call, dict) else None
        if isinstance(function, dict):  # OpenAI's form has its arguments as text, LangChain's has them as they are
            arguments = function.get("arguments", function.get("args", ""))
            arguments = arguments if isinstance(arguments, str) else json_text(arguments)
            line += cell(f" → {function.get('name')}({arguments})", "yellow")
    return line


def _laid_out(value: Any, indent: str) -> str:
    """JSON whose short parts stand on one line each."""
    text = json_text(value)
    if len(text) <= _LINE or not isinstance(value, dict | list):
        return text
    inner = f"{indent}  "
    if isinstance(value, dict):
        parts = [f"{json_text(key)}: {_laid_out(item, inner)}" for key, item in value.items()]
    else:
        parts = [_laid_out(item, inner) for item in value]
    lines = ",\n".join(f"{inner}{part}" for part in parts)
    return f"{text[0]}\n{lines}\n{indent}{text[-1]}"


def _indented(text: str, columns: int) -> str:
    return "\n".join(" " * columns + line for line in text.splitlines())
