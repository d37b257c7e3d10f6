"""One shape for whatever a tool found, one rule for the verdict, one for intervals.

A finding says what is wrong (`code`, `subject`), what was seen (`evidence`), why it matters (`reason`), what to do
(`action`, which starts with a word of ACTIONS) and where to read (`sections`). Knows nothing of GPUs or logs.

>>> verdict([Finding(code="ecc", severity="critical", subject="GPU 0", reason="...", action="reset")], judged=True)
'critical'
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from pydantic import BaseModel, Field, field_validator

Severity = Literal["critical", "warning", "info"]
Verdict = Literal["ok", "warning", "critical", "unknown"]
ACTIONS = ("none", "restart_app", "reset", "reboot", "drain_rma", "fix_setup", "observe")
RANK: dict[str, int] = {"critical": 0, "warning": 1, "info": 2}


class Finding(BaseModel):
    """One thing found. `count` folds duplicates; `step`/`last_step` place it in a training log."""

    code: str
    severity: Severity
    subject: str = Field(description="GPU with PCI id, rank, host or file it is about")
    evidence: list[str] = Field(default_factory=list, description="what was seen, verbatim and short")
    reason: str = Field(description="why it matters, one or two sentences")
    action: str = Field(description=f"starts with one of {' '.join(ACTIONS)}")
    sections: list[str] = Field(default_factory=list, description="ids for read_knowledge")
    count: int = 1
    step: int | None = None
    last_step: int | None = None

    @field_validator("action")
    @classmethod
    def _known_action(cls, action: str) -> str:
        if action.split(":")[0].split(" ")[0] not in ACTIONS:
            raise ValueError(f"action {action!r} must start with one of {ACTIONS}")
        return action


class Interval(BaseModel):
    """An 80% interval around the expected value."""

    low: float
    expected: float
    high: float


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Worst first; among equals the order given (causes before consequences) stays."""
    return sorted(findings, key=lambda finding: RANK[finding.severity])


def verdict(findings: Iterable[Finding], *, judged: bool) -> Verdict:
    """The worst of what was shown; `unknown` only when nothing could be judged."""
    severities = {finding.severity for finding in findings}
    if "critical" in severities:
        return "critical"
    if "warning" in severities:
        return "warning"
    return "ok" if judged else "unknown"
