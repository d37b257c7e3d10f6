"""Which GPUs a local run would use, and who uses them already. Asked of nvidia-smi in a child with a deadline.

Knows CUDA_VISIBLE_DEVICES and, for AMD, only that there are GPUs: whether those are busy is not judged and a note says
so. A MIG slice is locked by its own name and not judged either, because nvidia-smi lists processes by whole GPU.

>>> chosen = choose("auto", nproc=2, built_for_gpu=True)
>>> chosen.kind, chosen.locks
('cuda', ['GPU-5fa9...', 'GPU-77c1...'])
>>> busy(chosen)
['GPU 0 (NVIDIA H200) is used by pid 4711 python of user anna, 71234 MiB']
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from skillserver import processes
from skillserver.errors import BadRequest, NotHere

DEADLINE_S = 20.0  # nvidia-smi without the persistence daemon initialises every GPU first
IDLE_MEMORY_MIB = 1024  # an idle GPU shows up to some hundred MiB for the driver alone
IDLE_UTILIZATION_PERCENT = 20
DEVICE = re.compile(r"(auto|cpu|cuda|mps|xpu)(?::(\d+))?")
SEVERAL = re.compile(r"cuda:\d+(?:,cuda:\d+)+")
IN_TURN = "each"
EVERY = ("all", IN_TURN)


@dataclass(frozen=True)
class Gpu:
    """One visible GPU in the order that CUDA (PCI order) counts it."""

    index: int
    uuid: str
    name: str
    memory_used_mib: float | None = None
    utilization_percent: float | None = None

    @property
    def is_judged(self) -> bool:
        """Whether nvidia-smi can say who uses it."""
        return self.uuid.startswith("GPU-")


@dataclass(frozen=True)
class Chosen:
    """The device of a run: `name` as torch wants it, `locks` the names of what it occupies."""

    kind: str
    name: str
    gpus: list[Gpu] = field(default_factory=list)
    note: str = ""

    @property
    def locks(self) -> list[str]:
        """Lock names: GPU UUIDs, else the name of the kind."""
        return [gpu.uuid for gpu in self.gpus] or [self.kind]


def choose(device: str, *, nproc: int, built_for_gpu: bool, torch: str = "") -> Chosen:
    """The device, or devices ("all", "each", "cuda:0,cuda:2"), that `device` means here; `name` of several is "cuda:0,cuda:2".

    Raises BadRequest (unknown device or index) or NotHere (no GPU, or torch built for CPUs).
    """
    several = device in EVERY or bool(SEVERAL.fullmatch(device.replace(" ", "")))
    match = DEVICE.fullmatch("cuda" if several else device)
    if not match:
        valid = ["auto", "cpu", "cuda", "cuda:N", "cuda:N,cuda:M", *EVERY, "mps", "xpu"]
        raise BadRequest("unknown_device", f"device {device!r} is not known", valid=valid)
    kind, number = match[1], int(match[2]) if match[2] else None
    if kind not in ("auto", "cuda"):
        return Chosen(kind, device)
    here = visible_gpus()
    if kind == "auto" and not (here and built_for_gpu):
        note = f"{len(here)} GPUs are here, but torch {torch} is built for CPUs: this runs on the CPU" if here and torch else ""
        return Chosen("cpu", "cpu", note=note)
    if not here:
        raise NotHere(
            "no_gpu",
            f"device {device!r} was asked for and no GPU is visible here",
            next="call check_gpu_health, or measure the CPU (device='cpu'; backend='gloo' for collectives)",
        )
    if not built_for_gpu:
        raise NotHere("torch_without_gpu", f"torch {torch} is built for CPUs", next="pass python= with an environment whose torch has CUDA or ROCm")
    gpus = _several(here, device) if several else _numbered(here, number, nproc)
    unjudged = [str(gpu.index) for gpu in gpus if not gpu.is_judged]
    note = f"whether GPU {', '.join(unjudged)} is busy was not checked" if unjudged else ""
    name = ",".join(f"cuda:{gpu.index}" for gpu in gpus) if several else "cuda" if number is None else device
    return Chosen("cuda", name, gpus, note)


def _several(here: list[Gpu], device: str) -> list[Gpu]:
    """Every GPU, or those of a list, each once."""
    if device in EVERY:
        return here
    return [gpu for name in dict.fromkeys(device.replace(" ", "").split(",")) for gpu in _numbered(here, int(name.partition(":")[2]), 1)]


def _numbered(here: list[Gpu], number: int | None, nproc: int) -> list[Gpu]:
    if number is None:
        return here[: max(1, nproc)]
    if number >= len(here):
        raise BadRequest("unknown_device", f"device cuda:{number}: {len(here)} GPUs are visible", valid=[f"cuda:{i}" for i in range(len(here))])
    return [here[number]]


def visible_gpus() -> list[Gpu]:
    """GPUs that a child with our environment would see, in its order."""
    found = _nvidia() or _unnamed()
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")  # set and empty hides all of them
    if chosen is None:
        return found
    picked = []
    for entry in (part.strip() for part in chosen.split(",")):
        gpu = _picked(entry, found)
        if gpu is None:
            break  # CUDA ignores everything after the first entry that it cannot use
        picked.append(gpu)
    return [Gpu(place, gpu.uuid, gpu.name, gpu.memory_used_mib, gpu.utilization_percent) for place, gpu in enumerate(picked)]


def _picked(entry: str, found: list[Gpu]) -> Gpu | None:
    if entry.isdigit():
        return found[int(entry)] if int(entry) < len(found) else None
    if entry.startswith("MIG-"):
        return Gpu(0, entry, "MIG slice") if found else None
    return next((gpu for gpu in found if entry and gpu.uuid.startswith(entry)), None)


def _nvidia() -> list[Gpu]:
    fields = "index,uuid,name,memory.used,utilization.gpu"
    rows = _query(f"--query-gpu={fields}", 5)
    return [Gpu(int(index), uuid, name, _number(used), _number(load)) for index, uuid, name, used, load in rows if index.isdigit()]


def _unnamed() -> list[Gpu]:
    """GPUs known by their device files only: ROCm, or a container without nvidia-smi."""
    nvidia = sorted(Path("/dev").glob("nvidia[0-9]*"))
    amd = sorted(Path("/dev/dri").glob("renderD*")) if Path("/dev/kfd").exists() else []
    return [Gpu(place, file.name, "GPU without a name") for place, file in enumerate(nvidia or amd)]


def busy(chosen: Chosen) -> list[str]:
    """One sentence for each chosen GPU that somebody uses, its owner named as far as this host can see."""
    judged = [gpu for gpu in chosen.gpus if gpu.is_judged]
    apps = _query("--query-compute-apps=gpu_uuid,pid,process_name,used_memory", 4) if judged else []
    return [sentence for gpu in judged if (sentence := _use(gpu, [app for app in apps if app[0] == gpu.uuid]))]


def _use(gpu: Gpu, apps: list[list[str]]) -> str:
    place = f"GPU {gpu.index} ({gpu.name})"
    if apps:
        return f"{place} is used by {'; '.join(_owner(pid, name, used) for _, pid, name, used in apps)}"
    memory, load = gpu.memory_used_mib or 0, gpu.utilization_percent or 0
    if memory < IDLE_MEMORY_MIB and load < IDLE_UTILIZATION_PERCENT:
        return ""
    return f"{place} shows {memory:g} MiB and {load:g}% in use by processes that are not visible from here (another container, or a display)"


def _owner(pid: str, name: str, used: str) -> str:
    """In a container nvidia-smi tells the host's pids; a process here counts as the owner only when the program agrees."""
    program = Path(name).name
    user = ""
    try:
        process = psutil.Process(int(pid))
        if program and program in (Path(process.exe()).name, process.name()):
            user = f" of user {process.username()}"
    except (psutil.Error, ValueError):
        user = ""
    return f"pid {pid} {program}{user}, {used} MiB"


def _query(what: str, columns: int) -> list[list[str]]:
    rc, out, _ = processes.run_with_deadline(["nvidia-smi", what, "--format=csv,noheader,nounits"], DEADLINE_S)
    rows = [[cell.strip() for cell in line.split(",")] for line in out.splitlines()] if rc == 0 else []
    # a process name may hold commas; they stand before the last column
    return [[*row[:2], ", ".join(row[2 : len(row) - columns + 3]), *row[len(row) - columns + 3 :]] for row in rows if len(row) >= columns]


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
