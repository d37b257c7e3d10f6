"""The collective worker under a real torchrun of two gloo ranks."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "skillserver/workers/scripts"
pytestmark = pytest.mark.torch
pytest.importorskip("torch", reason="the worker's environment is this one")


def run(cwd: Path, nproc: int = 2, **settings: Any) -> list[dict[str, Any]]:
    launcher = [str(SCRIPTS / "launch.py"), "--nproc", str(nproc)] if nproc else []
    command = [sys.executable, *launcher, str(SCRIPTS / "torch_collective.py"), "--settings", json.dumps({"budget_s": 2} | settings)]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=200, env={"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1"})
    return [json.loads(line) for line in done.stdout.splitlines() if line.strip()]


def test_all_reduce_rows_are_consistent_with_their_definitions(tmp_path: Path) -> None:
    payload = run(tmp_path, sizes=[4096, 2**20], backend="gloo", raw_file="samples.json")[-1]["payload"]
    assert [row["bytes"] for row in payload["rows"]] == [4096, 2**20]
    for row in payload["rows"]:
        assert row["algbw_gb_s"] == pytest.approx(row["bytes"] / row["time_us"] / 1e3)
        assert row["busbw_gb_s"] == pytest.approx(row["algbw_gb_s"] * 2 * (2 - 1) / 2)
        assert row["min_us"] <= row["p5_us"] <= row["time_us"] == row["p50_us"] <= row["p95_us"] <= row["max_us"]
        assert (row["correct"], row["slowest_rank"]) == (True, None)
    kept = json.loads((tmp_path / "samples.json").read_text())
    assert [len(size["rank_times_us"]) for size in kept] == [2, 2]


@pytest.mark.slow
@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce"])
def test_every_other_collective_gives_the_right_answer_in_bf16(tmp_path: Path, collective: str) -> None:
    payload = run(tmp_path, collective=collective, sizes=[4096], dtype="bf16", backend="gloo")[-1]["payload"]
    assert [(row["bytes"], row["correct"]) for row in payload["rows"]] == [(4096, True)]


@pytest.mark.parametrize(
    ("nproc", "settings", "code"),
    [(0, {}, "world_of_one"), (2, {"dtype": "int3"}, "unknown_dtype"), (2, {"collective": "gossip"}, "unknown_collective")],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, nproc: int, settings: dict[str, Any], code: str) -> None:
    failures = [line for line in run(tmp_path, nproc, **settings) if line["type"] == "failure"]
    assert failures[0]["code"] == code
