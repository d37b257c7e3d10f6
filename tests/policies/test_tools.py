"""Every tool: its published schema, its price in tokens, its place in README and SKILL.md, its four hints."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from skillserver import contract, prompts, registry

ROOT = Path(__file__).resolve().parents[2]
SNAPSHOTS = ROOT / "tests/snapshots"
CHARACTERS_A_TOKEN = 4
LIMITS = {"tool": 350, "core": 3000, "all": 8000}


def tokens(tool: registry.Listed) -> float:
    said = {"name": tool.name, "description": tool.description, "inputSchema": tool.input_schema()}
    return len(contract.compact_json(said)) / CHARACTERS_A_TOKEN


def published(tool: registry.Listed) -> dict[str, Any]:
    return {"name": tool.name, "title": tool.title, "toolset": tool.toolset, "description": tool.description, "hints": vars(tool.hints),
            "input_schema": tool.input_schema(), "output_schema": tool.output_schema()}  # fmt: skip


@pytest.mark.parametrize("tool", registry.ALL, ids=lambda tool: tool.name)
def test_the_published_schema_is_the_snapshot(tool: registry.Listed) -> None:
    file = SNAPSHOTS / f"{tool.name}.json"
    now = json.dumps(published(tool), indent=1, ensure_ascii=False) + "\n"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(now, encoding="utf-8")
    assert file.is_file(), f"no snapshot of {tool.name}: run UPDATE_SNAPSHOTS=1 pytest {Path(__file__).name} and read the diff"
    assert file.read_text(encoding="utf-8") == now, "a client may rest on the old schema: update the snapshot on purpose (UPDATE_SNAPSHOTS=1)"


@pytest.mark.parametrize("tool", registry.ALL, ids=lambda tool: tool.name)
def test_a_tool_costs_at_most_its_share_of_the_context(tool: registry.Listed) -> None:
    assert tokens(tool) <= LIMITS["tool"]


def test_the_core_set_and_all_tools_stay_within_their_budgets() -> None:
    assert sum(tokens(tool) for tool in registry.select()) <= LIMITS["core"]
    assert sum(tokens(tool) for tool in registry.ALL) <= LIMITS["all"]
    assert len(registry.select()) <= 12


@pytest.mark.parametrize("tool", registry.ALL, ids=lambda tool: tool.name)
def test_every_argument_is_described(tool: registry.Listed) -> None:
    for name, argument in tool.input_schema()["properties"].items():
        assert argument.get("description"), f"{tool.name}.{name} says nothing"


@pytest.mark.parametrize("file", ["README.md", "SKILL.md"])
def test_every_tool_stands_in(file: str) -> None:
    text = (ROOT / file).read_text(encoding="utf-8")
    assert [tool.name for tool in registry.ALL if f"`{tool.name}`" not in text] == []


def test_no_snapshot_outlives_its_tool() -> None:
    assert {file.stem for file in SNAPSHOTS.glob("*.json")} == {tool.name for tool in registry.ALL}


def test_instructions_name_what_is_offered_and_what_is_off_and_fit() -> None:
    full, reading = prompts.instructions(registry.ALL), prompts.instructions(registry.select(read_only=True))
    assert len(full) <= prompts.LIMIT
    assert all(tool.name in full for tool in registry.select())
    assert "Switched off here: run_mamf" in reading
    assert len(reading) <= prompts.LIMIT


def test_what_starts_work_is_never_called_read_only() -> None:
    assert [tool.name for tool in registry.ALL if tool.runs and tool.hints.read_only] == []
