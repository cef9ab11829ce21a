"""A checkpoint made ready to be put: what its columns hold, and the names under which something is refused."""

from __future__ import annotations

import re
from typing import Any

import pytest

from clew import (
    BarrierArrivals,
    Checkpoint,
    Interrupt,
    InvalidInput,
    PendingActivation,
    PendingWrite,
    Unserializable,
)
from clew.codec import Codec
from clew.repository.request import described_by, prepare, prepare_writes


def made(**fields: Any) -> Checkpoint[Any]:
    """With fields that need not be valid."""
    checkpoint = Checkpoint[Any](thread_id="t", checkpoint_id="c", state={"a": [1, "x" * 300]}, metadata={})
    return checkpoint.model_copy(update=fields)


def write(**fields: Any) -> PendingWrite:
    return PendingWrite(node="n", payload=1).model_copy(update=fields)


@pytest.mark.parametrize(
    ("metadata", "form"),
    [
        ({}, 1),
        ({"source": "fork", "step": 7}, 2),
        ({"step": 7, "source": "fork"}, 0),
        ({"source": "fork", "step": 7, "who": "me"}, 0),
        ({"source": "elsewhere", "step": 7}, 0),
        ({"source": "fork", "step": True}, 0),
        ({"source": "fork", "step": 2**63}, 0),
        (None, 0),
        ([], 0),
    ],
    ids=str,
)
def test_metadata_is_written_only_where_the_columns_do_not_say_it(metadata: Any, form: int) -> None:
    request = prepare(Codec(), made(metadata=metadata))
    columns = request.columns
    assert columns["metadata_form"] == form
    assert (request.metadata is None) is (form != 0)
    assert (request.terms == b"") is (form != 0 or not metadata)
    assert described_by(form, columns["source"], columns["step"], request.metadata) == metadata


def test_what_a_checkpoint_does_not_have_takes_no_bytes() -> None:
    columns = prepare(Codec(), made()).columns
    assert {name for name, value in columns.items() if value is None} == {
        *("parent_checkpoint_id", "run_id", "node", "next_nodes", "fork_thread_id", "fork_checkpoint_id"),
        *("completed_tasks", "interrupts", "activations", "barriers"),
    }
    assert columns["has_interrupts"] is False


def test_a_checkpoints_digest_stays_the_same_from_version_to_version() -> None:
    """Else a put that is repeated after an upgrade would be refused or replace what is there."""
    whole = made(
        parent_checkpoint_id="p",
        run_id="r",
        namespace=("a", "b"),
        next_nodes=("x",),
        completed_tasks=("y",),
        interrupts=(Interrupt(id="i", node="n", payload=[1]),),
        pending_activations=(PendingActivation(node="n", send_arg=b"z", task_id="k"),),
        barrier_arrivals=(BarrierArrivals(node="n", arrived=("m",)),),
        metadata={"source": "update", "step": 3, "who": "me"},
        pending_writes=(write(task_id="k", idx=-1, channel="c"), write()),
    )
    assert prepare(Codec(), whole).columns["digest"].hex() == "dcd2c9404fdf75d6fa3ad3be68812028"
    assert prepare(Codec(), made()).columns["digest"].hex() == "fad470b93256f8114427e6d38211c742"


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"thread_id": 5}, "thread_id must be a string, not int"),
        ({"checkpoint_id": ""}, "checkpoint_id must not be empty"),
        ({"parent_checkpoint_id": ""}, "parent_checkpoint_id must not be empty"),
        ({"parent_checkpoint_id": "c"}, "checkpoint 'c' of thread 't' names itself as its parent"),
        ({"run_id": ""}, "run_id must not be empty"),
        ({"next_nodes": (1,)}, "next_nodes must hold strings, not int"),
        ({"completed_tasks": (1,)}, "completed_tasks must hold strings, not int"),
        ({"interrupts": (Interrupt.model_construct(id="i", node=1, payload=1),)}, "id and node of an interrupt"),
        (
            {"pending_activations": (PendingActivation.model_construct(node="n", send_arg=1, task_id=1),)},
            "node and task_id of an activation",
        ),
        (
            {"barrier_arrivals": (BarrierArrivals.model_construct(node=1, arrived=()),)},
            "node and arrived of a barrier",
        ),
        ({"pending_writes": (write(task_id=1),)}, "task_id must be a string"),
        ({"pending_writes": (write(node=1),)}, "node must be a string"),
        ({"pending_writes": (write(channel=1),)}, "channel must be a string"),
        ({"pending_writes": (write(idx=2**63, task_id="k"),)}, "idx of a write must be an integer of 64 bits"),
    ],
    ids=str,
)
def test_what_cannot_be_put_is_refused_by_its_name(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(told)):
        prepare(Codec(), made(**fields))


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"state": {"a": [1, object()]}}, "state.a[1]"),
        ({"interrupts": (Interrupt(id="i", node="n", payload=object()),)}, "interrupts[0][2]"),
        (
            {"pending_activations": (PendingActivation(node="n", send_arg=object(), task_id=""),)},
            "pending_activations[0][1]",
        ),
        ({"pending_writes": (write(), write(payload=object()))}, "pending_writes[1].payload"),
        ({"metadata": {"a": [object()]}}, "metadata.a[0]"),
    ],
    ids=["state", "interrupt", "activation", "write", "metadata"],
)
def test_a_value_that_cannot_be_kept_is_named_by_its_path(fields: dict[str, Any], path: str) -> None:
    with pytest.raises(Unserializable) as refused:
        prepare(Codec(), made(**fields))
    assert refused.value.path == path


def test_of_writes_under_one_key_the_last_counts_where_the_index_is_negative_else_the_first() -> None:
    batch = [
        write(task_id="b", payload=1),
        write(task_id="a", idx=-3, payload=2),
        write(task_id="a", idx=-3, payload=3, channel="later"),
        write(task_id="b", payload=4),
        write(task_id="a", payload=5),
    ]
    rows = prepare_writes(Codec(), batch)
    assert [(row.task_id, row.idx, row.place, row.channel, row.payload) for row in rows] == [
        ("a", -3, 2, "later", b"\x03"),
        ("a", 0, 5, "", b"\x05"),
        ("b", 0, 1, "", b"\x01"),
    ]
