"""`nvidia-smi topo -m`: how GPUs reach each other -> readings with the number of NVLinks to their peers.

A pair without NVLink, or with fewer links than the other pairs, on a board where every other pair has them, is a link
that is out. Where no pair has NVLink the machine has none, and nothing follows. Does not judge.

>>> parse("paste", matrix).gpus[1].values["nvlink_peers_missing"]
'GPU0 (SYS)'
"""

from __future__ import annotations

import re
from collections import Counter

from skillserver.health.reading import Facts, GpuReading

KIND = "nvidia-smi topo -m"
HEAD = re.compile(r"^\s*(GPU\d+(?:\s+GPU\d+)+)\b")
ROW = re.compile(r"^(GPU\d+)\s+(.*)$")
LINKS = re.compile(r"NV(\d+)$")
FEWEST_GPUS = 3  # with two, one pair has no others to be compared with


def parse(source: str, text: str) -> Facts | None:
    """One reading for each GPU of the matrix; None without one."""
    if "GPU0" not in text and "GPU1" not in text:
        return None
    names: list[str] = []
    pairs: dict[tuple[str, str], str] = {}
    for line in text.splitlines():
        clean = re.sub(r"\x1b\[[0-9;]*m", "", line)
        if found := HEAD.match(clean):
            names = found[1].split()
        elif names and (found := ROW.match(clean)):
            for name, cell in zip(names, found[2].split(), strict=False):
                if name != found[1]:
                    pairs[found[1], name] = cell
    if not pairs:
        return None
    usual = Counter(cell for cell in pairs.values() if LINKS.match(cell)).most_common(1)
    gpus = [_reading(source, name, {peer: cell for (mine, peer), cell in pairs.items() if mine == name}, len(names)) for name in names]
    _odd(gpus, pairs, usual[0] if usual else ("", 0), names)
    return Facts(gpus=gpus, judged=bool(usual))


def _reading(source: str, name: str, cells: dict[str, str], count: int) -> GpuReading:
    gpu = GpuReading(source, None, int(name[3:]))
    gpu.values["nvlink_peers"] = float(sum(bool(LINKS.match(cell)) for cell in cells.values()))
    return gpu


def _odd(gpus: list[GpuReading], pairs: dict[tuple[str, str], str], usual: tuple[str, int], names: list[str]) -> None:
    """Only where at least three of four pairs are alike: hybrid meshes (DGX-1) mix NV1 and NV2 by design."""
    if len(names) < FEWEST_GPUS or usual[1] * 4 < len(pairs) * 3 - 8 or usual[1] * 2 < len(pairs):
        return
    most = int(usual[0][2:])
    for gpu in gpus:
        mine = f"GPU{gpu.index}"
        odd = [(peer, cell) for (one, peer), cell in pairs.items() if one == mine and cell != usual[0] and _fewer(cell, most)]
        if odd:
            gpu.values["nvlink_peers_missing"] = ", ".join(f"{peer} ({cell}, others {usual[0]})" for peer, cell in odd)


def _fewer(cell: str, most: int) -> bool:
    found = LINKS.match(cell)
    return int(found[1]) < most if found else bool(re.match(r"(?:SYS|NODE|PHB|PXB|PIX)$", cell))
