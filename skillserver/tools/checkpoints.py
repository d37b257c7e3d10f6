"""The face of checkpoint planning: how large, how often, what a run loses to failures, and what asynchronous saving wins.

>>> plan_checkpoints(params_total="70B", n_accelerators=1024, write_gb_s=20).plans[0].interval_s
1904.1...
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, Field

from skillserver import topics
from skillserver.contract import tool
from skillserver.errors import BadRequest
from skillserver.estimate import checkpoint, models
from skillserver.findings import Interval
from skillserver.units import GB, GIB, Count, Seconds, show_seconds

COPY_GB_S = 20.0  # device to pinned host memory over PCIe 4 x16, as one accelerator reaches it; PCIe 5 doubles it
WAYS = {
    "synchronous": "training stops until the file system has it",
    "asynchronous": "training stops for the copy to host memory; the write goes on beside it, so the next save waits for it",
    "in_memory": "copies on two hosts, written out now and then: covers failures that leave one of the two alive",
}


class Way(checkpoint.Outcome):
    """One way of saving at its best interval."""

    way: str
    means: str
    interval_steps: int | None = None


class CheckpointPlan(BaseModel):
    """Shares are of wall time; the plans hold for the expected MTBF, `interval_s` spans its bounds."""

    summary: str
    size_gib: float
    write_s: float
    copy_s: float
    mtbf_hours: Interval
    interval_s: Interval = Field(description="of the asynchronous way, over the bounds of the MTBF")
    plans: list[Way]
    assumptions: list[str]
    skipped: list[str]
    sections: list[str]
    next: str


@tool(toolset="estimate", title="Plan checkpoints", read_only=True)
def plan_checkpoints(
    n_accelerators: Annotated[int, Field(ge=1, le=10**6, description="of the job")],
    write_gb_s: Annotated[float, Field(gt=0, le=10**5, description="GB/s the whole job writes, measured")],
    model: Annotated[str | dict[str, Any] | None, Field(description="name or HF config")] = None,
    params_total: Annotated[Count | None, Field(ge=1e3, le=1e15, description="'70B'")] = None,
    optimizer: Annotated[str, Field(description="adam adam_fp32 adam_8bit adafactor muon sgd weights_only")] = "adam",
    mtbf: Annotated[Seconds | None, Field(gt=0, le=1e9, description="between failures of the job, '8h'")] = None,
    restart: Annotated[Seconds, Field(ge=0, le=1e6, description="detect, reschedule, load: '10 min'")] = 600.0,
    step_s: Annotated[float | None, Field(gt=0, le=1e5, description="seconds a step")] = None,
) -> CheckpointPlan:
    """Call to decide how often to save: checkpoint size, write time, Young/Daly interval, goodput, synchronous against asynchronous.

    Without `mtbf` it is taken from published runs by the number of accelerators. Raises BadRequest naming the field.
    """
    size = models.size_of(model=model, params_total=params_total)
    held = checkpoint.size_bytes(size.total, optimizer)
    write_s, copy_s = held / (write_gb_s * GB), held / n_accelerators / (COPY_GB_S * GB)
    hours = _mtbf_hours(mtbf, n_accelerators)
    if hours.expected * 3600 < checkpoint.LEAST_CYCLES * copy_s:
        raise BadRequest("no_progress", f"the job fails every {show_seconds(hours.expected * 3600)} and one copy takes {show_seconds(copy_s)}",
                         next="use fewer accelerators for this model, or check mtbf")  # fmt: skip
    plans = [_way(name, write_s, copy_s, hours.expected * 3600, restart, step_s) for name in WAYS]
    bounds = [_way("asynchronous", write_s, copy_s, h * 3600, restart, step_s).interval_s for h in (hours.low, hours.expected, hours.high)]
    return CheckpointPlan(
        summary=_summary(plans), size_gib=held / GIB, write_s=write_s, copy_s=copy_s, mtbf_hours=hours,
        interval_s=Interval(low=bounds[0], expected=bounds[1], high=bounds[2]), plans=plans,
        assumptions=[*size.assumptions, *_assumptions(mtbf, optimizer, restart)], skipped=_skipped(step_s),
        sections=topics.sections("checkpoints"), next="measure write_gb_s with the job's own ranks writing at once, then call again with it",
    )  # fmt: skip


def _mtbf_hours(given_s: float | None, n_accelerators: int) -> Interval:
    """Given, or from published accelerator-hours between interruptions: their range and geometric mean."""
    if given_s is not None:
        return Interval(low=given_s / 3600, expected=given_s / 3600, high=given_s / 3600)
    rates = sorted(record.hours_per_accelerator / n_accelerators for record in checkpoint.failures())
    return Interval(low=rates[0], expected=(rates[0] * rates[-1]) ** 0.5, high=rates[-1])


def _way(name: str, write_s: float, copy_s: float, mtbf_s: float, restart_s: float, step_s: float | None) -> Way:
    stall_s, least_s = {"synchronous": (write_s, 0.0), "asynchronous": (copy_s, write_s), "in_memory": (2 * copy_s, 0.0)}[name]
    found = checkpoint.outcome(stall_s=stall_s, mtbf_s=mtbf_s, restart_s=restart_s, least_interval_s=least_s)
    steps = max(1, round(found.interval_s / step_s)) if step_s else None
    return Way(way=name, means=WAYS[name], interval_steps=steps, **found.model_dump())


def _summary(plans: list[Way]) -> str:
    told = "; ".join(f"{plan.way} every {show_seconds(plan.interval_s)}, {plan.useful_share:.1%} useful" for plan in plans)
    return f"Best interval by way of saving: {told}."


def _assumptions(mtbf: float | None, optimizer: str, restart_s: float) -> list[str]:
    told = [f"{checkpoint.BYTES_A_PARAMETER[optimizer]:g} bytes a parameter on disk ({optimizer}; gradients are not saved)",
            f"copy to host memory at {COPY_GB_S:g} GB/s an accelerator, all at once", f"restart takes {show_seconds(restart_s)}"]  # fmt: skip
    if mtbf is None:
        runs = ", ".join(f"{record.run}: {record.hours_per_accelerator:,.0f} accelerator-hours" for record in checkpoint.failures())
        told.append(f"time between failures from published runs ({runs}); software failures of a new code base come on top")
    return told


def _skipped(step_s: float | None) -> list[str]:
    told = ["time to load a checkpoint (part of restart)", "failures that leave a broken checkpoint behind"]
    return told if step_s else [*told, "interval_steps: step_s was not given"]
