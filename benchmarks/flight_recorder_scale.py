"""How long diagnose_hang takes on Flight Recorder dumps of a large job, and how much memory its processes hold.

    python benchmarks/flight_recorder_scale.py [ranks entries] ...

Writes dumps in which one rank misses the last collective, then judges them in a process of its own. Prints one line a
size: ranks, entries, MB on disk, median seconds of 3 runs, largest resident memory of all its processes together.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/diagnose"))
import flight_dumps  # noqa: E402

SIZES = [(4096, 100), (512, 2000)]
RUNS = 3
JUDGE = """
import json, sys
from skillserver.tools.hang import diagnose_hang
found = diagnose_hang(paths=[sys.argv[1]])
print(json.dumps({"culprits": found.culprits, "verdict": found.verdict}))
"""


def generate(folder: Path, ranks: int, entries: int) -> int:
    """Dumps of which `ranks // 3` is one collective behind; returns the bytes written. Only names and times differ, as in a real job."""
    groups = flight_dumps.config(g0=range(ranks))
    whole = [*flight_dumps.steps(entries - 1), flight_dumps.entry(entries - 1, entries, done=False)]
    first = flight_dumps.write(folder, 0, whole, groups).read_bytes()
    total = 0
    for rank in range(ranks):
        path = folder / f"nccl_trace_rank_{rank}"
        path.write_bytes(first)
        total += len(first)
    flight_dumps.write(folder, ranks // 3, whole[:-1], groups)
    return total


def measured(folder: Path) -> tuple[float, float, dict[str, object]]:
    """(seconds, GiB resident at most over the process and its children, answer)."""
    started = time.perf_counter()
    child = psutil.Popen([sys.executable, "-c", JUDGE, str(folder)], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    peak = 0
    while child.poll() is None:
        peak = max(peak, _resident(child))
        time.sleep(0.05)
    return time.perf_counter() - started, peak / 2**30, json.loads(child.stdout.read())


def _resident(child: psutil.Popen) -> int:
    total = 0
    for process in [child, *_children(child)]:
        try:
            total += process.memory_info().rss
        except psutil.Error:
            continue
    return total


def _children(child: psutil.Popen) -> list[psutil.Process]:
    try:
        return child.children(recursive=True)
    except psutil.Error:
        return []


def main() -> None:
    given = [int(text) for text in sys.argv[1:]]
    for ranks, entries in zip(given[::2], given[1::2], strict=True) if given else SIZES:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / "dumps"
            size = generate(folder, ranks, entries)
            rows = [measured(folder) for _ in range(RUNS)]
            assert all(row[2]["culprits"] == [ranks // 3] for row in rows), rows[0][2]
            seconds = sorted(row[0] for row in rows)
            print(f"flight recorder: {ranks} ranks x {entries} entries, {size / 1e6:,.0f} MB: {statistics.median(seconds):.1f} s "
                  f"({seconds[0]:.1f} to {seconds[-1]:.1f}), {max(row[1] for row in rows):.2f} GiB at most")  # fmt: skip


if __name__ == "__main__":
    main()
