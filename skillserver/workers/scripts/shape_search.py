"""Which (m, n, k) to time next, so that the fastest matmul of a device is found in about a hundred tries and not in thousands.

A generator: it yields an Ask, is sent a Told, and returns the winner with the values of its fresh re-measurement. It
holds no clock and no device, so it is tested on a seeded model of a GPU. Knows that speed rises with k until the caches
spill, that m and n matter through waves of tiles over the compute units, and that the best of many noisy values is too
high (so the winner is timed again before it is believed). Does not know dtypes, devices or seconds.

The order: every k at a small and at a large square; a coarse grid over m and n at the best k of each; a pattern search
around the three best with a halving step; the five best again, in turns; the winner alone, fresh. When the number of
compute units is known, every m and n is moved to the nearest that fill whole waves: on the model that lifts the runs
within 1 % of the best from 32 to 39 of 40.

>>> best = drive(search(Space(1024, 16384, 256, (1024, 4096))), lambda shape: 2e-12 * shape[0])
>>> best.shape[0], len(best.values)
(16384, 7)
"""

from collections import namedtuple
from contextlib import suppress

Space = namedtuple("Space", "low high step ks")  # m and n from low to high in multiples of step; k one of ks
Ask = namedtuple("Ask", "shape phase effort")  # effort: 1 look, 4 refine, 20 confirm; relative number of samples
Told = namedtuple("Told", "tflops hurry")  # hurry: time is short, stop exploring and confirm what there is
Best = namedtuple("Best", "shape values runners_up tried asked")  # values: one per fresh round; the first look is not in it

FILLED = 0.995  # of the last wave and those before it
TILE, TILE_AREA = 256, 128 * 256  # output tiles of vendor kernels: 128x256, 256x128, 128x128
MAX_ASKS = 100
FINALISTS, DUELS, FRESH = 5, 3, 7  # seven rounds: the smallest and largest bound the median at 98 %
CONFIRMING = FINALISTS * DUELS + FRESH
K_SQUARES, GRID = (0.25, 0.6), 4  # squares of the k sweep, as shares of the range; sizes a side
STARTS = 3  # centres of the pattern search
MIN_GAIN = 0.005  # a level that gains less is a poor one; two poor ones end the search


class Enough(Exception):
    """Raised inside the generators when asks or time are used up."""


def search(space, compute_units=0, max_asks=MAX_ASKS, also=()):
    """Generator of Asks over `space`; returns Best. `also` are shapes worth a look (a library's favourites)."""
    seen = {}
    with suppress(Enough):
        yield from _explore(space, compute_units, seen, max_asks - CONFIRMING, also)
    return (yield from _confirm(seen))


def listed(shapes, effort=4, may_stop=False):
    """Generator for shapes the caller chose: one look at each, then the same confirmation.

    `may_stop`: give up looking when time is short (a grid); else every shape is looked at however long it takes.
    """
    seen = {}
    with suppress(Enough):
        for shape in dict.fromkeys(shapes):
            yield from _look(shape, "grid" if may_stop else "listed", effort, seen, len(shapes), may_stop)
    return (yield from _confirm(seen))


def drive(generator, measure):
    """Run a search with `measure(shape) -> TFLOPS`; for tests and for reading."""
    told = None
    while True:
        try:
            ask = generator.send(told)
        except StopIteration as end:
            return end.value
        told = Told(measure(ask.shape), False)


def _explore(space, compute_units, seen, limit, also):
    pool = whole_waves(space, compute_units)
    deep, large = yield from _sweep_k(space, pool, seen, limit)
    for k in dict.fromkeys((large, deep)):
        for m in spread(space, GRID):
            for n in spread(space, GRID):
                yield from _look((*settle(space, pool, m, n), k), "grid", 1, seen, limit)
    for shape in also:
        yield from _look(tuple(shape), "known", 1, seen, limit)
    yield from _refine(space, pool, seen, limit)


