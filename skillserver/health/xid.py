"""Xid and SXid events -> incidents: which is the root, what follows from it, whose fault it is.

On one GPU repeats fold into one incident, an Xid that the table explains by an earlier one folds under it, and
whatever comes after "fallen off the bus" is a consequence. The same root on several GPUs within two seconds is one
incident too: they share power, switch or program. Numbers that are not in data/xids.toml are a warning, never more.

>>> [one.code for one in incidents([xid_64_event, xid_94_event])]
['xid_64']
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field

from skillserver import tables
from skillserver.findings import Severity
from skillserver.health.incident import Incident
from skillserver.health.reading import Event

SAME_MOMENT_S = 2.0  # assumed: seconds between the first lines of one fault on neighbouring GPUs
CAUSED_BY = re.compile(r"caused by previous Xid:? (\d+)", re.I)
NEW_ACTION = re.compile(r"recovery action changed from .*? to \S+ \(([^)]*)\)", re.I)
RECOVERY: tuple[tuple[str, Severity, str], ...] = (  # words of Xid 154 and of nvidia-smi's "GPU Recovery Action", most exact first
    ("drain p2p", "critical", "reset: end all peer-to-peer programs on the GPU, then ask nvidia-smi again"),
    ("drain and reset", "critical", "reset: let jobs end, start none, then reset the GPU"),
    ("bus reset", "critical", "reset: drain, then reset the GPU through its bus"),
    ("imex", "critical", "reset: drain and reset the whole NVLink domain"),
    ("reboot", "critical", "reboot: drain and reboot the node"),
    ("reset", "critical", "reset: end the programs on the GPU, then reset it"),
    ("flr", "critical", "reset: end the programs on the GPU, then reset it"),
    ("none", "info", "none"),
)
FATAL_SWITCH: tuple[Severity, str, str] = (
    "critical", "A switch error that was fatal to its link: jobs over NVLink cannot run.",
    "reset: drain, reset GPUs and switches together (reboot), then check the link named")  # fmt: skip
SURVIVED_SWITCH: tuple[Severity, str, str] = (
    "warning", "A switch error that the switch survived; alone it is no reason to drain.",
    "observe: look for Xid 45 or 74 on the GPUs at that moment, restart the job, reset if it comes back")  # fmt: skip
NVLINK5 = range(144, 151)
TOPICS = {"memory": "gpu_memory_errors", "bus": "gpu_lost", "firmware": "gpu_firmware", "link": "nvlink_faults", "program": "gpu_program_faults"}


class KnownXid(tables.Record):
    """A row of xids.toml; see its head."""

    xid: int
    name: str
    meaning: str
    severity: Severity
    family: str
    action: str
    note: str = ""
    follows: tuple[int, ...] = ()
    sympathetic: bool = False
    ends: bool = False
    unused: bool = False
    source: str


@functools.cache
def _table() -> dict[int, KnownXid]:
    return {row.xid: row for row in tables.load("xids.toml", KnownXid)}


def known(number: int) -> KnownXid:
    """The row of a number; one of ours for a number that the table does not hold."""
    return _table().get(number) or KnownXid(
        xid=number, name="UNKNOWN", meaning="not in our table: a newer driver, or a line that only looks like an Xid", severity="warning",
        family="other", action="observe: look the number up in NVIDIA's catalogue of this driver", source="none")  # fmt: skip


@dataclass
class _Group:
    """One number on one GPU: its first event and how many there were."""

    number: int
    first: Event
    count: int = 1
    texts: list[str] = field(default_factory=list)


def recovery(text: str) -> tuple[Severity, str] | None:
    """(severity, action) of a recovery action's words; None for words that nobody told us."""
    return next(((severity, action) for words, severity, action in RECOVERY if words in text.lower()), None)


def incidents(events: list[Event]) -> list[Incident]:
    """Roots with their consequences folded in, in the order of their first lines."""
    xids = [event for event in events if event.kind == "xid"]
    found = [one for pci in dict.fromkeys(event.pci for event in xids) for one in _of_gpu([event for event in xids if event.pci == pci])]
    together = _same_moment(found)
    return [*together, *_switches([event for event in events if event.kind == "sxid"])]


