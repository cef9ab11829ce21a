"""Delta channels, whose values are rebuilt from writes: against a plain channel with the same reducer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, TypedDict

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph

from clew.langgraph import AsyncClewSaver, ClewSaver

pytestmark = pytest.mark.filterwarnings("ignore")  # LangGraph says that the channel is in beta


def joined(left: list[str], right: list[Any]) -> list[str]:
    """A reducer that takes one write or, as a delta channel calls it, all of a step."""
    return left + [text for item in right for text in (item if isinstance(item, list) else [item])]


def graph_with(channel: Any, saver: Any) -> Any:
    state = TypedDict("state", {"texts": Annotated[list[str], channel]})  # noqa: UP013  the annotation is a variable

    def node(name: str) -> Callable[[Any], dict[str, Any]]:
        return lambda state: {"texts": [f"{name} {len(state['texts'])}"]}

    graph = StateGraph(state)
    for name in ("left", "right", "end"):
        graph.add_node(name, node(name))
    graph.add_edge(START, "left")
    graph.add_edge(START, "right")
    graph.add_edge(["left", "right"], "end")
    return graph.compile(checkpointer=saver)


def shown(graph: Any, config: Any) -> list[Any]:
    return [
        (item.values.get("texts", []), item.next, item.metadata["source"], item.metadata["step"])
        for item in graph.get_state_history(config)
    ]


@contextmanager
def sync_saver(url: str) -> Iterator[Any]:
    with ClewSaver.from_url(url) as saver:
        yield saver


steps = st.lists(
    st.one_of(
        st.tuples(st.just("invoke"), st.text(max_size=5)),
        st.tuples(st.just("update"), st.integers(0, 9)),
        st.tuples(st.just("replay"), st.integers(0, 9)),
        st.tuples(st.just("prune"), st.just(0)),
    ),
    max_size=6,
)


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=steps, frequency=st.sampled_from([2, 3, 1000]))
def test_a_delta_channel_holds_what_a_plain_channel_holds(
    database_url: str, steps: list[tuple[str, Any]], frequency: int
) -> None:
    config: Any = {"configurable": {"thread_id": "t"}}
    with sync_saver(database_url) as saver:
        saver.delete_thread("t")
        delta = graph_with(DeltaChannel(joined, list[str], snapshot_frequency=frequency), saver)
        plain = graph_with(joined, InMemorySaver())
        pruned = False
        for kind, value in steps:
            if kind == "prune":
                saver.prune(["t"])
                pruned = True
                continue
            for graph in (delta, plain):
                history = list(graph.get_state_history(config))
                if kind == "invoke":
                    graph.invoke({"texts": [value]}, config)
                elif history and not pruned:
                    past = history[value % len(history)]
                    if kind == "update":
                        graph.update_state(past.config, {"texts": [f"update {value}"]}, "end")
                    else:
                        graph.invoke(None, past.config)
        if pruned:
            assert delta.get_state(config).values == plain.get_state(config).values
        else:
            assert shown(delta, config) == shown(plain, config)


@pytest.mark.parametrize("frequency", [2, 1000])
def test_pruning_keeps_what_the_latest_is_rebuilt_from(database_url: str, frequency: int) -> None:
    config: Any = {"configurable": {"thread_id": "t"}}
    with sync_saver(database_url) as saver:
        delta = graph_with(DeltaChannel(joined, list[str], snapshot_frequency=frequency), saver)
        plain = graph_with(joined, InMemorySaver())
        for text in ("a", "b", "c"):
            for graph in (delta, plain):
                graph.invoke({"texts": [text]}, config)
            saver.prune(["t"])
            assert delta.get_state(config).values == plain.get_state(config).values
        left = len(list(saver.list(config)))
        assert left == (12 if frequency == 1000 else 2)


def test_the_async_saver_rebuilds_it_too(database_url: str) -> None:
    async def run() -> Any:
        async with AsyncClewSaver.from_url(database_url) as saver:
            graph = graph_with(DeltaChannel(joined, list[str]), saver)
            for text in ("a", "b"):
                await graph.ainvoke({"texts": [text]}, {"configurable": {"thread_id": "t"}})
            return (await graph.aget_state({"configurable": {"thread_id": "t"}})).values

    assert asyncio.run(run())["texts"] == ["a", "left 1", "right 1", "end 3", "b", "left 5", "right 5", "end 7"]
