"""The usual step time of a training log, as evidence for an estimate of hours.

Joins the log reader of diagnose/ with the evidence of estimate/. Printed step times come first, then a clock or dates.
Where a log has tokens per second only, it does not say whether of one accelerator or all: that is asked back. Knows
nothing of models and parts.

>>> pace(Path("train.log")).step_s
105.2
"""

from __future__ import annotations

from pathlib import Path

from skillserver.diagnose import log_reading, log_speed
from skillserver.diagnose.log_robust import median
from skillserver.errors import BadRequest
from skillserver.estimate.evidence import Logged

WARM_UP, ENOUGH = 1, 3


def pace(path: Path) -> Logged:
    """Median and mean seconds a step, the first report left out. Raises BadRequest when the log has too few step times."""
    run = log_reading.read_file(path).run
    printed = run.values("step_time_s")[1]
    rates = run.values("tokens_per_s")[1]
    if len(printed) < 2 and len(rates) >= 2:
        raise BadRequest("rate_of_whom", f"{path.name} has tokens per second ({median(rates):.6g} at the median) and no step time; it does not say "
                         "whether of one accelerator or of all", next="pass evidence.tokens_per_s_per_gpu")  # fmt: skip
    paces = [seconds for _row, seconds in log_speed.paces(run)][WARM_UP:]
    if len(paces) < ENOUGH:
        raise BadRequest("no_step_times", f"{path.name}, read as {run.format}, has {len(paces)} step times after the first; {ENOUGH} are needed",
                         next="pass evidence.step_s and tokens_per_step")  # fmt: skip
    usual = median(paces)
    mean = sum(paces) / len(paces) if len(printed) >= 2 else None  # gaps between dates hold restarts, which are not steps
    return Logged(usual, mean, f"{usual:.4g} s a step at the median of {len(paces)} reports of {path.name}")
