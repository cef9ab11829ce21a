"""The flow of a boundary: checkpoint, evidence and run at once. The executors that callers use are in ``executor``."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from sqlalchemy import Connection

from clew.errors import InvalidInput
from clew.flows.steps import Core, Flow, Step, Turn
from clew.records import AgentCheckpoint
from clew.repository.keys import check_thread_id, namespace_of, namespace_text
from clew.repository.runs.boundaries import (
    Committed,
    Decision,
    Policy,
    RememberedRun,
    commit,
    fast_commit,
    prepare_boundary,
)
from clew.repository.store import Fence

__all__ = ["ExecutorFlows"]

_RUNS: Final = 1024


class ExecutorFlows:
    """Boundaries over one core, for one policy. Remembers the runs it brought forward last, up to 1,024 of them."""

    def __init__(self, core: Core, policy: Policy, namespace: Iterable[str], lease_token: int | None) -> None:
        self.core = core
        self._policy = policy
        self._text = namespace_text(namespace)
        self._namespace = namespace_of(self._text)
        self._fence = Fence(lease_token)
        self._runs: OrderedDict[tuple[str, str], RememberedRun] = OrderedDict()
        self._guard = threading.Lock()

    def checkpoint(self, checkpoint: AgentCheckpoint) -> Flow[Decision]:
        """One statement where memory suffices and the version is the remembered one, else the locked way."""
        if not isinstance(checkpoint, AgentCheckpoint):
            raise InvalidInput(f"an executor takes an AgentCheckpoint, not {type(checkpoint).__name__}")
        core, policy, fence = self.core, self._policy, self._fence
        thread_id = check_thread_id(checkpoint.conversation_id)
        known = core.memory.get(thread_id)
        hint = known.base(self._text, None) if known else None
        boundary = prepare_boundary(core.store.codec, checkpoint, self._namespace, hint.root if hint else None)
        doing = f"commit checkpoint {checkpoint.checkpoint_id!r} of run {checkpoint.run_id!r}"
        yield Turn(thread_id)
        memory, run = core.memory.get(thread_id), self._runs.get((thread_id, checkpoint.run_id))
        committed: Committed | None = None
        if core.store.dialect.puts_alone and memory is not None and run is not None:
            thread, remembered = memory, run

            def fast(connection: Connection) -> Committed | None:
                return fast_commit(core.store, connection, boundary, policy, fence, thread, remembered)

            committed = yield Step(fast, "statement", doing)
        if committed is None:

            def locked(connection: Connection) -> Committed:
                return commit(core.store, connection, boundary, policy, fence, memory, run)

            committed = yield Step(locked, "write", doing)
        assert committed is not None
        if committed.memory is not None:
            core.memory.publish(thread_id, committed.memory)
        if committed.run is not None:
            self._remember((thread_id, checkpoint.run_id), committed.run)
        return committed.decision

    def _remember(self, key: tuple[str, str], run: RememberedRun) -> None:
        with self._guard:
            self._runs.pop(key, None)
            self._runs[key] = run
            while len(self._runs) > _RUNS:
                self._runs.popitem(last=False)
