"""Pasted text -> facts: every parser looks at the whole paste and takes what it knows, so mixed pastes work.

Of a text beyond 16 MiB the lines that may matter are kept. A paste from
several machines is judged machine by machine. Text that no parser knows is said to be so, with what was expected; it is
never judged. Adding a kind of capture is one file with `KIND` and `parse(source, text)`, and its name in LINES, KINDS.

>>> read([("paste", "hello")]).unjudged[0].what
'nothing known stands in these 5 characters; expected one of: ...'
"""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Callable, Iterable
from pathlib import Path

from skillserver.health import (
    amd_smi,
    dcgm,
    dcgm_health,
    infiniband,
    kernel_log,
    large_logs,
    moments,
    nhc,
    nodes,
    nvlink,
    rocm,
    smi_csv,
    smi_query,
    smi_table,
    smi_xml,
    texts,
    topology,
)
from skillserver.health.reading import Facts, Unjudged

Parser = Callable[[str, str], Facts | None]
DOCUMENTS: tuple[Parser, ...] = (
    smi_xml.parse,
    dcgm.parse_json,
    dcgm_health.parse_json,
    nvlink.parse_json,
    rocm.parse_json,
    amd_smi.parse_json,
)  # one line may hold all
MODULES = (smi_query, smi_table, smi_csv, kernel_log, texts, nvlink, topology, dcgm, dcgm_health, infiniband, rocm, amd_smi, nhc)
LINES: tuple[Parser, ...] = tuple(module.parse for module in MODULES)
KINDS = tuple(module.KIND for module in (smi_xml, *MODULES))
MOST_CHARACTERS = 16 * 2**20
LONGEST_LINE = 1000  # no line that we read is longer, and long ones are where regular expressions lose their time
ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def read_file(path: Path) -> str:
    """Text of a file; UTF-16 of Windows shells is understood. Of a large file (300 MiB is fine) the lines that may matter are kept."""
    with path.open("rb") as file:
        head = file.read(4)
        encoding = "utf-16" if head[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8"
        file.seek(0)
        if encoding == "utf-16" or path.stat().st_size <= MOST_CHARACTERS:
            return file.read(2 * MOST_CHARACTERS).decode(encoding, errors="replace")
        return large_logs.kept(file, MOST_CHARACTERS)


def read(captures: Iterable[tuple[str, str]]) -> Facts:
    """Facts of all captures, (name, text) each."""
    facts = Facts()
    for name, text in captures:
        facts.add(_capture(name or "capture", text))
    return facts


def _capture(name: str, text: str) -> Facts:
    facts = Facts()
    if len(text) > MOST_CHARACTERS:
        kept = large_logs.kept(io.BytesIO(text.encode("utf-8", errors="replace")), MOST_CHARACTERS)
        facts.unjudged.append(Unjudged(name, f"of {len(text):,} characters only the lines that may matter were read"))
        text = kept
    if text.startswith(large_logs.MARK):
        mark, _, text = text.partition("\n")
        facts.unjudged.append(Unjudged(name, mark))
    if text.count("\x00") > len(text) // 100 and (wide := _utf_16(text)):
        text = wide
    if text.count("\x00") > len(text) // 100 or (text and text.count("\ufffd") > len(text) // 20):
        facts.unjudged.append(Unjudged(name, f"binary data, not text; {expected()}"))
        return facts
    clean = ANSI.sub("", text.lstrip("\ufeff")).replace("\r\n", "\n").replace("\x00", "").replace("\xa0", " ")
    clean = _unquoted(clean)
    parts = nodes.split(clean) if clean.strip() else [("", clean)]
    if len([node for node, _part in parts if node]) < 2:
        facts.add(_one(name, "\n".join(part for _node, part in parts)))
        return facts
    for node, part in parts:
        facts.add(_one(name, part)) if not node else facts.nodes.setdefault(node, Facts()).add(_one(f"{name} {node}", part))
    return facts


def _unquoted(text: str) -> str:
    """Without the `> ` of a mail or the indentation that all lines share; layouts within stay as they are."""
    lines = text.split("\n")
    if all(line.startswith(">") or not line for line in lines) and text.strip():
        text = "\n".join(line[1:].removeprefix(" ") for line in lines)
    return textwrap.dedent(text) if text.lstrip("\n")[:1] in (" ", "\t") else text


def _utf_16(text: str) -> str:
    """A UTF-16 text whose zero bytes came through a paste as characters."""
    without = text.replace("\x00", "").replace("\ufffd", "")
    return without if len(without) * 2 <= len(text) + 4 and without.isascii() and without.count("\n") else ""


def _one(name: str, clean: str) -> Facts:
    facts = Facts()
    lines = "\n".join(line[:LONGEST_LINE] for line in clean.splitlines())
    found = [part for parse in DOCUMENTS if (part := parse(name, clean))] + [part for parse in LINES if (part := parse(name, lines))]
    for part in found:
        facts.add(part)
    moments.give(facts.gpus, lines)
    if not found:
        what = "is empty" if not clean.strip() else f"nothing known stands in these {len(clean):,} characters"
        facts.unjudged.append(Unjudged(name, f"{what}; {expected()}"))
    return facts


def expected() -> str:
    """What a capture may be, for the one who must make another."""
    return f"expected one of: {', '.join(KINDS)}"
