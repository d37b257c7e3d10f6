"""What the collective workers measured, joined with what healthy nodes show: the answers of run_all_reduce_bench.

Joins hardware.catalogue with measure.judge (one rule for our runs and for others' outputs), measure.alpha_beta,
measure.pair_matrix and measure.curve_plot. Results are plain dictionaries, because jobs keep them as JSON.

>>> collective({"collective": "all_reduce", "rows": [...], "nproc": 8, "device_name": "NVIDIA H200", ...})["verdict"]
'ok'
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from skillserver import findings, topics
from skillserver.errors import BadRequest
from skillserver.findings import Finding
from skillserver.hardware import catalogue
from skillserver.hardware.catalogue import Accelerator, ExpectedBusbw
from skillserver.measure import alpha_beta, curve_plot, judge, pair_matrix
from skillserver.measure.history import Metric
from skillserver.procedures import kept_runs
from skillserver.procedures.judged_runs import UNTESTED, in_words, off, rounded

Document = dict[str, Any]
DRIFTS = 0.10
STALLING = 0.05  # of the iterations
UNSTEADY_PASSES = 0.15
SHOWN_PLAYERS = 12
NAMES = ("collective", "dtype", "nproc", "backend", "device_name", "busbw_factor", "queued")
SLOW_WITH_ALL = "observe: call check_gpu_health there, look at its NICs (rate, errors, PCIe width) and its GPU clocks, then measure the pairs again"
SLOW_PAIR = "observe: look at cable, switch port and route between the two (both are fast with others), then measure the pairs again"


def answer(payload: Document, plot: str = "") -> Document:
    """What the tool answers, plotted when asked ("text" or a new .png file) and kept for `skillserver compare`."""
    if "players" in payload:
        return pairs(payload, plot)
    told, rows = collective(payload), payload.get("rows") or []
    if plot:
        title = f"{payload.get('collective')} over {payload.get('nproc')} ranks, {payload.get('backend')}"
        told["plot"] = "\n" + curve_plot.curve(rows, title) if plot == "text" else curve_plot.write(Path(plot), rows, title)
    if rows:
        kept_runs.keep("run_all_reduce_bench", told, _metrics(payload, rows), part=payload.get("device_name") or "", devices=payload["nproc"])
    return told


def collective(payload: Document) -> Document:
    """The table of one collective; judged at the largest size that was measured."""
    rows, conditions = payload.get("rows") or [], payload.get("conditions") or {}
    on_cpu = payload.get("device_backend", "cpu") == "cpu"
    part = None if on_cpu else _part(payload)
    judged, compared = _judged_busbw(payload, rows, part)
    found = judge.circumstances(conditions, on_cpu=on_cpu) if rows else []  # what disturbed no measurement is no finding
    found += [judge.wrong_result(f"{row['bytes']} bytes", ["a sum or a block differs from what it must be"]) for row in rows if not row["correct"]]
    judged = judge.excused(judged, found)
    if judged.verdict == "warning":
        found.append(off("busbw", judged))
    found += _unstable(rows)
    slow = sorted({row["slowest_rank"] for row in rows if row["slowest_rank"] is not None})
    line = alpha_beta.fit([(row["bytes"], row["time_us"] / 1e6) for row in rows])
    return _answer(payload, found, judged, on_cpu) | {
        "rows": [_row(row) for row in rows],
        "compared_with": compared,
        "slowest_rank": slow[0] if len(slow) == 1 else None,
        "remarks": _remarks(payload, rows, part),
        "latency_and_bandwidth": rounded(line.model_dump(exclude_defaults=True)) if line else None,
        "sections": topics.sections("busbw"),
        "skipped": [*payload.get("skipped", []), "a rank that waits for a slow link ends with it, so no named rank does not clear every link; "
                    'groups="pairs" measures the links'],
    }  # fmt: skip


def pairs(payload: Document, plot: str = "") -> Document:
    """Every pair of ranks or hosts: the matrix, and who stands out."""
    names, matrix, conditions = payload["players"], payload["matrix"], payload.get("conditions") or {}
    on_cpu = payload.get("device_backend", "cpu") == "cpu"
    slow = pair_matrix.judge(names, matrix)
    found = judge.circumstances(conditions, on_cpu=on_cpu)
    if payload.get("correct") is False:
        found.append(judge.wrong_result("pairs", ["a rank received other bytes than its partner sent"]))
    disturbed, apart = any(finding.code == "not_alone" for finding in found), payload.get("between_passes") or 0.0
    blamed = _blamed(payload["player"], slow, names, matrix)
    unsure = disturbed or apart > UNSTEADY_PASSES
    found += [finding.model_copy(update={"severity": "info"}) for finding in blamed] if unsure else blamed
    if apart > UNSTEADY_PASSES:
        found += judge.steadiness(1.0, 1.0 - apart / 2, 1.0 + apart / 2, "of a pair's rate between passes")
    judged = _of_pairs(payload["player"], slow, names, unsure)
    told = _answer(payload, found, judged, on_cpu)
    shown = len(names) <= SHOWN_PLAYERS
    drawn = "\n" + curve_plot.matrix(names, matrix) if plot == "text" else "a picture shows sizes; pairs are drawn with plot='text'"
    table = {"player": payload["player"], "players": names if shown else len(names), "gb_s_one_way": matrix if shown else None,
             **{name: payload.get(name) for name in ("bytes", "passes", "between_passes")}}  # fmt: skip
    return told | {
        "pairs": rounded(table | slow.model_dump(exclude_defaults=True)),
        "plot": drawn if plot else "",
        "sections": topics.sections("busbw"),
        "skipped": [*payload.get("skipped", []), *([] if shown else [f"the matrix of {len(names)} players stands in samples_file"])],
    }  # fmt: skip


def _answer(payload: Document, found: list[Finding], judged: judge.Judgement, on_cpu: bool) -> Document:
    """What both kinds of answer share."""
    conditions = payload.get("conditions") or {}
    return {
        "verdict": findings.verdict(found, judged=judged.verdict != "unknown"),
        "reason": in_words(judged, [finding for finding in found if finding.severity != "info"]),
        "findings": [finding.model_dump(exclude_defaults=True) for finding in findings.worst_first(found)],
        **{name: payload.get(name) for name in NAMES},
        "conditions": rounded(conditions | {"worker": payload.get("worker"), "method": payload.get("method")}),
        "assumptions": [] if on_cpu else [UNTESTED.format(payload.get("device_backend"))],
        "partial": bool(payload.get("partial")),
    }


def _row(row: Document) -> Document:
    """A row without what says nothing: no stalls, no drift, nobody slow."""
    return {name: value for name, value in rounded(row).items() if value is not None and not (name in ("drift", "stalls") and not value)}


def _part(payload: Document) -> Accelerator | None:
    try:
        return catalogue.accelerator(payload.get("device_name") or "")
    except BadRequest:
        return None


def _judged_busbw(payload: Document, rows: list[Document], part: Accelerator | None) -> tuple[judge.Judgement, str]:
    """The largest size against healthy nodes, for ranks of one host on one GPU each."""
    if not rows:
        return judge.Judgement(verdict="unknown", reason="; ".join(["nothing was measured", *payload.get("skipped", [])])), ""
    largest, conditions = max(rows, key=lambda row: row["bytes"]), payload.get("conditions") or {}
    expected: ExpectedBusbw | None = None
    if part and conditions.get("hosts", 1) == 1:
        expected = catalogue.expected_busbw(part.id, payload.get("nproc", 0), payload.get("collective", ""))
    if not expected or largest["busbw_gb_s"] is None:
        return judge.Judgement(verdict="unknown", reason=_no_reference(largest, conditions)), ""
    ring = judge.ring_forced(conditions.get("env") or {}, payload.get("dtype", ""))
    told = f"{expected.conditions}. {expected.note}".strip(". ") + (" (ring asked for)" if ring else "")
    return judge.node_busbw(largest["busbw_gb_s"], largest["bytes"], low_gb_s=expected.low_gb_s, high_gb_s=expected.high_gb_s,
                            typical_gb_s=expected.typical_gb_s, path=expected.conditions, ring=ring), told  # fmt: skip


def _no_reference(row: Document, conditions: Document) -> str:
    if not row["bytes"]:
        return "a barrier moves nothing, and no reference for its time is known"
    if conditions.get("hosts", 1) != 1:
        return f"{conditions['hosts']} hosts: the NICs between them are not known; judge_measurement with link= holds the busbw against them"
    return "no reference is known to compare with"


def _remarks(payload: Document, rows: list[Document], part: Accelerator | None) -> list[str]:
    """What a figure above the wire means, where the wire of the part is known."""
    best = max((row["busbw_gb_s"] or 0.0 for row in rows), default=0.0)
    if not part or not part.link_each_way_gb_s or (payload.get("conditions") or {}).get("hosts", 1) != 1:
        return []
    remark = judge.past_the_wire(best, part.link_each_way_gb_s, payload.get("collective", ""))
    return [remark] if remark else []


def _unstable(rows: list[Document]) -> list[Finding]:
    """The largest size over the time it was measured: it became slower, or it stalled now and then."""
    if not rows:
        return []
    row, found = max(rows, key=lambda row: row["bytes"]), []
    if abs(row.get("drift") or 0.0) > DRIFTS:
        found.append(_unsteady("drifting", f"{row['bytes']} bytes: the last third of {row['iterations']} calls took {row['drift']:+.0%}",
                               "Clocks, heat or a neighbour changed while it was measured."))  # fmt: skip
    if row.get("stalls", 0) > max(1, STALLING * row["iterations"]):
        found.append(_unsteady("stalls", f"{row['bytes']} bytes: {row['stalls']} of {row['iterations']} calls took 1.5 times the median or more, "
                               f"at most {row['max_us']:.4g} us",
                               "Lost packets, a busy switch or a rank without a core make single calls slow."))  # fmt: skip
    return found


def _unsteady(code: str, seen: str, reason: str) -> Finding:
    return Finding(code=code, severity="info", subject="collective", evidence=[seen], reason=reason,
                   action="observe: measure longer on idle nodes; detail=true has every time of every rank")  # fmt: skip


def _blamed(player: str, slow: pair_matrix.Slow, names: list[str], matrix: list[list[float | None]]) -> list[Finding]:
    place = {name: number for number, name in enumerate(names)}
    usual, told = slow.typical or 0.0, []
    for name in slow.players:
        rates = sorted(rate for rate in matrix[place[name]] if rate)
        told.append(_slow(f"slow_{player}", f"{player} {name}", f"{rates[0]:.4g} to {rates[-1]:.4g} GB/s with every partner, others {usual:.4g}",
                          "It is slow with every partner, so the fault is its own and every job that includes it waits.", SLOW_WITH_ALL))  # fmt: skip
    for a, b in slow.pairs:
        rate = matrix[place[a]][place[b]] or 0.0
        told.append(_slow("slow_pair", f"{player}s {a} and {b}", f"{rate:.4g} GB/s, others {usual:.4g}",
                          "Only this pair is slow, so the fault lies between the two.", SLOW_PAIR))  # fmt: skip
    if slow.groups:
        said = " | ".join(", ".join(group) for group in slow.groups)
        told.append(_slow("slow_between_groups", f"{player}s {said}", f"{usual:.4g} GB/s within, less between",
                          "Each group is fast within and slow to the other: a slow uplink, another rail or switch, or a topology made so.",
                          "observe: compare with the cabling plan; if the groups should be equal, look at the uplinks between them"))  # fmt: skip
    return told


def _slow(code: str, subject: str, seen: str, reason: str, action: str) -> Finding:
    return Finding(code=code, severity="warning", subject=subject, evidence=[seen], reason=reason, action=action,
                   sections=topics.sections("odd_node"))  # fmt: skip


def _of_pairs(player: str, slow: pair_matrix.Slow, names: list[str], unsure: bool) -> judge.Judgement:
    if slow.reason:
        return judge.Judgement(verdict="unknown", reason=slow.reason)
    blamed = len(slow.players) + len(slow.pairs) + len(slow.groups)
    if unsure:
        named = "; what stands out is not blamed" if blamed else ""
        return judge.Judgement(verdict="unknown", reason=f"the host was busy or the passes differ, so the pairs cannot be judged{named}")
    words = f"{len(names)} {player}s, {slow.typical or 0.0:.4g} GB/s one way, scatter {slow.scatter or 0.0:.1%}"
    return judge.Judgement(verdict="warning" if blamed else "ok", reason=words if blamed else f"{words}: none stands out")


def _metrics(payload: Document, rows: list[Document]) -> dict[str, Metric]:
    """The largest size for `skillserver compare`; latencies are left out, since there more is better."""
    largest = max(rows, key=lambda row: row["bytes"])
    name = f"{payload['collective']} {payload['nproc']} ranks {payload['backend']} {payload['dtype']} {largest['bytes']} bytes"
    return {name: Metric(value=largest["busbw_gb_s"], unit="GB/s busbw")} if largest["busbw_gb_s"] else {}
