"""Why a job waits, how it ended and what is free, said in words; nothing is claimed that was not shown."""

from pathlib import Path

import pytest

from skillserver import permissions
from skillserver.cluster import slurm_live, slurm_reasons
from skillserver.cluster.slurm_report import SlurmReport
from skillserver.errors import BadRequest, NotHere
from skillserver.tools.cluster import inspect_slurm

QUEUE = "JOBID PARTITION NAME USER ST TIME NODES NODELIST(REASON)\n"
ACCOUNTS = "JobID|JobName|State|ExitCode|Elapsed|Timelimit|TotalCPU|AllocCPUS|ReqMem|MaxRSS|AllocTRES|NodeList\n"
CANCELLED = "slurmstepd: error: *** JOB 5 ON n1 CANCELLED AT 2026-01-01T00:00:00"
NODE = "NodeName={name} Gres=gpu:h100:8\n   CPUAlloc={cpu} CPUTot=96 RealMemory=1000 AllocMem={mem}\n   State={state}\n   Partitions=gpu\n   \
CfgTRES=cpu=96,gres/gpu=8,gres/gpu:h100=8\n   AllocTRES={used}\n{reason}\n"


def node(name: str, state: str = "IDLE", used: str = "", cpu: int = 0, mem: int = 0, reason: str = "") -> str:
    return NODE.format(name=name, state=state, used=used, cpu=cpu, mem=mem, reason=f"   Reason={reason}\n" if reason else "")


def ended(state: str, code: str, steps: str = "", lines: str = "") -> SlurmReport:
    return inspect_slurm(text=f"{ACCOUNTS}5|run|{state}|{code}|01:00:00|02:00:00|10:00:00|20|64G||gres/gpu=16|n[1-2]\n{steps}{lines}")


@pytest.mark.parametrize(
    ("state", "code", "steps", "lines", "cause", "certain"),
    [
        ("OUT_OF_MEMORY", "0:125", "", "", "out_of_memory", True),
        ("FAILED", "1:0", "5.0|t|OUT_OF_MEMORY|0:125|1|||||||\n", "", "out_of_memory", True),
        ("FAILED", "0:9", "", "slurmstepd: error: Detected 1 oom_kill event in StepId=5.0.\n", "out_of_memory", True),
        ("FAILED", "0:9", "", "slurmstepd: error: Detected 1 oom_kill event in StepId=77.0.\n", "killed", False),
        ("FAILED", "0:9", "", "", "killed", False),
        ("FAILED", "137:0", "", "", "killed", False),
        ("FAILED", "0:11", "", "", "signal", False),
        ("FAILED", "139:0", "", "", "signal", False),
        ("FAILED", "0:15", "", "", "terminated", False),
        ("FAILED", "0:53", "", "", "output_unwritable", False),
        ("FAILED", "42:0", "", "", "exit_code", False),
        ("TIMEOUT", "0:0", "5.0|t|CANCELLED|0:15|1|||||||\n", "", "time_limit", True),
        ("CANCELLED by 0", "0:0", "", f"{CANCELLED} DUE TO TIME LIMIT ***\n", "time_limit", True),
        ("CANCELLED by 0", "0:0", "", f"{CANCELLED} DUE TO PREEMPTION ***\n", "preempted", True),
        ("CANCELLED by 1000", "0:0", "", "", "cancelled", True),
        ("NODE_FAIL", "1:0", "", "", "node_failure", True),
        ("PREEMPTED", "0:0", "", "", "preempted", True),
        ("BOOT_FAIL", "0:0", "", "", "boot_failure", True),
        ("DEADLINE", "0:0", "", "", "deadline", True),
        ("COMPLETED", "0:0", "", "", "completed", True),
        ("COMPLETED", "0:0", "5.0|t|FAILED|1:0|1|||||||\n", "", "step_failed", True),
    ],
)  # fmt: skip
def test_how_a_job_ended(state: str, code: str, steps: str, lines: str, cause: str, certain: bool) -> None:
    end = ended(state, code, steps, lines).post_mortem[0]
    assert (end.cause, end.certain) == (cause, certain)
    assert end.sections


def test_lines_without_a_table_name_their_job_and_a_line_that_names_none_is_a_hint() -> None:
    alone = inspect_slurm(text=f"{CANCELLED} DUE TO TIME LIMIT ***\n").post_mortem[0]
    assert (alone.job_id, alone.cause, alone.certain) == ("5", "time_limit", True)
    hint = ended("FAILED", "0:9", "", "kernel: Out of memory: Killed process 7 (python)\n").post_mortem[0]
    assert (hint.cause, hint.certain) == ("out_of_memory", False)


def test_efficiency_says_what_was_held_and_used() -> None:
    found = ended("COMPLETED", "0:0", "5.0|t|COMPLETED|0:0|1|||||41943040K||\n").efficiency[0]
    assert (found.gpu_hours, found.cpu_share, found.time_share, found.largest_task_rss_gib, found.requested_gib) == (16, 0.5, 0.5, 40, 64)


