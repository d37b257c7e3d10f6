"""What a line of a log can say: the rows of data/error_signatures.toml, compiled, and which of them a line matches.

Matching is cheap on healthy lines: every signature names `gates`, plain words of which a matching line holds one, and
only signatures whose gate is in the line run their regular expressions. Which those are is remembered by the shape of the
line, its digits written as zeros: a pattern in which every digit stands for any digit matches whatever lines of that shape
the pattern itself matches. Knows single lines and the fields in them; not order, ranks or causes.

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
ZEROS = bytes.maketrans(b"123456789", b"000000000")
TOKEN = re.compile(r"\\.|\{\d+(?:,\d*)?\}|\(\?P<\w+>|\[\^?(?:\\.|[^\]\\])+\]|\d")  # parts of a pattern that can hold a digit
ANY = re.compile("")
SHAPES, LONGEST_SHAPE = 50_000, 700  # shapes remembered, bytes of one


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
    any_level: bool = False
    aside: bool = False
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
    """`blind` are the patterns for shapes."""

    signature: Signature
    patterns: tuple[re.Pattern[str], ...]
    unless: tuple[re.Pattern[str], ...]
    blind: tuple[re.Pattern[str], ...]


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
        _Compiled(row, tuple(map(re.compile, row.patterns)), tuple(map(re.compile, row.unless)), tuple(map(_blind, row.patterns)))
        for row in table() if row.patterns and row.id != FALLBACK
    ]  # fmt: skip
    gates = sorted({gate for entry in compiled for gate in entry.signature.gates}, key=len)
    roots = [gate for gate in gates if not any(other in gate for other in gates if other != gate)]
    by_gate = {gate: tuple(entry for entry in compiled if gate in entry.signature.gates) for gate in gates}
    return tuple((root, tuple((gate, by_gate[gate]) for gate in gates if root in gate)) for root in roots)


@functools.cache
def _fallback() -> re.Pattern[str]:
    return re.compile(by_id()[FALLBACK].patterns[0])


@functools.cache
def _roots() -> tuple[str, ...]:
    return tuple(root for root, _below in _index())


def _blind(pattern: str) -> re.Pattern[str]:
    """A pattern that finds, in shapes, at least what this one finds in lines; one that finds everything when in doubt."""
    tokens = TOKEN.findall(pattern)
    said = [token for token in tokens if token[0] in "\\[0123456789" and any(map(str.isdigit, token.replace("0-9", "")))]
    if any(token[0] == "\\" or token[:2] == "[^" for token in said) or (said and re.search(r"\(\?<?!", pattern)):
        return ANY
    return re.compile(TOKEN.sub(lambda match: _any_digit(match[0]), pattern))


def _any_digit(token: str) -> str:
    if token.isdigit():
        return r"\d"
    return token[:-1] + r"\d]" if token[0] == "[" and any(map(str.isdigit, token)) else token


def suspicious(line: str) -> bool:
    """Whether any gate is in the line, so that it is worth a closer look."""
    low = line.lower()
    for root in _roots():  # noqa: SIM110  a plain loop: `any` of a generator costs three times as much, and this is the hot path
        if root in low:
            return True
    return False


def shape(line: str) -> bytes:
    """The line with its digits written as zeros."""
    return line.encode("utf-8", "surrogatepass").translate(ZEROS)


def can_match(shaped: bytes) -> bool:
    """Whether a line of this shape can match a signature."""
    return bool(_worth(shaped))


def matches(line: str, shaped: bytes | None = None) -> Iterator[Found]:
    """Every signature that the line matches, each once; `shaped` is its shape, when it is known already."""
    worth = _worth(shaped or shape(line))
    if not worth:
        return
    low = line.lower()
    seen: set[str] = set()
    for gate, entry in worth:
        if gate in low and entry.signature.id not in seen and (found := _matched(entry, line)):
            seen.add(entry.signature.id)
            yield found


_Worth = tuple[tuple[str, _Compiled], ...]
_known: dict[bytes, _Worth] = {}


def _worth(shaped: bytes) -> _Worth:
    """The (gate, signature) pairs that a line of this shape can match, kept for the next one."""
    found = _known.get(shaped)
    if found is None:
        found = tuple(_worth_trying(shaped.decode("utf-8", "surrogatepass")))
        if len(shaped) <= LONGEST_SHAPE:
            if len(_known) >= SHAPES:
                _known.clear()
            _known[shaped] = found
    return found


def _worth_trying(shaped: str) -> list[tuple[str, _Compiled]]:
    low = shaped.lower()
    found: list[tuple[str, _Compiled]] = []
    tried: dict[str, bool] = {}
    for root, gated in _zeroed():
        if root in low:
            for zeros, gate, entries in gated:
                if zeros in low:
                    for entry in entries:
                        name = entry.signature.id
                        if name not in tried:
                            tried[name] = _any_in(entry.blind, shaped)
                        if tried[name]:
                            found.append((gate, entry))
    return found


def _any_in(patterns: tuple[re.Pattern[str], ...], text: str) -> bool:
    for pattern in patterns:  # noqa: SIM110
        if pattern.search(text):
            return True
    return False


@functools.cache
def _zeroed() -> tuple[tuple[str, tuple[tuple[str, str, tuple[_Compiled, ...]], ...]], ...]:
    """The index with the digits of its gates written as zeros, as they are in a shape."""
    digits = str.maketrans("123456789", "0" * 9)
    return tuple((root.translate(digits), tuple((gate.translate(digits), gate, entries) for gate, entries in gated)) for root, gated in _index())


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
