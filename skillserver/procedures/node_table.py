"""Answers of many nodes -> one table: a value a node, median, spread, who stands out, who failed, who never answered.

The rule for the odd one out is that of `measure/history.py` (more than 3.5 robust deviations and more than 5% from the
median, of at least four nodes), so that a table and `skillserver compare` never disagree. A node whose run was cut short is
shown and not compared. Knows shaped answers; not SLURM.

>>> joined(["n1", "n2"], {"n1": {...}}, {"n2": "worker_exception: CUDA error"}, {}, of_matmul)["table"]["failed"]
['n2']
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from skillserver import findings, topics
from skillserver.findings import Finding
from skillserver.jobs.store import now
from skillserver.measure import history
from skillserver.measure.history import Kept, Metric

Document = dict[str, Any]
Values = Callable[[Document], Mapping[str, Metric]]
SHOWN = 32  # rows in an answer; the run folder holds all
MOST_FINDINGS = 16
NAMED = 8
ENDED_FOR_ANOTHER = ("was ended by SIGTERM", "Terminated", "Killed")  # the last two are srun's words


def joined(nodes: list[str], answers: Mapping[str, Document], errors: Mapping[str, str], silent: Mapping[str, str], values: Values,
           cut: Collection[str] = ()) -> Document:  # fmt: skip
    """One answer for all: what they agree on, `table`, findings, verdict, reason.

    `answers` are shaped, also partial ones; `errors` say why a node has no whole one, `silent` what is known of nodes that wrote nothing;
    `cut` are the nodes whose run was ended from outside.
    """
    numbers = {node: values(answer) for node, answer in answers.items()}
    whole = [node for node in answers if node not in cut]
    compared = history.compare(_kept(node, answers[node], numbers[node]) for node in whole)
    found = [*_missing(errors, silent, len(nodes)), *compared.findings, *_of_nodes(answers)]
    odd = {finding.subject: finding for finding in compared.findings if finding.code == "odd_node"}
    columns = [_column(row, numbers, whole) for row in compared.rows]
    rows = [_row(node, answers.get(node), numbers.get(node, {}), errors.get(node, "") or silent.get(node, ""), odd, cut) for node in nodes]
    rows = _shown([row | ({"state": "never answered"} if row["node"] in silent else {}) for row in rows], columns)
    table = {"nodes": len(nodes), "answered": len(whole), "columns": columns, "rows": rows, "outliers": sorted(odd),
             "failed": sorted(errors), "cut_short": sorted(set(answers) - set(whole) - set(errors)), "never_answered": sorted(silent)}  # fmt: skip
    whole_run = not (silent or errors or any(node in cut or one.get("partial") for node, one in answers.items()))
    judged = len(whole) >= history.FEWEST or any(answer.get("verdict") == "ok" for answer in answers.values())
    more = [f"{len(nodes) - SHOWN} more rows: every node's answer lies in samples_file"] if len(nodes) > SHOWN else []
    told = _agreed(list(answers.values()))
    told |= {"verdict": findings.verdict(found, judged=judged), "reason": _reason(table, columns, found), "table": table,
             "findings": [one.model_dump(exclude_defaults=True) for one in findings.worst_first(found)[:MOST_FINDINGS]],
             "partial": not whole_run, "skipped": [*more, *compared.skipped, *_lines(answers, "skipped")][:12],
             "sections": list(dict.fromkeys(_lines(answers, "sections") + (topics.sections("odd_node") if compared.findings else [])))}  # fmt: skip
    return told


def _agreed(answers: list[Document]) -> Document:
    """Fields that every node answered alike; what differs is a number of its own and stands in the table."""
    if not answers:
        return {}
    first, rest = answers[0], answers[1:]
    same = {name: value for name, value in first.items() if all(json.dumps(one.get(name)) == json.dumps(value) for one in rest)}
    shared = [one.get("conditions") or {} for one in answers]
    return same | ({"conditions": _agreed(shared)} if any(shared) else {})


def _lines(answers: Mapping[str, Document], field: str) -> list[str]:
    """The lines of all nodes, each once."""
    return list(dict.fromkeys(line for answer in answers.values() for line in answer.get(field) or []))


def _kept(node: str, answer: Document, numbers: Mapping[str, Metric]) -> Kept:
    return Kept(kind="nodes", at=now(), host=node, part=str(answer.get("device_name") or ""), metrics=dict(numbers))


def _column(row: history.Row, numbers: Mapping[str, Mapping[str, Metric]], whole: list[str]) -> Document:
    seen = [numbers[node][row.metric].value for node in whole if row.metric in numbers[node]]
    middle = statistics.median(seen)
    mad = statistics.median(abs(value - middle) for value in seen)
    spread = f"{(max(seen) - min(seen)) / middle:.1%}" if middle else ""
    return {"name": row.metric, "unit": row.unit, "nodes": row.hosts, "median": row.median, "low": row.low, "high": row.high, "mad": _digits(mad),
            "spread": spread, "outliers": row.odd} | ({"part": row.part} if row.part else {})  # fmt: skip


def _row(node: str, answer: Document | None, numbers: Mapping[str, Metric], error: str, odd: Mapping[str, Finding],
         cut: Collection[str]) -> Document:  # fmt: skip
    state = "failed" if error or answer is None else "partial" if node in cut else "done"
    told: Document = {"node": node, "state": state}
    if answer is not None:
        told |= {"verdict": answer.get("verdict", "unknown"), **{name: _digits(metric.value) for name, metric in numbers.items()}}
    if node in odd:
        told["outlier"] = odd[node].evidence[0]
    return told | ({"error": error[:300]} if error else {})


def _shown(rows: list[Document], columns: list[Document]) -> list[Document]:
    """All rows of few nodes; of many those to look at: without a whole answer, outliers, then the lowest of the first column."""
    if len(rows) <= SHOWN:
        return rows
    first = columns[0]["name"] if columns else ""
    return sorted(rows, key=lambda row: (row["state"] == "done" and "outlier" not in row, row.get(first, 0.0)))[:SHOWN]


def _missing(errors: Mapping[str, str], silent: Mapping[str, str], asked: int) -> list[Finding]:
    found = [Finding(code="node_failed", severity="warning", subject=_names(who),
                     evidence=[why[:300]], reason="Its run ended without a result; the others are compared without it.", count=len(who),
                     action="fix_setup: read the error; check_node on that node tells hardware from setup", sections=topics.sections("slurm_ended"))
             for why, who in grouped(errors).items()]  # fmt: skip
    if silent:
        told = [f"{len(silent)} of {asked} nodes wrote nothing", *(f"{node}: {why}" for node, why in list(silent.items())[:3] if why)]
        found.append(Finding(code="node_silent", severity="warning", subject=_names(silent), count=len(silent), evidence=told,
                             reason="They never answered: unreachable, or their run never began.",
                             action="observe: inspect_slurm shows their state", sections=topics.sections("slurm_nodes")))  # fmt: skip
    return found


def _names(nodes: Iterable[str]) -> str:
    listed = sorted(nodes)
    return ", ".join(listed[:NAMED]) + (f" and {len(listed) - NAMED} more" if len(listed) > NAMED else "")


def grouped(errors: Mapping[str, str]) -> dict[str, list[str]]:
    """Error -> its nodes: a worker's own words first, then an exit status, last those that SLURM ended because another node had failed."""
    told: dict[str, list[str]] = {}
    for node, why in errors.items():
        told.setdefault(why, []).append(node)
    return {why: told[why] for why in sorted(told, key=lambda why: (why.startswith(ENDED_FOR_ANOTHER), why.startswith("ended with status")))}


