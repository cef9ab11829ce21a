"""The graph side's records: JSON as tinyagents writes it, state kept as given, the one projection."""

from __future__ import annotations

import copy
import json
import pickle
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

import clew.records as records
from clew.records import (
    NOT_LOADED,
    BarrierArrivals,
    Checkpoint,
    CheckpointConfig,
    CheckpointMetadata,
    CheckpointSource,
    CheckpointTuple,
    DurabilityMode,
    ForkOrigin,
    Interrupt,
    NotLoaded,
    Page,
    PendingActivation,
    PendingWrite,
    StateSnapshot,
    Thread,
    listing_step,
)
from clew.records.record import Record


class Plan(BaseModel):
    goal: str
    done: bool = False


class LongPlan(Plan):
    steps: list[str] = []


def canonical(value: Any) -> str:
    """JSON text in which 1, 1.0 and true differ, and the order of keys does not matter."""
    return json.dumps(value, sort_keys=True)


def assert_unchanged(model: type[Record], text: str) -> None:
    record = model.model_validate_json(text)
    assert canonical(record.model_dump(mode="json")) == canonical(json.loads(text))
    assert canonical(json.loads(record.model_dump_json())) == canonical(json.loads(text))
    assert model.model_validate(json.loads(text)) == record


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=4)
    ),
    max_leaves=12,
)

AWKWARD = '{"z": [-0.0, 1e22, 1e16, 18446744073709551616, 1, 1.0, true, null], "a": "a\\u0000b \\ud83e\\uddf6", "": {}}'

FULL_CHECKPOINT = f"""{{
  "thread_id": "t1", "checkpoint_id": "c2", "run_id": "r1", "parent_checkpoint_id": "c1", "namespace": ["child", "x"],
  "state": {AWKWARD}, "next_nodes": ["tools"], "completed_tasks": ["agent"],
  "pending_writes": [{{"node": "agent", "payload": {AWKWARD}}},
    {{"node": "agent", "payload": null, "task_id": "k", "idx": -1, "channel": "messages"}}],
  "interrupts": [{{"id": "i1", "node": "agent", "payload": {{"question": "go on?"}}}}],
  "metadata": {{"source": "update", "step": 7, "flag": true, "nothing": null}},
  "pending_activations": [{{"node": "tools", "send_arg": [1, 2.0], "task_id": "k"}}, {{"node": "tools"}}],
  "barrier_arrivals": [{{"node": "join", "arrived": ["a", "b"]}}]
}}"""

PLAIN_CHECKPOINT = """{
  "thread_id": "t1", "checkpoint_id": "c1", "run_id": null, "parent_checkpoint_id": null, "namespace": [],
  "state": null, "next_nodes": [], "completed_tasks": [], "pending_writes": [], "interrupts": [], "metadata": null
}"""

FULL_METADATA = """{
  "thread_id": "t1", "checkpoint_id": "c2", "run_id": "r1", "parent_checkpoint_id": "c1", "namespace": ["child"],
  "next_nodes": ["tools"], "has_interrupts": true, "source": "fork", "step": 7
}"""


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (Checkpoint, FULL_CHECKPOINT),
        (Checkpoint, PLAIN_CHECKPOINT),
        (CheckpointMetadata, FULL_METADATA),
        (CheckpointConfig, '{"thread_id": "t1", "checkpoint_id": null, "namespace": []}'),
        (CheckpointConfig, '{"thread_id": "t1", "checkpoint_id": "c1", "namespace": ["child"]}'),
        (PendingWrite, '{"node": "agent", "payload": {"a": 1}}'),
        (PendingWrite, '{"node": "agent", "payload": "v", "task_id": "k", "idx": 3, "channel": "messages"}'),
        (Interrupt, '{"id": "i1", "node": "agent", "payload": null}'),
        (PendingActivation, '{"node": "tools"}'),
        (PendingActivation, '{"node": "tools", "send_arg": false, "task_id": "k"}'),
        (BarrierArrivals, '{"node": "join", "arrived": []}'),
        (BarrierArrivals, '{"node": "join", "arrived": ["a", "b"]}'),
        (ForkOrigin, '{"thread_id": "t0", "checkpoint_id": "c0", "namespace": []}'),
    ],
)
def test_json_of_tinyagents_goes_through_unchanged(model: type[Record], text: str) -> None:
    assert_unchanged(model, text)