@pytest.mark.parametrize(
    ("word", "kind", "by_itself"),
    [("Priority", "queue", True), ("Resources", "queue", True), ("DependencyNeverSatisfied", "never", False), ("JobArrayTaskLimit", "own", True),
     ("JobHeldUser", "held", False), ("QOSMaxGRESPerUser", "limit", None), ("QOSMaxGRESPerJob", "never", False), ("AssocGrpGRES", "limit", None),
     ("AssocGrpGRESMinutes", "budget", None), ("QOSMaxWallDurationPerJobLimit", "never", False), ("PartitionTimeLimit", "never", False),
     ("ReqNodeNotAvail, UnavailableNodes:n1", "nodes", None), ("launch failed requeued held", "held", False), ("None", "passing", True),
     ("SomethingNew", "unknown", None), ("", "unknown", None)],
)  # fmt: skip
def test_why_a_job_waits(word: str, kind: str, by_itself: bool | None) -> None:
    why = slurm_reasons.explain(f"({word})" if word else "", "5")
    assert (why.kind, why.starts_by_itself) == (kind, by_itself)


def test_a_reason_that_was_not_shown_is_not_invented() -> None:
    job = inspect_slurm(text=f"{ACCOUNTS}5|run|PENDING|0:0|00:00:00||||||| \n").jobs[0]
    assert job.why and (job.why.kind, job.why.words) == ("unknown", "the reason is not shown here")


def test_free_gpus_need_a_node_that_takes_jobs_and_a_cpu_and_memory_beside_them() -> None:
    text = "\n".join([
        node("n1"), node("n2"), node("n3", "MIXED", "cpu=8,gres/gpu=2,gres/gpu:h100=2", 8), node("n4", "ALLOCATED", "gres/gpu=4,gres/gpu:h100=4", 96),
        node("n5", "MIXED", "gres/gpu=4,gres/gpu:h100=4", 9, 1000), node("n6", "IDLE+DRAIN", reason="Kill task failed [root@2026-11-30T08:00:00]"),
        node("n7", "IDLE+RESERVED"),
    ])  # fmt: skip
    report = inspect_slurm(text=text)
    block = report.gpus[0]
    assert (block.total, block.in_use, block.free, block.stranded, block.out_of_service, block.unknown) == (56, 10, 22, 8, 16, 0)
    assert (block.whole_free_nodes, block.largest_block_gpus, block.largest_on_one_node) == (2, 16, 8)
    assert [(found.code, found.subject) for found in report.findings] == [("nodes_out_of_service", "n6")]
    assert report.verdict == "warning"


def test_gpus_whose_use_is_not_shown_are_not_free() -> None:
    report = inspect_slurm(text="NODELIST PARTITION GRES STATE\nn1 gpu gpu:8 mix\nn2 gpu gpu:8 idle\nn3 gpu gpu:8 alloc\n")
    assert (report.gpus[0].free, report.gpus[0].unknown, report.gpus[0].in_use) == (8, 8, 8)
    assert "n1" in report.skipped[0]


def test_a_partition_without_a_node_in_service_is_critical_and_a_healthy_one_ok() -> None:
    assert inspect_slurm(text=node("n1", "DOWN+NOT_RESPONDING")).verdict == "critical"
    assert inspect_slurm(text=node("n1")).verdict == "ok"


def test_a_job_larger_than_the_nodes_in_service_waits_for_repairs() -> None:
    text = f"PartitionName=gpu\n   State=UP TotalNodes=2\n\n{node('n1')}\n{node('n2', 'DOWN')}\n{QUEUE}5 gpu run ann PD 0:00 2 (Resources)\n"
    assert [found.code for found in inspect_slurm(text=text).findings] == ["pending_for_repairs", "nodes_out_of_service"]


def test_a_job_or_user_picks_its_rows_and_an_unknown_job_is_refused() -> None:
    text = f"{QUEUE}5 gpu run ann R 1:00 2 n[1-2]\n6_1 gpu run bob R 1:00 2 n[3-4]\n6_2 gpu run bob R 1:00 2 n[5-6]\n"
    assert [job.job_id for job in inspect_slurm(text=text, job_id="6").jobs] == ["6_1", "6_2"]
    assert [job.job_id for job in inspect_slurm(text=text, user="ann").jobs] == ["5"]
    with pytest.raises(BadRequest, match="no_such_job"):
        inspect_slurm(text=text, job_id="7")


@pytest.mark.parametrize("text", ["hello\nworld", '{"jobs": []}', "JOBID"])
def test_what_is_not_slurm_text_is_refused(text: str) -> None:
    with pytest.raises(BadRequest):
        inspect_slurm(text=text)


@pytest.mark.parametrize("bad", [{"job_id": "1; rm -rf /"}, {"job_id": "--help"}, {"user": "-A"}, {"partition": "a b"}, {"user": "$(id)"}])
def test_a_name_that_could_be_an_option_or_a_command_is_refused(bad: dict[str, str]) -> None:
    with pytest.raises(BadRequest):
        inspect_slurm(**bad)


def test_without_slurm_or_permission_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(NotHere, match=r"no_slurm.*paste"):
        inspect_slurm()
    monkeypatch.setattr(permissions, "_granted", permissions.TEXT_ONLY)
    with pytest.raises(NotHere, match="not_permitted"):
        inspect_slurm()
    assert inspect_slurm(text=f"{QUEUE}5 gpu run ann R 1:00 2 n[1-2]\n").jobs


def test_commands_that_reach_no_controller_are_told_from_a_missing_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = tmp_path / "scontrol"
    command.write_text("#!/bin/sh\necho 'scontrol: error: Unable to contact slurm controller (connect failure)' >&2\nexit 1\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(NotHere, match="slurm_unreachable"):
        slurm_live.ask()
