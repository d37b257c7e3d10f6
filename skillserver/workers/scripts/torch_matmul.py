"""The fastest matmul that this device reaches (MAMF), with the shape, an interval and the conditions.

    python torch_matmul.py --settings '{"device": "auto", "dtype": "auto", "budget_s": 15}'

Settings of `matmul_run.py`, and one of: nothing (a search; high is the largest m and n, ks, step), shapes ([[m, n, k],
...]), grid ([[start, stop, step], ...] of m, n and k, ends included: every shape, in random order), products ([{name, m,
n, k, layout, ...}]: see `matmul_products.py`).

How it is timed: random data. Before each timed call, outside the timed span, the destination is zeroed and a buffer of
twice the last-level cache is written, so operands start cold. Accelerators are timed by events of their stream, the CPU
by perf_counter. The speed of a shape is 2*m*n*k / the median time. The winner is timed again in fresh rounds that did
not choose it; that is the number returned, with an interval from the medians of those rounds. Does not know what a good
number is.
"""

import itertools
import random
import sys
import time

import matmul_products
import protocol
import samples
import shape_search
from matmul_run import Run, tflops

NARROW, MOST_FRESH = 0.02, 25  # rounds are added until the interval is this narrow, or there are so many
LOOKS_THAT_COUNT = 20  # the effort of the rounds whose median is returned
ONE_CALL_SHARE = {"cpu": 2e-3, "other": 3e-4}  # of the budget, for a large matmul: a search makes some 500 or 2,000 calls
ACCELERATOR_KS, CPU_KS = (1024, 2048, 4096, 8192, 16384), (256, 512, 1024, 2048, 4096)
HIGHEST = {"cpu": 4096, "other": 20480}
LOWEST = 1024  # m and n on an accelerator
TRACED = 400  # points of the trace that is sent along; every sample is in raw_file
# Where others found the fastest bf16 matmul of an H100, A100, H200 and B200 (ML Engineering, MAMF table): a look each
KNOWN = ((2048, 2048, 13312), (1024, 10240, 5120), (1280, 4096, 12032), (1792, 16128, 3072))


def main(argv=None):
    """Measure and send one result."""
    settings = protocol.start(argv)
    run = Run(settings)
    speed = run.warm_up()
    payload = matmul_products.payload(run, settings["products"], speed) if settings.get("products") else searched(run, settings, speed)
    run.keep_raw()
    protocol.result(payload)


def searched(run, settings, speed):
    """The payload of a search, a list or a grid."""
    shapes = chosen_shapes(settings)
    space = None if shapes else make_space(run, settings, speed)
    run.fits(largest(shapes) if shapes else [(space.high, space.high, max(space.ks))])
    found = Found(run)
    best = drive(run, generator(run, settings, shapes, space), found)
    steady(run, best)
    return report(run, best, found, space, len(shapes))


def chosen_shapes(settings):
    """The caller's shapes, or those of the grid in random order, so that a part of it stands for the whole; [] for a search."""
    if settings.get("grid"):
        sides = [range(start, stop + 1, step) for start, stop, step in settings["grid"]]
        shapes = list(itertools.product(*sides))
        random.Random(0).shuffle(shapes)
        return shapes
    return [tuple(int(size) for size in shape) for shape in settings.get("shapes") or []]


def largest(shapes):
    """Shapes that need the largest buffers, and the rest only to be checked: all when they are few."""
    return shapes if len(shapes) <= 1000 else [max(shapes, key=lambda shape: shape[side] * shape[other]) for side, other in ((0, 1), (0, 2), (1, 2))]


def generator(run, settings, shapes, space):
    """Who chooses the next shape; tiles fill waves on NVIDIA's SMs, and elsewhere nothing is known of them."""
    if shapes:
        return shape_search.listed(shapes, effort=1 if settings.get("grid") else 4, may_stop=bool(settings.get("grid")))
    most = space.high * space.high * max(space.ks)
    also = [] if run.kind == "cpu" else [shape for shape in KNOWN if shape[0] * shape[1] * shape[2] <= most]
    return shape_search.search(space, run.device.units if run.device.backend == "cuda" else 0, also=also)


class Found:
    """What the search was told so far: the speed of each shape, the fresh rounds, the order of trials."""

    def __init__(self, run):
        self.run, self.seen, self.rounds, self.trace, self.hurried = run, {}, [], [], False

    def take(self, ask, value):
        """Keep one value by the phase it is of."""
        self.trace.append(value)
        if ask.phase == "fresh":
            self.rounds.append(value)
        elif ask.phase != "duel":
            self.seen[ask.shape] = value


