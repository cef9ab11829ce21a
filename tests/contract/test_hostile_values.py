"""What no well-meaning caller hands in: it is kept apart from everything else, or refused by name in a few words."""

from __future__ import annotations

import unicodedata
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import clew
from clew import (
    BarrierArrivals,
    Checkpoint,
    CheckpointConfig,
    Interrupt,
    PendingActivation,
    PendingWrite,
)

from states import same

LATEST = CheckpointConfig.latest("t")
TEXTS = [
    *(
        "'",
        '"',
        "`",
        "\\",
        "/",
        "../../etc/passwd",
        "%00",
        "|",
        "a|b",
        ",",
        '","',
        "[]",
        "%",
        "_",
        "{0}",
        "{x!r}",
        "%s",
    ),
    *(
        ":x",
        "$1",
        "?",
        " ",
        "\t\n",
        "\u202eabc",
        "\ufeff",
        unicodedata.normalize("NFC", "é"),
        "e\u0301",
        "null",
        "'; --",
    ),
]
LONG = "".join(f"{number:x}" for number in range(300_000))[: 1 << 20]


def made(**fields: Any) -> Checkpoint[Any]:
    return Checkpoint(**{"thread_id": "t", "checkpoint_id": "c", "state": {"a": 1}, **fields})


async def test_no_text_is_taken_for_another_wherever_it_stands(checkpointer: Any) -> None:
    for text in TEXTS:
        await checkpointer.put(
            Checkpoint(
                thread_id=text,
                checkpoint_id=text,
                namespace=(text, text),
                run_id=text,
                state={text: text, "list": [text] * 40},
                next_nodes=(text,),
                completed_tasks=(text,),
                interrupts=(Interrupt(id=text, node=text, payload=text),),
                pending_activations=(PendingActivation(node=text, send_arg=text, task_id=text),),
                barrier_arrivals=(BarrierArrivals(node=text, arrived=(text,)),),
                metadata={text: text},
                pending_writes=(PendingWrite(node=text, payload=text, task_id=text, channel=text),),
            )
        )
    for text in TEXTS:
        config = CheckpointConfig(thread_id=text, checkpoint_id=text, namespace=(text, text))
        found = await checkpointer.get_tuple(config, channels=[text])
        assert found.checkpoint.state == {text: text}
        assert found.pending_writes == (PendingWrite(node=text, payload=text, task_id=text, channel=text),)
        assert found.checkpoint.interrupts == (Interrupt(id=text, node=text, payload=text),)
        assert found.checkpoint.barrier_arrivals == (BarrierArrivals(node=text, arrived=(text,)),)
        [listed] = (await checkpointer.list(text, under=(text,), run_id=text, metadata={text: text})).items
        assert (listed.thread_id, listed.checkpoint_id, listed.run_id) == (text, text, text)
        assert (await checkpointer.list(text, metadata={text: text + " "})).items == ()
        assert (await checkpointer.list(text, under=(text + " ",))).items == ()
    assert [thread.thread_id for thread in (await checkpointer.list_threads()).items] == TEXTS[::-1]
    for number, text in enumerate(TEXTS, start=1):
        assert await checkpointer.delete_by_run(text) == 1
        assert await checkpointer.delete_thread(text)
        assert len((await checkpointer.list_threads()).items) == len(TEXTS) - number


async def test_keys_and_values_of_a_megabyte_are_kept_where_they_are_no_index(checkpointer: Any) -> None:
    checkpoint = made(
        state={LONG: LONG},
        metadata={LONG: LONG},
        next_nodes=(LONG,),
        completed_tasks=(LONG,),
        interrupts=(Interrupt(id=LONG, node=LONG, payload=LONG),),
        pending_writes=(PendingWrite(node="n", payload=LONG),),
    )
    await checkpointer.put(checkpoint)
    assert await checkpointer.get(LATEST) == checkpoint
    assert (await checkpointer.get_tuple(LATEST, channels=[LONG])).checkpoint.state == {LONG: LONG}
    assert len((await checkpointer.list("t", metadata={LONG: LONG})).items) == 1
    assert [item.value for item in await checkpointer.timeline.channel_history("t", LONG)] in ([], [LONG])


