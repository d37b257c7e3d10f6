"""One thing wrong with one place, before it becomes a Finding: foldable, ordered, joined by PCI id.

An incident has a root and takes in what follows from it: the severity is the worst of both, the action the strongest,
the evidence keeps both. Knows the order of severities and actions; not what any code means.

>>> root.absorb(consequence, "Xid 119 x3"); root.evidence[-1]
'then Xid 119 x3'
"""

from __future__ import annotations

from dataclasses import dataclass, field

from skillserver import topics
from skillserver.findings import RANK, Finding, Severity

STRENGTH = ("none", "observe", "restart_app", "fix_setup", "reset", "reboot", "drain_rma")
SHOWN_EVIDENCE = 8
LONGEST = 240
JOINED = frozenset(["memory", "bus", "link"])  # families whose readings and log lines are one story on one GPU


def word(action: str) -> str:
    """The word of ACTIONS that an action starts with."""
    return action.split(":")[0].split(" ")[0]


@dataclass
class Incident:
    """See the module. `pci` joins sources; `subject` is for people."""

    code: str
    severity: Severity
    family: str
    subject: str
    reason: str
    action: str
    topic: str
    pci: str | None = None
    evidence: list[str] = field(default_factory=list)
    count: int = 1
    places: list[str] = field(default_factory=list)

    def absorb(self, other: Incident, said: str) -> None:
        """Take in a consequence: it adds weight and evidence, never another finding."""
        if RANK[other.severity] < RANK[self.severity]:
            self.severity = other.severity
        if STRENGTH.index(word(other.action)) > STRENGTH.index(word(self.action)):
            self.action = other.action
        self.evidence.append(said)

    def finding(self) -> Finding:
        """The same for the result."""
        more = len(self.evidence) - SHOWN_EVIDENCE
        evidence = [line if len(line) <= LONGEST else line[: LONGEST - 3] + "..." for line in self.evidence[:SHOWN_EVIDENCE]]
        return Finding(code=self.code, severity=self.severity, subject=self.subject, reason=self.reason, action=self.action, count=self.count,
                       evidence=[*evidence, f"and {more} more"] if more > 0 else evidence, sections=topics.sections(self.topic))  # fmt: skip


def ordered(incidents: list[Incident]) -> list[Incident]:
    """Worst first, then the strongest action; among equals as they were found."""
    return sorted(incidents, key=lambda one: (RANK[one.severity], -STRENGTH.index(word(one.action))))


def joined(incidents: list[Incident]) -> list[Incident]:
    """One incident for each GPU and joined family: what the log and the counters say of the same fault is one story."""
    out: list[Incident] = []
    roots: dict[tuple[str, str], Incident] = {}
    for one in ordered(incidents):
        key = (one.pci or "", one.family)
        if not one.pci or one.family not in JOINED or one.severity == "info":
            out.append(one)
        elif key in roots:
            first = f"; {one.evidence[0]}" if one.evidence else ""
            roots[key].absorb(one, f"also {one.code}{first}")
            roots[key].evidence += one.evidence[1:]
        else:
            roots[key] = one
            out.append(one)
    return out


def folded(incidents: list[Incident]) -> list[Incident]:
    """The same code, severity and action on several GPUs becomes one incident that names them all."""
    out: dict[tuple[str, str, str], Incident] = {}
    for one in incidents:
        key = (one.code, one.severity, word(one.action))
        first = out.get(key)
        if first is None or one.code.startswith(("xid_", "sxid_")):
            out[key if first is None else (one.code, one.severity, f"{len(out)}")] = one
            continue
        first.places = [*(first.places or [first.subject]), one.subject]
        first.count += one.count
        first.evidence += [line for line in one.evidence if line not in first.evidence]
        what = "GPUs" if all(place.startswith("GPU ") for place in first.places) else "places"
        first.subject = f"{len(first.places)} {what}: {', '.join(first.places)}"
    return list(out.values())
