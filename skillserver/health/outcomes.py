"""Outcomes of tests and ports -> incidents, by data/health_outcomes.toml: the first record that fits wins.

>>> [one.code for one in incidents([Outcome("paste", "dcgm", "persistence_mode", "fail", "", "Persistence Mode: Fail")])]
['dcgm_persistence_mode_fail']
"""

from __future__ import annotations

import re

from skillserver import tables
from skillserver.findings import Severity
from skillserver.health.incident import Incident
from skillserver.health.reading import Outcome


class KnownOutcome(tables.Record):
    """One record; `name`, `status` and `words` are expressions that all must fit."""

    kind: str
    name: str = ".*"
    status: str
    words: str = ""
    severity: Severity
    family: str
    reason: str
    action: str
    topic: str
    source: str


def incidents(outcomes: list[Outcome]) -> list[Incident]:
    """One incident for each outcome that a record knows."""
    found = [(row, one) for one in outcomes if (row := _row(one))]
    return [
        Incident(_code(one), row.severity, row.family, one.place or "the host", row.reason, row.action, row.topic, evidence=[one.line])
        for row, one in found
    ]


def _code(one: Outcome) -> str:
    return f"{one.kind}_{one.status}" if one.kind == "ib_port" else f"{one.kind}_{one.name}_{one.status}"


def _row(one: Outcome) -> KnownOutcome | None:
    rows = tables.load("health_outcomes.toml", KnownOutcome)
    return next((row for row in rows if row.kind == one.kind and re.fullmatch(row.name, one.name) and re.fullmatch(row.status, one.status)
                 and re.search(row.words, one.line, re.I)), None)  # fmt: skip
