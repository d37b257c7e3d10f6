"""How fast a collective is between the ranks of a torchrun job, size by size.

    torchrun --nproc-per-node 2 torch_collective.py --settings '{"collective": "all_reduce", "sizes": [1048576]}'

Settings: collective (all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, reduce), sizes (bytes), backend
(auto, gloo, nccl, xccl), device ("cpu" makes auto mean gloo), dtype (fp32, bf16, fp16), budget_s (seconds in all; 15), raw_file (every time as JSON).

How it is timed: warm-up; then for each iteration a barrier, the one call, and its time on every rank. The time of an
iteration is the largest over ranks, the time of a size the median over iterations; algbw = size / that time. Tensors
hold zeros while timed, so that sums in place stay finite; sums are checked on known numbers before and after. Does not
know what a good number is, and cannot tell a slow rank from a slow link: all ranks end when the slowest link is done.
"""

import datetime
import json
import os
import socket
import sys
import time
from pathlib import Path

import conditions
import devices
import protocol
import samples
import torch
import torch.distributed as dist
from collectives import COLLECTIVES, right

BUDGET_S = 15.0
TIMEOUT_S = 300
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
SIZES = {"gloo": [2**16, 2**20, 2**23, 2**26], "other": [2**20, 2**24, 2**28, 2**30, 2**32]}
LEAST, MOST, WARM_UP = 7, 200, 3
MEMORY_SHARE = 0.3
DEVICE_OF = {"gloo": "cpu", "nccl": "cuda", "xccl": "xpu"}


class Job:
    """This rank's part: the group, the device, what to measure."""

    def __init__(self, settings):
        self.rank, self.world = protocol.rank(), protocol.world_size()
        self.name = settings.get("collective") or "all_reduce"
        self.dtype_name = settings.get("dtype") or "fp32"
        self.budget_s = max(2.0, float(settings.get("budget_s") or BUDGET_S))
        refuse_early(self)
        on_cpu = settings.get("device") == "cpu"
        self.backend = chosen_backend("gloo" if on_cpu and settings.get("backend") in (None, "auto") else settings.get("backend") or "auto")
        self.device = local_device(self.backend)
        self.dtype = DTYPES[self.dtype_name]
        self.sizes = sorted(int(size) for size in settings.get("sizes") or SIZES.get(self.backend, SIZES["other"]))
        self.deadline = time.monotonic() + self.budget_s
        self.raw = []

    def tensor(self, values):
        """Small numbers for the group, on its device."""
        return torch.tensor(values, dtype=torch.float64, device=self.device.place)

    def gathered(self, values):
        """One list of floats from every rank, in the order of ranks."""
        mine = self.tensor(values)
        rows = [torch.zeros_like(mine) for _ in range(self.world)]
        dist.all_gather(rows, mine)
        return [row.tolist() for row in rows]


def refuse_early(job):
    """What can be seen to be wrong before the ranks meet."""
    if "RANK" not in os.environ or job.world < 2:
        words = "a collective needs at least 2 ranks and this is a world of {0}".format(job.world)
        protocol.failure("world_of_one", words, next="start it under torchrun --nproc-per-node 2 or more", kind="bad_request")
    if job.name not in COLLECTIVES:
        words = "collective {0!r} is not known. Valid: {1}".format(job.name, ", ".join(COLLECTIVES))
        protocol.failure("unknown_collective", words, next="pass collective='all_reduce'", kind="bad_request")
    if job.dtype_name not in DTYPES:
        words = "dtype {0!r} is not known. Valid: {1}".format(job.dtype_name, ", ".join(DTYPES))
        protocol.failure("unknown_dtype", words, next="pass dtype='fp32'", kind="bad_request")


def chosen_backend(name):
    """The backend named, or the accelerator's own, or gloo; ends the worker with those that are here."""
    here = ["gloo"] if dist.is_gloo_available() else []
    here += ["nccl"] if torch.cuda.is_available() and dist.is_nccl_available() else []
    here += ["xccl"] if devices.available("xpu") and getattr(dist, "is_xccl_available", bool)() else []
    name = here[-1] if name == "auto" and here else name
    if name not in here:
        words = "backend {0!r} cannot run in this environment. Valid here: {1}".format(name, ", ".join(here) or "none")
        protocol.failure("backend_not_here", words, next="pass backend='auto', or python= an environment that has it", kind="not_here")
    return name


def local_device(backend):
    """This rank's device; refused when two ranks would share an accelerator."""
    kind, local = DEVICE_OF[backend], int(os.environ.get("LOCAL_RANK", "0"))
    local_world = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if kind == "cpu":
        return devices.find("cpu")
    count = getattr(torch, kind).device_count()
    if local_world > count:
        words = "{0} ranks on a host with {1} {2} devices".format(local_world, count, kind)
        protocol.failure("too_many_ranks", words, next="pass nproc={0}, or backend='gloo' for the CPU".format(count), kind="bad_request")
    return devices.find("{0}:{1}".format(kind, local))


def main(argv=None):
    """Meet, measure every size that time allows, send one result from rank 0."""
    settings = protocol.start(argv)
    job = Job(settings)
    dist.init_process_group(job.backend, timeout=datetime.timedelta(seconds=TIMEOUT_S))
    watch = conditions.Watch(job.device.backend if job.rank == 0 else "other", job.device.uuid)
    rows, skipped = measured(job)
    cpu_s = sum(row[0] for row in job.gathered([watch.own_cpu_s()]))
    hosts = [None] * job.world
    dist.all_gather_object(hosts, socket.gethostname())
    if job.rank == 0:
        if settings.get("raw_file"):
            keep_raw(settings["raw_file"], job.raw)
        protocol.result(report(job, rows, skipped, watch.close(cpu_s if len(set(hosts)) == 1 else None), hosts))
    dist.barrier()
    dist.destroy_process_group()


