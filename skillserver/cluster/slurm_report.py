"""Jobs, nodes and partitions, read live or from pasted text, -> one answer: free GPUs, bad nodes, why a job waits or ended.

Says what was not shown (`skipped`) and which command would show it. Asks nothing itself.

>>> report("JOBID PARTITION NAME USER ST TIME NODES NODELIST(REASON)\\n5 main my run ann PD 0:00 4 (Priority)").jobs[0].why.kind
'queue'
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, Field

from skillserver import topics
from skillserver.cluster import slurm_nodes, slurm_postmortem, slurm_reasons, slurm_tables
from skillserver.cluster import slurm_text as text
from skillserver.cluster.slurm_nodes import GpuBlock, PartitionView
from skillserver.cluster.slurm_postmortem import PostMortem
from skillserver.cluster.slurm_reasons import Why
from skillserver.cluster.slurm_records import Job
from skillserver.cluster.slurm_tables import Seen
from skillserver.errors import BadRequest
from skillserver.findings import Finding, Verdict, verdict, worst_first
from skillserver.units import show_seconds

SHOWN_JOBS, SHOWN_ENDS, SHOWN_GROUPS = 20, 5, 15
WAITING = ("PENDING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT")
SEVERE = {"never": "warning", "held": "warning", "nodes": "warning"}


class JobView(BaseModel):
    """One job as it stands; `why` only while it waits."""

    job_id: str
    name: str
    user: str
    partition: str
    state: str
    elapsed_s: int | None
    time_limit_s: int | None
    nodes: int | None
    gpus: int | None
    node_list: str
    restarts: int | None = None
    why: Why | None = None


class Efficiency(BaseModel):
    """How much of what a job held it used. Shares are 0..1; GPU use is not in SLURM's text."""

    job_id: str
    gpu_hours: float | None = None
    cpu_share: float | None = Field(default=None, description="CPU time / (elapsed x CPUs); null where SLURM recorded none")
    time_share: float | None = Field(default=None, description="elapsed / limit")
    largest_task_rss_gib: float | None = None
    requested_gib: float | None = None
    requested_per: str = ""


class SlurmReport(BaseModel):
    """What SLURM says, in words."""

    verdict: Verdict
    summary: str
    source: Literal["live", "text"] = "text"
    partitions: list[PartitionView]
    gpus: list[GpuBlock]
    jobs: list[JobView]
    post_mortem: list[PostMortem]
    efficiency: list[Efficiency]
    findings: list[Finding]
    skipped: list[str]
    next: str
    sections: list[str]


def report(said: str, *, job_id: str = "", user: str = "", partition: str = "", live: bool = False, refused: list[str] | None = None) -> SlurmReport:
    """The answer to a text of one or several commands. Raises BadRequest when it holds nothing of SLURM's, or not that job."""
    if said.lstrip()[:1] in ("{", "["):
        raise BadRequest("slurm_json", "this is JSON, whose layout differs between SLURM's versions", next="paste the plain text of the same command")
    seen = slurm_tables.read(said)
    if not (seen.jobs or seen.nodes or seen.partitions or seen.events) and not live:
        raise BadRequest("not_slurm", f"no table of SLURM's was found in {len(said.splitlines())} lines",
                         next="paste squeue, sinfo, sacct or scontrol show job|node output with its header line")  # fmt: skip
    jobs = _chosen(seen, job_id, user, partition)
    nodes = [node for node in seen.nodes.values() if not partition or partition in node.partitions or not node.partitions]
    views = [view for view in slurm_nodes.partitions(seen.partitions.values(), nodes) if not partition or view.name == partition]
    events = [line for line in seen.events if len(jobs) == 1 or slurm_postmortem.named_jobs(line)]
    ends = [end for job in jobs if (end := slurm_postmortem.post_mortem(job, events))]
    shown = [_job(job) for job in jobs if not job_id or len(jobs) == 1 or job.state not in text.ENDED]
    found = worst_first([*_ends(ends), *_waits(jobs, seen), *slurm_nodes.findings(nodes, views)])
    gpus = [block for block in slurm_nodes.free_gpus(nodes) if not partition or block.partition in ("", partition)]
    return SlurmReport(
        verdict=verdict(found, judged=bool(jobs or nodes or views)), summary=_summary(jobs, ends, gpus, found), source="live" if live else "text",
        partitions=views[:SHOWN_GROUPS], gpus=gpus[:SHOWN_GROUPS], jobs=shown[:SHOWN_JOBS], post_mortem=_worst_ends(ends),
        efficiency=[_efficiency(job) for job in jobs if _ran(job)][:SHOWN_ENDS],
        findings=found[:SHOWN_GROUPS],
        skipped=_skipped(seen, len(shown), len(ends), nodes, refused or []) + _cut(partitions=views, gpus=gpus, findings=found),
        next=_next(jobs, ends),
        sections=topics.sections("slurm_nodes" if not jobs else "slurm_pending" if not ends else "slurm_ended"),
    )  # fmt: skip


