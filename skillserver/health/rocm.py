"""`rocm-smi` output, JSON (`--json`) or the concise table -> GPU readings of AMD cards.

Reads temperatures, power, use, PCIe replays and the RAS counts (`--showrasinfo`). Does not judge.

>>> parse("paste", '{"card0": {"Temperature (Sensor memory) (C)": "92.0"}}').gpus[0].values
{'amd_memory_c': 92.0}
"""

from __future__ import annotations

import re
from typing import Any

from skillserver.health import documents
from skillserver.health.reading import Facts, GpuReading, normal_pci

KIND = "rocm-smi (JSON or table)"
KEYS = (
    ("amd_memory_c", r"^Temperature \(Sensor (?:memory|HBM \d+)\) \(C\)$"),
    ("amd_junction_c", r"^Temperature \(Sensor junction\) \(C\)$"),
    ("temperature_c", r"^Temperature \(Sensor edge\) \(C\)$"),
    ("power_w", r"Graphics Package Power \(W\)$|Socket Graphics Package Power \(W\)$"),
    ("amd_edge_c", r"^Temperature \(Sensor edge\) \(C\)$"),
    ("utilisation_percent", r"^GPU use \(%\)$"),
    ("amd_uncorrectable", r"(?i)uncorrect"),
    ("amd_correctable", r"(?i)(?<!un)(?<!un )correct(?:able|ed)"),
    ("pcie_replays", r"^PCIe Replay Count$"),
)
TABLE_ROW = re.compile(r"^(\d+)\s+(?:\[.*?\]\s+|\d+\s+0x\w+,?\s+\S+\s+)?([\d.]+)\s?°?[cC]\s+(?:([\d.]+)W|N/A)\s+.*?(\d+)%\s+(\d+)%\s*$", re.M)
EDGE = re.compile(r"Temp\s+\((?:DieEdge|Edge)\)|\(Edge\)", re.I)
RAS_HEAD = re.compile(r"^GPU\[(\d+)\]\s*:\s*RAS INFO", re.M)
RAS_ROW = re.compile(r"^\s+([A-Z][A-Z0-9_]*)\s+ENABLED\s+(\d+)\s+(\d+)\s*$")


def parse(source: str, text: str) -> Facts | None:
    """Facts of every row of the concise table, or None without one."""
    known = "ROCm" in text or "rocm-smi" in text or "VRAM%" in text
    return _facts([*(_table(source, text) if known else []), *(_ras(source, text) if "RAS INFO" in text else [])])


def parse_json(source: str, text: str) -> Facts | None:
    """Facts of every card of `rocm-smi --json`, or None without one."""
    return _facts(_cards(source, text) if '"card' in text else [])


def _facts(gpus: list[GpuReading]) -> Facts | None:
    return Facts(gpus=gpus, judged=any(set(gpu.values) - {"name"} for gpu in gpus)) if gpus else None


def _cards(source: str, text: str) -> list[GpuReading]:
    cards = [item for one in documents.found(text) if isinstance(one, dict) for item in one.items()]
    return [
        _card(source, int(found[1]), values) for name, values in cards if (found := re.fullmatch(r"card(\d+)", name)) and isinstance(values, dict)
    ]


def _card(source: str, index: int, values: dict[str, Any]) -> GpuReading:
    gpu = GpuReading(source, normal_pci(str(values.get("PCI Bus", ""))), index)
    for name in ("Card series", "Card Series", "Device Name", "Card model"):
        if isinstance(values.get(name), str) and values[name] != "N/A":
            gpu.values.setdefault("name", values[name])
    for field, pattern in KEYS:
        numbers = [
            float(value)
            for key, value in values.items()
            if re.search(pattern, key) and re.fullmatch(r"-?\d+(?:\.\d+)?", str(value)) and "Max" not in key
        ]
        if numbers:
            gpu.values[field] = sum(numbers) if field.endswith("correctable") else max(numbers)
    return gpu


def _table(source: str, text: str) -> list[GpuReading]:
    sensor = "amd_edge_c" if EDGE.search(text) else "amd_junction_c"
    gpus = []
    for found in TABLE_ROW.finditer(text):
        gpu = GpuReading(source, None, int(found[1]), {sensor: float(found[2]), "utilisation_percent": float(found[5])})
        if found[3]:
            gpu.values["power_w"] = float(found[3])
        gpus.append(gpu)
    return gpus


def _ras(source: str, text: str) -> list[GpuReading]:
    """`rocm-smi --showrasinfo`: corrected and uncorrected counts of every block that is watched, added up."""
    gpus: list[GpuReading] = []
    for line in text.splitlines():
        if found := RAS_HEAD.match(line):
            gpus.append(GpuReading(source, None, int(found[1])))
        elif gpus and (found := RAS_ROW.match(line)):
            for name, cell in (("amd_correctable", found[2]), ("amd_uncorrectable", found[3])):
                gpus[-1].values[name] = (gpus[-1].number(name) or 0.0) + float(cell)
    return gpus
