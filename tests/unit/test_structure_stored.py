"""The same model as ``test_structure_model``, over a real SQLite file and two checkpointers that share no memory."""

from __future__ import annotations

import shutil
import tempfile
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

import clew
from clew import Checkpoint, CheckpointConfig
from clew.repository.memory import ThreadMemory

from probe import Probe
from states import STATES, edits, same

TEMPLATE: list[Path] = []


class Stored(RuleBasedStateMachine):
    """Two processes put, branch, edit in place, replace and delete; a plain dict says what must be there."""

    ids = Bundle("ids")

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        path = Path(shutil.copy(TEMPLATE[0], self.folder.name))
        self.probe = Probe(f"sqlite:///{path}")
        self.writers = [clew.Checkpointer.open(f"sqlite:///{path}") for _ in range(2)]
        self.states: dict[str, Any] = {}
        self.parents: dict[str, str | None] = {}
        self.order: list[str] = []
        self.numbers = 0

    def teardown(self) -> None:
        for writer in self.writers:
            writer.close()
        self.folder.cleanup()

    def put(self, writer: int, state: Any, parent: str | None, checkpoint_id: str | None = None) -> str:
        if checkpoint_id is None:
            self.numbers += 1
            checkpoint_id = f"c{self.numbers}"
        self.writers[writer].put(
            Checkpoint(thread_id="t", checkpoint_id=checkpoint_id, parent_checkpoint_id=parent, state=state)
        )
        self.states[checkpoint_id], self.parents[checkpoint_id] = deepcopy(state), parent
        self.order = [*[known for known in self.order if known != checkpoint_id], checkpoint_id]
        return checkpoint_id

    @initialize(target=ids, state=STATES)
    def begin(self, state: Any) -> Any:
        return self.put(0, state, None)

    @rule(target=ids, base=ids, data=st.data(), writer=st.integers(0, 1))
    def edit(self, base: str, data: st.DataObject, writer: int) -> Any:
        if base not in self.states:
            return multiple()
        return self.put(writer, data.draw(edits(self.states[base])), base)

    @rule(target=ids, base=ids, writer=st.integers(0, 1), size=st.integers(1, 20))
    def append(self, base: str, writer: int, size: int) -> Any:
        state = deepcopy(self.states.get(base))
        if not isinstance(state, dict):
            return multiple()
        messages = state.get("messages")
        state["messages"] = [
            *(messages if isinstance(messages, list) else []),
            *[f"{self.numbers}-{n}" * 9 for n in range(size)],
        ]
        return self.put(writer, state, base)

    @rule(target=ids, state=STATES, writer=st.integers(0, 1))
    def unrelated(self, state: Any, writer: int) -> Any:
        return self.put(writer, state, None) if self.order else multiple()

    @rule(target=ids, base=ids, data=st.data(), writer=st.integers(0, 1))
    def mutate_in_place(self, base: str, data: st.DataObject, writer: int) -> Any:
        state = deepcopy(self.states.get(base))
        if not isinstance(state, dict):
            return multiple()
        first = self.put(writer, state, base)
        for value in state.values():
            if isinstance(value, list):
                value.append("mutated" * 50)
            elif isinstance(value, bytearray):
                value.extend(b"mutated")
        state["mutated"] = True
        return multiple(first, self.put(writer, state, first))

    @rule(target=ids, victim=consumes(ids), data=st.data(), writer=st.integers(0, 1))
    def replace(self, victim: str, data: st.DataObject, writer: int) -> Any:
        if victim not in self.states:
            return multiple()
        before = self.states[victim], self.parents[victim], list(self.order)
        state = data.draw(edits(self.states[victim]))
        if same(state, before[0]):
            return victim
        return self.put(writer, state, self.parents[victim], victim)

    @rule(victim=consumes(ids), writer=st.integers(0, 1))
    def delete(self, victim: str, writer: int) -> None:
        known = victim in self.states
        assert self.writers[writer].delete_checkpoints("t", [victim]) == int(known)
        if known:
            del self.states[victim]
            self.order.remove(victim)
            heir = self.parents.pop(victim)
            for child, parent in self.parents.items():
                if parent == victim:
                    self.parents[child] = heir if heir != child else None

    @rule(base=ids, writer=st.integers(0, 1))
    def repeat(self, base: str, writer: int) -> None:
        if base in self.states:
            found = self.writers[1 - writer].get(CheckpointConfig(thread_id="t", checkpoint_id=base))
            assert found is not None
            self.writers[writer].put(found)
            if found.parent_checkpoint_id != self.parents[base]:
                raise AssertionError("a parent differs")
            self.order = [item.checkpoint_id for item in reversed(self.writers[0].list("t").items)]

    @invariant()
    def everything_is_as_it_was(self) -> None:
        for writer in self.writers:
            for checkpoint_id, state in self.states.items():
                found = writer.get(CheckpointConfig(thread_id="t", checkpoint_id=checkpoint_id))
                assert found is not None
                assert same(found.state, state), (checkpoint_id, found.state, state)
                assert found.parent_checkpoint_id == self.parents[checkpoint_id]
        if self.order:
            latest = self.writers[0].get(CheckpointConfig.latest("t"))
            assert latest is not None
            assert latest.checkpoint_id == self.order[-1]

    @invariant()
    def the_rows_are_sound(self) -> None:
        assert self.probe.problems() == []
        assert all(size <= 2 * 4096 + 256 for size in self.probe.manifest_bytes())


Stored.TestCase.settings = settings(max_examples=25, stateful_step_count=18, suppress_health_check=list(HealthCheck))


@pytest.fixture(autouse=True, scope="module")
def _template(sqlite_template: Path) -> None:
    TEMPLATE.append(sqlite_template)


class TestStored(Stored.TestCase):
    """Any sequence reads back as it was."""


def test_what_is_remembered_is_bounded_whatever_a_thread_does(sqlite_url: str) -> None:
    with clew.Checkpointer.open(sqlite_url) as checkpointer:
        items = [f"{number}-" + "x" * 300 for number in range(20)]
        checkpointer.put(Checkpoint(thread_id="t", checkpoint_id="c0", state={"items": items}))
        for step in range(1, 200):  # every branch opens a log of its own
            state = {"items": [*items[: step % 20], f"branch-{step}-" + "y" * 3000]}
            checkpointer.put(
                Checkpoint(thread_id="t", checkpoint_id=f"c{step}", parent_checkpoint_id="c0", state=state)
            )
        remembered = checkpointer._driver.core.memory.get("t")
        assert isinstance(remembered, ThreadMemory)
        assert len(remembered.forms) <= 8
        assert len(remembered.logs.rows) <= 80
