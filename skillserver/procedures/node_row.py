"""One line of a node's acceptance test, with what it found and the numbers to keep.

>>> Told(skipped("clock", "adjtimex is Linux's")).row.verdict
'skipped'
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from pydantic import BaseModel, Field

from skillserver.findings import Finding, verdict, worst_first
from skillserver.measure.history import Metric
from skillserver.measure.judge import Judgement

RowVerdict = Literal["ok", "warning", "critical", "unknown", "skipped"]


class Row(BaseModel):
    """A part: what it measured, over how many devices, and what that was held against."""

    part: str
    verdict: RowVerdict
    value: float | None = Field(default=None, description="the lowest over devices")
    unit: str = ""
    high: float | None = Field(default=None, description="the highest over devices")
    n: int | None = Field(default=None, description="devices, pairs or rounds")
    note: str = Field(default="", description="what it rests on, or why it was left out")


@dataclass
class Told:
    """A row, its findings, and its numbers by name."""

    row: Row
    findings: list[Finding] = field(default_factory=list)
    metrics: dict[str, Metric] = field(default_factory=dict)


def skipped(part: str, why: str) -> Row:
    """A part that could not run here."""
    return Row(part=part, verdict="skipped", note=why)


def judged(part: str, found: list[Finding], judgements: list[Judgement], *, fine: bool = False, note: str = "") -> Row:
    """A row whose verdict is the worst of its findings; `ok` when something was judged and nothing found."""
    known = fine or any(one.verdict == "ok" for one in judgements)
    seen = [line for one in worst_first(found) if one.severity != "info" for line in one.evidence[:1]]
    said = (
        note or next(iter(seen), "") or next((one.reason for want in ("warning", "unknown", "ok") for one in judgements if one.verdict == want), "")
    )
    return Row(part=part, verdict=verdict(found, judged=known), note=said)


def folded(found: list[Finding]) -> list[Finding]:
    """Equal code and subject once, with every evidence and the worst severity first seen."""
    told: dict[tuple[str, str], Finding] = {}
    for one in found:
        known = told.get((one.code, one.subject))
        if known is None:
            told[one.code, one.subject] = one.model_copy(update={"evidence": list(one.evidence)})
            continue
        known.evidence += [line for line in one.evidence if line not in known.evidence]
        known.count += one.count
    return list(told.values())
