"""Writes what is made from the code: ``cli.md``, ``reference.md``, and the list of modules in ``architecture.md``.

``tests/test_generated_docs.py`` holds the pages equal to what this makes.
"""

from __future__ import annotations

import ast
import inspect
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel
from typer.main import get_command

import clew
from clew import migrate
from clew.cli.__main__ import app

FOLDER: Final = Path(__file__).parent
PACKAGE: Final = FOLDER.parent / "src" / "clew"
WIDTH: Final = 100
BEGIN, END = "<!-- modules:begin -->", "<!-- modules:end -->"
NOTE: Final = "<!-- Made by `make docs` from the code; change it there. -->"
CLI_INTRODUCTION: Final = """\
The database is `--url`, else the environment's `CLEW_URL`. With `--json` a command prints one JSON object a line.
Instants are UTC. A command that cannot do what it was asked to says so in one line on stderr and ends with 1; one that
was called wrongly ends with 2."""

GROUPS: Final = {
    "The two faces": ("Checkpointer", "AsyncCheckpointer", "NOT_CHECKED"),
    "Records of the graph side": (
        "Checkpoint",
        "CheckpointConfig",
        "CheckpointMetadata",
        "CheckpointTuple",
        "PendingWrite",
        "Interrupt",
        "PendingActivation",
        "BarrierArrivals",
        "ForkOrigin",
        "StateSnapshot",
        "Thread",
        "ThreadStatistics",
        "Page",
        "CheckpointSource",
        "DurabilityMode",
        "NOT_LOADED",
    ),
    "Records of looking back": tuple(
        name for name in clew.__all__ if getattr(getattr(clew, name), "__module__", "") == "clew.records.diff"
    ),
    "Records of retention": tuple(
        name for name in clew.__all__ if getattr(getattr(clew, name), "__module__", "") == "clew.records.retention"
    ),
    "Records of the agent side": tuple(
        name
        for name in clew.__all__
        if getattr(getattr(clew, name), "__module__", "") in ("clew.records.agent", "clew.records.executor")
    ),
    "Durable execution": (
        *(
            name
            for name in clew.__all__
            if getattr(getattr(clew, name), "__module__", "") in ("clew.records.runs", "clew.recorder", "clew.executor")
        ),
        "Policy",
    ),
    "Codec and ids": ("Codec", "new_id", "new_checkpoint_id"),
}
CONSTANTS: Final = {
    "Policy": "A function of an `AgentResumeEvidence` and a `Run` that returns `Continue()` or `Suspend(reason=…)`.",
    "NOT_CHECKED": "For `expected_head`: any head will do. The default.",
    "NOT_LOADED": "What `state` holds in a checkpoint that was read with `load_state=False`. It cannot be put back.",
}


def cli_page() -> str:
    """Every command with its arguments and options."""
    group: Any = get_command(app)
    parts = [
        "# The command line",
        NOTE,
        CLI_INTRODUCTION,
    ]
    for name, command in group.commands.items():
        arguments = [item for item in command.params if item.param_type_name == "argument"]
        options = [item for item in command.params if item.param_type_name == "option"]
        usage = " ".join(["clew", name, *(_metavar(item) for item in arguments), *(["[OPTIONS]"] if options else [])])
        parts += [f"## clew {name}", f"```\n{usage}\n```", inspect.cleandoc(command.help or "")]
        rows = [(f"`{_metavar(item)}`", item.help or "") for item in arguments]
        for item in options:
            value = "" if item.is_flag else f" {item.metavar or item.type.name.upper()}"
            shown = item.default not in (None, False, ()) and not callable(item.default)
            default = f" Default: `{item.default}`." if shown else ""
            rows.append((f"`{', '.join(item.opts)}{value}`", f"{item.help}{default}"))
        if rows:
            parts.append("| | |\n|---|---|\n" + "\n".join(f"| {left} | {right} |" for left, right in rows))
    return "\n\n".join(parts) + "\n"


def reference_page() -> str:
    """Every public name with its signature and its docstring."""
    parts = ["# Reference", NOTE, _prose(clew.__doc__)]
    for title, names in _groups():
        parts.append(f"## {title}")
        for name in names:
            parts += _entry(name, getattr(clew, name))
    parts += ["## clew.migrate", _prose(migrate.__doc__)]
    for name in migrate.__all__:
        member = getattr(migrate, name)
        if callable(member):
            parts += _function(f"migrate.{name}", member)
    return "\n\n".join(part for part in parts if part) + "\n"


def _groups() -> Iterator[tuple[str, tuple[str, ...]]]:
    yield from GROUPS.items()
    errors = tuple(name for name in clew.__all__ if _is_error(getattr(clew, name)))
    known = {name for _, names in GROUPS.items() for name in names} | set(errors)
    if others := tuple(name for name in clew.__all__ if name not in known):
        yield "Further names", others
    yield "Errors", errors


def _entry(name: str, member: Any) -> Iterator[str]:
    if name in CONSTANTS:
        yield from (f"### {name}", CONSTANTS[name])
    elif not inspect.isclass(member):
        if inspect.isfunction(member):
            yield from _function(name, member)
        else:
            yield from (f"### {name}", "")
    else:
        yield f"### {name}"
        if _is_error(member):
            yield f"A kind of {', '.join(f'`{base.__name__}`' for base in member.__bases__)}."
        elif issubclass(member, BaseModel):
            yield f"```\n{_model(name, member)}\n```"
        elif issubclass(member, str):
            yield f"Values: {', '.join(f'`{value.value}`' for value in member)}."  # type: ignore[attr-defined, unused-ignore]
        yield _prose(member.__doc__)
        if not _is_error(member):
            yield from _members(name, member, prose=name != "AsyncCheckpointer")


