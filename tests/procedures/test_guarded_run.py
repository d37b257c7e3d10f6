import asyncio
import os
import sys
from pathlib import Path

import pytest

from skillserver import permissions
from skillserver.errors import BadRequest, NotHere, WorkerFailed
from skillserver.jobs import device_locks, manager
from skillserver.permissions import Permissions
from skillserver.procedures.guarded_run import login_node, run_guarded

FAKE = str(Path(__file__).parents[1] / "workers" / "fake_worker.py")


pytestmark = pytest.mark.usefixtures("own_place")


def call(settings, **more):
    """Arguments of one run of the fake worker."""
    return {"tool": "run_test", "arguments": {"mode": settings.get("mode")}, "script": FAKE, "settings": settings, "shape": dict,
            "device": "cpu", "python": sys.executable, "needs_torch": False} | more  # fmt: skip


def run(settings, **more):
    return asyncio.run(run_guarded(**call(settings, **more)))


def test_a_run_gives_the_shaped_result_with_its_interpreter(tmp_path):
    record = run({"mode": "success", "device": "auto"}, shape=lambda payload: {"device": payload["settings"]["device"], "worker": payload["worker"]})
    assert (record.state, record.result["device"], record.note) == ("done", "cpu", "")
    worker = record.result["worker"]
    assert (worker["interpreter"], worker["source"]) == (sys.executable, f"python={sys.executable!r}")
    assert worker["python"] == ".".join(map(str, sys.version_info[:3]))
    assert record.run_folder == str(tmp_path / "home" / "runs" / record.job_id)
    assert manager.default.store.load(record.job_id).result == record.result


def test_the_worker_s_own_error_is_raised_when_there_is_nothing_to_show():
    with pytest.raises(BadRequest, match="no_such_dtype"):
        run({"mode": "failure", "kind": "bad_request"})
    with pytest.raises(WorkerFailed, match="without a result"):
        run({"mode": "silent"})


def test_a_run_past_its_limit_shows_the_best_so_far():
    record = run({"mode": "hang"}, limit_s=2)
    assert (record.state, record.error["code"], record.result["best"], record.result["partial"]) == ("failed", "too_long", 2, True)
    assert record.result["worker"]["interpreter"] == sys.executable


def test_a_crash_after_the_result_leaves_a_note():
    assert run({"mode": "crash_after_result"}).note == "the worker was ended by SIGABRT after its result"


def test_a_server_that_may_not_run_refuses_even_a_dry_run():
    permissions.grant(permissions.TEXT_ONLY)
    with pytest.raises(NotHere, match="not_permitted"):
        run({}, dry_run=True)


def test_a_limit_above_the_permitted_is_refused():
    permissions.grant(Permissions(max_minutes=1))
    with pytest.raises(NotHere, match=r"limit_too_long: a limit of 61 s is above the 1 minutes allowed here.*--max-minutes"):
        run({}, limit_s=61)


def test_a_second_heavy_run_is_refused_with_its_holder_named():
    locks = device_locks.Locks(["cpu"], "run_other")
    with device_locks.releasing(locks), pytest.raises(NotHere, match=rf"device_taken: cpu is used by job run_other of process {os.getpid()} since"):
        run({"mode": "success"})
    assert run({"mode": "success"}).state == "done"


def test_two_runs_at_once_leave_one_refused_and_the_device_free_afterwards():
    async def whole():
        async with manager.keeping():
            first = await run_guarded(**call({"mode": "hang"}, wait_s=0))
            with pytest.raises(NotHere, match="device_taken"):
                await run_guarded(**call({"mode": "success"}))
            await manager.cancel(first.job_id)
            return first.state, (await run_guarded(**call({"mode": "success"}))).state

    assert asyncio.run(whole()) == ("running", "done")
    assert device_locks.holder("cpu") is None