@given(JSON, JSON, JSON)
def test_any_json_goes_through_unchanged_as_state_payload_and_metadata(state: Any, payload: Any, metadata: Any) -> None:
    document = json.loads(PLAIN_CHECKPOINT)
    document["state"], document["metadata"] = state, metadata
    document["pending_writes"] = [{"node": "agent", "payload": payload}]
    document["interrupts"] = [{"id": "i", "node": "agent", "payload": payload}]
    assert_unchanged(Checkpoint, json.dumps(document))


@pytest.mark.parametrize("argument", ["[]", "{}", "0", "0.0", '""', "false"])
def test_an_empty_send_argument_is_written_all_the_same(argument: str) -> None:
    assert_unchanged(PendingActivation, f'{{"node": "tools", "send_arg": {argument}}}')


def test_the_order_of_send_arguments_is_kept() -> None:
    text = json.dumps([{"node": "tools", "send_arg": n} for n in (1, 2, 3)])
    document = {"thread_id": "t", "state": 0, "pending_activations": json.loads(text)}
    activations = Checkpoint.model_validate(document).pending_activations
    assert activations is not None
    assert [activation.send_arg for activation in activations] == [1, 2, 3]


def test_json_without_the_later_versions_fields_loads_with_their_defaults() -> None:
    checkpoint: Checkpoint[Any] = Checkpoint.model_validate(
        {"thread_id": "t", "checkpoint_id": "c", "state": 1, "pending_writes": [{"node": "n", "payload": 1}]}
    )
    assert checkpoint.pending_activations is None
    assert checkpoint.barrier_arrivals == ()
    assert checkpoint.pending_writes == (PendingWrite(node="n", payload=1, task_id="", idx=0, channel=""),)
    assert checkpoint.metadata == {}


def test_no_activations_at_all_is_written_and_read_as_something_else_than_none_recorded() -> None:
    none_left = Checkpoint(thread_id="t", state=0, pending_activations=())
    assert none_left.model_dump(mode="json")["pending_activations"] == []
    assert Checkpoint.model_validate_json(none_left.model_dump_json()).pending_activations == ()


def test_unknown_keys_beside_a_records_fields_are_ignored() -> None:
    assert CheckpointConfig.model_validate({"thread_id": "t", "new": 1}).model_dump() == {
        "thread_id": "t",
        "checkpoint_id": None,
        "namespace": (),
    }


def test_nan_and_infinity_are_not_written_as_null() -> None:
    text = Checkpoint(thread_id="t", state=[float("nan"), float("-inf")]).model_dump_json()
    assert '"state":[NaN,-Infinity]' in text


def test_lists_are_accepted_and_held_as_tuples() -> None:
    checkpoint = Checkpoint.model_validate({"thread_id": "t", "state": 0, "next_nodes": ["a"], "namespace": ["n"]})
    assert checkpoint.next_nodes == ("a",)
    assert checkpoint.namespace == ("n",)


