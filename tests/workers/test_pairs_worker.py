"""The tournament under a real torchrun: a rank that is slow with everybody, and a pair that is slow alone."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from skillserver.measure import pair_matrix

SCRIPTS = Path(__file__).resolve().parents[2] / "skillserver/workers/scripts"
pytestmark = pytest.mark.torch
pytest.importorskip("torch", reason="the worker's environment is this one")
# The worker with a wire that takes 6 ms, and 40 ms where the test wants it: well above what a busy host adds.
SLOWED = """
import sys, time
sys.path.insert(0, {scripts!r})
import torch_pairs
plain = torch_pairs.exchange
def exchange(buffers, to, source, later=False):
    rank = torch_pairs.protocol.rank()
    time.sleep(0.04 if {slow} else 0.006)
    return plain(buffers, to, source, later)
torch_pairs.exchange = exchange
torch_pairs.main()
"""


def run(folder: Path, slow: str = "False", nproc: int = 4, **settings: Any) -> dict[str, Any]:
    script = folder / "slowed.py"
    script.write_text(SLOWED.format(scripts=str(SCRIPTS), slow=slow))
    given = {"backend": "gloo", "sizes": [4096], "budget_s": 4, "passes": 2, "raw_file": "samples.json"} | settings
    command = [sys.executable, str(SCRIPTS / "launch.py"), "--nproc", str(nproc), str(script), "--settings", json.dumps(given)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200, env={"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1"})
    return [json.loads(line) for line in done.stdout.splitlines() if line.strip()][-1]["payload"]


@pytest.mark.parametrize(("slow", "players", "worst"), [("rank == 2", ["2"], []), ("{rank, to} == {0, 3}", [], [("0", "3")])])
def test_who_is_slow_is_named(tmp_path: Path, slow: str, players: list[str], worst: list[tuple[str, str]]) -> None:
    payload = run(tmp_path, slow)
    told = pair_matrix.judge(payload["players"], payload["matrix"])
    assert (told.players, told.pairs[:1]) == (players, worst)
    assert (payload["correct"], payload["player"]) == (True, "rank")


def test_three_ranks_sit_out_in_turn_and_every_pair_is_kept(tmp_path: Path) -> None:
    payload = run(tmp_path, nproc=3)
    assert [[cell is None for cell in line] for line in payload["matrix"]] == [[a == b for b in range(3)] for a in range(3)]
    kept = json.loads((tmp_path / "samples.json").read_text())
    assert {tuple(one["pair"]) for one in kept} == {("0", "1"), ("0", "2"), ("1", "2")}
