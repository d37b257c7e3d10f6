"""The device that torch will use, by name, and what it can multiply: one face for CUDA, ROCm, XPU, MPS and CPU.

`auto` is the first accelerator there is, else the CPU. A dtype counts as valid when the hardware has it, not when torch
emulates it: bf16 on a GPU older than compute capability 8.0 runs, at a fraction of fp32, and would be a wrong answer.
Knows torch; not shapes, not seconds.

>>> find("auto").kind, dtypes(find("cpu"))
('cpu', ['fp32', 'bf16', 'fp16', 'int8'])
"""

import platform
import re
from collections import namedtuple
from pathlib import Path

import processor
import protocol
import torch

Device = namedtuple("Device", "kind name backend model units uuid place")  # place: the torch.device; units: SMs, CUs, cores or 0
KINDS = ("cuda", "xpu", "mps", "cpu")
TORCH = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
MIB = 2**20
CPU_INT8 = {"avx512_vnni", "avx_vnni", "amx_int8", "i8mm"}  # one of them, or torch loops in plain C++ (and AVX2 kernels may saturate)


def find(name):
    """The device named `auto`, `cpu`, `cuda`, `cuda:1`, `xpu`, `mps`. Ends the worker with the list of those here when it is not."""
    here = [kind for kind in KINDS if available(kind)]
    kind, _, index = (name or "auto").partition(":")
    kind = here[0] if kind == "auto" else kind
    if kind not in KINDS or (index and not index.isdigit()):
        protocol.failure("unknown_device", "device {0!r} is not known. Valid: auto, {1}".format(name, ", ".join(here)), kind="bad_request")
    if kind not in here:
        words = "torch {0} in this environment sees no {1} device; it sees {2}".format(torch.__version__, kind, ", ".join(here))
        protocol.failure(
            "no_such_device", words, next="pass device='{0}', or python= an environment whose torch has {1}".format(here[0], kind), kind="not_here"
        )
    count = getattr(torch, kind).device_count() if kind in ("cuda", "xpu") else 1
    if int(index or 0) >= count:
        words = "device {0!r}: there are {1} {2} devices, counted from 0".format(name, count, kind)
        protocol.failure("no_such_device", words, next="pass {0}:0 to {0}:{1}".format(kind, count - 1), kind="bad_request")
    return _described(kind, int(index or 0))


def available(kind):
    """Whether torch can use this kind of device here."""
    if kind == "cpu":
        return True
    if kind == "mps":
        return bool(getattr(torch.backends, "mps", None)) and torch.backends.mps.is_available()
    return hasattr(torch, kind) and getattr(torch, kind).is_available()


def _described(kind, index):
    if kind == "cpu":
        return Device("cpu", "cpu", "cpu", processor.describe()["model"], 0, "", torch.device("cpu"))
    if kind == "mps":
        return Device("mps", "mps", "mps", platform.processor() or "Apple GPU", 0, "", torch.device("mps"))
    module = getattr(torch, kind)
    module.set_device(index)
    properties = module.get_device_properties(index)
    units = getattr(properties, "multi_processor_count", 0) or getattr(properties, "gpu_subslice_count", 0)
    backend = "rocm" if kind == "cuda" and torch.version.hip else kind
    uuid = "GPU-{0}".format(properties.uuid) if backend == "cuda" and hasattr(properties, "uuid") else ""
    return Device(kind, "{0}:{1}".format(kind, index), backend, properties.name, units, uuid, torch.device(kind, index))


def dtypes(device):
    """Valid dtypes of a device, by its hardware."""
    if device.kind == "cuda":
        return _cuda_dtypes(device)
    found = ["fp32"] + [name for name in ("bf16", "fp16") if _multiplies(device, TORCH[name])]
    has_int8 = device.kind == "cpu" and hasattr(torch, "_int_mm") and CPU_INT8 & processor.describe()["flags"]
    return found + (["int8"] if has_int8 else [])


def _cuda_dtypes(device):
    major, minor = torch.cuda.get_device_capability(device.place)
    rocm = device.backend == "rocm"
    found = ["fp32", "fp16"]
    if rocm or major >= 8:
        found.insert(1, "bf16")
    if not rocm and major >= 8:
        found.insert(1, "tf32")
    if fp8_type(device) is not None and (rocm or (major, minor) >= (8, 9)):
        found.append("fp8")
    return found + (["int8"] if hasattr(torch, "_int_mm") and (rocm or major >= 8) else [])


def layouts(device, dtype):
    """Layouts that the device's library multiplies; every one but for fp8 and int8.

    fp8: b must be column-major (torch._scaled_mm). int8 on NVIDIA: cuBLASLt has no kernel for a transposed a, and from
    CUDA 13 on none for NN either (test__int_mm of test/test_matmul_cuda.py and test_linalg.py in pytorch).
    """
    if dtype == "fp8":
        return ["NT"]
    if dtype == "int8" and device.backend == "cuda":
        return ["NT"] if int((torch.version.cuda or "0").split(".")[0]) >= 13 else ["NT", "NN"]
    return ["NT", "NN", "TN"]


def fp8_type(device):
    """The e4m3 type of this device's matmul; None without one. MI300 (gfx942) has the fnuz kind, later ones the OCP kind."""
    if device.kind != "cuda" or not hasattr(torch, "_scaled_mm"):
        return None
    if device.backend != "rocm":
        return getattr(torch, "float8_e4m3fn", None)
    arch = getattr(torch.cuda.get_device_properties(device.place), "gcnArchName", "").split(":")[0]
    if arch == "gfx942":
        return getattr(torch, "float8_e4m3fnuz", None)
    return getattr(torch, "float8_e4m3fn", None) if arch.startswith(("gfx95", "gfx12")) else None


def _multiplies(device, dtype):
    try:
        one = torch.ones((16, 16), dtype=dtype, device=device.place)
        return float(torch.mm(one, one).float().sum()) == 16.0**3
    except (RuntimeError, TypeError):
        return False


def default_dtype(device):
    """bf16 where the hardware has it, fp16 on older GPUs, fp32 on a CPU (few have units for less)."""
    if device.kind == "cpu":
        return "fp32"
    found = dtypes(device)
    return next(name for name in ("bf16", "fp16", "fp32") if name in found)


def flush_bytes(device):
    """Twice the last-level cache, at least 256 MiB on an accelerator; 512 MiB for AMD's 256 MiB Infinity Cache; at most 256 MiB on a CPU."""
    if device.kind == "cpu":
        return min(256 * MIB, 2 * (processor.last_cache_bytes() or 32 * MIB))
    if device.backend == "rocm":
        return 512 * MIB
    cache = getattr(torch.cuda.get_device_properties(device.place), "L2_cache_size", 0) if device.kind == "cuda" else 0
    return max(256 * MIB, 2 * cache)


def free_bytes(device):
    """Free device memory; None where torch cannot tell."""
    if device.kind in ("cuda", "xpu") and hasattr(getattr(torch, device.kind), "mem_get_info"):
        return getattr(torch, device.kind).mem_get_info(device.place)[0]
    if device.kind == "mps":
        return torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()
    return _host_free_bytes() if device.kind == "cpu" else None


def _host_free_bytes():
    try:
        found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    except OSError:
        return None
    return int(found.group(1)) * 1024 if found else None


def synchronize(device):
    """Wait until the device has done what was asked of it."""
    if device.kind != "cpu":
        getattr(torch, device.kind).synchronize()


def event(device):
    """A timing event of this device's stream."""
    return getattr(torch, device.kind).Event(enable_timing=True)
