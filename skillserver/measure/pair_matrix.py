"""Who is slow when every pair was measured: a player slow with every partner, a single slow pair, or two halves far apart.

Takes a symmetric matrix of rates (more is better), gives names. A player is slow when its median over partners stands
out below the others' by 4.5 robust deviations (1.4826 MAD; more where pairs are few) and by 15%, and nearly all its pairs are low. Of the rest a pair
is slow when it lies as far below their median, or below a gap of 25% that is three times as wide as the scatter on
either side of it: with a slow uplink between halves the median itself is slow. Slow pairs are then read as a graph: a
player slow with all it met is to blame itself (its NIC, its GPU, its host); groups that are fast within and slow between
share a slow uplink or another rail; what is left is one cable, port or path. Below four players nobody is named, also
when slow ones left fewer, and where nothing stands out nobody is. Knows no host and no wire.

>>> judge(["a", "b", "c", "d"], matrix).players      # matrix with one row and column at half the rate
['d']
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from pydantic import BaseModel, Field

Matrix = Sequence[Sequence[float | None]]
Pair = tuple[int, int]

FEWEST = 4
SIGMAS, SHARE = 4.5, 0.15
MAD_TO_SIGMA = 1.4826
GAP, OVER_SCATTER = 1.25, 3.0
WITH_ALL = 0.8  # of at least five partners; of fewer, all
MANY = 10  # of fewer values quartiles and deviations are themselves uncertain
FEWEST_OTHERS = 3  # pairs of which none is accused
LEVELS = 3  # a dead cable hides a slow node behind it: look again without what was found


class Slow(BaseModel):
    """Players and pairs that stand out, by name."""

    typical: float | None = Field(default=None, description="median of the pairs that are not slow")
    players: list[str] = Field(default_factory=list, description="slow with every partner")
    pairs: list[tuple[str, str]] = Field(default_factory=list, description="slow, though both are fast with others")
    groups: list[list[str]] = Field(default_factory=list, description="fast within, slow between")
    scatter: float | None = Field(default=None, description="1.4826 MAD of the pairs that are not slow, as a share of their median")
    reason: str = Field(default="", description="why nobody can be named")


def judge(names: Sequence[str], matrix: Matrix) -> Slow:
    """Names the slow ones of a matrix in any unit; null cells were not measured."""
    rates = {(a, b): rate for a in range(len(names)) for b in range(a + 1, len(names)) if (rate := matrix[a][b]) is not None and rate > 0}
    if len(names) < FEWEST:
        pairs = f"{len(rates)} pair{'s' if len(rates) > 1 else ''}"
        return Slow(typical=_median(rates), reason=f"{len(names)} players make {pairs}: with fewer than {FEWEST} nothing says which is off")
    if len(rates) < len(names):
        return Slow(typical=_median(rates), reason=f"only {len(rates)} pairs were measured")
    low = _low_players(len(names), rates)
    slow = {pair for pair in rates if low & set(pair)}
    slow |= _slow_pairs({pair: rate for pair, rate in rates.items() if pair not in slow})
    fast = {pair: rate for pair, rate in rates.items() if pair not in slow}
    told = _read(names, rates, slow)
    told.typical, told.scatter = _median(fast), _scatter(list(fast.values()))
    return told


def _median(rates: dict[Pair, float]) -> float | None:
    return statistics.median(rates.values()) if rates else None


def _scatter(values: Sequence[float]) -> float:
    """Robust deviation as a share of the median; 0 for fewer than three."""
    if len(values) < 3:
        return 0.0
    middle = statistics.median(values)
    return MAD_TO_SIGMA * statistics.median(abs(value - middle) for value in values) / middle


def _low_players(count: int, rates: dict[Pair, float]) -> set[int]:
    """Players whose median over partners stands out below the others', and who are below them with nearly every partner.

    The median of many pairs scatters less than one pair, so this finds what single pairs hide in noise.
    """
    met = {player: [rate for pair, rate in rates.items() if player in pair] for player in range(count)}
    levels = {player: statistics.median(values) for player, values in met.items() if values}
    middle, scatter = statistics.median(levels.values()), _scatter(list(levels.values()))
    found = {player for player, level in levels.items() if level < middle * (1.0 - max(SIGMAS * scatter, SHARE))}
    others = [rate for pair, rate in rates.items() if not found & set(pair)]
    if len(others) < FEWEST_OTHERS:
        return set()
    usual = statistics.median(others) * (1.0 - SHARE / 2)
    return {player for player in found if sum(rate < usual for rate in met[player]) >= WITH_ALL * len(met[player])}


def _slow_pairs(rates: dict[Pair, float]) -> set[Pair]:
    """Every pair below a limit, found again among the rest until no more stand out."""
    slow: set[Pair] = set()
    for _ in range(LEVELS):
        rest = {pair: rate for pair, rate in rates.items() if pair not in slow}
        if len(rest) < FEWEST_OTHERS:
            break
        below = _below(list(rest.values()))
        found = {pair for pair, rate in rest.items() if rate < below}
        if not found or len(found) == len(rest):
            break
        slow |= found
    return slow


def _below(values: list[float]) -> float:
    """The limit under which a rate is slow; 0 when none stands out."""
    gap = _gap(sorted(values))
    if gap:
        return gap
    middle = statistics.median(values)
    sigmas = SIGMAS if len(values) >= MANY else SIGMAS * MANY / len(values)
    return middle * (1.0 - max(sigmas * _scatter(values), SHARE))


def _gap(ordered: list[float]) -> float:
    """The middle of the widest step between neighbours, when it splits the rates in two kinds; else 0."""
    steps = [(math.log(ordered[place + 1] / ordered[place]), place) for place in range(len(ordered) - 1)]
    if not steps:
        return 0.0
    step, place = max(steps)
    below, above = ordered[: place + 1], ordered[place + 1 :]
    apart = OVER_SCATTER * max(_spread(below), _spread(above))
    return math.sqrt(below[-1] * above[0]) if step >= math.log(GAP) and step >= apart and len(above) > 1 else 0.0


def _spread(values: Sequence[float]) -> float:
    """How wide a kind is in itself: the middle half of its logarithms, at most the whole."""
    if len(values) < MANY:
        return math.log(values[-1] / values[0])
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return math.log(high / low)


def _read(names: Sequence[str], rates: dict[Pair, float], slow: set[Pair]) -> Slow:
    """The slow pairs as a graph."""
    guilty = {player for player in range(len(names)) if _with_all(player, rates, slow)}
    if len(guilty) == len(names):
        return Slow(reason="the pairs are too unequal to name anybody")
    others = [player for player in range(len(names)) if player not in guilty]
    left = {pair for pair in slow if not guilty & set(pair)} if len(others) >= FEWEST else set()
    groups = _groups(others, rates, left) if left else []
    if groups:
        return Slow(players=[names[player] for player in sorted(guilty)], groups=[[names[player] for player in group] for group in groups])
    worst = sorted(left, key=lambda pair: rates[pair])
    return Slow(players=[names[player] for player in sorted(guilty)], pairs=[(names[a], names[b]) for a, b in worst])


def _with_all(player: int, rates: dict[Pair, float], slow: set[Pair]) -> bool:
    met = [pair for pair in rates if player in pair]
    bad = sum(pair in slow for pair in met)
    return bool(met) and (bad == len(met) or (len(met) >= 5 and bad >= WITH_ALL * len(met)))


def _groups(players: Sequence[int], rates: dict[Pair, float], slow: set[Pair]) -> list[list[int]]:
    """Two or more groups of two or more, fast within and slow between; [] when the slow pairs are not that."""
    groups: list[list[int]] = []
    for player in players:
        joined = [group for group in groups if any(_fast(player, other, rates, slow) for other in group)]
        groups = [group for group in groups if group not in joined] + [sorted([player, *(one for group in joined for one in group)])]
    within = all(not (a in group and b in group) for group in groups for a, b in slow)
    return sorted(groups) if len(groups) > 1 and within and min(map(len, groups)) > 1 else []


def _fast(a: int, b: int, rates: dict[Pair, float], slow: set[Pair]) -> bool:
    pair = (min(a, b), max(a, b))
    return pair in rates and pair not in slow
