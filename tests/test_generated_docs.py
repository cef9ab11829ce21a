"""The pages made from the code are up to date, nothing public is left out, and tests cite the invariants they hold."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pytest
from typer.main import get_command

import clew
from clew.cli.__main__ import app

ROOT: Final = Path(__file__).parents[1]
DOCS: Final = ROOT / "docs"


def generator() -> ModuleType:
    found = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert found
    assert found.loader
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["architecture.md", "cli.md", "reference.md"])
def test_a_generated_page_is_what_the_code_says(name: str) -> None:
    page = DOCS / name
    assert page.read_text() == generator().PAGES[page](), "run `make docs`"


def test_every_command_and_option_is_documented() -> None:
    text = (DOCS / "cli.md").read_text()
    group: Any = get_command(app)
    for name, command in group.commands.items():
        assert f"## clew {name}\n" in text
        assert command.help
        assert [item.name for item in command.params if not getattr(item, "help", "") and item.name != "help"] == []


def test_every_public_name_is_in_the_reference() -> None:
    titles = set(re.findall(r"^### (\w+)$", (DOCS / "reference.md").read_text(), re.MULTILINE))
    assert sorted(set(clew.__all__) - titles) == []


def test_the_tree_of_errors_is_that_of_the_module() -> None:
    tree = re.findall(r"[─│ ]([A-Z]\w+)  ", (DOCS / "errors.md").read_text())
    assert sorted(set(tree)) == sorted({name for name in clew.errors.__all__ if name != "ClewError"})


def test_every_error_is_in_the_table_of_what_to_do() -> None:
    table = (DOCS / "errors.md").read_text().partition("## What to do")[2].partition("```")[0]
    told = set(re.findall(r"`(\w+)`", table))
    missing = [
        name
        for name in clew.errors.__all__
        if not ({cls.__name__ for cls in getattr(clew, name).__mro__} - {"ClewError", "Conflict"}) & told
    ]
    assert missing == ["ClewError", "Conflict"]  # nobody raises a bare one of the second


def test_every_level_that_is_logged_at_is_documented() -> None:
    used = {
        level.upper()
        for path in (ROOT / "src").rglob("*.py")
        for level in re.findall(r"\b_log\.(\w+)\(", path.read_text())
    }
    assert set(re.findall(r"^\| `([A-Z]+)` \|", (DOCS / "logging.md").read_text(), re.MULTILINE)) == used


def test_the_invariants_are_numbered_and_the_tests_that_each_names_cite_it() -> None:
    items = re.split(r"^(\d+)\. ", (DOCS / "invariants.md").read_text(), flags=re.MULTILINE)[1:]
    numbers = [int(number) for number in items[::2]]
    assert numbers == list(range(1, len(numbers) + 1))
    named = {
        (number, path, test)
        for number, body in zip(numbers, items[1::2], strict=True)
        for path, test in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", body)
    }
    assert {number for number, _, _ in named} == set(numbers), "each names a test"
    assert set(citations()) == named


def citations() -> Iterator[tuple[int, str, str]]:
    """(number, file, test) of every ``pytest.mark.invariant``."""
    for path in (ROOT / "tests").rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            for mark in getattr(node, "decorator_list", ()):
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.invariant":
                    for number in mark.args:
                        yield ast.literal_eval(number), str(path.relative_to(ROOT)), node.name


def test_every_link_between_the_pages_leads_somewhere() -> None:
    broken = [
        f"{page.name}: {target}"
        for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.glob("*.md")]
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
        if not (page.parent / target).exists()
    ]
    assert broken == []
