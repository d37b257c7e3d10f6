"""What torch_bandwidth.py measured -> rows beside what healthy parts reach, one verdict, and the numbers to keep.

The judging of whole parts is node_judged's; here every single rate gets its expected range and its source. A rate is one
direction: both at once may give up to twice, and vendors print the sum. STREAM's way of counting: read and write both,
no write-allocate.

>>> answer({"devices": {"cpu": "AMD EPYC"}, "memory": {...}}, ["memory"], ["cpu"])["rows"][0]["what"]
'triad'
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from skillserver import findings, topics
from skillserver.findings import Finding
from skillserver.measure.history import Metric
from skillserver.procedures import copy_references, judged_runs, kept_runs, node_judged
from skillserver.procedures.copy_references import Reference, part_of
from skillserver.procedures.node_row import Told

Document = dict[str, Any]
TOOL = "run_bandwidth_bench"
COUNTED = "GB/s = 10^9 bytes a second; triad counts 3 arrays and copy 2 a pass (read + write, no write-allocate), as STREAM does"
ONE_WAY = "transfers and peer copies are one direction at a time; both at once may carry up to twice, and vendors print the sum of both"
NO_CPU_RATE = "no reference for a CPU's memory: on paper it is channels x MT/s x 8 bytes (dmidecode -t memory), and STREAM reaches 75 to 90% of it"
SPREAD = "the triad ran over {usable} of {nodes} NUMA nodes, pages beside the threads that first wrote them; one node alone: numactl -N 0 -m 0"
BOUND = "{nodes} NUMA nodes are here and this process may use {usable}: the figure is of that part only"
MEMORY_KINDS, WAYS, HOST_KINDS = ("triad", "copy"), ("to_device", "to_host"), ("pinned", "pageable")


def shaped(parts: list[str], devices: list[str], unmeasured: list[Finding]) -> Callable[[Document], Document]:
    """Payload -> the answer, kept for comparison when it is whole."""

    def shape(payload: Document) -> Document:
        told, metrics = answer(payload, parts, devices, unmeasured)
        kept_runs.keep(TOOL, told, metrics, part=next(iter(payload.get("devices", {}).values()), ""), devices=len(devices))
        return told

    return shape


def answer(payload: Document, parts: list[str], devices: list[str], unmeasured: list[Finding]) -> tuple[Document, dict[str, Metric]]:
    """What run_bandwidth_bench answers, and its numbers by name."""
    judged = node_judged.measured({"parts": {"bandwidth": {"runs": [{"result": payload}]}}, "partial": payload.get("partial")}, parts, devices)
    found = findings.worst_first([*(one for part in judged for one in part.findings), *unmeasured])
    rows, references = _rows(payload)
    metrics = {name: metric for part in judged for name, metric in part.metrics.items()} | _copies(payload)
    told = {
        "rows": judged_runs.rounded(rows),
        "peers": judged_runs.rounded(_matrix(payload.get("peers") or [])),
        "compared_with": [{"what": one.what, "gb_s": one.gb_s, "source": one.source} for one in references],
        "verdict": findings.verdict(found, judged=any(part.row.verdict in ("ok", "warning", "critical") for part in judged)),
        "reason": _reason(judged),
        "findings": [one.model_dump(exclude_defaults=True) for one in found],
        "devices": payload.get("devices", {}),
        "conditions": judged_runs.rounded((payload.get("conditions") or {}) | {"worker": payload.get("worker"), "method": _method(payload)}),
        "assumptions": _assumptions(payload, devices, parts),
        "sections": topics.sections("memory_bandwidth", "duplex"),
        "skipped": [f"{part.row.part}: {part.row.note}" for part in judged if part.row.verdict == "skipped"],
        "partial": bool(payload.get("partial")),
    }
    return told, metrics


def _reason(judged: list[Told]) -> str:
    measured = [part.row for part in judged if part.row.verdict != "skipped"]
    if not measured:
        return "nothing was measured: " + "; ".join(f"{part.row.part}: {part.row.note}" for part in judged)
    told = "; ".join(f"{row.part}: {row.note}" for row in measured if row.note)
    return told or ("no reference is known to compare with" if all(row.verdict == "unknown" for row in measured) else "")


def _rows(payload: Document) -> tuple[list[Document], list[Reference]]:
    """A row for each rate of one device, and the references that they were held against."""
    rows: list[Document] = []
    used: dict[str, Reference] = {}
    for device, one in (payload.get("memory") or {}).items():
        reference = None if one.get("cached") else copy_references.memory(part_of(payload["devices"][device]))
        rows += [_row(name, device, one[name], reference) for name in MEMORY_KINDS if one.get(name)]
        used |= {reference.what: reference} if reference else {}
    for device, one in (payload.get("transfers") or {}).items():
        reference = copy_references.pcie(part_of(payload["devices"][device]))
        names = [(way, kind) for way in WAYS for kind in HOST_KINDS if one.get(f"{way}_{kind}")]
        rows += [_row(f"{way} {kind}", device, one[f"{way}_{kind}"], reference if kind == "pinned" else None) for way, kind in names]
        used |= {reference.what: reference} if reference else {}
    for row in payload.get("peers") or []:
        if row.get("rate") and (reference := copy_references.nvlink(part_of(payload["devices"][row["from"]]), row.get("direct"))):
            used |= {reference.what: reference}
    return rows, list(used.values())


def _row(what: str, device: str, rate: Document, reference: Reference | None) -> Document:
    judged = copy_references.judge(rate["gb_s"], reference)
    told = {"what": what, "device": device, **rate, "verdict": judged.verdict}
    if reference:
        told |= {"expected_low_gb_s": reference.good_gb_s, "paper_gb_s": reference.gb_s, "share": judged.ratio}
    return told


def _matrix(rows: list[Document]) -> Document:
    """GB/s from each accelerator (line) to each other one (column), and the pairs that go through the host."""
    names = list(dict.fromkeys(row["from"] for row in rows))
    if not names:
        return {}
    known = {(row["from"], row["to"]): (row.get("rate") or {}).get("gb_s") for row in rows}
    through_host = [f"{row['from']}>{row['to']}" for row in rows if row.get("direct") is False]
    return {"devices": names, "gb_s": [[known.get((one, other)) for other in names] for one in names], "through_host": through_host}


def _copies(payload: Document) -> dict[str, Metric]:
    """Copies inside a device's memory, which the acceptance test of a node does not keep."""
    return {f"memory copy {device}": Metric(value=one["copy"]["gb_s"], unit="GB/s")
            for device, one in (payload.get("memory") or {}).items() if one.get("copy")}  # fmt: skip


def _method(payload: Document) -> Document:
    sizes = {one["array_bytes"] for one in (payload.get("memory") or {}).values()}
    return {"array_bytes": max(sizes, default=None), "copy_bytes": payload.get("copy_bytes"), "rate": "bytes / median time", "units": COUNTED}


def _assumptions(payload: Document, devices: list[str], parts: list[str]) -> list[str]:
    told = [ONE_WAY] if payload.get("transfers") or payload.get("peers") else []
    if devices != ["cpu"]:
        return [*told, judged_runs.UNTESTED.format(payload.get("backend", "these"))]
    numa = (payload.get("conditions") or {}).get("numa") or {}
    if numa.get("nodes", 0) > 1:
        told.append((SPREAD if numa["usable"] == numa["nodes"] else BOUND).format(**numa))
    if any(one.get("cached") for one in (payload.get("memory") or {}).values()):
        told.append("memory was too full for arrays four times the last cache: the triad may be of the cache")
    return [*told, *([NO_CPU_RATE] if "memory" in parts else [])]
