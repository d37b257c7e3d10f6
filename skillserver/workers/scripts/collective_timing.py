"""How one collective of one size is timed between ranks that already met, and the row that comes of it.

Blocking (nccl-tests -z 3, one call an iteration): a barrier, the one call, waited for; the barrier is not in the time.
Queued (nccl-tests -z 0): a barrier, then calls issued one after the other without waiting, the time of all over their
number; gloo then runs two at a time on its threads, as it does under DDP. The time of an iteration is the largest over
ranks, the time of a size the median over iterations (nccl-tests prints means over both). 1 GB = 10^9 bytes.
Tensors hold zeros while timed, so that sums in place stay finite; known numbers are checked before and after.

>>> row_of(job, 2**20, [[0.001], [0.002]], True)["busbw_gb_s"]      # all_reduce of two ranks
0.524288
"""

import re
import time

import devices
import protocol
import samples
import torch
from collectives import COLLECTIVES, elements, finish, right

LEAST, MOST, WARM_UP = 7, 200, 3
QUEUE = 20  # calls of one queued sample, as nccl-tests' -n
REFUSED = re.compile(r"scalar type|data ?type|dtype|NCCL type|not implemented for|not support", re.I)


def one_size(job, size, share_s):
    """Warm up, check, time, check again; one row."""
    collective = COLLECTIVES[job.name]
    itemsize = torch.empty((), dtype=job.dtype).element_size()
    count = elements(job.name, size, itemsize, job.world)
    buffers = collective.make(count, job.world, job.dtype, job.device.place)
    correct = first_check(job, buffers)
    buffers.given.zero_()
    warm = [blocking(job, collective, buffers) for _ in range(WARM_UP)]
    slowest = max(row[0] for row in job.gathered([samples.median(warm)]))
    calls = max(2, min(QUEUE, int(share_s / (LEAST * slowest + 1e-4)))) if job.queued else 1
    iterations = int(min(MOST, max(LEAST, share_s / (1.5 * calls * slowest + 1e-4))))
    timed = queued if job.queued else blocking
    mine = [timed(job, collective, buffers, calls) for _ in range(iterations)]
    correct = right(job.name, buffers, job.rank, job.world) and correct
    ranks = job.gathered(mine)
    all_correct = min(row[0] for row in job.gathered([float(correct)])) == 1.0
    job.raw.append({"bytes": count * itemsize, "rank_times_us": [[round(second * 1e6, 2) for second in row] for row in ranks]})
    return dict(row_of(job, count * itemsize, ranks, all_correct), iterations=iterations * calls)


def first_check(job, buffers):
    """Whether the first call is right; a dtype that the backend has no such call for ends the run with its own words."""
    try:
        return right(job.name, buffers, job.rank, job.world)
    except (RuntimeError, TypeError, ValueError) as problem:
        said = str(problem).strip().split("\n")[0]
        if not REFUSED.search(said):
            raise
        words = "{0} has no {1} of {2}: {3}".format(job.backend, job.name, job.dtype_name, said[:200])
        protocol.failure("dtype_refused", words, next="pass dtype='fp32' or another backend", kind="bad_request")
        return False


def blocking(job, collective, buffers, calls=1):
    """Seconds of one call on this rank, begun together."""
    job.together()
    clock = started(job)
    collective.call(buffers, False)
    return clock()


def queued(job, collective, buffers, calls):
    """Seconds a call when `calls` of them stand in the queue at once."""
    job.together()
    on_host = job.device.kind == "cpu"
    clock = started(job)
    works = [collective.call(buffers, on_host) for _ in range(calls)]  # an accelerator's stream queues by itself
    for work in works if on_host else []:
        finish(work)
    return clock() / calls


def started(job):
    """A stopwatch of this device: calling it waits for the work and gives seconds."""
    if job.device.kind == "cpu":
        began = time.perf_counter()
        return lambda: time.perf_counter() - began
    start, end = devices.event(job.device), devices.event(job.device)
    devices.synchronize(job.device)
    start.record()

    def seconds():
        end.record()
        devices.synchronize(job.device)
        return start.elapsed_time(end) / 1e3

    return seconds


def row_of(job, size, ranks, correct):
    """One size from every rank's times: percentiles, rates, drift, stalls and the slowest rank."""
    times = [max(column) * 1e6 for column in zip(*ranks)]  # noqa: B905 (Python 3.9 has no strict=)
    told = samples.summary(times)
    medians = [samples.median(row) * 1e6 for row in ranks]
    slow, factor = samples.slowest(medians), COLLECTIVES[job.name].factor(job.world)
    algbw = size / told["p50"] / 1e3 if size and told["p50"] else None
    row = {"bytes": size, "time_us": told["p50"], "algbw_gb_s": algbw, "busbw_gb_s": algbw * factor if algbw and factor else None}
    row.update({name + "_us": told[name] for name in ("min", "p5", "p50", "p95", "max")})
    row.update(iterations=told["n"], drift=samples.drift(times), stalls=len(samples.dips(times)))
    return dict(row, correct=correct, slowest_rank=slow, slowest_rank_us=None if slow is None else medians[slow])
