"""The script for the nodes of a job: what it asks for, and what each node leaves behind, run by a stand-in srun."""

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from skillserver.cluster import slurm_batch
from skillserver.cluster.slurm_batch import Batch

BATCH = Batch("run_x", Path("/shared/a b"), nodes=2, limit_s=100, words=["python3", "it's"], mark="run_x-1")
SRUN = '#!/bin/bash\nwhile [[ $1 == -* ]]; do shift; done\nfor node in n1 n2; do SLURMD_NODENAME=$node "$@"; done\n'


def directives(batch: Batch) -> set[str]:
    return {line.removeprefix("#SBATCH --") for line in slurm_batch.script(batch).splitlines() if line.startswith("#SBATCH")}


def test_directives_are_those_of_the_human_and_no_more() -> None:
    plain = {"job-name=skillserver-run_x", "nodes=2", "ntasks-per-node=1", "time=3", "output=slurm.out", "open-mode=append", "mem=0", "no-requeue",
             "exclusive"}  # fmt: skip
    assert directives(BATCH) == plain
    assert directives(replace(BATCH, account="a", partition="p", qos="q", exclusive=False)) == (plain - {"mem=0", "exclusive"}) | {
        "account=a", "partition=p", "qos=q"}  # fmt: skip


@pytest.mark.parametrize(("limit_s", "minutes"), [(0, 1), (60, 2), (61, 3), (3540, 60)])
def test_the_time_limit_leaves_a_minute(limit_s: float, minutes: int) -> None:
    assert slurm_batch.minutes(limit_s) == minutes


@pytest.mark.parametrize("batch", [BATCH, replace(BATCH, together=True, ranks=8), replace(BATCH, inside=True)], ids=["apart", "together", "inside"])
def test_it_is_a_shell_script(batch: Batch) -> None:
    assert subprocess.run(["bash", "-n"], input=slurm_batch.script(batch), text=True).returncode == 0


def ran(folder: Path, words: list[str], env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """The script under a srun that starts both nodes on this host."""
    (folder / "bin").mkdir()
    (folder / "bin/srun").write_text(SRUN)
    (folder / "bin/srun").chmod(0o755)
    (folder / "run").mkdir()
    (folder / "run/settings.json").touch()
    script = slurm_batch.script(replace(BATCH, folder=folder / "run", words=words))
    return subprocess.run(
        ["bash", "-c", script], env=os.environ | {"PATH": f"{folder}/bin:{os.environ['PATH']}"} | (env or {}), capture_output=True, text=True
    )


def test_each_node_leaves_its_words_and_then_its_status(tmp_path: Path) -> None:
    ran(tmp_path, ["bash", "-c", 'echo "$PWD"; echo bad >&2; exit 3'])
    place = tmp_path / "run/nodes/0"
    assert {file.relative_to(place).as_posix(): file.read_text() for file in place.rglob("*") if file.is_file()} == {
        "n1/out.jsonl": f"{place}/n1\n", "n1/stderr.txt": "bad\n", "n1/status": "3\n",
        "n2/out.jsonl": f"{place}/n2\n", "n2/stderr.txt": "bad\n", "n2/status": "3\n",
    }  # fmt: skip
    assert (tmp_path / "run/ended.0").read_text() == "3\n"


def test_a_requeued_job_writes_beside_its_first_try(tmp_path: Path) -> None:
    ran(tmp_path, ["true"], {"SLURM_RESTART_COUNT": "2"})
    assert sorted(file.name for file in (tmp_path / "run/nodes").iterdir()) == ["2"]
    assert (tmp_path / "run/ended.2").exists()


def test_a_node_that_cannot_see_the_folder_says_so(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    env = {"RUN": f"{tmp_path}/gone", "START": "0", "RANKS": "1", "PATH": os.environ["PATH"], "SLURMD_NODENAME": "n7"}
    done = subprocess.run(["bash", "-c", slurm_batch.NODE, "node", "true"], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (slurm_batch.UNSEEN, f"skillserver: n7 cannot see {tmp_path}/gone\n")


def test_a_list_of_gpus_becomes_a_request_of_the_step(tmp_path: Path) -> None:
    (tmp_path / "asked").write_text("")
    script = slurm_batch.script(BATCH)
    told = subprocess.run(["bash", "-c", script.replace('srun "${step[@]}"', 'printf "%s\\n" "${step[@]}"; false')], capture_output=True, text=True,
                          env=os.environ | {"SLURM_JOB_GPUS": "0,1,2,3"})  # fmt: skip
    assert "--gres=gpu:4" in told.stdout.splitlines()
