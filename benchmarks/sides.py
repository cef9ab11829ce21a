"""The two sides of a comparison, asked for the same things: clew as it is, and any LangGraph saver, clew's too."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, Protocol

from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

import clew
from benchmarks.databases import kind_of, path_of
from benchmarks.timing import settled
from clew.langgraph import AsyncClewSaver, ClewSaver

__all__ = ["ClewSide", "SaverSide", "Side", "checkpointer", "clew_saver", "langgraph_saver"]


class Side(Protocol):
    """Keeps threads of messages."""

    async def put(self, thread: str, step: int, messages: list[Any]) -> None:
        """Store a checkpoint with these messages, durably."""

    async def latest(self, thread: str) -> list[Any]:
        """The messages of the thread's latest checkpoint."""

    async def list(self, thread: str, limit: int) -> int:
        """How many records of the thread's newest checkpoints were listed."""


class ClewSide:
    """clew's own interface, on either face."""

    def __init__(self, checkpointer: Any) -> None:
        self._checkpointer = checkpointer

    async def put(self, thread: str, step: int, messages: list[Any]) -> None:
        await settled(
            self._checkpointer.put(
                clew.Checkpoint(
                    thread_id=thread, state={"messages": messages}, metadata={"source": "loop", "step": step}
                )
            )
        )

    async def latest(self, thread: str) -> list[Any]:
        found = await settled(self._checkpointer.get_tuple(clew.CheckpointConfig.latest(thread)))
        return list(found.checkpoint.state["messages"])

    async def list(self, thread: str, limit: int) -> int:
        return len((await settled(self._checkpointer.list(thread, limit=limit))).items)


class SaverSide:
    """A LangGraph saver, called as a graph's loop calls it: a version for each change, the parent in the config."""

    def __init__(self, saver: Any, face: str) -> None:
        self._saver, self._face = saver, face
        self._heads: dict[str, tuple[Any, Any]] = {}

    async def put(self, thread: str, step: int, messages: list[Any]) -> None:
        config, version = self._heads.get(thread) or (_config(thread), None)
        version = self._saver.get_next_version(version, None)
        checkpoint = empty_checkpoint() | {
            "v": 4,  # as a graph of today writes it, without the sends that version 2 kept
            "channel_values": {"messages": messages},
            "channel_versions": {"messages": version},
        }
        checkpoint.pop("pending_sends", None)
        metadata = {"source": "loop", "step": step, "parents": {}}
        put = self._saver.put if self._face == "sync" else self._saver.aput
        config = await settled(put(config, checkpoint, metadata, {"messages": version}))
        self._heads[thread] = config, version

    async def latest(self, thread: str) -> list[Any]:
        get = self._saver.get_tuple if self._face == "sync" else self._saver.aget_tuple
        found = await settled(get(_config(thread)))
        return list(found.checkpoint["channel_values"]["messages"])

    async def list(self, thread: str, limit: int) -> int:
        config = _config(thread)
        if self._face == "sync":
            return sum(1 for _ in self._saver.list(config, limit=limit))
        return len([found async for found in self._saver.alist(config, limit=limit)])


def _config(thread: str) -> dict[str, Any]:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}


@asynccontextmanager
async def checkpointer(url: str, face: str, **options: Any) -> AsyncIterator[Any]:
    """An open checkpointer of that face."""
    if face == "async":
        async with clew.AsyncCheckpointer.open(url, migrate=True, **options) as opened:
            yield opened
    else:
        with clew.Checkpointer.open(url, migrate=True, **options) as opened:
            yield opened


def clew_saver(url: str, face: str) -> AbstractAsyncContextManager[Any]:
    """clew's saver for LangGraph, set up."""
    return _set_up(AsyncClewSaver.from_url(url) if face == "async" else ClewSaver.from_url(url), face)


def langgraph_saver(url: str, face: str) -> AbstractAsyncContextManager[Any]:
    """LangGraph's own saver for that database, set up. Its SQLite is durable by the driver's defaults."""
    if kind_of(url) == "sqlite":
        on_sqlite = AsyncSqliteSaver if face == "async" else SqliteSaver
        return _set_up(on_sqlite.from_conn_string(path_of(url)), face)
    on_postgres = AsyncPostgresSaver if face == "async" else PostgresSaver
    return _set_up(on_postgres.from_conn_string(url), face)


@asynccontextmanager
async def _set_up(opening: Any, face: str) -> AsyncIterator[Any]:
    async with AsyncExitStack() as stack:
        if face == "async":
            saver = await stack.enter_async_context(opening)
        else:
            saver = stack.enter_context(opening)
        await settled(saver.setup())
        yield saver