@pytest.mark.parametrize(
    ("model", "fields", "wrong"),
    [
        (PendingWrite, {"node": "n", "payload": 1, "idx": True}, "idx"),
        (PendingWrite, {"node": "n", "payload": 1, "idx": 1.0}, "idx"),
        (PendingWrite, {"node": "n", "payload": 1, "idx": "1"}, "idx"),
        (PendingWrite, {"node": b"n", "payload": 1}, "node"),
        (PendingWrite, {"node": "n"}, "payload"),
        (Interrupt, {"id": "i", "node": "n"}, "payload"),
        (CheckpointConfig, {"thread_id": "t", "namespace": "child"}, "namespace"),
        (CheckpointConfig, {"thread_id": 1}, "thread_id"),
        (CheckpointMetadata, {"thread_id": "t", "checkpoint_id": "c", "has_interrupts": 1}, "has_interrupts"),
        (CheckpointMetadata, {"thread_id": "t", "checkpoint_id": "c", "source": "Loop"}, "source"),
        (
            CheckpointMetadata,
            {"thread_id": "t", "checkpoint_id": "c", "created_at": "2026-01-01T00:00:00"},
            "created_at",
        ),
        (Checkpoint, {"thread_id": "t"}, "state"),
    ],
)
def test_a_field_of_another_type_is_refused_by_name(model: type[Record], fields: dict[str, Any], wrong: str) -> None:
    with pytest.raises(ValidationError) as refusal:
        model.model_validate(fields)
    assert [error["loc"][0] for error in refusal.value.errors()] == [wrong]


def test_a_refusal_does_not_quote_what_was_given() -> None:
    with pytest.raises(ValidationError) as refusal:
        CheckpointConfig.model_validate({"thread_id": {"secret": "hunter2"}})
    assert "hunter2" not in str(refusal.value)


def test_records_are_frozen() -> None:
    config = CheckpointConfig.latest("t")
    with pytest.raises(ValidationError):
        CheckpointConfig.__setattr__(config, "thread_id", "u")


@pytest.mark.parametrize("state", [{"a": [1]}, [1, 2], {1, 2}, Plan(goal="g"), object(), None, 0, {}])
def test_the_state_is_the_object_that_was_given(state: Any) -> None:
    assert Checkpoint(thread_id="t", state=state).state is state


def test_a_typed_checkpoint_keeps_the_object_too() -> None:
    plan, channels, numbers = Plan(goal="g"), {"a": [1]}, [True, 2]
    assert Checkpoint[Plan](thread_id="t", state=plan).state is plan
    assert Checkpoint[dict[str, list[int]]](thread_id="t", state=channels).state is channels
    assert Checkpoint[list[int]](thread_id="t", state=numbers).state is numbers


def test_a_typed_checkpoint_makes_its_model_of_a_plain_dict() -> None:
    checkpoint = Checkpoint[Plan].model_validate({"thread_id": "t", "state": {"goal": "g"}})
    assert checkpoint.state == Plan(goal="g", done=False)
    assert Checkpoint[Plan].model_validate_json('{"thread_id": "t", "state": {"goal": "g"}}').state == Plan(goal="g")


def test_a_typed_checkpoint_refuses_another_state() -> None:
    with pytest.raises(ValidationError):
        Checkpoint[Plan].model_validate({"thread_id": "t", "state": {"done": True}})


def test_a_state_of_a_subclass_is_written_with_all_its_fields() -> None:
    checkpoint = Checkpoint[Plan](thread_id="t", state=LongPlan(goal="g", steps=["s"]))
    assert checkpoint.model_dump(mode="json")["state"] == {"goal": "g", "done": False, "steps": ["s"]}


def test_metadata_is_the_object_that_was_given() -> None:
    metadata = {"b": 1, "a": [1e16]}
    assert Checkpoint(thread_id="t", state=0, metadata=metadata).metadata is metadata


def test_a_checkpoint_without_an_id_gets_one_of_its_own() -> None:
    first, second = Checkpoint(thread_id="t", state=0), Checkpoint(thread_id="t", state=0)
    assert len(first.checkpoint_id) == 26
    assert first.checkpoint_id < second.checkpoint_id


def test_two_checkpoints_do_not_share_their_default_metadata() -> None:
    first, second = Checkpoint(thread_id="t", state=0), Checkpoint(thread_id="t", state=0)
    assert first.metadata is not second.metadata


