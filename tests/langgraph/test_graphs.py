"""Real graphs on clew's savers, compared snapshot by snapshot with the same graphs on LangGraph's in-memory saver."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

import langgraph_graphs as graphs
from langgraph_graphs import listed, shown
from langgraph_savers import opened

Scenario = Callable[["Run"], Awaitable[None]]


class Run:
    """One graph on one saver; sync graphs are driven from a worker thread, as a service would."""

    def __init__(self, saver: Any, face: str, durability: str) -> None:
        self.saver, self.face, self.durability = saver, face, durability
        self.graph: Any = None
        self.results: list[Any] = []

    def use(self, builder: Any) -> None:
        self.graph = builder.compile(checkpointer=self.saver)

    async def invoke(self, value: Any, config: dict[str, Any]) -> None:
        config = {**config, "metadata": {"user": "ann", "api_key": "s3cret"}}
        if self.face == "async":
            result = await self.graph.ainvoke(value, config, durability=self.durability)
        else:
            result = await asyncio.to_thread(lambda: self.graph.invoke(value, config, durability=self.durability))
        self.results.append(_shown_interrupts(result))

    async def update(self, config: dict[str, Any], values: Any, as_node: str | None = None) -> dict[str, Any]:
        if self.face == "async":
            return await self.graph.aupdate_state(config, values, as_node)
        return await asyncio.to_thread(self.graph.update_state, config, values, as_node)

    async def state(self, config: dict[str, Any], subgraphs: bool = False) -> Any:
        if self.face == "async":
            return await self.graph.aget_state(config, subgraphs=subgraphs)
        return await asyncio.to_thread(lambda: self.graph.get_state(config, subgraphs=subgraphs))

    async def history(self, config: dict[str, Any]) -> list[Any]:
        if self.face == "async":
            return [snapshot async for snapshot in self.graph.aget_state_history(config)]
        return await asyncio.to_thread(lambda: list(self.graph.get_state_history(config)))


THREAD = {"configurable": {"thread_id": "t"}}


async def a_tool_calling_agent(run: Run) -> None:
    run.use(graphs.react())
    for number in range(4):
        await run.invoke(graphs.question(number), THREAD)


async def branches_with_send(run: Run) -> None:
    run.use(graphs.parallel())
    await run.invoke({"topic": "trees"}, THREAD)
    await run.invoke({"topic": "more"}, THREAD)


async def interrupts_and_resuming(run: Run) -> None:
    run.use(graphs.approval())
    await run.invoke({"topic": "trees"}, THREAD)
    run.results.append(shown(await run.state(THREAD)))
    await run.invoke(Command(resume="yes"), THREAD)
    run.results.append(shown(await run.state(THREAD)))
    await run.invoke(Command(resume="very"), THREAD)


async def subgraphs_with_state_of_their_own(run: Run) -> None:
    run.use(graphs.nested())
    for number in range(2):
        await run.invoke({"topic": f"trees {number}"}, THREAD)
        run.results.append(shown(await run.state(THREAD, subgraphs=True)))
        await run.invoke(Command(resume=f"inner answer {number}"), THREAD)


async def an_update_of_an_old_checkpoint(run: Run) -> None:
    run.use(graphs.react())
    for number in range(3):
        await run.invoke(graphs.question(number), THREAD)
    old = (await run.history(THREAD))[-3]
    forked = await run.update(old.config, {"messages": [HumanMessage("something else", id="human-else")]}, "__start__")
    await run.invoke(None, forked)
    await run.invoke(graphs.question(9), THREAD)


async def time_travel_and_replay(run: Run) -> None:
    run.use(graphs.react())
    for number in range(3):
        await run.invoke(graphs.question(number), THREAD)
    past = (await run.history(THREAD))[-4]
    await run.invoke(None, past.config)
    await run.invoke(graphs.question(7), THREAD)


async def two_children_of_one_parent(run: Run) -> None:
    run.use(graphs.react())
    await run.invoke(graphs.question(0), THREAD)
    head = (await run.history(THREAD))[0]
    for text in ("left", "right"):
        child = await run.update(head.config, {"messages": [HumanMessage(text, id=f"human-{text}")]}, "tools")
        run.results.append(shown(await run.state(child)))


SCENARIOS: list[Scenario] = [
    a_tool_calling_agent,
    branches_with_send,
    interrupts_and_resuming,
    subgraphs_with_state_of_their_own,
    an_update_of_an_old_checkpoint,
    time_travel_and_replay,
    two_children_of_one_parent,
]


@pytest.fixture(params=["sync", "async"])
def face(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def saver(database_url: str, face: str) -> AsyncIterator[Any]:
    async with opened(database_url, face) as found:
        yield found


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_a_graph_runs_as_on_the_in_memory_saver(
    saver: Any, face: str, scenario: Scenario, durability: str
) -> None:
    ours, theirs = Run(saver, face, durability), Run(InMemorySaver(), face, durability)
    for run in (theirs, ours):
        try:
            await scenario(run)
        except IndexError:  # with durability="exit" there may be no such old checkpoint
            assert durability == "exit"
    assert ours.results == theirs.results
    assert [*map(shown, await ours.history(THREAD))] == [*map(shown, await theirs.history(THREAD))]
    if face == "sync":
        assert listed(saver) == listed(theirs.saver)


def _shown_interrupts(result: Any) -> Any:
    if isinstance(result, dict) and "__interrupt__" in result:
        return {**result, "__interrupt__": [item.value for item in result["__interrupt__"]]}
    return result


async def test_what_looks_like_a_secret_is_not_stored(saver: Any, face: str) -> None:
    run = Run(saver, face, "sync")
    await a_tool_calling_agent(run)
    found = await run.state(THREAD)
    assert found.metadata["user"] == "ann"
    assert "api_key" not in found.metadata
