"""The face of the collectives' benchmark: what ranks reach when they talk to each other, and which pair is slow.

Thin: the workers measure, `procedures.guarded_run` runs them, `procedures.collective_runs` says what it means.

>>> (await run_all_reduce_bench(sizes=["64MiB"], budget_s=10)).rows[0]["busbw_gb_s"]
1.9
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field

from skillserver import drawing
from skillserver.contract import tool
from skillserver.errors import BadRequest
from skillserver.procedures import collective_runs
from skillserver.procedures.guarded_run import run_guarded
from skillserver.tools.run_results import SAMPLES, STARTUP_S, Detail, DryRun, Nodes, Plot, Python, RunResult, Wait, fields
from skillserver.units import Bytes

DEVICE_OF = {"gloo": "cpu", "nccl": "cuda", "xccl": "xpu"}
WORKERS = {"all": "torch_collective.py", "pairs": "torch_pairs.py"}
DTYPES = ("fp64", "fp32", "bf16", "fp16", "fp8", "fp8_e5m2", "int64", "int32", "int8", "uint8")
LEAST, MOST_RANKS, MOST_S = 2, 64, 1200
Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "send_recv", "barrier"]


class CollectiveResult(RunResult):
    """A collective, size by size, or every pair."""

    rows: list[dict[str, Any]] = Field(default_factory=list, description="bytes, time_us, algbw_gb_s, busbw_gb_s, p5_us..p95_us, correct")
    collective: str = ""
    dtype: str = ""
    nproc: int | None = None
    backend: str | None = None
    device_name: str | None = None
    queued: bool | None = None
    busbw_factor: float | None = Field(default=None, description="busbw / algbw")
    compared_with: str = Field(default="", description="settings of the reference")
    slowest_rank: int | None = Field(default=None, description="only when it is an outlier")
    remarks: list[str] = Field(default_factory=list, description="what a figure above the wire means")
    latency_and_bandwidth: dict[str, Any] | None = Field(default=None, description="fit of latency + size / bandwidth, and where it does not hold")
    pairs: dict[str, Any] | None = Field(default=None, description="matrix of pairs, who is slow")
    history_file: str = ""
    plot: str = ""


@tool(toolset="core", title="Measure collectives", read_only=False, idempotent=False, runs=True)
async def run_all_reduce_bench(
    collective: Annotated[Collective, Field(description="which")] = "all_reduce",
    sizes: Annotated[list[Bytes] | None, Field(description="bytes or 64MiB")] = None,
    nproc: Annotated[int, Field(description="ranks")] = 2,
    groups: Annotated[Literal["all", "pairs"], Field(description="each two")] = "all",
    backend: Annotated[str, Field(description="gloo: CPU")] = "auto",
    dtype: Annotated[str, Field(description="fp64..int8")] = "fp32",
    queued: Annotated[bool, Field(description="no waiting")] = False,
    budget_s: Annotated[float, Field(description="in all")] = 15,
    nodes: Nodes = 0,
    wait_s: Wait = 20,
    python: Python = "",
    dry_run: DryRun = False,
    detail: Detail = False,
    plot: Plot = "",
) -> CollectiveResult:
    """Call when communication seems slow: checked collectives beside healthy nodes; pairs names the slow rank or link.

    `groups="pairs"` runs send_recv between every two ranks; `queued` issues calls without waiting for each (nccl-tests -z 0).
    Sizes count as in nccl-tests: for gather, scatter and all_to_all the whole over all ranks. busbw = algbw x 2(n-1)/n for
    all_reduce. On NCCL and XCCL the workers are untested.
    """
    _refuse(collective, sizes, groups, dtype)
    _within("nproc", nproc, MOST_RANKS, least=1 if nodes > 1 else LEAST)
    _within("budget_s", budget_s, MOST_S)
    if plot:
        drawing.wanted(plot)
    arguments = {"collective": collective, "sizes": sizes, "nproc": nproc, "groups": groups, "backend": backend, "dtype": dtype, "queued": queued,
                 "budget_s": budget_s}  # fmt: skip
    device = DEVICE_OF.get(backend, "auto")
    record = await run_guarded(tool="run_all_reduce_bench", arguments=arguments, script=WORKERS[groups],
                               settings=arguments | {"device": device, "raw_file": SAMPLES}, shape=partial(collective_runs.answer, plot=plot),
                               nproc=nproc, device=device, wait_s=wait_s, python=python or None, limit_s=1.3 * budget_s + STARTUP_S,
                               dry_run=dry_run, nodes=nodes)  # fmt: skip
    return CollectiveResult.model_validate(fields(record, dry_run, detail))


def _refuse(collective: str, sizes: list[int] | None, groups: str, dtype: str) -> None:
    """What can be seen to be wrong before anything starts."""
    if sizes and min(sizes) < 4:
        raise BadRequest("bad_arguments", f"run_all_reduce_bench: sizes: {min(sizes)} bytes hold no element", next="pass sizes of at least 4 bytes")
    if dtype not in DTYPES:
        raise BadRequest("unknown_dtype", f"run_all_reduce_bench: dtype: {dtype!r} is not known", valid=DTYPES, next="pass dtype='fp32'")
    if groups == "pairs" and collective not in ("all_reduce", "send_recv"):
        raise BadRequest("pairs_exchange", f"groups='pairs' measures send_recv, not {collective}", next="leave collective out, or groups='all'")


def _within(name: str, value: float, most: int, least: int = LEAST) -> None:
    """Bounds that the schema leaves out: every agent pays for each of its characters."""
    if not least <= value <= most:
        raise BadRequest("bad_arguments", f"run_all_reduce_bench: {name}: {value:g} is not between {least} and {most}",
                         next=f"pass {name}={least if value < least else most}")  # fmt: skip