def _of_gpu(events: list[Event]) -> list[tuple[Event, Incident]]:
    """The incidents of one GPU."""
    groups: dict[int, _Group] = {}
    for event in events:
        said = CAUSED_BY.search(event.text)
        number = int(said[1]) if said else event.number
        group = groups.setdefault(number, _Group(number, event, 0))
        group.count += 1
        group.texts.append(event.text)
    roots: dict[int, Incident] = {}
    root_of: dict[int, int] = {}
    for number in groups:
        cause = _cause(number, list(root_of))
        if cause is None:
            root_of[number] = number
            roots[number] = _incident(groups[number])
        else:
            root_of[number] = root_of[cause]
            roots[root_of[cause]].absorb(_incident(groups[number]), _then(groups[number]))
    return [(groups[number].first, one) for number, one in roots.items()]


def _cause(number: int, earlier: list[int]) -> int | None:
    """The Xid before it on the same GPU that explains this one, or None."""
    row = known(number)
    explains = [one for one in earlier if known(one).ends] or [one for one in earlier if one in row.follows]
    if explains:
        return explains[0]
    if row.sympathetic and earlier:
        return ([one for one in earlier if not known(one).sympathetic] or earlier)[-1]
    return None


def _then(group: _Group) -> str:
    times = f" x{group.count}" if group.count > 1 else ""
    detail = NEW_ACTION.search(group.texts[-1]) if group.number == 154 else None
    return f"then Xid {group.number}{times} ({detail[1] if detail else known(group.number).meaning})"


def _incident(group: _Group) -> Incident:
    row, event = known(group.number), group.first
    severity, action = _judged(row, group)
    instance = f" MIG instance {event.mig}" if event.mig else ""
    times = [f"{group.count} such lines, folded"] if group.count > 1 else []
    note = f" {row.note[0].upper()}{row.note[1:]}." if row.note and severity != "info" else ""
    return Incident(
        code=f"xid_{group.number}", severity=severity, family=row.family, subject=f"GPU {event.pci}{instance}" if event.pci else "a GPU",
        reason=f"Xid {group.number}: {row.meaning}.{note}", action=action, topic=TOPICS.get(row.family, "gpu_xid_table"), pci=event.pci,
        evidence=[event.line, *times], count=group.count)  # fmt: skip


def _judged(row: KnownXid, group: _Group) -> tuple[Severity, str]:
    """Severity and action of the table, save where the line itself says more."""
    if row.xid == 154:
        words = NEW_ACTION.search(group.texts[-1])
        return (recovery(words[1]) if words else None) or (row.severity, row.action)
    if row.xid in NVLINK5:
        said = " ".join(group.texts).lower()
        if re.search(r"\bfatal\b", said.replace("non-fatal", "nonfatal")):
            return "critical", "reset: drain, then reset the GPU; look for the link that went down first"
        if re.search(r"\bnon-?fatal\b", said):
            return "warning", "restart_app: restart the program if it died; reset only if jobs keep failing or Xid 154 asks for it"
    return row.severity, row.action


def _same_moment(found: list[tuple[Event, Incident]]) -> list[Incident]:
    """Fold the same root on several GPUs at one moment."""
    out: list[tuple[Event, Incident]] = []
    for event, one in found:
        twin = next((first for other, first in out if first.code == one.code and first.severity == one.severity and _together(event, other)), None)
        if twin is None:
            out.append((event, one))
            continue
        twin.places = [*(twin.places or [twin.subject]), one.subject]
        twin.absorb(one, one.evidence[0])
        twin.count += one.count
        twin.subject = f"{len(twin.places)} GPUs at one moment: {', '.join(twin.places)}"
        twin.pci = None
    return [one for _event, one in out]


def _together(one: Event, other: Event) -> bool:
    if one.moment is None or other.moment is None or one.clock != other.clock or one.source != other.source:
        return False
    return abs(one.moment - other.moment) <= SAME_MOMENT_S


def _switches(events: list[Event]) -> list[Incident]:
    """SXid: the line says itself whether it was fatal."""
    found: dict[tuple[str | None, int], Incident] = {}
    for event in events:
        key = (event.pci, event.number)
        if key in found:
            found[key].count += 1
            continue
        fatal = not re.search(r"non-?fatal", event.text, re.I) and bool(re.search(r"\bfatal\b", event.text, re.I))
        severity, reason, action = FATAL_SWITCH if fatal else SURVIVED_SWITCH
        subject = f"NVSwitch {event.pci}" if event.pci else "an NVSwitch"
        found[key] = Incident(f"sxid_{event.number}", severity, "link", subject, reason, action, "nvlink_faults", event.pci, [event.line])
    return list(found.values())
