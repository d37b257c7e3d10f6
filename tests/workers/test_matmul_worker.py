"""The matmul worker as a real subprocess on this CPU, by hand and without skillserver."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "skillserver/workers/scripts"
pytestmark = pytest.mark.torch
pytest.importorskip("torch", reason="the worker's environment is this one")


def start(cwd: Path, **settings: Any) -> "subprocess.Popen[str]":
    command = [sys.executable, str(SCRIPTS / "torch_matmul.py"), "--settings", json.dumps({"device": "cpu"} | settings)]
    return subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env={"PATH": os.environ["PATH"]})


def lines(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines() if line.strip()]


def run(cwd: Path, **settings: Any) -> dict[str, Any]:
    out, _ = start(cwd, **settings).communicate(timeout=120)
    return lines(out)[-1]


def test_a_short_search_gives_a_checked_best_with_an_interval_and_its_conditions(tmp_path: Path) -> None:
    last = run(tmp_path, budget_s=20, high=256, step=64, ks=[64, 128], raw_file="samples.json")
    payload = last["payload"]
    best = payload["best"]
    assert last["type"] == "result"
    assert 0 < best["ci_low"] <= best["tflops"] <= best["ci_high"]
    assert (payload["correct"], payload["partial"], payload["dtype"], payload["device"]) == (True, False, "fp32", "cpu")
    assert payload["trials"] + payload["remeasured"] <= 100
    assert {"load_average", "other_cpu_cores", "threads", "torch"} <= set(payload["conditions"])
    assert {row["phase"] for row in json.loads((tmp_path / "samples.json").read_text())} >= {"k", "grid", "duel", "fresh"}


def test_shapes_of_ones_own_are_measured_instead(tmp_path: Path) -> None:
    payload = run(tmp_path, budget_s=20, shapes=[[64, 48, 32], [96, 64, 32]])["payload"]
    assert payload["trials"] == 2
    assert [payload["best"]["m"], payload["runners_up"][0]["m"]] in ([64, 96], [96, 64])


@pytest.mark.parametrize(
    ("settings", "code", "words"),
    [
        ({"dtype": "fp8"}, "dtype_not_here", "Valid: fp32"),
        ({"device": "cuda:99"}, "no_such_device", ""),
        ({"device": "abacus"}, "unknown_device", "Valid: auto"),
        ({"shapes": [[10**7, 10**7, 10]]}, "too_large", "GiB are free"),
    ],
)
def test_what_cannot_be_measured_is_refused_with_the_valid_choices(tmp_path: Path, settings: dict[str, Any], code: str, words: str) -> None:
    last = run(tmp_path, budget_s=2, **settings)
    assert (last["type"], last["code"]) == ("failure", code)
    assert words in last["message"]


def test_sigterm_ends_it_with_the_best_so_far(tmp_path: Path) -> None:
    worker = start(tmp_path, budget_s=30, high=256, step=64, ks=[64, 128])
    assert worker.stdout
    seen = []
    for line in worker.stdout:
        seen.append(json.loads(line))
        if seen[-1].get("partial"):
            worker.send_signal(signal.SIGTERM)
            break
    out, _ = worker.communicate(timeout=60)
    payload = lines(out)[-1]["payload"]
    assert payload["best"]["tflops"] > 0
    assert payload["partial"] is True


def test_help_says_how_it_is_timed() -> None:
    done = subprocess.run([sys.executable, str(SCRIPTS / "torch_matmul.py"), "--help"], capture_output=True, text=True, timeout=120)
    assert "median" in done.stdout
