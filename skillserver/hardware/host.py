"""What this host has: the NVIDIA devices on its PCI bus, whether we may see all of them, and the driver's own answers.

The driver is asked in another process with a deadline, because a hung driver cannot be interrupted. A container or a
SLURM job is given some of the GPUs while the bus shows all, so a difference means nothing there. Does not judge.

>>> ask_driver(10.0).gpus
[{'index': 0, 'pci': '00000000:19:00.0', 'values': {...}, 'errors': {}}]
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from skillserver import paths, processes

PCI_DEVICES = Path("/sys/bus/pci/devices")
NVIDIA, AMD = "0x10de", "0x1002"
DISPLAY = ("0x0300", "0x0302", "0x0380", "0x1200")  # VGA, 3D controller, other display, accelerator
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
