"""Faces of the estimates: GPU-hours of a training run before it is paid for.

Knows how a request is read and how an answer is laid out; the arithmetic is in estimate/. Nothing here is measured:
every number is derived, and says from what.

>>> estimate_gpu_hours(model="llama-3-8b", tokens="1T", accelerator="h100", n_accelerators=512).gpu_hours.expected
45155.288...
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, Field

from skillserver import topics
from skillserver.contract import tool
from skillserver.estimate import compute, models, prior
from skillserver.estimate.architecture import flops_per_token
from skillserver.findings import Interval
from skillserver.hardware import catalogue
from skillserver.hardware.catalogue import Accelerator
from skillserver.units import Count, show_seconds

ASSUMED_SEQ_LEN = 4096
STATE_BYTES = 16  # bf16 weights and gradients, fp32 master copy and two Adam moments
FITS = "estimate_memory says whether the job fits"
CONVENTION = "model FLOPs = 6 x (active - looked-up parameters) + 6 x layers x attention width x seq_len a token (causal attention; no recomputation)"


class Mfu(Interval):
    """Share of the dense peak, model FLOPs only."""

    basis: str = Field(description="prior: published runs, restarts included; given: as passed, goodput apart")
    counted_against: str


class Comparison(BaseModel):
    """A published run near this one."""

    model: str
    gpu_hours: float
    accelerator: str
    tokens: float
    share_of_peak_6nd: float = Field(description="6 x active x tokens over all its hours at the dense bf16 peak")
    hours_at_its_share: float = Field(description="this job at that share")
    source: str
    note: str = ""


class HoursEstimate(BaseModel):
    """Derived, never measured. Intervals are 80%."""

    gpu_hours: Interval
    wall_days: Interval | None = Field(description="null without n_accelerators")
    cost_usd: Interval | None = Field(description="null without price_per_gpu_hour_usd")
    flops: float
    flops_per_token: float
    mfu: Mfu
    goodput: Interval | None = Field(description="null when the share already holds it")
    peak_tflops: float
    accelerator: str
    precision: str
    params_total: float
    params_active: float
    warnings: list[str]
    assumptions: list[str]
    comparisons: list[Comparison]
    skipped: list[str]
    sections: list[str]
    next: str


@tool(toolset="core", title="Estimate GPU-hours", read_only=True)
def estimate_gpu_hours(
    tokens: Annotated[Count, Field(gt=0, le=1e16, description="'15T'")],
    accelerator: Annotated[str, Field(description="'A100-80GB-SXM'")],
    model: Annotated[str | dict[str, Any] | None, Field(description="name or HF config")] = None,
    params_total: Annotated[Count | None, Field(description="'8B'")] = None,
    params_active: Annotated[Count | None, Field(description="per token, for MoE")] = None,
    architecture: Annotated[dict[str, Any] | None, Field(description="layers hidden heads kv_heads ffn vocab experts experts_per_token")] = None,
    seq_len: Annotated[int | None, Field(ge=1, le=10**8, description="tokens")] = None,
    n_accelerators: Annotated[int | None, Field(ge=1, le=10**7, description="for days")] = None,
    precision: Annotated[str | None, Field(description="bf16 fp16 fp8 tf32 fp32")] = None,
    activation_recompute: Annotated[prior.Recompute | None, Field(description="if known")] = None,
    mfu: Annotated[float | None, Field(gt=0, le=1, description="measured share of dense bf16 peak")] = None,
    software_year: Annotated[int | None, Field(ge=2012, le=2040, description="of the code")] = None,
    price_per_gpu_hour_usd: Annotated[float | None, Field(ge=0, le=10**5, description="for cost")] = None,
) -> HoursEstimate:
    """Call before paying for a training run: GPU-hours, days and cost with 80% intervals.

    The share of peak of a planned run is known to about a factor 1.5 at best; a benchmark of one's own, passed as mfu,
    narrows that to goodput. Raises BadRequest naming the field.
    """
    part = catalogue.accelerator(accelerator)
    peak = compute.peak_for(part, precision)
    size = models.size_of(model=model, params_total=params_total, params_active=params_active, architecture=architecture)
    per_token = flops_per_token(size.active, size.lookup, size.layers, size.attention_width, seq_len or ASSUMED_SEQ_LEN)
    setting = prior.Setting(peak.precision, size.active, size.has_experts, n_accelerators, activation_recompute, software_year)
    share, reasons = compute.measured_share(mfu) if mfu else compute.prior_share(part, setting)
    hours = compute.run_hours(per_token * tokens, peak.tflops, share)
    readings = _readings(accelerator, part, precision, peak, seq_len, activation_recompute)
    return HoursEstimate(
        **_amounts(hours, n_accelerators, price_per_gpu_hour_usd),
        flops=per_token * tokens, flops_per_token=per_token, mfu=_mfu(share, mfu, peak), goodput=_goodput() if mfu else None,
        peak_tflops=peak.tflops, accelerator=part.id, precision=peak.precision, params_total=size.total, params_active=size.active,
        warnings=_warnings(part, size, setting, mfu, hours), assumptions=[*readings, *size.assumptions, *reasons],
        comparisons=_comparisons(part, peak, size, tokens), skipped=_skipped(n_accelerators, price_per_gpu_hour_usd, mfu),
        sections=topics.sections("gpu_hours", "mfu", "goodput"), next=_next(mfu, n_accelerators),
    )  # fmt: skip


def _amounts(hours: Interval, n: int | None, price: float | None) -> dict[str, Any]:
    return {
        "gpu_hours": hours,
        "wall_days": compute.scaled(hours, 1 / n / 24) if n else None,
        "cost_usd": compute.scaled(hours, price) if price is not None else None,
    }


def _mfu(share: compute.Share, given: float | None, peak: compute.Peak) -> Mfu:
    against = f"dense {peak.counted_as} peak, {peak.tflops:g} TFLOPS"
    if given:
        return Mfu(low=given, expected=given, high=given, basis="given", counted_against=against)
    return Mfu(low=share.low, expected=share.expected, high=share.high, basis="prior", counted_against=against)


def _goodput() -> Interval:
    found = prior.row("goodput")
    return Interval(low=found.low or found.value, expected=found.value, high=found.high or found.value)


def _readings(name: str, part: Accelerator, precision: str | None, peak: compute.Peak, seq_len: int | None, recompute: str | None) -> list[str]:
    """How the request was understood, where it left something open."""
    said = [CONVENTION]
    if name != part.id:
        said.append(f"accelerator {name!r} read as {part.id}")
    if precision is None:
        said.append(f"precision taken as {peak.precision}")
    if peak.precision == "fp8":
        said.append(f"fp8 run, share counted against the dense {peak.counted_as} peak")
    if seq_len is None:
        said.append(f"seq_len taken as {ASSUMED_SEQ_LEN}")
    if recompute is None:
        said.append("activation_recompute taken as unknown, between none and full")
    return said


def _warnings(part: Accelerator, size: models.Size, setting: prior.Setting, mfu: float | None, hours: Interval) -> list[str]:
    """What makes the number doubtful, or the job impossible."""
    said = []
    n, needed_gb = setting.n_accelerators, STATE_BYTES * size.total / 1e9
    if n and needed_gb > n * part.memory_gb:
        said.append(f"does not fit: weights, gradients and Adam states take {needed_gb:,.0f} GB, {n} x {part.id} hold {n * part.memory_gb:,.0f} GB")
    best = prior.BEST_PUBLISHED * (0.75 if setting.recompute == "full" else 1)
    if mfu and mfu > best:
        said.append(f"mfu {mfu} is above {best:.2f}, the best sustained share published for this recomputation: "
                    "a logged TFLOPS that counts recomputation is HFU (MFU is 3/4 of it), and peaks with sparsity are double")  # fmt: skip
    if not mfu and prior.row(part.architecture).log_sd > 0.4:
        said.append(f"little is published for {part.architecture}: {prior.row(part.architecture).reason}")
    if n and hours.expected / n > 20 * 365 * 24:
        said.append(f"{n} accelerators would take {show_seconds(hours.expected / n * 3600)}")
    return said


def _comparisons(part: Accelerator, peak: compute.Peak, size: models.Size, tokens: float) -> list[Comparison]:
    """Published runs near this one, and this job's hours at the share each of them reached."""
    runs = compute.nearest_runs(part, size.active, tokens, has_experts=size.has_experts)
    at_peak = 6 * size.active * tokens / (peak.tflops * 1e12 * 3600)
    return [_comparison(run, at_peak) for run in runs]


def _comparison(run: compute.Run, hours_at_peak: float) -> Comparison:
    share = compute.share_6nd(run)
    return Comparison(model=run.model, gpu_hours=run.gpu_hours, accelerator=run.accelerator, tokens=run.tokens, share_of_peak_6nd=round(share, 3),
                      hours_at_its_share=hours_at_peak / share, source=run.source, note=run.note)  # fmt: skip


def _skipped(n: int | None, price: float | None, mfu: float | None) -> list[str]:
    said = []
    if n is None:
        said.append("wall_days: n_accelerators was not given")
    if price is None:
        said.append("cost_usd: price_per_gpu_hour_usd was not given, and prices change too fast to assume one")
    if mfu:
        said.append("prior over published runs, activation_recompute and software_year: mfu was given")
    said.append("failed experiments, ablations, data preparation and post-training are not in the hours")
    return said


def _next(mfu: float | None, n: int | None) -> str:
    if not mfu:
        return "measure a few hundred steps, then pass mfu to narrow the interval"
    return FITS if n else f"pass n_accelerators for days; {FITS}"
