"""Run one worker on many nodes by SLURM: a script, submitted, followed to its end, the answers of all nodes joined.

Refused first: no permission, no SLURM, more nodes or minutes than the human allowed. The run folder must be on a disk that
the nodes share (`SKILLSERVER_HOME`); each node looks and says so when it cannot see it. Inside an allocation the same
script runs as a step of it. The job ends with ours: cancelled, timed out or shut down, it is cancelled in SLURM too.
Joins permissions, cluster, jobs and workers; knows nothing of what is measured.

>>> record = await run_on_nodes(Asked("run_mamf", {}, nodes=4, script="torch_matmul.py", settings={...}, shape=..., values=...), 20)
>>> record.result["table"]["outliers"]
['n3']
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from skillserver import permissions
from skillserver.cluster import slurm_batch, slurm_submit
from skillserver.cluster.slurm_batch import Batch
from skillserver.errors import NotHere, SkillError
from skillserver.jobs import manager
from skillserver.jobs.store import JobRecord, now
from skillserver.procedures import node_follow, node_table
from skillserver.procedures.run_errors import or_error
from skillserver.workers import interpreters, profiles
from skillserver.workers.run import LAUNCHER, WorkerSpec, environment, prepare

Document = dict[str, Any]
SCRIPT = "job.sbatch"
SITE_DEFAULTS = {"SBATCH_ACCOUNT": "account", "SBATCH_PARTITION": "partition", "SBATCH_QOS": "qos"}
OF_THIS_HOST = ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")


@dataclass(frozen=True)
class Asked:
    """What runs on every node. `nproc` ranks of each form one torchrun job, 0 lets every node measure for itself.

    `module` runs under skillserver's own interpreter instead of `script` under the user's. `values` are the numbers of a
    shaped answer that nodes are compared by.
    """

    tool: str
    arguments: Document
    nodes: int
    script: str
    settings: Document
    shape: Callable[[Document], Document]
    values: node_table.Values
    nproc: int = 0
    python: str | None = None
    limit_s: float = 600.0
    module: str = ""
    needs_torch: bool = True


async def each_node(*, tool: str, arguments: Document, nodes: int, values: node_table.Values, limit_s: float, python: str = "", wait_s: float = 20,
                    dry_run: bool = False) -> JobRecord:  # fmt: skip
    """Call `tool` with `arguments` on each node by this installation, which looks for devices and interpreters there; one table.

    `limit_s` is the tool's own limit. Raises as `run_on_nodes`, and a failed run's own error when no node gave anything.
    """
    allowed = permissions.current()
    if python and profiles.chosen(python) is None:
        interpreters.candidates(python)  # what may not be named here may not be named there
    given = {name: value for name, value in (arguments | {"python": python}).items() if value not in (None, "")}
    settings = {"tool": tool, "arguments": given, "home": str(manager.default.store.home), "busy": allowed.busy, "max_minutes": limit_s / 60 + 1,
                "pythons": allowed.pythons, "profiles": {name: [one.prefix, one.env_file] for name, one in allowed.profiles.items()}}  # fmt: skip
    asked = Asked(tool, arguments, nodes, "", settings, dict, values, limit_s=limit_s, module="skillserver.one_node")
    return or_error(await run_on_nodes(asked, wait_s, dry_run=dry_run))


@dataclass(frozen=True)
class Plan:
    """Everything that is decided before a job is submitted."""

    asked: Asked
    worker: Document
    python: str
    prefix: tuple[str, ...] = ()
    allowed: permissions.Permissions = field(default_factory=permissions.current)

    def spec(self, mark: str, folder: Path) -> WorkerSpec:
        """The worker as on one host: its files are prepared, its command is not used."""
        return WorkerSpec(mark, folder, self.asked.script, self.asked.settings, self.python, prefix=self.prefix, limit_s=self.asked.limit_s)

    def words(self, folder: Path) -> list[str]:
        """What each node runs, in a folder of its own."""
        settings = ["--settings-file", str(folder / "settings.json")]
        if self.asked.module:
            return [self.python, "-u", "-m", self.asked.module, *settings]
        scripts = folder / "scripts"
        start = [str(scripts / LAUNCHER), "--nproc", str(self.asked.nproc), "--nodes", str(self.asked.nodes)] if self.asked.nproc else []
        return [*profiles.filled(self.prefix, folder), self.python, "-u", *start, str(scripts / Path(self.asked.script).name), *settings]

    def batch(self, mark: str, folder: Path) -> Batch:
        """The job for SLURM."""
        return Batch(self.asked.tool, folder, self.asked.nodes, self.asked.limit_s, self.words(folder), mark, ranks=max(1, self.asked.nproc),
                     together=self.asked.nproc > 0, inside=bool(allocation()), account=self.allowed.account, partition=self.allowed.partition,
                     qos=self.allowed.qos)  # fmt: skip

    def environment(self, spec: WorkerSpec) -> dict[str, str]:
        """What goes to the nodes: what a worker inherits, less what is true of this host only."""
        inside = bool(allocation())
        kept = {name: value for name, value in environment(spec).items()
                if name not in OF_THIS_HOST and (inside or name == "SLURM_CONF" or not name.startswith("SLURM_"))}  # fmt: skip
        kept |= {name: os.environ[name] for name, flag in SITE_DEFAULTS.items() if name in os.environ and not getattr(self.allowed, flag)}
        return kept | ({"OMP_NUM_THREADS": os.environ["OMP_NUM_THREADS"]} if "OMP_NUM_THREADS" in os.environ else {})


def allocation() -> str:
    """The id of the SLURM job that this process runs in, "" outside of one."""
    return os.environ.get("SLURM_JOB_ID", "")


async def run_on_nodes(asked: Asked, wait_s: float, *, dry_run: bool = False) -> JobRecord:
    """Submit, follow, join. `dry_run` answers the script and what would be refused, and submits nothing.

    Raises NotHere for a refusal; a job that SLURM refuses or that ends without any answer is a failed record.
    """
    permissions.require_run(asked.tool)
    refused = refusals(asked.nodes, asked.limit_s)
    if refused and not dry_run:
        raise refused[0]
    plan = await planned(asked)
    if dry_run:
        return answered(plan, refused)

    async def work(handle: manager.Handle) -> Document:
        return await _work(plan, handle)

    return await manager.start(asked.tool, asked.arguments | {"nodes": asked.nodes}, work, wait_s, shape=lambda payload: shaped(plan, payload))


async def planned(asked: Asked) -> Plan:
    """The interpreter that the nodes use: at the same path as here."""
    if asked.module:
        return Plan(asked, {"interpreter": sys.executable, "source": "the interpreter that runs skillserver"}, sys.executable)
    try:
        found = await interpreters.find(asked.python, needs_torch=asked.needs_torch)
    except NotHere:
        if (profile := profiles.chosen(asked.python)) is None:
            raise
        path, source = profiles.interpreters(profile[0])[0]  # containers often start on compute nodes only
        return Plan(asked, {"interpreter": path, "source": f"{source}, which does not start on this host"}, path, profiles.words(profile[1]))
    return Plan(asked, {"interpreter": found.path, "source": found.source, "torch": found.torch}, found.path, found.prefix)


def refusals(nodes: int, limit_s: float) -> list[SkillError]:
    """Every reason not to submit, the most fundamental first."""
    allowed = permissions.current()
    found: list[SkillError] = []
    if absent := slurm_submit.missing():
        found.append(NotHere("no_slurm", f"nodes={nodes} is run by SLURM, and this host has no {absent}",
                             next="call it on a login node of the cluster, or leave nodes out to measure this host"))  # fmt: skip
    if nodes > allowed.max_nodes:
        found.append(NotHere("too_many_nodes", f"nodes={nodes} is above the {allowed.max_nodes} that this server may take",
                             next=f"ask your user to start the server with --max-nodes {nodes}; dry_run=true shows the sbatch script"))  # fmt: skip
    if limit_s > allowed.max_minutes * 60:
        found.append(NotHere("limit_too_long", f"a limit of {limit_s:g} s is above the {allowed.max_minutes:g} minutes allowed here",
                             next="ask for less time, or ask your user to start the server with --max-minutes"))  # fmt: skip
    here = os.environ.get("SLURM_JOB_NUM_NODES") or os.environ.get("SLURM_NNODES", "")
    if allocation() and here.isdigit() and nodes > int(here):
        found.append(NotHere("allocation_too_small", f"nodes={nodes}, and this allocation (job {allocation()}) has {here}",
                             next=f"pass nodes={here} or fewer, or call it outside the allocation"))  # fmt: skip
    return found


def answered(plan: Plan, refused: list[SkillError]) -> JobRecord:
    """The record of a dry run; it has no id and is not stored."""
    asked, folder = plan.asked, manager.default.store.home / "runs" / "JOB"
    told = {"dry_run": True, "sbatch_script": slurm_batch.script(plan.batch("JOB", folder)), "settings": asked.settings, "interpreter": plan.worker,
            "submitted_by": "srun in this allocation" if allocation() else "sbatch --parsable", "run_folder": str(folder), "limit_s": asked.limit_s,
            "environment": sorted(plan.environment(plan.spec("JOB", folder))), "would_be_refused": [str(one) for one in refused]}  # fmt: skip
    return JobRecord(job_id="", tool=asked.tool, arguments=asked.arguments, state="done", created=now(), ended=now(), result=told,
                     next="call it again without dry_run" if not refused else str(refused[0]))  # fmt: skip


async def _work(plan: Plan, handle: manager.Handle) -> Document:
    """The body of the job."""
    folder, mark = handle.folder, handle.record.job_id
    if not folder.is_relative_to(manager.default.store.home):
        raise NotHere("no_shared_folder", f"the run folder {folder} is temporary, and nodes could not write their answers there",
                      next="set SKILLSERVER_HOME to a folder that you may write to and that all nodes share")  # fmt: skip
    spec = plan.spec(mark, folder)
    prepare(spec)
    (folder / SCRIPT).write_text(slurm_batch.script(plan.batch(mark, folder)), encoding="utf-8")
    env = plan.environment(spec)
    run = node_follow.Run(handle, plan.asked.nodes, together=plan.asked.nproc > 0)
    if allocation():
        return await node_follow.as_step(run, folder / SCRIPT, env, plan.asked.limit_s)
    return await node_follow.as_job(run, folder / SCRIPT, env)


def shaped(plan: Plan, payload: Document) -> Document:
    """What the nodes left, shaped one by one and joined; a torchrun job has one answer, that of its first rank."""
    errors = dict(payload["errors"])
    answers: dict[str, Document] = {}
    for node, best in payload["answers"].items():
        try:
            answers[node] = plan.asked.shape(best | {"worker": plan.worker | payload["workers"].get(node, {})})
        except (KeyError, TypeError) as cut:  # the best so far of a run that had hardly begun
            if not best.get("partial"):
                raise
            errors.setdefault(node, f"its run was cut short before it had a number ({type(cut).__name__} {cut})")
    if plan.asked.nproc:
        told = node_table.of_one_job(payload["nodes"], answers, errors, payload["silent"], plan.asked.nproc)
    else:
        told = node_table.joined(payload["nodes"], answers, errors, payload["silent"], plan.asked.values, payload["cut"])
    return told | {"slurm": payload["slurm"]} | ({"partial": True} if payload.get("partial") else {})
