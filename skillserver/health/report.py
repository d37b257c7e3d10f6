"""Facts -> findings -> one verdict: the result of `check_gpu_health`.

Incidents of all sources are joined by PCI id, consequences folded under their cause, equals on several GPUs told once,
worst first. `skipped` says what was not judged and why. Knows the shape of the answer; not how facts are read.

>>> judge(Facts()).verdict
'unknown'
"""

from __future__ import annotations

import re

from pydantic import BaseModel, Field

from skillserver import findings as shape
from skillserver.findings import Finding, Verdict
from skillserver.health import checks, confirm, incident, outcomes, peers, rates, texts, xid
from skillserver.health.incident import Incident
from skillserver.health.reading import Facts, GpuReading, Sign

Machine = tuple[str, Facts, list[Incident]]
MOST_FINDINGS = 12
MOST_GPUS = 16
MOST_SKIPPED = 10
SHOWN = (("pstate", "", ""), ("temperature_c", "", " C"), ("power_w", "", " W"), ("utilisation_percent", "util ", "%"),
         ("memory_used_mib", "", " MiB used"), ("volatile_uncorrectable", "ECC ", ""), ("volatile_sram_uncorrectable", "SRAM ", ""),
         ("volatile_dram_uncorrectable", "DRAM ", ""), ("remap_pending", "remap pending ", ""), ("retired_pages", "retired ", ""))  # fmt: skip
NEXT = {
    "critical": "run no new jobs here; do the first action, then capture again (nvidia-smi -q and dmesg) and pass both",
    "warning": "jobs may run; do the actions at the next break, and read the sections named with read_knowledge",
    "ok": "nothing to do; for Xid history pass the kernel log too (dmesg -T or journalctl -k)",
    "unknown": "pass captures=[{name, text}] with the output of nvidia-smi -q, and dmesg -T for Xids",
}


class HealthFinding(Finding):
    """A finding and how to make sure of it."""

    confirm: str = Field("", description="command that would confirm it")


class GpuRow(BaseModel):
    """One GPU and what was read of it."""

    node: str | None = None
    index: int | None = None
    pci: str | None = None
    name: str = ""
    read: str = Field(description="the main values, as read")


class Skipped(BaseModel):
    """What was not judged."""

    source: str
    why: str


class GpuHealth(BaseModel):
    """Result of check_gpu_health."""

    verdict: Verdict = Field(description="ok warning critical unknown")
    summary: str
    findings: list[HealthFinding] = Field(description="worst first, causes before consequences")
    gpus: list[GpuRow]
    skipped: list[Skipped] = Field(description="what was not judged, and why")
    next: str


def judge(facts: Facts, extra: list[Incident] | None = None) -> GpuHealth:
    """The verdict over everything read. `extra` are incidents that a source found itself (a hung driver)."""
    machines = [("", facts, extra or []), *((node, part, []) for node, part in facts.nodes.items())]
    told: list[Incident] = []
    rows: list[GpuRow] = []
    for node, part, own in machines:
        grown = rates.incidents(part.gpus)
        part.gpus = rates.newest(part.gpus)
        told += _told(node, part, [*own, *grown])
        rows += [_row(node, gpu) for gpu in part.gpus]
    findings = [_finding(one) for one in incident.ordered(told)]
    verdict = shape.verdict(findings, judged=any(part.judged for _node, part, _own in machines) or bool(told))
    return GpuHealth(verdict=verdict, summary=_summary(verdict, findings, machines), findings=findings[:MOST_FINDINGS],
                     gpus=rows[:MOST_GPUS], skipped=_skipped(machines, findings, rows), next=NEXT[verdict])  # fmt: skip


def _told(node: str, facts: Facts, own: list[Incident]) -> list[Incident]:
    """The incidents of one machine, joined and folded; the machine's name stands in their subjects."""
    found = [*own, *xid.incidents(facts.events), *_signs(facts.signs), *outcomes.incidents(facts.outcomes)]
    found += [one for gpu in facts.gpus for one in checks.incidents(gpu)]
    found += peers.incidents(facts.gpus)
    told = incident.folded(incident.joined(_placed(found, facts.gpus)))
    for one in told if node else ():
        one.subject = one.subject if f"{one.subject} ".startswith(f"{node} ") else f"{node}: {one.subject}"
    return told


