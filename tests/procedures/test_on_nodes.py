"""Runs on nodes where no SLURM is: refusals and plans, and ends that the test bed cannot make, told by SLURM's own text."""

import asyncio
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from skillserver import permissions
from skillserver.errors import BadRequest, NotHere
from skillserver.jobs import manager
from skillserver.jobs.store import JobRecord, Store
from skillserver.measure.history import Metric
from skillserver.permissions import Permissions, Profile
from skillserver.procedures import node_follow, on_nodes
from skillserver.procedures.guarded_run import run_guarded
from skillserver.tools.mamf import run_mamf
from skillserver.tools.run_results import fields

# scontrol show job of SLURM 22.05, shortened
JOB = """JobId=7 JobName=skillserver-run_test
   UserId=ann(1000) GroupId=ann(1000) MCS_label=N/A
   JobState={state} Reason={reason} Dependency=(null)
   Requeue=0 Restarts={restarts} BatchFlag=1 Reboot=0 ExitCode={code}
   RunTime=00:00:07 TimeLimit=00:02:00 TimeMin=N/A
   Partition=main AllocNode:Sid=login:4242
   NodeList={nodes}
   NumNodes=2 NumCPUs=32 NumTasks=2 CPUs/Task=1 ReqB:S:C:T=0:0:*:*
"""
SACCT = "JobID|User|Partition|State|ExitCode|Elapsed|Timelimit|TotalCPU|AllocCPUS|ReqMem|MaxRSS|NNodes|AllocTRES|NodeList|JobName\n"
PROGRAMS = {
    "sbatch": 'pwd > "{0}/where"; env > "{0}/env"; [ -e "{0}/refuse" ] && {{ cat "{0}/refuse" >&2; exit 1; }}; echo 7',
    "scontrol": '[ "$2" = node ] && exit 0; [ -e "{0}/silent" ] && {{ rm "{0}/silent"; echo "Unable to contact slurm controller" >&2; exit 1; }}\n'
                'cat "{0}/job" 2>/dev/null || {{ echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1; }}',
    "sacct": 'cat "{0}/accounts" 2>/dev/null || {{ echo "Slurm accounting storage is disabled" >&2; exit 1; }}',
    "scancel": 'echo "$@" >> "{0}/cancelled"',
    "srun": "exit 0",
}  # fmt: skip


