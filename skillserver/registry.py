"""Every tool the product has, in the order people meet them, and which of them a given server offers.

One list makes the MCP tools, the CLI and the tables of README and SKILL.md. Knows tools and toolsets; no transport.

>>> [tool.name for tool in select(toolsets=["core"])][:2]
['search_knowledge', 'read_knowledge']
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

from skillserver.contract import TOOLSETS, Tool
from skillserver.errors import BadRequest
from skillserver.tools.diagnose import explain_error
from skillserver.tools.estimate import estimate_gpu_hours
from skillserver.tools.health import check_gpu_health
from skillserver.tools.jobs import wait_job
from skillserver.tools.knowledge import read_knowledge, search_knowledge
from skillserver.tools.measure import run_all_reduce_bench, run_mamf

ALL: tuple[Tool[..., Any], ...] = (
    search_knowledge,
    read_knowledge,
    explain_error,
    check_gpu_health,
    estimate_gpu_hours,
    run_mamf,
    run_all_reduce_bench,
    wait_job,
)
BY_NAME: dict[str, Tool[..., Any]] = {name: tool for tool in ALL for name in (tool.name, *tool.aliases)}


def toolsets() -> tuple[str, ...]:
    """The toolsets that have a tool, in their fixed order."""
    present = {tool.toolset for tool in ALL}
    return tuple(name for name in TOOLSETS if name in present)


def find(name: str) -> Tool[..., Any]:
    """The tool of that name or alias. Raises BadRequest with the near ones first."""
    if name in BY_NAME:
        return BY_NAME[name]
    near = difflib.get_close_matches(name, BY_NAME, 2, cutoff=0.5)
    rest = [tool.name for tool in ALL if tool.name not in near]
    hint = f"skillserver call {near[0]} ..." if near else "skillserver tools"
    raise BadRequest("unknown_tool", f"there is no tool {name!r}", valid=[*near, *rest], next=hint)


def select(*, toolsets: Iterable[str] = ("core",), names: Iterable[str] = (), read_only: bool = False, run: bool = True) -> list[Tool[..., Any]]:
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