def _chosen(seen: Seen, job_id: str, user: str, partition: str) -> list[Job]:
    """The jobs asked for. A job that only events name is known by its id alone."""
    jobs = [job for job in seen.jobs.values() if not job_id or job.id == job_id or job.id.split("_")[0] == job_id]
    jobs = [job for job in jobs if user in ("", "all") or job.user in ("", user)]
    jobs = [job for job in jobs if not partition or job.partition in ("", partition) or partition in job.partition.split(",")]
    if job_id and not jobs:
        if seen.jobs or not seen.events:
            raise BadRequest(
                "no_such_job", f"job {job_id} is not in this text", valid=list(seen.jobs)[:20], next="pass one of these, or leave job_id out"
            )
        return [Job(job_id)]
    if jobs or seen.jobs:
        return jobs
    named = dict.fromkeys(name for line in seen.events for name in slurm_postmortem.named_jobs(line))
    return [Job(name) for name in named] or ([Job("?")] if seen.events else [])


def _job(job: Job) -> JobView:
    waits = job.state in WAITING
    return JobView(job_id=job.id, name=job.name, user=job.user, partition=job.partition, state=job.state, elapsed_s=job.elapsed_s,
                   time_limit_s=job.limit_s, nodes=job.nodes, gpus=sum(job.gpus.values()) or None, node_list=job.node_list,
                   restarts=job.restarts or None,
                   why=slurm_reasons.explain(job.why, job.id) if waits else None)  # fmt: skip


def _worst_ends(ends: list[PostMortem]) -> list[PostMortem]:
    """What went wrong first; completed jobs only fill up."""
    return sorted(ends, key=lambda end: end.cause == "completed")[:SHOWN_ENDS]


def _ends(ends: list[PostMortem]) -> list[Finding]:
    by_cause: dict[str, list[PostMortem]] = {}
    for end in ends:
        by_cause.setdefault(end.cause, []).append(end)
    return [
        Finding(code=f"job_{cause}", severity="info" if cause in ("cancelled", "requeued") else "warning",
                subject=f"job {', '.join(end.job_id for end in same[:8])}", evidence=same[0].evidence[:3],
                reason=same[0].words + ("" if same[0].certain else " (by its exit code)"), action=same[0].action, sections=same[0].sections,
                count=len(same))
        for cause, same in by_cause.items() if cause != "completed"
    ]  # fmt: skip


def _waits(jobs: list[Job], seen: Seen) -> list[Finding]:
    found = []
    for job in jobs:
        if job.state in WAITING:
            why = slurm_reasons.explain(job.why, job.id)
            if why.kind in SEVERE:
                found.append(Finding(code=f"pending_{why.kind}", severity="warning", subject=f"job {job.id}", evidence=[f"{job.state} ({why.code})"],
                                     reason=why.words, action=why.advice, sections=topics.sections("slurm_pending")))  # fmt: skip
            found += _impossible(job, seen)
    return found


def _impossible(job: Job, seen: Seen) -> list[Finding]:
    """A job that asks for more nodes than are in service waits for repairs, whatever word SLURM shows."""
    members = [node for node in seen.nodes.values() if job.partition in node.partitions]
    whole = (seen.partitions[job.partition].nodes if job.partition in seen.partitions else None) or 0
    if not (members and job.nodes) or len(members) < whole:  # not all of its nodes were shown
        return []
    healthy = [node for node in members if not node.broken]
    if job.nodes <= len(healthy):
        return []
    never = job.nodes > len(members)
    return [Finding(code="pending_too_many_nodes" if never else "pending_for_repairs", severity="warning", subject=f"job {job.id}",
                    evidence=[f"asks for {job.nodes} nodes; {job.partition} has {len(members)}, {len(healthy)} in service"],
                    reason="the partition has fewer nodes" if never else "it cannot start before nodes out of service come back",
                    action="fix_setup: ask for fewer nodes" + ("" if never else ", or have them repaired"),
                    sections=topics.sections("slurm_pending"))]  # fmt: skip