def test_a_dry_run_says_what_would_run_and_starts_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("NCCL_IB_HCA", "mlx5_0")
    record = run({"mode": "success"}, dry_run=True, nproc=2, limit_s=7200)
    plan = record.result
    assert (record.state, record.job_id, plan["dry_run"], plan["limit_s"], plan["device"]) == ("done", "", True, 7200, "cpu")
    assert plan["argv"] == [sys.executable, "-u", "RUN_FOLDER/scripts/launch.py", "--nproc", "2", "RUN_FOLDER/scripts/fake_worker.py",
                            "--settings-file", "RUN_FOLDER/settings.json"]  # fmt: skip
    assert "NCCL_IB_HCA" in plan["environment"]
    assert [refusal.split(":")[0] for refusal in plan["would_be_refused"]] == ["limit_too_long"]
    assert not (tmp_path / "home").exists()


def test_a_home_that_cannot_be_written_does_not_stop_a_run(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SKILLSERVER_HOME", str(tmp_path / "file" / "home"))
    record = run({"mode": "success"})
    assert (record.state, Path(record.run_folder).exists()) == ("done", False)
    assert "the record is kept in memory only" in record.note


def test_a_runtime_folder_that_cannot_be_written_is_noted(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "file"))
    assert run({"mode": "success"}).note.startswith("no lock was taken for cpu: ")


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """Puts sinfo and scontrol first in PATH; scontrol ends with the status given."""

    def commands(status):
        for name in ("sinfo", "scontrol"):
            (tmp_path / name).write_text(f"#!/bin/sh\nexit {status}\n")
            (tmp_path / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    return commands


def test_a_login_node_is_refused_unless_the_user_allowed_it(slurm):
    slurm(0)
    with pytest.raises(NotHere, match=r"login_node: SLURM answers here.*salloc.*ask your user"):
        run({"mode": "success"})
    permissions.grant(Permissions(login_node=True))
    assert run({"mode": "success"}).state == "done"


def test_a_configuration_file_alone_makes_a_login_node(slurm, tmp_path, monkeypatch):
    slurm(1)
    (tmp_path / "slurm.conf").write_text("ClusterName=c\n")
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    assert login_node().startswith(f"SLURM is set up here ({tmp_path}/slurm.conf)")


def test_inside_an_allocation_or_with_dead_commands_it_is_no_login_node(slurm, monkeypatch):
    slurm(1)
    assert login_node() == ""
    slurm(0)
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    assert login_node() == ""


@pytest.mark.parametrize(("permitted", "matters", "state"), [(True, True, "done"), (False, False, "done"), (False, True, "refused")])
def test_a_busy_gpu_is_refused_unless_the_user_allowed_it(tmp_path, monkeypatch, permitted, matters, state):
    program = tmp_path / "nvidia-smi"
    program.write_text(
        '#!/bin/sh\ncase "$1" in --query-gpu*) echo "0, GPU-a, NVIDIA H200, 500, 0";; *) echo "GPU-a, 999999999, python, 400";; esac\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    permissions.grant(Permissions(busy=permitted))
    if state == "done":
        assert run({"mode": "success"}, device="cuda", busy_matters=matters).state == "done"
    else:
        with pytest.raises(NotHere, match=r"gpu_busy: GPU 0 \(NVIDIA H200\) is used by pid 999999999 python, 400 MiB.*--allow-busy"):
            run({"mode": "success"}, device="cuda")


def test_all_devices_are_locked_together(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text('#!/bin/sh\ncase "$1" in --query-gpu*) printf "0, GPU-a, NVIDIA H200, 4, 0\\n1, GPU-b, NVIDIA H200, 4, 0\\n";; esac\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    record = run({"mode": "success", "device": "all"}, device="all", shape=lambda payload: payload["settings"])
    assert record.result["device"] == "cuda:0,cuda:1"
    with (
        device_locks.releasing(device_locks.Locks(["GPU-b"], "run_other")),
        pytest.raises(NotHere, match="device_taken: GPU-b is used by job run_other"),
    ):
        run({"mode": "success"}, device="all")
    held = []
    run({"mode": "success"}, device="each", first=_holders(held))
    assert held == [True, True]


def _holders(held):
    async def look(handle):
        held.extend(device_locks.holder(name) is not None for name in ("GPU-a", "GPU-b"))
        return {}, True

    return look
