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


def start(cwd: Path, script: str = "torch_matmul.py", **settings: Any) -> "subprocess.Popen[str]":
    command = [sys.executable, str(SCRIPTS / script), "--settings", json.dumps({"device": "cpu"} | settings)]
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
    assert {"load_average_before", "load_average", "other_cpu_cores", "threads", "torch", "software"} <= set(payload["conditions"])
    assert payload["conditions"]["software"]["compile"].startswith("not used")
    assert payload["method"]["layout"] == "NT: a[m,k] @ b[n,k].T"
    assert len(payload["trace"]) >= payload["trials"]
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
        ({"layout": "TT"}, "layout_not_here", "Valid: NT, NN, TN"),
        ({"products": [{"name": "q", "m": 10**5, "n": 10**5, "k": 10**5, "layout": "NT"}]}, "too_slow", "one round of the 1 products"),
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


@pytest.mark.parametrize("layout", ["NN", "TN"])
def test_every_layout_gives_the_right_product_and_is_said(tmp_path: Path, layout: str) -> None:
    payload = run(tmp_path, budget_s=2, layout=layout, shapes=[[64, 48, 32]])["payload"]
    assert (payload["correct"], payload["layout"], payload["method"]["layout"][:2]) == (True, layout, layout)


def test_a_grid_is_timed_whole_in_random_order(tmp_path: Path) -> None:
    payload = run(tmp_path, budget_s=30, grid=[[64, 128, 64], [64, 192, 64], [32, 32, 1]], raw_file="samples.json")["payload"]
    rows = json.loads((tmp_path / "samples.json").read_text())
    looked = [tuple(row["shape"]) for row in rows if row["phase"] == "grid"]
    assert sorted(looked) == [(m, n, 32) for m in (64, 128) for n in (64, 128, 192)] != looked
    assert (payload["trials"], payload["wanted"], payload["space"]) == (6, 6, None)


def test_products_are_timed_in_turn_each_in_its_layout(tmp_path: Path) -> None:
    sizes = [("NT", 64, 96, 32), ("NN", 64, 32, 96), ("TN", 96, 32, 64)]
    products = [{"name": "q", "pass": layout, "m": m, "n": n, "k": k, "layout": layout, "times": 2} for layout, m, n, k in sizes]
    payload = run(tmp_path, budget_s=20, products=products, raw_file="samples.json")["payload"]
    assert (payload["correct"], payload["rounds"]) == (True, 7)
    for given, row in zip(products, payload["products"], strict=True):
        assert given.items() <= row.items()
        assert row["ci_low"] <= row["tflops"] <= row["ci_high"]
    assert [row["layout"] for row in json.loads((tmp_path / "samples.json").read_text())[:6]] == ["NT", "NN", "TN"] * 2


def test_devices_are_measured_at_once_or_in_turn_with_every_sample_kept(tmp_path: Path) -> None:
    for in_turn in (False, True):
        settings = {"devices": ["cpu", "cpu"], "in_turn": in_turn, "budget_s": 4 if in_turn else 2, "threads": 1, "shapes": [[64, 48, 32]]}
        payload = run(tmp_path, script="matmul_devices.py", raw_file="samples.json", **settings)["payload"]
        assert (payload["in_turn"], payload["failed"], payload["partial"]) == (in_turn, [], False)
        assert [one["method"]["budget_s"] for one in payload["runs"]] == [2.0, 2.0]
        assert all(one["correct"] for one in payload["runs"])
        assert {row["device"] for row in json.loads((tmp_path / "samples.json").read_text())} == {"cpu"}


def test_a_device_that_fails_is_told_beside_the_others_and_alone_it_is_the_failure(tmp_path: Path) -> None:
    settings = {"budget_s": 2, "threads": 1, "shapes": [[64, 48, 32]]}
    payload = run(tmp_path, script="matmul_devices.py", devices=["cpu", "cuda:99"], **settings)["payload"]
    assert len(payload["runs"]) == 1
    assert [(one["device"], one["code"]) for one in payload["failed"]] == [("cuda:99", "no_such_device")]
    last = run(tmp_path, script="matmul_devices.py", devices=["cuda:98", "cuda:99"], **settings)
    assert (last["type"], last["code"]) == ("failure", "no_such_device")


def test_sigterm_ends_every_device_with_its_best_so_far(tmp_path: Path) -> None:
    worker = start(tmp_path, script="matmul_devices.py", devices=["cpu", "cpu"], budget_s=60, threads=1, high=256, step=64, ks=[64, 128])
    assert worker.stdout
    for line in worker.stdout:
        if len((json.loads(line).get("partial") or {}).get("runs", [])) == 2:
            worker.send_signal(signal.SIGTERM)
            break
    out, _ = worker.communicate(timeout=60)
    payload = lines(out)[-1]["payload"]
    assert [one["partial"] for one in payload["runs"]] == [True, True]
    assert payload["partial"] is True


def test_help_says_how_it_is_timed() -> None:
    done = subprocess.run([sys.executable, str(SCRIPTS / "torch_matmul.py"), "--help"], capture_output=True, text=True, timeout=120)
    assert "median" in done.stdout
