"""A worker's payload joined with what it should be compared with: the same facts, plus peak, share, verdict, findings.

Joins hardware.catalogue, measure.published and measure.judge. Results are plain dictionaries, because jobs keep them as
JSON. Numbers are rounded to four digits here: more would be noise that somebody pays for.

>>> matmul({"best": {...}, "device_name": "NVIDIA H200", "dtype": "bf16", "conditions": {...}})["share_of_peak"]
0.812
"""

from __future__ import annotations

from typing import Any

from skillserver import findings, topics
from skillserver.errors import BadRequest
from skillserver.findings import Finding
from skillserver.hardware import catalogue
from skillserver.measure import judge, published

Document = dict[str, Any]
SHORT_WARM_UP_S = 20.0
UNTESTED = "this code path for {0} devices is untested: it was written without such a device"


def matmul(payload: Document) -> Document:
    """What run_mamf answers; `payload` is the worker's, perhaps cut short."""
    best, conditions = payload.get("best") or {}, payload.get("conditions") or {}
    dtype, on_cpu = payload.get("dtype", ""), payload.get("backend", payload.get("device")) == "cpu"
    peak, peak_from, part = _peak(payload)
    other = published.published(part, dtype) if part else None
    judged = judge.matmul(best["tflops"], peak_tflops=peak, published_tflops=other.tflops if other else None)
    found = _measured_findings(payload, conditions, on_cpu)
    judged = judge.excused(judged, found)
    if judged.verdict == "warning":
        found.append(_off("matmul", judged))
    return {
        "best": _rounded({name: best.get(name) for name in ("m", "n", "k", "tflops", "ci_low", "ci_high")}),
        "trials": payload.get("trials"),
        "peak_tflops": _digits(peak),
        "peak_from": peak_from,
        "share_of_peak": _digits(best["tflops"] / peak) if peak else None,
        "published_tflops": other.tflops if other else None,
        "verdict": "unknown" if payload.get("partial") and not found else findings.verdict(found, judged=judged.verdict != "unknown"),
        "reason": _reason(judged, found),
        "findings": [finding.model_dump(exclude_defaults=True) for finding in findings.worst_first(found)],
        **{name: payload.get(name, "") for name in ("device", "device_name", "dtype")},
        "runners_up": [_rounded(row) for row in payload.get("runners_up", [])],
        "conditions": _rounded(conditions | {"worker": payload.get("worker"), "method": payload.get("method")}),
        "assumptions": _assumptions(payload, on_cpu) + ([f"published with {other.software}, at {other.shape}"] if other else []),
        "sections": topics.sections("mamf"),
        "skipped": _skipped(payload),
        "partial": bool(payload.get("partial")),
    }


def _peak(payload: Document) -> tuple[float | None, str, str]:
    """(peak TFLOPS or None, where it is from or why there is none, canonical id of the part or "")."""
    own = payload.get("peak")
    if own:
        return own.get("tflops"), own.get("from") or own.get("reason", ""), ""
    name, dtype = payload.get("device_name", ""), payload.get("dtype", "")
    if payload.get("backend") in ("cpu", None):
        return None, "the run ended before the peak was looked at", ""
    try:
        part = catalogue.accelerator(name)
        peak = catalogue.peak_tflops(part, dtype)
    except BadRequest as unknown:
        return None, f"{unknown.message} The share of the peak is therefore not known.", ""
    return peak, f"catalogue: {part.id}, dense {dtype}" if peak else f"no source gives a dense {dtype} peak of {part.id}", part.id


def _measured_findings(payload: Document, conditions: Document, on_cpu: bool) -> list[Finding]:
    best = payload["best"]
    found = judge.circumstances(conditions, on_cpu=on_cpu)
    if best.get("rounds", 0) > 1:
        found += judge.steadiness(best["tflops"], best["ci_low"], best["ci_high"], "TFLOPS")
    if payload.get("correct") is False:
        check = payload.get("check", {})
        found.append(
            judge.wrong_result(payload.get("device_name", ""), [f"error {check.get('largest_error')} where {check.get('allowed')} is allowed"])
        )
    return found


def _off(what: str, judged: judge.Judgement) -> Finding:
    return Finding(code=f"{what}_off", severity="warning", subject=what, evidence=[judged.reason],
                   reason="The number does not fit what is known of this part.",
                   action="observe: call check_gpu_health, then measure again on an idle device", sections=topics.sections("mamf"))  # fmt: skip


