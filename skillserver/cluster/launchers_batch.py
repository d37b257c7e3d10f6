"""The sbatch script: directives, switches, a signal before the limit, a watch on the heartbeat, requeue.

Every program sees RUN_DIR and the paths of five files: STOP_FILE (save and leave now), SAVE_FILE (save and go on),
KILL_FILE (a person ends it for good), DONE_FILE (the program says that training is complete), HEARTBEAT_FILE (touched
every step). Only a signal before the limit or a silent heartbeat requeues; a failure and scancel do not.

>>> write(Launch("torchrun", "slurm", "train.py")).script.splitlines()[0]
'#!/bin/bash'
"""

from __future__ import annotations

import re
import shlex

from skillserver.cluster import launchers_start
from skillserver.cluster.launchers import Draft, Launch
from skillserver.cluster.launchers_start import Start

MOST_RESTARTS = 20
KILL_GRACE_S = 600
CHECK_S = 30
RDZV = 'mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")'
FILES = """mkdir -p -- "$RUN_DIR/flight" || exit 1
export RUN_DIR STOP_FILE="$RUN_DIR/stop.$SLURM_JOB_ID" HEARTBEAT_FILE="$RUN_DIR/heartbeat.$SLURM_JOB_ID"
export SAVE_FILE="$RUN_DIR/save" KILL_FILE="$RUN_DIR/kill" DONE_FILE="$RUN_DIR/done"
rm -f -- "$STOP_FILE" "$HEARTBEAT_FILE"
for switch in "$KILL_FILE" "$DONE_FILE"; do
    [[ ! -e $switch ]] || { echo "launcher: $switch exists, nothing to do"; exit 0; }
done
"""
SETTINGS = """# values that the site or the submitting shell has set stay
export NCCL_DEBUG="${NCCL_DEBUG:-WARN}" PYTHONUNBUFFERED=1 PYTHONFAULTHANDLER=1
export TORCH_NCCL_TRACE_BUFFER_SIZE="${TORCH_NCCL_TRACE_BUFFER_SIZE:-2000}" TORCH_NCCL_DUMP_ON_TIMEOUT=1
export TORCH_NCCL_DEBUG_INFO_TEMP_FILE="$RUN_DIR/flight/rank_" TORCH_FR_DUMP_TEMP_FILE="$RUN_DIR/flight/rank_"
"""
WATCH = """watch() {{ # ends srun when a person or a silent heartbeat says so
    local pid=$1 now seen=0 beat
    while sleep {check}; do
        printf -v now '%(%s)T' -1
        if [[ -e $KILL_FILE ]]; then
            touch -- "$STOP_FILE"
            ((seen)) || seen=$now
            if ((now - seen > {grace})); then echo "launcher: kill switch, ending srun"; break; fi
        fi
        if (({heartbeat})) && beat=$(stat -c %Y -- "$HEARTBEAT_FILE" 2>/dev/null) && ((now - beat > {heartbeat})); then
            echo "launcher: no heartbeat for $((now - beat)) s, ending srun"
            touch -- "$RUN_DIR/stalled.$SLURM_JOB_ID"
            break
        fi
    done
    kill -TERM "$pid"
    sleep 60
    kill -KILL "$pid"
}}
"""
RUN = """watch "$pid" 2>/dev/null &
watcher=$!
wait "$pid"; status=$?
while kill -0 "$pid" 2>/dev/null; do wait "$pid"; status=$?; done # a trapped signal interrupts wait
kill "$watcher" 2>/dev/null
"""
REQUEUE = """if [[ ! -e $KILL_FILE && ! -e $DONE_FILE ]] && {{ ((near_limit)) || [[ -e $RUN_DIR/stalled.$SLURM_JOB_ID ]]; }}; then
    if ((${{SLURM_RESTART_COUNT:-0}} < {most})); then
        echo "launcher: requeue after ${{SLURM_RESTART_COUNT:-0}} restarts"
        scontrol requeue "$SLURM_JOB_ID"
    else
        echo "launcher: {most} restarts are enough, not requeued"
    fi
fi
"""


