"""DeepSpeed's own lines: `step=10, skipped=0, lr=[...]`, `steps: 1 loss: 12.79 iter time (s): 150.471 samples/sec: 6.805`.

Their `skipped` counts from the start of the run, not since the last line. Overflow lines are events, not reports: see
log_events. Knows these lines only.

>>> DeepSpeed().read("steps: 3 loss: 12.7902 iter time (s): 150.471 samples/sec: 6.805").step_time_s
150.471
"""

from __future__ import annotations

import re

from skillserver.diagnose.log_formats.names import Record, number

LOSS = re.compile(r"\bsteps: (\d+) loss: (\S+) iter time \(s\): (\S+)")
STEP = re.compile(r"\bstep=(\d+), skipped=(\d+), lr=\[([^\],]+)")
GLOBAL = re.compile(r"global_step=(\d+), RunningAvgSamplesPerSec=\S+ CurrSamplesPerSec=([\d.]+)")


class DeepSpeed:
    """The three kinds of lines; one without a loss still says how far the run got."""

    name = "deepspeed"
    late = False
    gathers = False

    def __init__(self) -> None:
        self._skipped = 0.0

    def read(self, text: str) -> Record | None:
        """The record of a line, None when it is not one of these."""
        if "step" not in text or not ("skipped=" in text or "iter time" in text or "RunningAvg" in text):
            return None
        if match := LOSS.search(text):
            return Record(step=int(match[1]), loss=number(match[2]), step_time_s=number(match[3]))
        if match := STEP.search(text):
            before, self._skipped = self._skipped, float(match[2])
            return Record(step=int(match[1]), skipped=max(self._skipped - before, 0.0), lr=number(match[3]))
        if match := GLOBAL.search(text):
            return Record(step=int(match[1]), tokens_per_s=number(match[2]))
        return None

    def close(self) -> Record | None:
        """Nothing is held back."""
        return None
