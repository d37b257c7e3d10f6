"""Two runs side by side: do they spike at the same steps, and do they see the same data?

Runs with the same data order wiggle together: after the trend is taken out, their losses correlate step by step, whatever the
optimiser. Spikes at the same steps in such runs are the data's; spikes near the same place in runs with different data are
the optimiser's or the schedule's. No seed has to be known. Knows two Runs.

>>> compare("a", run, "b", other).verdict
'data'
"""

from __future__ import annotations

import math
from typing import Literal

from pydantic import BaseModel, Field

from skillserver.diagnose.log_robust import median
from skillserver.diagnose.log_series import Run
from skillserver.diagnose.log_spikes import episodes

SAME_DATA, OTHER_DATA = 0.5, 0.2  # correlation of the two runs' wiggles
LEAST = 30  # common steps
NEAR = 0.05  # of the step: "the same place" for runs with other data
CUT = 4.0  # wiggles are cut here, in sigmas, so that the spikes themselves do not make the correlation


class CrossRun(BaseModel):
    """What two runs say about each other's spikes."""

    runs: list[str]
    verdict: Literal["data", "optimiser", "unclear", "no_spikes"]
    same_data_order: bool | None = Field(description="null when it cannot be told")
    correlation: float | None = Field(description="of the losses without trend at common steps, spikes cut")
    common_steps: int
    same_steps: list[int] = Field(description="steps at which both spike")
    only_first: int
    only_second: int
    evidence: list[str]


def compare(name: str, run: Run, other_name: str, other: Run) -> CrossRun:
    """Compare the spikes of two runs."""
    first, second = _spikes(run), _spikes(other)
    correlation, common = _correlation(_wiggles(run), _wiggles(other))
    width = max(run.interval(), other.interval())
    same = sorted(step for step in first if any(abs(step - each) <= width for each in second))
    order = None if correlation is None else True if correlation >= SAME_DATA else False if correlation < OTHER_DATA else None
    near = [step for step in first if any(abs(step - each) <= NEAR * max(step, each) for each in second)]
    verdict, why = _verdict(first, second, same, near, order)
    evidence = [why]
    if correlation is not None:
        evidence.append(f"losses without their trend correlate {correlation:.2f} over {common} common steps")
    evidence += [f"step {step}: {first[step]:.4g} and {_value(second, step, width):.4g}" for step in same[:4]]
    return CrossRun(
        runs=[name, other_name], verdict=verdict, same_data_order=order, common_steps=common, same_steps=same[:50], evidence=evidence,
        correlation=None if correlation is None else round(correlation, 2), only_first=len(first) - len(same), only_second=len(second) - len(same),
    )  # fmt: skip


def _verdict(first: dict[int, float], second: dict[int, float], same: list[int], near: list[int],
             order: bool | None) -> tuple[Literal["data", "optimiser", "unclear", "no_spikes"], str]:  # fmt: skip
    if not first or not second:
        return "no_spikes", f"{len(first)} and {len(second)} spikes: nothing to compare"
    share = len(same) / min(len(first), len(second))
    if share >= 0.5 and order is not False and (len(same) >= 2 or order):
        return "data", f"{len(same)} of {len(first)} and {len(second)} spikes are at the same steps: the batches are bad, not the optimiser"
    if order is False and near:
        return "optimiser", f"the runs see different data and still spike near the same place ({near[0]}): optimiser, learning rate or schedule"
    if order is True and share < 0.2:
        return "optimiser", "the runs see the same data and do not spike together: something in the run itself, not the batches"
    return "unclear", f"{len(same)} of {len(first)} and {len(second)} spikes coincide, and the data order " + (
        "cannot be told" if order is None else "is the same" if order else "differs"
    )


def _value(spikes: dict[int, float], step: int, width: int) -> float:
    return next((value for at, value in spikes.items() if abs(at - step) <= width), math.nan)


def _spikes(run: Run) -> dict[int, float]:
    rows, values = run.values("loss")
    return {run.steps[rows[each.peak]]: each.value for each in episodes(values) if not each.crowded}


def _wiggles(run: Run) -> dict[int, float]:
    """Loss less the median of 15 reports around, by step, over the median: what the batch adds."""
    rows, values = run.values("loss")
    pairs = [(run.steps[row], value) for row, value in zip(rows, values, strict=True) if math.isfinite(value)][:20_000]
    losses = [value for _step, value in pairs]
    found = {}
    for place, (step, value) in enumerate(pairs):
        level = median(losses[max(0, place - 7) : place + 8])
        found[step] = (value - level) / max(abs(level), 1e-12)
    return found


def _correlation(first: dict[int, float], second: dict[int, float]) -> tuple[float | None, int]:
    common = sorted(first.keys() & second.keys())
    if len(common) < LEAST:
        return None, len(common)
    left, right = (_cut([side[step] for step in common]) for side in (first, second))
    sizes = math.sqrt(sum(value * value for value in left) * sum(value * value for value in right))
    return (sum(a * b for a, b in zip(left, right, strict=True)) / sizes if sizes else None), len(common)


def _cut(values: list[float]) -> list[float]:
    limit = CUT * 1.4826 * median([abs(value) for value in values])
    return [max(-limit, min(limit, value)) for value in values]
