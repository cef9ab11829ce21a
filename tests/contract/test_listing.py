"""Listing checkpoints and threads: order, pages, filters."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import clew
from clew import Checkpoint, CheckpointSource, Interrupt

from probe import Probe


def made(checkpoint_id: str, metadata: Any = None, thread_id: str = "t", **fields: Any) -> Checkpoint[Any]:
    given = {} if metadata is None else {"metadata": metadata}
    return Checkpoint(thread_id=thread_id, checkpoint_id=checkpoint_id, state={"n": 1}, **given, **fields)


async def put_all(checkpointer: Any, *checkpoints: Checkpoint[Any]) -> None:
    for checkpoint in checkpoints:
        await checkpointer.put(checkpoint)


async def listed(checkpointer: Any, **options: Any) -> list[str]:
    return [item.checkpoint_id for item in (await checkpointer.list("t", **options)).items]


async def test_the_newest_come_first_or_last_as_asked(checkpointer: Any) -> None:
    await put_all(checkpointer, made("b"), made("a"), made("c"))
    assert await listed(checkpointer) == ["c", "a", "b"]
    assert await listed(checkpointer, newest_first=False) == ["b", "a", "c"]


@pytest.mark.invariant(17)
@pytest.mark.parametrize("newest_first", [True, False])
async def test_pages_hold_every_checkpoint_once(checkpointer: Any, newest_first: bool) -> None:
    await put_all(checkpointer, *[made(f"c{number}") for number in range(7)])
    pages, cursor = [], None
    while True:
        page = await checkpointer.list("t", limit=3, cursor=cursor, newest_first=newest_first)
        pages.append([item.checkpoint_id for item in page.items])
        if (cursor := page.next_cursor) is None:
            break
    expected = [["c6", "c5", "c4"], ["c3", "c2", "c1"], ["c0"]]
    assert pages == (expected if newest_first else [["c0", "c1", "c2"], ["c3", "c4", "c5"], ["c6"]])


async def test_a_page_that_is_just_full_is_the_last(checkpointer: Any) -> None:
    await put_all(checkpointer, made("a"), made("b"))
    page = await checkpointer.list("t", limit=2)
    assert (len(page.items), page.next_cursor) == (2, None)


@pytest.mark.invariant(17)
async def test_a_page_is_not_shifted_by_what_is_put_or_deleted_in_between(checkpointer: Any) -> None:
    await put_all(checkpointer, *[made(f"c{number}") for number in range(5)])
    first = await checkpointer.list("t", limit=2)
    await checkpointer.put(made("c5"))
    await checkpointer.delete_checkpoints("t", ["c3", "c2"])
    second = await checkpointer.list("t", limit=2, cursor=first.next_cursor)
    assert [item.checkpoint_id for item in first.items] == ["c4", "c3"]
    assert [item.checkpoint_id for item in second.items] == ["c1", "c0"]


async def test_iterate_gives_everything_page_by_page(checkpointer: Any) -> None:
    await put_all(checkpointer, *[made(f"c{number}", run_id="odd" if number % 2 else "even") for number in range(7)])
    found = [item.checkpoint_id async for item in checkpointer.iterate("t", page_size=2)]
    assert found == ["c6", "c5", "c4", "c3", "c2", "c1", "c0"]
    found = [
        item.checkpoint_id async for item in checkpointer.iterate("t", page_size=1, run_id="odd", newest_first=False)
    ]
    assert found == ["c1", "c3", "c5"]
    assert [item async for item in checkpointer.iterate("unknown")] == []


async def test_a_namespace_may_be_an_iterator_and_is_meant_on_every_page(checkpointer: Any) -> None:
    await put_all(checkpointer, *[made(f"c{number}", namespace=("a",)) for number in range(4)], made("c0"))
    found = [item.namespace async for item in checkpointer.iterate("t", page_size=2, namespace=iter(["a"]))]
    assert found == [("a",)] * 4
    assert [item async for item in checkpointer.iterate("t", page_size=1, under=iter(["b"]))] == []
    assert await listed(checkpointer, namespace=iter(["a"]), before="c2") == ["c1", "c0"]


@pytest.mark.parametrize("namespace", ["a", 1, [1], [["a"]], ["a\0"]], ids=repr)
async def test_what_is_no_namespace_is_refused(checkpointer: Any, namespace: Any) -> None:
    with pytest.raises(clew.InvalidInput, match="namespace"):
        await checkpointer.list("t", namespace=namespace)
    with pytest.raises(clew.InvalidInput, match="namespace"):
        await checkpointer.delete_checkpoints("t", ["c"], namespace=namespace)
    with pytest.raises(clew.InvalidInput, match="namespace"):
        [item async for item in checkpointer.iterate("t", under=namespace)]


@pytest.mark.invariant(19)
async def test_nothing_is_held_while_a_caller_iterates(checkpointer: Any) -> None:
    await put_all(checkpointer, *[made(f"c{number}") for number in range(4)])
    found = []
    async for item in checkpointer.iterate("t", page_size=1):
        found.append(item.checkpoint_id)
        await checkpointer.put(made(f"new-{len(found)}"))
        await checkpointer.delete_checkpoints("t", [f"new-{len(found)}"])
    assert found == ["c3", "c2", "c1", "c0"]


@pytest.mark.parametrize("limit", [0, -1, 10_001, True, "5", 1.5, None, 2**70])
async def test_a_limit_out_of_range_is_refused(checkpointer: Any, limit: Any) -> None:
    with pytest.raises(clew.InvalidInput, match="limit"):
        await checkpointer.list("t", limit=limit)
    with pytest.raises(clew.InvalidInput, match="limit"):
        await checkpointer.list_threads(limit=limit)


async def test_a_cursor_of_another_thread_order_or_listing_is_refused(checkpointer: Any) -> None:
    await put_all(checkpointer, made("a"), made("b"), made("a", thread_id="u"), made("b", thread_id="u"))
    cursor = (await checkpointer.list("t", limit=1)).next_cursor
    threads = (await checkpointer.list_threads(limit=1)).next_cursor
    for call in (
        lambda: checkpointer.list("u", cursor=cursor),
        lambda: checkpointer.list("unknown", cursor=cursor),
        lambda: checkpointer.list("t", cursor=cursor, newest_first=False),
        lambda: checkpointer.list("t", cursor=threads),
        lambda: checkpointer.list_threads(cursor=cursor),
    ):
        with pytest.raises(clew.InvalidInput, match="cursor"):
            await call()


@pytest.mark.parametrize(
    "cursor",
    ["", "x", "é", "AAAA", "bnVsbA", "e30", "W10", "WyJjaGVja3BvaW50cyJd", "WyJ0aHJlYWRzIl0"],
)
async def test_a_cursor_that_is_none_is_refused(checkpointer: Any, cursor: str) -> None:
    await checkpointer.put(made("a"))
    with pytest.raises(clew.InvalidInput, match="cursor"):
        await checkpointer.list("t", cursor=cursor)
    with pytest.raises(clew.InvalidInput, match="cursor"):
        await checkpointer.list_threads(cursor=cursor)


async def test_a_forged_cursor_is_refused(checkpointer: Any) -> None:
    await put_all(checkpointer, made("a"), made("b"), made("a", thread_id="u"))
    from clew.repository.cursors import decode_cursor, encode_cursor

    key, position, order = decode_cursor(
        (await checkpointer.list("t", limit=1)).next_cursor, "checkpoints", int, int, bool
    )
    for parts in ((key, 2**70, order), (key, True, order), (key, str(position), order), (key, position, order, 1)):
        with pytest.raises(clew.InvalidInput, match="cursor"):
            await checkpointer.list("t", cursor=encode_cursor("checkpoints", *parts))
    for parts in ((2**70, 1), (2**62, 1), (1, 2**70), (True, 1), ("1", 1), (1,)):
        with pytest.raises(clew.InvalidInput, match="cursor"):
            await checkpointer.list_threads(cursor=encode_cursor("threads", *parts))


async def test_metadata_without_source_and_step_is_loop_and_zero(checkpointer: Any) -> None:
    await put_all(
        checkpointer,
        made("a"),
        made("b", {"source": "nope", "step": "1"}),
        made("c", [1]),
        made("d", {"step": True}),
        made("e", {"step": 2**63}),
        made("f", {"source": 5}),
    )
    for item in (await checkpointer.list("t")).items:
        assert (item.source, item.step) == (CheckpointSource.LOOP, 0)


async def test_source_and_step_are_the_metadatas(checkpointer: Any) -> None:
    await put_all(
        checkpointer, made("a", {"source": "input", "step": -1}), made("b", {"step": 2**63 - 1, "source": "fork"})
    )
    [b, a] = (await checkpointer.list("t")).items
    assert (a.source, a.step) == (CheckpointSource.INPUT, -1)
    assert (b.source, b.step) == (CheckpointSource.FORK, 2**63 - 1)


async def test_a_record_says_what_the_checkpoint_said(checkpointer: Any) -> None:
    await checkpointer.put(made("root"))
    given = made(
        "a",
        {"source": "update", "step": 3},
        run_id="r",
        parent_checkpoint_id="root",
        next_nodes=("x", "y"),
        interrupts=(Interrupt(id="i", node="x", payload=1),),
    )
    await checkpointer.put(given)
    [item, _] = (await checkpointer.list("t")).items
    assert item == given.to_metadata().model_copy(update={"created_at": item.created_at})
    assert item.fork_origin is None


async def test_filters_by_run_source_and_step(checkpointer: Any) -> None:
    await put_all(
        checkpointer,
        made("a", {"source": "input", "step": -1}, run_id="r1"),
        made("b", {"source": "loop", "step": 0}, run_id="r1"),
        made("c", {"source": "loop", "step": 1}, run_id="r2"),
        made("d", {"source": "update", "step": 1}),
    )
    assert await listed(checkpointer, run_id="r1") == ["b", "a"]
    assert await listed(checkpointer, run_id="r3") == []
    assert await listed(checkpointer, source="loop") == ["c", "b"]
    assert await listed(checkpointer, source=CheckpointSource.UPDATE) == ["d"]
    assert await listed(checkpointer, step=1) == ["d", "c"]
    assert await listed(checkpointer, step=-1) == ["a"]
    assert await listed(checkpointer, source="loop", step=1, run_id="r2") == ["c"]
    assert await listed(checkpointer, source="loop", step=1, run_id="r1") == []
    with pytest.raises(clew.InvalidInput, match="source"):
        await listed(checkpointer, source="nope")


async def test_filters_by_namespace_and_by_everything_below_one(checkpointer: Any) -> None:
    namespaces = [
        (),
        ("a",),
        ("a", "b"),
        ("a", "b", "c"),
        ("ab",),
        ("a,b",),
        ('a"',),
        ("é",),
        ("é", "x"),
        ("",),
        ("", "a"),
    ]
    for number, namespace in enumerate(namespaces):
        await checkpointer.put(made(f"c{number}", namespace=namespace))

    async def found(**options: Any) -> list[tuple[str, ...]]:
        return [item.namespace for item in (await checkpointer.list("t", newest_first=False, **options)).items]

    assert await found() == namespaces
    assert await found(namespace=()) == [()]
    assert await found(namespace=["a"]) == [("a",)]
    assert await found(under=()) == namespaces
    assert await found(under=("a",)) == [("a",), ("a", "b"), ("a", "b", "c")]
    assert await found(under=("a", "b")) == [("a", "b"), ("a", "b", "c")]
    assert await found(under=("é",)) == [("é",), ("é", "x")]
    assert await found(under=("",)) == [("",), ("", "a")]
    assert await found(under=('a"',)) == [('a"',)]
    assert await found(under=("a",), namespace=("a", "b")) == [("a", "b")]
    with pytest.raises(clew.InvalidInput, match="namespace"):
        await found(namespace="a")


async def test_filters_by_before_and_after_a_checkpoint_without_it(checkpointer: Any) -> None:
    await put_all(checkpointer, *[made(f"c{number}") for number in range(5)])
    await put_all(checkpointer, made("c1", namespace=("child",)), made("c9", namespace=("child",)))
    assert await listed(checkpointer, before="c2") == ["c1", "c0"]
    assert await listed(checkpointer, after="c2", namespace=()) == ["c4", "c3"]
    assert await listed(checkpointer, after="c0", before="c3") == ["c2", "c1"]
    assert await listed(checkpointer, after="c1", namespace=("child",)) == ["c9"]
    assert await listed(checkpointer, before="unknown") == []
    assert await listed(checkpointer, after="unknown") == []


async def test_filters_by_the_moment(checkpointer: Any) -> None:
    await put_all(checkpointer, made("a"), made("b"), made("c"))
    [c, b, a] = [item.created_at for item in (await checkpointer.list("t")).items]
    assert await listed(checkpointer, created_after=c) == []
    assert await listed(checkpointer, created_before=a) == []
    assert await listed(checkpointer, created_after=a - timedelta(days=1), created_before=c + timedelta(days=1)) == [
        "c",
        "b",
        "a",
    ]
    assert "b" not in await listed(checkpointer, created_before=b)
    with pytest.raises(clew.InvalidInput, match="created_before"):
        await listed(checkpointer, created_before=datetime(2026, 1, 1))
    assert await listed(checkpointer, created_before=datetime(1, 1, 1, tzinfo=UTC)) == []
    assert await listed(checkpointer, created_after=datetime(9999, 12, 31, tzinfo=UTC)) == []


METADATA: list[Any] = [
    {"flag": True},
    {"flag": 1},
    {"flag": 1.0},
    {"nothing": None},
    {"a.b": 1},
    {"a": {"b": 1}},
    {"a": {"b": 1, "c": 2}},
    {"tags": ["a", "b"]},
    {"x') OR 1=1--": 1},
    {'quo"te': "va'lue"},
    {"source": "loop", "step": 4},
    {"n": 10**16, "m": 1e16},
    {"text": "a\0b", "lone": "\ud800"},
    {},
    None,
    ["flag", True],
    {"": 0},
    {"flag": False, "nothing": 0, "a": {"c": 2, "b": 1}},
    {"step": -0.0},
]


@pytest.mark.invariant(18)
@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({"flag": True}, [0]),
        ({"flag": 1}, [1]),
        ({"flag": 1.0}, [2]),
        ({"flag": False}, [17]),
        ({"nothing": None}, [3]),
        ({"nothing": 0}, [17]),
        ({"missing": None}, []),
        ({"a.b": 1}, [4]),
        ({"a": {"b": 1}}, [5]),
        ({"a": {"c": 2, "b": 1}}, [6, 17]),
        ({"tags": ["a"]}, []),
        ({"tags": ["a", "b"]}, [7]),
        ({"tags": ["b", "a"]}, []),
        ({"x') OR 1=1--": 1}, [8]),
        ({"x') OR 1=1--": 2}, []),
        ({'quo"te': "va'lue"}, [9]),
        ({"source": "loop"}, [10]),
        ({"step": 4}, [10]),
        ({"step": 4, "source": "loop"}, [10]),
        ({"step": 4.0}, []),
        ({"step": 0}, []),
        ({"step": -0.0}, [18]),
        ({"step": 0.0}, []),
        ({"n": 10**16}, [11]),
        ({"n": 1e16}, []),
        ({"n": 10**16, "m": 1e16}, [11]),
        ({"n": 10**16, "flag": True}, []),
        ({"text": "a\0b"}, [12]),
        ({"lone": "\ud800"}, [12]),
        ({"": 0}, [16]),
        ({}, list(range(19))),
        ({"%": 1}, []),
        ({"flag": "true"}, []),
    ],
    ids=lambda value: repr(value) if isinstance(value, dict) else "",
)
async def test_a_metadata_filter_means_whole_values_of_top_level_keys(
    checkpointer: Any, wanted: dict[str, Any], expected: list[int]
) -> None:
    for number, metadata in enumerate(METADATA):
        await checkpointer.put(Checkpoint(thread_id="t", checkpoint_id=f"c{number}", state=0, metadata=metadata))
    found = await listed(checkpointer, metadata=wanted, newest_first=False)
    assert found == [f"c{number}" for number in expected]


async def test_a_filter_that_matches_few_still_fills_its_pages(checkpointer: Any) -> None:
    await put_all(checkpointer, *[made(f"c{number}", {"third": number % 3 == 0}) for number in range(20)])
    first = await checkpointer.list("t", metadata={"third": True}, limit=4)
    assert [item.checkpoint_id for item in first.items] == ["c18", "c15", "c12", "c9"]
    second = await checkpointer.list("t", metadata={"third": True}, limit=4, cursor=first.next_cursor)
    assert [item.checkpoint_id for item in second.items] == ["c6", "c3", "c0"]
    assert second.next_cursor is None


async def test_a_filter_value_that_is_no_json_is_refused(checkpointer: Any) -> None:
    await checkpointer.put(made("a"))
    with pytest.raises(clew.InvalidInput, match="metadata"):
        await listed(checkpointer, metadata={"a": (1, 2)})
    with pytest.raises(clew.InvalidInput, match="metadata"):
        await listed(checkpointer, metadata={"a": 10**5000})


@pytest.mark.parametrize("step", [2**63, 2**70, True, "1", 1.0])
async def test_a_step_that_no_column_can_hold_is_refused(checkpointer: Any, step: Any) -> None:
    await checkpointer.put(made("a"))
    with pytest.raises(clew.InvalidInput, match="step"):
        await listed(checkpointer, step=step)


async def test_threads_are_listed_by_their_last_activity(checkpointer: Any) -> None:
    for thread_id in ("t1", "t2", "t3"):
        await checkpointer.put(made("a", thread_id=thread_id))
    await checkpointer.put(made("b", thread_id="t1"))
    page = await checkpointer.list_threads()
    assert [thread.thread_id for thread in page.items] == ["t1", "t3", "t2"]
    assert page.next_cursor is None
    assert all(thread.updated_at >= thread.created_at for thread in page.items)


async def test_threads_come_in_pages(checkpointer: Any) -> None:
    for number in range(5):
        await checkpointer.put(made("a", thread_id=f"t{number}"))
    first = await checkpointer.list_threads(limit=2)
    second = await checkpointer.list_threads(limit=2, cursor=first.next_cursor)
    third = await checkpointer.list_threads(limit=2, cursor=second.next_cursor)
    found = [[thread.thread_id for thread in page.items] for page in (first, second, third)]
    assert found == [["t4", "t3"], ["t2", "t1"], ["t0"]]
    assert third.next_cursor is None


async def test_a_thread_is_found_with_its_number_of_checkpoints(checkpointer: Any) -> None:
    await put_all(checkpointer, made("a"), made("b"), made("a", namespace=("child",)))
    thread = await checkpointer.get_thread("t")
    assert (thread.thread_id, thread.checkpoint_count, thread.metadata, thread.expires_at) == ("t", 3, None, None)
    assert thread.updated_at == (await checkpointer.list("t", limit=1)).items[0].created_at


async def test_a_source_that_a_newer_clew_wrote_is_an_error_that_names_the_checkpoint(
    checkpointer: Any, probe: Probe
) -> None:
    await checkpointer.put(clew.Checkpoint(thread_id="t", checkpoint_id="c1", state=1))
    with probe.connection() as connection:
        connection.execute(probe.tables.checkpoints.update().values(source="rewind"))
    with pytest.raises(clew.CorruptData, match=r"checkpoint 'c1' of thread 't': its source 'rewind' is not known here"):
        await checkpointer.list("t")
