"""Databases to measure on: SQLite files, and a Postgres from the wheel with its default, durable settings."""

from __future__ import annotations

import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import psycopg

sys.path.append(str(Path(__file__).parents[1] / "tests"))  # the server of the tests, with other settings

import postgres_server

__all__ = ["KINDS", "Databases", "kind_of", "path_of", "size", "vacuum"]

KINDS: Final = ("sqlite", "postgres")

# Postgres' defaults are durable, so nothing is said of fsync. Two cores need no JIT; sizes are left alone.
_SETTINGS: Final = {"max_connections": "100", "log_min_messages": "warning"}


class Databases:
    """Makes databases, each empty and with a URL of its own."""

    def __init__(self, folder: Path, server: postgres_server.Session) -> None:
        self._folder, self._server, self._numbers = folder, server, count(1)

    @classmethod
    @contextmanager
    def begin(cls) -> Iterator[Databases]:
        folder = Path(tempfile.mkdtemp(prefix="clew-benchmarks-"))
        server = postgres_server.Session.begin(_SETTINGS)
        try:
            yield cls(folder, server)
        finally:
            server.end()
            shutil.rmtree(folder, ignore_errors=True)

    @contextmanager
    def fresh(self, kind: str) -> Iterator[str]:
        """The URL of a new database, which goes away afterwards."""
        if kind == "postgres":
            with self._server.database() as url:
                yield url
        else:
            path = self._folder / f"{next(self._numbers)}.db"
            yield f"sqlite:///{path}"
            for rest in self._folder.glob(f"{path.name}*"):
                rest.unlink()


def kind_of(url: str) -> str:
    return "sqlite" if url.startswith("sqlite") else "postgres"


def path_of(url: str) -> str:
    return urlsplit(url).path[1:]


def size(url: str) -> int:
    """Bytes on disk: the whole file, or all tables with their indexes and what belongs to them."""
    if kind_of(url) == "sqlite":
        with closing(sqlite3.connect(path_of(url))) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return sum(file.stat().st_size for file in Path(path_of(url)).parent.glob(f"{Path(path_of(url)).name}*"))
    with psycopg.connect(url) as connection:
        row = connection.execute(
            "SELECT sum(pg_total_relation_size(oid)) FROM pg_class"
            " WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
        ).fetchone()
    return int(row[0]) if row else 0


def vacuum(url: str, options: str = "") -> None:
    """``VACUUM``, on Postgres with ``options``."""
    if kind_of(url) == "sqlite":
        with closing(sqlite3.connect(path_of(url))) as connection:
            connection.execute("VACUUM")
    else:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f"VACUUM {options}".encode())
