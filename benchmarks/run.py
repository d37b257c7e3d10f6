"""Every promise that is a number, measured one after the other.    make benchmarks

Each script prints one line of JSON behind its name; this runs them all and the scorers beside the checkout, when they
are there, and prints the lines together.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CASES = ROOT.parent / "shared/cases"
SKILLSERVER = str(Path(sys.executable).with_name("skillserver"))
OWN = [
    "startup.py",
    "context_tokens.py",
    "search_beside_peers.py",
    "spike_rules.py",
    "flight_recorder_scale.py",
    "gpu_hours_left_out.py",
    "layout_sweeps.py",
    "mamf_against_grid.py",
    "collectives_against_bare.py",
    "all_reduce_beside_mpi.py",
    "fio_beside_fio.py",
    "slurm_overhead.py",
]
SCORES = [
    ["score_answers.py", "--cmd", f"{SKILLSERVER} search {{q}}"],
    *(["score.py", what, "--cmd", SKILLSERVER] for what in ("runs", "memory", "captures", "logs")),
]


def main() -> int:
    """Run everything; 1 when a script failed."""
    failed = 0
    commands = [[str(ROOT / "benchmarks" / name)] for name in OWN]
    commands += [[str(CASES / script), *rest] for script, *rest in SCORES if CASES.is_dir()]
    for command in commands:
        done = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True)
        print(f"--- {Path(command[0]).name} {' '.join(command[1:2])}\n{done.stdout.strip()}", flush=True)
        if done.returncode:
            failed += 1
            print(done.stderr[-1000:])
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
