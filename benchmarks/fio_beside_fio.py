"""Does our storage benchmark say what fio says by hand? Ours and a bare fio command with the same job, in turns.

    python benchmarks/fio_beside_fio.py --folder /scratch/me --pairs 7

Each pair runs one pattern through the worker's own function (a nameless file, opened through /proc/self/fd) and as a person
would type it (a named file in the same folder), in turns and each time in the other order, both after the same layout of
the file. Prints for every pattern both medians, the median ratio of the pairs and its spread; within 15 % is the promise.
On a disk that others use too the spread says more of them than of us.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "skillserver/workers/scripts"))
import storage_fio
import storage_sample

PROMISE = 0.15
MIB = 2**20


def figure(document: dict[str, Any], way: str) -> float:
    """GB/s of a document of fio."""
    return sum(job[way]["bw_bytes"] for job in document["jobs"]) / 1e9


def by_hand(binary: str, pattern: dict[str, Any], file: Path, run: dict[str, Any]) -> dict[str, Any]:
    """fio as a person would start it."""
    command = [binary, "--output-format=json", "--name=by_hand", f"--filename={file}", *storage_fio.options(pattern, run)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    document: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])
    return document


def pairs(binary: str, pattern: dict[str, Any], nameless: int, named: Path, run: dict[str, Any], count: int) -> list[tuple[float, float]]:
    """(ours, by hand) of every pair, in GB/s."""
    way, found = "write" if "write" in pattern["rw"] else "read", []
    for number in range(count):
        pair = {}
        for who in ("ours", "hand") if number % 2 else ("hand", "ours"):
            ours = who == "ours"
            pair[who] = figure(storage_fio.measure(binary, pattern, nameless, run) if ours else by_hand(binary, pattern, named, run), way)
        found.append((pair["ours"], pair["hand"]))
    return found


def compare(name: str, found: list[tuple[float, float]]) -> dict[str, Any]:
    """Medians and the ratio of one pattern."""
    ratios = sorted(ours / hand for ours, hand in found)
    ours, hand = (statistics.median(column) for column in zip(*found, strict=True))
    return {"pattern": name, "pairs": len(found), "ours_gb_s": round(ours, 3), "by_hand_gb_s": round(hand, 3),
            "ratio": round(statistics.median(ratios), 3), "ratio_low": round(ratios[0], 3), "ratio_high": round(ratios[-1], 3)}  # fmt: skip


def shown(row: dict[str, Any]) -> str:
    """One line a pattern, with the promise."""
    kept = "within" if abs(row["ratio"] - 1) <= PROMISE else "OUTSIDE"
    rates = f"ours {row['ours_gb_s']:>7} GB/s  by hand {row['by_hand_gb_s']:>7} GB/s"
    return f"{row['pattern']:<17} {rates}  ratio {row['ratio']} ({row['ratio_low']}..{row['ratio_high']})  {kept} {PROMISE:.0%}"


def main() -> None:
    """Print one row a pattern; says so where there is no fio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", default=tempfile.gettempdir())
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2, help="for one measurement")
    parser.add_argument("--mib", type=int, default=512, help="size of the file")
    chosen = parser.parse_args()
    binary, version = storage_fio.find()
    if not binary:
        return print("fio is not installed: nothing was compared")
    with tempfile.TemporaryDirectory(dir=chosen.folder) as folder:
        nameless, named = storage_sample.nameless(folder), Path(folder) / "by_hand"
        os.ftruncate(nameless, chosen.mib * MIB)
        named.touch()
        os.truncate(named, chosen.mib * MIB)
        os.pwrite(nameless, bytes(4096), 0)
        os.fsync(nameless)
        direct = storage_sample.reader(nameless)[1]
        run = {"bytes": chosen.mib * MIB, "seconds": chosen.seconds, "engine": storage_fio.engine(binary), "direct": direct}
        print(f"{version}, {run['engine']}, direct={int(direct)}, {chosen.mib} MiB, {chosen.seconds:g} s each")
        for pattern in storage_fio.PATTERNS:
            print(shown(compare(pattern["name"], pairs(binary, pattern, nameless, named, run, chosen.pairs))), flush=True)
    return None


if __name__ == "__main__":
    main()