def _reason(judged: judge.Judgement, found: list[Finding]) -> str:
    """What the verdict rests on: the comparison, then whatever was found beside it."""
    return "; ".join([judged.reason, *(finding.evidence[0] for finding in findings.worst_first(found) if finding.evidence[0] != judged.reason)])


def _assumptions(payload: Document, on_cpu: bool) -> list[str]:
    told = []
    if not on_cpu:
        told.append(UNTESTED.format(payload.get("backend", "these")))
        if (payload.get("method") or {}).get("warm_up_s", 0) < SHORT_WARM_UP_S:
            told.append("the warm-up was shorter than a GPU needs to reach its steady clock; for a number to publish pass budget_s=240")
    if any(row["tflops"] > payload["best"]["tflops"] for row in payload.get("runners_up", [])):
        told.append("best.tflops is the winner measured again alone, which corrects for luck; runners_up are from the rounds before")
    return [*told, "random normal data: other data draw other power and move the clock"]


def _skipped(payload: Document) -> list[str]:
    told = ["the run was ended early: `best` may be a first look that was not measured again"] if payload.get("partial") else []
    if payload.get("ended_by") == "time":
        told.append("the time ended the search before it settled; a longer budget_s may find a faster shape")
    space = payload.get("space")
    return told + ([f"shapes outside m, n {space['low']} to {space['high']} and k {space['ks'][0]} to {space['ks'][-1]}"] if space else [])


def collective(payload: Document) -> Document:
    """What run_all_reduce_bench answers; judged at the largest size that was measured."""
    rows, conditions = payload.get("rows") or [], payload.get("conditions") or {}
    on_cpu = payload.get("device_backend", "cpu") == "cpu"
    judged, compared = _judged_busbw(payload, rows)
    found = judge.circumstances(conditions, on_cpu=on_cpu) if rows else []  # what disturbed no measurement is no finding
    found += [judge.wrong_result(f"{row['bytes']} bytes", ["a sum or a block differs from what it must be"]) for row in rows if not row["correct"]]
    judged = judge.excused(judged, found)
    if judged.verdict == "warning":
        found.append(_off("busbw", judged))
    slow = sorted({row["slowest_rank"] for row in rows if row["slowest_rank"] is not None})
    return {
        "rows": [_rounded({name: value for name, value in row.items() if value is not None}) for row in rows],
        "verdict": findings.verdict(found, judged=judged.verdict != "unknown"),
        "reason": _reason(judged, found),
        "compared_with": compared,
        "slowest_rank": slow[0] if len(slow) == 1 else None,
        "findings": [finding.model_dump(exclude_defaults=True) for finding in findings.worst_first(found)],
        **{name: payload.get(name) for name in ("collective", "dtype", "nproc", "backend", "device_name", "busbw_factor")},
        "conditions": _rounded(conditions | {"worker": payload.get("worker"), "method": payload.get("method")}),
        "assumptions": [] if on_cpu else [UNTESTED.format(payload.get("device_backend"))],
        "sections": topics.sections("busbw"),
        "skipped": [*payload.get("skipped", []), "a rank that waits for a slow link ends with it, so no named rank does not clear every link"],
        "partial": bool(payload.get("partial")),
    }


def _judged_busbw(payload: Document, rows: list[Document]) -> tuple[judge.Judgement, str]:
    if not rows:
        return judge.Judgement(verdict="unknown", reason="nothing was measured"), ""
    largest = max(rows, key=lambda row: row["bytes"])
    expected = _expected(payload)
    low, high = (expected.low_gb_s, expected.high_gb_s) if expected else (None, None)
    told = f"{expected.conditions}. {expected.note}".strip(". ") if expected else ""
    return judge.busbw(largest["busbw_gb_s"], largest["bytes"], low_gb_s=low, high_gb_s=high), told


def _expected(payload: Document) -> catalogue.ExpectedBusbw | None:
    """The range of healthy nodes, for ranks of one host on one GPU each."""
    if payload.get("device_backend") == "cpu" or (payload.get("conditions") or {}).get("hosts", 1) != 1:
        return None
    try:
        part = catalogue.accelerator(payload.get("device_name", ""))
    except BadRequest:
        return None
    return catalogue.expected_busbw(part.id, payload.get("nproc", 0), payload.get("collective", ""))


def _digits(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


def _rounded(value: Any) -> Any:
    """Floats to four digits, everywhere inside."""
    if isinstance(value, float):
        return _digits(value)
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list) else value
