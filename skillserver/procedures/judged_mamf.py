"""What run_mamf answers, whichever way it measured: one device, several beside each other, or the matmuls of a model.

Of several devices the answer is that of the middle one, with a row for each and a finding for whoever stands out: farther
from the median than 3.5 robust deviations (median absolute deviation) and than 5% of it, from four devices on. Joins
judged_runs, judged_products, measure.history (one rule for odd ones) and measure.trials_plot.

>>> answer(payload, build(Asked(device="all")))["devices"][1]
{'device': 'cuda:1', 'tflops': 701.2, 'off_median': -0.11, ...}
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from skillserver import findings, topics
from skillserver.errors import WorkerFailed
from skillserver.findings import Finding
from skillserver.measure import history, trials_plot
from skillserver.measure.history import Metric
from skillserver.procedures import judged_products, judged_runs, kept_runs
from skillserver.procedures.judged_runs import rounded
from skillserver.procedures.mamf_request import Request

Document = dict[str, Any]
RULE = "odd: farther from the median than 3.5 robust deviations (1.4826 MAD) and than 5% of it"
LOOK = "observe: call check_gpu_health, compare power limit, clocks and temperature with the others, then measure again"


def answer(payload: Document, request: Request, plot: str = "") -> Document:
    """The answer of one payload, plotted when asked ("text" or a new .png file) and kept for `skillserver compare`."""
    if payload.get("products"):
        told = judged_products.answer(payload, request.foreseen, request.advice)
    else:
        told = several(payload) if "runs" in payload else judged_runs.matmul(payload)
    if plot:
        told["plot"] = _plotted(payload, plot)
    kept_runs.keep("run_mamf", told, _metrics(payload), part=told["device_name"], devices=len(payload.get("runs", [])) or 1)
    return told


def _metrics(payload: Document) -> dict[str, Metric]:
    """The number of a search, by dtype, layout and device; the best of a caller's own shapes compares with nothing."""
    runs = payload.get("runs") or [payload]
    if any(run.get("wanted") or "best" not in run for run in runs):
        return {}
    return {f"matmul {run['dtype']} {run.get('layout', 'NT')} {run['device']}": Metric(value=run["best"]["tflops"], unit="TFLOPS") for run in runs}


def _plotted(payload: Document, plot: str) -> str:
    runs = payload.get("runs") or [payload]
    trace = [value for run in runs for value in run.get("trace") or []]
    if not trace:
        return "the matmuls of a model are no search: there is nothing to plot"
    title = f"{runs[0].get('dtype')} on {', '.join(str(run.get('device')) for run in runs)}"
    try:
        return "\n" + trials_plot.draw(trace, title) if plot == "text" else trials_plot.write(Path(plot), trace, title)
    except WorkerFailed as refused:
        return str(refused)  # the measurement stands without its picture


def several(payload: Document) -> Document:
    """Devices side by side; a device without a result is a finding."""
    answers = [judged_runs.matmul(run | {"worker": payload.get("worker")}) for run in payload["runs"]]
    speeds = {one["device"]: one["best"]["tflops"] for one in answers}
    middle = statistics.median_low(speeds.values())
    told = dict(next(one for one in answers if one["best"]["tflops"] == middle))
    odd = history.odd(speeds)
    found = [*_failed(payload["failed"]), *_odd(speeds, odd), *_disagreeing(speeds), *_of_each(answers)]
    judged = any(one["verdict"] != "unknown" for one in answers)
    return told | {
        "devices": [_row(run, one, middle, odd) for run, one in zip(payload["runs"], answers, strict=True)],
        "verdict": findings.verdict(found, judged=judged or len(speeds) >= history.FEWEST),
        "reason": _reason(speeds, odd, told["reason"]),
        "findings": [finding.model_dump(exclude_defaults=True) for finding in findings.worst_first(found)],
        "assumptions": [*told["assumptions"], f"best is that of {told['device']}, the middle one; each device at its own best shape; {RULE}",
                        "measured in turn, each alone on the node" if payload.get("in_turn") else "measured at once: power and cooling are shared"],
        "partial": bool(payload.get("partial")),
    }  # fmt: skip