def test_the_listing_form_of_a_full_checkpoint() -> None:
    checkpoint: Checkpoint[Any] = Checkpoint.model_validate_json(FULL_CHECKPOINT)
    assert checkpoint.to_metadata() == CheckpointMetadata(
        thread_id="t1",
        checkpoint_id="c2",
        run_id="r1",
        parent_checkpoint_id="c1",
        namespace=("child", "x"),
        next_nodes=("tools",),
        has_interrupts=True,
        source=CheckpointSource.UPDATE,
        step=7,
    )


@pytest.mark.parametrize("metadata", [None, {}, [], ["source", "step"], "fork", 7, {"source": "Fork"}, {"source": 1}])
def test_metadata_without_source_and_step_gives_loop_and_0(metadata: Any) -> None:
    listed = Checkpoint(thread_id="t", state=0, metadata=metadata).to_metadata()
    assert (listed.source, listed.step) == (CheckpointSource.LOOP, 0)


@pytest.mark.parametrize(
    ("step", "projected", "listed"),
    [
        (3, 3, 3),
        (0, 0, 0),
        (-1, 0, -1),
        (True, 0, 0),
        (3.0, 0, 0),
        ("3", 0, 0),
        (None, 0, 0),
        ([3], 0, 0),
        (2**63 - 1, 2**63 - 1, 2**63 - 1),
        (2**63, 2**63, 0),
        (2**64 - 1, 2**64 - 1, 0),
        (2**64, 0, 0),
        (-(2**63), 0, -(2**63)),
        (-(2**63) - 1, 0, 0),
    ],
)
def test_the_projection_takes_an_unsigned_step_and_the_column_a_signed_one(
    step: Any, projected: int, listed: int
) -> None:
    metadata = {"step": step}
    assert Checkpoint(thread_id="t", state=0, metadata=metadata).to_metadata().step == projected
    assert listing_step(metadata) == listed


@pytest.mark.parametrize("metadata", [None, [], "step", 7, {}])
def test_the_columns_step_is_0_where_the_metadata_has_none(metadata: Any) -> None:
    assert listing_step(metadata) == 0


def test_what_only_the_database_knows_is_left_out_of_the_json_until_known() -> None:
    listed = CheckpointMetadata.model_validate_json(FULL_METADATA)
    stored = CheckpointMetadata.model_validate(
        {
            **dict(listed),
            "created_at": datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC),
            "fork_origin": ForkOrigin(thread_id="t0", checkpoint_id="c0"),
        }
    )
    assert "created_at" not in listed.model_dump(mode="json")
    assert "fork_origin" not in listed.model_dump(mode="json")
    assert stored.model_dump(mode="json")["created_at"] == "2026-01-02T03:04:05.678901Z"
    assert stored.model_dump(mode="json")["fork_origin"] == {
        "thread_id": "t0",
        "checkpoint_id": "c0",
        "namespace": [],
    }
    assert CheckpointMetadata.model_validate_json(stored.model_dump_json()) == stored


def test_metadata_constructed_without_validation_is_an_equal_record() -> None:
    validated = CheckpointMetadata(thread_id="t", checkpoint_id="c", namespace=("n",), step=-1)
    constructed = CheckpointMetadata.model_construct(thread_id="t", checkpoint_id="c", namespace=("n",), step=-1)
    assert constructed == validated
    assert constructed.model_dump_json() == validated.model_dump_json()


def test_sources_have_their_lowercase_names_and_unknown_ones_parse_to_none() -> None:
    assert [str(source) for source in CheckpointSource] == ["input", "loop", "update", "fork"]
    assert CheckpointSource.parse("fork") is CheckpointSource.FORK
    assert CheckpointSource.parse("FORK") is None
    assert CheckpointSource.parse("") is None


def test_durability_modes_have_their_lowercase_names() -> None:
    assert [str(mode) for mode in DurabilityMode] == ["sync", "async", "exit"]


