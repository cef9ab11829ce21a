"""The layers of CONTRIBUTING.md, held by reading the imports of every module; nothing is imported for it but clew."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Final, NamedTuple

import pytest

SOURCE: Final = Path(__file__).parents[2] / "src" / "clew"

# A module may import its own layer and those below. What is not named here has no place yet.
LAYERS: Final = (
    {"errors"},
    {"ids", "records"},
    {"codec", "structure", "tables"},
    {"dialects"},
    {"repository"},
    {"engine", "migrate"},
    {"async_checkpointer", "checkpointer", "drivers", "executor", "flows", "groups", "recorder"},
    {"cli", "langgraph"},
)
LAYER_OF: Final = {name: number for number, layer in enumerate(LAYERS) for name in layer}

# Optional extras, drivers, and Alembic, whose import takes longer than all of clew's.
IMPORTED_LATE: Final = {
    "aiosqlite",
    "alembic",
    "asyncpg",
    "langchain_core",
    "langgraph",
    "psycopg",
    "rich",
    "typer",
}

# Parts of SQLAlchemy that not everybody needs; together they take as long to import as half of clew.
SQLALCHEMY_LATE: Final = {
    "sqlalchemy.dialects.postgresql",
    "sqlalchemy.dialects.sqlite",
    "sqlalchemy.ext.asyncio",
    "sqlalchemy.orm",
}


class Import(NamedTuple):
    importer: str
    line: int
    imported: str
    where: str  # "module", "function" or "typing"

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.imported}"


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path, known: set[str]) -> Iterator[Import]:
    importer = module_name(path)

    def visit(node: ast.AST, where: str) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            yield from (Import(importer, node.lineno, alias.name, where) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{importer}:{node.lineno}: imports are absolute"
            source = node.module or ""
            names = {f"{source}.{alias.name}" for alias in node.names}
            yield from (Import(importer, node.lineno, name, where) for name in sorted((names & known) or {source}))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            where = "function"
        elif isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            where = "typing"
        for child in ast.iter_child_nodes(node):
            yield from visit(child, where)

    yield from visit(ast.parse(path.read_text()), "module")


PATHS: Final = sorted(SOURCE.rglob("*.py"))
MODULES: Final = {module_name(path) for path in PATHS}
IMPORTS: Final = [found for path in PATHS for found in imports(path, MODULES)]
OWN: Final = [found for found in IMPORTS if found.imported.split(".")[0] == "clew"]


# What applications import, and what the command line puts together, is not held against this tree.
PUBLIC: Final = {"clew", "clew.langgraph", "clew.migrate", "clew.cli.__main__"}


def exports(path: Path) -> tuple[set[str], set[str]]:
    """(``__all__``, the names that annotations in the module need besides, and the commands of a command's module)."""
    exported: set[str] = set()
    named = {"COMMANDS"}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            exported = set(ast.literal_eval(node.value))
        for annotation in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            if annotation is not None:
                named |= {found.id for found in ast.walk(annotation) if isinstance(found, ast.Name)}
    return exported, named


def uses() -> Iterator[tuple[str, str, str]]:
    """(importer, module, name) for every name that is imported from a module here, or read off one."""
    root = SOURCE.parents[1]
    folders = (SOURCE, *(root / name for name in ("tests", "benchmarks", "docs", "examples")))
    for path in (path for folder in folders for path in sorted(folder.rglob("*.py"))):
        importer = module_name(path) if path.is_relative_to(SOURCE) else str(path)
        tree, modules = ast.parse(path.read_text()), dict[str, str]()
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module in MODULES:
                for alias in node.names:
                    if (module := f"{node.module}.{alias.name}") in MODULES:
                        modules[alias.asname or alias.name] = module
                    else:
                        yield importer, node.module, alias.name
            elif isinstance(node, ast.Import):
                modules |= {alias.asname: alias.name for alias in node.names if alias.asname and alias.name in MODULES}
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
                yield importer, modules[node.value.id], node.attr


USED: Final = set(uses())


def part(module: str) -> str:
    """``clew.repository.writes`` is of the part ``repository``; the package's own front page is of none."""
    return module.split(".")[1] if "." in module else ""


def layer(module: str) -> int:
    return LAYER_OF.get(part(module), len(LAYERS))


def test_every_module_has_a_layer_and_every_name_of_a_layer_is_a_module() -> None:
    assert {part(module) for module in MODULES} - {""} == set(LAYER_OF)


def test_contributing_names_every_part_in_the_row_of_its_layer() -> None:
    text = (SOURCE.parents[1] / "CONTRIBUTING.md").read_text()
    rows = re.findall(r"^\| (\d) \| [^|]*\| ([^|]*) \|$", text, re.MULTILINE)
    named = {int(number): set(re.findall(r"`(\w+)(?:\.py|/)`", where)) for number, where in rows}
    assert named == dict(enumerate(LAYERS))


def test_what_is_the_same_on_both_databases_never_asks_which_it_is_on() -> None:
    same = {"records", "codec", "structure", "repository", *LAYERS[6]}
    asking = [
        f"{module_name(path)}:{node.lineno}"
        for path in PATHS
        if part(module_name(path)) in same
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Compare)
        for operand in (node.left, *node.comparators)
        if isinstance(operand, ast.Constant) and operand.value in ("sqlite", "postgresql", "asyncpg", "psycopg")
    ]
    assert asking == []