def _of_nodes(answers: Mapping[str, Document]) -> list[Finding]:
    """The nodes' own findings; the same one of several nodes is told once, with its nodes. Answers `of_all` nodes name them themselves."""
    if all(answer.get("of_all") for answer in answers.values()):
        every = [Finding(**said) for answer in answers.values() for said in answer.get("findings", [])]
        return list({(one.code, one.subject): one for one in reversed(every)}.values())[::-1]
    groups: dict[tuple[str, str, str], list[tuple[str, Finding]]] = {}
    for node, answer in answers.items():
        for said in answer.get("findings", []):
            one = Finding(**said)
            groups.setdefault((one.code, one.severity, one.subject), []).append((node, one))
    return [_folded(members) for members in groups.values()]


def _folded(members: list[tuple[str, Finding]]) -> Finding:
    names, first = [node for node, _one in members], members[0][1]
    evidence = [f"{node}: {line}" for node, one in members[:3] for line in one.evidence[:1]]
    return first.model_copy(update={"subject": f"{_names(names)}: {first.subject}", "evidence": evidence, "count": len(names)})


def _reason(table: Document, columns: list[Document], found: list[Finding]) -> str:
    """One sentence: how many answered, who stands out, how far they lie apart."""
    said = [f"{table['answered']} of {table['nodes']} nodes answered"]
    said += [f"{what.replace('_', ' ')}: {_names(table[what])}" for what in ("failed", "cut_short", "never_answered", "outliers") if table[what]]
    if columns:
        first = next((one for one in columns if one["outliers"]), None) or next((one for one in columns if one["low"] != one["high"]), columns[0])
        apart = f", {first['low']:g} to {first['high']:g} ({first['spread']} spread)" if first["nodes"] > 1 else ""
        said.append(f"{first['name']}: {'median ' if apart else ''}{first['median']:g} {first['unit']}{apart}")
    worst = next(
        (one for one in findings.worst_first(found) if one.severity != "info" and one.code not in ("odd_node", "node_failed", "node_silent")), None
    )
    return "; ".join(said + ([f"{worst.code}: {worst.subject}"] if worst else []))


