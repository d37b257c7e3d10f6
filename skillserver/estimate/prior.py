"""What share of peak (MFU) a training run will reach, before anything was measured: a log-normal prior.

Knows data/mfu_prior.toml: one value a generation of accelerators, and a handful of factors, each with its reason.
The share is of model FLOPs over all billed hours, restarts included, against the dense bf16 peak (fp16 where the part
has none; the tf32 or fp32 peak for those precisions). Does not know your code, network or data loader: a measured MFU
beats it, pass that instead.

>>> expect(accelerator("h100"), Setting(precision="bf16")).mfu
0.3
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

from skillserver import tables
from skillserver.hardware.catalogue import Accelerator

Z80 = 1.2816  # half-width of an 80% interval, in standard deviations
TYPICAL_ACCELERATORS = 512
SCALE_RANGE = (8, 16384)
SMALL_PARAMS = 1e9
BEST_PUBLISHED = 0.66  # MaxText on TPU v5p; nothing sustained is published above it
MODERN_YEAR = 2023
Recompute = Literal["none", "selective", "full"]


class Row(tables.Record):
    """One row of mfu_prior.toml."""

    id: str
    kind: Literal["generation", "factor", "goodput"]
    value: float
    log_sd: float
    reason: str
    source: str
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Setting:
    """What is known of a run; None = not said."""

    precision: str
    active: float = 7e9
    has_experts: bool = False
    n_accelerators: int | None = None
    recompute: Recompute | None = None
    software_year: int | None = None


class Expectation(NamedTuple):
    """Median MFU, standard deviation of its logarithm, and the reasons in words."""

    mfu: float
    log_sd: float
    reasons: list[str]


def row(name: str) -> Row:
    """One constant of the table; KeyError is a bug."""
    return {item.id: item for item in tables.load("mfu_prior.toml", Row)}[name]


def expect(part: Accelerator, setting: Setting) -> Expectation:
    """Median and spread of the MFU of a run like this on this part."""
    base = row(part.architecture)
    mfu, variance = base.value, base.log_sd**2
    reasons = [f"{part.architecture}: {base.value:.2f} ({base.reason})"]
    for name, factor in _factors(part, setting):
        mfu *= factor
        variance += row(name).log_sd ** 2
        reasons.append(f"{name} x{factor:.2f}: {row(name).reason}")
    return Expectation(min(mfu, BEST_PUBLISHED), math.sqrt(variance), reasons)


def _factors(part: Accelerator, setting: Setting) -> list[tuple[str, float]]:
    """Every factor that applies, by name."""
    names = []
    if setting.recompute is not None:
        names.append("full_recompute" if setting.recompute == "full" else "no_recompute")
    if setting.has_experts:
        names.append("experts")
    if setting.precision == "fp8":
        names.append("fp8")
    if setting.precision in ("tf32", "fp32"):
        names.append("other_precision")
    if setting.software_year is not None and setting.software_year < MODERN_YEAR and part.architecture == "Ampere":
        names.append("before_2023")  # Volta and TPU rows are of those years already
    factors = [(name, row(name).value) for name in names]
    if setting.n_accelerators is not None:
        scale = min(max(setting.n_accelerators, SCALE_RANGE[0]), SCALE_RANGE[1]) / TYPICAL_ACCELERATORS
        factors.append(("scale_exponent", scale ** row("scale_exponent").value))
    if setting.active < SMALL_PARAMS:
        factors.append(("small_exponent", (setting.active / SMALL_PARAMS) ** row("small_exponent").value))
    return factors