def test_latest_addresses_no_checkpoint_in_particular() -> None:
    assert CheckpointConfig.latest("t") == CheckpointConfig(thread_id="t", checkpoint_id=None, namespace=())
    assert CheckpointConfig.latest("t", ["child"]).namespace == ("child",)


def test_a_state_that_was_not_loaded_stays_the_same_object() -> None:
    assert repr(NOT_LOADED) == "clew.NOT_LOADED"
    assert NotLoaded() is NOT_LOADED
    assert copy.copy(NOT_LOADED) is NOT_LOADED
    assert copy.deepcopy({"state": NOT_LOADED})["state"] is NOT_LOADED
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(NOT_LOADED, protocol)) is NOT_LOADED


def test_a_state_that_was_not_loaded_survives_its_record() -> None:
    checkpoint: Checkpoint[Any] = Checkpoint(thread_id="t", state=NOT_LOADED)
    assert copy.deepcopy(checkpoint).state is NOT_LOADED
    assert checkpoint.model_copy(deep=True).state is NOT_LOADED
    assert pickle.loads(pickle.dumps(checkpoint)).state is NOT_LOADED
    typed = Checkpoint[Plan].model_validate({"thread_id": "t", "state": NOT_LOADED})
    assert typed.state is NOT_LOADED


def test_a_tuple_and_a_snapshot_hold_what_they_were_given() -> None:
    state = {"messages": ["hello"]}
    checkpoint = Checkpoint(thread_id="t", checkpoint_id="c", state=state)
    config = CheckpointConfig(thread_id="t", checkpoint_id="c")
    found = CheckpointTuple(config=config, checkpoint=checkpoint, metadata=checkpoint.to_metadata())
    snapshot = StateSnapshot(values=state, config=config, metadata=checkpoint.to_metadata())
    assert found.checkpoint is checkpoint
    assert (found.parent_config, found.pending_writes) == (None, ())
    assert snapshot.values is state
    assert (snapshot.next_nodes, snapshot.tasks, snapshot.parent_config, snapshot.pending_interrupts) == (
        (),
        (),
        None,
        (),
    )


def test_a_typed_snapshot_reads_its_model_from_json() -> None:
    text = """{"values": {"goal": "g"}, "next_nodes": ["a"], "tasks": ["a"],
      "config": {"thread_id": "t", "checkpoint_id": "c", "namespace": []},
      "metadata": {"thread_id": "t", "checkpoint_id": "c", "source": "loop", "step": 1},
      "parent_config": null, "pending_interrupts": []}"""
    snapshot = StateSnapshot[Plan].model_validate_json(text)
    assert snapshot.values == Plan(goal="g")
    assert snapshot.metadata.step == 1


def test_a_page_says_where_the_next_one_begins() -> None:
    page = Page[CheckpointConfig](items=(CheckpointConfig.latest("t"),), next_cursor="n")
    assert [item.thread_id for item in page.items] == ["t"]
    assert page.next_cursor == "n"
    assert Page(items=()).next_cursor is None


def test_a_thread_need_not_have_been_counted() -> None:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    thread = Thread(thread_id="t", created_at=moment, updated_at=moment)
    assert (thread.metadata, thread.expires_at, thread.checkpoint_count) == (None, None, None)


def test_what_is_left_out_of_the_json_is_what_its_absence_is_read_as() -> None:
    for name in records.__all__:
        model = getattr(records, name)
        if isinstance(model, type) and issubclass(model, Record):
            for field, value in model.left_out.items():
                assert model.model_fields[field].get_default(call_default_factory=True) == value, (name, field)


def test_every_public_name_is_exported_in_order_and_documented() -> None:
    assert records.__all__ == sorted(records.__all__, key=lambda name: (not name.isupper(), name))
    for name in records.__all__:
        assert getattr(records, name).__doc__, name
