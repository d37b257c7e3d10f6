"""The trials of a matmul search in the order they were timed, with the best so far: as text, or as a PNG drawn by another process.

>>> print(draw([1.0, 3.0, 2.0], "bf16 on cuda:0", 40).splitlines()[0])
bf16 on cuda:0: TFLOPS over trials
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Sequence
from pathlib import Path

from skillserver import drawing
from skillserver.drawing import MARGIN, NARROWEST, WIDEST, Column

TOO_FEW = "a plot needs two trials"


def draw(values: Sequence[float], title: str, width: int = 0) -> str:
    """Every trial as a dot and the best so far as a line, as wide as the terminal when `width` is 0."""
    if len(values) < 2:
        return TOO_FEW
    width = max(NARROWEST, min(width or shutil.get_terminal_size().columns - 1, WIDEST)) - MARGIN
    low, high = min(values), max(values)
    within = drawing.scale(low, high)
    body = drawing.framed(drawing.rows(_columns(values, 2 * width), width, within), low, high)
    ends = " " * MARGIN + "1" + f"{len(values):>{width - 1}}"
    return "\n".join([f"{title}: TFLOPS over trials" + (" (logarithmic)" if within[2] else ""), *body, ends])


def _columns(values: Sequence[float], columns: int) -> list[Column]:
    """The best so far in every column, and each trial as a dot in its own."""
    best = list(itertools.accumulate(values, max))
    step = (len(values) - 1) / (columns - 1)
    lines = [(place, best[round(place * step)], best[round(place * step)]) for place in range(columns)]
    return [*lines, *((round(number / step), value, value) for number, value in enumerate(values))]


def write(path: Path, values: Sequence[float], title: str) -> str:
    """Draw the trials into a new file; says what was written. Raises WorkerFailed."""
    if len(values) < 2:
        return f"{TOO_FEW}: nothing was written"
    told = {"values": list(values), "best": list(itertools.accumulate(values, max)), "title": title}
    return drawing.picture(Path(__file__).with_name("trials_picture.py"), told, path)
