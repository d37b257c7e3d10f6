"""Keep a rank on the cores next to its GPU: memory it allocates then lies there too (first touch).

    pin("0000:3b:00.0")              # before the first large allocation; DataLoader workers inherit it
    pin_to_gpu(int(os.environ["LOCAL_RANK"]))

Without it a rank may run on the other socket, and copies to the GPU cross the link between sockets. Does nothing where the
kernel knows no node (-1: one socket, most virtual machines), and never takes cores that SLURM or a container did not give.
"""

import os
import subprocess
from pathlib import Path

SYSFS = Path("/sys")


def cores_of(text: str) -> set[int]:
    """A kernel list such as 0-3,8,10-11."""
    ranges = (part.partition("-") for part in text.strip().split(",") if part)
    return {core for first, _dash, last in ranges for core in range(int(first), int(last or first) + 1)}


def pin(bus_id: str, sysfs: Path = SYSFS) -> set[int]:
    """Pin this process to the cores near a PCI device; returns them, or an empty set when nothing was done."""
    node = (sysfs / "bus/pci/devices" / bus_id.lower() / "numa_node").read_text().strip()
    if int(node) < 0:
        return set()
    near = cores_of((sysfs / f"devices/system/node/node{node}/cpulist").read_text()) & os.sched_getaffinity(0)
    if near:
        os.sched_setaffinity(0, near)
    return near


def pin_to_gpu(index: int) -> set[int]:
    """The same for the GPU that CUDA calls `index`. nvidia-smi counts by PCI bus: set CUDA_DEVICE_ORDER=PCI_BUS_ID."""
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    asked = ["nvidia-smi", "--query-gpu=pci.bus_id", "--format=csv,noheader", "-i", visible[index] if visible else str(index)]
    told = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    return pin(told[-12:])  # 00000000:3B:00.0: the kernel writes the domain with four digits
