"""`rocm-smi` output, JSON (`--json`) or the concise table -> GPU readings of AMD cards.

Reads temperatures, power, use and memory; ECC and link counters of rocm-smi are not read yet. Does not judge.

>>> parse("paste", '{"card0": {"Temperature (Sensor memory) (C)": "92.0"}}').gpus[0].values
{'amd_memory_c': 92.0}
"""

from __future__ import annotations

import json
import re
from typing import Any

from skillserver.health.reading import Facts, GpuReading, normal_pci

KIND = "rocm-smi (JSON or table)"
KEYS = (
    ("amd_memory_c", r"^Temperature \(Sensor (?:memory|HBM \d+)\) \(C\)$"),
    ("amd_junction_c", r"^Temperature \(Sensor junction\) \(C\)$"),
    ("temperature_c", r"^Temperature \(Sensor edge\) \(C\)$"),
    ("power_w", r"Graphics Package Power \(W\)$|Socket Graphics Package Power \(W\)$"),
    ("utilisation_percent", r"^GPU use \(%\)$"),
)
TABLE_ROW = re.compile(r"^(\d+)\s+(?:\[.*?\]|\d+\s+0x\w+,?\s+\S+)\s+([\d.]+)°C\s+([\d.]+)W\s+.*?(\d+)%\s+(\d+)%\s*$", re.M)


def parse(source: str, text: str) -> Facts | None:
    """Facts of every row of the concise table, or None without one."""
    return _facts(_table(source, text) if "ROCm" in text or "rocm-smi" in text else [])


def parse_json(source: str, text: str) -> Facts | None:
    """Facts of every card of `rocm-smi --json`, or None without one."""
    return _facts(_cards(source, text) if '"card' in text else [])


def _facts(gpus: list[GpuReading]) -> Facts | None:
    return Facts(gpus=gpus, judged=any(set(gpu.values) - {"name"} for gpu in gpus)) if gpus else None


def _cards(source: str, text: str) -> list[GpuReading]:
    try:
        document = json.loads(text[text.index("{") : text.rindex("}") + 1])
    except (ValueError, RecursionError):
        return []
    cards = document.items() if isinstance(document, dict) else []
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
            gpu.values[field] = max(numbers)
    return gpu


def _table(source: str, text: str) -> list[GpuReading]:
    return [
        GpuReading(
            source, None, int(found[1]), {"amd_junction_c": float(found[2]), "power_w": float(found[3]), "utilisation_percent": float(found[5])}
        )
        for found in TABLE_ROW.finditer(text)
    ]
