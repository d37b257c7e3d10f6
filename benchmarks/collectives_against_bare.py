"""Do our collectives say what bare loops say? Every collective on gloo at 2 and 4 ranks, ours and a bare loop in turns.

    python benchmarks/collectives_against_bare.py --python ENV/bin/python --pairs 7

In the same processes run, in turns and each time in the other order, the worker's own measurement of one size and a bare
loop of `torch.distributed` calls: no barrier, one timer a call, the median of each rank, the largest over ranks. The loops
share no line with the worker. Prints for every size both medians, the median ratio of the pairs and its spread. The promise
is 15% for the medians of collectives that end on all ranks together; where a root may run ahead (broadcast, reduce) or
calls overlap from one iteration to the next, a loop without barriers is a pipeline and may be faster. A ratio beyond 15%
whose spread holds 1 is called noise: on a host with fewer idle cores than ranks it says more of the host than of us.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).resolve().parent.parent / "skillserver/workers/scripts"
PROMISE = 0.15
NAMES = ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "send_recv", "barrier"]
PIPELINES = {"all_to_all", "broadcast", "reduce", "send_recv"}  # a rank may begin the next call before the others ended this one


def plain_call(name: str, size: int) -> Callable[[], Any]:
    """One call of a collective as anybody would write it; `size` as nccl-tests counts it."""
    import torch
    import torch.distributed as dist

    world, rank = dist.get_world_size(), dist.get_rank()
    whole, part = torch.zeros(size // 4), torch.zeros(size // 4 // world)
    other, after, before = torch.zeros(size // 4), (rank + 1) % world, (rank - 1) % world

    def ring() -> None:
        work = dist.isend(whole, after)
        dist.recv(other, before)
        work.wait()

    calls: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: dist.all_reduce(whole), "broadcast": lambda: dist.broadcast(whole, 0), "reduce": lambda: dist.reduce(whole, 0),
        "all_gather": lambda: dist.all_gather_into_tensor(whole, part), "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole),
        "all_to_all": lambda: dist.all_to_all_single(other, whole), "send_recv": ring, "barrier": lambda: dist.barrier(),
    }  # fmt: skip
    return calls[name]


def bare_us(name: str, size: int, iterations: int) -> float:
    """Median time of a call on the slowest rank, microseconds."""
    import torch
    import torch.distributed as dist

    call = plain_call(name, size)
    for _ in range(3):
        call()
    taken = []
    for _ in range(iterations):
        began = time.perf_counter()
        call()
        taken.append(time.perf_counter() - began)
    slowest = torch.tensor([statistics.median(taken)], dtype=torch.float64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return float(slowest) * 1e6


def ranks(names: list[str], sizes: list[int], pairs: int, seconds: float) -> None:
    """One rank: all pairs of every collective and size; rank 0 prints [[name, size, [[ours, bare], ...]], ...]."""
    sys.path.insert(0, str(SCRIPTS))
    import torch.distributed as dist
    import torch_collective

    dist.init_process_group("gloo")
    told = []
    for name in names:
        job = torch_collective.Job({"backend": "gloo", "collective": name, "sizes": sizes})
        for size in [0] if name == "barrier" else sizes:
            told.append([name, size, [one_pair(job, name, size, seconds, number) for number in range(pairs)]])
    if dist.get_rank() == 0:
        print(json.dumps(told))
    dist.barrier()
    dist.destroy_process_group()


def one_pair(job: Any, name: str, size: int, seconds: float, number: int) -> list[float]:
    """[ours, bare], the order changing from pair to pair."""
    import torch_collective

    pair = {}
    for who in ("ours", "bare") if number % 2 else ("bare", "ours"):
        if who == "bare":
            pair[who] = bare_us(name, size, 20)
        else:
            pair[who] = torch_collective.one_size(job, size, seconds)["time_us"]
    return [pair["ours"], pair["bare"]]


def compare(name: str, size: int, count: int, pairs: list[list[float]]) -> dict[str, Any]:
    """Medians and the ratio of one size."""
    ratios = sorted(ours / bare for ours, bare in pairs)
    ours, bare = (statistics.median(column) for column in zip(*pairs, strict=True))
    return {"collective": name, "ranks": count, "bytes": size, "pairs": len(pairs), "ours_us": round(ours, 1), "bare_us": round(bare, 1),
            "ratio": round(statistics.median(ratios), 3), "ratio_low": round(ratios[0], 3), "ratio_high": round(ratios[-1], 3)}  # fmt: skip


def shown(row: dict[str, Any]) -> str:
    """One line a size, with the promise where there is one."""
    promised = "pipeline" if row["collective"] in PIPELINES else "OUTSIDE" if not row["ratio_low"] <= 1 <= row["ratio_high"] else "noise"
    kept = "within" if abs(row["ratio"] - 1) <= PROMISE else promised
    times = f"ours {row['ours_us']:>9} us  bare {row['bare_us']:>9} us  ratio {row['ratio']} ({row['ratio_low']}..{row['ratio_high']})"
    return f"{row['collective']:<14} x{row['ranks']} {row['bytes']:>10} B  {times}  {kept}"


def run(chosen: argparse.Namespace, count: int) -> list[dict[str, Any]]:
    """All rows at one number of ranks."""
    command = [
        chosen.python,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        str(count),
        "--rdzv-backend",
        "c10d",
        "--rdzv-endpoint",
        "127.0.0.1:0",
    ]
    command += [__file__, "--rank", "--pairs", str(chosen.pairs), "--seconds", str(chosen.seconds), "--sizes", *map(str, chosen.sizes)]
    done = subprocess.run([*command, "--names", *chosen.names], capture_output=True, text=True, timeout=1800)
    if done.returncode:
        sys.exit(done.stderr[-2000:])
    return [compare(name, size, count, pairs) for name, size, pairs in json.loads(done.stdout.strip().splitlines()[-1])]


def main() -> None:
    """Print one row for each collective, number of ranks and size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", nargs="+", default=NAMES, choices=NAMES, metavar="NAME")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--sizes", type=int, nargs="+", default=[2**16, 2**20, 2**23])
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.3, help="for one of our measurements")
    parser.add_argument("--python", default=sys.executable, help="an environment with torch")
    parser.add_argument("--json", type=Path, help="write the rows here")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.rank:
        ranks(chosen.names, chosen.sizes, chosen.pairs, chosen.seconds)
        return
    rows = [row for count in chosen.ranks for row in run(chosen, count)]
    print("\n".join(map(shown, rows)))
    if chosen.json:
        chosen.json.write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
