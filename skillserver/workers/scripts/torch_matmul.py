"""The fastest matmul that this device reaches (MAMF), with the shape, an interval and the conditions.

    python torch_matmul.py --settings '{"device": "auto", "dtype": "auto", "budget_s": 15}'

Settings: device (auto, cpu, cuda, cuda:1, xpu, mps), dtype (auto, fp32, tf32, bf16, fp16, fp8), budget_s (seconds in
all; 15), shapes ([[m, n, k], ...] instead of a search), threads (CPU), raw_file (every sample as JSON), high (largest m
and n), ks, step.

How it is timed: a[m,k] @ b[n,k].T as a linear layer does it, random normal data. Before each timed call, outside the
timed span, the destination is zeroed and a buffer of twice the last-level cache is written, so operands start cold.
Accelerators are timed by events of their stream, the CPU by perf_counter. The speed of a shape is 2*m*n*k / the median
time. The winner is timed again in fresh rounds that did not choose it; that is the number returned, with an interval
from the medians of those rounds. Does not know what a good number is.
"""

import json
import sys
import time
from pathlib import Path

import conditions
import cores
import devices
import processor
import protocol
import samples
import shape_search
import torch
from operands import Operands

BUDGET_S, LEAST_BUDGET_S = 15.0, 2.0
WARM_SHARE, WARM_MOST_S = 0.12, 30.0  # a GPU needs some 30 s of load to reach its steady clock
LOOKS = {"cpu": {1: 3, 4: 5, 20: 9}, "other": {1: 5, 4: 20, 20: 100}}  # samples for each effort of the search
NARROW, MOST_FRESH = 0.02, 25  # rounds are added until the interval is this narrow, or there are so many
LOOKS_THAT_COUNT = 20  # the effort of the rounds whose median is returned
ONE_CALL_SHARE = {"cpu": 2e-3, "other": 3e-4}  # of the budget, for a large matmul: a search makes some 500 or 2,000 calls
ACCELERATOR_KS, CPU_KS = (1024, 2048, 4096, 8192, 16384), (256, 512, 1024, 2048, 4096)
HIGHEST = {"cpu": 4096, "other": 20480}
LOWEST = 1024  # m and n on an accelerator
# Where others found the fastest bf16 matmul of an H100, A100, H200 and B200 (ML Engineering, MAMF table): a look each
KNOWN = ((2048, 2048, 13312), (1024, 10240, 5120), (1280, 4096, 12032), (1792, 16128, 3072))


class Run:
    """One device, its operands, the clock of the budget and every sample taken."""

    def __init__(self, settings):
        self.budget_s = max(LEAST_BUDGET_S, float(settings.get("budget_s", BUDGET_S)))
        self.began = time.monotonic()
        self.device = devices.find(settings.get("device"))
        self.kind = "cpu" if self.device.kind == "cpu" else "other"
        self.looks = LOOKS[self.kind]
        self.dtype = checked_dtype(self.device, settings.get("dtype") or "auto")
        self.threads = set_threads(settings.get("threads"))
        self.watch = conditions.Watch("cuda" if self.device.backend == "cuda" else self.device.backend, self.device.uuid)
        self.peak = processor.peak(self.threads["threads"], self.dtype) if self.kind == "cpu" else None
        self.raw = []
        self.stopped = False
        self.hurried = False

    def spent(self):
        """Seconds since the start."""
        return time.monotonic() - self.began


def checked_dtype(device, name):
    """The dtype, `auto` resolved; ends the worker with the valid ones when the device has no such units."""
    if name == "auto":
        return devices.default_dtype(device)
    valid = devices.dtypes(device)
    if name not in valid:
        words = "dtype {0!r} is not one that {1} ({2}) multiplies in hardware. Valid: {3}".format(name, device.name, device.model, ", ".join(valid))
        protocol.failure("dtype_not_here", words, next="pass dtype='{0}'".format(devices.default_dtype(device)), kind="bad_request")
    return name


