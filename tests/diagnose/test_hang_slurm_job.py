"""Stacks of a SLURM job come through one srun step: its words, the ranks on real processes, refusals."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from skillserver import permissions
from skillserver.diagnose import live_stacks, slurm_stacks
from skillserver.errors import BadRequest, NotHere
from skillserver.permissions import Permissions
from skillserver.tools.hang import diagnose_hang

JOB = "98765401"
SRUN = """#!/bin/sh
echo "$@" > "{folder}/argv"
while [ "$1" != sh ]; do shift; done
"$@" | sed 's/^/0: /'
echo '1: ### look 1'
"""
SPY = """#!/bin/sh
rank=$(tr '\\0' '\\n' < /proc/$3/environ | sed -n 's/^RANK=//p')
[ "$rank" = 3 ] && {{ echo 'Permission denied (os error 13)' >&2; exit 1; }}
echo "Process $3: python train.py"
echo 'Python v3.11.7 (/usr/bin/python3.11)'
echo
echo "Thread $3 (idle): \\"MainThread\\""
if [ "$rank" = 1 ]; then echo '    get (queue.py:179)'; echo '    __next__ (torch/utils/data/dataloader.py:530)'
else echo '    all_reduce (torch/distributed/distributed_c10d.py:3252)'; fi
echo '    step (train.py:6)'
echo '    <module> (train.py:20)'
"""


def program(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program(tmp_path, "srun", SRUN.format(folder=tmp_path))
    program(tmp_path, "py-spy", SPY.format())
    program(tmp_path, "squeue", "#!/bin/sh\necho 2\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(live_stacks, "APART_S", 0.01)
    return tmp_path


@pytest.fixture
def job() -> Iterator[None]:
    code = "print(1, flush=True); input()"
    envs = [os.environ | {"SLURM_JOB_ID": JOB, "RANK": str(rank)} for rank in range(4)] + [os.environ | {"SLURM_JOB_ID": "1", "RANK": "9"}]
    children = [subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env) for env in envs]
    for child in children:
        assert child.stdout and child.stdout.readline()  # its environment is its own only after exec
    yield
    for child in children:
        child.communicate(b"\n")


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc")
@pytest.mark.usefixtures("job")
def test_the_ranks_of_a_job_are_read_through_one_step_in_its_allocation(cluster: Path) -> None:
    found = diagnose_hang(slurm_job=JOB)
    assert (found.culprits, found.waiting) == ([1], [0, 2])
    assert [(seen.who, seen.doing) for seen in found.stacks] == [("rank 1", "waits for data"), ("rank 0,2", "waits in a collective")]
    assert len(found.skipped) == 1
    assert "rank 3: this user may not trace it" in found.skipped[0]
    words = (cluster / "argv").read_text().split()
    assert words[:5] == ["--overlap", f"--jobid={JOB}", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1"]


@pytest.mark.usefixtures("job")
def test_without_a_node_count_it_says_that_nodes_may_be_missing(cluster: Path) -> None:
    program(cluster, "squeue", "#!/bin/sh\nexit 1\n")
    found = diagnose_hang(slurm_job=JOB)
    assert "perhaps only its first one was looked at" in " ".join(found.skipped)
    assert "--nodes" not in (cluster / "argv").read_text()


def test_lines_of_several_nodes_are_told_apart_by_their_label() -> None:
    mixed = " 0: ### look 1\n10: ### look 1\n 0: == a pid 1 rank 0\n10: == b pid 2 rank 8\n 0: x\n10: y\n 0: ### look 2\n 0: z\nsrun: noise\n"
    taken = slurm_stacks._parted(mixed, 0.0)
    assert [(name, text) for name, text, _time in taken.pairs] == [
        ("node task 0, look 1", "== a pid 1 rank 0\nx"),
        ("node task 10, look 1", "== b pid 2 rank 8\ny"),
        ("node task 0, look 2", "z"),
    ]


def test_a_job_that_slurm_refuses_is_told_in_its_words(cluster: Path) -> None:
    program(cluster, "srun", "#!/bin/sh\necho 'srun: error: Unable to confirm allocation for job 7: Invalid job id specified' >&2; exit 1\n")
    with pytest.raises(BadRequest, match="Invalid job id"):
        diagnose_hang(slurm_job="7")


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("job", ["abc", "1; rm -rf /", "--help", "1 2", "12\n"])
def test_what_is_no_job_id_is_refused(job: str) -> None:
    with pytest.raises(BadRequest) as refusal:
        diagnose_hang(slurm_job=job)
    assert refusal.value.code == "no_job_id"


def test_without_srun_the_way_out_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotHere, match="login node"):
        diagnose_hang(slurm_job="7")


@pytest.mark.usefixtures("cluster")
def test_without_permission_nothing_is_started() -> None:
    kept = permissions.current()
    permissions.grant(Permissions(run=False))
    try:
        with pytest.raises(NotHere, match="allow-run"):
            diagnose_hang(slurm_job="7")
    finally:
        permissions.grant(kept)
