"""What was true of the machine while a number was measured: clocks, throttling, power, load, who else was there.

A number without these cannot be compared with another day's. Reads /proc, and nvidia-smi in a subprocess with a
deadline; without nvidia-smi (ROCm, XPU, MPS) it asks torch where torch can tell, and says what it could not see.
Holds no opinion: judging is somebody else's.

>>> watch = Watch("cpu"); ...; watch.close()["load_average"]
[0.4, 0.3, 0.2]
"""

import os
import re
import subprocess
import threading
import time
from pathlib import Path, PurePath

DEADLINE_S = 5.0  # nvidia-smi on a sick node hangs for minutes
EVERY_S = 2.0
FIELDS = ("clocks.sm", "clocks.max.sm", "power.draw", "power.limit", "temperature.gpu", "memory.used")
REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")  # renamed in driver 535
REASON_BITS = {0x1: "idle", 0x2: "application_clocks", 0x4: "sw_power_cap", 0x8: "hw_slowdown", 0x10: "sync_boost", 0x20: "sw_thermal",
               0x40: "hw_thermal", 0x80: "hw_power_brake", 0x100: "display_clocks"}  # fmt: skip
PASSED_ON = re.compile(r"^(NCCL|GLOO|CUDA|CUBLAS|CUBLASLT|HIP|HIPBLASLT|ROCBLAS|ROCM|ROCR|TORCH|PYTORCH|FI|UCX|OMP|MKL|KMP)_")
PRIVATE = re.compile(r"TOKEN|SECRET|PASSW|KEY|CREDENTIAL", re.I)


class Watch:
    """Looks at the machine before, every two seconds during, and after; `close` ends it and tells."""

    def __init__(self, kind, uuid=""):
        self.kind, self.uuid = kind, uuid
        self.others_before = other_processes(uuid) if kind == "cuda" else None
        self.load_before = _load_average()
        self.began, self.busy, self.cpu = time.monotonic(), _busy(), sum(os.times()[:4])
        self.seen = []
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._look, daemon=True)
        self.thread.start()

    def _look(self):
        while True:
            told = gpu(self.uuid) if self.kind == "cuda" else None
            if told is None:
                return
            self.seen.append(told)
            if self.ended.wait(EVERY_S):
                return

    def own_cpu_s(self):
        """CPU seconds of this process since the start; a job of several ranks sums them for `close`."""
        return sum(os.times()[:4]) - self.cpu

    def close(self, own_cpu_s=None):
        """The record: host load and, for NVIDIA, clocks, power and throttle reasons over the whole run."""
        self.ended.set()
        self.thread.join(DEADLINE_S)
        told = {
            "seconds": round(time.monotonic() - self.began, 1),
            "load_average_before": self.load_before,
            "load_average": _load_average(),
            **self._neighbours(self.own_cpu_s() if own_cpu_s is None else own_cpu_s),
            "env": settings(),
        }
        if self.kind == "cuda":
            told["gpu"] = merge(self.seen)
            told["other_processes"] = sorted(set((self.others_before or []) + (other_processes(self.uuid) or [])))
        return told

    def _neighbours(self, own):
        """Cores that others kept busy, and the share of time the hypervisor gave to others."""
        after, seconds = _busy(), max(time.monotonic() - self.began, 1e-3)
        if after is None or self.busy is None:
            return {"other_cpu_cores": None, "steal_share": None}
        busy, steal = after[0] - self.busy[0], after[1] - self.busy[1]
        return {"other_cpu_cores": round(max(0.0, (busy - own) / seconds), 2), "steal_share": round(steal / seconds / (os.cpu_count() or 1), 4)}


def gpu(uuid):
    """One look through nvidia-smi: numbers by field name and the throttle reasons; None when it cannot be asked."""
    for reasons in REASONS:
        lines = _smi("--query-gpu=" + ",".join((*FIELDS, reasons)), uuid)
        cells = [cell.strip() for cell in lines[0].split(",")] if lines else []
        if len(cells) == len(FIELDS) + 1:
            told = {name: _number(cells[place]) for place, name in enumerate(FIELDS)}
            return dict(told, reasons=throttle_reasons(cells[-1]))
    return None


def throttle_reasons(text):
    """Names of the bits in nvidia-smi's hexadecimal mask; empty when it is not one."""
    try:
        mask = int(text, 16)
    except ValueError:
        return []
    return [name for bit, name in REASON_BITS.items() if mask & bit]


def merge(looks):
    """Many looks in one record: lowest, highest, first and last clock, highest power and temperature, every reason seen; None for no look."""
    if not looks:
        return None
    column = {name: [look[name] for look in looks if look.get(name) is not None] for name in FIELDS}
    reasons = sorted({reason for look in looks for reason in look["reasons"]} - {"idle"})
    return {
        "looks": len(looks),
        "sm_clock_mhz": [min(column["clocks.sm"], default=None), max(column["clocks.sm"], default=None)],
        "sm_clock_mhz_first_last": column["clocks.sm"][:1] + column["clocks.sm"][-1:],
        "max_sm_clock_mhz": max(column["clocks.max.sm"], default=None),
        "power_w": max(column["power.draw"], default=None),
        "power_limit_w": max(column["power.limit"], default=None),
        "temperature_c": max(column["temperature.gpu"], default=None),
        "throttle_reasons": reasons,
    }


def other_processes(uuid):
    """Other processes on the GPU as "pid name"; a container shows none of the host's. None when nvidia-smi cannot be asked."""
    lines = _smi("--query-compute-apps=pid,process_name", uuid)
    if lines is None:
        return None
    rows = [[cell.strip() for cell in line.split(",", 1)] for line in lines]
    return ["{0} {1}".format(row[0], PurePath(row[-1]).name) for row in rows if row[0] != str(os.getpid())]


def driver():
    """Version of the NVIDIA driver, None without one."""
    lines = _smi("--query-gpu=driver_version", "")
    return lines[0].strip() if lines else None


def settings():
    """The environment's settings for collectives, devices and threads; nothing else of it is told, and no secret."""
    return {name: value for name, value in sorted(os.environ.items()) if PASSED_ON.match(name) and not PRIVATE.search(name)}


def _smi(query, uuid):
    """Lines of one nvidia-smi query, None on any failure."""
    command = ["nvidia-smi", query, "--format=csv,noheader,nounits"] + (["-i", uuid] if uuid else [])
    try:
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, universal_newlines=True)
    except OSError:
        return None
    try:
        out, _ = child.communicate(timeout=DEADLINE_S)
    except subprocess.TimeoutExpired:
        child.kill()  # and no wait: one stuck in the driver cannot die, and would take this process with it
        return None
    return [line for line in out.splitlines() if line.strip()] if child.returncode == 0 else None


def _number(text):
    try:
        return float(text)
    except ValueError:  # "[N/A]"
        return None


def _load_average():
    return [round(value, 2) for value in os.getloadavg()] if hasattr(os, "getloadavg") else None


def _busy():
    """(busy seconds, stolen seconds) of all CPUs since boot; None off Linux."""
    try:
        cells = [int(cell) for cell in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    except (OSError, ValueError):
        return None
    tick = float(os.sysconf("SC_CLK_TCK"))
    return (sum(cells[:3]) + sum(cells[5:7])) / tick, (cells[7] if len(cells) > 7 else 0) / tick