Call = Callable[[Any, Any], Awaitable[Any]]
TEXT_PLACES: dict[str, Call] = {
    "put thread_id": lambda c, text: c.put(made(thread_id=text)),
    "put checkpoint_id": lambda c, text: c.put(made(checkpoint_id=text)),
    "put parent": lambda c, text: c.put(made(parent_checkpoint_id=text)),
    "put run_id": lambda c, text: c.put(made(run_id=text)),
    "put namespace": lambda c, text: c.put(made(namespace=(text,))),
    "put task_id": lambda c, text: c.put(made(pending_writes=(PendingWrite(node="n", payload=1, task_id=text),))),
    "put node": lambda c, text: c.put(made(pending_writes=(PendingWrite(node=text, payload=1),))),
    "put channel": lambda c, text: c.put(made(pending_writes=(PendingWrite(node="n", payload=1, channel=text),))),
    "put head": lambda c, text: c.put(made(), expected_head=text),
    "get": lambda c, text: c.get(CheckpointConfig(thread_id="t", checkpoint_id=text)),
    "list before": lambda c, text: c.list("t", before=text),
    "list run_id": lambda c, text: c.list("t", run_id=text),
    "list source": lambda c, text: c.list("t", source=text),
    "list cursor": lambda c, text: c.list("t", cursor=text),
    "list under": lambda c, text: c.list("t", under=(text,)),
    "delete_checkpoints": lambda c, text: c.delete_checkpoints("t", [text]),
    "delete_by_run": lambda c, text: c.delete_by_run(text),
    "fork": lambda c, text: c.timeline.fork(LATEST, text),
    "copy_thread": lambda c, text: c.timeline.copy_thread("t", text),
    "as_node": lambda c, text: c.timeline.update_state(LATEST, {"a": 2}, as_node=text),
    "run status": lambda c, text: c.runs.list(status=text),
    "suspend reason": lambda c, text: c.runs.request_suspend("r", text),
    "lease owner": lambda c, text: c.runs.acquire_lease("t", text, 0.001),
}


@pytest.mark.parametrize("text", [LONG, "a\0b", "\ud800"], ids=["long", "nul", "surrogate"])
async def test_what_no_index_takes_is_refused_in_a_few_words_and_nothing_is_stored(
    checkpointer: Any, text: str
) -> None:
    for name, call in TEXT_PLACES.items():
        with pytest.raises((clew.InvalidInput, clew.NotFound)) as refused:
            await call(checkpointer, text)
        assert len(str(refused.value)) < 400, name
    assert (await checkpointer.list_threads()).items == ()


CONFIG_PLACES: dict[str, Call] = {
    "get": lambda c, config: c.get(config),
    "get_tuple": lambda c, config: c.get_tuple(config),
    "get_writes": lambda c, config: c.get_writes(config),
    "put_writes": lambda c, config: c.put_writes(config, []),
    "history": lambda c, config: c.history(config),
    "ancestors": lambda c, config: c.timeline.ancestors(config),
    "children": lambda c, config: c.timeline.children(config),
    "common_ancestor": lambda c, config: c.timeline.common_ancestor(LATEST, config),
    "diff": lambda c, config: c.timeline.diff(LATEST, config),
    "resume_point": lambda c, config: c.timeline.resume_point(config),
    "fork": lambda c, config: c.timeline.fork(config),
    "update_state": lambda c, config: c.timeline.update_state(config, {"a": 1}),
    "get_checkpoint": lambda c, config: c.runs.get_checkpoint(config),
}
WRONG: list[Any] = [5, b"x", None, True, 1.5, ["x"], {"a": 1}, 10**5000]
WRONG_PLACES: dict[str, Call] = {
    **CONFIG_PLACES,
    "put": lambda c, value: c.put(value),
    "a write's task_id": lambda c, value: c.put_writes(at("c"), [write(task_id=value)]),
    "a write's node": lambda c, value: c.put_writes(at("c"), [write(node=value)]),
    "a write's channel": lambda c, value: c.put_writes(at("c"), [write(channel=value)]),
    "a write": lambda c, value: c.put_writes(at("c"), [value]),
    "a carried write": lambda c, value: c.put(changed(pending_writes=(value,))),
    "a completed task": lambda c, value: c.put(changed(completed_tasks=(value,))),
    "a next node": lambda c, value: c.put(changed(next_nodes=(value,))),
    "an interrupt": lambda c, value: c.put(
        changed(interrupts=(Interrupt.model_construct(id=value, node="n", payload=1),))
    ),
    "an activation": lambda c, value: c.put(changed(pending_activations=(activation(value),))),
    "a barrier": lambda c, value: c.put(
        changed(barrier_arrivals=(BarrierArrivals.model_construct(node="n", arrived=(value,)),))
    ),
    "a lease's owner": lambda c, value: c.runs.acquire_lease("t", value, 1.0),
    "a namespace's part": lambda c, value: c.list("t", namespace=[value]),
    "heads": lambda c, value: c.timeline.heads(value),
}


def at(checkpoint_id: str) -> CheckpointConfig:
    return CheckpointConfig(thread_id="t", checkpoint_id=checkpoint_id)


def write(**fields: Any) -> PendingWrite:
    return PendingWrite(node="n", payload=1).model_copy(update=fields)


def activation(node: Any) -> PendingActivation:
    return PendingActivation.model_construct(node=node, send_arg=1, task_id="")


def changed(**fields: Any) -> Checkpoint[Any]:
    """A checkpoint with fields that were not validated."""
    return made().model_copy(update=fields)