def make_space(run, settings, speed):
    """The shapes to search: as large as a single call may take, in steps that tiles divide."""
    cpu = run.kind == "cpu"
    step = int(settings.get("step") or (64 if cpu else 256))
    longest = ONE_CALL_SHARE[run.kind] * run.budget_s * speed * 1e12 / 2
    high = int(settings.get("high") or min(HIGHEST[run.kind], max(8 * step, longest ** (1 / 3.0))))
    high = max(4 * step, high // step * step)
    ks = settings.get("ks") or [k for k in (CPU_KS if cpu else ACCELERATOR_KS) if high * high * k <= 2 * max(longest, (8 * step) ** 3)]
    low = max(step, high // 8 // step * step) if cpu else min(LOWEST, high // 2)
    return shape_search.Space(low, high, step, tuple(ks[-5:] or [high]))


def drive(run, generator, found):
    """Answer the search until it ends, or the budget, or SIGTERM; returns its Best, or the best look when ended early."""
    told = None
    while True:
        try:
            ask = generator.send(told)
        except StopIteration as end:
            return end.value
        if protocol.stopping() or run.spent() > run.budget_s * 1.25:
            run.stopped = True
            return cut_short(found, ask)
        times = run.operands.times(ask.shape, run.looks[ask.effort])
        value = tflops(ask.shape, typical(run, ask, times))
        run.note(ask.shape, ask.phase, times)
        found.take(ask, value)
        told = shape_search.Told(value, hurry(run, found.seen))
        found.hurried = found.hurried or (told.hurry and ask.phase not in ("listed", "duel", "fresh"))
        tell(run, ask, found.seen)


def typical(run, ask, times):
    """The median; while exploring on a CPU the least, because a neighbour's burst would throw a good shape out for good."""
    return min(times) if run.kind == "cpu" and ask.effort < LOOKS_THAT_COUNT else samples.median(times)


def steady(run, best):
    """More fresh rounds of the winner while its interval is wide and time is left."""
    rounds, started = best.values, time.monotonic()
    while len(rounds) < MOST_FRESH and not run.stopped and not protocol.stopping():
        low, high, _ = samples.median_interval(rounds)
        round_s = (time.monotonic() - started) / max(1, len(rounds) - shape_search.FRESH)
        if high - low < NARROW * low or run.spent() + round_s > run.budget_s:
            return
        times = run.operands.times(best.shape, run.looks[20])
        run.note(best.shape, "fresh", times)
        rounds.append(tflops(best.shape, samples.median(times)))


def hurry(run, seen):
    """Whether only the time for confirming is left."""
    best = shape_search.top(seen, shape_search.FINALISTS)
    calls = len(best) * shape_search.DUELS * run.looks[4] + shape_search.FRESH * run.looks[20]
    each = sum(run.operands.cost_s(shape) for shape in best) / max(1, len(best))
    return run.spent() + calls * each > run.budget_s


def cut_short(found, ask):
    """What is known when the run is ended before the confirmation."""
    order = shape_search.top(found.seen, 4)
    if not order:
        protocol.failure("nothing_measured", "the run was ended before the first shape was timed", next="give a longer budget_s")
    shape = ask.shape if found.rounds else order[0]
    runners = [(other, found.seen[other]) for other in order if other != shape]
    return shape_search.Best(shape, found.rounds or [found.seen[shape]], runners, len(found.seen), len(found.seen))


def tell(run, ask, seen):
    """Progress with the best so far, which becomes the result when this process is killed."""
    best = shape_search.top(seen, 1)
    words = "{0} {1}: best so far {2} at {3:.4g} TFLOPS".format(ask.phase, "x".join(map(str, ask.shape)), "x".join(map(str, best[0])), seen[best[0]])
    partial = {**run.identity(), "best": named(best[0], [seen[best[0]]]), "trials": len(seen), "partial": True}
    protocol.progress(min(run.spent(), run.budget_s), run.budget_s, words, partial=partial if len(seen) % 10 == 1 else None)


def named(shape, values):
    """The `best` record; the interval is that of the median over rounds."""
    low, high, coverage = samples.median_interval(values)
    return {"m": shape[0], "n": shape[1], "k": shape[2], "tflops": samples.median(values), "ci_low": low, "ci_high": high,
            "ci_coverage": round(coverage, 3), "rounds": len(values)}  # fmt: skip


def report(run, best, found, space, wanted):
    """The payload of the one result line; `wanted` shapes were asked for, 0 in a search."""
    error, allowed = run.operands.check(best.shape)
    told = {
        **run.identity(),
        "best": named(best.shape, best.values),
        "runners_up": [{"m": m, "n": n, "k": k, "tflops": value} for (m, n, k), value in best.runners_up],
        "trials": best.tried,
        "wanted": wanted or None,
        "remeasured": best.asked - best.tried,
        "first_look": found.seen.get(best.shape),
        "trace": thinned(found.trace),
        "correct": error <= allowed,
        "check": {"largest_error": error, "allowed": allowed},
        "space": None if space is None else {"low": space.low, "high": space.high, "step": space.step, "ks": list(space.ks)},
        "method": run.method(),
        "partial": run.stopped,
        "ended_by": "time" if found.hurried else "search",
    }
    told["conditions"] = run.conditions()
    return told


def thinned(values):
    """At most TRACED values, each the highest of its neighbours, so that no winner is lost."""
    step = -(-len(values) // TRACED) or 1
    return [max(values[place : place + step]) for place in range(0, len(values), step)]


if __name__ == "__main__":
    sys.exit(main())
