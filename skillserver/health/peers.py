"""One GPU beside its equals in the same machine: what no limit catches, a neighbour shows.

Compares GPUs of one source and one product only, at least four of them. In 1,096 tables of 8x H100 nodes (temperature,
memory, power and use only) no GPU stood more than 14 C above the median of the other seven, save in 21 tables of two
runs with one hot board (20 to 31 C). The limits below were put into those gaps after looking at these same tables, so
they show no rate of false alarms on other nodes; neighbours' memory, PCIe and NVLink rules were not tried on any.
Knows nothing of limits (checks.py).

>>> [one.code for one in incidents([cool, cool, cool, hot])]
['temperature_outlier']
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from skillserver.health.incident import Incident
from skillserver.health.reading import GpuReading

FEWEST = 4
HOTTER_C = 17.0  # middle of the gap between 14 and 20 C, see above
BUSIER_PERCENT = 20.0  # assumed: more work than the others explains more heat
FOREIGN_MIB = 8192.0  # between 4,339 MiB, the most in those tables but one, and the one with 48,695 MiB of a foreign program


def incidents(gpus: list[GpuReading]) -> list[Incident]:
    """Outliers of every group of equals."""
    groups: dict[tuple[str, str], list[GpuReading]] = {}
    for gpu in gpus:
        groups.setdefault((gpu.source, gpu.name), []).append(gpu)
    return [one for (_source, name), group in groups.items() if name and len(group) >= FEWEST for one in _of_group(group)]


def _of_group(group: list[GpuReading]) -> Iterator[Incident]:
    yield from _hotter(group)
    yield from _fuller(group)
    yield from _narrower(group)
    yield from _unlinked(group)


def _known(group: list[GpuReading], fact: str) -> list[tuple[GpuReading, float]]:
    return [(gpu, value) for gpu in group if (value := gpu.number(fact)) is not None]


def _hotter(group: list[GpuReading]) -> Iterator[Incident]:
    known = _known(group, "temperature_c")
    for gpu, value in known:
        others = [other for peer, other in known if peer is not gpu]
        if len(others) < FEWEST - 1 or value - statistics.median(others) < HOTTER_C or _busier(gpu, group):
            continue
        said = f"{gpu.label}: {value:g} C, the other {len(others)} at {min(others):g} to {max(others):g} C"
        yield Incident(
            "temperature_outlier",
            "warning",
            "thermal",
            gpu.label,
            "Much hotter than its neighbours at the same work: not over a limit, but it will throttle first.",
            "observe: check airflow, heat sink or cold plate of this GPU before long runs",
            "gpu_throttling",
            gpu.pci,
            [said],
        )


def _busier(gpu: GpuReading, group: list[GpuReading]) -> bool:
    others = [value for peer, value in _known(group, "utilisation_percent") if peer is not gpu]
    mine = gpu.number("utilisation_percent")
    return bool(others) and mine is not None and mine - statistics.median(others) > BUSIER_PERCENT


def _fuller(group: list[GpuReading]) -> Iterator[Incident]:
    """More programs and much more memory than the neighbours: usually what an earlier job left behind."""
    known, programs = _known(group, "memory_used_mib"), {id(gpu): count for gpu, count in _known(group, "programs")}
    if len(known) < FEWEST or not programs:
        return
    usual, usual_programs = statistics.median(value for _gpu, value in known), statistics.median(programs.values())
    for gpu, value in known:
        if value - usual >= FOREIGN_MIB and programs.get(id(gpu), 0) > usual_programs >= 1:
            said = f"{gpu.label}: {value:g} MiB in {programs[id(gpu)]:g} programs; its neighbours hold {usual:g} MiB in {usual_programs:g}"
            yield Incident(
                "foreign_process_memory",
                "warning",
                "host",
                gpu.label,
                "This GPU holds a program that the others do not; the job shares memory and time with it.",
                "fix_setup: find the owner of the extra program (ps -o user,lstart,cmd -p PID) and end it",
                "gpu_program_faults",
                gpu.pci,
                [said],
            )


def _narrower(group: list[GpuReading]) -> Iterator[Incident]:
    for fact, what in (("pcie_width", "width"), ("pcie_gen", "generation")):
        known = [(gpu, value) for gpu, value in _known(group, fact) if gpu.text("pstate") in ("P0", "P1", "P2")]
        usual = statistics.mode(value for _gpu, value in known) if len(known) >= FEWEST else 0.0
        for gpu, value in known:
            top = gpu.number(f"{fact}_max")
            if value < usual and (top is None or value < top):
                said = f"{gpu.label}: {what} {value:g}, most of its neighbours {usual:g}"
                yield Incident(
                    f"{fact}_below_peers",
                    "warning",
                    "pcie",
                    gpu.label,
                    f"The PCIe {what} is below that of the same GPUs beside it in the same performance state.",
                    "observe: check riser, slot and BIOS; copies to and from this GPU are slower",
                    "pcie_link",
                    gpu.pci,
                    [said],
                )


def _unlinked(group: list[GpuReading]) -> Iterator[Incident]:
    """Fewer NVLinks up than the neighbours have: the part's own number is not needed, and export versions have fewer."""
    known = _known(group, "nvlinks_up")
    usual = statistics.mode(value for _gpu, value in known) if len(known) >= FEWEST else 0
    for gpu, value in known:
        if value < usual:
            said = f"{gpu.label}: {value:g} NVLinks up, most of its neighbours {usual:g}; down: {gpu.text('nvlinks_down') or 'not said'}"
            yield Incident(
                "nvlink_down",
                "critical",
                "link",
                gpu.label,
                "NVLinks of this GPU are down: collective jobs fail or crawl.",
                "reset: drain, reset the GPU and its peer (or reboot); field diagnostic if the link stays down",
                "nvlink_faults",
                gpu.pci,
                [said],
            )
