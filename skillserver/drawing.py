"""Plots as text of braille dots, and where a picture may be written: what every plot of the product shares.

matplotlib is never loaded here: a picture is drawn by a stand-alone script run as a child. Files are new ones only, and
only where this process may read and run freely (not over HTTP). Knows no subject.

>>> rows([(0, 1.0, 1.0), (3, 2.0, 2.0)], 2, scale(1.0, 2.0))[0].strip()
'⠈'
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from skillserver import permissions, processes
from skillserver.errors import BadRequest, NotHere, WorkerFailed

ROWS, NARROWEST, WIDEST, MARGIN = 12, 30, 110, 10  # characters
DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))  # braille: two columns of four, from the top
BLANK = 0x2800
LOGARITHMIC = 10.0  # highest over lowest
DEADLINE_S = 60.0
Column = tuple[int, float, float]  # place, lowest, highest
Scale = tuple[float, float, bool]  # bottom, height, logarithmic


def wanted(plot: str) -> Path | None:
    """The file to write, None for text. Raises BadRequest and NotHere before anything is read."""
    if plot == "text":
        return None
    if not plot.endswith(".png"):
        raise BadRequest("plot_format", f"{plot!r} is neither text nor a .png file", valid=["text", "FILE.png"],
                         next='pass plot="text", or leave it out')  # fmt: skip
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


def picture(script: Path, data: dict[str, Any], path: Path) -> str:
    """Have a stand-alone script draw the data into a new file; says what was written. Raises WorkerFailed.

    Drawn aside, then linked: a half picture never bears the name, and a file that came meanwhile is not overwritten.
    """
    aside = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(data, file)
            file.flush()
            done = processes.run_with_deadline([sys.executable, str(script), file.name, str(aside)], DEADLINE_S)
        if done.rc != 0:
            said = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), "no answer in time")
            raise WorkerFailed("no_picture", f"drawing failed: {said[:200]}", next='plot="text"')
        path.hardlink_to(aside)
    except OSError as problem:
        raise WorkerFailed("no_picture", f"drawing failed: {path}: {problem.strerror}", next='plot="text"') from problem
    finally:
        aside.unlink(missing_ok=True)
    return f"written to {path}"


def scale(low: float, high: float) -> Scale:
    """Logarithmic where the values span a factor of ten."""
    if low > 0 and high / low >= LOGARITHMIC:
        return math.log(low), math.log(high) - math.log(low), True
    return low, high - low, False


def rows(columns: Sequence[Column], width: int, within: Scale) -> list[str]:
    """Lines of braille from the top, `width` characters of two columns each; a column is a line from its lowest to its highest value."""
    bottom, height, logarithmic = within
    cells = [[BLANK] * width for _row in range(ROWS)]
    most = 4 * ROWS - 1
    for place, low, high in columns:
        tops = [
            most - round(((math.log(value) if logarithmic else value) - bottom) / height * most) if height else most // 2 for value in (high, low)
        ]
        for dot in range(tops[0], tops[1] + 1):
            cells[dot // 4][place // 2] |= DOTS[place % 2][dot % 4]
    return ["".join(map(chr, row)).rstrip(chr(BLANK)) for row in cells]


def framed(lines: Sequence[str], low: float, high: float) -> list[str]:
    """The lines of a plot behind an axis that names the highest and the lowest value."""
    named = {0: f"{high:>{MARGIN - 2}.4g} |", len(lines) - 1: f"{low:>{MARGIN - 2}.4g} |"}
    blank = " " * (MARGIN - 2) + " |"
    return [named.get(row, blank) + line for row, line in enumerate(lines)]
