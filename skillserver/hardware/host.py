"""What this host has: GPUs and switches on its PCI bus, the driver's own answers, kernel messages, InfiniBand ports, services.

The driver is asked in another process with a deadline, because a hung driver cannot be interrupted. A container or a
SLURM job is given some of the GPUs while the bus shows all, so a difference means nothing there. Does not judge.

>>> ask_driver(10.0).gpus
[{'index': 0, 'pci': '00000000:19:00.0', 'values': {...}, 'errors': {}}]
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from skillserver import paths, processes

PCI_DEVICES = Path("/sys/bus/pci/devices")
NVIDIA, AMD = "0x10de", "0x1002"
DISPLAY = ("0x0300", "0x0302", "0x0380", "0x1200")  # VGA, 3D controller, other display, accelerator
NVSWITCH = "0x0680"  # a bridge of NVIDIA's
KERNEL_LOG_DAYS = 3  # an older fault is history; gpud looks back as far
FABRIC_MANAGER = "nvidia-fabricmanager"
IB_FACTS = ("state", "phys_state", "rate", "link_layer", "counters/link_downed")
AMD_COMMANDS = (("amd-smi", "metric", "--json"), ("rocm-smi", "-a", "--json"))
HELD_BY_ANOTHER = ("vfio-pci", "pci-stub", "nouveau")  # given away on purpose, not missing


@dataclass
class DriverAnswer:
    """What the child printed until it ended or was cut off."""

    gpus: list[dict[str, Any]] = field(default_factory=list)
    count: int | None = None
    driver: str = ""
    error: str = ""  # NVML's word, such as LibRmVersionMismatch
    asking: int | None = None  # index of the GPU whose answer is still out
    ended: bool = False
    cut: bool = False  # the deadline passed
    last_words: str = ""


def ask_driver(deadline_s: float) -> DriverAnswer:
    """Run hardware/nvml.py for at most `deadline_s` seconds; keeps what it had printed by then."""
    done = processes.run_with_deadline([sys.executable, "-m", "skillserver.hardware.nvml"], deadline_s)
    answer = DriverAnswer(cut=done.rc is None, last_words=done.stderr.strip()[-400:])
    for line in done.stdout.splitlines():
        try:
            said = json.loads(line)
        except ValueError:
            continue  # the last line of a child that was cut off
        if isinstance(said, dict):
            _take(answer, said)
    return answer


def _take(answer: DriverAnswer, said: dict[str, Any]) -> None:
    at = said.pop("at", "")
    if at == "library":
        answer.count, answer.driver = said["count"], said["driver"]
    elif at == "asking":
        answer.asking = said["index"]
    elif at == "gpu":
        answer.gpus.append(said)
        answer.asking = None
    elif at == "failed":
        answer.error = said["error"]
    elif at == "end":
        answer.ended = True


def nvidia_devices(root: Path = PCI_DEVICES) -> list[str]:
    """PCI ids of NVIDIA display and 3D controllers that the NVIDIA driver should serve."""
    return [device.name for device in _display_devices(root, NVIDIA) if _driver(device) not in HELD_BY_ANOTHER]


def amd_devices(root: Path = PCI_DEVICES) -> list[str]:
    """PCI ids of AMD display and 3D controllers (integrated ones too)."""
    return [device.name for device in _display_devices(root, AMD)]


def _display_devices(root: Path, vendor: str) -> list[Path]:
    if not root.is_dir():
        return []
    return [device for device in sorted(root.iterdir()) if _read(device / "vendor") == vendor and _read(device / "class").startswith(DISPLAY)]


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _driver(device: Path) -> str:
    link = device / "driver"
    return link.resolve().name if link.is_symlink() else ""


def given_a_part(root: Path = Path("/")) -> str:
    """Why this process may see fewer GPUs than the bus has; "" when nothing says so."""
    if paths.environment("SLURM_JOB_ID"):
        return "a SLURM job"
    visible = paths.environment("NVIDIA_VISIBLE_DEVICES")
    if paths.environment("KUBERNETES_SERVICE_HOST") or (visible and visible != "all"):
        return "a container"
    for sign in (".dockerenv", "run/.containerenv", ".singularity.d"):
        if (root / sign).exists():
            return "a container"
    return ""


def nvswitches(root: Path = PCI_DEVICES) -> list[str]:
    """PCI ids of NVIDIA bridges: where there are some, the GPUs need a fabric manager."""
    if not root.is_dir():
        return []
    return [one.name for one in sorted(root.iterdir()) if _read(one / "vendor") == NVIDIA and _read(one / "class").startswith(NVSWITCH)]


def kernel_log(deadline_s: float) -> str | None:
    """Kernel messages of the last three days; None where this user may not read them (the usual case in a container)."""
    done = processes.run_with_deadline(["dmesg", "--color=never"], deadline_s)
    if done.rc == 0 and done.stdout.strip():
        up = _read(Path("/proc/uptime")).split()
        return _since(done.stdout, float(up[0]) - KERNEL_LOG_DAYS * 86400 if up else 0.0)
    command = ["journalctl", "-k", "-q", "--no-pager", "-o", "short-iso", f"--since=-{KERNEL_LOG_DAYS}days"]
    done = processes.run_with_deadline(command, deadline_s)
    return done.stdout if done.rc == 0 and done.stdout.strip() else None


def _since(text: str, oldest_s: float) -> str:
    """Lines of dmesg from that second after boot on; lines without a stamp stay."""
    return "\n".join(line for line in text.splitlines() if not (found := re.match(r"\[ *(\d+\.\d+)\]", line)) or float(found[1]) >= oldest_s)


def service_state(name: str, deadline_s: float) -> str:
    """`active`, `inactive`, `failed` and the like of a systemd unit; "" where there is no systemd or no such unit."""
    done = processes.run_with_deadline(["systemctl", "show", "--property=LoadState,ActiveState", name], deadline_s)
    said = dict(line.partition("=")[::2] for line in done.stdout.splitlines())
    return said.get("ActiveState", "") if done.rc == 0 and said.get("LoadState") == "loaded" else ""


def ib_ports(root: Path = Path("/")) -> str:
    """A line a port, as health/infiniband.py reads them; an Ethernet port that is down is left out: many are not cabled."""
    lines = []
    for port in sorted(root.glob("sys/class/infiniband/*/ports/*")):
        facts = {name.rpartition("/")[2]: _read(port / name) for name in IB_FACTS}
        if facts["state"] and (facts["link_layer"] == "InfiniBand" or "ACTIVE" in facts["state"]):
            said = " ".join(f"{name}={value}" for name, value in facts.items() if value)
            lines.append(f"{port.parent.parent.name} port {port.name}: {said}")
    return "\n".join(lines)


def ask_amd(deadline_s: float) -> str | None:
    """What AMD's own tool says as JSON, from a child with a deadline; None where neither tool answers."""
    for command in AMD_COMMANDS:
        done = processes.run_with_deadline(list(command), deadline_s)
        if done.rc == 0 and done.stdout.strip():
            return done.stdout
    return None
