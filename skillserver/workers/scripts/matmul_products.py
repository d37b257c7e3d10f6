"""The speed of given matmuls, each in its own layout: those of a model, forward and backward.

Timed in rounds over all of them in turn, so that a clock that drifts or a neighbour hits each alike; the speed of one is
that of the median over rounds. Rounds end after ROUNDS or with the budget, never before the first is whole. Adds to each
product how full its last wave is on NVIDIA's SMs. Knows shapes and times; not models, and not what their sum means.

>>> payload(run, [{"name": "q_proj", "m": 512, "n": 256, "k": 256, "layout": "NT"}], 0.1)["products"][0]["tflops"]
0.09
"""

import protocol
import samples
import shape_search
from matmul_run import checked_layout, tflops

ROUNDS = 7  # the smallest and largest bound the median at 98 %
SLOWER = 1.3  # products run below the speed of the squares of the warm-up


def payload(run, products, speed):
    """What the worker sends: the products with `tflops`, `ci_low`, `ci_high`, `us`, and the record of the run."""
    for one in products:
        checked_layout(run.device, run.dtype, one["layout"])
    affordable(run, products, speed)
    run.fits([shape_of(one) for one in products])
    rounds = timed(run, products)
    if not all(rounds):
        protocol.failure("nothing_measured", "the run was ended before every product was timed once", next="give a longer budget_s")
    checks = [run.operands.check(shape_of(one), one["layout"]) for one in costliest(products)]
    worst = max(checks, key=lambda check: check[0] - check[1])
    told = {
        **run.identity(),
        "products": [dict(one, **speeds(one, rounds[place]), fill=fill(run.device, one)) for place, one in enumerate(products)],
        "rounds": min(len(values) for values in rounds),
        "correct": all(error <= allowed for error, allowed in checks),
        "check": {"largest_error": worst[0], "allowed": worst[1]},
        "method": dict(run.method(), layout="that of each product"),
        "partial": run.stopped,
    }
    told["conditions"] = run.conditions()
    return told


def affordable(run, products, speed):
    """End the worker when even one round of the products takes longer than the budget."""
    work = sum(2.0 * one["m"] * one["n"] * one["k"] for one in products) / 1e12
    needed = 2 * SLOWER * work / max(speed, 1e-6)  # one call picks the kernel, one counts
    if needed > run.budget_s - run.spent():
        words = "one round of the {0} products may take {1:.0f} s at {2:.2g} TFLOPS, and budget_s is {3:g}".format(
            len(products), needed, speed, run.budget_s
        )
        protocol.failure("too_slow", words, next="pass budget_s={0:.0f}, or a smaller seq_len".format(3 * needed + 10), kind="bad_request")


def timed(run, products):
    """[[seconds, one a round], ...] for each product."""
    rounds, count = [[] for _ in products], 1
    for number in range(ROUNDS):
        for place, one in enumerate(products):
            if protocol.stopping() or (number and run.spent() > run.budget_s):
                run.stopped = protocol.stopping()
                return rounds
            times = run.operands.times(shape_of(one), count, one["layout"])
            run.note(shape_of(one), "round {0}".format(number + 1), times, name=one["name"], layout=one["layout"])
            rounds[place].append(samples.median(times))
            words = "round {0}: {1} {2:.4g} TFLOPS".format(number + 1, one["name"], tflops(shape_of(one), rounds[place][-1]))
            protocol.progress(min(run.spent(), run.budget_s), run.budget_s, words)
        count = samples_a_round(run, sum(values[0] for values in rounds))
    return rounds


def samples_a_round(run, round_s):
    """As many samples of each product as the rest of the budget has room for."""
    left = max(0.0, run.budget_s - run.spent())
    return max(1, min(run.looks[20], int(left / (ROUNDS * max(round_s, 1e-6))) - 1))


def speeds(one, seconds):
    """TFLOPS of the median round, with its interval, and the microseconds of one call."""
    low, high, coverage = samples.median_interval(seconds)
    shape = shape_of(one)
    return {"tflops": tflops(shape, samples.median(seconds)), "ci_low": tflops(shape, high), "ci_high": tflops(shape, low),
            "ci_coverage": round(coverage, 3), "us": samples.median(seconds) * 1e6}  # fmt: skip


def costliest(products):
    """The largest product of each layout."""
    ordered = sorted(products, key=lambda one: one["m"] * one["n"] * one["k"])
    return list({one["layout"]: one for one in ordered}.values())


def fill(device, one):
    """Share of unit-slots at work when 128x256 tiles go over the SMs in waves; None where the tiles are not known."""
    if device.backend != "cuda" or not device.units:
        return None
    return round(shape_search.filled(-(-one["m"] // 128) * -(-one["n"] // 256), device.units), 3)


def shape_of(one):
    """(m, n, k)."""
    return one["m"], one["n"], one["k"]
