"""What a line of a log can say: the rows of data/error_signatures.toml, compiled, and which of them a line matches.

Matching is cheap on healthy lines: every signature names `gates`, plain words of which a matching line holds one, and
only signatures whose gate is in the line run their regular expressions. Knows single lines and the fields in them; not
order, ranks or causes.

>>> [(found.signature.id, found["xid"]) for found in matches("NVRM: Xid (PCI:0000:44:00): 79, GPU has fallen off the bus")]
[('xid_hardware', '79')]
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from skillserver import tables

Kind = Literal["hardware", "cause", "generic", "symptom", "victim", "circumstance"]
XidClass = Literal["hardware", "program", "minor", "aftermath"]
FALLBACK = "python_exception"  # counts only on lines that nothing else explains


class Sample(BaseModel):
    """A real line and where it was read."""

    text: str
    source: str


class Signature(tables.Record):
    """One row; the head of the table says what each field means."""

    id: str
    title: str
    kind: Kind
    confidence: float
    gates: list[str]
    patterns: list[str]
    meaning: str
    causes: list[str] = Field(default_factory=list)
    checks: list[str] = Field(default_factory=list)
    remedies: list[str]
    topic: str
    sample: str
    source: str
    unless: list[str] = Field(default_factory=list)
    because_of: list[str] = Field(default_factory=list)
    only_with: list[str] = Field(default_factory=list)
    variants: list[Sample] = Field(default_factory=list)
    xid: XidClass | None = None
    late: bool = False
    derived: bool = False


class XidRow(tables.Record):
    """The part of data/xids.toml that says whose fault an Xid is."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    xid: int
    meaning: str
    severity: str
    family: str
    action: str
    sympathetic: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """A signature in one line, with the named groups of its pattern and where the match ended."""

    signature: Signature
    match: re.Match[str]

    def __getitem__(self, name: str) -> str:
        """A named group; "" when the pattern has none of this name or it took no part."""
        return self.match.groupdict().get(name) or ""


@dataclass(frozen=True, slots=True)
class _Compiled:
    signature: Signature
    patterns: tuple[re.Pattern[str], ...]
    unless: tuple[re.Pattern[str], ...]


@functools.cache
def table() -> tuple[Signature, ...]:
    """Every signature, in the order of the file. Raises DataBroken."""
    return tables.load("error_signatures.toml", Signature)


@functools.cache
def by_id() -> dict[str, Signature]:
    """The same by id."""
    return {signature.id: signature for signature in table()}


@functools.cache
def xid_row(number: int) -> XidRow | None:
    """What data/xids.toml says of an Xid, None when it does not know the number."""
    return next((row for row in tables.load("xids.toml", XidRow) if row.xid == number), None)


def xid_class(number: int) -> XidClass | None:
    """Whose fault an Xid is: the hardware's, the program's, hardly anybody's, or that of an event before it."""
    row = xid_row(number)
    if row is None:
        return None
    if row.sympathetic or row.severity == "info":
        return "aftermath"
    if row.family == "program":
        return "program"
    broken = row.severity == "critical" or (row.family == "memory" and not row.action.startswith("observe"))
    return "hardware" if broken else "minor"


@functools.cache
def _index() -> tuple[tuple[str, tuple[tuple[str, tuple[_Compiled, ...]], ...]], ...]:
    """((root, ((gate, signatures), ...)), ...): a gate that holds another gate is looked for only after that one."""
    compiled = [
        _Compiled(row, tuple(map(re.compile, row.patterns)), tuple(map(re.compile, row.unless)))
        for row in table() if row.patterns and row.id != FALLBACK
    ]  # fmt: skip
    gates = sorted({gate for entry in compiled for gate in entry.signature.gates}, key=len)
    roots = [gate for gate in gates if not any(other in gate for other in gates if other != gate)]
    by_gate = {gate: tuple(entry for entry in compiled if gate in entry.signature.gates) for gate in gates}
    return tuple((root, tuple((gate, by_gate[gate]) for gate in gates if root in gate)) for root in roots)


@functools.cache
def _fallback() -> re.Pattern[str]:
    return re.compile(by_id()[FALLBACK].patterns[0])


def suspicious(line: str) -> bool:
    """Whether any gate is in the line, so that it is worth a closer look."""
    low = line.lower()
    return any(root in low for root, _below in _index())


def matches(line: str) -> Iterator[Found]:
    """Every signature that the line matches, each once."""
    low = line.lower()
    seen: set[str] = set()
    for root, gated in _index():
        if root not in low:
            continue
        for gate, entries in gated:
            if gate not in low:
                continue
            for entry in entries:
                if entry.signature.id not in seen and (found := _matched(entry, line)):
                    seen.add(entry.signature.id)
                    yield found


def exception(line: str) -> Found | None:
    """The last line of a Python traceback, when the line is one."""
    if "Error" not in line and "Exception" not in line:
        return None
    match = _fallback().search(line)
    return Found(by_id()[FALLBACK], match) if match else None


def _matched(entry: _Compiled, line: str) -> Found | None:
    match = next((match for pattern in entry.patterns if (match := pattern.search(line))), None)
    if match is None or any(veto.search(line) for veto in entry.unless):
        return None
    if entry.signature.xid and xid_class(int(match["xid"])) != entry.signature.xid:
        return None
    return Found(entry.signature, match)
