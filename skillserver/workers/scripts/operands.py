"""The matrices of a timed matmul: made once, viewed in every shape and layout, cold before each call, and checked.

One buffer each for a, b and c, as large as the largest shape so far, because allocating inside a search times the
allocator. A layout is said as BLAS does for row-major matrices: NT is a[m,k] @ b[n,k].T, the forward pass of a linear
layer; NN is a[m,k] @ b[k,n], its gradient towards the input; TN is a[k,m].T @ b[k,n], that towards the weight. Knows
torch 2.4 to 2.13 and how to time one device; does not choose shapes.

>>> operands = Operands(devices.find("cpu"), "fp32"); operands.times((512, 512, 512), 5)      # seconds
[0.0017, 0.0016, 0.0016, 0.0016, 0.0017]
"""

import math
import time

import devices
import torch

LAYOUTS = {"NN": "a[m,k] @ b[k,n]", "NT": "a[m,k] @ b[n,k].T", "TN": "a[k,m].T @ b[k,n]"}
CHECKED = 8  # rows and columns of c compared with float64
ROUNDING = {
    "fp32": 2.0**-23,
    "tf32": 2.0**-10,
    "bf16": 2.0**-10,
    "fp16": 2.0**-10,
    "fp8": 2.0**-7,
    "int8": 0.0,
}  # of a sum, before the output is rounded
FILL = 2**24  # random numbers made; a longer buffer repeats them


class Operands:
    """Buffers on one device for one dtype; `layout` is that of calls that name none."""

    def __init__(self, device, dtype, layout="NT"):
        self.device, self.dtype, self.layout = device, dtype, layout
        self.out_type = {"fp8": torch.bfloat16, "int8": torch.int32}.get(dtype) or devices.TORCH[dtype]
        self.in_type = devices.fp8_type(device) if dtype == "fp8" else devices.TORCH.get(dtype, torch.int8)
        self.one = torch.ones((), device=device.place) if dtype == "fp8" else None
        self.amax = torch.zeros((), device=device.place) if dtype == "fp8" and torch_release() < (2, 5) else None
        self.flush = torch.zeros(devices.flush_bytes(device), dtype=torch.uint8, device=device.place)
        self.buffers = {}
        self.seconds = {}
        torch.manual_seed(0)
        set_tf32(dtype == "tf32")

    def times(self, shape, count, layout=None):
        """Seconds of `count` cold calls, after one call that is not counted (it picks the kernel)."""
        a, b, c = self.views(shape, layout)
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
            # up to torch 2.4 it also gave the largest output value, and the scales could be named but not placed
            out = c if self.amax is None else (c, self.amax)
            fast = self.device.backend == "cuda"
            torch._scaled_mm(a, b, scale_a=self.one, scale_b=self.one, out_dtype=self.out_type, use_fast_accum=fast, out=out)
        elif self.dtype == "int8":
            torch._int_mm(a, b, out=c)
        else:
            torch.mm(a, b, out=c)

    def views(self, shape, layout=None):
        """a as [m, k], b as [k, n] and c[m, n] over the buffers, in the layout asked for."""
        m, n, k = shape
        first, second = layout or self.layout
        a = self._view("a", k, m).t() if first == "T" else self._view("a", m, k)
        b = self._view("b", n, k).t() if second == "T" else self._view("b", k, n)
        return a, b, self._view("c", m, n)

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
        if self.dtype == "int8":
            some = torch.randint(-128, 128, (min(count, FILL),), dtype=torch.int8, device=self.device.place)
        else:
            some = torch.randn(min(count, FILL), device=self.device.place).to(self.in_type)
        return some.repeat(-(-count // FILL))[:count].contiguous() if count > FILL else some

    def bytes_for(self, shape):
        """Bytes that the operands of a shape need."""
        m, n, k = shape
        size = torch.empty((), dtype=self.in_type).element_size()
        return (m + n) * k * size + m * n * torch.empty((), dtype=self.out_type).element_size()

    def unfit(self, shape):
        """Why torch refuses this shape for the dtype, "" when it does not (ATen, native/cuda/Blas.cpp, 2.4 to 2.13)."""
        m, n, k = shape
        name = "shape {0}x{1}x{2}: ".format(m, n, k)
        if self.dtype == "fp8" and any(size % 16 for size in shape):
            return name + "fp8 matmuls need sizes that are multiples of 16"
        if self.dtype == "int8" and self.device.kind == "cuda" and (m <= 16 or n % 8 or k % 8):
            return name + "int8 matmuls on GPUs need m above 16 and n, k that are multiples of 8"
        return ""

    def check(self, shape, layout=None):
        """(largest error, allowed error) of a few entries of c against float64 on the CPU."""
        a, b, c = self.views(shape, layout)
        c.zero_()
        self._multiply(a, b, c)
        rows = spaced(shape[0])
        columns = spaced(shape[1])
        left = torch.stack([a[row].cpu().float().double() for row in rows])
        right = torch.stack([b[:, column].cpu().float().double() for column in columns])
        truth = left @ right.t()
        found = torch.stack([torch.stack([c[row, column] for column in columns]) for row in rows]).cpu().double()
        last_digit = 0.0 if self.dtype == "int8" else torch.finfo(self.out_type).eps  # whole numbers are summed exactly
        allowed = 8 * ROUNDING[self.dtype] * math.sqrt(shape[2]) + last_digit * float(truth.abs().max())
        error = float((found - truth).abs().max())
        return (error if math.isfinite(error) else float("inf")), allowed

    def method(self):
        """How the samples were taken, for the record."""
        return {
            "layout": "{0}: {1}".format(self.layout, LAYOUTS[self.layout]),
            "data": "random integers from -128 to 127" if self.dtype == "int8" else "random normal",
            "cold_cache": "destination zeroed and {0} MiB written before each timed call".format(self.flush.numel() // 2**20),
            "timer": "perf_counter" if self.device.kind == "cpu" else "stream events",
            "fp8_accumulation": "fast" if self.dtype == "fp8" and self.device.backend == "cuda" else None,
            "output_dtype": str(self.out_type).replace("torch.", ""),
        }


def spaced(size):
    """A few places from first to last."""
    return sorted({(size - 1) * place // (CHECKED - 1) for place in range(CHECKED)})


def torch_release():
    """(2, 13) of torch 2.13.0+cpu."""
    return tuple(int(part) for part in torch.__version__.split(".")[:2])


def set_tf32(allowed):
    """fp32 means fp32: torch uses TF32 units, or bf16 on some CPUs, wherever it was told that it may."""
    torch.set_float32_matmul_precision("high" if allowed else "highest")
