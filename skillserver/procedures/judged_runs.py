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
ENOUGH_TRIALS = 40  # on the model of a GPU: within 1% of the best where compute units are known (20 do), within 3% elsewhere
UNTESTED = "this code path for {0} devices is untested: it was written without such a device"


def matmul(payload: Document) -> Document:
    """What run_mamf answers; `payload` is the worker's, perhaps cut short."""
    best, conditions = payload.get("best") or {}, payload.get("conditions") or {}
    dtype, on_cpu = payload.get("dtype", ""), payload.get("backend", payload.get("device")) == "cpu"
    peak, peak_from, part = peak_of(payload)
    other = published.published(part, dtype) if part else None
    judged = judge.matmul(best["tflops"], peak_tflops=peak, published_tflops=other.tflops if other else None)
    found = _measured_findings(payload, conditions, on_cpu)
    judged = _not_the_best(judge.excused(judged, found), payload)
    if judged.verdict == "warning":
        found.append(off("matmul", judged))
    return {
        "best": rounded({name: best.get(name) for name in ("m", "n", "k", "tflops", "ci_low", "ci_high")}),
        "trials": payload.get("trials"),
        "peak_tflops": digits(peak),
        "peak_from": peak_from,
        "share_of_peak": digits(best["tflops"] / peak) if peak else None,
        "published_tflops": other.tflops if other else None,
        "verdict": "unknown" if payload.get("partial") and not found else findings.verdict(found, judged=judged.verdict != "unknown"),
        "reason": in_words(judged, found),
        "findings": [finding.model_dump(exclude_defaults=True) for finding in findings.worst_first(found)],
        **{name: payload.get(name, "") for name in ("device", "device_name", "dtype")},
        "runners_up": [rounded(row) for row in payload.get("runners_up", [])],
        "conditions": rounded(conditions | {"worker": payload.get("worker"), "method": payload.get("method")}),
        "assumptions": _assumptions(payload, on_cpu) + ([f"published with {other.software}, at {other.shape}"] if other else []),
        "sections": topics.sections("mamf"),
        "skipped": _skipped(payload),
        "partial": bool(payload.get("partial")),
    }


def _not_the_best(judged: judge.Judgement, payload: Document) -> judge.Judgement:
    """A low speed says nothing of the device when its fastest shape was not looked for to the end."""
    if judged.verdict != "warning" or judged.ratio is None or judged.ratio >= 1:
        return judged
    if payload.get("wanted"):
        why = "the shapes were chosen by the caller, and the fastest need not be among them"
    elif payload.get("ended_by") == "time" and payload.get("trials", 0) < ENOUGH_TRIALS:
        why = f"the time ended the search after {payload.get('trials')} trials"
    else:
        return judged
    return judge.Judgement(verdict="unknown", reason=f"{judged.reason.split(':')[0].split(' is less than')[0]}, but {why}", ratio=judged.ratio)


def peak_of(payload: Document) -> tuple[float | None, str, str]:
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
        found += judge.repeatable(payload.get("first_look"), best["tflops"], "TFLOPS")
    if payload.get("correct") is False:
        check = payload.get("check", {})
        found.append(
            judge.wrong_result(payload.get("device_name", ""), [f"error {check.get('largest_error')} where {check.get('allowed')} is allowed"])
        )
    return found


def off(what: str, judged: judge.Judgement) -> Finding:
    """The finding of a number that does not fit its reference."""
    return Finding(code=f"{what}_off", severity="warning", subject=what, evidence=[judged.reason],
                   reason="The number does not fit what is known of this part.",
                   action="observe: call check_gpu_health, then measure again on an idle device", sections=topics.sections("mamf"))  # fmt: skip


def in_words(judged: judge.Judgement, found: list[Finding]) -> str:
    """What the verdict rests on: the comparison, then whatever was found beside it."""
    return "; ".join([judged.reason, *(finding.evidence[0] for finding in findings.worst_first(found) if finding.evidence[0] != judged.reason)])


def _assumptions(payload: Document, on_cpu: bool) -> list[str]:
    told = []
    if not on_cpu:
        told.append(UNTESTED.format(payload.get("backend", "these")))
        if (payload.get("method") or {}).get("warm_up_s", 0) < SHORT_WARM_UP_S:
            told.append("the warm-up was shorter than a GPU needs to reach its steady clock; for a number to publish pass budget_s=240")
    software = (payload.get("conditions") or {}).get("software") or {}
    if payload.get("backend") == "rocm" and software.get("tunableop") == "off":
        told.append("TunableOp was off, and AMD parts need it for their best: set PYTORCH_TUNABLEOP_ENABLED=1 and measure again")
    if payload.get("layout", "NT") != "NT":
        told.append(f"layout {payload['layout']}; published figures are of NT")
    if any(row["tflops"] > payload["best"]["tflops"] for row in payload.get("runners_up", [])):
        told.append("best.tflops is the winner measured again alone, which corrects for luck; runners_up are from the rounds before")
    if payload.get("dtype") == "int8":
        return [*told, "int8: tflops and peak_tflops are TOPS, 10^12 operations a second"]
    return [*told, "random normal data: other data draw other power and move the clock"]


def _skipped(payload: Document) -> list[str]:
    told = ["the run was ended early: `best` may be a first look that was not measured again"] if payload.get("partial") else []
    wanted, tried = payload.get("wanted") or 0, payload.get("trials") or 0
    if wanted > tried:
        told.append(f"{wanted - tried:,} of {wanted:,} shapes, for which there was no time; those timed were chosen at random")
    elif payload.get("ended_by") == "time":
        told.append("the time ended the search before it settled; a longer budget_s may find a faster shape")
    space = payload.get("space")
    return told + ([f"shapes outside m, n {space['low']} to {space['high']} and k {space['ks'][0]} to {space['ks'][-1]}"] if space else [])


def digits(value: float | None) -> float | None:
    """Four digits: more would be noise that somebody pays for."""
    return None if value is None else float(f"{value:.4g}")


def rounded(value: Any) -> Any:
    """Floats to four digits, everywhere inside."""
    if isinstance(value, float):
        return digits(value)
    if isinstance(value, dict):
        return {name: rounded(item) for name, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, list) else value
