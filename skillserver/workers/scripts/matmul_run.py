"""What every way of timing matmuls on one device shares: the device, its operands, the clock of the budget, the record.

Settings: device (auto, cpu, cuda, cuda:1, xpu, mps), dtype (auto, fp32, tf32, bf16, fp16, fp8, int8), layout (NT, NN,
TN), budget_s (seconds in all; 15), threads (CPU), raw_file (every sample as JSON). Ends the worker with the valid choices
when the device has no such thing. Does not choose shapes.

>>> run = Run({"device": "cpu", "budget_s": 5}); run.warm_up()      # TFLOPS of squares
0.1
"""

import json
import time
from pathlib import Path

import conditions
import cores
import devices
import operands
import processor
import protocol
import samples
import software
import torch

BUDGET_S, LEAST_BUDGET_S = 15.0, 2.0
WARM_SHARE, WARM_MOST_S = 0.12, 30.0  # a GPU needs some 30 s of load to reach its steady clock
LOOKS = {"cpu": {1: 3, 4: 5, 20: 9}, "other": {1: 5, 4: 20, 20: 100}}  # samples for each effort of the search
MEMORY_SHARE = 0.8  # of what is free


class Run:
    """One device, its operands, the clock of the budget and every sample taken."""

    def __init__(self, settings):
        self.budget_s = max(LEAST_BUDGET_S, float(settings.get("budget_s") or BUDGET_S))
        self.began = time.monotonic()
        self.device = devices.find(settings.get("device"))
        self.kind = "cpu" if self.device.kind == "cpu" else "other"
        self.looks = LOOKS[self.kind]
        self.dtype = checked_dtype(self.device, settings.get("dtype") or "auto")
        self.threads = set_threads(settings.get("threads"))
        self.watch = conditions.Watch("cuda" if self.device.backend == "cuda" else self.device.backend, self.device.uuid)
        self.peak = processor.peak(self.threads["threads"], self.dtype) if self.kind == "cpu" else None
        self.operands = operands.Operands(self.device, self.dtype, checked_layout(self.device, self.dtype, settings.get("layout") or "NT"))
        self.raw_file = settings.get("raw_file")
        self.raw = []
        self.warm_up_s = 0.0
        self.stopped = False

    def spent(self):
        """Seconds since the start."""
        return time.monotonic() - self.began

    def warm_up(self):
        """Multiply squares that grow to a few milliseconds until the warm-up time is over; the speed reached, TFLOPS."""
        protocol.progress(0, None, "warming up {0} ({1}), {2}".format(self.device.name, self.device.model, self.dtype))
        self.warm_up_s = round(min(WARM_MOST_S, WARM_SHARE * self.budget_s), 2)
        ends, edge, best = time.monotonic() + self.warm_up_s, 256, 0.0
        while time.monotonic() < ends and not protocol.stopping():
            took = samples.median(self.operands.times((edge, edge, edge), 3))
            best = max(best, tflops((edge, edge, edge), took))
            if took < 0.004 and edge < 8192:
                edge *= 2
        return best

    def fits(self, shapes):
        """Make the buffers; ends the worker when a shape does not suit the dtype or the memory that is free."""
        free = devices.free_bytes(self.device)
        for shape in shapes:
            if self.operands.unfit(shape):
                protocol.failure("bad_shape", self.operands.unfit(shape), next="round the shapes up to 16", kind="bad_request")
            needed = self.operands.bytes_for(shape)
            if free is not None and needed > MEMORY_SHARE * free:
                words = "shape {0} needs {1:.1f} GiB and {2:.1f} GiB are free".format("x".join(map(str, shape)), needed / 2.0**30, free / 2.0**30)
                protocol.failure("too_large", words, next="pass smaller shapes", kind="bad_request")
            self.operands.reserve(shape)

    def note(self, shape, phase, times, **more):
        """Keep the samples of one look."""
        self.raw.append(dict({"shape": shape, "phase": phase, "times_us": [round(second * 1e6, 2) for second in times]}, **more))

    def identity(self):
        """What was measured, and the peak of a CPU, which only this host can tell."""
        device = self.device
        return {"device": device.name, "device_name": device.model, "backend": device.backend, "dtype": self.dtype, "peak": self.peak,
                "layout": self.operands.layout, "uuid": device.uuid}  # fmt: skip

    def method(self):
        """How it was timed."""
        return dict(self.operands.method(), warm_up_s=self.warm_up_s, budget_s=self.budget_s, spent_s=round(self.spent(), 1))

    def conditions(self):
        """What was true meanwhile, and what does not change during a run; ends the watch."""
        told = dict(self.watch.close(), torch=torch.__version__, threads=self.threads["threads"], threads_why=self.threads["why"],
                    units=self.device.units, software=software.settings(self.device))  # fmt: skip
        if self.device.backend == "cuda":
            told.update(driver=conditions.driver(), cuda=torch.version.cuda)
        elif self.device.backend == "rocm":
            told.update(hip=torch.version.hip)
        return told

    def keep_raw(self):
        """Every sample as JSON, written aside and renamed."""
        if self.raw_file:
            write_json(self.raw_file, self.raw)


def checked_dtype(device, name):
    """The dtype, `auto` resolved; ends the worker with the valid ones when the device has no such units."""
    if name == "auto":
        return devices.default_dtype(device)
    valid = devices.dtypes(device)
    if name not in valid:
        words = "dtype {0!r} is not one that {1} ({2}) multiplies in hardware. Valid: {3}".format(name, device.name, device.model, ", ".join(valid))
        protocol.failure("dtype_not_here", words, next="pass dtype='{0}'".format(devices.default_dtype(device)), kind="bad_request")
    return name


def checked_layout(device, dtype, name):
    """The layout; ends the worker with the valid ones when the library has no kernel for it."""
    valid = devices.layouts(device, dtype)
    if name not in valid:
        words = "layout {0!r} is not one that {1} multiplies in {2}. Valid: {3}".format(name, device.name, dtype, ", ".join(valid))
        protocol.failure("layout_not_here", words, next="pass layout='{0}'".format(valid[0]), kind="bad_request")
    return name


def set_threads(wanted):
    """Threads of CPU kernels, within affinity and quota."""
    allowed = cores.usable()
    threads = max(1, min(int(wanted or allowed["threads"]), allowed["threads"]))
    torch.set_num_threads(threads)
    return dict(allowed, threads=threads)


def tflops(shape, seconds):
    """2*m*n*k operations in `seconds`."""
    return 2.0 * shape[0] * shape[1] * shape[2] / seconds / 1e12


def write_json(name, rows):
    """A file that is whole or not there."""
    part = Path(name + ".part")
    part.write_text(json.dumps(rows))
    part.replace(name)
