"""What serving takes beside what formulas give: shares of peaks that engines reach, gaps, engine memory and defaults.

Knows data/inference_allowances.toml, and how several uncertain allowances make one 80% interval. Knows no model.

>>> allowance("utilization").value
0.9
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping

from skillserver import tables
from skillserver.estimate.allowances import Allowance
from skillserver.findings import Interval

SPEEDS = ("bandwidth_share", "compute_share", "expert_compute", "attention_share", "step_s", "layer_s", "sequence_s", "all_reduce_s",
          "link_share", "fabric_gb_s", "fabric_all_reduce_s")  # fmt: skip
Speeds = Mapping[str, float]


@functools.cache
def allowance(name: str) -> Allowance:
    """One constant of the table; KeyError is a bug."""
    return {row.id: row for row in tables.load("inference_allowances.toml", Allowance)}[name]


def expected_speeds() -> dict[str, float]:
    """The expected value of everything that a step's time rests on."""
    return {name: allowance(name).value for name in SPEEDS}


def interval_of(time_of: Callable[[Speeds], float], names: Iterable[str] = SPEEDS) -> Interval:
    """80% interval of a time (s): each allowance is moved to its ends alone and the deviations of the logarithm add in squares.

    They have separate causes, so they seldom all point one way; `unmodelled` is added as one more.
    """
    middle, expected = expected_speeds(), time_of(expected_speeds())
    rest = allowance("unmodelled")
    below, above = [math.log(rest.value / rest.low)], [math.log(rest.high / rest.value)]
    for name in names:
        row = allowance(name)
        ends = [math.log(time_of({**middle, name: end}) / expected) for end in (row.low, row.high)]
        below.append(max(0.0, -min(ends)))
        above.append(max(0.0, max(ends)))
    return Interval(low=expected * math.exp(-math.hypot(*below)), expected=expected, high=expected * math.exp(math.hypot(*above)))
