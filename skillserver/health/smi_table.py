"""The boxed table that `nvidia-smi` prints -> GPU readings: two rows a GPU, then the processes. Old and new widths.

A cell that reads ERR! is unreadable, N/A is unknown; the volatile ECC column is a count. Does not judge.

>>> parse("paste", table).gpus[0].values["temperature_c"]
33.0
"""

from __future__ import annotations

import re

from skillserver.health.reading import Facts, GpuReading, Unjudged, normal_pci

KIND = "nvidia-smi table"
FIRST = re.compile(
    r"^\|\s*(\d+)\s+(.+?)\s{2,}(On|Off|N/A|WDDM|TCC|MCDM|ERR!)?\s*"  # index, name, persistence or driver model
    r"\|\s*([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)\s+(\S+)\s*"  # PCI id, display
    r"\|\s*(.+?)\s*\|"  # volatile uncorrectable ECC
)
SECOND = re.compile(
    r"^\|\s*(N/A|ERR!|\d+%)?\s+(\S+C|N/A|ERR!|\[?\S+\]?)\s+(P\d+|N/A|ERR!|\S+)\s+(\S.*?)\s*/\s*(\S+)\s*"  # fan, temperature, state, power
    r"\|\s*(\S+)\s*/\s*(\S+?)\s*"  # memory
    r"\|\s*(\S+)\s+(\S.*?)?\s*\|"  # utilisation, compute mode
)
PROCESS = re.compile(r"^\|\s+(\d+)\s+(?:(?:N/A|\d+)\s+(?:N/A|\d+)\s+)?(\d+)\s+(?:C\+G|[CGM])\s+(.*?)\s+(\d+|N/A)\s?(?:MiB)?\s+\|")
MIG_ROW = re.compile(r"^\|\s*(\d+)\s+\d+\s+\d+\s+\d+\s*\|\s*\d+MiB\s*/\s*\d+MiB\s*\|\s*\d+\s+(\d+)\s*\|")  # the errors of an instance
WIDEST = 200  # the table is 91 wide at most
DEAD = re.compile(r"\b(?:gpu is lost|gpu requires reset)\b", re.I)
CELLS = (("fan_percent", 1), ("temperature_c", 2), ("power_w", 4), ("power_limit_w", 5), ("memory_used_mib", 6), ("memory_total_mib", 7),
         ("utilisation_percent", 8))  # fmt: skip


def parse(source: str, text: str) -> Facts | None:
    """Facts of every row pair, or None without one."""
    if "|" not in text:
        return None
    gpus: list[GpuReading] = []
    waiting: GpuReading | None = None
    programs: dict[int, int] = {}
    for line in text.splitlines():
        if len(line) > WIDEST:
            continue
        if found := FIRST.match(line):
            waiting = _first(source, found)
            gpus.append(waiting)
        elif waiting and (found := SECOND.match(line)):
            _second(waiting, found)
            waiting = None
        elif gpus and (found := MIG_ROW.match(line)):
            parent = next((gpu for gpu in gpus if gpu.index == int(found[1])), None)
            if parent is not None:
                parent.values["volatile_uncorrectable"] = (parent.number("volatile_uncorrectable") or 0.0) + float(found[2])
        elif gpus and (found := PROCESS.match(line)):
            programs[int(found[1])] = programs.get(int(found[1]), 0) + 1
        elif waiting and line.startswith("|") and (words := re.findall(r"ERR!|Unknown Err(?:or)?", line)):
            waiting.unreadable |= dict(zip((name for name, _group in CELLS), words, strict=False))
            waiting = None
        elif waiting and DEAD.search(line):
            waiting.values["lost" if "lost" in line.lower() else "reset_required"] = True
    if not gpus:
        return None
    nothing = "No running processes found" in text
    for gpu in gpus:
        if (programs or nothing) and gpu.index is not None:
            gpu.values["programs"] = float(programs.get(gpu.index, 0))
    facts = Facts(gpus=gpus, judged=True)
    if waiting is not None:
        facts.unjudged.append(Unjudged(source, f"the table ends inside {waiting.label}"))
    return facts


def _first(source: str, found: re.Match[str]) -> GpuReading:
    gpu = GpuReading(source, normal_pci(found[4]), int(found[1]), {"name": found[2].strip()})
    if found[3] in ("On", "Off"):
        gpu.values["persistence"] = found[3] == "On"
    ecc = found[6].strip()
    if ecc.isdigit():
        gpu.values["volatile_uncorrectable"] = float(ecc)
    elif ecc not in ("N/A", "Off"):
        _word(gpu, "volatile_uncorrectable", ecc)
    return gpu


def _second(gpu: GpuReading, found: re.Match[str]) -> None:
    for name, group in CELLS:
        cell = (found[group] or "").strip()
        number = re.match(r"\d+(?:\.\d+)?(?=C|W|MiB|%|$)", cell)
        if number:
            gpu.values[name] = float(number[0])
        elif cell and cell != "N/A":
            _word(gpu, name, cell)
    if re.fullmatch(r"P\d+", found[3]):
        gpu.values["pstate"] = found[3]
    else:
        _word(gpu, "pstate", found[3])


def _word(gpu: GpuReading, name: str, cell: str) -> None:
    if "ERR!" in cell or "Unknown" in cell:
        gpu.unreadable[name] = cell.strip("[]")
