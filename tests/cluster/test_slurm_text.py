"""SLURM's text, aligned, squeezed or parted by bars, becomes the same records; what cannot be read is said."""

from pathlib import Path

import pytest

from skillserver.cluster import slurm_records, slurm_tables, slurm_text

SAMPLES = Path(__file__).resolve().parents[3] / "shared/testbed/samples"
REAL = ["sacct-P.txt", "sacct.txt", "scontrol-show-job.txt", "scontrol-show-node.txt", "sinfo-N-l.txt", "sinfo-R.txt", "sinfo.txt", "squeue.txt"]
QUEUE = "JOBID PARTITION NAME USER ST TIME NODES NODELIST(REASON)\n"
SACCT = """\
JobID           JobName  Partition    Account  AllocCPUS      State ExitCode
------------ ---------- ---------- ---------- ---------- ---------- --------
11              pretrain        gpu       team        192 OUT_OF_ME+    0:125
11.batch           batch                 team         96  COMPLETED      0:0
11.0            torchrun                 team        192 OUT_OF_ME+    0:125
12                a b c        gpu       team          8 CANCELLED+      0:0
"""


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("1-02:03:04", 93784), ("02:03", 123), ("02:03:04", 7384), ("10", 600), ("1-0", 86400), ("1-02:03", 93780), ("00:01.500", 1),
     ("UNLIMITED", None), ("INVALID", None), ("", None)],
)  # fmt: skip
def test_a_duration_is_seconds_or_nothing(written: str, seconds: int | None) -> None:
    assert slurm_text.seconds(written) == seconds


@pytest.mark.parametrize(
    ("written", "gpus"),
    [("gpu:8", {"gpu": 8}), ("gpu:h100:8(S:0-1)", {"h100": 8}), ("gpu:h100:3(IDX:0-2)", {"h100": 3}),
     ("gpu:a100:4,gpu:v100:2", {"a100": 4, "v100": 2}),
     ("cpu=2,gres/gpu=8,gres/gpu:h100=8", {"h100": 8}), ("gres:gpu:4", {"gpu": 4}), ("cpu=2,mem=8G", {}), ("(null)", {}),
     ("gpu:a100_3g.20gb:4", {"a100_3g.20gb": 4}),
     ("gpu:3090:4", {"3090": 4}), ("gres/gpu:3090=2,gres/gpuutil=95", {"3090": 2})],
)  # fmt: skip
def test_gpus_are_counted_once_by_type(written: str, gpus: dict[str, int]) -> None:
    assert slurm_text.gpus(written) == gpus


def test_node_lists_are_spelled_out_and_absurd_ones_left_alone() -> None:
    assert slurm_text.expand("n[08-10],r[1-2]c[1-2],login") == ["n08", "n09", "n10", "r1c1", "r1c2", "r2c1", "r2c2", "login"]
    assert slurm_text.expand("n[1-9999999999]") == ["n[1-9999999999]"]
    assert slurm_tables.read("NODELIST GRES STATE\nn[1-99999] gpu:8 idle\n").nodes == {}
    assert slurm_text.expand("n[1-x],m") == ["n[1-x]", "m"]


def test_a_state_that_a_column_cut_is_known_and_a_name_is_not_a_state() -> None:
    assert [slurm_text.state(word) for word in ("OUT_OF_ME+", "CANCELLED by 1000", "COMPLETI", "PD", "train", "R2")] == [
        "OUT_OF_MEMORY", "CANCELLED", "COMPLETING", "PENDING", None, None,
    ]  # fmt: skip


@pytest.mark.parametrize("squeeze", [False, True], ids=["aligned", "squeezed"])
def test_sacct_is_read_with_and_without_its_columns(squeeze: bool) -> None:
    text = "\n".join(" ".join(line.split()) for line in SACCT.splitlines()) if squeeze else SACCT
    seen = slurm_tables.read(text)
    job = seen.jobs["11"]
    assert (job.name, job.state, job.exit_code, job.cpus) == ("pretrain", "OUT_OF_MEMORY", "0:125", 192)
    assert [(step.name, step.state) for step in job.steps] == [("batch", "COMPLETED"), ("0", "OUT_OF_MEMORY")]
    assert seen.jobs["12"].state == "CANCELLED"
    assert seen.unread == []


