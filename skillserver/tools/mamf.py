"""The face of MAMF: what matmul FLOPS one device reaches.

Thin: the worker measures, `procedures.guarded_run` runs it, `procedures.judged_runs` says what it means. Raw samples
stay in the run folder of the job; `detail=true` brings them into the answer.

>>> (await run_mamf(device="cpu", budget_s=10)).share_of_peak
0.83
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from skillserver.contract import tool
from skillserver.procedures import judged_runs
from skillserver.procedures.guarded_run import run_guarded
from skillserver.tools.run_results import SAMPLES, STARTUP_S, Detail, DryRun, Python, RunResult, Wait, fields

Shape = Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=3, max_length=3)]


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
    return MamfResult.model_validate(fields(record, dry_run, detail))
