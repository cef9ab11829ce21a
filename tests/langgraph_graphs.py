"""The graphs of these tests, deterministic, with real LangChain messages; and snapshots without ids and times."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, Send, interrupt


class Chat(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


def model(state: Chat) -> dict[str, Any]:
    """A scripted model: it calls a tool for each message of a person, and answers once it has the result."""
    number, last = len(state["messages"]), state["messages"][-1]
    if isinstance(last, HumanMessage):
        call = {"name": "look_up", "args": {"what": last.content, "limit": 3}, "id": f"call-{number}"}
        return {"messages": [AIMessage("", tool_calls=[call], id=f"ai-{number}")]}
    usage = {"input_tokens": 10 * number, "output_tokens": 7, "total_tokens": 10 * number + 7}
    return {"messages": [AIMessage(f"It is {last.content}", usage_metadata=usage, id=f"ai-{number}")]}


def tools(state: Chat) -> dict[str, Any]:
    [call] = state["messages"][-1].tool_calls  # type: ignore[union-attr]
    content = f"the result for {call['args']['what']}"
    return {"messages": [ToolMessage(content, tool_call_id=call["id"], id=f"tool-{len(state['messages'])}")]}


def react() -> StateGraph[Any, Any, Any, Any]:
    graph = StateGraph(Chat)
    graph.add_node("model", model)
    graph.add_node("tools", tools)
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", lambda state: "tools" if state["messages"][-1].tool_calls else END)
    graph.add_edge("tools", "model")
    return graph


def question(number: int, text: str = "something") -> dict[str, Any]:
    return {"messages": [HumanMessage(f"{text} {number}", id=f"human-{number}")]}


class Work(TypedDict, total=False):
    topic: str
    parts: Annotated[list[str], operator.add]
    approved: str
    inner: str
    inner_parts: Annotated[list[str], operator.add]


def parallel() -> StateGraph[Any, Any, Any, Any]:
    """Branches by Send, two plain parallel nodes, and a join."""
    graph = StateGraph(Work)
    graph.add_node("plan", lambda state: {"topic": state["topic"].upper()})
    graph.add_node("part", lambda state: {"parts": [f"{state['topic']}-{state['number']}"]})
    graph.add_node("left", lambda state: {"parts": ["left"]})
    graph.add_node("right", lambda state: {"parts": ["right"]})
    graph.add_node("join", lambda state: {"parts": [f"{len(state['parts'])} parts"]})
    graph.add_edge(START, "plan")
    graph.add_conditional_edges(
        "plan",
        lambda state: [Send("part", {"topic": state["topic"], "number": number}) for number in range(3)],
        ["part"],
    )
    graph.add_edge("plan", "left")
    graph.add_edge("plan", "right")
    graph.add_edge(["left", "right", "part"], "join")
    graph.add_edge("join", END)
    return graph


def approval() -> StateGraph[Any, Any, Any, Any]:
    """Asks twice, once in each of two nodes, and jumps by Command."""

    def ask(state: Work) -> Command[Any]:
        answer = interrupt({"question": "go on?", "topic": state["topic"]})
        return Command(update={"approved": answer, "parts": ["asked"]}, goto="again")

    def again(state: Work) -> dict[str, Any]:
        return {"parts": [interrupt("sure?")]}

    graph = StateGraph(Work)
    graph.add_node("ask", ask, destinations=("again",))
    graph.add_node("again", again)
    graph.add_edge(START, "ask")
    graph.add_edge("again", END)
    return graph


def nested() -> StateGraph[Any, Any, Any, Any]:
    """A subgraph that interrupts, with the parent's checkpointer, and one that keeps its own state between calls."""
    asking = StateGraph(Work)
    asking.add_node("first", lambda state: {"inner": state["topic"], "inner_parts": ["first"]})
    asking.add_node("second", lambda state: {"inner_parts": [interrupt(f"inner {state['inner']}?")]})
    asking.add_edge(START, "first")
    asking.add_edge("first", "second")

    keeping = StateGraph(Work)
    keeping.add_node("count", lambda state: {"inner_parts": [f"call {len(state.get('inner_parts', []))}"]})
    keeping.add_edge(START, "count")

    graph = StateGraph(Work)
    graph.add_node("asking", asking.compile())
    graph.add_node("keeping", keeping.compile(checkpointer=True))
    graph.add_node("done", lambda state: {"parts": ["done"]})
    graph.add_edge(START, "asking")
    graph.add_edge("asking", "keeping")
    graph.add_edge("keeping", "done")
    return graph


def listed(saver: Any) -> list[Any]:
    """All checkpoints of all namespaces, without ids and times."""
    found = []
    for item in saver.list({"configurable": {"thread_id": "t"}}):
        namespace = item.config["configurable"]["checkpoint_ns"].split(":")[0]
        metadata = {key: item.metadata.get(key) for key in ("source", "step", "user")}
        writes = sorted(repr((channel, _shown_value(value))) for _, channel, value in item.pending_writes)
        values = {name: _shown_value(value) for name, value in item.checkpoint["channel_values"].items()}
        found.append(repr((namespace, metadata, item.parent_config is None, writes, sorted(values.items()))))
    return sorted(found)


def shown(snapshot: Any) -> dict[str, Any]:
    """A snapshot without what differs between any two runs: ids and times."""
    return {
        "values": snapshot.values,
        "next": snapshot.next,
        "metadata": {key: snapshot.metadata.get(key) for key in ("source", "step", "user")},
        "has parent": snapshot.parent_config is not None,
        "interrupts": [item.value for item in snapshot.interrupts],
        "tasks": [
            (
                task.name,
                task.path,
                repr(task.error),
                [item.value for item in task.interrupts],
                shown(task.state) if hasattr(task.state, "values") and not isinstance(task.state, dict) else None,
                task.result,
            )
            for task in snapshot.tasks
        ],
    }


def _shown_value(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_shown_value(item) for item in value]
    return getattr(value, "value", value)
