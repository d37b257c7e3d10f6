"""What does nodes=N cost on top of SLURM? Submit to result through us, beside `sbatch` of the very same script by hand, in turns.

    tests/cluster/slurm-testbed on ctl .venv/bin/python benchmarks/slurm_overhead.py --pairs 9 --nodes 2

Every node runs a worker that answers at once. By hand: the script that ours wrote, submitted with sbatch and watched through
squeue every 0.1 s until it is gone, in its own run folder. Both in turns, each time in the other order. Prints the medians, the median difference
of the pairs and its range; what a tool call adds once (import, interpreter) is not in it. Needs a SLURM and a folder that its
nodes share (--home).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

WORKER = 'import protocol\nprotocol.start()\nprotocol.result({"value": 1.0})\n'


def by_hand(script: Path) -> float:
    """Seconds from sbatch to the job's end."""
    shutil.rmtree(script.parent / "nodes")
    began = time.perf_counter()
    job = subprocess.run(["sbatch", "--parsable", str(script)], capture_output=True, text=True, check=True, cwd=script.parent).stdout.strip()
    while subprocess.run(["squeue", "-h", "-j", job, "-t", "all", "-o", "%T"], capture_output=True, text=True).stdout.strip() != "COMPLETED":
        time.sleep(0.1)
    return time.perf_counter() - began


async def through_us(worker: Path, nodes: int) -> tuple[float, Path]:
    """(seconds from the call to the joined result, the script that was submitted)."""
    from skillserver.procedures.guarded_run import run_guarded

    began = time.perf_counter()
    record = await run_guarded(tool="run_test", arguments={}, script=str(worker), settings={}, shape=dict, python=sys.executable, needs_torch=False,
                               nodes=nodes, limit_s=60)  # fmt: skip
    taken = time.perf_counter() - began
    assert record.state == "done", record.error
    return taken, Path(record.run_folder) / "job.sbatch"


def main() -> None:
    """All pairs, then one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--home", type=Path, default=None, help="a folder that the nodes share; default: a temporary one")
    parsed = parser.parse_args()
    if shutil.which("sbatch") is None or subprocess.run(["scontrol", "ping"], capture_output=True).returncode:
        print(json.dumps({"skipped": "no SLURM here: tests/cluster/slurm-testbed up, then run it on ctl"}))
        return
    from skillserver import permissions

    permissions.grant(permissions.Permissions(max_nodes=parsed.nodes))
    home = Path(tempfile.mkdtemp(dir=parsed.home))
    os.environ["SKILLSERVER_HOME"] = str(home)
    worker = home / "worker.py"
    worker.write_text(WORKER)
    _, script = asyncio.run(through_us(worker, parsed.nodes))
    pairs = []
    for number in range(parsed.pairs):
        hand = by_hand(script) if number % 2 else None
        ours, script = asyncio.run(through_us(worker, parsed.nodes))
        pairs.append((ours, by_hand(script) if hand is None else hand))
    shutil.rmtree(home)
    ours, hands = zip(*pairs, strict=True)
    extra = sorted(mine - hand for mine, hand in pairs)
    told = {"nodes": parsed.nodes, "pairs": len(pairs), "ours_s": statistics.median(ours), "by_hand_s": statistics.median(hands),
            "extra_s": statistics.median(extra), "extra_low_s": extra[0], "extra_high_s": extra[-1]}  # fmt: skip
    print("slurm_overhead " + json.dumps({name: round(value, 3) if isinstance(value, float) else value for name, value in told.items()}))


if __name__ == "__main__":
    main()
