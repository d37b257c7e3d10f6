"""A pasted measurement -> rows, one verdict, what it was compared with, and the usual mistakes that it invites.

The parsers (measure.outputs) say what the text holds, measured_setting where it was measured, judged_* whether it is
good; here they meet. What nothing is known of is unknown with the reason, never ok.

>>> judge_text("8xA100 nccl busbw 180", Hints()).verdict
'warning'
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from pydantic import BaseModel, Field

from skillserver import findings, topics
from skillserver.errors import BadRequest
from skillserver.findings import Finding, Verdict
from skillserver.measure.outputs import families, sentence
from skillserver.measure.outputs.records import Mistake, Output
from skillserver.procedures import judged_collectives, judged_devices, judged_links, judged_storage
from skillserver.procedures.judged import ComparedWith, Judged, unknown
from skillserver.procedures.measured_setting import Hints, Setting, resolve

SHOWN_ROWS = 12
DIAGNOSTIC = re.compile(r"Successfully ran diagnostic|\|\s*Diagnostic\s*\|\s*Result|DCGM Diagnostic", re.I)
Judge = Callable[[Output, Setting], Judged]
BY_KIND: dict[str, Judge] = {
    "nccl-tests": judged_collectives.judge, "all_reduce_bench": judged_collectives.judge,
    "deepspeed communication benchmark": judged_collectives.judge, "mamf-finder": judged_devices.matmul,
    "dcgmproftester": judged_devices.matmul, "nvbandwidth": judged_links.copies, "p2pBandwidthLatencyTest": judged_links.copies,
    "dcgmi diag": judged_links.copies,
    "gpu-burn": judged_devices.stress, "gpu-fryer": judged_devices.stress, "fio": judged_storage.judge, "perftest": judged_links.port,
    "iperf3": judged_links.tcp, "STREAM": judged_devices.memory, "BabelStream": judged_devices.memory,
}  # fmt: skip
BY_TOPIC: dict[str, Judge] = {
    "collective": judged_collectives.judge, "matmul": judged_devices.matmul, "training": judged_devices.training, "storage": judged_storage.judge,
    "network": judged_links.port, "tcp": judged_links.tcp, "peer": judged_links.sentence_copy, "host": judged_links.sentence_copy,
    "memory": judged_devices.memory,
}  # fmt: skip


class JudgedMeasurement(BaseModel):
    """A measurement of somebody else's, judged."""

    kind: str = Field(description="program that printed it, or sentence")
    verdict: Verdict
    reason: str = Field(description="what the verdict rests on")
    judged: dict[str, Any] = Field(default_factory=dict, description="the row that decided")
    share: float | None = Field(default=None, description="judged over reference, where that is one number")
    compared_with: ComparedWith | None = Field(default=None, description="value, unit, range, basis, source; null when nothing is known")
    mistakes: list[Mistake] = Field(default_factory=list, description="usual misreadings, made or possible")
    findings: list[Finding] = Field(default_factory=list)
    rows: list[dict[str, Any]] = Field(default_factory=list)
    setting: dict[str, Any] = Field(default_factory=dict, description="part, GPUs, nodes, link as understood")
    assumptions: list[str] = Field(default_factory=list)
    skipped: list[str] = Field(default_factory=list, description="what was not judged")
    sections: list[str] = Field(default_factory=list)
    next: str = ""


def judge_text(text: str, hints: Hints, *, all_rows: bool = False) -> JudgedMeasurement:
    """Judge everything a text holds; several benchmarks give the worst verdict. Raises BadRequest when it holds none."""
    text = sentence.western(text)
    outputs = families.read(text)
    if not outputs and DIAGNOSTIC.search(text):
        raise BadRequest("not_a_measurement", "this is the pass and fail table of dcgmi diag", next="check_gpu_health(captures=[{name, text}])")
    if not outputs:
        raise BadRequest("no_measurement", "no measurement was recognised in the text", next=f"paste the output of {families.READS}")
    results = [_one(output, text, hints, all_rows) for output in outputs]
    order = ["critical", "warning", "ok", "unknown"]
    worst = min(results, key=lambda result: order.index(result.verdict))
    if len(results) == 1:
        return worst
    return worst.model_copy(update=_joined(results, worst))


