"""Robust statistics for noisy curves: rolling medians, the noise of a series, blocks, trends. Pure numbers.

The median and the median absolute deviation (MAD) are not moved by the very outliers they are to find, unlike mean and
standard deviation, which an earlier spike inflates for a whole window. 1.4826 x MAD estimates the sigma of Gaussian noise.
Knows lists of floats; not what they measure.

>>> median([3.0, 1.0, 100.0]), round(sigma([1.0, 2.0, 3.0, 4.0, 100.0]), 2)
(3.0, 1.48)
"""

from __future__ import annotations

import bisect
import itertools
from collections import deque
from collections.abc import Sequence

GAUSSIAN = 1.4826  # sigma / MAD
DIFFERENCES = 1.048  # sigma / median |difference of neighbours|


def median(values: Sequence[float]) -> float:
    """The middle value; 0 for nothing."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    if not ordered:
        return 0.0
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def sigma(values: Sequence[float]) -> float:
    """Noise around the median, from the MAD."""
    centre = median(values)
    return GAUSSIAN * median([abs(value - centre) for value in values])


def jitter(values: Sequence[float]) -> float:
    """Noise from one value to the next: a trend does not count as noise."""
    return DIFFERENCES * median([abs(after - before) for before, after in itertools.pairwise(values)])


class Window:
    """The last `size` values, kept sorted; the median costs nothing and the MAD is worked out only when asked for."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._order: deque[float] = deque()
        self._sorted: list[float] = []

    def __len__(self) -> int:
        return len(self._sorted)

    def push(self, value: float) -> None:
        """Take a finite value, forget the oldest."""
        self._order.append(value)
        bisect.insort(self._sorted, value)
        if len(self._order) > self.size:
            del self._sorted[bisect.bisect_left(self._sorted, self._order.popleft())]

    def median(self) -> float:
        """The (upper) middle."""
        return self._sorted[len(self._sorted) // 2]

    def largest(self) -> float:
        """The highest value."""
        return self._sorted[-1]

    def sigma(self) -> float:
        """1.4826 x MAD."""
        return sigma(self._sorted)


def blocks(values: Sequence[float], most: int, least_size: int) -> tuple[list[float], int]:
    """(median of each block, size of a block): at most `most` blocks of at least `least_size` values; a short rest is left out."""
    size = max(least_size, -(-len(values) // most))
    return [median(values[start : start + size]) for start in range(0, len(values) - size + 1, size)], size


def slope(values: Sequence[float]) -> float:
    """Theil-Sen: the median slope over pairs half the length apart, per value. 0 for fewer than 4."""
    half = len(values) // 2
    if half < 2:
        return 0.0
    return median([(values[place + half] - values[place]) / half for place in range(len(values) - half)])


def rising_share(values: Sequence[float]) -> float:
    """Kendall's measure: share of pairs that rise less those that fall, -1..1. Quadratic: for at most a few hundred values."""
    pairs = rises = 0
    for place, value in enumerate(values):
        for other in values[place + 1 :]:
            pairs += 1
            rises += (other > value) - (other < value)
    return rises / pairs if pairs else 0.0
