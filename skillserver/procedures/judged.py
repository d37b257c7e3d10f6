"""What a judgement of somebody's measurement consists of, and how several candidates come to one verdict.

>>> agreed([("A100-40GB-SXM", low), ("A100-80GB-SXM", low)]).verdict
'warning'
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, Field

from skillserver.findings import Finding
from skillserver.measure.judge import Judgement
from skillserver.measure.outputs.records import Mistake, Row

NO_PART = "the part is not known, so there is nothing to compare with; pass accelerator="


class ComparedWith(BaseModel):
    """The reference a number was held against."""

    value: float
    unit: str
    low: float | None = None
    high: float | None = None
    basis: str = Field(description="published, derived or data sheet")
    what: str
    source: str


@dataclass
class Judged:
    """One output judged: the row that decided, why, and what else was seen."""

    judgement: Judgement
    row: Row | None = None
    compared: ComparedWith | None = None
    findings: list[Finding] = field(default_factory=list)
    mistakes: list[Mistake] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    topics: list[str] = field(default_factory=list)
    next: str = ""


def unknown(reason: str, **more: Any) -> Judged:
    """Nothing could be judged, with the reason."""
    return Judged(Judgement(verdict="unknown", reason=reason), **more)


def agreed(readings: list[tuple[str, Judgement]]) -> Judgement:
    """The one verdict that every reading leads to; unknown, with all of them, when they differ."""
    verdicts = {judged.verdict for _, judged in readings}
    if len(verdicts) == 1:
        return readings[0][1]
    said = "; ".join(f"{name}: {judged.verdict} ({judged.reason})" for name, judged in readings)
    return Judgement(verdict="unknown", reason=f"it depends on what is meant: {said}")


def off(code: str, subject: str, reason: str, action: str, sections: list[str]) -> Finding:
    """The finding of a number that does not fit its reference."""
    return Finding(code=code, severity="warning", subject=subject, evidence=[reason], reason="The number does not fit what healthy parts show.",
                   action=action, sections=sections)  # fmt: skip
