"""An exhaustive grid of matmul shapes: what "start:stop:step" means, how many shapes it holds, about how long they take.

Ends are included. One range stands for m, n and k; three, with commas between, for each. The estimate needs a speed, which
nobody knows before measuring: it is right within a factor of a few and says what it rests on. Knows sizes and seconds; no device.

>>> grid = parse("1024:4096:1024,1024:4096:1024,4096:4096:1"); grid.shapes, round(seconds(grid, 400.0, gpu=True), 2)
(16, 0.05)
"""

from __future__ import annotations

import re
from typing import NamedTuple

from skillserver.errors import BadRequest

RANGE = re.compile(r"(\d+)(?::(\d+)(?::(\d+))?)?")
MOST = 20_000  # shapes; the whole 256-step grid of an H100 has 493,039 and takes days
LARGEST = 10**6
LOOKS = {True: 5, False: 3}  # samples a shape, as the worker takes them; one more call picks the kernel
FLUSH_S = {True: 0.3e-3, False: 20e-3}  # a write of twice the last-level cache
EXAMPLE = 'a range is start:stop:step, such as "1024:8192:1024"; three of them with commas are m, n and k'


class Grid(NamedTuple):
    """(start, stop, step) of m, n and k, ends included."""

    m: tuple[int, int, int]
    n: tuple[int, int, int]
    k: tuple[int, int, int]

    @property
    def shapes(self) -> int:
        """Shapes in it."""
        m, n, k = (len(range(start, stop + 1, step)) for start, stop, step in self)
        return m * n * k

    @property
    def flops(self) -> float:
        """2*m*n*k summed over all shapes."""
        m, n, k = (sum(range(start, stop + 1, step)) for start, stop, step in self)
        return 2.0 * m * n * k


def parse(text: str) -> Grid:
    """The grid of a text. Raises BadRequest for what is no range, runs backwards, or holds more than MOST shapes."""
    sides = [_range(part) for part in text.replace(" ", "").split(",")]
    if len(sides) not in (1, 3):
        raise BadRequest("bad_grid", f"grid {text!r} has {len(sides)} ranges", next=f"pass one or three: {EXAMPLE}")
    grid = Grid(*(sides * 3 if len(sides) == 1 else sides))
    if grid.shapes > MOST:
        raise BadRequest("grid_too_large", f"grid {text!r} holds {grid.shapes:,} shapes and at most {MOST:,} are taken",
                         next="take a larger step, or leave grid out: the search finds 99% of the best in about 100 trials")  # fmt: skip
    return grid


def _range(part: str) -> tuple[int, int, int]:
    found = RANGE.fullmatch(part)
    if not found:
        raise BadRequest("bad_grid", f"grid: {part!r} is no range", next=EXAMPLE)
    start = int(found[1])
    stop, step = int(found[2] or start), int(found[3] or 1)
    if not 1 <= start <= stop <= LARGEST or step < 1:
        raise BadRequest("bad_grid", f"grid: {part!r} must run from 1 or more upwards to at most {LARGEST:,}, in steps of 1 or more", next=EXAMPLE)
    return start, stop, step


def seconds(grid: Grid, tflops: float, *, gpu: bool) -> float:
    """About how long every shape of the grid takes once at this speed, flushing included."""
    looks = LOOKS[gpu]
    return (looks + 1) * grid.flops / tflops / 1e12 + grid.shapes * looks * FLUSH_S[gpu]
