"""Our all-reduce on gloo beside the same all-reduce of an independent MPI program, in turns.

    apt install openmpi-bin libopenmpi-dev; python benchmarks/all_reduce_beside_mpi.py --pairs 7

`mpi_all_reduce.c` is compiled here and run twice a pair: over TCP on loopback, which is gloo's own path, and over shared
memory, which gloo does not have. Same definition on both sides: a barrier, one call in place on fp32, the median over
iterations of the largest time over ranks; both check their sums. Two libraries need not be equally fast: MPI polls, which
makes small messages fast and takes the core from others where cores are few. So this promises nothing and is read by
people: a size or a clock that is wrong by a factor would show at the largest sizes. Without mpirun it says so.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SCRIPTS = HERE.parent / "skillserver/workers/scripts"
WAYS = {"tcp": ["--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo"], "shared memory": []}


def ours(sizes: list[int], ranks: int, seconds: float, python: str) -> dict[int, float]:
    """{bytes: microseconds} by our worker."""
    settings = {"backend": "gloo", "sizes": sizes, "budget_s": seconds}
    command = [python, str(SCRIPTS / "launch.py"), "--nproc", str(ranks), str(SCRIPTS / "torch_collective.py"), "--settings", json.dumps(settings)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=dict(os.environ, OMP_NUM_THREADS="1"))
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.strip()]
    payload = next((line["payload"] for line in lines if line["type"] == "result"), None)
    if payload is None:
        sys.exit(done.stderr[-2000:])
    return {row["bytes"]: row["time_us"] for row in payload["rows"] if row["correct"]}


def mpi(program: Path, way: str, sizes: list[int], ranks: int, iterations: int) -> dict[int, float]:
    """{bytes: microseconds} by the MPI program."""
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    command = [
        "mpirun",
        *root,
        "--oversubscribe",
        "--mca",
        "mpi_yield_when_idle",
        "1",
        *WAYS[way],
        "-np",
        str(ranks),
        str(program),
        str(iterations),
        *map(str, sizes),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode:
        sys.exit(f"mpirun over {way}: {done.stderr[-1000:]}")
    rows = [line.split() for line in done.stdout.splitlines()]
    return {int(size): float(took) for size, took, right in rows if right == "1"}


def compare(size: int, rows: list[dict[str, dict[int, float]]]) -> dict[str, Any]:
    """Medians of one size, and ours over MPI's with its spread."""
    told: dict[str, Any] = {"bytes": size, "pairs": len(rows), "ours_us": round(statistics.median(row["ours"][size] for row in rows), 1)}
    for way in WAYS:
        ratios = sorted(row["ours"][size] / row[way][size] for row in rows)
        told[way] = {"us": round(statistics.median(row[way][size] for row in rows), 1), "ratio": round(statistics.median(ratios), 2),
                     "low": round(ratios[0], 2), "high": round(ratios[-1], 2)}  # fmt: skip
    return told


def shown(row: dict[str, Any]) -> str:
    """One line a size."""
    ways = "  ".join(f"MPI {way} {row[way]['us']} us, ratio {row[way]['ratio']} ({row[way]['low']}..{row[way]['high']})" for way in WAYS)
    return f"{row['bytes']:>10} B  ours {row['ours_us']} us  {ways}"


def main() -> None:
    """Compile, measure in turns, print one row a size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[2**16, 2**20, 2**23, 2**26])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=4.0, help="for one of our measurements")
    parser.add_argument("--iterations", type=int, default=30, help="of MPI, a size")
    parser.add_argument("--python", default=sys.executable, help="an environment with torch")
    parser.add_argument("--json", type=Path, help="write the rows here")
    chosen = parser.parse_args()
    if not shutil.which("mpirun") or not shutil.which("mpicc"):
        print("skipped: no mpirun and mpicc here (apt install openmpi-bin libopenmpi-dev)")
        return
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "mpi_all_reduce"
        subprocess.run(["mpicc", "-O2", str(HERE / "mpi_all_reduce.c"), "-o", str(program)], check=True)
        rows = []
        for number in range(chosen.pairs):
            found: dict[str, dict[int, float]] = {}
            for who in ["ours", *WAYS] if number % 2 else [*WAYS, "ours"]:
                found[who] = (ours(chosen.sizes, chosen.ranks, chosen.seconds, chosen.python) if who == "ours"
                              else mpi(program, who, chosen.sizes, chosen.ranks, chosen.iterations))  # fmt: skip
            rows.append(found)
    told = [compare(size, rows) for size in chosen.sizes if all(size in one for row in rows for one in row.values())]
    print("\n".join(map(shown, told)))
    if chosen.json:
        chosen.json.write_text(json.dumps(told))


if __name__ == "__main__":
    main()
