"""LangGraph's own suite for checkpointers, whole: every capability, on every database, for both savers."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.conformance.capabilities import Capability
from langgraph.checkpoint.conformance.initializer import RegisteredCheckpointer
from langgraph.checkpoint.conformance.validate import validate

from langgraph_savers import opened


@pytest.mark.parametrize("face", ["sync", "async"])
async def test_the_released_conformance_suite_passes_whole(database_url: str, face: str) -> None:
    async def made() -> AsyncIterator[BaseCheckpointSaver]:
        async with opened(database_url, face) as saver:
            yield saver

    report = await validate(RegisteredCheckpointer(f"clew {face}", made))
    assert [failure for result in report.results.values() for failure in result.failures] == []
    assert {name for name, result in report.results.items() if result.passed} == {item.value for item in Capability}
    assert sum(result.tests_passed for result in report.results.values()) == 81
