"""Subject: getting space back. A long thread, pruned to its last 10 and compacted, is weighed against a fresh one."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

from benchmarks.databases import KINDS, Databases, size, vacuum
from benchmarks.messages import Messages
from benchmarks.report import Report
from benchmarks.scale import Scale
from benchmarks.sides import ClewSide, checkpointer
from benchmarks.timing import milliseconds, timed

__all__ = ["run"]

_KEPT = 10


async def run(report: Report, databases: Databases, scale: Scale) -> None:
    """A state that only grows, and one that keeps its last 20 messages, on both databases."""
    messages = Messages().take(scale.prunable)
    for kind in KINDS:
        for name, states in (
            ("appends", [messages[: step + 1] for step in range(scale.prunable)]),
            ("the last 20 messages", [messages[max(0, step - 19) : step + 1] for step in range(scale.prunable)]),
        ):
            await _on(report, databases, kind, name, states)


async def _on(report: Report, databases: Databases, kind: str, name: str, states: list[Any]) -> None:
    async with AsyncExitStack() as stack:
        urls = [stack.enter_context(databases.fresh(kind)) for _ in range(2)]
        async with checkpointer(urls[0], "sync") as opened:
            for step, state in enumerate(states):
                await ClewSide(opened).put("thread", step, state)
            before = size(urls[0])
            prune = await timed(lambda: opened.retention.prune("thread", keep_last=_KEPT))
            compact = await timed(lambda: opened.retention.compact("thread"))
        async with checkpointer(urls[1], "sync") as opened:
            for step, state in enumerate(states[-_KEPT:]):
                await ClewSide(opened).put("thread", step, state)
        for url in urls:
            vacuum(url, "FULL")
        pruned, fresh = size(urls[0]), size(urls[1])
    report.figure(
        f"bytes after prune of {len(states):,} to {_KEPT}, compact and VACUUM, over a fresh thread ({name})",
        kind,
        pruned / fresh,
        "×",
        ours=f"{before / 1024:,.0f} → {pruned / 1024:,.0f} kB, "
        f"prune {milliseconds(prune)} ms, compact {milliseconds(compact)} ms",
        at_most=1.3,
    )
