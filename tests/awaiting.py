"""The synchronous face behind the asynchronous one's syntax, so that a contract test is written once.

``await checkpointer.put(…)``, ``async for``, ``async with`` and the groups work on both; no test asks which it is on.
Calls run on worker threads, so that tasks of one test really run side by side.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import Any

_END = object()


class Awaiting:
    """Stands for an object of the synchronous face; its methods give what can be awaited, iterated or entered."""

    def __init__(self, wrapped: Any) -> None:
        self._wrapped = wrapped

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._wrapped, name)
        if callable(value):
            return lambda *args, **kwargs: Call(lambda: value(*args, **kwargs))
        return Awaiting(value) if _is_group(value) else value

    async def __aenter__(self) -> Any:
        return _awaiting(await asyncio.to_thread(self._wrapped.__enter__))

    async def __aexit__(self, *failure: Any) -> Any:
        return await asyncio.to_thread(self._wrapped.__exit__, *failure)

    async def aclose(self) -> None:
        await asyncio.to_thread(self._wrapped.close)


class Call:
    """A call that has not been made yet: awaiting, iterating or entering it makes it."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._entered: Any = None

    def __await__(self) -> Generator[Any, None, Any]:
        return self._made().__await__()

    async def _made(self) -> Any:
        return _awaiting(await asyncio.to_thread(self._call))

    async def __aiter__(self) -> AsyncIterator[Any]:
        values: Iterator[Any] = iter(await asyncio.to_thread(self._call))
        while (value := await asyncio.to_thread(next, values, _END)) is not _END:
            yield value

    async def __aenter__(self) -> Any:
        self._entered = await asyncio.to_thread(self._call)
        return _awaiting(await asyncio.to_thread(self._entered.__enter__))

    async def __aexit__(self, *failure: Any) -> Any:
        return await asyncio.to_thread(self._entered.__exit__, *failure)


def executor(checkpointer: Any, **options: Any) -> Any:
    """The executor of a checkpointer's face, to be awaited on both."""
    from clew import AsyncSqlAgentExecutor, SqlAgentExecutor

    if isinstance(checkpointer, Awaiting):
        return Awaiting(SqlAgentExecutor(checkpointer._wrapped, **options))
    return AsyncSqlAgentExecutor(checkpointer, **options)


def _awaiting(result: Any) -> Any:
    """A result is handed on as it is, unless it is itself a part of the face, such as a recorder."""
    return Awaiting(result) if hasattr(result, "__enter__") and _is_ours(result) else result


def _is_group(value: Any) -> bool:
    return _is_ours(value) and not _module(value).startswith(("clew.records", "clew.errors"))


def _is_ours(value: Any) -> bool:
    return _module(value).partition(".")[0] == "clew"


def _module(value: Any) -> str:
    return type(value).__module__
