"""Chat runs as files hold them: what is accepted, and errors that name the line. Nothing is stored here.

Accepted are JSON and JSON lines. A run is an object ``{"run_id": …, "messages": […], …}`` or a plain list of messages
in OpenAI's form; a file holds one run or many, or one message a line.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clew.errors import InvalidInput

__all__ = ["Run", "read_runs"]


@dataclass(frozen=True, slots=True)
class Run:
    """One run. ``details`` are the other keys that it came with, such as a reward."""

    run_id: str
    messages: list[dict[str, Any]]
    details: dict[str, Any] = field(default_factory=dict)


def read_runs(path: Path) -> list[Run]:
    """The runs of a file, in its order. A run without a ``run_id`` is called after the file.

    Raises:
        InvalidInput: the file cannot be read, is not JSON, or holds something else; with the line, or the place in it.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as exc:
        raise InvalidInput(f"{path}: not UTF-8 text, so not JSON (byte {exc.start})") from exc
    except OSError as exc:
        raise InvalidInput(f"{path}: cannot be read: {exc.strerror}") from exc
    found = list(_found(path, text))
    if not found:
        raise InvalidInput(f"{path}: holds no run")
    if all(_is_message(value) for _, value in found):
        found = [(str(path), [value for _, value in found])]
    names = [path.stem] if len(found) == 1 else [f"{path.stem}-{number}" for number in range(1, len(found) + 1)]
    runs = [_run(where, value, name) for (where, value), name in zip(found, names, strict=True)]
    places: dict[str, str] = {}
    for (where, _), run in zip(found, runs, strict=True):
        if (first := places.setdefault(run.run_id, where)) != where:
            raise InvalidInput(f"{where}: run_id {run.run_id!r} was there before, at {first}")
    return runs


def _found(path: Path, text: str) -> Iterator[tuple[str, Any]]:
    """(where it stands, value) for each run, or each message, of the file."""
    # Not splitlines(): JSON's strings may hold what it takes for the end of a line besides, such as U+2028.
    lines = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    if len(lines) > 1 and _is_json(lines[0][1]):
        for number, line in lines:
            yield f"{path}:{number}", _parsed(f"{path}:{number}", line)
        return
    if not lines:
        return
    value = _parsed(str(path), text)
    if isinstance(value, list) and value and not all(map(_is_message, value)):
        if any(map(_is_message, value)):  # a list of messages, one of which is none: let that be named
            yield str(path), value
        else:
            yield from ((f"{path}: run {number}", item) for number, item in enumerate(value, start=1))
    else:
        yield str(path), value


def _run(where: str, value: Any, name: str) -> Run:
    details = dict(value) if isinstance(value, dict) else {"messages": value}
    messages, run_id = details.pop("messages", None), details.pop("run_id", None)
    if not isinstance(messages, list):
        raise InvalidInput(f"{where}: neither a list of messages nor an object with `messages`")
    for number, message in enumerate(messages, start=1):
        if not _is_message(message):
            raise InvalidInput(f"{where}: message {number} is no object with a `role`")
    if not messages:
        raise InvalidInput(f"{where}: the run has no messages")
    if run_id is not None and not isinstance(run_id, str | int):
        raise InvalidInput(f"{where}: run_id must be a string")
    return Run(name if run_id is None else str(run_id), messages, details)


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("role"), str)


def _is_json(line: str) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _parsed(where: str, text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as exc:
        # Of a file that is one value the error knows the line; of a line, the caller does.
        place = where if "\n" not in text.strip() else f"{where}:{exc.lineno}"
        raise InvalidInput(f"{place}: not JSON: {exc.msg} (column {exc.colno})") from exc
    except RecursionError as exc:
        raise InvalidInput(f"{where}: nested too deeply") from exc
    except ValueError as exc:
        raise InvalidInput(f"{where}: holds an integer of more digits than Python converts") from exc
