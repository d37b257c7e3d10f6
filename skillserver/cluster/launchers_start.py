"""The command that starts a program's ranks on one node, for each launcher: bash text with the user's words quoted.

A `Start` has the array `launcher` (what stands before the program) and, where an option differs from node to node, a
`bash -c` that expands it there and not in the batch shell, where it would be 0 everywhere.

>>> of_slurm(Launch("accelerate", "slurm", "train.py", nodes=2)).wrapper[:20]
"bash -c 'exec accele"
"""

from __future__ import annotations

from dataclasses import dataclass

from skillserver.cluster.launchers import Launch


@dataclass
class Start:
    """`wrapper` and `options` are bash words; `program` is the script with its arguments."""

    options: list[str]
    program: str
    wrapper: str = ""
    before: str = ""  # lines of the batch script that it needs
    why: str = ""


def of_slurm(launch: Launch) -> Start:
    """For srun to start, on every node or for every rank."""
    return {"torchrun": _torchrun, "accelerate": _accelerate, "deepspeed": _deepspeed, "srun": _ranks, "lightning": _lightning}[launch.kind](launch)


def _torchrun(launch: Launch) -> Start:
    options = [
        "torchrun",
        f'--nnodes="$SLURM_NNODES" --nproc-per-node={launch.gpus_per_node} --max-restarts=0',
        '--rdzv-backend=c10d --rdzv-endpoint="$MASTER_ADDR:$MASTER_PORT" --rdzv-id="$SLURM_JOB_ID"',
    ]
    return Start(options + ([] if launch.is_python else ["--no-python"]), launch.words(),
                 why="one torchrun a node starts a process for each GPU; --max-restarts=0: a failed rank breaks the group for all. A "
                     "RendezvousConnectionError at the very end is harmless when the job ends with 0: the first node left sooner")  # fmt: skip


def _accelerate(launch: Launch) -> Start:
    options = [f"--num_machines={launch.nodes} --num_processes={launch.nodes * launch.gpus_per_node}",
               '--main_process_ip="$MASTER_ADDR" --main_process_port="$MASTER_PORT"',
               "--rdzv_backend=static --dynamo_backend=no --mixed_precision=no"]  # fmt: skip
    options += ["--multi_gpu"] if launch.nodes * launch.gpus_per_node > 1 else []
    options += [] if launch.is_python else ["--no_python"]
    return Start(options, launch.words(), "bash -c 'exec accelerate launch --machine_rank=\"$SLURM_NODEID\" \"$@\"' accelerate",
                 why="num_processes counts all GPUs of the job; machine_rank is expanded on each node; precision is the program's own")  # fmt: skip


def _deepspeed(launch: Launch) -> Start:
    wrapper = 'bash -c \'exec deepspeed --no_ssh --node_rank="$SLURM_NODEID" "$@"\' deepspeed'
    before = f'printf "%s slots={launch.gpus_per_node}\\n" "${{hosts[@]}}" >"$RUN_DIR/hostfile.$SLURM_JOB_ID"\n'
    options = ['--hostfile="$RUN_DIR/hostfile.$SLURM_JOB_ID" --master_addr="$MASTER_ADDR" --master_port="$MASTER_PORT"']
    options += [] if launch.is_python else ["--no_python"]
    return Start(options, launch.words(module_flag="--module"), wrapper, before,
                 why="--no_ssh: srun already runs a launcher on each node, so DeepSpeed needs no ssh between them")  # fmt: skip


def _python(launch: Launch) -> str:
    return f"python -u {launch.words()}" if launch.is_python else launch.words()


def _ranks(launch: Launch) -> Start:
    wrapper = (
        "bash -c 'export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS "
        f'LOCAL_WORLD_SIZE={launch.gpus_per_node}; exec "$@"\' rank'
    )
    return Start([], _python(launch), wrapper, why="srun starts every rank itself; the wrapper gives torch its variables from SLURM's")


def _lightning(launch: Launch) -> Start:
    return Start(
        [], _python(launch), why="Lightning reads SLURM's variables; Trainer(num_nodes, devices) must equal the nodes and GPUs asked for here"
    )


def of_kubernetes(launch: Launch, node_rank: str, address: str, port: str) -> str:
    """The command of one pod. `node_rank` is a bash variable with its dollar sign."""
    total = launch.nodes * launch.gpus_per_node
    if launch.kind == "accelerate":
        words = [
            "accelerate launch", f"--num_machines={launch.nodes} --num_processes={total}", f'--machine_rank="{node_rank}"',
            f'--main_process_ip="{address}" --main_process_port="{port}"', "--rdzv_backend=static --dynamo_backend=no --mixed_precision=no",
            *(["--multi_gpu"] if total > 1 else []), *([] if launch.is_python else ["--no_python"]),
        ]  # fmt: skip
    else:
        words = [
            "torchrun", f"--nnodes={launch.nodes} --nproc-per-node={launch.gpus_per_node} --max-restarts=0",
            f'--node-rank="{node_rank}" --master-addr="{address}" --master-port="{port}"', *([] if launch.is_python else ["--no-python"]),
        ]  # fmt: skip
    return " \\\n  ".join([*words, launch.words()])