def _members(name: str, cls: type, *, prose: bool = True) -> Iterator[str]:
    """The methods of a class and of its groups; a twin's have only their signatures."""
    for label, function in _methods(cls):
        group = typing.get_type_hints(function).get("return") if isinstance(vars(cls)[label], property) else None
        if getattr(group, "__module__", "").startswith("clew.groups"):
            yield f"### {name}.{label}"
            yield _prose(group.__doc__) if prose else ""
            yield from _members(f"{name}.{label}", group, prose=prose)
        else:
            yield from _function(f"{name}.{label}", function, prose=prose or label == "open")


def _methods(cls: type) -> Iterator[tuple[str, Any]]:
    for name, member in vars(cls).items():
        function = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        if name.startswith("_") or name == "model_post_init":
            continue
        if isinstance(function, property):
            yield name, function.fget
        elif inspect.isfunction(function):
            yield name, function


def _function(name: str, function: Any, *, prose: bool = True) -> Iterator[str]:
    yield f"#### {name}" if "." in name else f"### {name}"
    lead = "await " if inspect.iscoroutinefunction(function) else ""
    parameters = [item for item in inspect.signature(function).parameters.values() if item.name not in ("self", "cls")]
    taken = [str(inspect.Signature([item]))[1:-1].removeprefix("*, ") for item in parameters]
    kinds = [item.kind for item in parameters]
    if inspect.Parameter.KEYWORD_ONLY in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
        taken.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    start, end = f"{lead}{name.rpartition('.')[2]}(", f") -> {function.__annotations__.get('return', 'None')}"
    written = f"{start}{', '.join(taken)}{end}"
    if len(written) > WIDTH:
        written = "\n".join([start, *(f"    {item}," for item in taken), end])
    yield f"```\n{_unquoted(written)}\n```"
    if prose:
        yield _prose(function.__doc__)


def _model(name: str, model: type[BaseModel]) -> str:
    annotations: dict[str, str] = {}
    for owner in reversed(model.__mro__):
        annotations |= vars(owner).get("__annotations__", {}) if issubclass(owner, BaseModel) else {}
    lines = []
    for field, info in model.model_fields.items():
        written = str(annotations.get(field, "Any"))
        if info.default_factory is not None:
            made = getattr(info.default_factory, "__name__", "…")
            written += f" = {made}()"
        elif not info.is_required():
            written += f" = {_default(info.default)}"
        lines.append(f"    {field}: {written}")
    return "\n".join([f"{name}(", *lines, ")"])


def _default(value: Any) -> str:
    return str(value) if isinstance(value, str) and type(value) is not str else repr(value)


def _unquoted(signature: str) -> str:
    """Annotations as they stand in the code; defaults that are enums or sentinels by their names."""
    return re.sub(r"(?<=[:>] )'([^']*)'", r"\1", signature).replace("builtins.", "")


def _prose(docstring: str | None) -> str:
    """Markdown of a docstring: ``Raises`` and its conditions become a list."""
    text, separator, raised = inspect.cleandoc(docstring or "").partition("Raises:\n")
    text = re.sub(r"``(.+?)``", r"`\1`", text.strip())
    if not separator:
        return text
    raised = re.sub(r"``(.+?)``", r"`\1`", inspect.cleandoc(raised))
    items = re.sub(r"\n\s+", " ", raised).splitlines()
    listed = "\n".join(re.sub(r"^(\w+)(: )?", r"- `\1`\2", item) for item in items if item)
    return f"{text}\n\nRaises:\n\n{listed}"


def _is_error(member: Any) -> bool:
    return inspect.isclass(member) and issubclass(member, clew.ClewError)


def _metavar(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper())


def architecture_page() -> str:
    """The page with the modules' first sentences between its markers, layer by layer as CONTRIBUTING has them."""
    layers = (FOLDER.parent / "CONTRIBUTING.md").read_text()
    parts = []
    for what, where in re.findall(r"^\| \d \| ([^|]*) \| ([^|]*) \|$", layers, re.MULTILINE):
        paths = [path for place in re.findall(r"`([\w./]+)`", where) for path in _modules(PACKAGE / place)]
        lines = [f"| `{path.relative_to(PACKAGE)}` | {_first_sentence(path)} |" for path in paths]
        parts.append("\n".join([f"| {what} | |", "|---|---|", *lines]))
    before, _, rest = (FOLDER / "architecture.md").read_text().partition(BEGIN)
    return "\n\n".join([f"{before}{BEGIN}", *parts, f"{END}{rest.partition(END)[2]}"])


def _modules(place: Path) -> list[Path]:
    return sorted(place.rglob("*.py")) if place.is_dir() else [place]


def _first_sentence(path: Path) -> str:
    docstring = " ".join((ast.get_docstring(ast.parse(path.read_text())) or "").split())
    return re.sub(r"``(.+?)``", r"`\1`", re.split(r"(?<=\.)\s", docstring)[0])


PAGES: Final = {
    FOLDER / "cli.md": cli_page,
    FOLDER / "reference.md": reference_page,
    FOLDER / "architecture.md": architecture_page,
}


if __name__ == "__main__":
    for path, page in PAGES.items():
        path.write_text(page())
