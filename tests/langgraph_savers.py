"""Opening clew's savers in tests, the synchronous one and the asynchronous one in the same way."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from clew.langgraph import AsyncClewSaver, ClewSaver


@asynccontextmanager
async def opened(url: str, face: str, **options: Any) -> AsyncIterator[Any]:
    if face == "async":
        async with AsyncClewSaver.from_url(url, **options) as saver:
            await saver.setup()
            yield saver
    else:
        with ClewSaver.from_url(url, **options) as saver:
            saver.setup()
            yield saver
