"""Does the search find what an exhaustive grid finds, with fewer trials? Both on this CPU, in turns.

    python benchmarks/mamf_against_grid.py --python ENV/bin/python --rounds 3

A round runs the worker and a plain loop over every shape of a small grid (m, n: 128 to 1024 by 128; k: 256, 512, 1024),
then times the two winners against each other, A B A B, at least seven pairs. Prints trials, seconds and the ratio of the
worker's winner to the grid's; 0.99 or more is the promise. The loop and the duel share no line with the worker. A round
during which others kept more than 0.3 cores busy (`others_cores`) measures them as well.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

WORKER = Path(__file__).resolve().parent.parent / "skillserver/workers/scripts/torch_matmul.py"
EDGES, KS = range(128, 1025, 128), (256, 512, 1024)
PROMISE = 0.99
Shape = tuple[int, int, int]


def seconds_of(shape: Shape, calls: int) -> list[float]:
    """Plain timings of a[m,k] @ b[n,k].T on warm operands; one call first that is not counted."""
    import torch

    m, n, k = shape
    a, b = torch.randn(m, k), torch.randn(n, k)
    torch.mm(a, b.t())
    taken = []
    for _ in range(calls):
        began = time.perf_counter()
        torch.mm(a, b.t())
        taken.append(time.perf_counter() - began)
    return taken


def speed(shape: Shape, seconds: float) -> float:
    """TFLOPS."""
    return 2 * shape[0] * shape[1] * shape[2] / seconds / 1e12


def grid(calls: int) -> None:
    """Child: every shape once; its best on stdout."""
    shapes = [(m, n, k) for m in EDGES for n in EDGES for k in KS]
    found = {shape: speed(shape, min(seconds_of(shape, calls))) for shape in shapes}
    best = max(shapes, key=lambda shape: found[shape])
    print(json.dumps({"shape": best, "tflops": found[best], "trials": len(shapes)}))


def duel(shapes: list[list[int]], pairs: int) -> None:
    """Child: the two shapes in turns; medians of each pair's ratio on stdout."""
    ours, grids = (tuple(shape) for shape in shapes)
    ratios = []
    for number in range(pairs):
        pair = {shape: speed(shape, statistics.median(seconds_of(shape, 9))) for shape in ((ours, grids) if number % 2 else (grids, ours))}
        ratios.append(pair[ours] / pair[grids])
    print(json.dumps({"ratio": statistics.median(ratios), "low": min(ratios), "high": max(ratios)}))


def child(python: str, *arguments: str) -> tuple[dict[str, object], float]:
    """(last JSON line of a child, its seconds)."""
    began = time.monotonic()
    done = subprocess.run([python, *arguments], capture_output=True, text=True, timeout=600)
    if done.returncode:
        sys.exit(done.stderr[-2000:])
    return json.loads(done.stdout.strip().splitlines()[-1]), time.monotonic() - began


def one_round(python: str, number: int, budget_s: float, pairs: int) -> dict[str, object]:
    """Search and grid in alternating order, then their winners against each other."""
    settings = {"device": "cpu", "dtype": "fp32", "budget_s": budget_s, "high": EDGES[-1], "step": EDGES.step, "ks": KS}
    calls = {"ours": (str(WORKER), "--settings", json.dumps(settings)), "grid": (__file__, "--grid", "5")}
    told = {who: child(python, *calls[who]) for who in (("ours", "grid") if number % 2 else ("grid", "ours"))}
    payload, theirs = told["ours"][0]["payload"], told["grid"][0]
    best = payload["best"]  # type: ignore[index]
    ours = [best["m"], best["n"], best["k"]]
    compared, _ = child(python, __file__, "--duel", json.dumps([ours, theirs["shape"]]), "--pairs", str(pairs))
    return {"ours": ours, "ours_trials": payload["trials"], "ours_s": round(told["ours"][1], 1), "grid": theirs["shape"],  # type: ignore[index]
            "grid_trials": theirs["trials"], "grid_s": round(told["grid"][1], 1), **compared,
            "others_cores": payload["conditions"]["other_cpu_cores"]}  # type: ignore[index]  # fmt: skip


def main() -> None:
    """Print a line a round and whether the promise holds for their median."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="an environment with torch")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--budget-s", type=float, default=12)
    parser.add_argument("--json", type=Path, help="write the rows here")
    parser.add_argument("--grid", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--duel", type=json.loads, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.grid:
        return grid(chosen.grid)
    if chosen.duel:
        return duel(chosen.duel, chosen.pairs)
    rows = [one_round(chosen.python, number, chosen.budget_s, chosen.pairs) for number in range(chosen.rounds)]
    for row in rows:
        print("  ".join(f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in row.items()))
    middle = statistics.median(float(str(row["ratio"])) for row in rows)
    print(f"median ratio {middle:.4f}: {'kept' if middle >= PROMISE else 'NOT kept'} (promise {PROMISE})")
    if chosen.json:
        chosen.json.write_text(json.dumps(rows))
    return None


if __name__ == "__main__":
    main()
