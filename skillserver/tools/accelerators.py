"""The face of the catalogue: parts side by side, and whether changing from one to another pays.

>>> compare_accelerators(accelerators=["A100-80GB-SXM", "H100-80GB-SXM"]).rows[1].peak_tflops["bf16"]
989.4
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from skillserver import topics
from skillserver.contract import tool
from skillserver.errors import BadRequest
from skillserver.estimate import upgrade
from skillserver.hardware import catalogue
from skillserver.hardware.catalogue import Accelerator
from skillserver.measure import published

SHOWN = ("bf16", "fp8", "fp4", "tf32", "fp32")
TRAPS = [
    "peaks are dense; a vendor's figure that is twice as high counts 2:4 sparsity",
    "link_each_way_gb_s is one direction; vendors quote both directions together, twice as much",
    "memory_gb is the marketing figure; read training/memory for what a job can use",
]


class Row(BaseModel):
    """One part. Null = no source read gives it."""

    id: str
    year: int
    peak_tflops: dict[str, float]
    achieved_bf16_tflops: float | None = Field(description="published MAMF")
    memory_gb: float
    memory_gb_s: float
    link_each_way_gb_s: float | None
    tdp_w: int | None
    price_usd_h: float | None
    bf16_tflops_per_w: float | None
    bf16_tflops_per_usd_h: float | None
    flop_per_byte: float | None = Field(description="bf16 peak over memory bandwidth: below it a kernel is memory-bound")
    doubt: str


class Upgrade(BaseModel):
    """From the first part to this one, for the given step."""

    to: str
    speed_up: float
    rates: dict[str, float]
    break_even_usd_h: float | None
    worth_it: bool | None
    reason: str


class Comparison(BaseModel):
    """Parts side by side; `upgrades` when step_shares were given."""

    rows: list[Row]
    upgrades: list[Upgrade]
    traps: list[str]
    assumptions: list[str]
    skipped: list[str]
    sections: list[str]
    next: str


@tool(toolset="estimate", title="Compare accelerators", read_only=True)
def compare_accelerators(
    accelerators: Annotated[list[str], Field(min_length=1, max_length=12, description="first = what you have")],
    prices_usd_h: Annotated[dict[str, float] | None, Field(description="{accelerator: USD per hour}, as offered to you")] = None,
    step_shares: Annotated[dict[str, float] | None, Field(description="of your step: {compute, memory, network}, from a profile")] = None,
) -> Comparison:
    """Call to choose or replace accelerators: dense peaks, published matmul FLOPS, memory, links, power and price side by side,
    and what an upgrade gains for your own step.

    Speed-up by Amdahl's law over compute (published MAMF where both have one, else peaks), memory bandwidth and link.
    Raises BadRequest naming the field.
    """
    parts = list({part.id: part for part in map(catalogue.accelerator, accelerators)}.values())
    prices = {catalogue.accelerator(name).id: price for name, price in (prices_usd_h or {}).items()}
    for name, price in prices.items():
        if not 0 < price < 1e5:
            raise BadRequest("bad_price", f"prices_usd_h.{name} {price:g} is not between 0 and 100000")
    upgrades = [_upgrade(parts[0], part, step_shares, prices) for part in parts[1:]] if step_shares else []
    return Comparison(rows=[_row(part, prices.get(part.id)) for part in parts], upgrades=upgrades, traps=TRAPS, assumptions=_assumptions(upgrades),
                      skipped=_skipped(prices, step_shares), sections=topics.sections("accelerators", "upgrading"),
                      next="run_mamf on the part you have; the same on a rented hour of the other settles it")  # fmt: skip


def _row(part: Accelerator, price: float | None) -> Row:
    peaks = {kind: peak for kind in SHOWN if (peak := catalogue.peak_tflops(part, kind))}
    bf16, known = peaks.get("bf16"), published.published(part.id, "bf16")
    return Row(
        id=part.id, year=part.year, peak_tflops=peaks, achieved_bf16_tflops=known.tflops if known else None, memory_gb=part.memory_gb,
        memory_gb_s=part.memory_bandwidth_gb_s, link_each_way_gb_s=part.link_each_way_gb_s, tdp_w=part.tdp_w, price_usd_h=price,
        bf16_tflops_per_w=_over(bf16, part.tdp_w), bf16_tflops_per_usd_h=_over(bf16, price),
        flop_per_byte=_over(bf16 and bf16 * 1000, part.memory_bandwidth_gb_s), doubt=part.doubt,
    )  # fmt: skip


def _over(value: float | None, by: float | None) -> float | None:
    return round(value / by, 3) if value and by else None


def _upgrade(old: Accelerator, new: Accelerator, step: dict[str, float], prices: dict[str, float]) -> Upgrade:
    rates = _rates(old, new)
    gained = upgrade.speed_up(step, rates)
    limit = upgrade.break_even_price(prices[old.id], gained) if old.id in prices else None
    asked = prices.get(new.id)
    worth = asked <= limit if asked is not None and limit is not None else None
    told = f"the step becomes {gained:.2f} times faster"
    told += f"; the same work costs the same at {limit:.2f} USD per hour" if limit is not None else ""
    told += f", and {asked:.2f} is asked" if worth is not None else ""
    return Upgrade(to=new.id, speed_up=round(gained, 3), rates=rates, break_even_usd_h=limit and round(limit, 3), worth_it=worth, reason=told)


def _rates(old: Accelerator, new: Accelerator) -> dict[str, float]:
    """How many times faster each resource is; a resource without figures on both sides is left out (taken as unchanged)."""
    was, now = published.published(old.id, "bf16"), published.published(new.id, "bf16")
    compute = (was.tflops, now.tflops) if was and now else (catalogue.peak_tflops(old, "bf16"), catalogue.peak_tflops(new, "bf16"))
    memory, network = (old.memory_bandwidth_gb_s, new.memory_bandwidth_gb_s), (old.link_each_way_gb_s, new.link_each_way_gb_s)
    pairs = {"compute": compute, "memory": memory, "network": network}
    return {name: round(after / before, 3) for name, (before, after) in pairs.items() if before and after}


def _assumptions(upgrades: list[Upgrade]) -> list[str]:
    if not upgrades:
        return []
    told = [
        "compute by published bf16 MAMF where both parts have one, else by dense bf16 peaks; memory by bandwidth",
        "network by the GPU link, not by the fabric between nodes",
        "what is in no share stays as slow as it is; a larger memory or batch gains nothing",
    ]
    missing = sorted({name for one in upgrades for name in ("compute", "memory", "network") if name not in one.rates})
    return [*told, f"taken as unchanged for want of figures: {', '.join(missing)}"] if missing else told


def _skipped(prices: dict[str, float], step: dict[str, float] | None) -> list[str]:
    told = [] if prices else ["price columns: prices change weekly and by customer; pass prices_usd_h"]
    return told if step else [*told, "upgrades: step_shares was not given"]