def _finding(one: Incident) -> HealthFinding:
    index = re.match(r"(?:\S+: )?GPU (\d+)\b(?!:)", one.subject)
    command = confirm.command(one.code, one.pci, int(index[1]) if index else None)
    return HealthFinding(**one.finding().model_dump(), confirm=command)


def _signs(signs: list[Sign]) -> list[Incident]:
    """Known sentences; one without a PCI id joins the same sentence that has one."""
    found: dict[tuple[str, str | None], Incident] = {}
    for sign in sorted(signs, key=lambda sign: sign.pci is None):
        row = texts.record(sign.code)
        placed = next((one for (code, pci), one in found.items() if code == sign.code and (sign.pci in (pci, None))), None)
        if placed:
            placed.count += sign.count
            placed.evidence.append(sign.line)
            continue
        times = [f"{sign.count} such lines, folded"] if sign.count > 1 else []
        found[sign.code, sign.pci] = Incident(
            sign.code, row.severity, row.family, f"GPU {sign.pci}" if sign.pci else "the host", row.reason, row.action, row.topic, sign.pci,
            [sign.line, *times], sign.count)  # fmt: skip
    return list(found.values())


def _placed(found: list[Incident], gpus: list[GpuReading]) -> list[Incident]:
    """Give the log's incidents the index and label that a reading of the same PCI id knows."""
    labels = {gpu.pci: gpu.label for gpu in gpus if gpu.pci}
    for one in found:
        if one.pci in labels and one.subject == f"GPU {one.pci}":
            one.subject = labels[one.pci]
    return found


def _row(node: str, gpu: GpuReading) -> GpuRow:
    parts = []
    for name, before, after in SHOWN:
        value = gpu.values.get(name)
        if value is not None:
            shown = ("yes" if value else "no") if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else value
            parts.append(f"{before}{shown}{after}")
    if gpu.flag("lost"):
        parts.insert(0, "lost")
    return GpuRow(node=node or None, index=gpu.index, pci=gpu.pci, name=gpu.name, read=", ".join(parts) or "nothing that says something about health")


def _summary(verdict: Verdict, findings: list[HealthFinding], machines: list[Machine]) -> str:
    gpus, lines = sum(len(facts.gpus) for _node, facts, _own in machines), sum(_xid_lines(facts) for _node, facts, _own in machines)
    unjudged = [one for _node, facts, _own in machines for one in facts.unjudged]
    seen = ", ".join(
        f"{count} {what}{'s' if count > 1 else ''}" for count, what in ((len(machines) - 1, "machine"), (gpus, "GPU"), (lines, "Xid line")) if count
    )
    over = f" ({seen} read)" if seen else ""
    if verdict == "unknown":
        return f"Nothing could be judged{over}: {unjudged[0].what.split(';')[0] if unjudged else 'nothing was given'}."
    if verdict == "ok":
        return f"Everything that could be judged is fine{over}."
    first = findings[0]
    more = sum(finding.severity in ("critical", "warning") for finding in findings) - 1
    return f"{first.subject}: {first.reason.split('. ')[0].rstrip('.')}{f'; and {more} more' if more else ''}{over}."


def _xid_lines(facts: Facts) -> int:
    return sum(event.kind != "load" for event in facts.events)


def _skipped(machines: list[Machine], findings: list[HealthFinding], rows: list[GpuRow]) -> list[Skipped]:
    out = [Skipped(source=one.source, why=one.what) for _node, facts, _own in machines for one in facts.unjudged]
    if len(findings) > MOST_FINDINGS:
        out.append(Skipped(source="result", why=f"{len(findings) - MOST_FINDINGS} more findings of less weight are not shown; pass fewer captures"))
    if len(rows) > MOST_GPUS:
        out.append(Skipped(source="result", why=f"{len(rows) - MOST_GPUS} more GPUs were judged and are not listed"))
    if len(out) > MOST_SKIPPED:
        out = [*out[: MOST_SKIPPED - 1], Skipped(source="result", why=f"{len(out) - MOST_SKIPPED + 1} more notes of this kind")]
    return out
