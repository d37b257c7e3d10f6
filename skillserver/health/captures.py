"""Pasted text -> facts: every parser looks at the whole paste and takes what it knows, so mixed pastes work.

The newest 16 MiB of a larger text are read. Text that no parser knows is said to be so, with what was expected; it is
never judged. Adding a kind of capture is one file with `KIND` and `parse(source, text)`, and its name in LINES, KINDS.

>>> read([("paste", "hello")]).unjudged[0].what
'nothing known stands in these 5 characters; expected one of: ...'
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path

from skillserver.health import dcgm, infiniband, kernel_log, nvlink, rocm, smi_csv, smi_query, smi_table, smi_xml, texts
from skillserver.health.reading import Facts, Unjudged

Parser = Callable[[str, str], Facts | None]
DOCUMENTS: tuple[Parser, ...] = (smi_xml.parse, dcgm.parse_json, nvlink.parse_json, rocm.parse_json)  # one line may hold all
LINES: tuple[Parser, ...] = tuple(module.parse for module in (smi_query, smi_table, smi_csv, kernel_log, texts, nvlink, dcgm, infiniband, rocm))
KINDS = tuple(module.KIND for module in (smi_xml, smi_query, smi_table, smi_csv, kernel_log, texts, nvlink, dcgm, infiniband, rocm))
MOST_CHARACTERS = 16 * 2**20
LONGEST_LINE = 1000  # no line that we read is longer, and long ones are where regular expressions lose their time
ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def read_file(path: Path) -> str:
    """Text of a file, its newest part when it is large; UTF-16 of Windows shells is understood."""
    with path.open("rb") as file:
        size = path.stat().st_size
        file.seek(max(0, size - 2 * MOST_CHARACTERS))
        raw = file.read()
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return raw.decode("utf-16", errors="replace")
    return raw.decode("utf-8", errors="replace")


def read(captures: Iterable[tuple[str, str]]) -> Facts:
    """Facts of all captures, (name, text) each."""
    facts = Facts()
    for name, text in captures:
        facts.add(_one(name or "capture", text))
    return facts


def _one(name: str, text: str) -> Facts:
    facts = Facts()
    if len(text) > MOST_CHARACTERS:
        facts.unjudged.append(Unjudged(name, f"only the last 16 MiB of {len(text):,} characters were read"))
        text = text[-MOST_CHARACTERS:]
    if text.count("\x00") > len(text) // 100 or (text and text.count("\ufffd") > len(text) // 20):
        facts.unjudged.append(Unjudged(name, f"binary data, not text; {expected()}"))
        return facts
    clean = ANSI.sub("", text.lstrip("\ufeff")).replace("\r\n", "\n").replace("\x00", "")
    lines = "\n".join(line[:LONGEST_LINE] for line in clean.splitlines())
    found = [part for parse in DOCUMENTS if (part := parse(name, clean))] + [part for parse in LINES if (part := parse(name, lines))]
    for part in found:
        facts.add(part)
    if not found:
        what = "is empty" if not text.strip() else f"nothing known stands in these {len(text):,} characters"
        facts.unjudged.append(Unjudged(name, f"{what}; {expected()}"))
    return facts


def expected() -> str:
    """What a capture may be, for the one who must make another."""
    return f"expected one of: {', '.join(KINDS)}"