def test_no_unit_leaves_a_result_half_read() -> None:
    """On SQLite a statement that is not at its end holds its snapshot, and the connection's next write fails."""
    ends = {"all", "first", "one", "one_or_none", "rowcount", "scalar", "scalar_one", "scalar_one_or_none"}
    half = []
    for path in PATHS:
        if part(module_name(path)) not in {"repository", "flows", "langgraph"}:
            continue
        tree = ast.parse(path.read_text())
        above = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or ast.unparse(node.func) != "connection.execute":
                continue
            chain, last = node, ""
            while isinstance(end := above[chain], ast.Attribute) or (isinstance(end, ast.Call) and end.func is chain):
                chain, last = end, end.attr if isinstance(end, ast.Attribute) else last
            if last not in ends and not isinstance(end, ast.Expr | ast.withitem):
                half.append(f"{module_name(path)}:{node.lineno}")
    assert half == []


@pytest.mark.invariant(33)
def test_no_module_imports_a_layer_above_its_own() -> None:
    upwards = [str(found) for found in OWN if part(found.importer) and layer(found.importer) < layer(found.imported)]
    assert upwards == []


def test_the_front_page_imports_no_layer_above_the_faces() -> None:
    assert [str(found) for found in OWN if not part(found.importer) and layer(found.imported) > 6] == []


def test_no_two_modules_import_each_other_by_any_way_round() -> None:
    graph: dict[str, set[str]] = {module: set() for module in MODULES}
    for found in OWN:
        if found.where == "module":
            graph[found.importer].add(found.imported)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as cycle:
        pytest.fail(" → ".join(cycle.args[1]))


def test_what_a_module_exports_is_what_others_import_from_it() -> None:
    wrong = []
    for module, path in zip(map(module_name, PATHS), PATHS, strict=True):
        exported, named = exports(path)
        inside = {name for importer, source, name in USED if source == module and importer in MODULES}
        missing = inside - exported
        if module not in PUBLIC:
            idle = exported - named - {name for _, source, name in USED if source == module}
            missing |= {f"{name}, which nobody imports" for name in idle}
        wrong += [f"{module}: {name}" for name in sorted(missing)]
    assert wrong == []


def test_whatever_is_imported_is_asked_for_by_name() -> None:
    project = tomllib.loads((SOURCE.parents[1] / "pyproject.toml").read_text())["project"]
    extras = [name for name in project["optional-dependencies"] if name != "dev"]
    asked = [*project["dependencies"], *(one for name in extras for one in project["optional-dependencies"][name])]
    declared = {distribution(requirement) for requirement in asked}
    known = packages_distributions()
    # compression is the standard library's from Python 3.14 on, pydantic_core a part of pydantic.
    own = {"clew", "compression", "pydantic_core", *sys.stdlib_module_names}
    foreign = {found.imported.split(".")[0] for found in IMPORTS} - own
    assert {name for name in foreign if not declared & set(map(distribution, known[name]))} == set()


def distribution(requirement: str) -> str:
    [name] = re.findall(r"^[\w.-]+", requirement)
    return re.sub(r"[-_.]+", "-", str(name)).lower()


def test_only_extras_drivers_and_alembic_are_imported_inside_functions() -> None:
    late = [found for found in IMPORTS if found.where == "function"]
    late = [found for found in late if not found.imported.startswith("clew.langgraph")]  # it needs an extra
    late = [found for found in late if found.imported not in SQLALCHEMY_LATE]
    assert [str(found) for found in late if found.imported.split(".")[0] not in IMPORTED_LATE] == []


def test_what_is_optional_or_slow_is_imported_at_the_top_of_adapters_only() -> None:
    adapters = ("clew.cli", "clew.langgraph")
    early = [found for found in IMPORTS if found.where == "module" and not found.importer.startswith(adapters)]
    assert [str(found) for found in early if found.imported.split(".")[0] in IMPORTED_LATE] == []


@pytest.mark.invariant(34)
def test_importing_clew_loads_no_driver_no_alembic_and_no_langgraph() -> None:
    late = sorted(IMPORTED_LATE)
    late += sorted(SQLALCHEMY_LATE)
    script = f"import sys, clew; print([name for name in {late} if name in sys.modules])"
    printed = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert printed.stdout == "[]\n"
