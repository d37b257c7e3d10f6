"""Runs on several nodes of a real SLURM: one table, and a clear end whatever happens to a node or to the job."""

import asyncio
import json
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from skillserver import permissions
from skillserver.cluster import slurm_batch
from skillserver.jobs import manager
from skillserver.jobs.store import JobRecord, Store
from skillserver.measure.history import Metric
from skillserver.permissions import Permissions, Profile
from skillserver.procedures import node_follow
from skillserver.procedures.guarded_run import run_guarded
from skillserver.tools.collectives import run_all_reduce_bench
from skillserver.tools.connectivity import check_connectivity
from skillserver.tools.hang import diagnose_hang
from skillserver.tools.mamf import run_mamf
from skillserver.tools.node import check_node

pytestmark = pytest.mark.slurm
HERE = Path(__file__).parent
WORKER = str(HERE / "node_worker.py")
SKILLSERVER = str(Path(sys.executable).with_name("skillserver"))
WAIT_S = 150
# what a throttled CPU does, from outside of any job: for one part in ten of the time the worker may run
THROTTLE = "for i in $(seq 150); do pkill -STOP -f '[n]ode_worker'; sleep 0.09; pkill -CONT -f '[n]ode_worker'; sleep 0.01; done"
UNPLUGGED = """for i in $(seq 600); do [ -e {mark} ] && break; sleep 0.1; done; [ -e {mark} ] || exit
ip link set eth0 down; pkill -KILL -f '[n]ode_worker'; sleep 14; ip link set eth0 up"""


def shell(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def on(node: str, script: str) -> None:
    """Run shell lines on a node, outside of any job."""
    shell("srun", "--quiet", f"--nodelist={node}", "--nodes=1", "--input=none", "bash", "-c", script)


def detached(node: str, script: str) -> None:
    """The same, left running: what happens to a node happens from outside of any job."""
    on(node, f"setsid --fork bash -c {shlex.quote(script)} </dev/null >/dev/null 2>&1")


async def until(what: Callable[[], Any]) -> Any:
    """Poll: SLURM tells nobody when something happened."""
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        if found := what():
            return found
        await asyncio.sleep(0.1)
    raise AssertionError("it did not happen in time")


def idle(nodes: int = 4) -> bool:
    return shell("sinfo", "-h", "-N", "-t", "idle", "-o", "%N %T").count(" idle\n") + 1 >= nodes


@pytest.fixture(autouse=True)
def four_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    kept = permissions.current()
    permissions.grant(Permissions(max_nodes=4))
    monkeypatch.setenv("SKILLSERVER_HOME", str(tmp_path / "home"))
    asyncio.run(until(idle))
    yield
    permissions.grant(kept)


def number(answer: dict[str, Any]) -> dict[str, Metric]:
    return {"rate": Metric(value=answer["best"]["tflops"], unit="1/s")}


async def run(nodes: int, **settings: Any) -> JobRecord:
    return await run_guarded(tool="run_test", arguments={}, script=WORKER, settings=settings, shape=dict, wait_s=0, python=sys.executable,
                             needs_torch=False, nodes=nodes, values=number, limit_s=30)  # fmt: skip


async def waited(started: Coroutine[Any, Any, JobRecord]) -> JobRecord:
    """The record of a run that is waited for, failed or not."""
    async with manager.keeping():
        return await ended(await started)


async def begun(nodes: int, mark: Path, count: int, **settings: Any) -> JobRecord:
    """A run under way: its job is RUNNING and `count` workers have said so."""
    mark.mkdir(exist_ok=True)
    record = await run(nodes, mode="wait", mark=str(mark) + "/", **settings)
    await until(lambda: len(list(mark.iterdir())) >= count)
    return record


async def ended(record: JobRecord) -> JobRecord:
    while record.state == "running":
        record = await manager.wait(record.job_id, 45)
    return record


def states(record: JobRecord) -> dict[str, str]:
    assert record.result
    return {row["node"]: row["state"] for row in record.result["table"]["rows"]}


def slurm_job(record: JobRecord) -> str:
    return manager.default.jobs[record.job_id].record.slurm_job_id


def test_four_healthy_nodes_give_one_table_with_nobody_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # four nodes share the cores of this host
    found = run_mamf.sync(nodes=4, budget_s=4, shapes=[[64, 64, 64]])
    assert found.table
    assert (found.state, found.table["answered"], found.table["failed"], found.table["never_answered"]) == ("done", 4, [], []), found.error
    assert [row["node"] for row in found.table["rows"]] == ["n1", "n2", "n3", "n4"]
    assert found.table["columns"][0]["median"] > 0
    assert (found.slurm or {})["nodes"] == "n[1-4]"
    assert not [finding for finding in found.findings if finding["code"] in ("node_failed", "node_silent")]


def test_a_throttled_node_is_named_an_outlier() -> None:
    detached("n3", THROTTLE)
    record = asyncio.run(waited(run(4, mode="value", seconds=3)))
    assert record.result
    assert record.result["table"]["outliers"] == ["n3"], record.result["table"]
    assert [(one["code"], one["subject"]) for one in record.result["findings"]] == [("odd_node", "n3")]


def test_the_acceptance_test_runs_on_each_node_by_this_installation() -> None:
    found = check_node.sync(nodes=2, parts=["numa", "clock"])
    assert found.table
    assert (found.state, found.table["answered"]) == ("done", 2), found.error
    assert [column["name"] for column in found.table["columns"]] == ["numa"]


def test_ranks_of_several_nodes_form_one_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    found = run_all_reduce_bench.sync(nodes=2, nproc=2, sizes=[2**16], backend="gloo", budget_s=2)
    assert (found.state, found.nproc, [row["correct"] for row in found.rows]) == ("done", 4, [True]), found.error
    assert found.table
    assert [(row["node"], row["ranks"], row["state"]) for row in found.table["rows"]] == [("n1", "0 to 1", "done"), ("n2", "2 to 3", "done")]


def test_every_node_reaches_every_other() -> None:
    found = check_connectivity.sync(nodes=3)
    assert (found.state, found.verdict, (found.tested or {})["connections"]) == ("done", "ok", 6), found.error


def test_a_node_without_the_folder_and_one_whose_worker_dies_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "home/runs").mkdir(parents=True)
    on("n2", f"mount -t tmpfs none {tmp_path}/home/runs")
    try:
        record = asyncio.run(waited(run(3, mode="killed", where="n3")))
    finally:
        on("n2", f"umount {tmp_path}/home/runs")
    assert states(record) == {"n1": "done", "n2": "failed", "n3": "failed"}
    errors = {row["node"]: row.get("error", "") for row in (record.result or {})["table"]["rows"]}
    assert "set SKILLSERVER_HOME to a folder that all nodes share" in errors["n2"]
    assert "SIGKILL" in errors["n3"]


