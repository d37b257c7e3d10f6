"""Stacks of every rank of a running SLURM job: one more step in the job's own allocation, which runs py-spy on each node.

`srun --overlap` shares what the job holds and asks for nothing. The step walks /proc for Python processes that carry the job's
id, takes the rank from RANK or SLURM_PROCID, and looks twice, a moment apart, so that a changing stack shows a rank that is
only slow. Needs permission to run programs. Knows srun's words; not what stacks mean.

>>> texts("4242").pairs[0][0]
'node task 0, look 1'
"""

from __future__ import annotations

import re
import shutil
import time
from collections import defaultdict

from skillserver import permissions, processes
from skillserver.diagnose import live_stacks
from skillserver.diagnose.live_stacks import Taken
from skillserver.errors import BadRequest, NotHere

DEADLINE_S = 120.0
SQUEUE_S = 20.0
JOB = re.compile(r"\d{1,10}(?:_\d{1,7})?")  # of a heterogeneous job: the id of one component
LABEL = re.compile(r"^ {0,8}(\d{1,6}): ?(.*)$")
LOOK = "### look "
# $1 the job, $2 py-spy of the host that asks, $3 seconds between the looks. An array task carries both of its ids.
SCRIPT = r"""
spy=$(command -v py-spy || echo "$2")
value() { printf '%s\n' "$env" | sed -n "s/^$1=//p" | head -n 1; }
for look in 1 2; do
  echo "### look $look"
  for folder in /proc/[0-9]*; do
    case $(readlink "$folder/exe") in */python*) ;; *) continue ;; esac
    env=$(tr '\0' '\n' < "$folder/environ") || continue
    job=$(value SLURM_JOB_ID)
    task=$(value SLURM_ARRAY_JOB_ID)_$(value SLURM_ARRAY_TASK_ID)
    [ "$job" = "$1" ] || [ "$task" = "$1" ] || continue
    rank=$(value RANK)
    [ -n "$rank" ] || rank=$(value SLURM_PROCID)
    pid=${folder#/proc/}
    out=$("$spy" dump --pid "$pid" 2>&1) || { echo "### failed $(uname -n) pid $pid rank $rank: $(printf '%s' "$out" | tail -n 1)"; continue; }
    echo "== $(uname -n) pid $pid rank $rank"
    printf '%s\n' "$out"
  done
  [ "$look" = 2 ] || sleep "$3"
done 2>/dev/null
"""


def argv(job: str, nodes: int) -> list[str]:
    """The command: one task on each of the job's nodes. Raises BadRequest for what is no job id and NotHere without srun."""
    if not JOB.fullmatch(job):
        raise BadRequest("no_job_id", f"{job!r} is no SLURM job id", next="pass the number that squeue shows, such as 4242 or 4242_7")
    srun = shutil.which("srun")
    if srun is None:
        raise NotHere(
            "no_srun", "srun is not on the PATH of this host", next="call it on a login node of that cluster, or pass py-spy dumps as paths"
        )
    try:
        spy = live_stacks.program()
    except NotHere:
        spy = "py-spy"  # the nodes may have it
    # without a node count srun starts one task, on the job's first node
    size = [f"--nodes={nodes}", f"--ntasks={nodes}"] if nodes else []
    options = ["--overlap", f"--jobid={job}", *size, "--ntasks-per-node=1", "--label", "--input=none", "--kill-on-bad-exit=0", "--job-name=stacks"]
    return [srun, *options, "sh", "-c", SCRIPT, "stacks", job, spy, f"{live_stacks.APART_S:g}"]


def node_count(job: str) -> int:
    """How many nodes the running job has; 0 when squeue does not say."""
    ask = ["squeue", "--noheader", f"--jobs={job}", "--states=RUNNING", "--format=%D"]
    told = processes.run_with_deadline(ask, SQUEUE_S) if JOB.fullmatch(job) else None
    words = told.stdout.split() if told and told.rc == 0 else []
    return max((int(word) for word in words if word.isdigit()), default=0)


def texts(job: str) -> Taken:
    """Two looks at every rank. Raises NotHere without permission or srun, BadRequest when SLURM refuses the job."""
    permissions.require_run("srun with py-spy")
    started = time.time()
    nodes = node_count(job)
    done = processes.run_with_deadline(argv(job, nodes), DEADLINE_S)
    taken = _parted(done.stdout, started)
    said = next((line.strip()[:160] for line in done.stderr.splitlines() if line.strip()), "")
    if not taken.pairs and not taken.skipped and done.rc not in (0, None):
        raise BadRequest(
            "no_stacks", f"srun ended with {done.rc} for job {job}: {said}", next="squeue -j for its state; only running jobs have stacks"
        )
    if done.rc is None:
        taken.skipped.append(f"srun was not done in {DEADLINE_S:.0f} s: some nodes are missing")
    elif done.rc:
        taken.skipped.append(f"srun ended with {done.rc}: {said}")
    if not nodes:
        taken.skipped.append(f"squeue did not say how many nodes job {job} has: perhaps only its first one was looked at")
    if not taken.pairs:
        taken.skipped.append(f"no Python process of job {job} gave a stack")
    return taken


def _parted(output: str, started: float) -> Taken:
    """srun mixes the lines of its tasks; the label says whose a line is, the mark of which look."""
    kept: defaultdict[tuple[int, int], list[str]] = defaultdict(list)
    look: defaultdict[int, int] = defaultdict(lambda: 1)
    failed: dict[str, None] = {}
    for line in output.splitlines():
        match = LABEL.match(line)
        if match is None:
            continue
        task, text = int(match[1]), match[2]
        if text.startswith(LOOK):
            look[task] = int(text[len(LOOK) :])
        elif text.startswith("### failed "):
            failed[_why(text.removeprefix("### failed "))] = None
        else:
            kept[look[task], task].append(text)
    pairs = [(f"node task {task}, look {at}", "\n".join(lines), started + at * live_stacks.APART_S) for (at, task), lines in sorted(kept.items())]
    return Taken(pairs=pairs, skipped=list(failed))


def _why(said: str) -> str:
    low = said.lower()
    return f"{said.split(':')[0]}: {live_stacks.PTRACE}" if "permission denied" in low or "not permitted" in low else said[:160]
