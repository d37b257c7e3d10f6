"""What share of peak (MFU) a training run will reach, before anything was measured: a log-normal prior.

Knows data/mfu_prior.toml: one benchmarked share a generation of accelerators, effects, and two numbers fitted to whole
runs, goodput and spread. The share is of model FLOPs over all billed hours, restarts included, against the dense bf16
peak (fp16 where the part has none; the tf32 or fp32 peak for those precisions), and the interval widens outside of what
was fitted. Does not know your code, network or data loader: evidence.py takes what you measured.

>>> round(expect(accelerator("h100"), Setting(precision="bf16")).mfu, 3)
0.319
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

from skillserver import tables
from skillserver.findings import Interval
from skillserver.hardware.catalogue import Accelerator

Z80 = 1.2816  # half-width of an 80% interval, in standard deviations
TYPICAL_ACCELERATORS = 512
SMALL_PARAMS = 1e9
TYPICAL_ATTENTION = 0.06  # of the FLOPs: a model of 7B at 4096 tokens
BEST_PUBLISHED = 0.66  # MaxText on TPU v5p; nothing sustained is published above it
MODERN_YEAR = 2023
LITTLE_KNOWN = 0.3  # log_sd of a generation above which nothing was fitted to it
Recompute = Literal["none", "selective", "full"]


class Row(tables.Record):
    """One row of mfu_prior.toml."""

    id: str
    kind: Literal["generation", "factor", "fitted", "range"]
    value: float
    log_sd: float
    reason: str
    source: str
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Setting:
    """What is known of a run; None = not said. `attention` is its part of the FLOPs."""

    precision: str
    active: float = 7e9
    has_experts: bool = False
    n_accelerators: int | None = None
    recompute: Recompute | None = None
    software_year: int | None = None
    seq_len: int | None = None
    attention: float = TYPICAL_ATTENTION


class Fitted(NamedTuple):
    """The two numbers that whole runs give: goodput and the standard deviation of ln(actual / expected hours)."""

    goodput: float
    log_sd: float


class Ceiling(NamedTuple):
    """The user's fastest measured matmul, TFLOPS, the part's peak, and what others measured on such a part."""

    mamf_tflops: float
    peak_tflops: float
    published_tflops: float | None = None


class Expectation(NamedTuple):
    """Median MFU, standard deviation of its logarithm, and the reasons in words."""

    mfu: float
    log_sd: float
    reasons: list[str]


def row(name: str) -> Row:
    """One constant of the table; KeyError is a bug."""
    return {item.id: item for item in tables.load("mfu_prior.toml", Row)}[name]


def bounds(name: str) -> Interval:
    """A row that has bounds, as an interval."""
    found = row(name)
    return Interval(low=found.low or found.value, expected=found.value, high=found.high or found.value)


def fitted() -> Fitted:
    """Goodput and spread of the table."""
    return Fitted(row("goodput").value, row("spread").log_sd)


def expect(part: Accelerator, setting: Setting, ceiling: Ceiling | None = None, runs: Fitted | None = None) -> Expectation:
    """Median and spread of the MFU of a run like this on this part; `runs` replaces what the table says of whole runs."""
    runs = runs or fitted()
    mfu, log_sd, said = _capable(part, ceiling)
    variance = log_sd**2 + runs.log_sd**2
    reasons = [said]
    for name, factor in _factors(part, setting):
        mfu *= factor
        variance += row(name).log_sd ** 2
        reasons.append(f"{name} x{factor:.2f}: {row(name).reason}")
    variance += row("outside").log_sd ** 2 * len(outside(setting))
    reasons.append(f"goodput x{runs.goodput:.2f}: {row('goodput').reason}")
    return Expectation(min(mfu * runs.goodput, BEST_PUBLISHED), math.sqrt(variance), reasons)


def _capable(part: Accelerator, ceiling: Ceiling | None) -> tuple[float, float, str]:
    """The share that tuned code reaches on this generation, how uncertain, and why; corrected by a measured MAMF."""
    base = row(part.architecture)
    said = f"{part.architecture} without recomputation: {base.value:.2f} ({base.reason})"
    if ceiling is None:
        return base.value, base.log_sd, said
    if ceiling.published_tflops and base.log_sd < LITTLE_KNOWN:
        ratio = ceiling.mamf_tflops / ceiling.published_tflops
        return base.value * ratio, 0.0, f"{said}, x{ratio:.2f}: MAMF of {ceiling.mamf_tflops:g} TFLOPS against {ceiling.published_tflops:g} published"
    found = row("share_of_mamf")
    share = ceiling.mamf_tflops / ceiling.peak_tflops
    return found.value * share, min(found.log_sd, base.log_sd), f"{found.value:.2f} x MAMF at {share:.2f} of peak: {found.reason}"


def _factors(part: Accelerator, setting: Setting) -> list[tuple[str, float]]:
    """Every factor that applies, by name."""
    names = []
    if setting.recompute in ("full", None):
        names.append("full_recompute" if setting.recompute else "unknown_recompute")
    if setting.has_experts:
        names.append("experts")
    if setting.precision == "fp8":
        names.append("fp8")
    if setting.precision in ("tf32", "fp32"):
        names.append("other_precision")
    if setting.software_year is not None and setting.software_year < MODERN_YEAR and part.architecture == "Ampere":
        names.append("before_2023")  # Volta and TPU rows are of those years already
    factors = [(name, row(name).value) for name in names]
    factors.append(("attention_cost", 1 / (1 + setting.attention * (row("attention_cost").value - 1))))
    if setting.n_accelerators is not None:
        factors.append(("scale_exponent", scale_factor(TYPICAL_ACCELERATORS, setting.n_accelerators)))
    if setting.active < SMALL_PARAMS:
        factors.append(("small_exponent", (setting.active / SMALL_PARAMS) ** row("small_exponent").value))
    return factors


def scale_factor(measured_on: int, n_accelerators: int) -> float:
    """What becomes of a share when the job goes from one number of accelerators to another."""
    least, most = bounds("n_accelerators").low, bounds("n_accelerators").high
    before, after = (min(max(n, least), most) for n in (measured_on, n_accelerators))
    return float((after / before) ** row("scale_exponent").value)


def outside(setting: Setting) -> list[str]:
    """The respects in which a run lies outside of what was published, in words; empty when it lies within."""
    said = []
    for name in ("active", "n_accelerators", "seq_len"):
        value, known = getattr(setting, name), bounds(name)
        if value is not None and not known.low <= value <= known.high:
            said.append(f"{name} {value:g} is outside {known.low:g} to {known.high:g}, the {row(name).reason}: the interval was widened")
    return said
