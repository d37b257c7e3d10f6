"""The faces of SLURM and of launching: what the cluster says in words; a launch script for many nodes.

>>> inspect_slurm(text="JOBID PARTITION NAME USER ST TIME NODES NODELIST(REASON)\\n5 main run ann PD 0:00 4 (Priority)").jobs[0].why.kind
'queue'
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from skillserver.cluster import launchers, slurm_live, slurm_report
from skillserver.cluster.launchers import Kind, Launch, Launcher, Target
from skillserver.cluster.slurm_report import SlurmReport
from skillserver.contract import tool
from skillserver.errors import BadRequest
from skillserver.units import Seconds


class More(BaseModel):
    """Options that few need; together they would cost every agent as much as the rest."""

    model_config = ConfigDict(extra="forbid")
    name: str = "train"
    account: str = ""
    qos: str = ""
    array: str = ""
    exclude_nodes: str = ""
    signal_s: int = Field(default=600, ge=0, le=86400)
    setup: str = ""
    cpus_per_gpu: int = Field(default=0, ge=0, le=1024)
    heartbeat_s: int = Field(default=1800, ge=0)


JobId = Annotated[str, BeforeValidator(lambda value: str(value) if isinstance(value, int) and not isinstance(value, bool) else value)]


@tool(toolset="cluster", title="Inspect SLURM", read_only=True)
def inspect_slurm(
    job_id: Annotated[JobId, Field(description="one job, such as 123 or 123_4: why it waits or how it ended")] = "",
    user: Annotated[str, Field(description="whose jobs; default yours, all for everybody")] = "",
    partition: Annotated[str, Field(description="only this partition")] = "",
    text: Annotated[str, Field(description="pasted squeue, sinfo, sacct, scontrol show job|node output, any mixture; needs no SLURM here")] = "",
) -> SlurmReport:
    """Call when a SLURM job waits or ended, or to see what is free: why it is pending in words, post-mortem (memory kill, time limit, node failure,
    preemption, signal), free GPUs by type and largest block, drained nodes with reasons, efficiency.

    Without text the commands of this host are asked; nothing is changed on the cluster.
    """
    user, partition = slurm_live.name(user, "user"), slurm_live.name(partition, "partition")
    job_id = slurm_live.job_id(job_id) if job_id else ""
    if text.strip():
        return slurm_report.report(text, job_id=job_id, user=user, partition=partition)
    asked = slurm_live.ask(user, job_id, partition)
    return slurm_report.report(asked.text, job_id=job_id, user="all", partition=partition, live=True, refused=asked.refused)


@tool(toolset="cluster", title="Write a launcher", read_only=True)
def write_launcher(
    kind: Annotated[Kind, Field(description="what starts the ranks")],
    script: Annotated[str, Field(description="train.py or -m package.module")],
    target: Annotated[Target, Field(description="where")] = "slurm",
    args: Annotated[list[str], Field(description="its arguments")] = [],  # noqa: B006
    nodes: Annotated[int, Field(ge=1, description="or pods")] = 1,
    gpus_per_node: Annotated[int, Field(ge=1, description="GPUs")] = 8,
    time: Annotated[Seconds, Field(ge=60, description="limit, 1 day")] = 86400.0,
    partition: Annotated[str, Field(description="SLURM's")] = "",
    container: Annotated[str, Field(description="image or .sif")] = "",
    requeue: Annotated[bool, Field(description="restart after limit or preemption")] = True,
    options: Annotated[
        dict[str, Any],
        Field(description="account, qos, array, exclude_nodes, signal_s, name, setup (shell lines), cpus_per_gpu, heartbeat_s"),
    ] = {},  # noqa: B006
) -> Launcher:
    """Call to start training on many nodes: sbatch script or Kubernetes manifest with rendezvous, save before the limit, requeue, kill switch,
    heartbeat. Submits nothing.

    The program reads STOP_FILE, SAVE_FILE, DONE_FILE and HEARTBEAT_FILE from its environment; see the explanation. Nothing is
    written to disk.
    """
    more = _more(options)
    return launchers.write(Launch(kind, target, script, args, nodes, gpus_per_node, time, partition=partition, container=container, requeue=requeue,
                                  **more.model_dump()))  # fmt: skip


def _more(options: dict[str, Any]) -> More:
    """The options, checked. Raises BadRequest naming those there are."""
    try:
        return More.model_validate(options)
    except ValidationError as problem:
        first = problem.errors(include_url=False)[0]
        raise BadRequest("bad_options", f"options.{'.'.join(map(str, first['loc']))}: {first['msg']}", valid=More.model_fields,
                         next="leave it out, or pass one of these") from None  # fmt: skip
