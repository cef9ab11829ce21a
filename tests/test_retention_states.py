"""Any sequence of puts, forks, merges, deletes, prunes, compactions, exports and imports, on both databases.

A plain dict says what must be there; after every step everything reads back as it was and the thread verifies clean.
``make soak`` runs many more of them.
"""

from __future__ import annotations

import io
import shutil
import tempfile
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

import clew
from clew import Checkpoint, CheckpointConfig, PendingWrite

from probe import Probe
from states import STATES, edits, same

WRITERS = st.integers(0, 1)
PICKS = st.integers(0, 10**6)


@dataclass
class Stored:
    """What the model knows of a checkpoint."""

    state: Any
    parent: str | None
    run: str | None = None
    writes: list[Any] = field(default_factory=list)


class Retained(RuleBasedStateMachine):
    """Two clients with a memory of their own work on one thread."""

    new_database: ClassVar[Callable[[], tuple[str, Callable[[], None]]]]

    def __init__(self) -> None:
        super().__init__()
        self.url, self.drop = type(self).new_database()
        self.probe = Probe(self.url)
        self.clients = [clew.Checkpointer.open(self.url) for _ in range(2)]
        self.stored: dict[str, Stored] = {}
        self.numbers = 0

    def teardown(self) -> None:
        for client in self.clients:
            client.close()
        self.drop()

    def pick(self, number: int) -> str | None:
        return list(self.stored)[number % len(self.stored)] if self.stored else None

    def put(self, client: int, state: Any, parent: str | None, checkpoint_id: str | None = None) -> None:
        if checkpoint_id is None:
            self.numbers += 1
            checkpoint_id = f"c{self.numbers}"
        known = self.stored.pop(checkpoint_id, None)
        run = known.run if known else f"r{self.numbers // 3}"
        self.clients[client].put(
            Checkpoint(thread_id="t", checkpoint_id=checkpoint_id, parent_checkpoint_id=parent, run_id=run, state=state)
        )
        self.stored[checkpoint_id] = Stored(deepcopy(state), parent, run, known.writes if known else [])

    def remove(self, victims: set[str]) -> None:
        parents = {name: self.stored[name].parent for name in victims}
        for name in victims:
            del self.stored[name]
        for name, left in self.stored.items():
            seen = set[str]()
            while left.parent in parents and left.parent not in seen:
                seen.add(left.parent)
                left.parent = parents[left.parent]
            if left.parent in parents or (seen and left.parent == name):
                left.parent = None

    @initialize(state=STATES)
    def begin(self, state: Any) -> None:
        self.put(0, state, None)

    @rule(number=PICKS, client=WRITERS, data=st.data())
    def edit(self, number: int, client: int, data: st.DataObject) -> None:
        base = self.pick(number)
        if base is not None:
            self.put(client, data.draw(edits(self.stored[base].state)), base)

    @rule(number=PICKS, client=WRITERS, size=st.integers(1, 40))
    def append(self, number: int, client: int, size: int) -> None:
        base = self.pick(number)
        state = deepcopy(self.stored[base].state) if base is not None else None
        if isinstance(state, dict):
            messages = state.get("messages")
            messages = messages if isinstance(messages, list) else []
            state["messages"] = [*messages, *(f"{self.numbers}-{n}" * 9 for n in range(size))]
            self.put(client, state, base)

    @rule(client=WRITERS, steps=st.integers(17, 40), number=PICKS)
    def append_one_by_one(self, client: int, steps: int, number: int) -> None:
        """So many that rows are merged."""
        base = self.pick(number)
        if base is None or not isinstance(self.stored[base].state, dict):
            return
        for step in range(steps):
            state = deepcopy(self.stored[base].state)
            messages = state.get("messages")
            state["messages"] = [*(messages if isinstance(messages, list) else []), f"{self.numbers}:{step}" * 40]
            self.put(client, state, base)
            base = f"c{self.numbers}"

    @rule(number=PICKS, client=WRITERS)
    def pop_two_append_one(self, number: int, client: int) -> None:
        base = self.pick(number)
        state = deepcopy(self.stored[base].state) if base is not None else None
        if isinstance(state, dict) and isinstance(state.get("messages"), list):
            state["messages"] = [*state["messages"][:-2], f"again-{self.numbers}" * 30]
            self.put(client, state, base)

    @rule(client=WRITERS, state=STATES)
    def begin_anew(self, client: int, state: Any) -> None:
        self.put(client, state, None)

    @rule(number=PICKS, client=WRITERS, data=st.data())
    def replace(self, number: int, client: int, data: st.DataObject) -> None:
        victim = self.pick(number)
        if victim is not None:
            known = self.stored[victim]
            state = data.draw(edits(known.state))
            if not same(state, known.state):
                self.put(client, state, known.parent, victim)

    @rule(number=PICKS, client=WRITERS)
    def fork(self, number: int, client: int) -> None:
        source = self.pick(number)
        if source is not None:
            config = CheckpointConfig(thread_id="t", checkpoint_id=source)
            self.numbers += 1
            made = self.clients[client].timeline.fork(config, checkpoint_id=f"c{self.numbers}")
            found = self.clients[client].get(made)
            assert found is not None
            known = self.stored[source]
            self.stored[f"c{self.numbers}"] = Stored(
                deepcopy(known.state), found.parent_checkpoint_id, found.run_id, list(known.writes)
            )

    @rule(number=PICKS, client=WRITERS, n=st.integers(0, 9))
    def update(self, number: int, client: int, n: int) -> None:
        base = self.pick(number)
        known = self.stored[base] if base is not None else None
        if known is not None and isinstance(known.state, dict):
            config = CheckpointConfig(thread_id="t", checkpoint_id=base)
            made = self.clients[client].timeline.update_state(config, {"n": n, "note": f"{n}" * 400})
            state = {**deepcopy(known.state), "n": n, "note": f"{n}" * 400}
            self.stored[str(made.checkpoint_id)] = Stored(state, base, known.run)

    @rule(client=WRITERS)
    def empty_the_thread_and_copy_it_back(self, client: int) -> None:
        if not self.stored:
            return
        one = self.clients[client]
        assert one.timeline.copy_thread("t", "copy") == len(self.stored)
        assert one.delete_checkpoints("t", list(self.stored)) == len(self.stored)
        assert one.timeline.copy_thread("copy", "t") == len(self.stored)
        assert one.delete_thread("copy")

    @rule(number=PICKS, client=WRITERS, payload=st.integers(0, 9))
    def write(self, number: int, client: int, payload: int) -> None:
        target = self.pick(number)
        if target is not None:
            config = CheckpointConfig(thread_id="t", checkpoint_id=target)
            known = self.stored[target].writes
            write = PendingWrite(node="n", payload=payload, task_id="task", idx=len(known))
            self.clients[client].put_writes(config, [write])
            known.append(write)

    @rule(number=PICKS, client=WRITERS)
    def delete(self, number: int, client: int) -> None:
        victim = self.pick(number)
        if victim is not None:
            assert self.clients[client].delete_checkpoints("t", [victim]) == 1
            self.remove({victim})

    @rule(number=PICKS, client=WRITERS)
    def delete_run(self, number: int, client: int) -> None:
        one = self.pick(number)
        if one is not None and (run := self.stored[one].run) is not None:
            victims = {name for name, known in self.stored.items() if known.run == run}
            assert self.clients[client].delete_by_run(run, thread_id="t") == len(victims)
            self.remove(victims)

    @rule(
        client=WRITERS,
        keep_last=st.none() | st.integers(0, 6),
        keep_runs=st.none() | st.integers(0, 3),
        keep_ancestors=st.booleans(),
    )
    def prune(self, client: int, keep_last: int | None, keep_runs: int | None, keep_ancestors: bool) -> None:
        if keep_last is None and keep_runs is None:
            return
        names = list(self.stored)
        kept = set(names[-1:])
        kept.update(names[-keep_last:] if keep_last else [])
        runs = dict.fromkeys(self.stored[name].run for name in reversed(names) if self.stored[name].run)
        kept.update(name for name in names if self.stored[name].run in list(runs)[: keep_runs or 0])
        if keep_ancestors:
            for name in list(kept):
                above, chain = self.stored[name].parent, set[str]()
                while above in self.stored and above not in chain:
                    chain.add(above)
                    above = self.stored[above].parent
                kept |= chain
        retention = self.clients[client].retention
        options: dict[str, Any] = {"keep_last": keep_last, "keep_runs": keep_runs, "keep_ancestors": keep_ancestors}
        planned = retention.prune("t", dry_run=True, **options)
        done = retention.prune("t", **options)
        assert planned.pruned == done.pruned
        assert {config.checkpoint_id for config in done.pruned} == set(names) - kept
        assert done.kept == len(kept)
        self.remove(set(names) - kept)

    @rule(client=WRITERS)
    def compact(self, client: int) -> None:
        retention = self.clients[client].retention
        first = retention.compact("t")
        again = retention.compact("t")
        assert (again.rows_before, again.bytes_before) == (first.rows_after, first.bytes_after)
        assert (again.rows_after, again.bytes_after) == (first.rows_after, first.bytes_after)

    @rule(client=WRITERS, back=st.booleans())
    def export_and_import(self, client: int, back: bool) -> None:
        retention, file = self.clients[client].retention, io.BytesIO()
        retention.export_thread("t", file)
        if back:
            assert self.clients[client].delete_thread("t")
        file.seek(0)
        name = "t" if back else "copy"
        retention.import_thread(file, thread_id=name)
        again = io.BytesIO()
        retention.export_thread(name, again)
        assert contents(again) == contents(file)
        if not back:
            self.check(self.clients[1 - client], "copy")
            assert self.clients[client].delete_thread("copy")

    @rule(client=WRITERS, state=STATES)
    def delete_the_thread_and_begin_anew(self, client: int, state: Any) -> None:
        assert self.clients[client].delete_thread("t")
        self.stored = {}
        self.put(client, state, None)

    @rule(client=WRITERS)
    def reopen(self, client: int) -> None:
        self.clients[client].close()
        self.clients[client] = clew.Checkpointer.open(self.url)

    def check(self, client: Any, thread_id: str) -> None:
        for checkpoint_id, known in self.stored.items():
            found = client.get_tuple(CheckpointConfig(thread_id=thread_id, checkpoint_id=checkpoint_id))
            assert found is not None, checkpoint_id
            assert same(found.checkpoint.state, known.state), (checkpoint_id, found.checkpoint.state, known.state)
            assert found.checkpoint.parent_checkpoint_id == known.parent, checkpoint_id
            assert found.pending_writes == tuple(known.writes)
        listed = [item.checkpoint_id for item in client.list(thread_id, limit=10_000, newest_first=False).items]
        assert listed == list(self.stored)
        assert client.retention.verify().problems == ()

    @invariant()
    def everything_is_as_it_was(self) -> None:
        self.check(self.clients[self.numbers % 2], "t")
        assert self.probe.problems() == []


