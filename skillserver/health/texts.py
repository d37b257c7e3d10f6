"""Known sentences (data/health_texts.toml) in any text -> signs. The rules are data: a new sentence is a new record.

>>> parse("paste", "Failed to initialize NVML: Driver/library version mismatch").signs[0].code
'driver_library_mismatch'
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Literal

from skillserver import tables
from skillserver.findings import Severity
from skillserver.health.reading import Facts, Sign, normal_pci

KIND = "error text of nvidia-smi, NVML, fabric manager or the kernel"
MOST = 1000  # matches of one sentence worth counting


class KnownText(tables.Record):
    """One sentence; see the head of the table."""

    code: str
    needle: str
    pattern: str
    beside: Literal["", "xid"] = ""
    unless: str = ""
    fewest: int = 1
    severity: Severity
    family: str
    reason: str
    action: str
    topic: str
    source: str


@functools.cache
def _known() -> tuple[tuple[KnownText, re.Pattern[str]], ...]:
    return tuple((row, re.compile(row.pattern, re.M)) for row in tables.load("health_texts.toml", KnownText))


def needles() -> list[str]:
    """The literals that a line must hold to be known."""
    return [row.needle for row, _pattern in _known()]


def record(code: str) -> KnownText:
    """The first record of a code; KeyError for an unknown one."""
    return next(row for row, _pattern in _known() if row.code == code)


def parse(source: str, text: str) -> Facts | None:
    """One sign for each sentence and PCI id, counted; None when no known sentence stands there."""
    found: dict[tuple[str, str | None], Sign] = {}
    for row, match in _matches(text):
        groups = match.groupdict()
        pci = normal_pci(groups.get("pci") or groups.get("pci2"))
        line = " ".join(match[0].split())[:240]
        before = found.get((row.code, pci))
        found[row.code, pci] = Sign(source, row.code, pci, before.line if before else line, before.count + 1 if before else 1)
    signs = [sign for sign in found.values() if sign.count >= record(sign.code).fewest]
    return Facts(signs=signs, judged=True) if signs else None


def _matches(text: str) -> Iterator[tuple[KnownText, re.Match[str]]]:
    for row, pattern in _known():
        if row.needle not in text or (row.beside == "xid" and "Xid (" not in text) or (row.unless and row.unless in text):
            continue
        for number, match in enumerate(pattern.finditer(text)):
            if number == MOST:
                break
            yield row, match