@pytest.fixture(autouse=True)
def allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    kept = permissions.current()
    permissions.grant(Permissions(max_nodes=4))
    monkeypatch.setenv("SKILLSERVER_HOME", str(tmp_path / "home"))
    for name in [name for name in os.environ if name.startswith(("SLURM_", "SBATCH_", "OMP_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(node_follow, "ACCOUNTS_S", 1.0)
    monkeypatch.setattr(node_follow, "SETTLE_OTHERS_S", 0.2)
    yield
    permissions.grant(kept)


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """SLURM's commands, which say what the test has put into files."""
    folder = tmp_path / "slurm"
    folder.mkdir()
    for name, text in PROGRAMS.items():
        (folder / name).write_text(f"#!/bin/sh\n{text.format(folder)}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def says(folder: Path, state: str, reason: str = "None", nodes: str = "n[1-2]", code: str = "0:0", restarts: int = 0) -> None:
    aside = folder / "job.aside"
    aside.write_text(JOB.format(state=state, reason=reason, nodes=nodes, code=code, restarts=restarts))
    aside.replace(folder / "job")


def answers(record: JobRecord, node: str, *lines: dict[str, Any], status: int | None = 0, start: int = 0) -> None:
    place = Path(record.run_folder) / "nodes" / str(start) / node
    place.mkdir(parents=True)
    (place / "out.jsonl").write_text("a stray print\n" + "".join(json.dumps(line) + "\n" for line in lines))
    if status is not None:
        (place / "status").write_text(f"{status}\n")


def result(value: float, stopped: bool = False) -> dict[str, Any]:
    return {"type": "result", "payload": {"value": value}, "stopped": stopped}


def number(answer: dict[str, Any]) -> dict[str, Metric]:
    return {"rate": Metric(value=answer["value"], unit="1/s")}


async def run(**more: Any) -> JobRecord:
    return await run_guarded(tool="run_test", arguments={}, script="protocol.py", settings={}, shape=dict, wait_s=0, needs_torch=False,
                             values=number, limit_s=30, **{"nodes": 2} | more)  # fmt: skip


async def ended(record: JobRecord) -> JobRecord:
    while record.state == "running":
        record = await manager.wait(record.job_id, 10)
    return record


def played(slurm: Path, *last: Any, lines: dict[str, list[Any]], **said: Any) -> JobRecord:
    """A run whose nodes leave these lines, and whose job then ends like this."""

    async def scenario() -> JobRecord:
        async with manager.keeping():
            says(slurm, "RUNNING")
            record = await run()
            for node, told in lines.items():
                answers(record, node, *told, status=0 if any(line["type"] == "result" for line in told) else None)
            says(slurm, *last, **said)
            return await ended(record)

    return asyncio.run(scenario())


def table(record: JobRecord) -> dict[str, Any]:
    assert record.result
    return dict(record.result["table"])


def test_two_answers_become_one_table(slurm: Path) -> None:
    record = played(slurm, "COMPLETED", lines={"n1": [result(10.0)], "n2": [result(10.2)]})
    assert (record.progress or {})["message"] == "job 7: 2 of 2 nodes done"
    assert (record.state, record.slurm_job_id, record.note) == ("done", "7", "SLURM job 7")
    assert table(record)["columns"] == [{"name": "rate", "unit": "1/s", "nodes": 2, "median": 10.1, "low": 10.0, "high": 10.2, "mad": 0.1,
                                         "spread": "2.0%", "outliers": ""}]  # fmt: skip
    assert (slurm / "where").read_text().strip() != str(slurm)
    assert not (slurm / "cancelled").exists()


@pytest.mark.parametrize(
    ("state", "code", "cause", "words"),
    [("PREEMPTED", "0:15", "slurm_preempted", "a job of higher priority took its nodes"),
     ("OUT_OF_MEMORY", "0:125", "slurm_out_of_memory", "the job passed its memory limit"),
     ("BOOT_FAIL", "0:0", "slurm_boot_failure", "a node could not be booted")],
)  # fmt: skip
def test_an_end_by_slurm_is_told_in_words_and_keeps_the_answers(slurm: Path, state: str, code: str, cause: str, words: str) -> None:
    record = played(slurm, state, code=code, lines={"n1": [result(10.0)]})
    assert (record.state, (record.error or {})["code"]) == ("failed", cause)
    assert words in (record.error or {})["message"]
    assert "1 of 2 nodes had answered; lost: n2." in (record.error or {})["message"]
    assert [(row["node"], row["state"], row.get("rate")) for row in table(record)["rows"]] == [("n1", "done", 10.0), ("n2", "never answered", None)]


def test_the_newest_try_of_a_requeued_job_counts_and_an_older_one_fills_in(slurm: Path) -> None:
    async def scenario() -> JobRecord:
        async with manager.keeping():
            says(slurm, "RUNNING", restarts=1)
            record = await run()
            answers(record, "n1", result(1.0, stopped=True))
            answers(record, "n2", result(2.0, stopped=True))
            answers(record, "n1", result(10.0), start=1)
            says(slurm, "COMPLETED", restarts=1)
            return await ended(record)

    record = asyncio.run(scenario())
    assert [(row["node"], row["state"], row["rate"]) for row in table(record)["rows"]] == [("n1", "done", 10.0), ("n2", "partial", 2.0)]
    assert "SLURM started the job again 1 times" in record.note


def test_a_controller_that_does_not_answer_once_is_asked_again(slurm: Path) -> None:
    (slurm / "silent").touch()
    record = played(slurm, "COMPLETED", lines={"n1": [result(10.0)], "n2": [result(10.0)]})
    assert (record.state, (slurm / "silent").exists()) == ("done", False)


def test_a_job_that_the_controller_forgot_is_looked_up_in_the_accounts(slurm: Path) -> None:
    (slurm / "accounts").write_text(SACCT + "7|ann|main|NODE_FAIL|0:0|00:00:07|00:02:00|00:00:01|32|||2||n[1-2]|run\n")

    async def scenario() -> JobRecord:
        async with manager.keeping():
            return await ended(await run())

    record = asyncio.run(scenario())
    assert (record.error or {})["code"] == "slurm_node_failure"


def test_a_job_that_can_never_start_is_cancelled(slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(node_follow.PATIENCE_S, "never", 0.0)
    record = played(slurm, "PENDING", "PartitionNodeLimit", lines={}, nodes="(null)")
    assert (record.error or {})["code"] == "cannot_start"
    assert (slurm / "cancelled").read_text() == "7\n"


def test_a_program_that_one_node_lacks_is_the_cause_and_told_before_the_nodes_ended_for_it(slurm: Path) -> None:
    async def scenario() -> JobRecord:
        async with manager.keeping():
            says(slurm, "RUNNING")
            record = await run()
            answers(record, "n1", status=143)
            answers(record, "n2", status=127)
            (Path(record.run_folder) / "nodes/0/n2/stderr.txt").write_text("node: line 13: /envs/a/bin/python: No such file or directory\n")
            says(slurm, "FAILED", code="127:0")
            return await ended(record)

    record = asyncio.run(scenario())
    said = "n2: its program could not be started on this node: node: line 13: /envs/a/bin/python: No such file or directory; n1: was ended by SIGTERM"
    assert said in (record.error or {})["message"]
    assert record.next == "pass a python that every node has at the same path"
    assert [finding["subject"] for finding in (record.result or {})["findings"]] == ["n2", "n1"]


def test_nodes_that_write_nothing_are_named(slurm: Path) -> None:
    record = played(slurm, "FAILED", code="1:0", lines={"n1": [result(3.0)]})
    assert (record.state, table(record)["never_answered"]) == ("done", ["n2"])
    assert "never answered: n2" in (record.result or {})["reason"]


def test_slurms_refusal_comes_back_in_its_words(slurm: Path) -> None:
    (slurm / "refuse").write_text("sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified")
    with pytest.raises(BadRequest, match="Invalid account") as refused:
        asyncio.run(run())
    assert "--account" in refused.value.next


def test_an_unknown_partition_is_refused_with_those_there_are(slurm: Path) -> None:
    (slurm / "refuse").write_text("sbatch: error: invalid partition specified: nosuch")
    (slurm / "job").write_text("PartitionName=gpu\n   State=UP TotalNodes=4 Nodes=n[1-4]\n\nPartitionName=old\n   State=DOWN TotalNodes=1 Nodes=n5\n")
    with pytest.raises(BadRequest, match="nosuch") as refused:
        asyncio.run(run())
    assert refused.value.valid == ["gpu"]


def test_a_run_that_waits_in_the_queue_says_why() -> None:
    record = JobRecord.new("run_mamf", {}).model_copy(update={"slurm_job_id": "7", "note": "SLURM job 7", "progress": {
        "done": 0, "total": 2, "message": "job 7 waits: jobs with a higher priority wait for the same partition (Priority)"}})  # fmt: skip
    assert fields(record, dry_run=False, detail=False)["note"].startswith("SLURM job 7; job 7 waits: jobs with a higher priority")


def test_nothing_of_this_host_goes_to_the_nodes(slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "SECRET_TOKEN": "x",
        "CUDA_VISIBLE_DEVICES": "3",
        "NCCL_DEBUG": "INFO",
        "SBATCH_ACCOUNT": "phys",
        "SBATCH_QOS": "low",
    }.items():
        monkeypatch.setenv(name, value)
    permissions.grant(Permissions(max_nodes=4, qos="high"))
    played(slurm, "COMPLETED", lines={"n1": [result(1.0)], "n2": [result(1.0)]})
    given = dict(line.split("=", 1) for line in (slurm / "env").read_text().splitlines() if "=" in line)
    expected = {"SECRET_TOKEN": None, "CUDA_VISIBLE_DEVICES": None, "OMP_NUM_THREADS": None, "NCCL_DEBUG": "INFO", "SBATCH_ACCOUNT": "phys",
                "SBATCH_QOS": None}  # fmt: skip
    assert {name: given.get(name) for name in expected} == expected


def test_without_slurm_the_next_step_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotHere, match="no_slurm: nodes=2 is run by SLURM, and this host has no sbatch") as refused:
        run_mamf.sync(nodes=2)
    assert "login node" in refused.value.next


@pytest.mark.usefixtures("slurm")
@pytest.mark.parametrize(
    ("given", "asked", "code", "flag"),
    [({"max_nodes": 1}, {"nodes": 2}, "too_many_nodes", "--max-nodes 2"), ({"max_minutes": 0.1}, {"nodes": 1}, "limit_too_long", "--max-minutes"),
     ({"run": False}, {"nodes": 1}, "not_permitted", "--allow-run")],
)  # fmt: skip
def test_a_limit_of_the_human_refuses_and_names_its_flag(given: dict[str, Any], asked: dict[str, int], code: str, flag: str) -> None:
    permissions.grant(Permissions(**given))
    with pytest.raises(NotHere) as refused:
        asyncio.run(run(**asked))
    assert (refused.value.code, flag in refused.value.next) == (code, True)


@pytest.mark.usefixtures("slurm")
def test_an_allocation_must_be_large_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "5")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "2")
    assert [one.code for one in on_nodes.refusals(3, 60)] == ["allocation_too_small"]
    assert on_nodes.refusals(2, 60) == []


def test_a_dry_run_shows_the_script_and_what_would_be_refused(slurm: Path) -> None:
    permissions.grant(Permissions(partition="gpu", account="phys", qos="high"))
    found = run_mamf.sync(nodes=3, dry_run=True, dtype="bf16")
    plan = found.plan or {}
    lines = plan["sbatch_script"].splitlines()
    assert {"#SBATCH --nodes=3", "#SBATCH --partition=gpu", "#SBATCH --account=phys", "#SBATCH --qos=high", "#SBATCH --no-requeue",
            "#SBATCH --exclusive"} <= set(lines)  # fmt: skip
    assert plan["settings"]["arguments"] == {"device": "auto", "dtype": "bf16", "layout": "NT", "budget_s": 15}
    assert plan["would_be_refused"][0].startswith("too_many_nodes")
    assert not (slurm / "where").exists()
    assert subprocess.run(["bash", "-n"], input=plan["sbatch_script"], text=True).returncode == 0


def test_a_profile_stands_before_the_interpreter_of_each_node(slurm: Path, tmp_path: Path) -> None:
    """A container that this host cannot start is left to the nodes."""
    permissions.grant(Permissions(max_nodes=2, profiles={"img": Profile(("apptainer-of-the-nodes", "exec", "--bind", "{run}", "img.sif"))}))
    record = asyncio.run(run(python="img", dry_run=True))
    home = tmp_path / "home/runs/JOB"
    command = next(line for line in (record.result or {})["sbatch_script"].splitlines() if line.startswith("command="))
    assert (
        command
        == f"command=(apptainer-of-the-nodes exec --bind {home} img.sif python3 -u {home}/scripts/protocol.py --settings-file {home}/settings.json)"
    )
    assert "does not start on this host" in (record.result or {})["interpreter"]["source"]


def test_a_home_that_cannot_be_written_is_no_place_for_nodes(slurm: Path, tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file")
    with pytest.raises(NotHere, match="no_shared_folder") as refused:
        asyncio.run(run())
    assert "SKILLSERVER_HOME" in refused.value.next
    assert not (slurm / "where").exists()


def test_the_record_of_a_lost_run_says_how_to_end_its_slurm_job(tmp_path: Path) -> None:
    store = Store(tmp_path)
    record = JobRecord.new("run_mamf", {}).model_copy(update={"slurm_job_id": "42"})
    store.save(record.model_copy(update={"pid": 2**22 + 5}))
    lost = store.load(record.job_id)
    assert lost
    assert (lost.state, "scancel 42" in lost.next) == ("lost", True)
    store.save(record.model_copy(update={"host": "login2"}))
    elsewhere = store.load(record.job_id)
    assert elsewhere
    assert (elsewhere.state, "scancel 42" in elsewhere.next) == ("elsewhere", True)