def _ran(job: Job) -> bool:
    return bool(job.elapsed_s) and job.state not in WAITING and (bool(job.gpus) or job.total_cpu_s is not None)


def _efficiency(job: Job) -> Efficiency:
    held = (job.elapsed_s or 0) * (job.cpus or 0)
    peak = max((step.max_rss_gib for step in job.steps if step.max_rss_gib is not None), default=None)
    gpus = sum(job.gpus.values())
    return Efficiency(job_id=job.id, gpu_hours=gpus * (job.elapsed_s or 0) / 3600 if gpus else None,
                      cpu_share=job.total_cpu_s / held if held and job.total_cpu_s and job.state in text.ENDED else None,
                      time_share=(job.elapsed_s or 0) / job.limit_s if job.limit_s else None, largest_task_rss_gib=peak,
                      requested_gib=job.requested_gib, requested_per={"n": "node", "c": "CPU"}.get(job.requested_per, "job"))  # fmt: skip


def _summary(jobs: list[Job], ends: list[PostMortem], gpus: list[GpuBlock], found: list[Finding]) -> str:
    """One to three sentences: the ends, what waits, what is free."""
    parts = []
    if bad := [end for end in ends if end.cause != "completed"]:
        parts.append(f"Job {bad[0].job_id}: {bad[0].words}" + (f"; {len(bad) - 1} more ended badly" if len(bad) > 1 else "") + ".")
    elif ends:
        parts.append(f"{len(ends)} job{'s' * (len(ends) > 1)} completed.")
    for job in [job for job in jobs if job.state in WAITING][:2]:
        parts.append(f"Job {job.id} waits: {slurm_reasons.explain(job.why, job.id).words}.")
    running = [job for job in jobs if job.state == "RUNNING"]
    if running:
        longest = max((job.elapsed_s or 0 for job in running), default=0)
        parts.append(f"{len(running)} running, the longest for {show_seconds(longest) if longest else 'less than a second'}.")
    for block in [block for block in gpus if block.total > block.unknown][:2]:
        where = f" in {block.partition}" if block.partition else ""
        parts.append(
            f"{block.free} of {block.total} {block.type} free{where}, largest block of whole nodes {block.whole_free_nodes} x {block.gpus_per_node}."
        )
    out = sum(finding.count for finding in found if finding.code == "nodes_out_of_service")
    parts += [f"{out} node{'s' * (out > 1)} out of service."] if out else []
    return " ".join(parts) or "Nothing waits, runs or is out of service in what was shown."


def _skipped(seen: Seen, jobs: int, ends: int, nodes: list[slurm_nodes.Node], refused: list[str]) -> list[str]:
    lines = list(refused)
    if nodes and not any(node.gpus is not None for node in nodes):
        lines.append("free GPUs: this text shows no GRES; scontrol show node does")
    elif unknown := [node for node in nodes if node.gpus and node.gpus_used is None and not node.broken]:
        lines.append(f"free GPUs on {slurm_nodes.names(unknown)}: their use is not shown; scontrol -d show node does (GresUsed)")
    if seen.unread:
        lines.append(f"{len(seen.unread)} lines that fit no table, such as {seen.unread[0]!r}")
    lines += [f"{jobs - SHOWN_JOBS} more jobs; name a job_id or partition"] if jobs > SHOWN_JOBS else []
    lines += [f"{ends - SHOWN_ENDS} more ended jobs in detail; name a job_id"] if ends > SHOWN_ENDS else []
    if any(job.state in text.ENDED for job in seen.jobs.values()):
        lines.append("GPU utilisation: SLURM's text does not have it")
    return lines


def _cut(**lists: Sequence[object]) -> list[str]:
    """What the answer leaves out of long lists."""
    return [f"{len(listed) - SHOWN_GROUPS} more {name}; name a partition" for name, listed in lists.items() if len(listed) > SHOWN_GROUPS]


def _next(jobs: list[Job], ends: list[PostMortem]) -> str:
    bad = [end for end in _worst_ends(ends) if end.cause != "completed"]
    if bad and bad[0].cause in ("exit_code", "signal", "terminated", "killed", "failed"):
        return f"explain_error on the log of job {bad[0].job_id}"
    if bad and bad[0].cause == "node_failure":
        return "sinfo -R, and check_gpu_health on that node before it is used again"
    waits = [job for job in jobs if job.state in WAITING]
    return slurm_reasons.explain(waits[0].why, waits[0].id).check if waits else "inspect_slurm(job_id=...) for one job"