def set_threads(wanted):
    """Threads of CPU kernels, within affinity and quota."""
    allowed = cores.usable()
    threads = max(1, min(int(wanted or allowed["threads"]), allowed["threads"]))
    torch.set_num_threads(threads)
    return dict(allowed, threads=threads)


def main(argv=None):
    """Measure and send one result."""
    settings = protocol.start(argv)
    if settings.get("shapes"):
        settings["shapes"] = [tuple(int(size) for size in shape) for shape in settings["shapes"]]
    run = Run(settings)
    run.operands = Operands(run.device, run.dtype)
    speed = warm_up(run)
    space = make_space(run, settings, speed)
    fits(run, settings.get("shapes") or [(space.high, space.high, max(space.ks))])
    best = drive(run, chosen_search(run, settings, space))
    steady(run, best)
    payload = report(run, best, None if settings.get("shapes") else space)
    keep_raw(settings.get("raw_file"), run.raw)
    protocol.result(payload)


def chosen_search(run, settings, space):
    """The caller's shapes, or a search; tiles fill waves on NVIDIA's SMs, and elsewhere nothing is known of them."""
    if settings.get("shapes"):
        return shape_search.listed(settings["shapes"])
    largest = space.high * space.high * max(space.ks)
    also = [] if run.kind == "cpu" else [shape for shape in KNOWN if shape[0] * shape[1] * shape[2] <= largest]
    return shape_search.search(space, run.device.units if run.device.backend == "cuda" else 0, also=also)


def warm_up(run):
    """Multiply squares that grow to a few milliseconds until the warm-up time is over; the speed reached, TFLOPS."""
    protocol.progress(0, None, "warming up {0} ({1}), {2}".format(run.device.name, run.device.model, run.dtype))
    seconds = min(WARM_MOST_S, WARM_SHARE * run.budget_s)
    ends, edge, best = time.monotonic() + seconds, 256, 0.0
    while time.monotonic() < ends and not protocol.stopping():
        took = samples.median(run.operands.times((edge, edge, edge), 3))
        best = max(best, tflops((edge, edge, edge), took))
        if took < 0.004 and edge < 8192:
            edge *= 2
    run.warm_up_s = round(seconds, 2)
    return best


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


def fits(run, shapes):
    """Make the buffers; ends the worker when the operands of a shape are too large for the memory that is free."""
    free = devices.free_bytes(run.device)
    for m, n, k in shapes:
        if run.dtype == "fp8" and any(size % 16 for size in (m, n, k)):
            words = "shape {0}x{1}x{2}: fp8 matmuls need sizes that are multiples of 16".format(m, n, k)
            protocol.failure("bad_shape", words, next="round the shapes up to 16", kind="bad_request")
        needed = run.operands.bytes_for((m, n, k))
        if free is not None and needed > 0.8 * free:
            words = "shape {0}x{1}x{2} needs {3:.1f} GiB and {4:.1f} GiB are free".format(m, n, k, needed / 2.0**30, free / 2.0**30)
            protocol.failure("too_large", words, next="pass smaller shapes", kind="bad_request")
        run.operands.reserve((m, n, k))


def drive(run, generator):
    """Answer the search until it ends, or the budget, or SIGTERM; returns its Best, or the best look when ended early."""
    told, seen, rounds = None, {}, []
    while True:
        try:
            ask = generator.send(told)
        except StopIteration as end:
            return end.value
        if protocol.stopping() or run.spent() > run.budget_s * 1.25:
            run.stopped = True
            return cut_short(seen, rounds, ask)
        times = run.operands.times(ask.shape, run.looks[ask.effort])
        value = tflops(ask.shape, typical(run, ask, times))
        run.raw.append({"shape": ask.shape, "phase": ask.phase, "times_us": [round(second * 1e6, 2) for second in times]})
        if ask.phase == "fresh":
            rounds.append(value)
        elif ask.phase != "duel":
            seen[ask.shape] = value
        told = shape_search.Told(value, hurry(run, seen))
        run.hurried = run.hurried or (told.hurry and ask.phase not in ("listed", "duel", "fresh"))
        tell(run, ask, seen)


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
        run.raw.append({"shape": best.shape, "phase": "fresh", "times_us": [round(second * 1e6, 2) for second in times]})
        rounds.append(tflops(best.shape, samples.median(times)))