def write(launch: Launch) -> Draft:
    """The batch script with what to know about it."""
    start = launchers_start.of_slurm(launch)
    parts = ["#!/bin/bash", *_directives(launch), "", "set -uo pipefail # not -e: the end of srun is handled below", *_setup(launch),
             _run_dir(launch) + FILES + 'rm -f -- "$RUN_DIR/stalled.$SLURM_JOB_ID"\n', SETTINGS + _rendezvous() + start.before, _srun(launch, start),
             WATCH.format(check=CHECK_S, grace=KILL_GRACE_S, heartbeat=launch.heartbeat_s), _traps(launch), *_end(launch)]  # fmt: skip
    name = f"{launch.name}.sbatch"
    text = "\n".join(parts).replace("\n\n\n", "\n\n").rstrip("\n") + "\n"
    return Draft(text, _files(launch, name), [start.why, *_explained(launch)], _warnings(launch),
                 f"save the script as {name}; sbatch --test-only {name}; then sbatch {name}")  # fmt: skip


def clock(time_s: float) -> str:
    """Seconds as SLURM's D-HH:MM:SS, never less than a minute."""
    rest = max(int(time_s), 60)
    return f"{rest // 86400}-{rest // 3600 % 24:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}"


def _directives(launch: Launch) -> list[str]:
    given = {"job-name": launch.name, "nodes": launch.nodes, "ntasks-per-node": launch.tasks_per_node, "gres": f"gpu:{launch.gpus_per_node}"}
    if launch.cpus_per_gpu:
        given["cpus-per-task"] = launch.cpus_per_gpu * launch.gpus_per_node // launch.tasks_per_node
    else:
        given["mem"] = "0"
    given |= {"time": clock(launch.time_s), "output": "%x-%A_%a.out" if launch.array else "%x-%j.out", "open-mode": "append"}
    if launch.signal_s:
        given["signal"] = f"{'' if launch.kind == 'lightning' else 'B:'}USR1@{launch.signal_s}"
    named = {"account": launch.account, "partition": launch.partition, "qos": launch.qos, "array": launch.array, "exclude": launch.exclude_nodes}
    given |= {key: value for key, value in named.items() if value}
    flags = ["requeue" if launch.requeue else "no-requeue", *([] if launch.cpus_per_gpu else ["exclusive"])]
    return [f"#SBATCH --{key}={value}" for key, value in given.items()] + [f"#SBATCH --{flag}" for flag in flags]


def _setup(launch: Launch) -> list[str]:
    return ["", "# your environment", launch.setup.strip("\n")] if launch.setup.strip() else []


def _run_dir(launch: Launch) -> str:
    """A chain of an array (%1) is one run with one folder; the tasks of a sweep have their own."""
    own = "-$SLURM_ARRAY_TASK_ID" if launch.array and not launch.array.endswith("%1") else ""
    return f'\nRUN_DIR="$PWD/runs/$SLURM_JOB_NAME{own}"\n'


def _rendezvous() -> str:
    return f"""
{RDZV}
export MASTER_ADDR="${{hosts[0]}}" MASTER_PORT="$((15000 + SLURM_JOB_ID % 15000))" # below the ephemeral ports
"""


def _container(launch: Launch) -> tuple[list[str], list[str]]:
    """(options of srun, words before the program)."""
    if not launch.container:
        return [], []
    image = shlex.quote(launch.container)
    if re.search(r"\.sif$|^(?:docker|oras|library|shub)://", launch.container):
        return [], [f'apptainer exec --nv --bind "$PWD" --pwd "$PWD" {image}']
    return [f'--container-image={image} --container-mounts="$PWD:$PWD" --container-workdir="$PWD"'], []


def _srun(launch: Launch, start: Start) -> str:
    options, before = _container(launch)
    cpus = '"$SLURM_CPUS_PER_TASK"' if launch.cpus_per_gpu else _share(launch.tasks_per_node)
    step = ['--nodes="$SLURM_NNODES"', f"--ntasks-per-node={launch.tasks_per_node} --cpus-per-task={cpus}", "--kill-on-bad-exit=1 --label", *options]
    words = [*before, *([start.wrapper] if start.wrapper else []), *start.options]
    disable = "# shellcheck disable=SC2016 # expanded on each node\n" if start.wrapper else ""
    inert = "# shellcheck disable=SC1003,SC2016 # the program's own words\n" if re.search(r"[$`\\]", start.program) else ""
    lines = [_array("step", step)] + ([f"{disable}{_array('launcher', words)}"] if words else []) + [f"{inert}program=({start.program})\n"]
    return "".join(lines)


