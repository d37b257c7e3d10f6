"""Submit a script, look at its job, cancel it: SLURM's own commands in their text forms, each with a deadline.

A look asks scontrol, which knows a job until some minutes after its end, and else sacct. A controller that does not answer
is no end of the job: the look is then None. Knows nothing of what a job does.

>>> job = submit(Path("/shared/runs/a/job.sbatch"), os.environ)
>>> look(job).state
'PENDING'
"""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path

from skillserver import permissions, processes
from skillserver.cluster import slurm_reasons, slurm_tables
from skillserver.cluster.slurm_live import SACCT_COLUMNS
from skillserver.cluster.slurm_records import Job, Node
from skillserver.cluster.slurm_text import expand
from skillserver.errors import BadRequest, NotHere, TooLong, WorkerFailed

DEADLINE_S = 30.0
CANCEL_S = 5.0
NEEDED = ("sbatch", "srun", "scontrol", "scancel")
SUBMITTED = re.compile(r"^(\d+)(?:;\S+)?\s*$", re.M)
UNKNOWN = re.compile(r"Invalid job id|slurm_load_jobs error: Invalid", re.I)
HUMANS = re.compile(r"partition|account|qos|quality of service", re.I)

followed: set[str] = set()  # jobs of this process that have not ended


def missing() -> str:
    """Which of SLURM's commands this host lacks, "" when it has them."""
    absent = [name for name in NEEDED if shutil.which(name) is None]
    return ", ".join(absent)


def submit(file: Path, env: Mapping[str, str]) -> str:
    """The id of the new job, whose folder is the script's. Raises NotHere, TooLong or, with SLURM's words, BadRequest."""
    permissions.require_run("sbatch")
    done = processes.run_with_deadline(["sbatch", "--parsable", f"--chdir={file.parent}", str(file)], DEADLINE_S, env=env)
    found = SUBMITTED.search(done.stdout)
    if found:
        return found[1]
    words = " ".join((done.stderr or done.stdout).split())[-400:]
    if done.rc == 127:
        raise NotHere("no_slurm", "there is no sbatch on this host", next="call it on a login node of the cluster")
    if done.rc is None:
        raise TooLong("slurm_slow", f"sbatch did not answer within {DEADLINE_S:.0f} s; squeue shows whether the job was taken all the same",
                      next=f"look for a job named like {file.parent.name} with squeue --me, then call it again")  # fmt: skip
    flags = "ask your user to start the server with another --partition, --account or --qos" if HUMANS.search(words) else ""
    raise BadRequest("slurm_refused", f"sbatch ended with {done.rc}: {words}", next=flags or "read SLURM's words; dry_run=true shows the script",
                     valid=partitions() if "partition" in words.lower() else ())  # fmt: skip


def partitions() -> list[str]:
    """The names of the partitions that are up; [] when SLURM does not say."""
    shown = processes.run_with_deadline(["scontrol", "show", "partition"], DEADLINE_S)
    return sorted(one.name for one in slurm_tables.read(shown.stdout).partitions.values() if one.up) if shown.rc == 0 else []


def look(job: str) -> Job | None:
    """The job as SLURM tells it, steps included once it is over; None when no command answered. Raises WorkerFailed for an unknown job."""
    shown = processes.run_with_deadline(["scontrol", "show", "job", job], DEADLINE_S)
    if shown.rc == 0:
        return slurm_tables.read(shown.stdout).jobs.get(job)
    if not UNKNOWN.search(shown.stderr + shown.stdout):
        return None
    if found := accounted(job):
        return found
    raise WorkerFailed("slurm_forgot", f"SLURM no longer knows job {job} and keeps no accounts of it", next="what the nodes wrote is kept")


def accounted(job: str) -> Job | None:
    """The job with its steps from sacct; None where the site keeps no accounts, or they lag behind."""
    told = processes.run_with_deadline(["sacct", "-P", "-j", job, "-o", SACCT_COLUMNS], DEADLINE_S)
    return slurm_tables.read(told.stdout).jobs.get(job) if told.rc == 0 else None


def end_jobs_with_us() -> None:
    """From now on the jobs that this process follows end with it, also when its client, a scheduler or a closed terminal ends it."""
    for number in (getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)):  # Windows has no hang-up
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, cancel_followed)


def cancel_followed(number: int = signal.SIGTERM, _frame: object = None) -> None:
    """End the jobs that this process follows, then this process: a handler for signals that leave no time for more."""
    if followed:
        processes.run_with_deadline(["scancel", *followed], CANCEL_S)
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def cancel(job: str) -> str:
    """End a job; "" or SLURM's words."""
    done = processes.run_with_deadline(["scancel", job], DEADLINE_S)
    return "" if done.rc == 0 else " ".join((done.stderr or done.stdout or "scancel did not answer").split())[-200:]


def nodes_of(job: Job) -> list[str]:
    """The names of its nodes, in SLURM's order; [] while it waits."""
    return expand(job.node_list) if job.node_list else []


def waits(job: Job) -> slurm_reasons.Why | None:
    """Why it does not start; None once it did."""
    return slurm_reasons.explain(job.why, job.id) if job.state == "PENDING" and job.why not in ("", "None") else None


def out_of_service() -> list[Node]:
    """The nodes that take no jobs, with their reasons; [] when SLURM does not say."""
    shown = processes.run_with_deadline(["scontrol", "show", "node"], DEADLINE_S)
    return [node for node in slurm_tables.read(shown.stdout).nodes.values() if node.broken] if shown.rc == 0 else []
