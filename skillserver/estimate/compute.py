"""FLOPs of a training run -> accelerator-hours, days, money and energy, each with an 80% interval.

hours = FLOPs / (peak x share of peak x 3600). The share is the prior of `prior.py`, which includes restarts, or what
was measured (`evidence.py`), to which goodput is added. Recomputation never adds model FLOPs: it lowers the share. Knows nothing of
memory: whether the job fits is another question.

>>> run_hours(6e21, 989.4, Share(0.4, 0.4, 0.4)).expected
4211.3...
"""

from __future__ import annotations

import math
from typing import NamedTuple

from skillserver import tables
from skillserver.errors import BadRequest
from skillserver.estimate import prior
from skillserver.findings import Interval
from skillserver.hardware import catalogue
from skillserver.hardware.catalogue import Accelerator

TRAINING_PRECISIONS = ("bf16", "fp16", "fp8", "tf32", "fp32")


class Share(NamedTuple):
    """Share of peak over all hours: a pessimistic, an expected and an optimistic value."""

    low: float
    expected: float
    high: float


class Peak(NamedTuple):
    """The peak that a share is counted against."""

    precision: str
    counted_as: str
    tflops: float


class Run(tables.Record):
    """One row of published_runs.toml."""

    model: str
    params_total: float
    params_active: float
    tokens: float
    seq_len: int
    accelerator: str
    gpu_hours: float
    source: str
    note: str


def peak_for(part: Accelerator, precision: str | None) -> Peak:
    """The precision a run uses and the dense peak its MFU is counted against: fp8 runs against bf16. Raises BadRequest."""
    chosen = catalogue.dtype(precision) if precision else ("bf16" if "bf16" in part.tensor else "fp16")
    if chosen not in TRAINING_PRECISIONS:
        raise BadRequest("not_for_training", f"no published run trained in {chosen}, so no share of peak is known", valid=TRAINING_PRECISIONS)
    if chosen == "fp8" and "fp8" not in part.tensor:
        raise BadRequest(
            "no_such_units",
            f"{part.id} has no fp8 peak in the catalogue",
            valid=[kind for kind in part.tensor if kind in TRAINING_PRECISIONS],
            next="pass precision='bf16'",
        )
    basis = "bf16" if chosen == "fp8" else chosen
    tflops = catalogue.peak_tflops(part, basis)
    if tflops is None:
        have = [kind for kind in TRAINING_PRECISIONS if kind != "fp8" and catalogue.peak_tflops(part, kind)]
        raise BadRequest(
            "no_such_units", f"the catalogue has no dense {basis} peak for {part.id}", valid=have, next=f"pass precision={have[0]!r}" if have else ""
        )
    return Peak(chosen, basis, tflops)


def prior_share(
    part: Accelerator, setting: prior.Setting, ceiling: prior.Ceiling | None = None, runs: prior.Fitted | None = None
) -> tuple[Share, list[str]]:
    """80% interval of the share of peak, from published benchmarks and runs, with its reasons."""
    mfu, log_sd, reasons = prior.expect(part, setting, ceiling, runs)
    spread = math.exp(prior.Z80 * log_sd)
    return Share(mfu / spread, mfu, min(mfu * spread, 1.0)), reasons


def measured_share(mfu: float, said: str, goodput: Interval, log_sd: float = 0.0) -> tuple[Share, list[str]]:
    """A measured MFU over all hours: times goodput; `log_sd` is what is unknown of the rate itself."""
    spread = math.exp(prior.Z80 * log_sd)
    share = Share(mfu * goodput.low / spread, mfu * goodput.expected, min(mfu * goodput.high * spread, 1.0))
    return share, [said, f"goodput {goodput.expected:.2f} ({goodput.low:.2f} to {goodput.high:.2f}): {prior.row('goodput').reason}"]


def energy(hours: Interval, tdp_w: float, pue: Interval) -> Interval:
    """kWh at the meter = hours x TDP x PUE (arXiv 2302.13971, section 6); the two uncertainties are taken as independent."""
    expected = hours.expected * tdp_w / 1000 * pue.expected

    def away(end: str) -> float:
        return math.hypot(*(math.log(getattr(one, end) / one.expected) for one in (hours, pue)))

    return Interval(low=expected * math.exp(-away("low")), expected=expected, high=expected * math.exp(away("high")))


def run_hours(flops: float, peak_tflops: float, share: Share) -> Interval:
    """Accelerator-hours; the low end belongs to the high share."""
    at_peak = flops / (peak_tflops * 1e12) / 3600
    return Interval(low=at_peak / share.high, expected=at_peak / share.expected, high=at_peak / share.low)


def scaled(interval: Interval, factor: float) -> Interval:
    """Every bound times `factor`."""
    return Interval(low=interval.low * factor, expected=interval.expected * factor, high=interval.high * factor)


def nearest_runs(part: Accelerator, active: float, tokens: float, *, has_experts: bool, count: int = 2) -> list[Run]:
    """Published runs most like this one: generation and experts first, then size, then tokens."""

    def distance(run: Run) -> float:
        away = abs(math.log(run.params_active / active)) + 0.3 * abs(math.log(run.tokens / tokens))
        other_generation = catalogue.accelerator(run.accelerator).architecture != part.architecture
        return away + 2 * other_generation + 2 * ((run.params_active < 0.95 * run.params_total) != has_experts)

    return sorted(tables.load("published_runs.toml", Run), key=distance)[:count]


def share_6nd(run: Run) -> float:
    """Share of the dense bf16 peak over all hours of a published run, counted as 6 x active x tokens."""
    peak = catalogue.peak_tflops(catalogue.accelerator(run.accelerator), "bf16") or math.nan
    return 6 * run.params_active * run.tokens / (run.gpu_hours * 3600 * peak * 1e12)
