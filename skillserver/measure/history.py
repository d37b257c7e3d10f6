"""The same measurement on several nodes, devices and days: which one is odd, and what moved.

Odd = farther from the median than 3.5 robust deviations (1.4826 MAD; Iglewicz and Hoaglin, 1993) and than 5% of it. Fewer
than four values name nobody: of three, the odd one may be the only right one. Values are compared only where part, unit
and name agree; software that differs is said beside them. Knows records and numbers; not files, not what a good number is.

>>> odd({"n1": 700.0, "n2": 701.0, "n3": 699.0, "n4": 610.0})
{'n4': -0.128...}
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, Field

from skillserver import topics
from skillserver.findings import Finding, Verdict, verdict, worst_first

FEWEST = 4
SIGMAS, SHARE = 3.5, 0.05
MAD_TO_SIGMA = 1.4826
MOVED = 0.10  # clocks, power limits and libraries move a short measurement by several percent
DISAGREE = 0.10
FEWEST_EARLIER = 3  # one earlier value may itself have been the odd one


class Metric(BaseModel):
    """One number of one result; more is better."""

    value: float
    unit: str


class Kept(BaseModel):
    """One result as it is kept: who, when, with what, and its numbers by name ("matmul bf16", "memory triad cuda:3")."""

    kind: str = "check_node"
    at: str = Field(description="UTC, ISO 8601")
    host: str
    job_id: str = ""
    part: str = Field(default="", description="the device measured, as its driver names it")
    devices: int = 0
    driver: str = ""
    versions: dict[str, str] = Field(default_factory=dict)
    verdict: str = "unknown"
    disturbed: bool = Field(default=False, description="others used the device meanwhile, so the numbers are lower bounds")
    metrics: dict[str, Metric] = Field(default_factory=dict)


class Row(BaseModel):
    """One metric over the newest result of each host."""

    metric: str
    unit: str
    part: str
    hosts: int
    median: float
    low: float
    high: float
    odd: str = Field(default="", description="the hosts that stand out")


class Comparison(BaseModel):
    """What `skillserver compare` prints."""

    verdict: Verdict
    summary: str
    rows: list[Row]
    findings: list[Finding]
    hosts: list[dict[str, Any]]
    skipped: list[str]


def odd(values: Mapping[str, float]) -> dict[str, float]:
    """The names that stand out, each with its distance from the median as a share of it; {} below four values."""
    if len(values) < FEWEST:
        return {}
    middle = statistics.median(values.values())
    spread = MAD_TO_SIGMA * statistics.median(abs(value - middle) for value in values.values())
    bound = max(SIGMAS * spread, SHARE * abs(middle))
    return {name: (value - middle) / middle for name, value in values.items() if middle and abs(value - middle) > bound}


def compare(results: Iterable[Kept], host: str = "") -> Comparison:
    """Newest results of all hosts beside each other, and each beside its own earlier ones; `host` leaves one alone with its past."""
    every = [one for one in results if host in ("", one.host)]
    kept = sorted((one for one in every if not one.disturbed), key=lambda one: one.at)
    newest = {(one.host, one.kind, one.part): one for one in kept}  # a host has several folders and servers
    rows, found, skipped = _across(list(newest.values()))
    for latest in newest.values():
        found += _over_time(latest, _earlier(latest, kept))
    if len(kept) < len(every):
        hosts = ", ".join(sorted({one.host for one in every if one.disturbed})[:8])
        skipped.append(f"{len(every) - len(kept)} results that other processes disturbed: {hosts}")
    compared = any(row.hosts >= FEWEST for row in rows) or any(len(_earlier(one, kept)) >= FEWEST_EARLIER for one in newest.values())
    judged = verdict(found, judged=compared)
    shown = [{"host": one.host, "at": one.at, "part": one.part, "driver": one.driver, "verdict": one.verdict} for one in newest.values()]
    return Comparison(verdict=judged, summary=_summary(judged, kept, shown, found), rows=rows, findings=worst_first(found), hosts=shown,
                      skipped=skipped)  # fmt: skip


def _across(newest: list[Kept]) -> tuple[list[Row], list[Finding], list[str]]:
    groups: dict[tuple[str, str, str], dict[str, Kept]] = {}
    for one in newest:
        for name, metric in one.metrics.items():
            groups.setdefault((name, metric.unit, one.part), {})[one.host] = one
    rows: list[Row] = []
    off: dict[str, list[tuple[str, str, float, float, dict[str, Kept]]]] = {}
    skipped: list[str] = []
    for (name, unit, part), holders in groups.items():
        values = {host: one.metrics[name].value for host, one in holders.items()}
        strange = odd(values)
        for host, share in strange.items():
            off.setdefault(host, []).append((name, unit, values[host], share, holders))
        rows.append(Row(metric=name, unit=unit, part=part, hosts=len(values), median=_digits(statistics.median(values.values())),
                        low=_digits(min(values.values())), high=_digits(max(values.values())), odd=", ".join(sorted(strange))))  # fmt: skip
    few = sorted({row.part for row in rows if row.hosts < FEWEST})
    if few:
        skipped.append(f"no odd one out is named below {FEWEST} hosts of one part: {', '.join(name or 'unknown part' for name in few)}")
    return rows, [*(_odd_host(host, told) for host, told in off.items()), *_disagreement(rows)], skipped


def _odd_host(host: str, told: list[tuple[str, str, float, float, dict[str, Kept]]]) -> Finding:
    """One finding a host: slower is a warning, faster only odd."""
    lines = [f"{name}: {value:.4g} {unit}, {share:+.0%} of the median of {len(holders)} hosts" for name, unit, value, share, holders in told]
    differs = _differs(host, told[0][4])
    slower = any(share < 0 for _, _, _, share, _ in told)
    return Finding(code="odd_node" if slower else "faster_node", severity="warning" if slower else "info", subject=host, evidence=lines + differs,
                   reason="It does not measure like its equals; one slow node sets the pace of a synchronous job."
                   if slower else "It measures faster than its equals: another part, limit or version than theirs?",
                   action=f"observe: call check_gpu_health on {host}, compare its software and power limit with the others, then measure again",
                   sections=topics.sections("odd_node"))  # fmt: skip


def _differs(host: str, holders: Mapping[str, Kept]) -> list[str]:
    """Software in which this host stands alone against one common setting of the others."""
    mine, lines = _software(holders[host]), []
    for name, version in mine.items():
        others = {_software(one).get(name) for other, one in holders.items() if other != host}
        if len(others) == 1 and version not in others:
            lines.append(f"{name} {version or 'unknown'} here, {others.pop() or 'unknown'} on the others")
    return lines


def _software(one: Kept) -> dict[str, str]:
    return {"driver": one.driver, **one.versions}


def _disagreement(rows: list[Row]) -> list[Finding]:
    """Two or three hosts that do not agree: one of them is off, and nothing tells which."""
    lines = [f"{row.metric}: {row.low:.4g} to {row.high:.4g} {row.unit} on {row.hosts} hosts" for row in rows
             if 1 < row.hosts < FEWEST and row.median and (row.high - row.low) / row.median > DISAGREE]  # fmt: skip
    if not lines:
        return []
    return [Finding(code="nodes_disagree", severity="warning", subject=f"{max(row.hosts for row in rows)} hosts", evidence=lines[:8],
                    reason=f"Equal parts differ by more than {DISAGREE:.0%}; with fewer than {FEWEST} hosts nothing says which one is off.",
                    action="observe: measure again on idle hosts, and on more of them", sections=topics.sections("odd_node"))]  # fmt: skip


def _earlier(latest: Kept, kept: list[Kept]) -> list[Kept]:
    return [one for one in kept if (one.host, one.kind, one.part) == (latest.host, latest.kind, latest.part) and one.at < latest.at]


def _over_time(latest: Kept, earlier: list[Kept]) -> list[Finding]:
    """The newest result beside the median of the host's earlier ones."""
    lines = []
    for name, metric in latest.metrics.items():
        values = [one.metrics[name].value for one in earlier if name in one.metrics and one.metrics[name].unit == metric.unit]
        if len(values) >= FEWEST_EARLIER and metric.value < (1 - MOVED) * (middle := statistics.median(values)) and metric.value < min(values):
            lines.append(f"{name}: {metric.value:.4g} {metric.unit} now, {middle:.4g} before (median of {len(values)}, least {min(values):.4g})")
    if not lines:
        return []
    before, now = _software(earlier[-1]), _software(latest)
    lines += [f"{name}: {before.get(name) or 'unknown'} before, {now[name]} now" for name in now if before.get(name) != now[name]]
    return [Finding(code="slower_than_before", severity="warning", subject=latest.host, evidence=lines,
                    reason="The same part on the same host measures less than it ever did.",
                    action="observe: look at what changed (driver, power limit, cooling, neighbours), then measure again",
                    sections=topics.sections("odd_node"))]  # fmt: skip


def _summary(judged: Verdict, kept: list[Kept], shown: list[dict[str, Any]], found: list[Finding]) -> str:
    if not kept:
        return "no result is kept here; check_node and the run_* benchmarks keep one for each whole run"
    named = ", ".join(dict.fromkeys(finding.subject for finding in found if finding.severity != "info"))
    said = f"{len(kept)} results of {len({one['host'] for one in shown})} hosts"
    if named:
        return f"{said}: look at {named}"
    return f"{said}: none stands out" if judged == "ok" else f"{said}: too few to compare"


def _digits(value: float) -> float:
    return float(f"{value:.4g}")
