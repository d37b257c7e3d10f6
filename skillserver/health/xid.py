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
from skillserver.findings import RANK, Severity
from skillserver.health import nvlink_errors
from skillserver.health.incident import STRENGTH, Incident, word
from skillserver.health.reading import Event

SAME_MOMENT_S = 2.0  # assumed: seconds between the first lines of one fault on neighbouring GPUs
CAUSED_BY = re.compile(r"caused by previous Xid:? (\d+)", re.I)
NEW_ACTION = re.compile(r"recovery action changed from .*? to (?:(0x[0-9a-f]+|\d+)\b)?\s*(?:\(([^)]*)\)|([A-Z][A-Za-z0-9 ]+))?", re.I)
BY_NUMBER = ("none", "reset", "reboot", "drain p2p", "drain and reset", "recover imex domain", "bus reset", "system reboot")  # nvml.h
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
MOST_DECODED = 200  # lines of one number on one GPU worth decoding
CAME_BACK = 2  # gpud escalates after as many reboots
REPEATED = 3  # assumed: so many programs on one spot of the chip are no accident
SPOT = re.compile(r"GPC \d+, TPC \d+, SM \d+")
PROGRAM = re.compile(r"\bpid=(\d+)")
FATAL_SWITCH: tuple[Severity, str, str] = (
    "critical", "A switch error that was fatal to its link: jobs over NVLink cannot run.",
    "reset: drain, reset GPUs and switches together (reboot), then check the link named")  # fmt: skip
SURVIVED_SWITCH: tuple[Severity, str, str] = (
    "warning", "A switch error that the switch survived; alone it is no reason to drain.",
    "observe: look for Xid 45 or 74 on the GPUs at that moment, restart the job, reset if it comes back")  # fmt: skip
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
    last: Event | None = None


def recovery(text: str) -> tuple[Severity, str] | None:
    """(severity, action) of a recovery action's words; None for words that nobody told us."""
    return next(((severity, action) for words, severity, action in RECOVERY if words in text.lower()), None)


def incidents(events: list[Event]) -> list[Incident]:
    """Roots with their consequences folded in, in the order of their first lines."""
    by_gpu: dict[str | None, list[Event]] = {}
    for event in events:
        if event.kind == "xid":
            by_gpu.setdefault(event.pci, []).append(event)
    loads = [place for place, event in enumerate(events) if event.kind == "load"]
    places = {id(event): place for place, event in enumerate(events)} if loads else {}
    found = []
    for mine in by_gpu.values():
        for event, one in _of_gpu(mine):
            number = int(one.code.removeprefix("xid_"))
            _since_load(one, [places[id(other)] for other in mine if other.number == number] if loads else [], loads)
            found.append((event, one))
    together = _same_moment(found)
    return [*together, *_switches([event for event in events if event.kind == "sxid"])]


def _since_load(one: Incident, seen: list[int], loads: list[int]) -> None:
    """A driver that was loaded again after the fault (reset, reboot) may have mended it; one that came back each time was not."""
    if not seen:
        return
    between = sum(seen[0] < load < seen[-1] for load in loads)
    if between >= CAME_BACK and one.severity == "critical" and word(one.action) in ("reset", "reboot"):
        one.action = f"drain_rma: it came back after the driver was loaded anew {between} times, so a reset does not cure it: diagnose, then RMA"
    if loads[-1] > seen[-1]:
        one.evidence.append("the driver was loaded again after that: ask the GPU how it is now")


def _of_gpu(events: list[Event]) -> list[tuple[Event, Incident]]:
    """The incidents of one GPU."""
    groups: dict[int, _Group] = {}
    for event in events:
        said = CAUSED_BY.search(event.text)
        number = int(said[1]) if said else event.number
        group = groups.setdefault(number, _Group(number, event, 0))
        group.count += 1
        group.last = event
        if len(group.texts) < MOST_DECODED or number == 154:
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
    detail = _new_action(group.texts[-1]) if group.number == 154 else ""
    return f"then Xid {group.number}{times} ({detail or known(group.number).meaning})"


def _span(group: _Group) -> str:
    """From the first to the last of them, when both stand on one clock."""
    first, last = group.first, group.last or group.first
    if first.moment is None or last.moment is None or first.clock != last.clock or last.moment <= first.moment:
        return ""
    seconds = last.moment - first.moment
    return f", within {seconds:.3g} s" if seconds < 600 else f", over {seconds / 3600:.3g} h"


def _incident(group: _Group) -> Incident:
    row, event = known(group.number), group.first
    severity, action, decoded = _judged(row, group)
    instance = f" MIG instance {event.mig}" if event.mig else ""
    times = [f"{group.count} such lines, folded{_span(group)}"] if group.count > 1 else []
    note = f" {row.note[0].upper()}{row.note[1:]}." if row.note and severity != "info" else ""
    return Incident(
        code=f"xid_{group.number}", severity=severity, family=row.family, subject=f"GPU {event.pci}{instance}" if event.pci else "a GPU",
        reason=f"Xid {group.number}: {row.meaning}.{note}", action=action, topic=TOPICS.get(row.family, "gpu_xid_table"), pci=event.pci,
        evidence=[event.line, *decoded, *times], count=group.count)  # fmt: skip


def _new_action(text: str) -> str:
    """The words of an Xid 154, whatever driver printed it; "" when the line does not say."""
    found = NEW_ACTION.search(text)
    if not found:
        return ""
    said = found[2] or found[3] or ""
    number = int(found[1], 0) if found[1] else -1
    return said if recovery(said) else BY_NUMBER[number] if 0 <= number < len(BY_NUMBER) else said


def _judged(row: KnownXid, group: _Group) -> tuple[Severity, str, list[str]]:
    """Severity, action and decoded words; those of the table, save where the line itself says more."""
    if row.xid == 154:
        return (*(recovery(_new_action(group.texts[-1])) or (row.severity, row.action)), [])
    decoded = [one for text in dict.fromkeys(group.texts[:MOST_DECODED]) if (one := nvlink_errors.judged(row.xid, text))]
    if decoded:
        worst = min(decoded, key=lambda one: (RANK[one.severity], -STRENGTH.index(word(one.action))))
        return worst.severity, worst.action, list(dict.fromkeys(one.said for one in decoded))[:3]
    if row.xid in (13, 31) and (spot := _same_spot(group)):
        return row.severity, row.action, [spot]
    return row.severity, row.action, []


def _same_spot(group: _Group) -> str:
    """The same unit of the chip (Xid 13) or GPU (31) in programs of different ids points at the chip; a burst of one launch does not."""
    programs: dict[str, set[str]] = {}
    for text in group.texts[:MOST_DECODED]:
        spot, program = SPOT.search(text), PROGRAM.search(text)
        place = spot[0] if spot else "this GPU" if group.number == 31 else ""
        if place and program:
            programs.setdefault(place, set()).add(program[1])
    worst = max(programs, key=lambda spot: len(programs[spot]), default="")
    if not worst or len(programs[worst]) < REPEATED:
        return ""
    return f"{worst} in {len(programs[worst])} programs: run dcgmi diag -r 3 if they are not all the same code"


def _same_moment(found: list[tuple[Event, Incident]]) -> list[Incident]:
    """Fold the same root on several GPUs at one moment."""
    out: list[tuple[Event, Incident]] = []
    for event, one in found:
        twin = next((first for other, first in out if first.code == one.code and first.severity == one.severity and _together(event, other)), None)
        if twin is None:
            out.append((event, one))
            continue
        if not twin.places and twin.severity == "critical":
            twin.reason += " Several GPUs in one instant share a power feed, a switch or a program: look there before blaming boards."
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