def _sweep_k(space, pool, seen, limit):
    """The best k at a small square and at a large one (a deep k suits the small, where its operands still fit a cache)."""
    chosen = []
    for share in K_SQUARES:
        edge = space.low + share * (space.high - space.low)
        shapes = [(*settle(space, pool, edge, edge), k) for k in space.ks]
        for shape in shapes:
            yield from _look(shape, "k", 1, seen, limit)
        chosen.append(max(shapes, key=lambda shape: seen[shape])[2])
    return chosen


def _refine(space, pool, seen, limit):
    """Pattern search: neighbours of the best at a step that halves; ends after two levels that gain too little."""
    step, poor = max((space.high - space.low) / 8.0, 2 * space.step), 0
    while step >= space.step and poor < 2:
        before = seen[top(seen, 1)[0]]
        for centre in top(seen, STARTS):
            for shape in neighbours(space, pool, centre, step):
                yield from _look(shape, "refine", 4, seen, limit)
        poor = poor + 1 if seen[top(seen, 1)[0]] < before * (1 + MIN_GAIN) else 0
        step /= 2.0


def _look(shape, phase, effort, seen, limit, may_stop=True):
    if shape in seen:
        return
    if len(seen) >= limit:
        raise Enough
    told = yield Ask(shape, phase, effort)
    seen[shape] = told.tflops
    if told.hurry and may_stop:
        raise Enough


def _confirm(seen):
    """The finalists in turns, so that drift hits them alike; then the winner alone, in rounds that did not choose it."""
    finalists = top(seen, FINALISTS)
    duels = {shape: [] for shape in finalists}
    rounds, asked = 1 if len(finalists) == 1 else DUELS, len(seen)
    for _ in range(rounds if finalists else 0):
        for shape in finalists:
            duels[shape].append((yield Ask(shape, "duel", 4)).tflops)
            asked += 1
    middle = {shape: sorted(values)[len(values) // 2] for shape, values in duels.items()}
    order = top(middle, FINALISTS)
    values = []
    for _ in range(FRESH if order else 0):
        values.append((yield Ask(order[0], "fresh", 20)).tflops)
    return Best(order[0] if order else None, values, [(shape, middle[shape]) for shape in order[1:]], len(seen), asked + len(values))


def top(seen, count):
    """The fastest shapes first; equal ones in the order they were met."""
    return sorted(seen, key=lambda shape: -seen[shape])[:count]


def snap(space, value):
    """The nearest multiple of the step inside the space."""
    return int(min(max(round(value / space.step) * space.step, space.low), space.high))


def spread(space, count):
    """`count` sizes in equal ratios up to the largest: published best shapes have an m or n near 1024 as often as near 16384."""
    ratio = (space.high / float(space.low)) ** (1.0 / count)
    return [snap(space, space.low * ratio ** (place + 1)) for place in range(count)]


def neighbours(space, pool, centre, step):
    """One step away in m or n, and the next smaller and larger k."""
    m, n, k = centre
    moved = ((m + step, n), (m - step, n), (m, n + step), (m, n - step))
    below, above = [other for other in space.ks if other < k], [other for other in space.ks if other > k]
    deeper = [(m, n, other) for other in below[-1:] + above[:1]]
    return [(*settle(space, pool, a, b), k) for a, b in moved] + deeper


def settle(space, pool, m, n):
    """The (m, n) of the pool nearest to a wish; without a pool, the nearest on the grid."""
    if not pool:
        return snap(space, m), snap(space, n)
    return min(pool, key=lambda pair: (abs(pair[0] - m) + abs(pair[1] - n), pair))


def whole_waves(space, compute_units):
    """Every (m, n) whose output tiles leave almost no compute unit idle in the last wave; empty when their number is unknown.

    Sizes that are multiples of 256 hold m*n/32768 tiles of 128x256 and of 256x128, and twice as many of 128x128, so one
    condition serves the tiles that vendor libraries use most.
    """
    if not compute_units:
        return []
    sizes = [size for size in range(TILE, int(space.high) + 1, TILE) if size >= space.low]
    return [(m, n) for m in sizes for n in sizes if filled(m * n // TILE_AREA, compute_units) >= FILLED]


def filled(tiles, compute_units):
    """The share of unit-slots that do work: 133 tiles on 132 units need two waves and use half."""
    return tiles / float(-(-tiles // compute_units) * compute_units)
