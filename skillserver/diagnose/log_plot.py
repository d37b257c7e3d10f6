"""The loss of a run over its steps with the findings marked: as text of braille dots, or as a PNG drawn by another process.

A column shows the lowest and highest loss of its steps, so that no spike gets lost; NaN is a finding, not a dot. The scale is
logarithmic where the loss spans a factor of ten. matplotlib is never loaded here: `log_picture.py` runs as a child. Files are
new ones only, and only where this process may read and run freely (not over HTTP). Knows one run; judges nothing.

>>> print(draw(run, findings, 40).splitlines()[-1])
a: critical loss_spike, step 700
"""

from __future__ import annotations

import importlib.util
import json
import math
import shutil
import string
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from skillserver import permissions, processes
from skillserver.diagnose.log_series import Run
from skillserver.errors import BadRequest, NotHere, WorkerFailed
from skillserver.findings import Finding

ROWS, NARROWEST, WIDEST, MARGIN = 12, 30, 110, 10  # characters
DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))  # braille: two columns of four, from the top
BLANK = 0x2800
FINE = 1500  # columns of a picture
LOGARITHMIC = 10.0  # highest over lowest
DEADLINE_S = 60.0
Column = tuple[int, float, float]  # place, lowest, highest


def wanted(plot: str) -> Path | None:
    """The file to write, None for text. Raises BadRequest and NotHere before anything is read."""
    if plot == "text":
        return None
    if not plot.endswith(".png"):
        raise BadRequest("plot_format", f"{plot!r} is neither text nor a .png file", valid=["", "text", "FILE.png"], next='plot="text"')
    granted = permissions.current()
    if not granted.run or granted.read_roots is not None:
        raise NotHere("not_permitted", "this server may not write a picture", next='plot="text", or the same call over stdio or the CLI')
    try:
        path = Path(plot).expanduser().resolve()
        there, folder = path.exists(), path.parent.is_dir()
    except (OSError, RuntimeError, ValueError) as problem:
        raise BadRequest("no_such_folder", f"{plot!r} is no path", next="name a new .png file in a folder that exists") from problem
    if there or not folder:
        raise BadRequest("file_exists" if there else "no_such_folder", f"{plot!r} " + ("is there already" if there else "lies in no folder"),
                         next="name a new .png file in a folder that exists")  # fmt: skip
    if importlib.util.find_spec("matplotlib") is None:
        raise NotHere("no_matplotlib", "pictures need matplotlib, which is not installed", next='plot="text", or pip install "skillserver[plot]"')
    return path


def draw(run: Run, findings: Sequence[Finding], width: int = 0) -> str:
    """The plot as text, as wide as the terminal when `width` is 0."""
    width = max(NARROWEST, min(width or shutil.get_terminal_size().columns - 1, WIDEST)) - MARGIN
    points = _points(run)
    if not points:
        return "no finite loss to plot"
    first, last = _span(run, points)
    columns = _envelope(points, first, last, 2 * width)
    low, high = min(column[1] for column in columns), max(column[2] for column in columns)
    scale = _scale(low, high)
    lines = _rows(columns, width, scale)
    shown = [f"{value:>{MARGIN - 2}.4g} |" for value in (high, low)]
    blank = " " * (MARGIN - 2) + " |"
    body = [(shown[0] if row == 0 else shown[1] if row == ROWS - 1 else blank) + line for row, line in enumerate(lines)]
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
        "high": [column[2] for column in columns], "logarithmic": _scale(min(c[1] for c in columns), max(c[2] for c in columns))[2],
        "events": [[each.step, each.last_step, each.severity, each.code] for each in findings if each.step is not None],
    }  # fmt: skip
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(data, file)
        file.flush()
        done = processes.run_with_deadline([sys.executable, str(Path(__file__).with_name("log_picture.py")), file.name, str(path)], DEADLINE_S)
    if done.rc != 0 or not path.is_file():
        said = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), "no answer in time")
        raise WorkerFailed("no_picture", f"drawing failed: {said[:200]}", next='plot="text"')
    return f"written to {path}"


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


def _scale(low: float, high: float) -> tuple[float, float, bool]:
    """(bottom, height, logarithmic)."""
    if low > 0 and high / low >= LOGARITHMIC:
        return math.log(low), math.log(high) - math.log(low), True
    return low, high - low, False


def _rows(columns: Sequence[Column], width: int, scale: tuple[float, float, bool]) -> list[str]:
    """Braille from the top; a column is a line from its lowest to its highest dot."""
    bottom, height, logarithmic = scale
    cells = [[BLANK] * width for _row in range(ROWS)]
    most = 4 * ROWS - 1
    for place, low, high in columns:
        tops = [
            most - round(((math.log(value) if logarithmic else value) - bottom) / height * most) if height else most // 2 for value in (high, low)
        ]
        for dot in range(tops[0], tops[1] + 1):
            cells[dot // 4][place // 2] |= DOTS[place % 2][dot % 4]
    return ["".join(map(chr, row)).rstrip(chr(BLANK)) for row in cells]


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
