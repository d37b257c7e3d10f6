"""The acceptance test of a node as one job: what runs, what is refused, what is kept."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from skillserver import contract, permissions
from skillserver.errors import BadRequest, NotHere
from skillserver.findings import Finding
from skillserver.jobs import device_locks, manager
from skillserver.permissions import Permissions
from skillserver.procedures import node_check, node_host
from skillserver.procedures.node_row import Row, Told
from skillserver.tools.node import check_node

LIGHT = ["health", "infiniband", "numa", "clock"]


@pytest.fixture(autouse=True)
def own_place(tmp_path, monkeypatch):
    """A home, a runtime folder and permissions of the test's own, without SLURM or GPUs, and with a healthy look at the host."""
    monkeypatch.setenv("SKILLSERVER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setattr(manager, "default", manager.Manager())
    for variable in ("SLURM_JOB_ID", "SLURM_CONF"):
        monkeypatch.delenv(variable, raising=False)
    for part in LIGHT:
        monkeypatch.setitem(node_host.PARTS, part, lambda part=part: Told(Row(part=part, verdict="ok", note="fine")))
    before = permissions.current()
    yield
    permissions.grant(before)


def run(**arguments: Any) -> Any:
    return check_node.sync(python=sys.executable, **arguments)


def verdicts(answer: Any) -> dict[str, str]:
    return {row["part"]: row["verdict"] for row in answer.parts}


def put(folder: Path, name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_a_storage_sample_and_the_host_s_parts_give_one_table_and_one_kept_result(tmp_path):
    answer = run(parts=["storage", "health", "clock"], folder=str(tmp_path), budget_s=8)
    assert (answer.state, answer.verdict, list(verdicts(answer))) == ("done", "ok", ["health", "clock", "storage"])
    kept = json.loads(Path(answer.history_file).read_text())
    assert kept["verdict"] == "ok"
    assert {name.split()[1] for name in kept["metrics"]} == {"write", "read"}
    assert json.loads(Path(answer.samples_file).read_text())["parts"]["storage"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "runtime"]


def test_parts_that_start_nothing_run_on_a_login_node_and_beside_another_run(tmp_path, monkeypatch):
    for name in ("sinfo", "scontrol"):
        put(tmp_path, name, "exit 0", monkeypatch)
    with device_locks.releasing(device_locks.Locks(["cpu"], "run_other")):
        answer = run(parts=LIGHT)
        assert (answer.verdict, answer.history_file) == ("ok", "")
        with pytest.raises(NotHere, match="login_node"):
            run(parts=["storage"], folder=str(tmp_path))
    assert verdicts(run(parts=["health", "storage"]))["storage"] == "skipped"


def test_a_critical_node_is_told_at_once_and_nothing_is_started_on_it(tmp_path, monkeypatch):
    lost = Finding(code="gpu_lost", severity="critical", subject="GPU 3", reason="It fell off the bus.", action="drain_rma")
    monkeypatch.setitem(node_host.PARTS, "health", lambda: Told(Row(part="health", verdict="critical", note="lost"), [lost]))
    answer = run(parts=["health", "correctness", "storage"], folder=str(tmp_path))
    assert (answer.verdict, verdicts(answer)) == ("critical", {"health": "critical", "correctness": "skipped", "storage": "skipped"})
    assert not (tmp_path / "home" / "runs" / answer.job_id / "scripts").exists()


def test_a_busy_gpu_anywhere_on_the_node_refuses_the_measurement_with_its_owner(tmp_path, monkeypatch):
    put(tmp_path, "nvidia-smi", 'case "$1" in --query-gpu*) echo "0, GPU-a, NVIDIA H200, 500, 0"; echo "1, GPU-b, NVIDIA H200, 70000, 90";; '
        '*) echo "GPU-b, 999999999, python, 69000";; esac', monkeypatch)  # fmt: skip
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.raises(NotHere, match=r"gpu_busy: GPU 1 \(NVIDIA H200\) is used by pid 999999999"):
        asyncio.run(guarded())


async def guarded() -> Any:
    """Two GPUs are taken by one process without a launcher."""
    return await node_check.run_guarded(tool="check_node", arguments={}, script="node_parts.py", settings={"parts": []}, shape=dict, gpus=2,
                                        device="cuda", python=sys.executable, needs_torch=False)  # fmt: skip


def test_a_node_of_which_no_device_was_judged_has_not_passed(monkeypatch):
    monkeypatch.setitem(node_host.PARTS, "health", lambda: Told(Row(part="health", verdict="skipped", note="no GPU answers here")))
    monkeypatch.setattr(node_check, "_has_torch", without_torch)
    answer = run(parts=["health", "clock", "correctness"], budget_s=8)
    assert (answer.verdict, verdicts(answer)["clock"], "python=" in answer.next) == ("unknown", "ok", True)
    assert run(parts=["clock"]).verdict == "ok"  # asked for alone it is judged alone


async def without_torch(python: str) -> bool:
    """An environment that cannot measure."""
    return False


@pytest.mark.torch
def test_gpus_that_torch_cannot_use_keep_the_node_from_passing(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    if torch.version.cuda or torch.version.hip:
        pytest.skip("torch of this environment could use GPUs")
    put(tmp_path, "nvidia-smi", 'case "$1" in --query-gpu*) echo "0, GPU-a, NVIDIA H200, 500, 0";; esac', monkeypatch)
    answer = run(parts=["correctness"], budget_s=8)
    assert (answer.verdict, [one["code"] for one in answer.findings]) == ("warning", ["gpus_not_measured"])
    assert verdicts(answer) == {"correctness": "ok"}


def test_a_folder_is_named_or_the_storage_is_skipped_with_the_way_to_have_it(tmp_path):
    assert run(parts=["health", "storage"]).skipped == ["storage: no folder was named: pass folder= to sample its storage"]
    with pytest.raises(BadRequest, match="no_such_folder"):
        run(parts=["storage"], folder=str(tmp_path / "none"))
    permissions.grant(Permissions(read_roots=(tmp_path / "allowed",)))
    with pytest.raises(NotHere, match="path_not_permitted"):
        run(parts=["storage"], folder=str(tmp_path))


def test_a_server_without_permission_to_run_refuses(tmp_path):
    permissions.grant(permissions.TEXT_ONLY)
    with pytest.raises(NotHere, match="not_permitted"):
        run(parts=["health"])


def test_a_dry_run_says_what_would_run(tmp_path):
    plan = run(parts=["storage"], folder=str(tmp_path), dry_run=True).plan
    assert (plan["dry_run"], plan["settings"]["parts"], plan["would_be_refused"]) == (True, ["storage"], [])
    assert run(parts=["clock"], dry_run=True).plan["parts"] == ["clock"]


@pytest.mark.torch
def test_a_cancelled_check_keeps_what_was_seen_and_no_result_for_comparison(tmp_path):
    pytest.importorskip("torch")

    async def whole() -> Any:
        async with manager.keeping():
            first = await check_node(parts=["health", "correctness"], budget_s=300, wait_s=0, python=sys.executable)
            while not manager.default.jobs[first.job_id].record.worker_pid:
                await asyncio.sleep(0)
            return first.state, await manager.cancel(first.job_id)

    state, record = asyncio.run(whole())
    assert (state, record.state, record.result["partial"]) == ("running", "cancelled", True)
    assert {row["part"]: row["verdict"] for row in record.result["parts"]}["health"] == "ok"
    assert not (tmp_path / "home" / "history").exists()


def test_the_default_answer_of_a_large_node_stays_within_its_tokens():
    gpus = [f"cuda:{number}" for number in range(8)]
    triads = {gpu: {"cached": False, "correct": True, "triad": {"gb_s": 100.0 + 300 * number, "n": 9}} for number, gpu in enumerate(gpus)}
    products = {gpu: [{"dtype": "bf16", "size": 4096, "rounds": 9, "wrong_rounds": 1, "wrong_elements": 1, "first": "element (1, 2) is 5 not 4"}]
                for gpu in gpus}  # fmt: skip
    result = {"devices": dict.fromkeys(gpus, "NVIDIA H100 80GB HBM3"), "memory": triads, "correctness": products, "skipped": {}}
    payload = {"host": {}, "parts": {"bandwidth": {"runs": [{"result": result}]}}, "skipped": {}, "partial": True}
    parts = list(node_check.MEASURED)
    answer = node_check._shape(list(node_check.PARTS), parts, gpus, {})(payload)
    assert answer["verdict"] == "critical"
    assert len(contract.compact_json(answer)) / 4 <= 2000
