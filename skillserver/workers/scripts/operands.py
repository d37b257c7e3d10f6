"""The matrices of a timed matmul: made once, viewed in every shape, cold before each call, and checked.

One buffer each for a, b and c, as large as the largest shape so far, because allocating inside a search times the
allocator. Knows torch and how to time one device; does not choose shapes.

>>> operands = Operands(devices.find("cpu"), "fp32"); operands.times((512, 512, 512), 5)      # seconds
[0.0017, 0.0016, 0.0016, 0.0016, 0.0017]
"""

import math
import time

import devices
import torch

CHECKED = 8  # rows and columns of c compared with float64
ROUNDING = {"fp32": 2.0**-23, "tf32": 2.0**-10, "bf16": 2.0**-10, "fp16": 2.0**-10, "fp8": 2.0**-7}  # of a sum, before the output is rounded
FILL = 2**24  # random numbers made; a longer buffer repeats them


class Operands:
    """Buffers on one device for one dtype."""

    def __init__(self, device, dtype):
        self.device, self.dtype = device, dtype
        self.out_type = torch.bfloat16 if dtype == "fp8" else devices.TORCH[dtype]
        self.in_type = devices.fp8_type(device) if dtype == "fp8" else devices.TORCH[dtype]
        self.one = torch.ones((), device=device.place) if dtype == "fp8" else None
        self.flush = torch.zeros(devices.flush_bytes(device), dtype=torch.uint8, device=device.place)
        self.buffers = {}
        self.seconds = {}
        torch.manual_seed(0)
        set_tf32(dtype == "tf32")

    def times(self, shape, count):
        """Seconds of `count` cold calls, after one call that is not counted (it picks the kernel)."""
        a, b, c = self.views(shape)
        began = time.perf_counter()
        self._multiply(a, b, c)
        devices.synchronize(self.device)
        found = self._on_cpu(a, b, c, count) if self.device.kind == "cpu" else self._on_stream(a, b, c, count)
        self.seconds[shape] = (time.perf_counter() - began) / (count + 1)
        return found

    def cost_s(self, shape):
        """Seconds that one sample of this shape takes in all, flushing included."""
        return self.seconds.get(shape, 0.0)

    def _on_cpu(self, a, b, c, count):
        found = []
        for _ in range(count):
            self._chill(c)
            began = time.perf_counter()
            self._multiply(a, b, c)
            found.append(time.perf_counter() - began)
        return found

    def _on_stream(self, a, b, c, count):
        """All calls are queued at once: the flush keeps the device busy, so no launch is waited for inside a span."""
        pairs = [(devices.event(self.device), devices.event(self.device)) for _ in range(count)]
        for start, end in pairs:
            self._chill(c)
            start.record()
            self._multiply(a, b, c)
            end.record()
        devices.synchronize(self.device)
        return [start.elapsed_time(end) / 1e3 for start, end in pairs]

    def _chill(self, c):
        c.zero_()
        self.flush.add_(1)

    def _multiply(self, a, b, c):
        if self.dtype == "fp8":
            torch._scaled_mm(a, b, self.one, self.one, out_dtype=self.out_type, use_fast_accum=self.device.backend == "cuda", out=c)
        else:
            torch.mm(a, b, out=c)

    def views(self, shape):
        """a[m,k], b[n,k].T and c[m,n] over the buffers."""
        m, n, k = shape
        return self._view("a", m, k), self._view("b", n, k).t(), self._view("c", m, n)

    def reserve(self, shape):
        """Make the buffers for the largest shape now, so that none grows inside the search."""
        self.views(shape)

    def _view(self, name, rows, columns):
        if name not in self.buffers or self.buffers[name].numel() < rows * columns:
            self.buffers.pop(name, None)
            self.buffers[name] = self._filled(name, rows * columns)
        return self.buffers[name][: rows * columns].view(rows, columns)

    def _filled(self, name, count):
        if name == "c":
            return torch.zeros(count, dtype=self.out_type, device=self.device.place)
        some = torch.randn(min(count, FILL), device=self.device.place).to(self.in_type)
        return some.repeat(-(-count // FILL))[:count].contiguous() if count > FILL else some

    def bytes_for(self, shape):
        """Bytes that the operands of a shape need."""
        m, n, k = shape
        size = torch.empty((), dtype=self.in_type).element_size()
        return (m + n) * k * size + m * n * torch.empty((), dtype=self.out_type).element_size()

    def check(self, shape):
        """(largest error, allowed error) of a few entries of c against float64 on the CPU."""
        a, b, c = self.views(shape)
        c.zero_()
        self._multiply(a, b, c)
        rows = spaced(shape[0])
        columns = spaced(shape[1])
        left = torch.stack([a[row].cpu().float().double() for row in rows])
        right = torch.stack([b[:, column].cpu().float().double() for column in columns])
        truth = left @ right.t()
        found = torch.stack([torch.stack([c[row, column] for column in columns]) for row in rows]).cpu().double()
        allowed = 8 * ROUNDING[self.dtype] * math.sqrt(shape[2]) + torch.finfo(self.out_type).eps * float(truth.abs().max())
        error = float((found - truth).abs().max())
        return (error if math.isfinite(error) else float("inf")), allowed

    def method(self):
        """How the samples were taken, for the record."""
        return {
            "layout": "a[m,k] @ b[n,k].T",
            "data": "random normal",
            "cold_cache": "destination zeroed and {0} MiB written before each timed call".format(self.flush.numel() // 2**20),
            "timer": "perf_counter" if self.device.kind == "cpu" else "stream events",
            "fp8_accumulation": "fast" if self.dtype == "fp8" and self.device.backend == "cuda" else None,
            "output_dtype": str(self.out_type).replace("torch.", ""),
        }


def spaced(size):
    """A few places from first to last."""
    return sorted({(size - 1) * place // (CHECKED - 1) for place in range(CHECKED)})


def set_tf32(allowed):
    """fp32 means fp32: torch uses TF32 units, or bf16 on some CPUs, wherever it was told that it may."""
    torch.set_float32_matmul_precision("high" if allowed else "highest")