def test_the_workers_own_error_is_told_when_no_node_gave_a_result() -> None:
    record = asyncio.run(waited(run(2, mode="failure")))
    assert (record.state, record.next) == ("failed", "pass dtype='fp32'")
    assert "n1, n2: no_such_dtype: dtype 'x'" in (record.error or {})["message"]


def test_a_cancelled_run_cancels_its_job_and_keeps_what_there_was(tmp_path: Path) -> None:
    async def scenario() -> JobRecord:
        async with manager.keeping():
            record = await begun(2, tmp_path / "mark", 2)
            return await manager.cancel(record.job_id)

    record = asyncio.run(scenario())
    assert (record.state, states(record)) == ("cancelled", {"n1": "partial", "n2": "partial"})
    assert shell("squeue", "-h", "-t", "RUNNING,PENDING") == ""


def test_a_server_that_ends_cancels_its_jobs(tmp_path: Path) -> None:
    async def scenario() -> JobRecord:
        async with manager.keeping():
            return await begun(1, tmp_path / "mark", 1)

    record = asyncio.run(scenario())
    assert shell("squeue", "-h", "-t", "RUNNING,PENDING") == ""
    assert Store().load(record.job_id).state == "cancelled"  # type: ignore[union-attr]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["terminated", "killed"])
