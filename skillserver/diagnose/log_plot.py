"""The loss of a run over its steps with the findings marked: as text of braille dots, or as a PNG drawn by another process.

A column shows the lowest and highest loss of its steps, so that no spike gets lost; NaN is a finding, not a dot. The scale is
logarithmic where the loss spans a factor of ten. matplotlib is never loaded here: `log_picture.py` runs as a child. Files are
new ones only, and only where this process may read and run freely (not over HTTP). Knows one run; judges nothing.

>>> print(draw(run, findings, 40).splitlines()[-1])
a: critical loss_spike, step 700
"""

from __future__ import annotations

import math
import shutil
import string
from collections.abc import Sequence
from pathlib import Path

from skillserver import drawing
from skillserver.diagnose.log_series import Run
from skillserver.drawing import MARGIN, NARROWEST, ROWS, WIDEST, Column, wanted
from skillserver.findings import Finding

__all__ = ["MARGIN", "ROWS", "draw", "wanted", "write"]
FINE = 1500  # columns of a picture


def draw(run: Run, findings: Sequence[Finding], width: int = 0) -> str:
    """The plot as text, as wide as the terminal when `width` is 0."""
    width = max(NARROWEST, min(width or shutil.get_terminal_size().columns - 1, WIDEST)) - MARGIN
    points = _points(run)
    if not points:
        return "no finite loss to plot"
    first, last = _span(run, points)
    columns = _envelope(points, first, last, 2 * width)
    low, high = min(column[1] for column in columns), max(column[2] for column in columns)
    scale = drawing.scale(low, high)
    body = drawing.framed(drawing.rows(columns, width, scale), low, high)
    marks, legend = _marks(findings, first, last, width)
    ends = f"{first}{last:>{max(width - len(str(first)), 1)}}"
    title = "loss" + (" (logarithmic)" if scale[2] else "") + " over steps"
    return "\n".join([title, *body, *([" " * MARGIN + marks] if legend else []), " " * MARGIN + ends, *legend])


def write(path: Path, run: Run, findings: Sequence[Finding]) -> str:
    """Draw into a new file; says what was written. Raises WorkerFailed."""
    points = _points(run)
    if not points:
        return "no finite loss to plot: nothing was written"
    first, last = _span(run, points)
    columns = _envelope(points, first, last, FINE)
    width = (last - first) / (FINE - 1)
    data = {
        "steps": [first + place * width for place, _low, _high in columns], "low": [column[1] for column in columns],
        "high": [column[2] for column in columns], "logarithmic": drawing.scale(min(c[1] for c in columns), max(c[2] for c in columns))[2],
        "events": [[each.step, each.last_step, each.severity, each.code] for each in findings if each.step is not None],
    }  # fmt: skip
    return drawing.picture(Path(__file__).with_name("log_picture.py"), data, path)


def _points(run: Run) -> list[tuple[int, float]]:
    rows, values = run.values("loss")
    told = [(run.steps[row], value) for row, value in zip(rows, values, strict=True)] or [(each.step, each.loss) for each in run.evaluations]
    return [(step, value) for step, value in told if math.isfinite(value)]


def _span(run: Run, points: Sequence[tuple[int, float]]) -> tuple[int, int]:
    steps = [*run.steps, *(step for step, _value in points)]
    return min(steps), max(steps)


def _place(step: int, first: int, last: int, columns: int) -> int:
    return round((min(max(step, first), last) - first) / max(last - first, 1) * (columns - 1))


def _envelope(points: Sequence[tuple[int, float]], first: int, last: int, columns: int) -> list[Column]:
    """(column, lowest, highest) where there is a loss, from left to right."""
    found: dict[int, tuple[float, float]] = {}
    for step, value in points:
        place = _place(step, first, last, columns)
        low, high = found.get(place, (value, value))
        found[place] = (min(low, value), max(high, value))
    return [(place, *found[place]) for place in sorted(found)]


def _marks(findings: Sequence[Finding], first: int, last: int, width: int) -> tuple[str, list[str]]:
    """(line of letters under the plot, what each letter is); where two fall together the worse one, which is listed first, shows."""
    line, legend = [" "] * width, []
    for letter, each in zip(string.ascii_lowercase, (each for each in findings if each.step is not None), strict=False):
        assert each.step is not None
        place = _place(each.step, first, last, width)
        line[place] = letter if line[place] == " " else line[place]
        until = f" to {each.last_step}" if each.last_step is not None and each.last_step > each.step else ""
        legend.append(f"{letter}: {each.severity} {each.code}, step {each.step}{until}")
    return "".join(line).rstrip(), legend
