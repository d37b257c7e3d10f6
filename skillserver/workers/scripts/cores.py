"""How many cores this process may use, and how many threads a benchmark should start.

Affinity first, then the CPU quota of the control group (version 1 or 2, the tightest on the way to the root). Two
hardware threads of one core share its vector units, so threads = physical cores. Linux; elsewhere os.cpu_count().

>>> usable()
{'threads': 2, 'physical': 2, 'logical': 2, 'why': 'affinity: 2 logical, 2 physical cores'}
"""

import os
from pathlib import Path

TOPOLOGY = "/sys/devices/system/cpu/cpu{0}/topology/{1}"


def usable():
    """{threads, physical, logical, why}."""
    logical = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    physical = len({(_read(TOPOLOGY.format(cpu, "physical_package_id")), _read(TOPOLOGY.format(cpu, "core_id")) or str(cpu)) for cpu in logical})
    why = "affinity: {0} logical, {1} physical cores".format(len(logical), physical)
    granted = quota()
    if granted is not None and granted < physical:
        why += "; control group quota: {0:.1f} cores".format(granted)
    threads = max(1, min(physical, int(granted) if granted is not None else physical))
    return {"threads": threads, "physical": physical, "logical": len(logical), "why": why}


def nodes(root="/sys/devices/system/node"):
    """{nodes, usable}: NUMA nodes that have CPUs, and those of them that this process may run on; zeros where /sys does not tell."""
    mine = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    held = [_cpus(_read(str(place))) for place in Path(root).glob("node[0-9]*/cpulist")]
    return {"nodes": sum(bool(cpus) for cpus in held), "usable": sum(bool(cpus & mine) for cpus in held)}


def _cpus(text):
    """{0, 1, 2, 8} of "0-2,8"."""
    spans = [part.partition("-") for part in text.split(",") if part[:1].isdigit()]
    return {cpu for first, _, last in spans for cpu in range(int(first), int(last or first) + 1)}


def quota(groups="/proc/self/cgroup", root="/sys/fs/cgroup"):
    """Cores granted by the control group, None without a limit."""
    limits = []
    for line in _read(groups).splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        base = root + "/cpu" if controllers else root
        while True:
            limits += _limit(base + group.rstrip("/"))
            if group in ("/", ""):
                break
            group = group.rpartition("/")[0]
    return min(limits) if limits else None


def _limit(folder):
    """[cores] of one control group; version 2 writes "max 100000" or "150000 100000", version 1 -1 for no limit."""
    words = _read(folder + "/cpu.max").split()
    if not words:
        words = [_read(folder + "/cpu.cfs_quota_us"), _read(folder + "/cpu.cfs_period_us")]
    try:
        return [float(words[0]) / float(words[1])] if float(words[0]) > 0 else []
    except ValueError:  # "max", or no such file
        return []


def _read(path):
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
