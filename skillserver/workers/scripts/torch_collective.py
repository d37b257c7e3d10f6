"""How fast a collective is between the ranks of a torchrun job, size by size.

    torchrun --nproc-per-node 2 torch_collective.py --settings '{"collective": "all_reduce", "sizes": [1048576]}'

Settings: collective (a key of collectives.COLLECTIVES), sizes (bytes), backend (auto, gloo, nccl, xccl, ucc), device ("cpu"
makes auto mean gloo), dtype (a key of DTYPES), queued (false), budget_s (seconds in all; 15), raw_file (every time as JSON).

How it is timed: `collective_timing.py`. Does not know what a good number is, and cannot tell a slow rank from a slow
link: all ranks end when the slowest link is done; `torch_pairs.py` can.
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
import torch
import torch.distributed as dist
from collective_timing import LEAST, one_size
from collectives import COLLECTIVES

BUDGET_S = 15.0
TIMEOUT_S = 300
DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "int64": torch.int64, "int32": torch.int32,
          "int8": torch.int8, "uint8": torch.uint8}  # fmt: skip
DTYPES.update(
    {name: kind for name, kind in (("fp8", getattr(torch, "float8_e4m3fn", None)), ("fp8_e5m2", getattr(torch, "float8_e5m2", None))) if kind}
)
SIZES = {"cpu": [2**16, 2**20, 2**23, 2**26], "other": [2**20, 2**24, 2**28, 2**30, 2**32]}
MEMORY_SHARE = 0.3
LEAST_GB_S = 0.1  # a 1 Gb/s network
DEVICE_OF = {"gloo": "cpu", "nccl": "cuda", "xccl": "xpu"}  # others: the accelerator there is


class Job:
    """This rank's part: the group, the device, what to measure."""

    def __init__(self, settings):
        self.rank, self.world = protocol.rank(), protocol.world_size()
        self.name = settings.get("collective") or "all_reduce"
        self.dtype_name, self.queued = settings.get("dtype") or "fp32", bool(settings.get("queued"))
        self.budget_s = max(2.0, float(settings.get("budget_s") or BUDGET_S))
        refuse_early(self)
        on_cpu = settings.get("device") == "cpu"
        self.backend = chosen_backend("gloo" if on_cpu and settings.get("backend") in (None, "auto") else settings.get("backend") or "auto")
        self.device = local_device("cpu" if on_cpu else DEVICE_OF.get(self.backend) or devices.find("auto").kind)
        self.dtype = DTYPES[self.dtype_name]
        self.sizes = [0] if self.name == "barrier" else sorted(map(int, settings.get("sizes") or SIZES.get(self.device.kind, SIZES["other"])))
        self.deadline = time.monotonic() + self.budget_s
        self.raw = []

    def together(self):
        """All ranks stand here at the same time."""
        dist.barrier()

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
    if name == "mpi":
        words = "backend 'mpi' starts under mpirun only, and this runs under torchrun"
        protocol.failure(
            "mpi_needs_mpirun", words, next="pass backend='gloo', or give an MPI benchmark's output to judge_measurement", kind="bad_request"
        )
    here = ["gloo"] if dist.is_gloo_available() else []
    here += ["ucc"] if dist.is_ucc_available() else []
    here += ["nccl"] if torch.cuda.is_available() and dist.is_nccl_available() else []
    here += ["xccl"] if devices.available("xpu") and getattr(dist, "is_xccl_available", bool)() else []
    name = next((one for one in ("xccl", "nccl", "gloo") if one in here), name) if name == "auto" else name
    if name not in here:
        words = "backend {0!r} cannot run in this environment. Valid here: {1}".format(name, ", ".join(here) or "none")
        protocol.failure("backend_not_here", words, next="pass backend='auto', or python= an environment that has it", kind="not_here")
    return name


def local_device(kind):
    """This rank's device; refused when two ranks would share an accelerator."""
    local = int(os.environ.get("LOCAL_RANK", "0"))
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
    meet(job)
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


def meet(job):
    """Join the group of all ranks."""
    dist.init_process_group(job.backend, timeout=datetime.timedelta(seconds=TIMEOUT_S))


def measured(job):
    """([row of each size], [why a size was left out]); all ranks agree on when to stop."""
    rows, skipped, share = [], [], job.budget_s / len(job.sizes)
    for number, size in enumerate(job.sizes):
        why = agreed_reason(job, size, rows)
        if why:
            skipped.append("{0} bytes: {1}".format(size, why))
            continue
        rows.append(one_size(job, size, share))
        rate = rows[-1]["busbw_gb_s"]
        words = "{0} {1} bytes: {2}".format(
            job.name, size, "{0:.3g} us".format(rows[-1]["time_us"]) if rate is None else "busbw {0:.3g} GB/s".format(rate)
        )
        protocol.progress(number + 1, len(job.sizes), words, partial={**identity(job), "rows": rows, "partial": True})
    return rows, skipped


REASONS = ("", "the run was stopped", "the time was used up", "the tensors do not fit in free memory")


def agreed_reason(job, size, rows):
    """Why this size is not measured, "" when it is: the worst reason of any rank, so that none waits alone."""
    free = devices.free_bytes(job.device)
    code = 3 if free is not None and 2 * size * local_ranks(job) > MEMORY_SHARE * free else 0
    if rows and time.monotonic() + LEAST * expected_s(rows[-1], size) > job.deadline:
        code = 2
    code = 1 if protocol.stopping() else code
    return REASONS[int(max(row[0] for row in job.gathered([code])))]


def expected_s(row, size):
    """Seconds a larger size may take: what it adds at the last row's rate, which a small message understates."""
    return row["time_us"] / 1e6 + (size - row["bytes"]) / 1e9 / max(row["algbw_gb_s"] or 0.0, LEAST_GB_S)


def local_ranks(job):
    """Ranks that share the memory looked at: all of this host for the CPU, one for an accelerator."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if job.device.kind == "cpu" else 1


def identity(job):
    """What was measured, and between what."""
    return {"collective": job.name, "dtype": job.dtype_name, "nproc": job.world, "backend": job.backend, "device_name": job.device.model,
            "device_backend": job.device.backend, "busbw_factor": COLLECTIVES[job.name].factor(job.world), "queued": job.queued}  # fmt: skip


def report(job, rows, skipped, seen, hosts):
    """The payload of the one result line."""
    how = "calls queued behind each other, time of all / number" if job.queued else "barrier, then one call"
    return {
        **identity(job),
        "rows": rows,
        "skipped": skipped,
        "conditions": circumstances(job, seen, hosts),
        "partial": bool(protocol.stopping()),
        "method": how + "; time = median over iterations of the largest over ranks; algbw = bytes / time; zeros while timed",
    }


def circumstances(job, seen, hosts):
    """What stood around the run; the hosts by name when there are several."""
    told = dict(seen, torch=torch.__version__, backend=job.backend, hosts=len(set(hosts)), threads=torch.get_num_threads())
    told["interface"] = os.environ.get("NCCL_SOCKET_IFNAME" if job.backend == "nccl" else "GLOO_SOCKET_IFNAME") or "chosen by " + job.backend
    if len(set(hosts)) > 1:
        told["host_names"] = list(dict.fromkeys(hosts))
    if job.backend == "nccl":
        told.update(nccl=".".join(map(str, torch.cuda.nccl.version())), driver=conditions.driver())
    return told


def keep_raw(name, rows):
    """Every time of every rank as JSON, written aside and renamed."""
    part = Path(name + ".part")
    part.write_text(json.dumps(rows))
    part.replace(name)


if __name__ == "__main__":
    sys.exit(main())