def hurry(run, seen):
    """Whether only the time for confirming is left."""
    best = shape_search.top(seen, shape_search.FINALISTS)
    calls = shape_search.FINALISTS * shape_search.DUELS * run.looks[4] + shape_search.FRESH * run.looks[20]
    each = sum(run.operands.cost_s(shape) for shape in best) / max(1, len(best))
    return run.spent() + calls * each > run.budget_s


def cut_short(seen, rounds, ask):
    """What is known when the run is ended before the confirmation."""
    order = shape_search.top(seen, 4)
    if not order:
        protocol.failure("nothing_measured", "the run was ended before the first shape was timed", next="give a longer budget_s")
    shape = ask.shape if rounds else order[0]
    runners = [(other, seen[other]) for other in order if other != shape]
    return shape_search.Best(shape, rounds or [seen[shape]], runners, len(seen), len(seen))


def tell(run, ask, seen):
    """Progress with the best so far, which becomes the result when this process is killed."""
    best = shape_search.top(seen, 1)
    words = "{0} {1}: best so far {2} at {3:.4g} TFLOPS".format(ask.phase, "x".join(map(str, ask.shape)), "x".join(map(str, best[0])), seen[best[0]])
    partial = {**identity(run), "best": named(best[0], [seen[best[0]]]), "trials": len(seen), "partial": True}
    protocol.progress(min(run.spent(), run.budget_s), run.budget_s, words, partial=partial if len(seen) % 10 == 1 else None)


def tflops(shape, seconds):
    """2*m*n*k operations in `seconds`."""
    return 2.0 * shape[0] * shape[1] * shape[2] / seconds / 1e12


def named(shape, values):
    """The `best` record; the interval is that of the median over rounds."""
    low, high, coverage = samples.median_interval(values)
    return {"m": shape[0], "n": shape[1], "k": shape[2], "tflops": samples.median(values), "ci_low": low, "ci_high": high,
            "ci_coverage": round(coverage, 3), "rounds": len(values)}  # fmt: skip


def identity(run):
    """What was measured, and the peak of a CPU, which only this host can tell."""
    return {"device": run.device.name, "device_name": run.device.model, "backend": run.device.backend, "dtype": run.dtype, "peak": run.peak}


def report(run, best, space):
    """The payload of the one result line."""
    error, allowed = run.operands.check(best.shape)
    told = {
        **identity(run),
        "best": named(best.shape, best.values),
        "runners_up": [{"m": m, "n": n, "k": k, "tflops": value} for (m, n, k), value in best.runners_up],
        "trials": best.tried,
        "remeasured": best.asked - best.tried,
        "correct": error <= allowed,
        "check": {"largest_error": error, "allowed": allowed},
        "space": None if space is None else {"low": space.low, "high": space.high, "step": space.step, "ks": list(space.ks)},
        "method": dict(run.operands.method(), warm_up_s=run.warm_up_s, budget_s=run.budget_s, spent_s=round(run.spent(), 1)),
        "partial": run.stopped,
        "ended_by": "time" if run.hurried else "search",
    }
    told["conditions"] = dict(run.watch.close(), **facts(run))
    return told


def facts(run):
    """What does not change during a run."""
    told = {"torch": torch.__version__, "threads": run.threads["threads"], "threads_why": run.threads["why"], "units": run.device.units}
    if run.device.backend == "cuda":
        told.update(driver=conditions.driver(), cuda=torch.version.cuda)
    elif run.device.backend == "rocm":
        told.update(hip=torch.version.hip)
    return told


def keep_raw(name, rows):
    """Every sample as JSON, written aside and renamed."""
    if not name:
        return
    part = Path(name + ".part")
    part.write_text(json.dumps(rows))
    part.replace(name)


if __name__ == "__main__":
    sys.exit(main())
