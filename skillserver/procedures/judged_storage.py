"""fio figures held against the three IO needs of training, and against what their medium can give.

Each row is judged by the need its pattern imitates; the worst decides. Joins measure.storage_needs with what the output
says of engine, queue and page cache.

>>> judge(output, setting).compared.what
'code, environments and small samples: ...'
"""

from __future__ import annotations

from skillserver import topics
from skillserver.measure import storage_needs
from skillserver.measure.judge import Judgement
from skillserver.measure.outputs.fio import SYNCHRONOUS
from skillserver.measure.outputs.records import Mistake, Output, Row
from skillserver.procedures.judged import ComparedWith, Judged, off
from skillserver.procedures.measured_setting import Setting

ACTION = "observe: repeat with direct=1 for minutes and from several nodes at once, compare with a local NVMe drive"


def judge(output: Output, setting: Setting) -> Judged:
    """Every direction of every group."""
    judged = [judge_row(row, output.facts.get("direct"), setting.around.medium) for row in output.rows]
    order = {"warning": 0, "ok": 1, "unknown": 2}
    worst = min(judged, key=lambda one: order.get(one.judgement.verdict, 2))
    worst.topics = ["storage_needs", "fio"]
    worst.skipped += [
        f"{one.row.what if one.row else ''}: {one.judgement.reason}" for one in judged if one is not worst and one.judgement.verdict == "unknown"
    ]
    worst.findings = [finding for one in judged for finding in one.findings]
    worst.mistakes = list({(slip.code, slip.what): slip for one in judged for slip in one.mistakes}.values())
    if len(output.rows) > 1 and len({row.what for row in output.rows}) < len(output.rows):
        worst.skipped.append("sums over jobs: several groups are shown; use --group_reporting for one figure")
    return worst


def in_flight(row: Row) -> int | None:
    """Requests in flight: jobs x depth, where a synchronous engine has a depth of 1; None when not shown."""
    depth, jobs = row.facts.get("iodepth"), row.facts.get("jobs")
    if depth is None and jobs is None:
        return None
    return (1 if row.facts.get("engine") in SYNCHRONOUS else int(depth or 1)) * int(jobs or 1)


def judge_row(row: Row, direct: bool | None, medium: str) -> Judged:
    """One row against the need that its pattern imitates; `direct`: whether the page cache was passed by, None when not known."""
    block, flying = row.facts.get("block_bytes"), in_flight(row)
    need = storage_needs.need_for("write" if row.what == "write" else "read", block)
    verdict = storage_needs.judge(need, iops=row.iops, gb_s=row.gb_s, in_flight=flying, medium=medium)
    judged = Judged(verdict, row=row)
    unit = "IOPS" if need.metric == "iops" else "GB/s"
    judged.compared = ComparedWith(
        value=need.ok_from, unit=unit, low=need.poor_below, basis="derived", what=f"{need.title}: {need.derived}", source=need.source
    )
    if storage_needs.implausible(row.iops, row.gb_s, flying, medium):
        judged.mistakes.append(Mistake(code="page_cache", what="the figure may be the client's page cache; direct=1 and more data than memory tell"))
    if direct is False and verdict.verdict == "ok":
        judged.judgement = Judgement(
            verdict="unknown", reason=f"{verdict.reason.split(' (')[0]}, but direct=1 was not set: it is the page cache's figure"
        )
    if verdict.verdict == "warning":
        judged.findings.append(off("storage_slow", need.title, verdict.reason, ACTION, topics.sections("storage_needs")))
    elif slow := storage_needs.slow_for(row.gb_s, row.what, block, flying, medium):
        judged.findings.append(off("slow_for_medium", medium, slow, ACTION, topics.sections("fio")))
    if medium:
        judged.assumed.append(f"storage read as {medium} from the text")
    if block is None and row.iops is None:
        judged.assumed.append("block size not given: taken as large blocks")
    return judged