def _joined(results: list[JudgedMeasurement], worst: JudgedMeasurement) -> dict[str, Any]:
    others = [f"{result.kind} {result.judged.get('what', '')}: {result.verdict}, {result.reason}" for result in results if result is not worst]
    mistakes = {(slip.code, slip.what): slip for result in results for slip in result.mistakes}
    return {
        "kind": " + ".join(dict.fromkeys(result.kind for result in results)),
        "mistakes": list(mistakes.values()),
        "findings": findings.worst_first(finding for result in results for finding in result.findings),
        "rows": [row for result in results for row in result.rows],
        "assumptions": list(dict.fromkeys(told for result in results for told in result.assumptions)),
        "skipped": list(dict.fromkeys([*(told for result in results for told in result.skipped), *others])),
        "sections": list(dict.fromkeys(section for result in results for section in result.sections)),
    }


def _one(output: Output, text: str, hints: Hints, all_rows: bool) -> JudgedMeasurement:
    setting = resolve(output, text, hints)
    output.facts["is_best"] = "mamf" in text.lower()
    judged = _judge_of(output)(output, setting)
    found = findings.worst_first([*output.alarms, *judged.findings])
    verdict = _verdict(judged, found)
    slips = [*setting.slips, *output.slips, *judged.mistakes]
    if output.kind == "sentence":
        slips += judged_devices.stated_figures(text, setting.parts, output)
    rows, left = _rows(output, judged, all_rows)
    ratio = judged.judgement.ratio
    return JudgedMeasurement(
        kind=output.kind, verdict=verdict, reason=_reason(judged, found), judged=judged.row.shown() if judged.row else {},
        share=float(f"{ratio:.4g}") if ratio else None, compared_with=judged.compared, mistakes=list({slip.what: slip for slip in slips}.values()),
        findings=found, rows=rows, setting=setting.shown(), assumptions=[*setting.assumed, *judged.assumed],
        skipped=[*output.skipped, *judged.skipped, *left], sections=_sections(judged.topics), next=_next(judged, verdict, output),
    )  # fmt: skip


def _judge_of(output: Output) -> Judge:
    if output.kind == "sentence":
        return BY_TOPIC.get(output.facts["topic"], _nothing_known)
    if output.kind == "OSU micro-benchmarks":
        return _osu
    return BY_KIND[output.kind]


def _nothing_known(output: Output, setting: Setting) -> Judged:
    return unknown("what was measured is not said: name the benchmark, the collective or the link", row=output.rows[0])


def _osu(output: Output, setting: Setting) -> Judged:
    """MPI figures: bandwidth against a named port, collectives without a verdict, because MPI libraries are not NCCL."""
    if output.facts["measures"] == "bandwidth":
        return judged_links.port(output, setting)
    if output.facts["measures"] == "collective":
        judged = judged_collectives.judge(output, setting)
        reason = "an MPI collective: no reference of this library is known" + (
            f"; held against NCCL: {judged.judgement.reason}" if judged.compared else ""
        )
        return unknown(reason, row=judged.row, topics=["busbw"], compared=judged.compared)
    return judged_links.port(output, setting)


def _verdict(judged: Judged, found: list[Finding]) -> Verdict:
    """The worst of the judgement and the findings; a warning found elsewhere does not hide that the number is unknown."""
    worst = findings.verdict(found, judged=judged.judgement.verdict != "unknown")
    return "warning" if judged.judgement.verdict == "warning" and worst == "ok" else worst


def _reason(judged: Judged, found: list[Finding]) -> str:
    said = [f"{finding.code}: {finding.evidence[0]}" if finding.evidence else finding.code for finding in found if finding.severity != "info"]
    own = judged.judgement.reason
    return "; ".join([own, *(each for each in said if own.split(";")[0] not in each)] if own else said)


def _rows(output: Output, judged: Judged, all_rows: bool) -> tuple[list[dict[str, Any]], list[str]]:
    """The rows for the answer: all when asked or few, else the largest (of a table of sizes) or the first."""
    rows = output.rows
    if all_rows or len(rows) <= SHOWN_ROWS:
        return [row.shown() for row in rows], []
    kept = sorted(rows, key=lambda row: row.bytes or 0)[-SHOWN_ROWS:] if any(row.bytes for row in rows) else rows[:SHOWN_ROWS]
    kept = kept if judged.row is None or judged.row in kept else [*kept[1:], judged.row]
    return [row.shown() for row in kept], [f"{len(rows) - len(kept)} of {len(rows)} rows are not shown (detail=true shows them); all were judged"]


def _sections(names: list[str]) -> list[str]:
    return topics.sections(*names)


def _next(judged: Judged, verdict: Verdict, output: Output) -> str:
    if judged.next:
        return judged.next
    if verdict == "unknown":
        return "pass what is missing (accelerator, n_gpus, n_nodes, link), or paste the whole output"
    if verdict == "ok":
        return "nothing; keep the figure to compare with later"
    return "check_gpu_health on that node, then measure again" if output.kind != "fio" else "read the sections, measure again with direct=1"
