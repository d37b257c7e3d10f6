"""`nvidia-smi nvlink -s` and `-e`, and `dcgmi nvlink -s` and `-e`, as text or JSON -> GPU readings with links and error counters.

Links that the list does not show are unknown, not down: such lists are often cut. In DCGM's rows U is up, D down, X
disabled and _ not there. Does not judge.

>>> parse("paste", "gpuId 0:\\n    U U U D").gpus[0].values["nvlinks_down"]
'3'
"""

from __future__ import annotations

import re
from typing import Any

from skillserver.health import documents
from skillserver.health.reading import Facts, GpuReading

KIND = "nvidia-smi nvlink or dcgmi nvlink (-s, -e)"
GPU = re.compile(r"^GPU (\d+): (.+?) \(UUID: (\S+?)\)")
LINK = re.compile(r"^\s+Link (\d+): (?:([\d.]+) GB/s|(<?inactive>?)|(Replay|Recovery|CRC|CRC FLIT|CRC Data) Errors?: (\d+))", re.I)
NEW_COUNT = re.compile(r"^\s+Link (\d+): (Link recovery failed events|Link recovery successful events|Effective Errors|Symbol Errors|Rx Errors|"
                       r"Rx remote Errors|Rx General Errors|Malformed packet Errors|Buffer overrun Errors|Local link integrity Errors|"
                       r"Tx discards): (\d+)", re.I)  # fmt: skip
NEW_NAMES = {"link recovery failed events": "failed_recoveries", "link recovery successful events": "recoveries",
             "effective errors": "effective_errors",
             "symbol errors": "symbol_errors"}  # fmt: skip
DCGM_ROW = re.compile(r"^\|\s*(?:Link (\d+))?\s*\|\s*((?:CRC FLIT|CRC Data|Replay|Recovery)) Error\s*\|\s*(\d+)", re.I)
DCGM_HEAD = re.compile(r"^\|\s*GPU (\d+)\s*\|")
NONE_UP = re.compile(r"all links are inactive", re.I)
DCGM_GPU = re.compile(r"^\s*gpuId (\d+):\s*$")
DCGM_SWITCH = re.compile(r"^\s*physicalId (\d+):\s*$")
DCGM_LINKS = re.compile(r"^\s+((?:[UDX_]\s+)+[UDX_]|[UDX_])\s*$")
DCGM_COUNTS = "NVLINK Error Counts"


def parse(source: str, text: str) -> Facts | None:
    """Facts of every GPU listed, or None without a list of links."""
    gpus: list[GpuReading] = []
    now: GpuReading | None = None
    for line in text.splitlines() if "Link " in text or "links are" in text or re.search(r"(?:gpu|physical)Id ", text) else []:
        if found := GPU.match(line):
            now = GpuReading(source, None, int(found[1]), {"name": found[2], "uuid": found[3]})
            gpus.append(now)
        elif found := DCGM_GPU.match(line) or (DCGM_HEAD.match(line) if DCGM_COUNTS in text else None):
            now = GpuReading(source, None, int(found[1]))
            gpus.append(now)
        elif found := DCGM_SWITCH.match(line):
            now = GpuReading(source, None, None, {"name": f"NVSwitch {found[1]}", "switch": True})
            gpus.append(now)
        elif now is not None:
            _take(now, line)
    gpus = [gpu for gpu in gpus if any(name.startswith("nvlink") for name in gpu.values)]
    return Facts(gpus=gpus, judged=True) if gpus else None


def _take(gpu: GpuReading, line: str) -> None:
    if NONE_UP.search(line):
        gpu.values |= {"nvlinks_up": 0.0, "nvlinks_all_inactive": True}
    elif found := DCGM_LINKS.match(line):
        links = found[1].split()
        gpu.values["nvlinks_up"] = float(links.count("U"))
        gpu.values["nvlinks_down"] = ", ".join(str(number) for number, state in enumerate(links) if state == "D")
    elif found := DCGM_ROW.match(line):
        _count(gpu, found[2], float(found[3]))
    elif found := NEW_COUNT.match(line):
        name = f"nvlink_{NEW_NAMES.get(found[2].lower(), 'packet_errors')}"
        gpu.values[name] = (gpu.number(name) or 0.0) + float(found[3])
    elif found := LINK.match(line):
        if found[4]:
            _count(gpu, found[4], float(found[5]))
        elif found[2]:
            gpu.values["nvlinks_up"] = (gpu.number("nvlinks_up") or 0.0) + 1
        else:
            gpu.values["nvlinks_down"] = ", ".join(part for part in (gpu.text("nvlinks_down"), found[1]) if part)


def _count(gpu: GpuReading, kind: str, value: float) -> None:
    name = f"nvlink_{kind.split()[0].lower()}_errors"
    gpu.values[name] = (gpu.number(name) or 0.0) + value


def parse_json(source: str, text: str) -> Facts | None:
    """The same of `dcgmi nvlink -e -j`."""
    if DCGM_COUNTS not in text:
        return None
    gpus = [gpu for one in documents.found(text) if isinstance(one, dict) and (gpu := _document(source, one))]
    return Facts(gpus=gpus, judged=True) if gpus else None


def _document(source: str, document: dict[str, Any]) -> GpuReading | None:
    try:
        body, header = document["body"], document.get("header", [])
        gpu = GpuReading(source, None, next((int(found[1]) for word in header if (found := re.match(r"GPU (\d+)$", str(word)))), None))
        for link in body.values():
            for kind, cell in link["children"].items():
                _count(gpu, kind, float(cell["value"]))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return gpu if any(name.startswith("nvlink") for name in gpu.values) else None