def test_a_server_that_is_ended_from_outside_leaves_no_job(tmp_path: Path, number: signal.Signals) -> None:
    script = tmp_path / "server.py"
    script.write_text(f"""
import asyncio, signal, sys
sys.path.insert(0, {str(HERE)!r})
import test_many_nodes as t
from skillserver.cluster import slurm_submit

async def main():
    slurm_submit.end_jobs_with_us()
    t.permissions.grant(t.Permissions(max_nodes=4))
    t.slurm_batch.UNFOLLOWED_S = 3
    async with t.manager.keeping():
        await t.begun(1, t.Path({str(tmp_path / "mark")!r}), 1)
        print("begun", flush=True)
        await asyncio.sleep(100)

asyncio.run(main())
""")
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        assert server.stdout.readline() == "begun\n"
        assert shell("squeue", "-h", "-t", "RUNNING", "-o", "%T") == "RUNNING"
        server.send_signal(number)
    asyncio.run(until(lambda: shell("squeue", "-h", "-t", "RUNNING,PENDING") == ""))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=["terminated", "terminal closed"])
def test_a_command_that_is_ended_leaves_no_job(number: signal.Signals) -> None:
    """Sooner than the job itself would notice that nobody follows it."""
    call = [SKILLSERVER, "call", "run_mamf", json.dumps({"nodes": 1, "budget_s": 60}), "--max-nodes", "1"]
    heard = partial(signal.signal, number, signal.SIG_DFL)  # tests may themselves run under nohup, which the command would respect
    with subprocess.Popen(call, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=heard) as command:
        asyncio.run(until(lambda: shell("squeue", "-h", "-t", "RUNNING", "-o", "%T") == "RUNNING"))
        command.send_signal(number)
    assert command.returncode == -number
    asyncio.run(until(lambda: shell("squeue", "-h", "-t", "RUNNING,PENDING") == ""))


def test_what_happens_to_a_job_is_told_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, because each takes its time: a time limit, a node that is unplugged, a requeue."""
    monkeypatch.setattr(slurm_batch, "MARGIN_S", 0.0)

    async def requeued() -> JobRecord:
        record = await begun(1, tmp_path / "requeued", 1)
        shell("scontrol", "update", f"jobid={slurm_job(record)}", "requeue=1")
        shell("scontrol", "requeue", slurm_job(record))
        return await ended(record)

    async def unplugged() -> tuple[JobRecord, str]:
        record = await begun(2, tmp_path / "unplugged", 2)
        node = sorted(file.name.split(".")[0] for file in (tmp_path / "unplugged").iterdir())[1]  # the first one runs the batch script
        (tmp_path / node).touch()
        return await ended(record), node

    async def scenario() -> tuple[JobRecord, JobRecord, JobRecord, str]:
        for node in ("n2", "n3", "n4"):
            detached(node, UNPLUGGED.format(mark=tmp_path / node))
        async with manager.keeping():
            late = await begun(1, tmp_path / "late", 1)
            again, (lost, node) = await asyncio.gather(requeued(), unplugged())
            return await ended(late), again, lost, node

    late, again, lost, node = asyncio.run(scenario())
    assert ((late.error or {})["code"], late.error_kind) == ("slurm_time_limit", "TooLong"), late.error
    assert "it reached its time limit" in (late.error or {})["message"]
    assert list(states(late).values()) == ["partial"]
    assert (again.state, (again.result or {})["table"]["rows"][0]["rate"]) == ("done", 3.0), again.error
    assert "started the job again 1 times" in again.note
    assert (lost.error or {})["code"] == "slurm_node_failure"
    assert f"lost: {node}" in (lost.error or {})["message"]
    assert states(lost)[node] == "failed"
    assert list(states(lost).values()).count("partial") == 1


def test_a_job_that_somebody_cancels_has_failed(tmp_path: Path) -> None:
    async def scenario() -> JobRecord:
        async with manager.keeping():
            record = await begun(1, tmp_path / "mark", 1)
            shell("scancel", slurm_job(record))
            return await ended(record)

    record = asyncio.run(scenario())
    assert (record.state, (record.error or {})["code"], list(states(record).values())) == ("failed", "slurm_cancelled", ["partial"])


def test_a_job_that_cannot_start_is_ended_with_the_drained_nodes_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(node_follow.PATIENCE_S, "nodes", 1.0)
    shell("scontrol", "update", "nodename=n3", "state=drain", "reason=ECC errors")
    try:
        record = asyncio.run(waited(run(4, mode="value")))
    finally:
        shell("scontrol", "update", "nodename=n3", "state=resume")
    assert (record.error or {})["code"] == "cannot_start"
    assert "n3 (ECC errors)" in (record.error or {})["message"]
    assert shell("squeue", "-h") == ""


def test_what_the_human_gave_goes_to_sbatch_and_its_refusal_comes_back() -> None:
    permissions.grant(Permissions(max_nodes=4, partition="nosuch"))
    record = asyncio.run(waited(run(1, mode="value")))
    assert ((record.error or {})["code"], record.error_kind) == ("slurm_refused", "BadRequest")
    assert "--partition" in record.next


def test_a_profile_is_entered_on_every_node(tmp_path: Path) -> None:
    """A container's stand-in: namespaces of its own, behind a file that bash sources."""
    file = tmp_path / "site.sh"
    file.write_text(f"echo loaded\nPATH={Path(sys.executable).parent}:$PATH\nNCCL_FROM_SITE=yes\n")
    permissions.grant(Permissions(max_nodes=4, profiles={"site": Profile(("unshare", "--uts", "--mount", "env", "-C", "{run}"), str(file))}))
    record = asyncio.run(waited(run_guarded(
        tool="run_test", arguments={}, script=WORKER, settings={"mode": "surroundings"}, shape=dict, python="site", needs_torch=False, nodes=2,
        values=number, limit_s=30)))  # fmt: skip
    assert record.result
    assert record.result["surroundings"] == {"NCCL_FROM_SITE": "yes", "folder": record.run_folder}  # {run} was filled in


