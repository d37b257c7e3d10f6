"""The face of the bandwidth benchmark: memories, host-device copies and copies between accelerators.

Thin: `torch_bandwidth.py` measures, `procedures.guarded_run` runs it, `procedures.judged_bandwidth` says what it means.

>>> (await run_bandwidth_bench(device="cpu", budget_s=5)).rows[0]["gb_s"]
30.1
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from skillserver.contract import tool
from skillserver.procedures import devices_here, judged_bandwidth, node_table, on_nodes
from skillserver.procedures.guarded_run import run_guarded
from skillserver.tools.run_results import SAMPLES, STARTUP_S, Detail, DryRun, Nodes, Python, RunResult, Wait, fields
from skillserver.units import Bytes

Part = Literal["memory", "transfers", "peers"]
PARTS = ("memory", "transfers", "peers")


class BandwidthResult(RunResult):
    """Rates in GB/s = 10^9 bytes a second, one direction."""

    rows: list[dict[str, Any]] = Field(default_factory=list, description="what, device, gb_s, p5, p95, expected_low_gb_s, paper_gb_s, verdict")
    peers: dict[str, Any] = Field(default_factory=dict, description="devices; gb_s from (line) to (column); pairs through the host")
    compared_with: list[dict[str, Any]] = Field(default_factory=list, description="rates on paper with their source")
    devices: dict[str, str] = Field(default_factory=dict)
    history_file: str = Field(default="", description="as skillserver compare reads it")


@tool(toolset="measure", title="Measure memory and copy bandwidth", read_only=False, idempotent=False, runs=True)
async def run_bandwidth_bench(
    device: Annotated[str, Field(description="auto: every GPU, else cpu; cuda:1, cpu")] = "auto",
    parts: Annotated[list[Part] | None, Field(description="default: all that the device has")] = None,
    copy_bytes: Annotated[Bytes, Field(ge=2**20, le=2**34, description="of one transfer, or 64MiB")] = 2**28,
    budget_s: Annotated[float, Field(ge=2, le=600, description="in all")] = 15,
    nodes: Nodes = 0,
    wait_s: Wait = 20,
    python: Python = "",
    dry_run: DryRun = False,
    detail: Detail = False,
) -> BandwidthResult:
    """Call when data movement inside a node seems slow: memory (STREAM triad, copy), host-device both ways, pinned or not, GPU to GPU.
    Gives GB/s beside memory and link rates on paper.

    peers needs device="auto" and two GPUs. On CUDA, ROCm and XPU the worker is untested.
    """
    if nodes:
        told = {"device": device, "parts": parts, "copy_bytes": copy_bytes, "budget_s": budget_s}
        record = await on_nodes.each_node(tool="run_bandwidth_bench", arguments=told, nodes=nodes, values=node_table.of_rows, python=python,
                                          limit_s=1.5 * budget_s + STARTUP_S, wait_s=wait_s, dry_run=dry_run)  # fmt: skip
        return BandwidthResult.model_validate(fields(record, dry_run, detail))
    devices, unmeasured = await devices_here.every(python) if device == "auto" else ([device], "")
    wanted = [part for part in PARTS if part in (parts or PARTS)]
    arguments: dict[str, Any] = {"device": device, "parts": wanted, "copy_bytes": copy_bytes, "budget_s": budget_s}
    settings = {"devices": devices, "parts": wanted, "copy_bytes": copy_bytes, "budget_s": budget_s, "raw_file": SAMPLES}
    many = len(devices) if devices[0].startswith("cuda") and device == "auto" else 0
    record = await run_guarded(tool="run_bandwidth_bench", arguments=arguments, script="torch_bandwidth.py", settings=settings,
                               shape=judged_bandwidth.shaped(wanted, devices, devices_here.unmeasured(unmeasured)), gpus=many,
                               device=device, wait_s=wait_s, python=python or None, limit_s=1.5 * budget_s + STARTUP_S, dry_run=dry_run)  # fmt: skip
    return BandwidthResult.model_validate(fields(record, dry_run, detail))
