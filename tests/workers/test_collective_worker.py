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


def test_a_barrier_has_a_time_only_and_a_ring_of_send_and_receive_counts_what_a_rank_sends(tmp_path: Path) -> None:
    barrier = run(tmp_path, collective="barrier", backend="gloo")[-1]["payload"]
    assert [(row["bytes"], row["algbw_gb_s"], row["busbw_gb_s"], row["time_us"] > 0) for row in barrier["rows"]] == [(0, None, None, True)]
    ring = run(tmp_path, 3, collective="send_recv", sizes=[4096], backend="gloo")[-1]["payload"]["rows"][0]
    assert (ring["correct"], ring["busbw_gb_s"]) == (True, pytest.approx(4096 / ring["time_us"] / 1e3))


def test_queued_calls_are_counted_one_by_one(tmp_path: Path) -> None:
    payload = run(tmp_path, sizes=[4096], backend="gloo", queued=True)[-1]["payload"]
    row = payload["rows"][0]
    assert (payload["queued"], row["correct"], row["iterations"] >= 7 * 2) == (True, True, True)
    assert "queued" in payload["method"]


def test_a_dtype_that_the_backend_cannot_add_is_refused_in_its_own_words(tmp_path: Path) -> None:
    failures = [line for line in run(tmp_path, dtype="fp8", sizes=[4096], backend="gloo") if line["type"] == "failure"]
    assert (failures[0]["code"], failures[0]["kind"]) == ("dtype_refused", "bad_request")
    assert failures[0]["message"].startswith("gloo has no all_reduce of fp8")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["fp64", "int64", "int8"])
def test_other_dtypes_are_added_exactly(tmp_path: Path, dtype: str) -> None:
    payload = run(tmp_path, 3, sizes=[4096], dtype=dtype, backend="gloo")[-1]["payload"]
    assert [row["correct"] for row in payload["rows"]] == [True]


@pytest.mark.slow
@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce"])
def test_every_other_collective_gives_the_right_answer_in_bf16(tmp_path: Path, collective: str) -> None:
    payload = run(tmp_path, collective=collective, sizes=[4096], dtype="bf16", backend="gloo")[-1]["payload"]
    assert [(row["bytes"], row["correct"]) for row in payload["rows"]] == [(4096, True)]


@pytest.mark.parametrize(
    ("nproc", "settings", "code"),
    [
        (0, {}, "world_of_one"),
        (2, {"backend": "mpi"}, "mpi_needs_mpirun"),
        (2, {"backend": "nccl"}, "backend_not_here"),
        (2, {"dtype": "int3"}, "unknown_dtype"),
        (2, {"collective": "gossip"}, "unknown_collective"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, nproc: int, settings: dict[str, Any], code: str) -> None:
    failures = [line for line in run(tmp_path, nproc, **settings) if line["type"] == "failure"]
    assert failures[0]["code"] == code
