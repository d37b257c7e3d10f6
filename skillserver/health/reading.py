"""What was read of GPUs, from whatever source, before anybody judges it.

A live NVML answer, a `nvidia-smi -q` text and an XML document all become the same `GpuReading`: values under the names
of `fields.py`, and beside them what could not be read. A value that is not there is unknown, never zero. Log lines
become `Event`s, known sentences become `Sign`s. Knows no threshold and no severity.

>>> normal_pci("00000000:9B:00.0"), normal_pci("8ed0:00:00")
('0000:9b:00.0', '8ed0:00:00.0')
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

Value = float | bool | str
PCI = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-7]))?", re.I)
UNREADABLE = re.compile(r"unknown error|err!|error|timeout|lost|requires? reset|insufficient permissions", re.I)
BUSY_PSTATES = ("P0", "P1", "P2", "P3")  # deeper states lower clocks and the link on purpose
IDLE_PERCENT = 5.0  # assumed


def normal_pci(text: str | None) -> str | None:
    """One spelling of a PCI id: four digits of domain unless it needs more, lower case, with the function."""
    found = PCI.fullmatch((text or "").strip())
    if not found:
        return None
    domain = (found[1] or "0").lstrip("0").lower().rjust(4, "0")
    return f"{domain}:{found[2].lower()}:{found[3].lower()}.{found[4] or '0'}"


@dataclass
class GpuReading:
    """One GPU as one source showed it. `values` by field name; `unreadable` holds the words seen in place of a value."""

    source: str
    pci: str | None = None
    index: int | None = None
    values: dict[str, Value] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)
    moment: float | None = None  # seconds of the capture's own clock

    def number(self, name: str) -> float | None:
        """A numeric field, None when it is unknown."""
        value = self.values.get(name)
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

    def flag(self, name: str) -> bool | None:
        """A yes/no field, None when it is unknown."""
        value = self.values.get(name)
        return value if isinstance(value, bool) else None

    def text(self, name: str) -> str:
        """A text field, "" when it is unknown."""
        value = self.values.get(name)
        return value if isinstance(value, str) else ""

    @property
    def name(self) -> str:
        """Product name, "" when the source did not say."""
        return self.text("name")

    @property
    def label(self) -> str:
        """How people find this GPU: index and PCI id, because an index shifts when a neighbour is missing."""
        index = f" {self.index}" if self.index is not None else ""
        return f"GPU{index} {self.pci or ''}".strip() if self.pci or index else "the GPU shown"

    @property
    def consumer(self) -> bool:
        """GeForce and TITAN boards: no row remapping, though NVML may answer as if there were."""
        return bool(re.search(r"geforce|titan|\bgtx\b", self.name, re.I))

    @property
    def loaded(self) -> bool | None:
        """True at work, False at rest, None when the source does not tell; link and clocks are judged only at work."""
        utilisation, pstate = self.number("utilisation_percent"), self.text("pstate").upper()
        if self.flag("reason_idle") or (pstate and pstate not in BUSY_PSTATES):
            return False
        if utilisation is not None:
            return utilisation > IDLE_PERCENT
        return None


@dataclass(frozen=True)
class Event:
    """One Xid or SXid line. `moment` is seconds on the clock named by `clock`; both are None without a time stamp."""

    source: str
    kind: str  # "xid" or "sxid"
    number: int
    pci: str | None
    line: str
    text: str
    clock: str | None = None
    moment: float | None = None
    mig: str = ""


@dataclass(frozen=True)
class Sign:
    """A known sentence (`code` of health_texts.toml) and how often it stood there."""

    source: str
    code: str
    pci: str | None
    line: str
    count: int = 1


@dataclass(frozen=True)
class Outcome:
    """A test that ran, or a port that was looked at; `kind`, `name` and `status` are the keys of health_outcomes.toml."""

    source: str
    kind: str
    name: str
    status: str
    place: str
    line: str


@dataclass(frozen=True)
class Unjudged:
    """Something that was looked at and not judged, with what would have been needed."""

    source: str
    what: str


@dataclass
class Facts:
    """Everything read from all sources, in the order given."""

    gpus: list[GpuReading] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    signs: list[Sign] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    unjudged: list[Unjudged] = field(default_factory=list)
    judged: bool = False
    nodes: dict[str, Facts] = field(default_factory=dict)  # of a paste from several machines: each judged apart

    def add(self, other: Facts) -> None:
        """Append what another source said."""
        self.gpus += other.gpus
        self.events += other.events
        self.signs += other.signs
        self.outcomes += other.outcomes
        self.unjudged += other.unjudged
        self.judged = self.judged or other.judged
        for node, facts in other.nodes.items():
            self.nodes.setdefault(node, Facts()).add(facts)
