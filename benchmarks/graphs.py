"""Subject: LangGraph on clew's saver and on its own. Real message objects, and a graph that calls tools."""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Final

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langgraph.graph import END, START, MessagesState, StateGraph

from benchmarks.course import Course
from benchmarks.databases import Databases, size, vacuum
from benchmarks.messages import Messages
from benchmarks.report import Report
from benchmarks.scale import Scale
from benchmarks.sides import SaverSide, Side, clew_saver, langgraph_saver
from benchmarks.timing import Timings, interleaved, timed

__all__ = ["run"]

# (put at step 1,000 at least, get at least, list at least, the last 50 turns at least)
_BARS: Final = {"sqlite": (2.0, 0.9, 5.0, None), "postgres": (10.0, 2.0, 5.0, 1.5)}


async def run(report: Report, databases: Databases, scale: Scale) -> None:
    """The savers called directly, then through a graph, on each database and face."""
    for kind, face in scale.places:
        await _savers(report, databases, scale, kind, face)
        await _graph(report, databases, scale, kind, face)


async def _savers(report: Report, databases: Databases, scale: Scale, kind: str, face: str) -> None:
    where, size_of = f"{kind}, {face}", f"{scale.steps:,} LangChain messages"
    put, got, listed, _ = _BARS[kind]
    texts = Messages()
    async with AsyncExitStack() as stack:
        urls = [stack.enter_context(databases.fresh(kind)) for _ in range(2)]
        sides: list[Side] = [
            SaverSide(await stack.enter_async_context(opening(url, face)), face)
            for opening, url in zip((clew_saver, langgraph_saver), urls, strict=True)
        ]

        def tend() -> None:  # what autovacuum does in time: half of what clew writes to Postgres is merged and dead
            if kind == "postgres":
                for url in urls:
                    vacuum(url)

        course = Course(sides, lambda number: _message(number, texts.text()), tend=tend)
        await course.grow(scale.steps)
        await course.check()
        window = min(scale.window, scale.steps // 3)
        report.against(f"saver: put at {size_of}", where, *course.around(scale.steps, window), at_least=put)
        latest = await interleaved(scale.rounds, *course.works(lambda side, thread: side.latest(thread)), warm=3)
        report.against(f"saver: get_tuple at {size_of}", where, *latest, at_least=got)
        lists = await interleaved(scale.list_rounds, *course.works(lambda side, thread: side.list(thread, 100)))
        report.against(f"saver: list(limit=100) at {size_of}, full states", where, *lists, at_least=listed)
        if (kind, face) == next(place for place in scale.places if place[0] == kind):
            _bytes(report, kind, size_of, *urls)


def _bytes(report: Report, kind: str, size_of: str, ours_url: str, theirs_url: str) -> None:
    def line(what: str, at_least: float | None) -> None:
        ours, theirs = size(ours_url), size(theirs_url)
        texts = {"ours": f"{ours / 1024:,.0f} kB", "theirs": f"{theirs / 1024:,.0f} kB"}
        report.figure(f"saver: bytes after {size_of}{what}", kind, theirs / ours, "× less", **texts, at_least=at_least)

    if kind == "sqlite":
        line("", 200)
    else:
        line(", VACUUM every 100 puts", 200)
        for url in (ours_url, theirs_url):
            vacuum(url, "FULL")
        line(", after VACUUM FULL", None)


async def _graph(report: Report, databases: Databases, scale: Scale, kind: str, face: str) -> None:
    """Each turn is the user's question, a call of a tool, what it returns, and the answer."""
    where = f"{kind}, {face}"
    async with AsyncExitStack() as stack:
        graphs = []
        for opening in (clew_saver, langgraph_saver):
            url = stack.enter_context(databases.fresh(kind))
            graphs.append(_react(await stack.enter_async_context(opening(url, face))))
        questions = Messages()
        turns: list[list[float]] = [[], []]

        def turn(graph: Any, thread: str, text: str) -> Any:
            call = graph.invoke if face == "sync" else graph.ainvoke
            return call({"messages": [HumanMessage(text)]}, {"configurable": {"thread_id": thread}})

        for number in range(-2, scale.turns):
            text = questions.text(200)
            for place in (0, 1) if number % 2 else (1, 0):
                thread = "warm" if number < 0 else "thread"
                seconds = await timed(partial(turn, graphs[place], thread, text))
                if number >= 0:
                    turns[place].append(seconds)
        last = max(1, scale.turns // 6)
        whole = [Timings([sum(seconds)]) for seconds in turns]
        report.against(f"graph: ReAct run of {scale.turns} turns", where, *whole, at_most=1)
        ends = [Timings(seconds[-last:]) for seconds in turns]
        report.against(f"graph: a turn of the last {last}", where, *ends, at_least=_BARS[kind][3])


def _message(number: int, text: str) -> AnyMessage:
    if number % 2:
        return AIMessage(text, id=f"message-{number}")
    return HumanMessage(text, id=f"message-{number}")


def _react(saver: Any) -> Any:
    """A graph whose model is scripted: it asks for a tool once, then answers."""
    texts = Messages(seed=11)

    def agent(state: MessagesState) -> dict[str, Any]:
        last: Any = state["messages"][-1]
        if isinstance(last, ToolMessage):
            return {"messages": [AIMessage(texts.text(600))]}
        call = {"name": "look_up", "args": {"query": texts.text(60)}, "id": f"call-{len(state['messages'])}"}
        return {"messages": [AIMessage("", tool_calls=[call])]}

    def tools(state: MessagesState) -> dict[str, Any]:
        last: Any = state["messages"][-1]
        call = last.tool_calls[0]
        return {"messages": [ToolMessage(texts.text(800), tool_call_id=call["id"])]}

    def onwards(state: MessagesState) -> str:
        last: Any = state["messages"][-1]
        return "tools" if last.tool_calls else END

    builder = StateGraph(MessagesState)
    builder.add_node("agent", agent)
    builder.add_node("tools", tools)
    builder.add_edge(START, "agent")
    builder.add_conditional_edges("agent", onwards, ["tools", END])
    builder.add_edge("tools", "agent")
    return builder.compile(checkpointer=saver)