def measured(job):
    """([row of each size], [why a size was left out]); all ranks agree on when to stop."""
    rows, skipped, share = [], [], job.budget_s / len(job.sizes)
    for number, size in enumerate(job.sizes):
        why = agreed_reason(job, size, rows)
        if why:
            skipped.append("{0} bytes: {1}".format(size, why))
            continue
        rows.append(one_size(job, size, share))
        words = "{0} {1} bytes: busbw {2:.3g} GB/s".format(job.name, size, rows[-1]["busbw_gb_s"])
        protocol.progress(number + 1, len(job.sizes), words, partial={**identity(job), "rows": rows, "partial": True})
    return rows, skipped


REASONS = ("", "the run was stopped", "the time was used up", "the tensors do not fit in free memory")


def agreed_reason(job, size, rows):
    """Why this size is not measured, "" when it is: the worst reason of any rank, so that none waits alone."""
    free = devices.free_bytes(job.device)
    code = 3 if free is not None and 2 * size * local_ranks(job) > MEMORY_SHARE * free else 0
    if rows and time.monotonic() + LEAST * rows[-1]["time_us"] / 1e6 * size / rows[-1]["bytes"] > job.deadline:
        code = 2
    code = 1 if protocol.stopping() else code
    return REASONS[int(max(row[0] for row in job.gathered([code])))]


def local_ranks(job):
    """Ranks that share the memory looked at: all of this host for the CPU, one for an accelerator."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if job.device.kind == "cpu" else 1


def one_size(job, size, share_s):
    """Warm up, check, time, check again; one row."""
    collective = COLLECTIVES[job.name]
    itemsize = torch.empty((), dtype=job.dtype).element_size()
    count = max(job.world, size // itemsize // job.world * job.world)
    buffers = collective.make(count, job.world, job.dtype, job.device.place)
    correct = right(job.name, buffers, job.rank, job.world)
    buffers.given.zero_()
    warm = [timed(job, collective, buffers) for _ in range(WARM_UP)]
    slowest = max(row[0] for row in job.gathered([samples.median(warm)]))
    iterations = int(min(MOST, max(LEAST, share_s / (1.5 * slowest + 1e-4))))
    mine = [timed(job, collective, buffers) for _ in range(iterations)]
    correct = right(job.name, buffers, job.rank, job.world) and correct
    ranks = job.gathered(mine)
    all_correct = min(row[0] for row in job.gathered([float(correct)])) == 1.0
    job.raw.append({"bytes": count * itemsize, "rank_times_us": [[round(second * 1e6, 2) for second in row] for row in ranks]})
    return row_of(job, count * itemsize, ranks, all_correct)


def timed(job, collective, buffers):
    """Seconds of one call on this rank, begun together."""
    dist.barrier()
    if job.device.kind == "cpu":
        began = time.perf_counter()
        collective.call(buffers)
        return time.perf_counter() - began
    start, end = devices.event(job.device), devices.event(job.device)
    devices.synchronize(job.device)
    start.record()
    collective.call(buffers)
    end.record()
    devices.synchronize(job.device)
    return start.elapsed_time(end) / 1e3


def row_of(job, size, ranks, correct):
    """One size: bytes/s from the median over iterations of the largest time over ranks; 1 GB = 10^9 bytes."""
    times = [max(column) * 1e6 for column in zip(*ranks)]  # noqa: B905 (Python 3.9 has no strict=)
    told = samples.summary(times)
    medians = [samples.median(row) * 1e6 for row in ranks]
    slow = samples.slowest(medians)
    algbw = size / told["p50"] / 1e3
    row = {"bytes": size, "time_us": told["p50"], "algbw_gb_s": algbw, "busbw_gb_s": algbw * COLLECTIVES[job.name].factor(job.world)}
    row.update({name + "_us": told[name] for name in ("min", "p5", "p50", "p95", "max")})
    return dict(row, iterations=told["n"], correct=correct, slowest_rank=slow, slowest_rank_us=None if slow is None else medians[slow])


def identity(job):
    """What was measured, and between what."""
    return {"collective": job.name, "dtype": job.dtype_name, "nproc": job.world, "backend": job.backend, "device_name": job.device.model,
            "device_backend": job.device.backend, "busbw_factor": COLLECTIVES[job.name].factor(job.world)}  # fmt: skip


def report(job, rows, skipped, seen, hosts):
    """The payload of the one result line."""
    told = dict(seen, torch=torch.__version__, backend=job.backend, hosts=len(set(hosts)), threads=torch.get_num_threads())
    told["interface"] = os.environ.get("NCCL_SOCKET_IFNAME" if job.backend == "nccl" else "GLOO_SOCKET_IFNAME") or "chosen by " + job.backend
    if job.backend == "nccl":
        told.update(nccl=".".join(map(str, torch.cuda.nccl.version())), driver=conditions.driver())
    return {
        **identity(job),
        "rows": rows,
        "skipped": skipped,
        "conditions": told,
        "partial": bool(protocol.stopping()),
        "method": "barrier, then one call; time = median over iterations of the largest over ranks; algbw = bytes / time; zeros while timed",
    }


def keep_raw(name, rows):
    """Every time of every rank as JSON, written aside and renamed."""
    part = Path(name + ".part")
    part.write_text(json.dumps(rows))
    part.replace(name)


if __name__ == "__main__":
    sys.exit(main())
