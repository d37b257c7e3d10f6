"""Does our all-reduce benchmark say what a bare loop says? Ours and a bare `dist.all_reduce` loop, in turns.

    python benchmarks/all_reduce_against_bare.py --python ENV/bin/python --pairs 9

Two gloo ranks under torchrun run, in turns and each time in the other order, the worker's own measurement of one size
and a bare loop: no barriers, one timer a call, the median on rank 0. The loop shares no line with the worker. Prints for
every size both medians, the median ratio of the pairs and its spread; within 15 % is the promise. On a host whose cores
others use too the spread says more of them than of us.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parent.parent / "skillserver/workers/scripts"
PROMISE = 0.15


def bare_us(size: int, iterations: int) -> float:
    """What anybody would write: the median time of one call, in microseconds."""
    import torch
    import torch.distributed as dist

    tensor = torch.zeros(size // 4)
    for _ in range(3):
        dist.all_reduce(tensor)
    taken = []
    for _ in range(iterations):
        began = time.perf_counter()
        dist.all_reduce(tensor)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken) * 1e6


def ranks(sizes: list[int], pairs: int, seconds: float) -> None:
    """One rank: all pairs of all sizes; rank 0 prints [[size, [[ours, bare], ...]], ...]."""
    sys.path.insert(0, str(SCRIPTS))
    import torch.distributed as dist
    import torch_collective

    job = torch_collective.Job({"backend": "gloo", "sizes": sizes})
    dist.init_process_group("gloo")
    told = []
    for size in sizes:
        found, iterations = [], 20
        for number in range(pairs):
            pair = {}
            for who in ("ours", "bare") if number % 2 else ("bare", "ours"):
                if who == "bare":
                    pair[who] = bare_us(size, iterations)
                else:
                    row = torch_collective.one_size(job, size, seconds)
                    pair[who], iterations = row["time_us"], row["iterations"]
            found.append([pair["ours"], pair["bare"]])
        told.append([size, found])
    if dist.get_rank() == 0:
        print(json.dumps(told))
    dist.destroy_process_group()


def compare(size: int, pairs: list[list[float]]) -> dict[str, float]:
    """Medians and the ratio of one size."""
    ratios = sorted(ours / bare for ours, bare in pairs)
    ours, bare = (statistics.median(column) for column in zip(*pairs, strict=True))
    return {"bytes": size, "pairs": len(pairs), "ours_us": round(ours, 1), "bare_us": round(bare, 1),
            "ratio": round(statistics.median(ratios), 3), "ratio_low": round(ratios[0], 3), "ratio_high": round(ratios[-1], 3)}  # fmt: skip


def shown(row: dict[str, float]) -> str:
    """One line a size, with the promise."""
    kept = "within" if abs(row["ratio"] - 1) <= PROMISE else "OUTSIDE"
    times = f"ours {row['ours_us']:>9} us  bare {row['bare_us']:>9} us"
    return f"{row['bytes']:>10} B  {times}  ratio {row['ratio']} ({row['ratio_low']}..{row['ratio_high']})  {kept} {PROMISE:.0%}"


def main() -> None:
    """Print one row a size and whether the promise holds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[2**16, 2**20, 2**24, 2**26])
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.5, help="for one of our measurements")
    parser.add_argument("--python", default=sys.executable, help="an environment with torch")
    parser.add_argument("--json", type=Path, help="write the rows here")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.rank:
        return ranks(chosen.sizes, chosen.pairs, chosen.seconds)
    command = [chosen.python, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"]
    command += [__file__, "--rank", "--pairs", str(chosen.pairs), "--seconds", str(chosen.seconds), "--sizes", *map(str, chosen.sizes)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    if done.returncode:
        sys.exit(done.stderr[-2000:])
    rows = [compare(size, pairs) for size, pairs in json.loads(done.stdout.strip().splitlines()[-1])]
    print("\n".join(map(shown, rows)))
    if chosen.json:
        chosen.json.write_text(json.dumps(rows))
    return None


if __name__ == "__main__":
    main()
