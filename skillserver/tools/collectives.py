"""The face of the collectives' benchmark: what ranks of one host reach when they talk to each other.

Thin: the worker measures, `procedures.guarded_run` runs it, `procedures.judged_runs` says what it means.

>>> (await run_all_reduce_bench(sizes=["64MiB"], budget_s=10)).rows[0]["busbw_gb_s"]
1.9
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from skillserver.contract import tool
from skillserver.errors import BadRequest
from skillserver.procedures import judged_runs
from skillserver.procedures.guarded_run import run_guarded
from skillserver.tools.run_results import SAMPLES, STARTUP_S, Detail, DryRun, Python, RunResult, Wait, fields
from skillserver.units import Bytes

DEVICE_OF = {"gloo": "cpu", "nccl": "cuda", "xccl": "xpu", "auto": "auto"}


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
    return CollectiveResult.model_validate(fields(record, dry_run, detail))