def contents(file: io.BytesIO) -> list[bytes]:
    """The lines but for the header, the elements (which may be parted otherwise) and the digest."""
    return [line for line in file.getvalue().splitlines()[1:-1] if not line.startswith(b'{"elements"')]


@pytest.fixture(params=["sqlite", "postgres"])
def machine(request: pytest.FixtureRequest) -> Iterator[type[Retained]]:
    """The machine over fresh databases of one kind."""
    if request.param == "sqlite":
        template: Path = request.getfixturevalue("sqlite_template")

        def new_database() -> tuple[str, Callable[[], None]]:
            folder = tempfile.TemporaryDirectory()
            return f"sqlite:///{shutil.copy(template, Path(folder.name) / 'clew.db')}", folder.cleanup

        yield type("RetainedInSqlite", (Retained,), {"new_database": staticmethod(new_database)})
        return
    url = request.getfixturevalue("postgres_url")

    def emptied() -> tuple[str, Callable[[], None]]:
        def drop() -> None:
            with clew.Checkpointer.open(url) as checkpointer:
                for thread in checkpointer.list_threads().items:
                    checkpointer.delete_thread(thread.thread_id)

        return url, drop

    yield type("RetainedInPostgres", (Retained,), {"new_database": staticmethod(emptied)})


def test_any_sequence_leaves_every_survivor_whole(machine: type[Retained]) -> None:
    few = 12 if "Sqlite" in machine.__name__ else 6
    run_state_machine_as_test(machine, settings=limits(max_examples=few, steps=20))


@pytest.mark.soak
def test_many_long_sequences_leave_every_survivor_whole(machine: type[Retained]) -> None:
    run_state_machine_as_test(machine, settings=limits(max_examples=150, steps=50))


def limits(max_examples: int, steps: int) -> settings:
    return settings(
        max_examples=max_examples,
        stateful_step_count=steps,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )
