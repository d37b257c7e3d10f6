"""The face of MAMF: what matmul FLOPS devices reach, and what a model's own matmuls allow.

Thin: `procedures.mamf_request` says what runs, `procedures.guarded_run` runs it, `procedures.judged_mamf` says what it
means. Raw samples stay in the run folder of the job; `detail=true` brings them into the answer.

>>> (await run_mamf(device="cpu", budget_s=10)).share_of_peak
0.83
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, Field

from skillserver import drawing
from skillserver.contract import tool
from skillserver.errors import BadRequest
from skillserver.procedures import judged_mamf, mamf_request, node_table, on_nodes
from skillserver.procedures.guarded_run import run_guarded
from skillserver.tools.run_results import SAMPLES, STARTUP_S, Detail, DryRun, Nodes, Plot, Python, RunResult, Wait, fields

DTYPES, LAYOUTS = ("auto", "fp32", "tf32", "bf16", "fp16", "fp8", "int8"), ("NT", "NN", "TN")


def _one_of(valid: tuple[str, ...]) -> Callable[[str], str]:
    """A check instead of an enum in the schema: every agent pays for each of its characters."""

    def check(value: str) -> str:
        if value not in valid:
            raise ValueError(f"pass one of {', '.join(valid)}")
        return value

    return check


class BestShape(BaseModel):
    """The fastest matmul; the interval is that of the median over fresh rounds."""

    m: int
    n: int
    k: int
    tflops: float
    ci_low: float | None = None
    ci_high: float | None = None


class MamfResult(RunResult):
    """What a device reaches at best."""

    best: BestShape | None = Field(default=None, description="m, n, k, tflops measured, ci_low, ci_high")
    device: str = ""
    device_name: str = ""
    dtype: str = ""
    trials: int | None = Field(default=None, description="shapes timed")
    peak_tflops: float | None = Field(default=None, description="on paper, dense; null when not known")
    peak_from: str = ""
    share_of_peak: float | None = None
    published_tflops: float | None = Field(default=None, description="what others measured on this part")
    runners_up: list[dict[str, Any]] = Field(default_factory=list)
    devices: list[dict[str, Any]] = Field(default_factory=list, description="of several: tflops, off_median, odd")
    matmul_tflops: float | None = Field(default=None, description="of a model: all its matmuls together")
    mfu_ceiling: float | None = Field(default=None, description="of a model: share of the peak that its matmuls alone allow")
    mfu_ceiling_interval: list[float] | None = Field(default=None, description="low, high")
    matmuls: list[dict[str, Any]] = Field(default_factory=list, description="of a model, by time")
    history_file: str = ""
    plot: str = ""


@tool(toolset="core", title="Measure achievable matmul FLOPS", read_only=False, idempotent=False, runs=True)
async def run_mamf(
    device: Annotated[str, Field(description="auto, cpu, cuda:1, mps, all at once, each in turn")] = "auto",
    dtype: Annotated[str, AfterValidator(_one_of(DTYPES)), Field(description="fp32 tf32 bf16 fp16 fp8 int8")] = "auto",
    layout: Annotated[str, AfterValidator(_one_of(LAYOUTS)), Field(description="NT, NN, TN")] = "NT",
    budget_s: Annotated[float, Field(description="240: steady clocks")] = 15,
    shapes: Annotated[list[list[int]] | None, Field(description="[m, n, k]")] = None,
    grid: Annotated[str, Field(description="start:stop:step")] = "",
    model: Annotated[str | dict[str, Any] | None, Field(description="time its matmuls")] = None,
    extra: Annotated[dict[str, Any] | None, Field(description="seq_len micro_batch tp")] = None,
    nodes: Nodes = 0,
    wait_s: Wait = 20,
    python: Python = "",
    dry_run: DryRun = False,
    detail: Detail = False,
    plot: Plot = "",
) -> MamfResult:
    """Call to learn what matmul FLOPS a GPU or CPU really reaches (MAMF), or what MFU a model's matmuls allow.
    Searches shapes, re-measures the best, compares with published figures.

    dtype auto is bf16 where the hardware has it and fp32 on CPUs. NT is a linear layer's forward pass. Devices may be listed:
    cuda:0,cuda:1. A grid is one range for m, n and k, or three with commas. `extra` says how the model is trained; seq_len is
    4096 by default. The result is written down with clocks, throttling and load. On CUDA, ROCm, XPU and MPS the worker is
    untested.
    """
    asked = mamf_request.Asked(device, dtype, layout, budget_s, shapes, grid, model, extra)
    arguments = {name: value for name, value in vars(asked).items() if value}
    request = await asyncio.to_thread(mamf_request.build, asked)
    limit_s = 1.3 * budget_s + request.startups * STARTUP_S
    if nodes:
        return await _on_nodes(nodes, arguments, limit_s, plot, wait_s=wait_s, python=python, dry_run=dry_run)
    if plot:
        drawing.wanted(plot)
    record = await run_guarded(tool="run_mamf", arguments=arguments, script=request.script, settings=request.settings | {"raw_file": SAMPLES},
                               shape=partial(judged_mamf.answer, request=request, plot=plot), device=device, wait_s=wait_s, python=python or None,
                               limit_s=limit_s, dry_run=dry_run)  # fmt: skip
    if dry_run and record.result is not None:
        record.result |= {"foreseen": request.foreseen}
    return MamfResult.model_validate(fields(record, dry_run, detail))


async def _on_nodes(nodes: int, arguments: dict[str, Any], limit_s: float, plot: str, **more: Any) -> MamfResult:
    """The table of many nodes."""
    if plot:
        raise BadRequest("plot_of_one_host", "plot draws the trials of one host, and nodes gives a table", next="leave plot or nodes out")
    record = await on_nodes.each_node(tool="run_mamf", arguments=arguments, nodes=nodes, values=node_table.of_matmul, limit_s=limit_s, **more)
    return MamfResult.model_validate(fields(record, more["dry_run"], detail=False))
