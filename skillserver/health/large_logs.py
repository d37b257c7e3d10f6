"""A large log as a stream: only the lines that a rule could know are kept, the newest where even these are too many.

Reads blocks of 4 MiB, so that memory follows what is kept, not the file. What is kept begins with one line (MARK) that
says so. Not for documents of many lines that belong together (XML, -q): these are never that large.

>>> kept(open("kern.log", "rb"), 16 * 2**20)[:40]
'only lines that may matter were kept: ...'
"""

from __future__ import annotations

import functools
import re
from collections import deque
from typing import BinaryIO

from skillserver.health import texts

BLOCK = 4 * 2**20
MARK = "only lines that may matter were kept: "
ALWAYS = (b"Xid", b"NVRM", b"nvidia", b"NVML", b"amdgpu", b"mlx5_", b" ib", b"PCIe", b"fabricmanager", b"oom-kill", b"Out of memory")
SAME = re.compile(rb"Xid \([^)]{1,60}\):? ?\d+")
MOST_SAME = 2000  # lines of one Xid on one GPU: enough to judge it, and a flood must not push out the rare line that matters
LONGEST = 4000


def kept(file: BinaryIO, most: int) -> str:
    """The lines that may matter, at most `most` bytes of them, newest last."""
    lines: deque[bytes] = deque()
    counts: dict[bytes, int] = {}
    size = total = dropped = 0
    rest = b""
    while block := file.read(BLOCK):
        total += len(block)
        block = rest + block
        cut = block.rfind(b"\n") + 1
        rest, block = (block[cut:], block[:cut]) if cut else (block[-LONGEST:], b"")
        for line in _matching(block):
            if (found := SAME.search(line)) and (seen := counts.get(found[0], 0) + 1):
                counts[found[0]] = seen
                if seen > MOST_SAME:
                    continue
            lines.append(line)
            size += len(line)
        while size > most:
            size -= len(lines.popleft())
            dropped += 1
    lines += [rest[:LONGEST]] if rest and _search().search(rest) else []
    same = sum(max(0, seen - MOST_SAME) for seen in counts.values())
    note = f", {same:,} repeats of an Xid on one GPU left out" if same else ""
    note += f", of these the oldest {dropped:,} left out" if dropped else ""
    head = f"{MARK}{len(lines):,} lines of {total / 2**20:.0f} MiB{note}\n"
    return head + b"\n".join(line.strip(b"\n") for line in lines).decode("utf-8", errors="replace")


@functools.cache
def _search() -> re.Pattern[bytes]:
    """Words of the kinds of lines that we read: a plain alternation is the fastest that `re` offers."""
    needles = {needle.encode() for needle in texts.needles() if len(needle) > 6}
    return re.compile(b"|".join(re.escape(word) for word in sorted({*ALWAYS, *needles})))


def _matching(block: bytes) -> list[bytes]:
    """Lines of a block with one of the words, found by jumping from hit to hit."""
    found, place, search = [], 0, _search()
    while hit := search.search(block, place):
        start = block.rfind(b"\n", 0, hit.start()) + 1
        end = block.find(b"\n", hit.end())
        end = len(block) if end < 0 else end
        found.append(block[start : min(end, start + LONGEST)])
        place = end + 1
    return found