async def test_what_is_of_a_wrong_type_is_refused_and_nothing_is_stored(checkpointer: Any) -> None:
    for name, call in WRONG_PLACES.items():
        for value in WRONG:
            with pytest.raises(clew.InvalidInput) as refused:
                await call(checkpointer, value)
            assert len(str(refused.value)) < 400, name
    for name, call in CONFIG_PLACES.items():
        with pytest.raises(clew.InvalidInput, match="CheckpointConfig, not str"):
            await call(checkpointer, "t")
        assert name
    assert (await checkpointer.list_threads()).items == ()


NUMBER_PLACES: dict[str, Call] = {
    "list limit": lambda c, value: c.list("t", limit=value),
    "list step": lambda c, value: c.list("t", step=value),
    "at_step": lambda c, value: c.timeline.at_step("t", value),
    "keep_last": lambda c, value: c.retention.prune("t", keep_last=value),
    "sweep batch": lambda c, value: c.retention.sweep(batch=value),
    "lease_token": lambda c, value: c.put(made(), lease_token=value),
    "ttl_s": lambda c, value: c.runs.acquire_lease("t", "me", value),
    "renew token": lambda c, value: c.runs.renew_lease("t", value),
    "release token": lambda c, value: c.runs.release_lease("t", value),
    "a write's idx": lambda c, value: c.put_writes(at("c"), [write(idx=value)]),
}


@pytest.mark.parametrize("value", ["x" * 9000, b"x", 1j, [1], {"a": 1}, True, float("nan"), -(10**5000)], ids=type)
async def test_what_is_no_number_is_refused_in_a_few_words(checkpointer: Any, value: Any) -> None:
    for name, call in NUMBER_PLACES.items():
        with pytest.raises(clew.InvalidInput) as refused:
            await call(checkpointer, value)
        assert len(str(refused.value)) < 400, name
    assert (await checkpointer.list_threads()).items == ()


class Rude:
    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no")

    def __hash__(self) -> int:
        raise RuntimeError("no")

    def __reduce__(self) -> str:
        raise RuntimeError("no")

    def __repr__(self) -> str:
        raise RuntimeError("no")


class Mapping(dict[str, Any]):
    pass


def nested(levels: int, wrap: Callable[[Any], Any] = lambda inner: [inner]) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = wrap(value)
    return value


@pytest.mark.parametrize(
    "value",
    [
        Rude(),
        Mapping(a=1),
        nested(2000),
        nested(2000, lambda inner: {"k": inner}),
        nested(2000, lambda inner: (inner,)),
        nested(203),
        {"set": {Mapping}},
    ],
    ids=["rude", "subclass", "lists", "mappings", "tuples", "just too deep", "a class"],
)
async def test_a_value_that_cannot_be_kept_is_refused_by_its_path_wherever_it_stands(
    checkpointer: Any, value: Any
) -> None:
    for path, fields in (
        ("state.a", {"state": {"a": value}}),
        ("state.a[1]", {"state": {"a": [0, value]}}),
        ("metadata.a", {"metadata": {"a": value}}),
        ("pending_writes[0].payload", {"pending_writes": (write(payload=value),)}),
        ("interrupts[0]", {"interrupts": (Interrupt(id="i", node="n", payload=value),)}),
        ("pending_activations[0]", {"pending_activations": (activation("n").model_copy(update={"send_arg": value}),)}),
    ):
        with pytest.raises(clew.Unserializable) as refused:
            await checkpointer.put(changed(**fields))
        assert refused.value.path.startswith(path)
        assert len(str(refused.value)) < 600
    assert (await checkpointer.list_threads()).items == ()


async def test_values_at_the_greatest_depth_come_back_from_everywhere(checkpointer: Any) -> None:
    state, payload, metadata = {"a": nested(199)}, nested(200), {"a": nested(199)}
    await checkpointer.put(
        changed(state=state, metadata=metadata, pending_writes=(PendingWrite(node="n", payload=payload),))
    )
    found = await checkpointer.get(LATEST)
    assert same(found.state, state)
    assert found.metadata == metadata
    assert found.pending_writes[0].payload == payload
    assert (await checkpointer.retention.verify()).ok


@pytest.mark.parametrize(
    "state",
    [
        {f"channel-{number}": number for number in range(20_000)},
        {"list": list(range(50_000))},
        {"big": [2**4000, -(2**4000)], "zero": [0.0, -0.0]},
        {1: "a", "1": "b", None: "c", (1, 2): "d"},
    ],
    ids=["channels", "elements", "numbers", "mixed keys"],
)
async def test_a_state_of_many_parts_or_of_odd_ones_comes_back(opener: Any, state: Any) -> None:
    async with opener() as writer, opener() as reader:
        await writer.put(made(state=state))
        assert same((await reader.get(LATEST)).state, state)
        assert same((await writer.get(LATEST)).state, state)


async def test_thousands_of_writes_come_back_in_their_order(checkpointer: Any) -> None:
    writes = [PendingWrite(node="n", payload=number, task_id="task", idx=number) for number in range(3000)]
    await checkpointer.put(made(pending_writes=tuple(writes[:1000])))
    await checkpointer.put_writes(at("c"), writes)
    assert await checkpointer.get_writes(at("c")) == writes
