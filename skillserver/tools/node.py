"""The face of the acceptance test of a node.

Thin: `procedures/node_check.py` runs and judges it. Every sample stays in the run folder; `detail=true` brings them here.

>>> (await check_node(parts=["health", "correctness"])).verdict
'ok'
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from skillserver.contract import tool
from skillserver.procedures import node_check
from skillserver.tools.run_results import Nodes

Part = Literal["health", "infiniband", "numa", "clock", "correctness", "matmul", "memory", "transfers", "peers", "all_reduce", "storage"]
NEXT = {
    "critical": "run no jobs here; do the first action, then call check_node again",
    "warning": "read the findings; `skillserver compare` shows this node beside others and its own past",
    "ok": "`skillserver compare` shows this node beside others and its own past",
    "unknown": "pass folder= and a python= whose torch sees the GPUs, so that more can be judged",
}


class NodeResult(BaseModel):
    """The table of parts, and what to make of it."""

    state: str = Field(description="done, running, failed, cancelled")
    job_id: str = ""
    verdict: str = Field(default="unknown", description="ok, warning, critical, unknown")
    summary: str = ""
    parts: list[dict[str, Any]] = Field(default_factory=list, description="part, verdict (also skipped), value (lowest), high, unit, n, note")
    findings: list[dict[str, Any]] = Field(default_factory=list, description="worst first")
    skipped: list[str] = Field(default_factory=list, description="what was not done and why")
    conditions: dict[str, Any] = Field(default_factory=dict, description="host, versions, interpreter")
    next: str = ""
    note: str = ""
    error: dict[str, Any] | None = None
    partial: bool = Field(default=False, description="the run was ended early")
    table: dict[str, Any] | None = Field(default=None, description="of several nodes: columns (median, spread, outliers), rows, failed")
    slurm: dict[str, Any] | None = Field(default=None, description="job_id, state, nodes")
    reason: str = Field(default="", description="of several nodes: what the verdict rests on")
    history_file: str = Field(default="", description="the result as skillserver compare reads it")
    samples_file: str = Field(default="", description="everything measured as JSON, on the host that ran it")
    samples: dict[str, Any] | None = None
    plan: dict[str, Any] | None = Field(default=None, description="of a dry run")


@tool(toolset="health", title="Accept a node", read_only=False, idempotent=False, runs=True)
async def check_node(
    parts: Annotated[list[Part] | None, Field(description="default: all that can run")] = None,
    budget_s: Annotated[float, Field(ge=8, le=600, description="seconds of measuring")] = 120,
    folder: Annotated[str, Field(description="writes, reads and removes 256 MiB here")] = "",
    nodes: Nodes = 0,
    wait_s: Annotated[float, Field(ge=0, description="seconds")] = 20,
    python: Annotated[str, Field(description="environment")] = "",
    dry_run: Annotated[bool, Field(description="plan only")] = False,
    detail: Annotated[bool, Field(description="samples")] = False,
) -> NodeResult:
    """Call before a new, repaired or suspect node runs jobs: its acceptance test, one verdict over all parts.
    Measures every GPU (else the CPU) and names outliers and wrong bits.

    health, infiniband, numa and clock start nothing and also run on a busy node. On GPUs the measurements are untested.
    """
    record = await node_check.check(parts=list(parts) if parts else None, budget_s=budget_s, folder=folder, wait_s=wait_s, python=python,
                                    dry_run=dry_run, nodes=nodes)  # fmt: skip
    told: dict[str, Any] = {"state": record.state, "job_id": record.job_id, "next": record.next, "note": record.note, "error": record.error}
    if dry_run:
        return NodeResult.model_validate(told | {"plan": record.result})
    file = Path(record.run_folder) / node_check.SAMPLES if record.run_folder else None
    if file and file.is_file():
        told["samples_file"] = str(file)
        told["samples"] = json.loads(file.read_text(encoding="utf-8")) if detail else None
    answer = record.result or {}
    return NodeResult.model_validate(told | answer | {"next": record.next or NEXT.get(answer.get("verdict", ""), "")})
