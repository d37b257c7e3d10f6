"""On a real SLURM: scripts are accepted, run, save, requeue and end as promised; its own words are understood."""

import itertools
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from skillserver.cluster.slurm_report import SlurmReport
from skillserver.tools.cluster import inspect_slurm, write_launcher

pytestmark = pytest.mark.slurm
KINDS = ("torchrun", "srun", "accelerate", "lightning", "deepspeed")
WAIT_S = 150


def shell(*argv: str, cwd: Path | None = None) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def until(what: Any) -> Any:
    """Poll: SLURM tells nobody when something happened."""
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        if found := what():
            return found
        time.sleep(0.5)
    raise AssertionError("it did not happen in time")


def submit(folder: Path, script: str) -> str:
    (folder / "job.sbatch").write_bytes(script.encode())
    return shell("sbatch", "--parsable", "job.sbatch", cwd=folder)


def ended(job: str) -> SlurmReport:
    return until(lambda: (found := inspect_slurm(job_id=job)).post_mortem and found)


@pytest.mark.parametrize("options", [{}, {"array": "1-3%1"}, {"exclude_nodes": "n4", "cpus_per_gpu": 2}], ids=["plain", "array", "shared"])
@pytest.mark.parametrize("kind", KINDS)
def test_sbatch_accepts_the_script(kind: str, options: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "job.sbatch"
    file.write_text(
        write_launcher(kind=kind, script="train.py", nodes=2, args=["a\r\nb", "$(id)"], partition="main", time="1h", options=options).script
    )
    shell("sbatch", "--test-only", str(file))


def test_every_rank_gets_its_number_and_its_arguments(tmp_path: Path) -> None:
    (tmp_path / "show.py").write_text(
        "import os, sys\nopen(f'seen.{os.environ[\"RANK\"]}', 'w').write(repr((os.environ['WORLD_SIZE'], os.environ['LOCAL_RANK'], sys.argv[1:])))\n"
    )
    words = ["a b", "$(touch pwned)", "it's\n$HOME"]
    job = submit(
        tmp_path, write_launcher(kind="srun", script="show.py", args=words, nodes=2, gpus_per_node=2, time="10min", options={"signal_s": 0}).script
    )
    report = ended(job)
    assert report.post_mortem[0].cause == "completed", report.summary
    seen = {path.name: path.read_text() for path in tmp_path.glob("seen.*")}
    assert seen == {f"seen.{node * 2 + local}": repr(("4", str(local), words)) for node, local in itertools.product((0, 1), (0, 1))}
    assert not (tmp_path / "pwned").exists()


def test_the_signal_makes_the_stop_file_and_the_job_runs_again(tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(
        "import os, time\nopen('starts', 'a').write('x')\nend = time.time() + 100\n"
        "while not os.path.exists(os.environ['STOP_FILE']) and time.time() < end: time.sleep(0.2)\n"
        "if len(open('starts').read()) > 1: open(os.environ['DONE_FILE'], 'w')\n"
    )
    job = submit(tmp_path, write_launcher(kind="srun", script="loop.py", nodes=1, gpus_per_node=1, time="20min").script)
    starts = tmp_path / "starts"
    until(lambda: starts.exists())
    shell("scancel", "--batch", "--signal=USR1", job)
    until(lambda: len(starts.read_text()) == 2)
    assert inspect_slurm(job_id=job).jobs[0].restarts == 1
    shell("scancel", "--batch", "--signal=USR1", job)
    assert ended(job).post_mortem[0].cause == "completed"
    assert (tmp_path / "runs/train/done").exists()
    assert len(starts.read_text()) == 2


def test_the_kill_switch_lets_nothing_start(tmp_path: Path) -> None:
    (tmp_path / "runs/train").mkdir(parents=True)
    (tmp_path / "runs/train/kill").touch()
    (tmp_path / "no.py").write_text("open('started', 'w')")
    job = submit(tmp_path, write_launcher(kind="srun", script="no.py", nodes=1, gpus_per_node=1, time="20min").script)
    assert ended(job).post_mortem[0].cause == "completed"
    assert not (tmp_path / "started").exists()


def test_a_silent_heartbeat_ends_the_step_and_requeues(tmp_path: Path) -> None:
    (tmp_path / "hang.py").write_text(
        "import os, time\nopen('starts', 'a').write('x')\n"
        "if len(open('starts').read()) > 1: raise SystemExit(0)\nopen(os.environ['HEARTBEAT_FILE'], 'w')\ntime.sleep(600)\n"
    )
    script = write_launcher(kind="srun", script="hang.py", nodes=1, gpus_per_node=1, time="20min", options={"heartbeat_s": 2}).script
    job = submit(tmp_path, script.replace("sleep 30; do", "sleep 1; do"))
    assert ended(job).post_mortem[0].cause == "completed"
    assert (tmp_path / "starts").read_text() == "xx"


def test_slurm_is_understood_live(tmp_path: Path) -> None:
    report = inspect_slurm(user="all")
    assert (report.source, report.partitions[0].name, report.gpus[0].total) == ("live", "main", 32)
    failed = submit(tmp_path, "#!/bin/bash\n#SBATCH --output=/dev/null\nexit 7\n")
    assert ended(failed).post_mortem[0].cause == "exit_code"
    held = shell("sbatch", "--parsable", "--hold", "--output=/dev/null", "--wrap=true")
    why = until(lambda: (found := inspect_slurm(job_id=held).jobs) and found[0].why)
    assert (why.code, why.kind) == ("JobHeldUser", "held")
    shell("scancel", held)
    assert ended(held).post_mortem[0].cause == "cancelled"
