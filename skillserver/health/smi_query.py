"""`nvidia-smi -q` text, whole or an excerpt, with or without its indentation -> GPU readings.

A block starts at `GPU 00000000:9B:00.0`; an excerpt without such a line is one GPU of unknown place. Sections are told
by indentation; where a paste has lost it, the last line without a value is the section. Does not judge.

>>> parse("paste", "Remapped Rows\\n    Pending : Yes").gpus[0].values
{'remap_pending': True}
"""

from __future__ import annotations

import re

from skillserver.health import fields
from skillserver.health.reading import Facts, GpuReading, Unjudged, normal_pci

KIND = "nvidia-smi -q text"
HEADER = re.compile(r"^\s*GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])\s*$")
PAIR = re.compile(r"^([ \t]*)([A-Za-z][A-Za-z0-9 ./()_-]{0,59}?)\s*[ \t]:(?:[ \t]+(.*)|)$")
SECTION = re.compile(r"^([ \t]*)([A-Za-z][A-Za-z0-9 ./()_-]{1,59})$")
ATTACHED = re.compile(r"^\s*Attached GPUs\s*:\s*(\d+)", re.M)
Block = tuple[str | None, list[str]]


def parse(source: str, text: str) -> Facts | None:
    """Facts of every GPU block, or None when nothing of this layout stands there."""
    if " : " not in text:
        return None
    gpus = [gpu for pci, lines in _blocks(text) if (gpu := _gpu(source, pci, lines))]
    attached = ATTACHED.search(text)
    if not gpus and not attached:
        return None
    facts = Facts(gpus=gpus, judged=any(fields.judgeable(gpu) for gpu in gpus))
    _number(gpus, int(attached[1]) if attached else None, source, facts)
    return facts


def _blocks(text: str) -> list[Block]:
    blocks: list[Block] = [(None, [])]
    for line in text.splitlines():
        if found := HEADER.match(line):
            blocks.append((normal_pci(found[1]), []))
        else:
            blocks[-1][1].append(line)
    return blocks


def _gpu(source: str, pci: str | None, lines: list[str]) -> GpuReading | None:
    gpu = fields.read(_lines(lines), source, pci)
    if pci is None and not fields.judgeable(gpu):
        return None  # the head of the document, or text that only looks like pairs
    return gpu


def _lines(lines: list[str]) -> list[fields.Line]:
    """(sections, leaf, value) of each pair; see the module's word on lost indentation."""
    pairs = [line for line in lines if PAIR.match(line)]
    flat = len(pairs) > 1 and all(not line[:1].isspace() for line in pairs)
    stack: list[tuple[int, str]] = []
    found: list[fields.Line] = []
    for line in lines:
        pair, section = PAIR.match(line), SECTION.match(line)
        if not pair and not section:
            continue
        match = pair or section
        assert match
        depth, label = len(match[1].expandtabs(4)), fields.snake(match[2])
        if flat:
            stack = stack[-1:] if pair else [*(stack if label in NESTED else []), (0, label)]
        else:
            while stack and stack[-1][0] >= depth:
                stack.pop()
        if pair:
            found.append((tuple(name for _depth, name in stack), label, pair[3] or ""))
        if not flat:
            stack.append((depth, label))
    return found


NESTED = frozenset(["bank_remap_availability_histogram"])


def _number(gpus: list[GpuReading], attached: int | None, source: str, facts: Facts) -> None:
    """Blocks come in index order when all are shown; fewer than attached is a cut or a filter, not dead GPUs."""
    shown = [gpu for gpu in gpus if gpu.pci]
    if attached is not None and len(shown) < attached:
        facts.unjudged.append(
            Unjudged(source, f"{attached} GPUs are attached and {len(shown)} shown here: cut, or filtered with -i; the rest was not judged")
        )
    elif shown and len(shown) == attached:
        for index, gpu in enumerate(shown):
            gpu.index = index