def _row(run: Document, one: Document, middle: float, odd: dict[str, float]) -> Document:
    gpu = (run.get("conditions") or {}).get("gpu") or {}
    told = {"device": one["device"], "tflops": one["best"]["tflops"], "off_median": rounded(one["best"]["tflops"] / middle - 1),
            "ci_low": one["best"]["ci_low"], "ci_high": one["best"]["ci_high"], "shape": [one["best"][side] for side in "mnk"],
            "sm_clock_mhz": gpu.get("sm_clock_mhz"), "power_w": gpu.get("power_w"), "throttle_reasons": gpu.get("throttle_reasons"),
            "uuid": run.get("uuid"), "verdict": one["verdict"], "odd": one["device"] in odd}  # fmt: skip
    return {name: value for name, value in told.items() if value not in (None, "", [])}


def _odd(speeds: dict[str, float], odd: dict[str, float]) -> list[Finding]:
    middle = statistics.median(speeds.values())
    return [Finding(code="slow_device" if share < 0 else "fast_device", severity="warning" if share < 0 else "info", subject=device,
                    evidence=[f"{speeds[device]:.4g} TFLOPS, {share:+.0%} of the median {middle:.4g} of {len(speeds)} devices"],
                    reason="Every synchronous job waits for the slowest device." if share < 0 else
                    "It is faster than its equals: another power limit or part?",
                    action=LOOK, sections=topics.sections("mamf", "gpu_throttling")) for device, share in odd.items()]  # fmt: skip


def _disagreeing(speeds: dict[str, float]) -> list[Finding]:
    """Two or three devices: one may be off, and nothing says which."""
    low, high = min(speeds.values()), max(speeds.values())
    if not 1 < len(speeds) < history.FEWEST or (high - low) / statistics.median(speeds.values()) <= history.DISAGREE:
        return []
    seen = ", ".join(f"{device} {value:.4g}" for device, value in speeds.items())
    return [Finding(code="devices_disagree", severity="warning", subject=f"{len(speeds)} devices", evidence=[f"TFLOPS: {seen}"],
                    reason=f"They differ by more than {history.DISAGREE:.0%}; with fewer than {history.FEWEST} nothing says which one is off.",
                    action=LOOK, sections=topics.sections("mamf", "gpu_throttling"))]  # fmt: skip


def _failed(failed: list[Document]) -> list[Finding]:
    return [Finding(code="device_failed", severity="critical", subject=one["device"], evidence=[f"{one['code']}: {one['message']}"[:300]],
                    reason="It gave no result where others did; jobs that use it will fail too.",
                    action="observe: call check_gpu_health; take the node out of use while it fails",
                    sections=topics.sections("gpu_throttling")) for one in failed]  # fmt: skip


def _of_each(answers: list[Document]) -> list[Finding]:
    """The findings of every device, those of one kind folded into one with all devices named."""
    folded: dict[str, Finding] = {}
    for one in answers:
        for finding in map(Finding.model_validate, one["findings"]):
            if (before := folded.get(finding.code)) is None:
                folded[finding.code] = finding.model_copy(update={"subject": one["device"]})
            else:
                folded[finding.code] = before.model_copy(update={"subject": f"{before.subject}, {one['device']}", "count": before.count + 1})
    return list(folded.values())


def _reason(speeds: dict[str, float], odd: dict[str, float], middle_one: str) -> str:
    spread = (max(speeds.values()) - min(speeds.values())) / statistics.median(speeds.values())
    named = f"odd: {', '.join(odd)}" if odd else "none stands out" if len(speeds) >= history.FEWEST else "too few to name an odd one"
    return f"{len(speeds)} devices within {spread:.1%} of the median, {named}; {middle_one}"
