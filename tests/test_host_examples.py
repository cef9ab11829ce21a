"""The examples for applications run, as a reader would run them."""

from __future__ import annotations

import asyncio
import importlib.util
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest

from hosting import SCHEMES

EXAMPLES = Path(__file__).parents[1] / "examples"


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # FastAPI looks annotations up there
    spec.loader.exec_module(module)
    return module


@pytest.fixture
async def service(empty_database_url: str) -> AsyncIterator[httpx.AsyncClient]:
    kind, _, rest = empty_database_url.partition(":")
    app = example("fastapi_service").create_app(SCHEMES[kind, "async"] + rest)
    transport = httpx.ASGITransport(app, raise_app_exceptions=True)
    async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport, base_url="http://t") as client:
        yield client


async def say(service: httpx.AsyncClient, text: str, expected_head: str | None, thread: str = "t") -> httpx.Response:
    return await service.post(f"/threads/{thread}/messages", json={"text": text, "expected_head": expected_head})


async def test_the_service_keeps_messages_and_its_outbox_together(service: httpx.AsyncClient) -> None:
    first = (await say(service, "hello", None)).json()["checkpoint_id"]
    second = (await say(service, "again", first)).json()["checkpoint_id"]
    assert (await service.get("/threads/t")).json() == {"messages": ["hello", "again"]}
    late = await say(service, "late", first)
    assert late.status_code == 409
    assert late.json()["error"] == "StaleHead"
    assert (await service.get("/outbox")).json() == [first, second]
    assert (await service.get("/threads/t")).json() == {"messages": ["hello", "again"]}


async def test_the_service_pages_through_a_history(service: httpx.AsyncClient) -> None:
    said: list[str] = []
    for number in range(5):
        said.append((await say(service, str(number), said[-1] if said else None)).json()["checkpoint_id"])
    seen: list[str] = []
    cursor = None
    for pages in (2, 2, 1):
        parameters: dict[str, Any] = {"limit": 2, **({"cursor": cursor} if cursor else {})}
        page = (await service.get("/threads/t/history", params=parameters)).json()
        assert len(page["items"]) == pages
        seen += [item["checkpoint_id"] for item in page["items"]]
        cursor = page["next_cursor"]
    assert seen == said[::-1]
    assert cursor is None


async def test_the_service_answers_errors_with_their_status(service: httpx.AsyncClient) -> None:
    assert (await service.get("/health")).json() == {"database": "ok"}
    assert (await service.get("/threads/none")).status_code == 404
    refused = await service.get("/threads/t/history", params={"cursor": "made up"})
    assert (refused.status_code, refused.json()["error"]) == (422, "InvalidInput")
    assert (await say(service, "hello", None, thread="x" * 2000)).status_code == 422


async def test_two_who_speak_at_once_are_told_so(service: httpx.AsyncClient) -> None:
    first = (await say(service, "hello", None)).json()["checkpoint_id"]
    answers = await asyncio.gather(*(say(service, f"me {number}", first) for number in range(4)))
    assert sorted(answer.status_code for answer in answers) == [201, 409, 409, 409]
    assert len((await service.get("/outbox")).json()) == 2


async def test_the_plain_loop_goes_on_where_it_was(empty_database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = example("plain_loop")
    step, calls = loop.step, 0

    async def interrupted(state: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise OSError("the model is away")
        return await step(state)

    monkeypatch.setattr(loop, "step", interrupted)
    with pytest.raises(OSError, match="away"):
        await loop.run(empty_database_url, "trip", "Plan a day")
    state = await loop.run(empty_database_url, "trip", "not asked again")
    assert [message["role"] for message in state["messages"]] == ["user", *["assistant", "tool"] * 2, "assistant"]
    assert state["messages"][0]["content"] == "Plan a day"
    assert calls == 6  # five steps, one of them begun twice


def test_the_plain_loop_runs_from_a_terminal(tmp_path: Path) -> None:
    command = [sys.executable, EXAMPLES / "plain_loop.py", f"sqlite:///{tmp_path / 'agent.db'}", "trip", "Plan a day"]
    first = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert first.startswith("user: Plan a day\n")
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == first