def _digits(value: float) -> float:
    return float(f"{value:.4g}")


def nothing(_answer: Document) -> dict[str, Metric]:
    """For answers without a number to compare nodes by."""
    return {}


def of_matmul(answer: Document) -> dict[str, Metric]:
    """The number of run_mamf: of a model's products together where those were timed, else of the best shape."""
    products = answer.get("matmul_tflops")
    name, value = ("matmul", (answer.get("best") or {}).get("tflops")) if products is None else ("model matmuls", products)
    return {} if value is None else {name: Metric(value=value, unit="TFLOPS")}


def of_rows(answer: Document) -> dict[str, Metric]:
    """The rates of run_bandwidth_bench and run_storage_bench: the lowest over devices of each kind."""
    told: dict[str, Metric] = {}
    for row in answer.get("rows", []):
        value, name = row.get("gb_s"), str(row.get("what", ""))
        if value is not None and (name not in told or value < told[name].value):
            told[name] = Metric(value=value, unit="GB/s")
    return told


def of_parts(answer: Document) -> dict[str, Metric]:
    """The numbers of check_node, by part."""
    return {row["part"]: Metric(value=row["value"], unit=row.get("unit", "")) for row in answer.get("parts", []) if row.get("value") is not None}


def of_one_job(nodes: list[str], answers: Mapping[str, Document], errors: Mapping[str, str], silent: Mapping[str, str], nproc: int) -> Document:
    """The answer of the first rank of a torchrun job, with the table of nodes and the node of the slowest rank; ranks are counted node by node."""
    told = dict(next(iter(answers.values()), {}))
    failed = {node: why for node, why in errors.items() if node not in answers}
    rows = [{"node": node, "ranks": f"{number * nproc} to {(number + 1) * nproc - 1}", "state": "failed" if node in failed else "done"}
            | ({"error": failed[node][:300]} if node in failed else {}) for number, node in enumerate(nodes)]  # fmt: skip
    slow = told.get("slowest_rank")
    slowest = nodes[slow // nproc] if slow is not None and slow // nproc < len(nodes) else ""
    table = {"nodes": len(nodes), "ranks_per_node": nproc, "rows": rows[:SHOWN], "failed": sorted(failed), "slowest_node": slowest}
    found = [*_missing(failed, {}, len(nodes)), *(Finding(**one) for one in told.get("findings", []))]
    reason = told.get("reason") or f"no answer of the {nproc * len(nodes)} ranks" + (f"; failed: {_names(failed)}" if failed else "")
    return told | {"table": table, "reason": reason, "findings": [one.model_dump(exclude_defaults=True) for one in findings.worst_first(found)],
                   "verdict": findings.verdict(found, judged=told.get("verdict", "unknown") != "unknown")}  # fmt: skip
