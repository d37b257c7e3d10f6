"""The faces of the benchmarks: MAMF of one device, collectives between local ranks.

Thin: the worker measures, `procedures.guarded_run` runs it, `procedures.judged_runs` says what it means. Raw samples
stay in the run folder of the job; `detail=true` brings them into the answer.

>>> (await run_mamf(device="cpu", budget_s=10)).share_of_peak
0.83
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from skillserver.contract import tool
from skillserver.errors import BadRequest
from skillserver.jobs.store import JobRecord
from skillserver.procedures import judged_runs
from skillserver.procedures.guarded_run import run_guarded
from skillserver.units import Bytes

SAMPLES = "samples.json"
STARTUP_S = 120.0  # torch from a slow disk takes a minute
DEVICE_OF = {"gloo": "cpu", "nccl": "cuda", "xccl": "xpu", "auto": "auto"}

Shape = Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=3, max_length=3)]
Wait = Annotated[float, Field(ge=0, description="seconds")]
Python = Annotated[str, Field(description="environment")]
DryRun = Annotated[bool, Field(description="plan only")]
Detail = Annotated[bool, Field(description="samples")]


class RunResult(BaseModel):
    """What every benchmark answers."""

    state: str = Field(description="done, running, failed, cancelled")
    job_id: str = ""
    next: str = ""
    note: str = ""
    error: dict[str, Any] | None = None
    verdict: str = Field(default="unknown", description="ok, warning, critical, unknown")
    reason: str = Field(default="", description="what the verdict rests on")
    findings: list[dict[str, Any]] = Field(default_factory=list)
    conditions: dict[str, Any] = Field(default_factory=dict, description="device, software, clocks, load and method while measuring")
    assumptions: list[str] = Field(default_factory=list)
    sections: list[str] = Field(default_factory=list, description="ids for read_knowledge")
    skipped: list[str] = Field(default_factory=list, description="what was not done and why")
    partial: bool = Field(default=False, description="the run was ended early")
    samples_file: str = Field(default="", description="every sample as JSON, on the host that ran it")
    samples: list[Any] | None = None
    plan: dict[str, Any] | None = Field(default=None, description="of a dry run")


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


class CollectiveResult(RunResult):
    """A collective, size by size."""

    rows: list[dict[str, Any]] = Field(default_factory=list, description="bytes, time_us, algbw_gb_s, busbw_gb_s, p5_us..p95_us, correct")
    collective: str = ""
    dtype: str = ""
    nproc: int | None = None
    backend: str | None = None
    device_name: str | None = None
    busbw_factor: float | None = Field(default=None, description="busbw / algbw")
    compared_with: str = Field(default="", description="settings of the reference")
    slowest_rank: int | None = Field(default=None, description="only when it is an outlier")


@tool(toolset="core", title="Measure achievable matmul FLOPS", read_only=False, idempotent=False, runs=True)
async def run_mamf(
    device: Annotated[str, Field(description="auto, cpu, cuda, cuda:1, xpu, mps")] = "auto",
    dtype: Annotated[
        Literal["auto", "fp32", "tf32", "bf16", "fp16", "fp8"], Field(description="auto: bf16 if the hardware has it, fp32 on CPUs")
    ] = "auto",
    budget_s: Annotated[float, Field(ge=2, le=1200, description="240 for steady clocks")] = 15,
    shapes: Annotated[list[Shape] | None, Field(max_length=200, description="[m, n, k], instead of a search")] = None,
    wait_s: Wait = 20,
    python: Python = "",
    dry_run: DryRun = False,
    detail: Detail = False,
) -> MamfResult:
    """Call to learn what a GPU or CPU really reaches (MAMF) before judging MFU or a node.
    Searches matmul shapes, re-measures the best, compares with peak and published figures.

    The result is written down with clocks, throttling and load. On CUDA, ROCm, XPU and MPS the worker is untested.
    """
    settings: dict[str, Any] = {"device": device, "dtype": dtype, "budget_s": budget_s, "raw_file": SAMPLES}
    if shapes:
        settings["shapes"] = shapes
    arguments = {"device": device, "dtype": dtype, "budget_s": budget_s, "shapes": shapes}
    record = await run_guarded(tool="run_mamf", arguments=arguments, script="torch_matmul.py", settings=settings, shape=judged_runs.matmul,
                               device=device, wait_s=wait_s, python=python or None, limit_s=1.3 * budget_s + STARTUP_S, dry_run=dry_run)  # fmt: skip
    return MamfResult.model_validate(_fields(record, dry_run, detail))


@tool(toolset="core", title="Measure collectives", read_only=False, idempotent=False, runs=True)
async def run_all_reduce_bench(
    collective: Annotated[
        Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce"], Field(description="operation")
    ] = "all_reduce",
    sizes: Annotated[list[Bytes] | None, Field(description="bytes or 64MiB")] = None,
    nproc: Annotated[int, Field(ge=2, le=64, description="ranks")] = 2,
    backend: Annotated[Literal["auto", "gloo", "nccl", "xccl"], Field(description="gloo: CPU")] = "auto",
    dtype: Annotated[Literal["fp32", "bf16", "fp16"], Field(description="elements")] = "fp32",
    budget_s: Annotated[float, Field(ge=2, le=1200, description="in all")] = 15,
    wait_s: Wait = 20,
    python: Python = "",
    dry_run: DryRun = False,
    detail: Detail = False,
) -> CollectiveResult:
    """Call when communication seems slow: measures collectives between ranks on this host.
    Gives checked algbw and busbw beside healthy nodes'.

    Sizes count as in nccl-tests: for gather, scatter and all_to_all the whole over all ranks.
    busbw = algbw x 2(n-1)/n for all_reduce. On NCCL and XCCL the worker is untested.
    """
    if sizes and min(sizes) < 4:
        raise BadRequest("bad_arguments", f"run_all_reduce_bench: sizes: {min(sizes)} bytes hold no element", next="pass sizes of at least 4 bytes")
    arguments = {"collective": collective, "sizes": sizes, "nproc": nproc, "backend": backend, "dtype": dtype, "budget_s": budget_s}
    settings = arguments | {"device": DEVICE_OF[backend], "raw_file": SAMPLES}
    record = await run_guarded(tool="run_all_reduce_bench", arguments=arguments, script="torch_collective.py", settings=settings,
                               shape=judged_runs.collective, nproc=nproc, device=DEVICE_OF[backend], wait_s=wait_s, python=python or None,
                               limit_s=1.3 * budget_s + STARTUP_S, dry_run=dry_run)  # fmt: skip
    return CollectiveResult.model_validate(_fields(record, dry_run, detail))


def _fields(record: JobRecord, dry_run: bool, detail: bool) -> dict[str, Any]:
    """The flat answer of a record: its state beside the fields of its result."""
    told: dict[str, Any] = {"state": record.state, "job_id": record.job_id, "next": record.next, "note": record.note, "error": record.error}
    if dry_run:
        return told | {"plan": record.result}
    file = Path(record.run_folder) / SAMPLES if record.run_folder else None
    if file and file.is_file():
        told["samples_file"] = str(file)
        told["samples"] = json.loads(file.read_text(encoding="utf-8")) if detail else None
    return told | (record.result or {})
