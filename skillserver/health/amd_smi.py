"""`amd-smi` output (metric, bad-pages and process text, JSON, the default and the monitor table) -> readings of AMD GPUs.

Text and JSON are the same tree of sections and keys; a value may stand alone or as {"value": 41, "unit": "C"}. Blocks of
ECC_BLOCKS add up where no total is printed. N/A is unknown. Does not judge, and does not know rocm-smi (rocm.py).

>>> parse("paste", "GPU: 0\\n    ECC:\\n        TOTAL_UNCORRECTABLE_COUNT: 2").gpus[0].values
{'amd_uncorrectable': 2.0}
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from skillserver.health import documents
from skillserver.health.reading import Facts, GpuReading, Value, normal_pci

KIND = "amd-smi (text, table or JSON)"
GPU = re.compile(r"^\s*GPU:\s*(\d+)\s*$")
PAIR = re.compile(r"^(\s*)([A-Z][A-Z0-9_ ]{1,50}):\s*(.*?)\s*$")
ROW_BDF = re.compile(
    r"^\|\s*([0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.\d)\s+(\S.*?)\s*\|\s*(?:\d+|N/A)\s*%?\s+(\d+|N/A)\s*°?\s*C?\s+(\d+|N/A)\s+(\d+|N/A)/"
)
ROW_INDEX = re.compile(r"^\|\s*(\d+)\s+\S+\s+\S+\s+\S+\s*\|\s*(\d+|N/A)\s*%?\s")
MONITOR = re.compile(r"^\s*GPU\s{2,}.*\b(?:POWER|GPU_T|GPU_TEMP|DOUBLE_ECC)\b", re.M)
COLUMNS = {"POWER": "power_w", "GPU_T": "amd_junction_c", "GPU_TEMP": "amd_junction_c", "HOTSPOT_TEMP": "amd_junction_c", "MEM_T": "amd_memory_c",
           "MEM_TEMP": "amd_memory_c", "GFX%": "utilisation_percent", "GFX_UTIL": "utilisation_percent", "SINGLE_ECC": "amd_correctable",
           "DOUBLE_ECC": "amd_uncorrectable", "PCIE_REPLAY": "pcie_replays"}  # fmt: skip
PLACES = tuple((name, re.compile(pattern)) for name, pattern in (
    ("amd_junction_c", r"temperature/(?:hotspot|junction)$"), ("amd_memory_c", r"temperature/(?:mem|vram|hbm_\w+)$"),
    ("amd_edge_c", r"temperature/edge$"),
    ("power_w", r"power/(?:socket_power|current_socket_power|average_socket_power)$"), ("utilisation_percent", r"usage/gfx_activity$"),
    ("amd_correctable", r"total_correctable_count$"), ("amd_uncorrectable", r"total_uncorrectable_count$"),
    ("amd_block_correctable", r"ecc_blocks?/\w+/correctable_count$"), ("amd_block_uncorrectable", r"ecc_blocks?/\w+/uncorrectable_count$"),
    ("pcie_replays", r"pcie/replay_count$"), ("bdf", r"(?:^|/)bdf$"), ("name", r"asic/market_name$"),
    ("amd_throttled", r"throttle_status$|(?:prochot|ppt|socket_thermal|vr_thermal|hbm_thermal)_violation_status$"),
    ("amd_bad_pages", r"(?:^|/)retired(?:/\w+)*$"), ("amd_pages_pending", r"(?:^|/)pending(?:/\w+)*$"),
    ("amd_pages_unreservable", r"(?:^|/)un_?res(?:/\w+)*$")))  # fmt: skip
SUMMED = ("amd_block_correctable", "amd_block_uncorrectable")
PAGES = ("amd_bad_pages", "amd_pages_pending", "amd_pages_unreservable")
Pair = tuple[str, str]


def parse(source: str, text: str) -> Facts | None:
    """Facts of every GPU block or table row; None without one."""
    gpus: list[GpuReading] = []
    if "GPU:" in text:
        gpus += _text(source, text)
    if "AMD" in text or "OAM-ID" in text:
        gpus += _table(source, text)
    if "POWER" in text or "_ECC" in text:
        gpus += _monitor(source, text)
    gpus = [gpu for gpu in gpus if gpu.values]
    return Facts(gpus=gpus, judged=any(set(gpu.values) - {"name"} for gpu in gpus)) if gpus else None


def parse_json(source: str, text: str) -> Facts | None:
    """The same of `--json`; two shapes, a list or {"gpu_data": [...]}."""
    if '"gpu"' not in text:
        return None
    lists = [one.get("gpu_data", []) if isinstance(one, dict) else one for one in documents.found(text)]
    cards = [row for rows in lists if isinstance(rows, list) for row in rows if isinstance(row, dict) and isinstance(row.get("gpu"), int)]
    gpus = [_reading(source, row["gpu"], _leaves(row, "", 0)) for row in cards]
    gpus = [gpu for gpu in gpus if gpu.values]
    return Facts(gpus=gpus, judged=any(set(gpu.values) - {"name"} for gpu in gpus)) if gpus else None


def _leaves(node: Any, above: str, depth: int) -> Iterator[Pair]:
    if isinstance(node, dict) and "value" in node:
        yield above, str(node["value"])
    elif isinstance(node, dict) and depth < 8:
        for key, child in node.items():
            yield from _leaves(child, f"{above}/{str(key).lower()}".strip("/"), depth + 1)
    elif isinstance(node, list) and depth < 8:
        for child in node:
            yield from _leaves(child, above, depth + 1)
    else:
        yield above, str(node)


def _text(source: str, text: str) -> list[GpuReading]:
    blocks: list[tuple[int, list[Pair]]] = []
    stack: list[tuple[int, str]] = []
    for line in text.splitlines():
        if found := GPU.match(line):
            blocks.append((int(found[1]), []))
            stack = []
        elif blocks and (found := PAIR.match(line)):
            depth = len(found[1].expandtabs(4))
            while stack and stack[-1][0] >= depth:
                stack.pop()
            stack.append((depth, found[2].strip().lower().replace(" ", "_")))
            if found[3]:
                blocks[-1][1].append(("/".join(name for _depth, name in stack), found[3]))
    return [_reading(source, index, pairs) for index, pairs in blocks]


def _reading(source: str, index: int, pairs: Any) -> GpuReading:
    gpu = GpuReading(source, None, index)
    for path, said in pairs:
        name = next((name for name, place in PLACES if place.search(path)), None)
        if name == "bdf":
            gpu.pci = normal_pci(said)
        elif name is not None and (value := _value(name, said)) is not None:
            before = gpu.values.get(name)
            if isinstance(value, bool | str) or before is None:
                gpu.values[name] = bool(before) or value if isinstance(value, bool) else value
            else:
                gpu.values[name] = float(before) + value if name in SUMMED or name in PAGES else max(float(before), value)
    for blocks, total in zip(SUMMED, ("amd_correctable", "amd_uncorrectable"), strict=True):
        added = gpu.values.pop(blocks, None)
        if isinstance(added, float):
            gpu.values[total] = max(added, gpu.number(total) or 0.0)
    if (edge := gpu.number("amd_edge_c")) is not None:
        gpu.values["temperature_c"] = edge
    return gpu


def _value(name: str, said: str) -> Value | None:
    if name == "name":
        return None if said == "N/A" else said
    if name == "amd_throttled":
        return {"THROTTLED": True, "ACTIVE": True, "UNTHROTTLED": False, "NOT ACTIVE": False, "NOT_ACTIVE": False}.get(said.upper())
    if name in PAGES:
        return 0.0 if re.match(r"no bad pages", said, re.I) else float(bool(re.match(r"0x|\d", said))) if said != "N/A" else None
    found = re.match(r"\d+(?:\.\d+)?", said)
    return float(found[0]) if found else None


def _table(source: str, text: str) -> list[GpuReading]:
    gpus: list[GpuReading] = []
    for line in text.splitlines():
        if len(line) < 200 and (found := ROW_BDF.match(line)):
            gpus.append(GpuReading(source, normal_pci(found[1]), None, {"name": found[2]}))
            for name, cell in (("amd_junction_c", found[3]), ("amd_uncorrectable", found[4]), ("power_w", found[5])):
                if cell != "N/A":
                    gpus[-1].values[name] = float(cell)
        elif gpus and gpus[-1].index is None and len(line) < 200 and (found := ROW_INDEX.match(line)):
            gpus[-1].index = int(found[1])
            if found[2] != "N/A":
                gpus[-1].values["utilisation_percent"] = float(found[2])
    return gpus


def _monitor(source: str, text: str) -> list[GpuReading]:
    head = MONITOR.search(text)
    if not head:
        return []
    lines = text[head.start() :].lstrip("\n").splitlines()
    columns, gpus = lines[0].split(), []
    for line in lines[1:]:
        cells = re.split(r"\s{2,}", line.strip())
        if not cells[0].isdigit():
            break
        if len(cells) == len(columns):
            gpus.append(GpuReading(source, None, int(cells[0])))
            for column, cell in zip(columns, cells, strict=True):
                found = re.match(r"\d+(?:\.\d+)?", cell)
                if found and column in COLUMNS:
                    gpus[-1].values[COLUMNS[column]] = float(found[0])
    return gpus
