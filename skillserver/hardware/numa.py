"""How memory and GPUs are spread over the NUMA nodes of this host, from /sys alone.

A node without CPUs is not a socket (GH200 shows its GPU memory so). -1 as a device's node means that the firmware does
not tell; with one node that is no loss. Does not judge.

>>> read().nodes
[Node(number=0, cpus=64, memory_gib=503.5), Node(number=1, cpus=64, memory_gib=503.9)]
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from skillserver.hardware import host

TOTAL = re.compile(r"MemTotal:\s+(\d+) kB")


@dataclass(frozen=True)
class Node:
    """One NUMA node that has CPUs; GiB = 2^30 bytes."""

    number: int
    cpus: int
    memory_gib: float


@dataclass
class Layout:
    """Nodes, the node of each GPU (-1 = not told), and the nodes whose CPUs this process may use."""

    nodes: list[Node] = field(default_factory=list)
    gpus: dict[str, int] = field(default_factory=dict)
    allowed: list[int] = field(default_factory=list)


def read(root: Path = Path("/")) -> Layout:
    """The layout of this host; empty where /sys does not tell."""
    found = Layout()
    mine = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    for folder in sorted(root.glob("sys/devices/system/node/node[0-9]*"), key=lambda place: int(place.name[4:])):
        cpus = cpu_list(_text(folder / "cpulist"))
        total = TOTAL.search(_text(folder / "meminfo"))
        if cpus:
            found.nodes.append(Node(int(folder.name[4:]), len(cpus), round(int(total[1]) / 2**20, 1) if total else 0.0))
            found.allowed += [int(folder.name[4:])] if cpus & mine else []
    bus = root / "sys/bus/pci/devices"
    for pci in [*host.nvidia_devices(bus), *host.amd_devices(bus)]:
        said = _text(bus / pci / "numa_node")
        found.gpus[pci] = int(said) if re.fullmatch(r"-?\d+", said) else -1
    return found


def cpu_list(text: str) -> set[int]:
    """{0, 1, 2, 8} of "0-2,8"; empty for anything else."""
    if not re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", text):
        return set()
    spans = (part.partition("-") for part in text.split(","))
    return {cpu for first, _, last in spans for cpu in range(int(first), int(last or first) + 1)}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
