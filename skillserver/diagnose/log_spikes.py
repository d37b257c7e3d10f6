"""Spikes of a curve: values that stand out of what was normal just before, grouped into episodes and followed to their end.

Rule: above the median of the last 64 reports by 6 sigma (from the MAD, which earlier spikes do not inflate) and by 5%. Where
there are fewer than 16 reports before, a ratio decides, so that an excerpt of three lines works. A curve that jumps all the
time (batches of one sample) has a heavy tail, not spikes: an episode whose neighbours often reach half its height is noise. Knows one series.

>>> [(episode.start, episode.peak) for episode in episodes([2.2, 2.2, 2.3, 5.1, 3.5, 2.2])]
[(3, 3)]
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from skillserver.diagnose.log_robust import Window, jitter, median

WINDOW, WARM = 64, 16
SIGMAS, RATIO, FLOOR = 6.0, 0.05, 0.001  # floor: sigma is at least this share of the median
EARLY_RATIO, ABOVE_ALL = 0.3, 0.15  # with few reports before: over their median, over their highest
JOIN = 5  # reports between bumps of one episode
FOLLOW = 400  # reports within which an episode may end
CROWD, CROWDED = 64, 0.04  # this share of the 64 reports to either side stands out half as far: noise
MOST = 3000  # episodes looked at closely; a curve with more is noise anyway


@dataclass
class Episode:
    """Places in the series. `end` is the last report that stands out, `recovered` the first that is normal again (None: never)."""

    start: int
    end: int
    peak: int
    value: float
    baseline: float
    sigma: float
    recovered: int | None = None
    crowded: bool = False

    @property
    def rise(self) -> float:
        """How far the peak is above the baseline, as a share of it."""
        return (self.value - self.baseline) / max(abs(self.baseline), 1e-12)


def episodes(values: Sequence[float], *, ratio: float = RATIO, sigmas: float = SIGMAS) -> list[Episode]:
    """Episodes in order; values that are not finite are passed over."""
    found: list[Episode] = []
    early = jitter([value for value in values[:WINDOW] if math.isfinite(value)]) if len(values) >= 2 * WARM else 0.0
    window = Window(WINDOW)
    for place, value in enumerate(values):
        if not math.isfinite(value):
            continue
        if len(window):
            centre = window.median()
            noise = _stands_out(value, centre, window, early, ratio, sigmas)
            if noise is not None:
                _join(found, place, value, centre, noise)
        window.push(value)
    for episode in found:
        episode.recovered = _recovery(values, episode)
    return _mark_crowds(values, _without_overlap(found))


def _stands_out(value: float, centre: float, window: Window, early: float, ratio: float, sigmas: float) -> float | None:
    """The sigma it was judged by when the value stands out, else None."""
    rise, size = value - centre, abs(centre)
    if rise <= ratio * size:
        return None
    if len(window) >= WARM:
        noise = max(window.sigma(), FLOOR * size)
        return noise if rise > sigmas * noise else None
    if rise <= max(EARLY_RATIO, ratio) * size or value <= window.largest() + ABOVE_ALL * size:
        return None
    noise = max(early, FLOOR * size, window.sigma() if len(window) >= 4 else 0.0)
    return noise if rise > sigmas * noise else None


def _join(found: list[Episode], place: int, value: float, centre: float, noise: float) -> None:
    last = found[-1] if found else None
    if last is not None and place - last.end <= JOIN:
        last.end = place
        if value > last.value:
            last.peak, last.value = place, value
    else:
        found.append(Episode(place, place, place, value, centre, noise))


def _recovery(values: Sequence[float], episode: Episode) -> int | None:
    """The first place behind the peak where this and the next two reports are, by their median, as before."""
    limit = episode.baseline + max(0.02 * abs(episode.baseline), 3 * episode.sigma)
    for place in range(episode.peak + 1, min(len(values), episode.peak + FOLLOW)):
        near = [value for value in values[place : place + 3] if math.isfinite(value)]
        if near and median(near) <= limit and values[place] <= limit:
            return place
    return None


def _without_overlap(found: list[Episode]) -> list[Episode]:
    """An episode that begins before the one before it has recovered is part of that."""
    kept: list[Episode] = []
    for episode in found:
        last = kept[-1] if kept else None
        if last is not None and last.recovered is not None and episode.start < last.recovered:
            last.end = max(last.end, episode.end)
            if episode.value > last.value:
                last.peak, last.value = episode.peak, episode.value
        else:
            kept.append(episode)
    return kept


def _mark_crowds(values: Sequence[float], found: list[Episode]) -> list[Episode]:
    """Mark episodes of which neighbours reach half the height too often: a heavy tail, not events."""
    for episode in found[:MOST]:
        begin, end = max(0, episode.peak - CROWD), min(len(values), episode.peak + CROWD + 1)
        own = range(episode.start - 1, (episode.recovered or episode.end) + 2)
        others = [place for place in range(begin, end) if place not in own and math.isfinite(values[place])]
        high = sum(values[place] > _around(values, place) + 0.5 * episode.rise * abs(_around(values, place)) for place in others)
        episode.crowded = high >= 3 and high >= CROWDED * len(others)
    return found


def _around(values: Sequence[float], place: int) -> float:
    """The median of a value and its three neighbours on either side."""
    return median([value for value in values[max(0, place - 3) : place + 4] if math.isfinite(value)])
