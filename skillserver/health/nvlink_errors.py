"""What the registers of an NVLink error line say: Xid 144 to 150 (NVLink 5) and Xid 74 (before it).

The tables are NVIDIA's (data/nvlink5_units.toml, data/nvlink_bits.toml). A line without registers is judged by its word
(Fatal, Nonfatal); a status that no row names is worth a report, never more than the line's own word. Which end of a link
was first is not in the line of one end.

>>> judged(145, "RLW_REMAP Nonfatal XC0 i0 Link 02 (0x00000004 0x00000040 0x0 0x0)").severity
'critical'
"""

from __future__ import annotations

import functools
import re
from typing import Literal, NamedTuple

from skillserver import tables
from skillserver.findings import Severity

NVLINK5 = range(144, 151)
REGISTERS = re.compile(r"\((0x[0-9a-f]+(?:[ ,]+0x[0-9a-f]+)*)", re.I)
UNIT = re.compile(r"\b([A-Z][A-Z0-9_]+(?:/[A-Z0-9_]+)?)\s+(?:Link\s+)?(?:Fatal|Non-?fatal)", re.I)
LINK = re.compile(r"\blink:?\s*(\d+)", re.I)
FATAL = "reset: drain, reset the GPU when its programs have ended; look for the link that went down first"
BY_154 = "restart_app: restart the program if it died; reset only if jobs keep failing or an Xid 154 beside it asks for it"
NOTE = "observe: jobs may run; report it to the vendor when it returns"
SIGNAL = "observe: jobs may run; look at the link's error rate, cable and connector"
SECONDARY = "reset: drain, find the other end's error first, then reset both ends (GPU reset or reboot)"
QUIET_74 = "observe: jobs may run; look again when it repeats"


class Unit(tables.Record):
    """A row of nvlink5_units.toml."""

    xid: int
    unit: str
    code: int
    old_code: int
    fatal: tuple[int, ...] = ()
    by_154: tuple[int, ...] = ()
    quiet: tuple[int, ...] = ()
    source: str


class Bits(tables.Record):
    """A row of nvlink_bits.toml."""

    kind: Literal["xid_74", "link_down"]
    word: int
    bits: tuple[int, ...]
    weight: Literal["fatal", "link", "secondary", "quiet", "none"]
    meaning: str
    source: str


class Judged(NamedTuple):
    """Severity, action and what was decoded."""

    severity: Severity
    action: str
    said: str


@functools.cache
def _units() -> tuple[Unit, ...]:
    return tables.load("nvlink5_units.toml", Unit)


@functools.cache
def _bits(kind: str) -> tuple[Bits, ...]:
    return tuple(row for row in tables.load("nvlink_bits.toml", Bits) if row.kind == kind)


def judged(number: int, text: str) -> Judged | None:
    """What one line of Xid 74 or 144 to 150 means; None for other numbers and for lines that say nothing more than the number."""
    found = REGISTERS.search(text)
    registers = [int(word, 16) for word in re.findall(r"0x[0-9a-f]+", found[1], re.I)] if found else []
    if number == 74:
        return _nvlink_4(registers, text)
    return _nvlink_5(number, registers, text) if number in NVLINK5 else None


def _nvlink_5(number: int, registers: list[int], text: str) -> Judged | None:
    word = "fatal" if re.search(r"(?<!non)(?<!non-)\bfatal\b", text, re.I) else "non-fatal" if re.search(r"\bnon-?fatal\b", text, re.I) else ""
    name = found[1].upper() if (found := UNIT.search(text)) else ""
    if "LINK_DOWN" in name or "LINK_EVT" in name:
        return _link_down(registers, word)
    if "BER_EVENT" in name:
        return Judged("warning", SIGNAL, "the link's bit-error rate passed a limit")
    row = _unit(number, name, registers)
    status = registers[1] if len(registers) > 1 else None
    shown = f"{row.unit if row else name or f'Xid {number}'}{'' if status is None else f' status {status:#x}'}"
    if word == "fatal" or (row and status in row.fatal):
        return Judged("critical", FATAL, f"{shown}: fatal")
    if row and status is not None:
        if status in row.by_154:
            return Judged("warning", BY_154, f"{shown}: the program is ended, the GPU need not be")
        return Judged("warning", NOTE, f"{shown}: {'nothing to do' if status in row.quiet else 'not fatal'}")
    if not word:
        return None
    return Judged("warning", BY_154 if row is None or row.by_154 else NOTE, f"{shown}: not fatal")


def _unit(number: int, name: str, registers: list[int]) -> Unit | None:
    """By its word, else by the code in the first register (two driver layouts)."""
    mine = [row for row in _units() if row.xid == number]
    by_name = next((row for row in mine if row.unit in name.split("/")), None)
    if by_name or not registers:
        return by_name
    return next((row for row in mine if registers[0] & 0x7F == row.code or registers[0] & 0x3FF == row.old_code), None)


def _link_down(registers: list[int], word: str) -> Judged:
    reason = registers[0] >> 20 & 0x3F if registers else None
    row = next((row for row in _bits("link_down") if reason in row.bits), None)
    said = f"the link went down{'' if reason is None else f', reason {reason}'}{f': {row.meaning}' if row else ''}"
    if row and row.weight == "none":
        return Judged("warning", "observe: no GPU reset is needed; ask who took the link down, restart jobs that used it", said)
    if word == "non-fatal" and row is None:
        return Judged("warning", SIGNAL, said)
    action = FATAL if row is None or row.weight != "secondary" else SECONDARY
    return Judged("critical", action, said)


def _nvlink_4(registers: list[int], text: str) -> Judged | None:
    """The strongest set bit speaks; bits that no row names keep the table's own severity."""
    found = [(row, bit) for row in _bits("xid_74") if row.word <= len(registers)
             for bit in row.bits if registers[row.word - 1] >> bit & 1]  # fmt: skip
    if not found:
        return None
    row, bit = min(found, key=lambda one: ("fatal", "link", "secondary", "quiet").index(one[0].weight))
    link = f"link {number[1]}, " if (number := LINK.search(text)) else ""
    said = f"{link}register {row.word} bit {bit}: {row.meaning}"
    if row.weight == "quiet":
        return Judged("warning", QUIET_74, said)
    if row.weight == "secondary":
        return Judged("critical", SECONDARY, said)
    return Judged("critical", "reset: drain, reset both ends (GPU reset or reboot); reseat and run the field diagnostic if it returns", said)
