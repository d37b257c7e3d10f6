"""The workers of a node's acceptance test as real subprocesses: bandwidth, exact products, a storage sample, all parts in order."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "skillserver/workers/scripts"
MIB = 2**20


def start(script: str, cwd: Path, **settings: Any) -> "subprocess.Popen[str]":
    command = [sys.executable, str(SCRIPTS / script), "--settings", json.dumps(settings)]
    return subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env={"PATH": os.environ["PATH"]})


def last(script: str, cwd: Path, **settings: Any) -> dict[str, Any]:
    out, _ = start(script, cwd, **settings).communicate(timeout=200)
    told: dict[str, Any] = json.loads([line for line in out.splitlines() if line.strip()][-1])
    return told


def test_a_storage_sample_gives_rates_and_leaves_nothing(tmp_path: Path) -> None:
    told = last("storage_sample.py", tmp_path, folder=str(tmp_path), bytes=32 * MIB)["payload"]
    assert (told["bytes"], told["read_bytes"], told["wrong_blocks"], told["partial"]) == (32 * MIB, 32 * MIB, 0, False)
    assert told["write_gb_s"] > 0
    assert told["read_gb_s"] > 0
    assert list(tmp_path.iterdir()) == []


def test_a_storage_sample_that_is_killed_leaves_nothing(tmp_path: Path) -> None:
    worker = start("storage_sample.py", tmp_path, folder=str(tmp_path), bytes=256 * MIB, budget_s=30)
    assert worker.stdout
    while json.loads(worker.stdout.readline())["type"] != "progress":
        pass
    worker.send_signal(signal.SIGKILL)
    worker.communicate(timeout=30)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("settings", "code"), [({"bytes": 2**60}, "no_room"), ({"folder": "/no/such/place"}, "no_such_folder")])
def test_a_storage_sample_without_room_or_folder_is_refused(tmp_path: Path, settings: dict[str, Any], code: str) -> None:
    assert last("storage_sample.py", tmp_path, **{"folder": str(tmp_path)} | settings)["code"] == code


def test_without_torch_the_parts_that_need_none_still_run(tmp_path: Path) -> None:
    settings = {"parts": ["matmul", "storage"], "python_has_torch": False, "folder": str(tmp_path), "bytes": 8 * MIB, "raw_file": "samples.json"}
    told = last("node_parts.py", tmp_path, **settings)["payload"]
    assert told["skipped"] == {"matmul": "this Python has no torch"}
    assert told["parts"]["storage"]["runs"][0]["result"]["wrong_blocks"] == 0
    assert json.loads((tmp_path / "samples.json").read_text()) == told


def test_a_part_that_fails_is_told_with_its_own_words_and_the_next_one_runs(tmp_path: Path) -> None:
    told = last("node_parts.py", tmp_path, parts=["storage"], folder=str(tmp_path / "none"))["payload"]
    assert told["parts"]["storage"]["runs"][0]["failure"]["code"] == "no_such_folder"


@pytest.mark.torch
def test_triad_and_exact_products_of_the_cpu_are_measured_and_the_rest_has_a_reason(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    told = last("torch_bandwidth.py", tmp_path, devices=["cpu"], budget_s=2)["payload"]
    memory, products = told["memory"]["cpu"], told["correctness"]["cpu"]
    assert memory["correct"] is True
    assert 0 < memory["triad"]["p5_gb_s"] <= memory["triad"]["gb_s"] <= memory["triad"]["p95_gb_s"]
    assert [(row["dtype"], row["wrong_rounds"]) for row in products] == [("fp32", 0)]
    assert products[0]["rounds"] >= 5
    assert set(told["skipped"]) == {"transfers", "peers"}


@pytest.mark.torch
def test_one_flipped_bit_of_an_operand_is_found_in_the_product(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    code = f"""
import sys; sys.path.insert(0, {str(SCRIPTS)!r})
import devices, exact, torch
for dtype in ("fp32", "bf16"):
    repeats = exact.Repeats(devices.find("cpu"), exact.Truth(256, dtype))
    print(repeats.once(), repeats.worst() == "")
    repeats.a[3, 5] += 1
    print(repeats.once() > 0, repeats.worst()[:11])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == ["0 True", "True element (3,"] * 2, done.stderr


@pytest.mark.torch
def test_sigterm_ends_all_parts_and_their_children(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    worker = start("node_parts.py", tmp_path, parts=["matmul"], devices=["cpu"], budget_s=60)
    assert worker.stdout
    while "best so far" not in worker.stdout.readline():
        pass
    worker.send_signal(signal.SIGTERM)
    out, _ = worker.communicate(timeout=60)
    end = json.loads(out.splitlines()[-1])
    assert (end["type"], end["stopped"], end["payload"]["partial"]) == ("result", True, True)
    assert end["payload"]["parts"]["matmul"]["runs"][0]["result"]["best"]["tflops"] > 0
