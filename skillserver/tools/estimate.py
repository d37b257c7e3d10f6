"""Faces of the estimates: GPU-hours of a training run before it is paid for.

Knows how a request is read and how an answer is laid out; the arithmetic is in estimate/. Nothing here is measured
but what the caller measured: every number is derived, and says from what.

>>> estimate_gpu_hours(model="llama-3-8b", tokens="1T", accelerator="h100", n_accelerators=512).gpu_hours.expected
42645.3...
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, BaseModel, Field

from skillserver import permissions, topics
from skillserver.contract import tool
from skillserver.errors import BadRequest
from skillserver.estimate import compute, models, prior
from skillserver.estimate import evidence as evidences
from skillserver.estimate.architecture import flops_per_token
from skillserver.estimate.evidence import Evidence
from skillserver.findings import Interval
from skillserver.hardware import catalogue
from skillserver.hardware.catalogue import Accelerator
from skillserver.measure.published import published
from skillserver.procedures import logged_pace
from skillserver.units import Count, show_seconds

ASSUMED_SEQ_LEN = 4096
STATE_BYTES = 16  # bf16 weights and gradients, fp32 master copy and two Adam moments
LOW_MFU = 0.02
MEASURED = "measured: mamf_tflops, tokens_per_s_per_gpu, step_s/log (path) + tokens_per_step"
FITS = "estimate_memory says whether the job fits"
CONVENTION = "model FLOPs = 6 x (active - looked-up parameters) + 6 x layers x attention width x seq_len a token (causal attention; no recomputation)"


class Basis(NamedTuple):
    """What the hours rest on. `mfu` is of running steps where that was measured or given; `share` is over all hours."""

    kind: str
    share: compute.Share
    mfu: compute.Share
    reasons: list[str]
    goodput: Interval | None = None


class Mfu(Interval):
    """Share of the dense peak, model FLOPs only."""

    basis: str = Field(
        description="prior: published runs, restarts included; prior_mamf: corrected by a measured MAMF; given, measured: goodput apart"
    )
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
    energy_kwh: Interval | None = Field(description="hours x TDP x PUE; null where the catalogue has no TDP")
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


def _within(low: float, high: float, *, above: bool = False) -> AfterValidator:
    """A bound that is said when it is broken, and costs no agent the tokens of a schema."""

    def check(value: float | None) -> float | None:
        if value is not None and (value <= low if above else value < low):
            raise ValueError(f"should be {'greater than' if above else 'at least'} {low:g}")
        if value is not None and value > high:
            raise ValueError(f"should be at most {high:g}")
        return value

    return AfterValidator(check)


@tool(toolset="core", title="Estimate GPU-hours", read_only=True)
def estimate_gpu_hours(
    tokens: Annotated[Count, Field(description="'15T'"), _within(0, 1e16, above=True)],
    accelerator: Annotated[str, Field(description="A100-80GB-SXM")],
    model: Annotated[str | dict[str, Any] | None, Field(description="name or HF config")] = None,
    params_total: Annotated[Count | None, Field(description="'8B'")] = None,
    params_active: Annotated[Count | None, Field(description="for MoE")] = None,
    architecture: Annotated[dict[str, Any] | None, Field(description="layers hidden heads kv_heads ffn vocab experts experts_per_token")] = None,
    seq_len: Annotated[int | None, Field(ge=1, le=10**8, description="tokens")] = None,
    n_accelerators: Annotated[int | None, Field(ge=1, le=10**7, description="for days")] = None,
    precision: Annotated[str | None, Field(description="bf16 fp16 fp8 tf32 fp32")] = None,
    activation_recompute: Annotated[prior.Recompute | None, Field(description="if known")] = None,
    mfu: Annotated[float | None, Field(description="measured share of dense peak"), _within(1e-4, 1)] = None,
    software_year: Annotated[int | None, Field(description="of the code"), _within(2012, 2040)] = None,
    price_per_gpu_hour_usd: Annotated[float | None, Field(description="for cost"), _within(0, 1e5)] = None,
    evidence: Annotated[dict[str, Any] | None, Field(description=MEASURED)] = None,
) -> HoursEstimate:
    """Call before paying for a training run: GPU-hours, days, cost, energy; 80% intervals.

    The share of peak of a planned run is known to about a factor 1.4 at best; what you measured (`evidence`, or mfu)
    narrows that to goodput. Raises BadRequest naming the field.
    """
    part = catalogue.accelerator(accelerator)
    peak = compute.peak_for(part, precision)
    size = models.size_of(model=model, params_total=params_total, params_active=params_active, architecture=architecture)
    per_token = flops_per_token(size.active, size.lookup, size.layers, size.attention_width, seq_len or ASSUMED_SEQ_LEN)
    setting = prior.Setting(peak.precision, size.active, size.has_experts, n_accelerators, activation_recompute, software_year,
                            seq_len, _attention(per_token, size))  # fmt: skip
    seen = evidences.read(evidence)
    basis = _basis(part, peak, setting, per_token, mfu, seen)
    hours = compute.run_hours(per_token * tokens, peak.tflops, basis.share)
    readings = _readings(accelerator, part, precision, peak, seq_len, activation_recompute)
    return HoursEstimate(
        **_amounts(hours, n_accelerators, price_per_gpu_hour_usd, part), flops=per_token * tokens, flops_per_token=per_token,
        mfu=_mfu(basis, peak), goodput=basis.goodput, peak_tflops=peak.tflops, accelerator=part.id, precision=peak.precision,
        params_total=size.total, params_active=size.active, warnings=_warnings(part, size, setting, basis, hours),
        assumptions=[*readings, *size.assumptions, *basis.reasons, *_energy_said(part)], comparisons=_comparisons(part, peak, size, tokens),
        skipped=_skipped(n_accelerators, price_per_gpu_hour_usd, basis, seen, part),
        sections=topics.sections("gpu_hours", "mfu", "goodput"), next=_next(basis, n_accelerators),
    )  # fmt: skip


def _attention(per_token: float, size: models.Size) -> float:
    """The part of the FLOPs that is attention."""
    return max(0.0, 1 - 6 * (size.active - size.lookup) / per_token)


def _basis(part: Accelerator, peak: compute.Peak, setting: prior.Setting, per_token: float, mfu: float | None, seen: Evidence) -> Basis:
    """A given MFU or a measured speed, else the prior, corrected by a measured MAMF where there is one."""
    ceiling = evidences.ceiling(seen, peak.tflops, _published_tflops(part, peak))
    logged = logged_pace.pace(permissions.readable(seen.log)) if seen.log else None
    speed = evidences.speed(seen, logged, setting.n_accelerators)
    if mfu is not None and speed:
        raise BadRequest("two_speeds", "mfu and evidence each say how fast the run is", next="pass one of them")
    if mfu is None and speed is None:
        share, reasons = compute.prior_share(part, setting, ceiling)
        return Basis("prior_mamf" if ceiling else "prior", share, share, reasons)
    goodput, log_sd = prior.bounds("goodput"), 0.0
    if speed:
        rate, log_sd, said = evidences.mfu_of(speed, per_token, peak.tflops), speed.log_sd, speed.said
        goodput = Interval(**{end: min(value, speed.best_goodput) for end, value in goodput})
    else:
        rate, said = float(mfu or 0), f"mfu {mfu:.3f} as given"
    share, reasons = compute.measured_share(rate, said, goodput, log_sd)
    return Basis("measured" if speed else "given", share, compute.Share(*[rate] * 3), reasons, goodput)


def _published_tflops(part: Accelerator, peak: compute.Peak) -> float | None:
    found = published(part.id, peak.counted_as)
    return found.tflops if found else None


def _amounts(hours: Interval, n: int | None, price: float | None, part: Accelerator) -> dict[str, Any]:
    return {
        "gpu_hours": hours,
        "wall_days": compute.scaled(hours, 1 / n / 24) if n else None,
        "cost_usd": compute.scaled(hours, price) if price is not None else None,
        "energy_kwh": compute.energy(hours, part.tdp_w, prior.bounds("pue")) if part.tdp_w else None,
    }


def _energy_said(part: Accelerator) -> list[str]:
    pue = prior.bounds("pue")
    said = f"energy: TDP of {part.tdp_w} W held all the time, PUE {pue.expected} ({pue.low} to {pue.high}); hosts and network apart"
    return [said] if part.tdp_w else []


def _mfu(basis: Basis, peak: compute.Peak) -> Mfu:
    against = f"dense {peak.counted_as} peak, {peak.tflops:g} TFLOPS"
    return Mfu(**basis.mfu._asdict(), basis=basis.kind, counted_against=against)


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


def _warnings(part: Accelerator, size: models.Size, setting: prior.Setting, basis: Basis, hours: Interval) -> list[str]:
    """What makes the number doubtful, or the job impossible."""
    said: list[str] = []
    n, needed_gb = setting.n_accelerators, STATE_BYTES * size.total / 1e9
    if n and needed_gb > n * part.memory_gb:
        said.append(f"does not fit: weights, gradients and Adam states take {needed_gb:,.0f} GB, {n} x {part.id} hold {n * part.memory_gb:,.0f} GB")
    best = prior.BEST_PUBLISHED * (0.75 if setting.recompute == "full" else 1)
    if basis.goodput and basis.mfu.expected > best:
        said.append(f"mfu {basis.mfu.expected:.3g} is above {best:.2f}, the best sustained share published for this recomputation: "
                    "a logged TFLOPS that counts recomputation is HFU (MFU is 3/4 of it), and peaks with sparsity are double")  # fmt: skip
    if basis.kind == "prior" and prior.row(part.architecture).log_sd >= prior.LITTLE_KNOWN:
        said.append(f"outside of what was fitted: little is published for {part.architecture}: {prior.row(part.architecture).reason}")
    if not basis.goodput:
        said += [f"outside of what was fitted: {each}" for each in prior.outside(setting)]
    elif basis.mfu.expected < LOW_MFU:
        said.append(f"mfu {basis.mfu.expected:.3g} is far below published runs: check that tokens are of the global batch and the model is the same")
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


def _skipped(n: int | None, price: float | None, basis: Basis, seen: Evidence, part: Accelerator) -> list[str]:
    said = []
    if n is None:
        said.append("wall_days: n_accelerators was not given")
    if price is None:
        said.append("cost_usd: price_per_gpu_hour_usd was not given, and prices change too fast to assume one")
    if not part.tdp_w:
        said.append(f"energy_kwh: the catalogue has no TDP of {part.id}")
    if basis.goodput:
        said.append(f"prior over published runs, activation_recompute and software_year: the speed was {basis.kind}")
        if seen.mamf_tflops:
            said.append("evidence.mamf_tflops: a speed says more")
    said.append("failed experiments, ablations, data preparation and post-training are not in the hours")
    return said


def _next(basis: Basis, n: int | None) -> str:
    if not basis.goodput:
        return "measure a few hundred steps, then pass evidence={'step_s': ..., 'tokens_per_step': ...} to narrow the interval"
    return FITS if n else f"pass n_accelerators for days; {FITS}"
