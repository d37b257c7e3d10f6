"""When a capture was taken: the time stamps that nvidia-smi prints (`Timestamp : ...`, <timestamp>, the line above the table).

A document gives its time to the readings after it, until the next one. Clocks have no zone there, so moments compare
only within one machine. Does not know the times of log lines (kernel_log.py).

>>> [moment for _place, moment in stamps("Timestamp : Tue Jan  2 10:00:00 2024")]
[1704189600.0]
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

from skillserver.health.reading import GpuReading

STAMP = re.compile(
    r"(?:^\s*Timestamp\s*:\s*|<timestamp>\s*|^)(?:[A-Z][a-z]{2},? )"
    r"([A-Z][a-z]{2}) +(\d{1,2}) (\d\d:\d\d:\d\d)(?: [A-Z]{2,5})? (\d{4})\s*(?:</timestamp>|$)",
    re.M,
)


def stamps(text: str) -> list[tuple[int, float]]:
    """(place in the text, seconds) of each stamp."""
    found = [(one.start(), _seconds(f"{one[4]} {one[1]} {one[2]} {one[3]}", "%Y %b %d %H:%M:%S")) for one in STAMP.finditer(text)]
    return [(place, seconds) for place, seconds in found if seconds is not None]


def _seconds(text: str, form: str) -> float | None:
    try:
        return datetime.strptime(text, form).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None


def give(gpus: list[GpuReading], text: str) -> None:
    """Set `moment` of readings. With one stamp all have it; with several, the k-th time that a GPU is shown has the k-th stamp."""
    found = stamps(text) if gpus else []
    if len(found) == 1:
        for gpu in gpus:
            gpu.moment = found[0][1]
    elif found:
        times: dict[tuple[str | None, int | None, bool], int] = {}
        for gpu in gpus:
            key = (gpu.pci, None if gpu.pci else gpu.index, any(name.startswith("nvlink") for name in gpu.values))
            place = times.get(key, 0)
            times[key] = place + 1
            gpu.moment = found[place][1] if place < len(found) else None
