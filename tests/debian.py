"""Debian's Postgres and PgBouncer, started and stopped by the tests of ``tests/services``; installed by the Makefile.

The server keeps its defaults for durability, unlike the one of ``postgres_server``: here it is crashed.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any, Final

import psycopg

IDENTITY: Final[dict[str, Any]] = {"user": "nobody", "extra_groups": []} if os.geteuid() == 0 else {}


def programs() -> Path:
    """The folder of the newest version that is installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: float(path.parent.name))
    if not found:
        raise RuntimeError("no Debian Postgres is installed: make test-services")
    return found[-1]


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


class Postgres:
    """A server in ``root``, which also holds its socket. ``tls`` has it accept nothing else over TCP."""

    def __init__(self, root: Path, *, tls: bool = False) -> None:
        self.root, self.data, self.log, self.port = root, root / "data", root / "log", free_port()
        for path in (root, self.data):
            path.mkdir(exist_ok=True)
        self.data.chmod(0o700)
        self.log.touch()
        self._hand_over(root, self.data, self.log)
        self._run("initdb", "-U", "postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync")
        self._settings = {
            "port": str(self.port),
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": str(root),
            "max_connections": "100",
        }
        if tls:
            self._settings |= {"ssl": "on"}
            self._certificate()
        self.start()

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    @property
    def socket_url(self) -> str:
        return f"postgresql://postgres@/postgres?host={self.root}&port={self.port}"

    def start(self) -> None:
        given = " ".join(f"-c {name}='{value}'" for name, value in self._settings.items())
        self._run("pg_ctl", "-w", "start", "-l", str(self.log), "-o", given)

    def stop(self, mode: str = "immediate") -> None:
        self._run("pg_ctl", "-w", "stop", "-m", mode)

    def database(self, name: str) -> str:
        """A new database's URL."""
        with psycopg.connect(self.socket_url, autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}"'.encode())
        return self.url.replace("/postgres", f"/{name}").replace(f"//{name}", "//postgres")

    def _certificate(self) -> None:
        """One of its own signing, for localhost only; and another that has nothing to do with it."""
        for name in ("server", "stranger"):
            subprocess.run(
                [
                    *("openssl", "req", "-new", "-x509", "-days", "2", "-nodes", "-subj", "/CN=localhost"),
                    *("-addext", "subjectAltName=DNS:localhost", "-keyout", f"{name}.key", "-out", f"{name}.crt"),
                ],
                check=True,
                cwd=self.root,
                capture_output=True,
            )
        for name in ("server.key", "server.crt"):
            kept = self.data / name
            shutil.copy(self.root / name, kept)
            kept.chmod(0o600)
            self._hand_over(kept)
        access = self.data / "pg_hba.conf"
        access.write_text("local all all trust\nhostssl all all 127.0.0.1/32 trust\n")

    def _hand_over(self, *paths: Path) -> None:
        for path in paths if IDENTITY else ():
            shutil.chown(path, IDENTITY["user"])

    def _run(self, program: str, *arguments: str) -> None:
        # Into a file: the server inherits what pg_ctl writes to, and a pipe would stay open as long as it runs.
        with (self.root / f"{program}.out").open("w+") as output:
            done = subprocess.run(
                [programs() / program, "-D", self.data, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd="/",
                timeout=90,
                **IDENTITY,
            )
            output.seek(0)
            assert done.returncode == 0, output.read() + self.log.read_text()


class PgBouncer:
    """PgBouncer in transaction mode before ``server``, with fewer server connections than it is asked for."""

    def __init__(self, root: Path, server: Postgres, **settings: str) -> None:
        root.mkdir()
        self.port = free_port()
        lines = {
            "listen_addr": "127.0.0.1",
            "listen_port": str(self.port),
            "unix_socket_dir": "",
            "auth_type": "any",
            "pool_mode": "transaction",
            "default_pool_size": "4",
            "logfile": str(root / "log"),
            "pidfile": str(root / "pid"),
            **settings,
        }
        configuration = root / "pgbouncer.ini"
        configuration.write_text(
            f"[databases]\n* = host=127.0.0.1 port={server.port} user=postgres\n[pgbouncer]\n"
            + "".join(f"{name} = {value}\n" for name, value in lines.items())
        )
        if IDENTITY:
            shutil.chown(root, IDENTITY["user"])
        program = shutil.which("pgbouncer") or "/usr/sbin/pgbouncer"
        self._process = subprocess.Popen(
            [program, configuration], cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **IDENTITY
        )
        deadline = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                assert self._process.poll() is None, (root / "log").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.05)

    def url(self, database: str) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(20)
