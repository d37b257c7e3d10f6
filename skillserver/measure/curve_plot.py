"""A collective over message sizes, and pairs as a matrix: as text, or as a PNG drawn by another process.

Sizes stand on a logarithmic axis; the line joins the medians, busbw in GB/s, or us where nothing is moved. Judges nothing.

>>> print(curve([{"bytes": 2**20, "busbw_gb_s": 1.0}, {"bytes": 2**26, "busbw_gb_s": 4.0}], "all_reduce", 40).splitlines()[0])
all_reduce: busbw GB/s over message size
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from skillserver import drawing
from skillserver.drawing import MARGIN, NARROWEST, WIDEST, Column
from skillserver.units import show_bytes

Row = dict[str, Any]
SHADES = " .:-=+*#%@"  # slow to fast
MOST_PLAYERS = 60


def curve(rows: Sequence[Row], title: str, width: int = 0) -> str:
    """The rows of one collective as text, as wide as the terminal when `width` is 0."""
    points = [(row["bytes"], row["busbw_gb_s"]) for row in rows if row.get("busbw_gb_s") and row.get("bytes")]
    if len(points) < 2:
        return "a curve needs two sizes with a bandwidth"
    width = max(NARROWEST, min(width or shutil.get_terminal_size().columns - 1, WIDEST)) - MARGIN
    columns = _joined(points, 2 * width)
    low, high = min(value for _, value in points), max(value for _, value in points)
    within = drawing.scale(low, high)
    body = drawing.framed(drawing.rows(columns, width, within), low, high)
    first, last = show_bytes(points[0][0]), show_bytes(points[-1][0])
    ends = " " * MARGIN + first + f"{last:>{max(width - len(first), 1)}}"
    return "\n".join([f"{title}: busbw GB/s over message size" + (" (logarithmic)" if within[2] else ""), *body, ends])


def _joined(points: Sequence[tuple[int, float]], columns: int) -> list[Column]:
    """A value for every column, on the line between its neighbours; sizes logarithmic."""
    first, span = math.log(points[0][0]), math.log(points[-1][0] / points[0][0])
    places = [(math.log(size) - first) / span * (columns - 1) for size, _ in points]
    found: list[Column] = []
    for number in range(len(points) - 1):
        begin, end = round(places[number]), round(places[number + 1])
        before, after = points[number][1], points[number + 1][1]
        for place in range(begin, end + (number == len(points) - 2)):
            value = before + (after - before) * (place - begin) / max(1, end - begin)
            found.append((place, value, value))
    return found


def matrix(players: Sequence[str], rates: Sequence[Sequence[float | None]]) -> str:
    """Every pair's rate as a share of the fastest, one character a pair."""
    if len(players) > MOST_PLAYERS:
        return f"{len(players)} players do not fit in a text plot; the samples hold every pair"
    known = [rate for line in rates for rate in line if rate]
    top, wide = max(known, default=0.0), max(map(len, players))
    lines = [f"{name:>{wide}} |" + "".join(_shade(rate, top) for rate in line) for name, line in zip(players, rates, strict=True)]
    return "\n".join([f"share of {top:.4g} GB/s: '{SHADES[1]}' least to '{SHADES[-1]}' all; columns in the order of the lines", *lines])


def _shade(rate: float | None, top: float) -> str:
    return SHADES[max(1, round(rate / top * (len(SHADES) - 1)))] if rate else SHADES[0]


def write(path: Path, rows: Sequence[Row], title: str) -> str:
    """Draw the rows into a new file; says what was written. Raises WorkerFailed."""
    shown = [row for row in rows if row.get("busbw_gb_s") and row.get("bytes")]
    if len(shown) < 2:
        return "a curve needs two sizes with a bandwidth: nothing was written"
    told = {"bytes": [row["bytes"] for row in shown], "values": [row["busbw_gb_s"] for row in shown], "unit": "busbw GB/s", "title": title,
            "low": [row["busbw_gb_s"] * row["time_us"] / row["p95_us"] for row in shown],
            "high": [row["busbw_gb_s"] * row["time_us"] / row["p5_us"] for row in shown]}  # fmt: skip
    return drawing.picture(Path(__file__).with_name("curve_picture.py"), told, path)
