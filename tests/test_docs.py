"""The documentation does what it says: its Python is executed, its commands exist.

Python blocks of one file share a namespace and run from top to bottom in an empty folder. Where a block says
``postgresql://…`` or ``postgres://…``, it gets a migrated database of its own file's.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import re
import shlex
from pathlib import Path
from types import CodeType
from typing import Any, Final

import pytest

ROOT: Final = Path(__file__).parents[1]
PAGES: Final = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
FENCE: Final = re.compile(
    r"^(?P<indent> *)```(?P<info>[^\n`]*)\n(?P<body>.*?)^(?P=indent)```\s*$", re.MULTILINE | re.DOTALL
)
POSTGRES_URL: Final = re.compile(r"postgres(?:ql)?(?P<driver>\+\w+)?://[^\s\"']*")


def blocks(page: Path, language: str) -> list[tuple[int, str, str]]:
    """The first line, the words behind the language and the text of each fenced block."""
    text = page.read_text()
    return [
        (text.count("\n", 0, match.start("body")), " ".join(words[1:]), _dedented(match["body"], match["indent"]))
        for match in FENCE.finditer(text)
        if (words := match["info"].split()) and words[0] in language.split("|")
    ]


def _dedented(body: str, indent: str) -> str:
    return re.sub(f"^{indent}", "", body, flags=re.MULTILINE)


def compiled(source: str, page: Path, line: int) -> CodeType:
    tree = ast.parse(source, str(page))
    ast.increment_lineno(tree, line)
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    code: CodeType = compile(tree, str(page), "exec", flags=flags, dont_inherit=True)
    return code


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_python_of_a_page_runs_from_top_to_bottom(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "__docs__"}
    # One loop for the page, so that what one block has opened the next can use.
    with asyncio.Runner() as runner:
        for line, marks, source in blocks(page, "python"):
            assert "no-run" not in marks, f"{page.name}:{line}: every Python block runs"
            text = source
            if POSTGRES_URL.search(text):
                plain = request.getfixturevalue("postgres_url").partition("://")[2]
                text = POSTGRES_URL.sub(lambda match: f"postgresql{match['driver'] or ''}://{plain}", text)  # noqa: B023
            code = compiled(text, page, line)
            result = eval(code, namespace)
            if inspect.iscoroutine(result):
                runner.run(_awaited(result))


async def _awaited(result: Any) -> None:
    await result


def commands() -> list[Any]:
    """Every ``clew …`` of the shell blocks, with where it stands."""
    found = []
    for page in PAGES:
        for line, _, source in blocks(page, "bash|sh|shell|console"):
            joined = source.replace("\\\n", " ")
            for words in (shlex.split(text.removeprefix("$ "), comments=True) for text in joined.splitlines() if text):
                while words and re.fullmatch(r"\w+=.*", words[0]):
                    words = words[1:]
                if words and Path(words[0]).name == "clew":
                    where = f"{page.relative_to(ROOT)}:{line} {shlex.join(words)}"
                    found.append(pytest.param(words[1:], id=where))
    return found


@pytest.mark.parametrize("words", commands())
def test_a_command_of_the_documentation_exists_with_its_options(words: list[str]) -> None:
    from typer.main import get_command

    from clew.cli.__main__ import app  # type: ignore[import, unused-ignore]

    command = get_command(app)
    context = command.make_context("clew", [], resilient_parsing=True)
    for number, word in enumerate(words):
        if word.startswith("-") or not hasattr(command, "get_command"):
            break
        inner = command.get_command(context, word)
        assert inner is not None, f"no command {' '.join(words[: number + 1])!r}"
        command = inner
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    known |= {"--help", "--version"}
    given = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
    assert given <= known


def test_the_machine_of_the_writer_is_not_in_the_documentation() -> None:
    paths = re.compile(r"/(?:home|Users|root)/\w+")
    assert [page.name for page in PAGES if paths.search(page.read_text())] == []
    assert str(ROOT.parent) + os.sep not in "".join(page.read_text() for page in PAGES)