def test_inside_an_allocation_it_is_a_step_of_it(tmp_path: Path) -> None:
    call = [SKILLSERVER, "call", "check_node", "--max-nodes", "4", "--json", json.dumps({"nodes": 2, "parts": ["numa"]})]
    done = subprocess.run(["salloc", "--quiet", "--nodes=2", "--exclusive", *call], capture_output=True, text=True)
    found = json.loads(done.stdout)
    assert (found["state"], found["table"]["answered"], found["slurm"]["step"]) == ("done", 2, True), done.stderr
    call[-1] = json.dumps({"nodes": 3, "parts": ["numa"]})
    refused = subprocess.run(["salloc", "--quiet", "--nodes=2", *call], capture_output=True, text=True)
    assert json.loads(refused.stdout)["code"] == "allocation_too_small"


def test_a_cancelled_step_leaves_the_allocation_without_it(tmp_path: Path) -> None:
    script = str(tmp_path / "cancel.py")
    Path(script).write_text(f"""
import asyncio, sys
sys.path.insert(0, {str(HERE)!r})
import test_many_nodes as t

async def main():
    t.permissions.grant(t.Permissions(max_nodes=4))
    async with t.manager.keeping():
        record = await t.begun(2, t.Path({str(tmp_path / "mark")!r}), 2)
        record = await t.manager.cancel(record.job_id)
        print(record.state, sorted(t.states(record).values()), t.shell("squeue", "-h", "-s", "-o", "%j").count("run_test"))

asyncio.run(main())
""")
    done = subprocess.run(["salloc", "--quiet", "--nodes=2", "--exclusive", sys.executable, script], capture_output=True, text=True)
    assert done.stdout.strip() == "cancelled ['partial', 'partial'] 0", done.stderr


def test_the_rank_that_hangs_is_found_in_a_running_job(tmp_path: Path) -> None:
    launch = (f"{sys.executable} -m torch.distributed.run --nnodes 2 --nproc-per-node 2 --node-rank $SLURM_NODEID --master-addr $MASTER_ADDR "
              f"--master-port 29517 {HERE / 'hanging_job.py'} 2 {tmp_path}")  # fmt: skip
    (tmp_path / "job").write_text(f"#!/bin/bash\nexport OMP_NUM_THREADS=1 MASTER_ADDR=$(hostname)\nsrun bash -c {shlex.quote(launch)}\n")
    options = ["--nodes=2", "--ntasks-per-node=1", "--exclusive", "--mem=0", "--time=3", f"--output={tmp_path}/out"]
    job = shell("sbatch", "--parsable", *options, str(tmp_path / "job"))
    try:
        asyncio.run(until(lambda: len(list(tmp_path.glob("rank.*"))) == 4))
        found = asyncio.run(until(lambda: (seen := diagnose_hang(slurm_job=job)).culprits and seen))
    finally:
        shell("scancel", job)
    assert (found.culprits, found.waiting) == ([2], [0, 1, 3])
    assert re.search(r"rank 2.*load \(hanging_job", " ".join(found.findings[0].evidence))