def test_a_job_name_with_spaces_or_bars_does_not_move_the_columns() -> None:
    text = f"{QUEUE}7 gpu R and D ann PD 0:00 4 (Nodes required for job are DOWN, DRAINED)\n"
    job = slurm_tables.read(text).jobs["7"]
    assert (job.name, job.user, job.state, job.nodes, job.why) == ("R and D", "ann", "PENDING", 4, "Nodes required for job are DOWN, DRAINED")
    odd = slurm_tables.read(f"{QUEUE}7 gpu a b R c ann R 1:00 4 n[1-4]\n").jobs["7"]
    assert (odd.name, odd.user, odd.elapsed_s) == ("a b R c", "ann", 60)
    piped = slurm_tables.read("JOBID|NAME|STATE|NODES\n8|a|b|RUNNING|2\n").jobs["8"]
    assert (piped.name, piped.state, piped.nodes) == ("a|b", "RUNNING", 2)


def test_several_commands_in_one_paste_are_told_apart() -> None:
    seen = slurm_tables.read(
        "$ sinfo\nPARTITION AVAIL TIMELIMIT NODES STATE NODELIST\ngpu* up 1-00:00:00 2 idle~ n[1-2]\n$ sinfo -R\n"
        "REASON USER TIMESTAMP NODELIST\nKill task failed root 2026-11-30T08:36:40 n[3-4]\n\n"
        "JobId=9 JobName=lr=1\n   JobState=PENDING Reason=Resources\n"
    )
    assert seen.formats == ["sinfo", "sinfo -R", "scontrol show job"]
    assert seen.nodes["n1"].flags == {"IDLE", "POWERED_DOWN"}
    assert (seen.nodes["n4"].reason, seen.nodes["n4"].broken) == ("Kill task failed", True)
    assert (seen.jobs["9"].name, seen.jobs["9"].why) == ("lr=1", "Resources")


def test_a_command_line_cannot_overwrite_a_field_of_its_job() -> None:
    job = slurm_tables.read("JobId=9 JobName=x\n   JobState=FAILED Reason=NonZeroExitCode\n   Command=/a.sh JobState=COMPLETED NumNodes=5\n").jobs[
        "9"
    ]
    assert (job.state, job.why) == ("FAILED", "NonZeroExitCode")


def test_an_untyped_use_of_typed_gpus_and_a_site_that_does_not_count_them() -> None:
    node = slurm_records.node_of({"NodeName": "n", "State": "MIXED", "Gres": "gpu:h100:8", "CfgTRES": "cpu=9,gres/gpu=8", "AllocTRES": "gres/gpu=3"})
    assert (node.gpus, node.gpus_used) == ({"h100": 8}, {"gpu": 3})
    said = {
        "NodeName": "n",
        "State": "MIXED",
        "Gres": "gpu:a:4,gpu:b:4",
        "CfgTRES": "cpu=9",
        "AllocTRES": "cpu=3",
        "GresUsed": "gpu:a:3(IDX:0-2),gpu:b:0(IDX:N/A)",
    }
    assert slurm_records.node_of(said).gpus_used == {"a": 3, "b": 0}  # scontrol -d
    silent = slurm_records.node_of({"NodeName": "n", "State": "MIXED", "Gres": "gpu:h100:8", "CfgTRES": "cpu=9", "AllocTRES": "cpu=3"})
    assert silent.gpus_used is None


@pytest.mark.skipif(not SAMPLES.is_dir(), reason="no ../shared beside this checkout")
@pytest.mark.parametrize("name", REAL)
def test_real_output_is_read_to_its_last_line(name: str) -> None:
    seen = slurm_tables.read((SAMPLES / name).read_text())
    assert seen.unread == []
    assert seen.jobs or seen.nodes
