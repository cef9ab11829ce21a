"""A service with tables of its own that keeps its agents' checkpoints in the same database.

    DATABASE_URL=sqlite+aiosqlite:///service.db uvicorn --factory examples.fastapi_service:create_app

A message and the checkpoint after it are one transaction, and so is the row that tells other systems of it.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Query, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

import clew


class Base(DeclarativeBase):
    pass


class Outgoing(Base):
    """What other systems are to be told: the transactional outbox."""

    __tablename__ = "outbox"

    id: Mapped[int] = mapped_column(primary_key=True)
    topic: Mapped[str]
    checkpoint_id: Mapped[str]


class Message(BaseModel):
    text: str
    expected_head: str | None = None
    """The checkpoint that the sender has seen last; null for a new thread."""


class Record(BaseModel):
    checkpoint_id: str
    parent_checkpoint_id: str | None
    created_at: str | None


class History(BaseModel):
    items: list[Record]
    next_cursor: str | None


# The nearest class of an error's own counts, so Conflict stands for StaleHead, StaleFence and the rest of its kind.
STATUS: dict[type[Exception], int] = {
    clew.InvalidInput: 422,
    clew.NotFound: 404,
    clew.Conflict: 409,
    clew.StorageUnavailable: 503,
    clew.ClewError: 500,
}


def create_app(url: str | None = None) -> FastAPI:
    """The application over the database of ``url``, else of ``DATABASE_URL``."""
    engine = create_async_engine(url or os.environ["DATABASE_URL"])
    checkpointer = clew.AsyncCheckpointer[dict[str, Any]](engine)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with engine.begin() as connection:  # a service with Alembic does both in a revision of its own
            await connection.run_sync(Base.metadata.create_all)
            await connection.run_sync(clew.migrate.upgrade)
        async with checkpointer:
            yield
        await engine.dispose()

    app = FastAPI(lifespan=lifespan)
    app.state.engine, app.state.checkpointer = engine, checkpointer
    app.add_exception_handler(clew.ClewError, explain)
    app.add_api_route("/health", health)
    app.add_api_route("/threads/{thread_id}", read)
    app.add_api_route("/threads/{thread_id}/messages", say, methods=["POST"], status_code=201)
    app.add_api_route("/threads/{thread_id}/history", history)
    app.add_api_route("/outbox", outbox)
    return app


async def checkpointer_of(request: Request) -> clew.AsyncCheckpointer[dict[str, Any]]:
    found: clew.AsyncCheckpointer[dict[str, Any]] = request.app.state.checkpointer
    return found


async def session_of(request: Request) -> AsyncIterator[AsyncSession]:
    async with AsyncSession(request.app.state.engine) as session:
        yield session


Checkpoints = Annotated[clew.AsyncCheckpointer[dict[str, Any]], Depends(checkpointer_of)]
Database = Annotated[AsyncSession, Depends(session_of)]


async def say(thread_id: str, message: Message, checkpoints: Checkpoints, session: Database) -> Record:
    """Add a message, unless somebody else has spoken in between."""
    async with session.begin():
        bound = checkpoints.bind(session)
        latest = await bound.get(clew.CheckpointConfig.latest(thread_id))
        messages = [*(latest.state["messages"] if latest else []), message.text]
        stored = await bound.put(
            clew.Checkpoint(
                thread_id=thread_id,
                parent_checkpoint_id=latest.checkpoint_id if latest else None,
                state={"messages": messages},
            ),
            expected_head=message.expected_head,
        )
        assert stored.checkpoint_id is not None
        session.add(Outgoing(topic=thread_id, checkpoint_id=stored.checkpoint_id))
    return Record(
        checkpoint_id=stored.checkpoint_id,
        parent_checkpoint_id=latest.checkpoint_id if latest else None,
        created_at=None,
    )


async def read(thread_id: str, checkpoints: Checkpoints) -> dict[str, Any]:
    """The thread's latest state."""
    found = await checkpoints.get(clew.CheckpointConfig.latest(thread_id))
    if found is None:
        raise clew.NotFound(f"there is no thread {thread_id!r}")
    return found.state


async def history(
    thread_id: str,
    checkpoints: Checkpoints,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    cursor: str | None = None,
) -> History:
    """A page of the thread's checkpoints, newest first. No state is read for it."""
    page = await checkpoints.list(thread_id, limit=limit, cursor=cursor)
    items = [
        Record(
            checkpoint_id=item.checkpoint_id,
            parent_checkpoint_id=item.parent_checkpoint_id,
            created_at=item.created_at and item.created_at.isoformat(),
        )
        for item in page.items
    ]
    return History(items=items, next_cursor=page.next_cursor)


async def outbox(session: Database) -> list[str]:
    return list(await session.scalars(select(Outgoing.checkpoint_id).order_by(Outgoing.id)))


async def health(checkpoints: Checkpoints) -> dict[str, str]:
    await checkpoints.ping()
    return {"database": "ok"}


async def explain(_: Request, error: Exception) -> JSONResponse:
    """The status that belongs to the error. Its message holds no payload and no password, so it may be shown."""
    status = next(STATUS[cls] for cls in type(error).__mro__ if cls in STATUS)
    headers = {"Retry-After": "1"} if status == 503 else None
    return JSONResponse({"error": type(error).__name__, "detail": str(error)}, status, headers)
