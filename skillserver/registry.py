"""Every tool the product has, in the order people meet them, and which of them a given server offers.

One list makes the MCP tools, the CLI and the tables of README and SKILL.md. What is published of a tool (schema,
description, hints) is kept in data/tools.json, made by `skillserver.generated`, so that a server lists its tools without
importing what they need to run; a tool's module is imported at its first call.

>>> [tool.name for tool in select(toolsets=["core"])][:2]
['search_knowledge', 'read_knowledge']
"""

from __future__ import annotations

import difflib
import importlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from skillserver import paths
from skillserver.contract import TOOLSETS, Hints, Tool
from skillserver.errors import BadRequest

# tool -> the module of skillserver/tools that holds it
HOMES = {
    "search_knowledge": "knowledge",
    "read_knowledge": "knowledge",
    "explain_error": "diagnose",
    "diagnose_training_log": "training_log",
    "diagnose_hang": "hang",
    "check_gpu_health": "health",
    "estimate_gpu_hours": "estimate",
    "estimate_memory": "memory",
    "plan_parallelism": "layout",
    "run_mamf": "mamf",
    "run_all_reduce_bench": "collectives",
    "wait_job": "jobs",
    "describe_model": "models",
    "diagnose_memory": "device_memory",
    "diagnose_numerics": "numerics",
    "estimate_inference": "inference",
    "plan_checkpoints": "checkpoints",
    "compare_accelerators": "accelerators",
    "judge_measurement": "judge",
    "check_connectivity": "connectivity",
    "run_bandwidth_bench": "bandwidth",
    "run_storage_bench": "storage_bench",
    "run_inference_bench": "serving_bench",
    "check_node": "node",
    "inspect_slurm": "cluster",
    "write_launcher": "cluster",
}
PUBLISHED = "tools.json"
LONGEST_NAME = 60  # characters of an unknown name worth repeating


@dataclass(frozen=True)
class Listed:
    """A tool as a client sees it before the first call; `tool` imports the real one."""

    name: str
    title: str
    toolset: str
    description: str
    hints: Hints
    runs: bool
    aliases: tuple[str, ...]
    schemas: Mapping[str, Any]

    @property
    def tool(self) -> Tool[..., Any]:
        """The tool itself."""
        return load(self.name)

    def input_schema(self) -> dict[str, Any]:
        """Compact JSON Schema of the arguments."""
        return self.schemas["input"]

    def output_schema(self) -> dict[str, Any] | None:
        """Top-level fields of the result, None for Markdown."""
        return self.schemas["output"]

    async def call(self, arguments: Mapping[str, Any]) -> Any:
        """Validate and run it."""
        return await self.tool.call(arguments)


def load(name: str) -> Tool[..., Any]:
    """Import a tool by its own name."""
    module = importlib.import_module(f"skillserver.tools.{HOMES[name]}")
    return getattr(module, name)


def published(tool: Tool[..., Any]) -> dict[str, Any]:
    """What data/tools.json keeps of a tool."""
    return {"title": tool.title, "toolset": tool.toolset, "description": tool.description, "hints": vars(tool.hints), "runs": tool.runs,
            "aliases": list(tool.aliases), "schemas": {"input": tool.input_schema(), "output": tool.output_schema()}}  # fmt: skip


def _listed(name: str, kept: Mapping[str, Any]) -> Listed:
    """From the kept text; a tool that is not in it yet is imported (`make docs` then writes it)."""
    said = kept.get(name) or published(load(name))
    return Listed(name=name, **{**said, "hints": Hints(**said["hints"]), "aliases": tuple(said["aliases"])})


def _all() -> tuple[Listed, ...]:
    file = paths.data(PUBLISHED)
    kept = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return tuple(_listed(name, kept) for name in HOMES)


ALL: tuple[Listed, ...] = _all()
BY_NAME: dict[str, Listed] = {name: tool for tool in ALL for name in (tool.name, *tool.aliases)}


def toolsets() -> tuple[str, ...]:
    """The toolsets that have a tool, in their fixed order."""
    present = {tool.toolset for tool in ALL}
    return tuple(name for name in TOOLSETS if name in present)


def find(name: str) -> Listed:
    """The tool of that name or alias. Raises BadRequest with the near ones first."""
    if name in BY_NAME:
        return BY_NAME[name]
    near = difflib.get_close_matches(name, BY_NAME, 1, cutoff=0.5)
    raise _unknown(name, [tool.name for tool in ALL], f"skillserver call {near[0]} ..." if near else "skillserver tools")


def unknown(name: str, offered: list[str]) -> BadRequest:
    """The error for a tool that a server does not offer; the nearest of those it offers come first."""
    if name in BY_NAME:
        tool = BY_NAME[name]
        way = f"--tools {tool.name}" + (", without --read-only, over HTTP also with --allow-run" if tool.runs else "")
        return BadRequest("not_offered", f"{name} is not offered by this server", valid=offered, next=f"ask your user to start it with {way}")
    return _unknown(name, offered, "call one of these")


def _unknown(name: str, known: list[str], next: str) -> BadRequest:
    near = difflib.get_close_matches(name, known, 2, cutoff=0.5)
    shown = repr(name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}...")
    return BadRequest("unknown_tool", f"there is no tool {shown}", valid=[*near, *(other for other in known if other not in near)], next=next)


def select(*, toolsets: Iterable[str] = ("core",), names: Iterable[str] = (), read_only: bool = False, run: bool = True) -> list[Listed]:
    """The tools of those toolsets ("all" = every one) plus those named; without the ones that may not run here.

    Raises BadRequest for an unknown toolset or tool, or when nothing is left to serve.
    """
    wanted = _known_toolsets(toolsets)
    named = {find(name).name for name in names}
    chosen = [tool for tool in ALL if tool.toolset in wanted or tool.name in named]
    allowed = [tool for tool in chosen if (tool.hints.read_only or not read_only) and ((run and not read_only) or not tool.runs)]
    if not allowed:
        raise BadRequest("no_tools", "these options leave no tool to serve", next="drop --read-only or add --toolsets core")
    return allowed


def _known_toolsets(names: Iterable[str]) -> set[str]:
    wanted = {name.strip() for name in names if name.strip()}
    if "all" in wanted:
        return set(TOOLSETS)
    for name in sorted(wanted - set(TOOLSETS)):
        raise BadRequest("unknown_toolset", f"there is no toolset {name!r}", valid=["all", *toolsets()], next="serve --toolsets core")
    return wanted
