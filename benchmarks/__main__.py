"""``python -m benchmarks``: runs the subjects in their order and prints the table."""

from __future__ import annotations

import argparse
import asyncio
import platform
import signal
import sqlite3
import sys
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from pathlib import Path
from typing import Final

import psycopg

from benchmarks import (
    concurrency,
    conversation,
    crowds,
    graphs,
    host,
    retention,
    runs,
    steadiness,
    timeline,
    trajectories,
)
from benchmarks.databases import Databases
from benchmarks.report import Report, write_between_markers
from benchmarks.scale import FULL, QUICK, SMALLEST, Scale

Subject = Callable[[Report, Databases, Scale], Awaitable[None]]

_ROOT: Final = Path(__file__).parents[1]
_SHARED: Final = _ROOT.parent / "shared" / "data" / "airline_runs.jsonl"
_TRAJECTORIES: Final = "trajectories"

SUBJECTS: Final[dict[str, Subject]] = {
    "conversation": conversation.run,
    "steadiness": steadiness.run,
    "concurrency": concurrency.run,
    "crowds": crowds.run,
    "host": host.run,
    "timeline": timeline.run,
    "retention": retention.run,
    "runs": runs.run,
    "graphs": graphs.run,
}


def main() -> int:
    arguments = _arguments()
    report = Report(judged=arguments.scale is FULL)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the server is stopped, too
    with Databases.begin() as databases:
        caption = _caption(databases, arguments.scale)
        try:
            asyncio.run(_measure(report, databases, arguments))
        finally:  # what was measured until then is worth seeing
            if arguments.markdown:
                print(f"{caption}\n\n{report.markdown()}")
            else:
                report.show()
    if arguments.readme:
        write_between_markers(_ROOT / "README.md", f"{caption}\n\n{report.markdown()}")
    missed = sum(line.met is False for line in report.lines)
    print(f"{len(report.lines)} lines, {missed} bars missed", file=sys.stderr)
    return 0


async def _measure(report: Report, databases: Databases, arguments: argparse.Namespace) -> None:
    for name, subject in SUBJECTS.items():
        if arguments.only is None or name in arguments.only:
            await subject(report, databases, arguments.scale)
        if name == "conversation" and (arguments.only is None or _TRAJECTORIES in arguments.only):
            if arguments.trajectories.exists():
                await trajectories.run(report, databases, arguments.scale, arguments.trajectories)
            else:
                print(f"no {arguments.trajectories}: trajectories are left out", file=sys.stderr)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="clew and LangGraph's savers over the same threads, in one run."
    )
    parser.add_argument(
        "trajectories",
        nargs="?",
        type=Path,
        default=_SHARED,
        help="a file of runs, one JSON object with run_id and messages a line",
    )
    sizes = parser.add_mutually_exclusive_group()
    sizes.add_argument("--quick", dest="scale", action="store_const", const=QUICK, default=FULL, help="smaller sizes")
    sizes.add_argument(
        "--smallest", dest="scale", action="store_const", const=SMALLEST, help="only to see that it runs"
    )
    parser.add_argument("--only", nargs="+", choices=[*SUBJECTS, _TRAJECTORIES], help="these subjects")
    parser.add_argument("--markdown", action="store_true", help="print Markdown")
    parser.add_argument("--readme", action="store_true", help="write the table into README.md, between its markers")
    return parser.parse_args()


def _caption(databases: Databases, scale: Scale) -> str:
    with databases.fresh("postgres") as url, psycopg.connect(url) as connection:
        server = connection.info.server_version // 10000
        settings = [connection.execute(f"SHOW {name}".encode()).fetchone() for name in ("fsync", "synchronous_commit")]
    durable = (
        "durable on both sides" if all(row == ("on",) for row in settings) else "on a Postgres that is not durable"
    )
    releases = ", ".join(f"{name} {version(f'langgraph-checkpoint-{name}')}" for name in ("sqlite", "postgres"))
    return (
        f"Medians of a {scale.name} run, {durable}, both sides in turn: Python {platform.python_version()}, "
        f"SQLite {sqlite3.sqlite_version}, Postgres {server}; langgraph-checkpoint-{releases}. "
        "LangGraph's savers skip the puts between the last two marks, which do not change what the last costs. "
        "`make bench` prints this table."
    )


if __name__ == "__main__":
    sys.exit(main())
