"""Statements and operations over a connection: plain functions that never commit and never learn how they are run.

Each takes a ``Store`` (tables, dialect, codec) and an SQLAlchemy ``Connection`` with a transaction of the caller's:
READ COMMITTED on Postgres, begun with ``BEGIN IMMEDIATE`` on SQLite where the operation writes. A function that
changes a thread locks its version row first (``locking``); one that reads gives consistent results either way.
"""

from clew.repository.fetching import StateReader, get_tuple, get_writes
from clew.repository.lineage import ancestors, children, common_ancestor, heads, history, tree
from clew.repository.listing import Filters, list_checkpoints
from clew.repository.memory import DEFAULT_MEMORY_BYTES, Memory
from clew.repository.putting import NOT_CHECKED, ExpectedHead, Put, PutOutcome, fast_put, put
from clew.repository.request import PutRequest, prepare, prepare_writes
from clew.repository.staging import StagedMemory
from clew.repository.statistics import thread_statistics
from clew.repository.store import Fence, Store
from clew.repository.threads import (
    delete_checkpoints,
    delete_run,
    delete_thread,
    get_thread,
    list_threads,
    threads_of_run,
)
from clew.repository.timeline.copying import copy_thread
from clew.repository.timeline.differing import diff
from clew.repository.timeline.forking import fork
from clew.repository.timeline.snapshots import as_of, at_step, channel_history, get_state, resume_point, state_history
from clew.repository.timeline.updating import Reducer, update_states
from clew.repository.writes import put_writes

__all__ = [
    "DEFAULT_MEMORY_BYTES",
    "NOT_CHECKED",
    "ExpectedHead",
    "Fence",
    "Filters",
    "Memory",
    "Put",
    "PutOutcome",
    "PutRequest",
    "Reducer",
    "StagedMemory",
    "StateReader",
    "Store",
    "ancestors",
    "as_of",
    "at_step",
    "channel_history",
    "children",
    "common_ancestor",
    "copy_thread",
    "delete_checkpoints",
    "delete_run",
    "delete_thread",
    "diff",
    "fast_put",
    "fork",
    "get_state",
    "get_thread",
    "get_tuple",
    "get_writes",
    "heads",
    "history",
    "list_checkpoints",
    "list_threads",
    "prepare",
    "prepare_writes",
    "put",
    "put_writes",
    "resume_point",
    "state_history",
    "thread_statistics",
    "threads_of_run",
    "tree",
    "update_states",
]
