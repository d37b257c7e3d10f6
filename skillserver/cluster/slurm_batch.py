"""The sbatch script that runs one command on every node of a job; each node leaves its answer in a shared folder.

Pure text. The answer of a node lies under `nodes/START/NODE/` of the run folder: out.jsonl, stderr.txt, and, written last,
status. START counts the restarts of the job, so that a requeued job never mixes two tries. A node that cannot see the
folder ends with the status UNSEEN and says so in the output of the batch script. Submits nothing and reads nothing back.

>>> script(Batch("run_mamf", Path("/shared/runs/a"), nodes=4, limit_s=300, words=["python3", "worker.py"], mark="a")).splitlines()[0]
'#!/bin/bash'
"""

from __future__ import annotations

import math
import shlex
from dataclasses import dataclass
from pathlib import Path

UNSEEN = 97  # exit status of a node that cannot see the run folder
MARGIN_S = 60.0  # SLURM looks at time limits about every half minute, and srun needs its own seconds
OUTPUT = "slurm.out"  # of the batch script, in the run folder
ENDED = "ended"  # written when srun is done, with its exit status
ALIVE = "alive"  # written anew, while somebody follows the job
UNFOLLOWED_S = 180  # a file may look old for a minute over NFS
# "$@" is the node's command. bash outlives it also when told to end, for the worker then still says what it has.
NODE = f"""host=${{SLURMD_NODENAME:-$(uname -n)}}
if ! cd -- "$RUN" 2>/dev/null || ! [ -r settings.json ]; then
    echo "skillserver: $host cannot see $RUN" >&2
    exit {UNSEEN}
fi
mkdir -p "nodes/$START/$host" && cd "nodes/$START/$host" || exit 98
trap : TERM
# each node locks its own devices, also where /tmp is shared
export XDG_RUNTIME_DIR="${{TMPDIR:-/tmp}}/skillserver-$(id -u)-$host"
export OMP_NUM_THREADS="${{OMP_NUM_THREADS:-$(($(nproc) / RANKS > 0 ? $(nproc) / RANKS : 1))}}"
"$@" >out.jsonl 2>stderr.txt
status=$?
echo "$status" >status.part && mv status.part status
exit "$status\""""
RENDEZVOUS = """first=$(scontrol show hostnames "${SLURM_STEP_NODELIST:-$SLURM_JOB_NODELIST}")
export MASTER_ADDR="${first%%[[:space:]]*}" MASTER_PORT="$((15000 + (SLURM_JOB_ID * 16 + SLURM_STEP_ID) % 15000))" # below the ephemeral ports
"""
BEFORE_STEP = """watched=${SKILLSERVER_WATCHED:-}
unset SKILLSERVER_WATCHED # the nodes have another stdin
"""
STEP = """exec 3<&0 # a step ends with whoever started it
{ [[ $watched != stdin ]] || { cat <&3; kill -TERM "$pid"; }; } >/dev/null 2>&1 &
"""
JOB = """{ # a job ends when nobody follows it any more: the server was killed, or its host is gone
    seen='' since=$SECONDS
    while sleep "$(((UNFOLLOWED + 9) / 10))" >/dev/null 2>&1; do
        beat=$(cat "$RUN/alive" 2>/dev/null)
        [[ $beat == "$seen" ]] || { seen=$beat; since=$SECONDS; }
        if ((SECONDS - since > UNFOLLOWED)); then
            echo "skillserver: nobody has followed this job for $((SECONDS - since)) s"
            kill -TERM "$pid"
            break
        fi
    done
} &
watcher=$!
"""
FOLLOW = """# this script outlives the nodes also when told to end: their last words are collected
trap 'kill -TERM "$pid" 2>/dev/null' TERM
{before}srun "${step[@]}" bash -c "$node" node "${command[@]}" &
pid=$!
{watch}wait "$pid"; status=$?
while kill -0 "$pid" 2>/dev/null; do wait "$pid"; status=$?; done # a trapped signal interrupts wait
[[ -z ${watcher:-} ]] || kill "$watcher" 2>/dev/null
echo "$status" >"$RUN/ended.$START.part" && mv "$RUN/ended.$START.part" "$RUN/ended.$START"
exit "$status\""""


@dataclass(frozen=True)
class Batch:
    """One job. `words` is what each node runs, once; `ranks` of each node, `together` when all ranks form one torchrun job.

    `inside` an allocation it is a step, whose own time limit then holds.
    """

    name: str
    folder: Path
    nodes: int
    limit_s: float
    words: list[str]
    mark: str
    ranks: int = 1
    together: bool = False
    exclusive: bool = True
    inside: bool = False
    account: str | None = None
    partition: str | None = None
    qos: str | None = None


def minutes(limit_s: float) -> int:
    """What `--time` asks for: SLURM counts in minutes, and its clock also runs while srun starts and ends."""
    return math.ceil((limit_s + MARGIN_S) / 60)


def script(batch: Batch) -> str:
    """The whole script, for sbatch and for `bash` inside an allocation alike, where its directives are comments."""
    return "\n".join(["#!/bin/bash", *_directives(batch), "", *_body(batch), ""])


def _directives(batch: Batch) -> list[str]:
    given = {"job-name": f"skillserver-{batch.name}", "nodes": batch.nodes, "ntasks-per-node": 1, "time": minutes(batch.limit_s), "output": OUTPUT,
             "open-mode": "append", "account": batch.account, "partition": batch.partition, "qos": batch.qos}  # fmt: skip
    if batch.exclusive:
        given["mem"] = 0
    # measured once and told at once: a job that starts again hours later answers nobody
    flags = ["no-requeue", *(["exclusive"] if batch.exclusive else [])]
    return [f"#SBATCH --{name}={value}" for name, value in given.items() if value not in (None, "")] + [f"#SBATCH --{flag}" for flag in flags]


def _body(batch: Batch) -> list[str]:
    bad, wait = (1, 30) if batch.together else (0, 0)  # nodes that measure apart do not end each other
    return [
        f"export RUN={shlex.quote(str(batch.folder))} START=${{SLURM_RESTART_COUNT:-0}}",
        f"export RANKS={batch.ranks} SKILLSERVER_JOB={shlex.quote(batch.mark)}",
        f"node={shlex.quote((RENDEZVOUS if batch.together else '') + NODE)}",
        f"command=({shlex.join(batch.words)})",
        "step=(",
        f"    --nodes={batch.nodes} --ntasks={batch.nodes} --ntasks-per-node=1 --cpus-per-task=\"${{SLURM_CPUS_ON_NODE:-1}}\"",
        f"    --kill-on-bad-exit={bad} --wait={wait} --input=none --job-name={shlex.quote(batch.mark)}"
        + (f" --overlap --time={minutes(batch.limit_s)}" if batch.inside else ""),  # --overlap is known since 20.11
        ")",
        "# a step of an exclusive job gets no GPU by itself",
        'IFS=, read -ra gpus <<<"${SLURM_JOB_GPUS:-}"',
        '((${#gpus[@]} == 0)) || step+=(--gres="gpu:${#gpus[@]}")',
        *([] if batch.inside else [f"UNFOLLOWED={UNFOLLOWED_S}"]),
        FOLLOW.replace("{before}", BEFORE_STEP if batch.inside else "").replace("{watch}", STEP if batch.inside else JOB),
    ]  # fmt: skip
