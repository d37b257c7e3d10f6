"""Two captures of one GPU at different times -> what its counters did between them, by data/health_rates.toml.

A counter of a whole life says little; its growth in an hour does. GPUs are the same when their UUID or PCI id is. Without
a time in both captures growth is told without a rate, and only where any growth counts. A counter that fell was reset:
nothing is said of it. The state is judged on the newest capture (`newest`), so that what is mended is not blamed.

>>> incidents([at_10_00, at_11_00])[0].evidence
['GPU 0 0000:3b:00.0: pcie_replays 10 -> 5000 in 1 h = 4990 an hour (limit 1000)']
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

from skillserver import tables
from skillserver.findings import Severity
from skillserver.health.incident import Incident
from skillserver.health.reading import GpuReading

SHORTEST_S = 1.0
LANES = 16.0  # where the width is not shown


class Rate(tables.Record):
    """One row; see the head of the table."""

    code: str
    fact: str
    per_hour: float
    per_lane: bool = False
    by_generation: dict[str, float] = {}  # noqa: RUF012 - pydantic copies it
    untimed: bool = False
    severity: Severity
    family: str
    reason: str
    action: str
    topic: str
    source: str


@functools.cache
def _rates() -> tuple[Rate, ...]:
    return tables.load("health_rates.toml", Rate)


def newest(gpus: list[GpuReading]) -> list[GpuReading]:
    """One reading for each GPU that was seen at several times: the newest values, older ones where it has none."""
    out: list[GpuReading] = []
    for group in _same(gpus):
        timed = sorted((gpu for gpu in group if gpu.moment is not None), key=lambda gpu: gpu.moment or 0.0)
        if len({gpu.moment for gpu in timed}) < 2:
            out += group
            continue
        out += [gpu for gpu in group if gpu.moment is None]
        last = timed[-1]
        values = {name: value for gpu in timed for name, value in gpu.values.items() if name not in ("lost", "reset_required")}
        out.append(GpuReading(last.source, last.pci, last.index, {**values, **last.values}, last.unreadable, last.moment))
    return out


def incidents(gpus: list[GpuReading]) -> list[Incident]:
    """Counters that grew faster than a row allows."""
    return [one for group in _same(gpus) if len(group) > 1 for one in _of_gpu(group)]


def _same(gpus: list[GpuReading]) -> list[list[GpuReading]]:
    groups: dict[object, list[GpuReading]] = {}
    known: dict[str, object] = {}
    for gpu in gpus:
        names = [name for name in (gpu.text("uuid"), gpu.pci) if name]
        key: object = next((known[name] for name in names if name in known), names[0] if names else id(gpu))
        known.update(dict.fromkeys(names, key))
        groups.setdefault(key, []).append(gpu)
    return list(groups.values())


def _of_gpu(group: list[GpuReading]) -> Iterator[Incident]:
    for rate in _rates():
        shown = [(gpu, value) for gpu in group if (value := gpu.number(rate.fact)) is not None]
        timed = sorted((one for one in shown if one[0].moment is not None), key=lambda one: one[0].moment or 0.0)
        if len(timed) > 1 and (timed[-1][0].moment or 0.0) - (timed[0][0].moment or 0.0) >= SHORTEST_S:
            yield from _timed(rate, *timed[0], *timed[-1])
        elif rate.untimed and len(shown) > 1 and len({gpu.source for gpu, _value in shown}) > 1:
            low, high = shown[0][1], shown[-1][1]
            if high > low:
                yield _incident(rate, shown[-1][0], f"{rate.fact} {low:g} -> {high:g}, in the order given; without times there is no rate")


def _timed(rate: Rate, first: GpuReading, low: float, last: GpuReading, high: float) -> Iterator[Incident]:
    hours = ((last.moment or 0.0) - (first.moment or 0.0)) / 3600
    limit = rate.by_generation.get(f"{last.number('pcie_gen_max') or last.number('pcie_gen') or 0:g}", rate.per_hour)
    if rate.per_lane:
        limit *= last.number("pcie_width") or LANES
    speed = (high - low) / hours
    if high > low and speed > limit:
        bound = f" (limit {limit:g})" if limit else ""
        yield _incident(rate, last, f"{rate.fact} {low:g} -> {high:g} in {hours:.3g} h = {speed:.4g} an hour{bound}")


def _incident(rate: Rate, gpu: GpuReading, said: str) -> Incident:
    return Incident(rate.code, rate.severity, rate.family, gpu.label, rate.reason, rate.action, rate.topic, gpu.pci, [f"{gpu.label}: {said}"])
