"""What is published is the wheel: it is built, installed by itself, and used from another folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path
from typing import Final

import pytest

pytestmark = pytest.mark.wheel

ROOT: Final = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs' folder of an environment that has the wheel; what it depends on is borrowed from this one."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    site = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder), "platbase": str(folder)}))
    run(sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--prefix", folder, "--ignore-installed", wheel)
    # Behind its own folder in the order of imports, and without this one's .pth files: an editable clew stays unseen.
    (site / "borrowed.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return folder / "bin"


def run(*command: str | Path, cwd: Path | None = None) -> str:
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "CLEW_URL")}
    done = subprocess.run(command, cwd=cwd, env=clean, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_wheel_holds_the_package_the_migrations_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    revisions = [path.name for path in (ROOT / "migrations" / "versions").glob("*.py")]
    assert revisions
    assert {f"clew/migrations/versions/{name}" for name in revisions} <= set(names)
    assert {"clew/migrations/env.py", "clew/py.typed"} <= set(names)
    assert [name for name in names if not re.match(r"clew/|clew-[\d.]+\.dist-info/", name)] == []
    assert [name for name in names if "__pycache__" in name or name.endswith(".pyc")] == []


def test_the_installed_wheel_is_not_the_checkout(environment: Path, tmp_path: Path) -> None:
    found = run(environment / "python", "-c", "import clew; print(clew.__file__)", cwd=tmp_path)
    assert Path(found.strip()).is_relative_to(environment.parent)


def test_the_installed_wheel_migrates_from_another_folder(environment: Path, tmp_path: Path) -> None:
    script = (
        "from sqlalchemy import create_engine; from clew import migrate\n"
        "with create_engine('sqlite:///run.db').begin() as connection:\n"
        "    migrate.upgrade(connection)\n"
        "    print(migrate.current(connection))\n"
    )
    assert run(environment / "python", "-c", script, cwd=tmp_path) == "0001\n"
    assert (tmp_path / "run.db").exists()


def test_the_installed_command_migrates_from_another_folder(environment: Path, tmp_path: Path) -> None:
    run(environment / "clew", "migrate", "--url", "sqlite:///run.db", cwd=tmp_path)
    run(environment / "clew", "migrate", "--check", "--url", "sqlite:///run.db", cwd=tmp_path)
    assert (tmp_path / "run.db").exists()


def test_the_installed_demo_finds_its_sample_run(environment: Path, tmp_path: Path) -> None:
    assert "Recorded 18 checkpoints" in run(environment / "clew", "demo", cwd=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_installed_command_records_from_another_folder(environment: Path, tmp_path: Path) -> None:
    (tmp_path / "chat.json").write_text('[{"role": "user", "content": "hello"}]')
    run(environment / "clew", "migrate", "--url", "sqlite:///run.db", cwd=tmp_path)
    recorded = run(environment / "clew", "record", "chat.json", "--url", "sqlite:///run.db", cwd=tmp_path)
    assert recorded == "recorded 1 checkpoint of 1 run\n"
