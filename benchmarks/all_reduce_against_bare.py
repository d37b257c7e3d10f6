"""Does our all-reduce benchmark say what a bare loop says? Ours and a bare `dist.all_reduce` loop, in turns.

    python benchmarks/all_reduce_against_bare.py --pairs 7 --sizes 65536 1048576 16777216

The bare loop is this file run under torchrun with `--bare`; it shares no line with the worker: no barriers, one timer
per call, the median on rank 0. Prints for every size both medians, the median ratio of the pairs and its spread.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

WORKER = Path(__file__).resolve().parent.parent / "skillserver/workers/scripts/torch_collective.py"
PROMISE = 0.15


def bare(size: int, iterations: int) -> None:
    """What anybody would write: the median time of one call, in microseconds, on stdout of rank 0."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    tensor = torch.zeros(size // 4)
    for _ in range(5):
        dist.all_reduce(tensor)
    taken = []
    for _ in range(iterations):
        began = time.perf_counter()
        dist.all_reduce(tensor)
        taken.append(time.perf_counter() - began)
    if dist.get_rank() == 0:
        print(json.dumps({"bare_us": statistics.median(taken) * 1e6}))
    dist.destroy_process_group()


def launched(python: str, *arguments: str) -> str:
    """Standard output of one torchrun of two ranks."""
    command = [python, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode:
        sys.exit(done.stderr[-2000:])
    return done.stdout


def ours_us(python: str, size: int, budget_s: float) -> tuple[float, int]:
    """(time_us, iterations) of the worker's row for one size."""
    settings = json.dumps({"sizes": [size], "budget_s": budget_s, "backend": "gloo"})
    lines = [json.loads(line) for line in launched(python, str(WORKER), "--settings", settings).splitlines() if line.strip()]
    row = next(line["payload"]["rows"][0] for line in lines if line["type"] == "result")
    return row["time_us"], row["iterations"]


def compare(python: str, size: int, pairs: int, budget_s: float) -> dict[str, object]:
    """One size: `pairs` pairs, each in the other order than the last, so that drift hits both."""
    ours, theirs = [], []
    iterations = 50
    for number in range(pairs):
        for who in ("ours", "bare") if number % 2 else ("bare", "ours"):
            if who == "ours":
                taken, iterations = ours_us(python, size, budget_s)
                ours.append(taken)
            else:
                out = launched(python, __file__, "--bare", str(size), "--iterations", str(iterations))
                theirs.append(json.loads(out.strip().splitlines()[-1])["bare_us"])
    ratios = sorted(a / b for a, b in zip(ours, theirs, strict=True))
    return {"bytes": size, "pairs": pairs, "ours_us": round(statistics.median(ours), 1), "bare_us": round(statistics.median(theirs), 1),
            "ratio": round(statistics.median(ratios), 3), "ratio_low": round(ratios[0], 3), "ratio_high": round(ratios[-1], 3)}  # fmt: skip


def shown(row: dict[str, object]) -> str:
    """One line a size, with the promise."""
    kept = "within" if abs(float(str(row["ratio"])) - 1) <= PROMISE else "OUTSIDE"
    times = f"ours {row['ours_us']:>9} us  bare {row['bare_us']:>9} us"
    return f"{row['bytes']:>10} B  {times}  ratio {row['ratio']} ({row['ratio_low']}..{row['ratio_high']})  {kept} {PROMISE:.0%}"


def main() -> None:
    """Print one row a size and whether the promise holds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[2**16, 2**20, 2**24, 2**26])
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--budget-s", type=float, default=3.0)
    parser.add_argument("--python", default=sys.executable, help="an environment with torch")
    parser.add_argument("--json", type=Path, help="write the rows here")
    parser.add_argument("--bare", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--iterations", type=int, default=50, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.bare:
        return bare(chosen.bare, chosen.iterations)
    rows = []
    for size in chosen.sizes:
        rows.append(compare(chosen.python, size, chosen.pairs, chosen.budget_s))
        print(shown(rows[-1]), flush=True)
    if chosen.json:
        chosen.json.write_text(json.dumps(rows))
    return None


if __name__ == "__main__":
    main()