def _share(tasks: int) -> str:
    """CPUs of a node for each task, at least one; the first node speaks for all."""
    return f'"$((SLURM_CPUS_ON_NODE > {tasks} ? SLURM_CPUS_ON_NODE / {tasks} : 1))"' if tasks > 1 else '"$SLURM_CPUS_ON_NODE"'


def _array(name: str, lines: list[str]) -> str:
    return f"{name}=(\n" + "".join(f"    {line}\n" for line in lines) + ")\n"


def _traps(launch: Launch) -> str:
    launcher = (
        '"${launcher[@]}" ' if launchers_start.of_slurm(launch).options or launchers_start.of_slurm(launch).wrapper or _container(launch)[1] else ""
    )
    mark = "near_limit=1; " if _requeues(launch) else ""
    return f"""{"near_limit=0" if mark else "# ask for the state to be saved"}
trap '{mark}touch -- "$STOP_FILE"' USR1 # {launch.signal_s} s before the limit
trap 'touch -- "$STOP_FILE"' TERM # preempted or cancelled: save, SLURM decides about requeueing
srun "${{step[@]}}" {launcher}"${{program[@]}}" &
pid=$!
"""


def _requeues(launch: Launch) -> bool:
    """Whether this script does; Lightning does it itself."""
    return launch.requeue and launch.kind != "lightning"


def _end(launch: Launch) -> list[str]:
    requeue = [REQUEUE.format(most=MOST_RESTARTS)] if _requeues(launch) else []
    return [RUN, *requeue, 'exit "$status"\n']


def _files(launch: Launch, name: str) -> dict[str, str]:
    folder = f"runs/{launch.name}" + ("-TASK" if launch.array and not launch.array.endswith("%1") else "")
    return {
        name: "this script",
        f"{folder}/kill": f"touch it: no start, no requeue; a running job is told to save and is ended {KILL_GRACE_S // 60} minutes later",
        f"{folder}/save": "touch it: the program saves, removes it and goes on",
        f"{folder}/done": "the program makes it when training is complete: nothing starts again",
        f"{folder}/stop.JOBID": "the script makes it before the limit: the program saves and exits 0",
        f"{folder}/heartbeat.JOBID": "the program touches it every step",
        f"{folder}/flight/rank_N": "Flight Recorder dumps after an NCCL timeout, for diagnose_hang",
    }


def _explained(launch: Launch) -> list[str]:
    said = [
        'In the training loop, all ranks together: stop = torch.tensor([int(rank == 0 and os.path.exists(os.environ["STOP_FILE"]))], device=device); '
        "dist.broadcast(stop, 0); when it is 1: save and exit 0. SAVE_FILE the same way; rank 0 touches HEARTBEAT_FILE.",
        "The program must find its latest complete checkpoint itself: a requeued job runs this script from the top under the same id.",
        "srun takes --cpus-per-task itself, because it does not inherit it from sbatch since 22.05.",
        "Flight Recorder keeps the last 2000 collectives of each rank and dumps them at a timeout; newer torch says the variable was renamed.",
        "NCCL's network settings are left to the site; NCCL_SOCKET_IFNAME is needed only where ranks meet on the wrong interface.",
    ]
    if launch.heartbeat_s:
        said.append(
            f"The watch acts only after a first heartbeat: {launch.heartbeat_s} s of silence end srun; longer than your longest evaluation or save."
        )
    if launch.kind == "lightning":
        said.append("USR1 goes to the ranks, not to the shell: Lightning's SLURMEnvironment saves and requeues by itself.")
    return said


def _warnings(launch: Launch) -> list[str]:
    found = []
    if launch.setup.strip():
        found.append("setup stands in the script as it is: read it before submitting")
    if not launch.requeue:
        found.append("without requeue a node failure, preemption or the time limit ends the run")
    if not launch.signal_s:
        found.append("without signal_s nothing is saved before the time limit, and nothing requeues at it")
    if launch.container and not _container(launch)[1]:
        found.append("--container-image needs the Pyxis plugin on the cluster; a .sif file uses apptainer")
    if not launch.is_python:
        found.append(f"{launch.script!r} is no .py file: it is started as a program and must be executable")
    if not launch.cpus_per_gpu:
        found.append("whole nodes are asked for (--exclusive, --mem=0); cpus_per_gpu shares them, with the site's default memory")
    if launch.array and launch.requeue and launch.array.endswith("%1"):
        found.append("a chain of array tasks and requeue do the same work twice; requeue=false is enough for a chain")
    return found
