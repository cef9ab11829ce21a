"""Opening databases and running units of work on them; the last layer that knows a driver. No record stands here."""

from __future__ import annotations

from clew.engine.awaited import AsyncDatabase, AwaitedDatabase, ThreadedDatabase
from clew.engine.bound import AwaitedBoundDatabase, BoundDatabase, bound_async, bound_sync
from clew.engine.database import Mode, SyncDatabase
from clew.engine.opening import open_async, open_sync, wrap_async, wrap_sync
from clew.engine.options import EngineOptions
from clew.engine.sqlite import is_missing
from clew.engine.urls import parse

__all__ = [
    "AsyncDatabase",
    "AwaitedBoundDatabase",
    "AwaitedDatabase",
    "BoundDatabase",
    "EngineOptions",
    "Mode",
    "SyncDatabase",
    "ThreadedDatabase",
    "bound_async",
    "bound_sync",
    "is_missing",
    "open_async",
    "open_sync",
    "parse",
    "wrap_async",
    "wrap_sync",
]
