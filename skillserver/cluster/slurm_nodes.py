"""Which GPUs are free, in which partition and in how large a block, and which nodes are out of service and why.

A GPU is free when its node takes jobs, nothing holds it, and the node still has a CPU and memory for whoever wants it.
`largest_block` counts whole free nodes only. What was not shown (GRES, use) is counted as unknown, never as free.
Topology and reservations are not known here.

>>> free_gpus([Node("n1", {"IDLE"}, partitions=["main"], gpus={"h100": 8}, gpus_used={})])[0].largest_block_gpus
8
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

from pydantic import BaseModel, Field

from skillserver import topics
from skillserver.cluster.slurm_records import Node, Partition
from skillserver.findings import Finding, Severity

SHOWN_NAMES = 12
MEANINGS = (  # what SLURM or a health check wrote, what that means, what to do
    (re.compile(r"kill task failed", re.I), "processes of a job did not die in time (often state D: storage or a hung GPU)",
     "observe: see that no process and no GPU memory is left, then scontrol update nodename=... state=resume, else reboot"),
    (re.compile(r"not responding|unresponsive|unexpectedly rebooted", re.I), "slurmd does not answer: the node is off, rebooted or cut off",
     "reboot: or restart slurmd, after looking at its log and the network"),
    (re.compile(r"gres/gpu count|gpu count", re.I), "slurmd sees fewer GPUs than configured: a GPU is lost", "drain_rma: check_gpu_health on it"),
    (re.compile(r"low (?:real)?memory|low tmpdisk", re.I), "the node registered with less memory or disk than configured",
     "fix_setup: compare slurmd -C with the configuration; a memory module may have failed"),
    (re.compile(r"\becc\b|\bxid\b|nvlink|fell off|fallen off|row remap", re.I), "somebody found a GPU fault",
     "drain_rma: check_gpu_health on it decides between reset and replacement"),
    (re.compile(r"prolog|epilog|health ?check|nhc", re.I), "a prolog, epilog or health check failed", "observe: read its log on the node"),
)  # fmt: skip


class GpuBlock(BaseModel):
    """GPUs of one type in one partition. `free` can be had now; `stranded` have no CPU or memory left beside them, or are kept for another job."""

    partition: str
    type: str
    total: int
    in_use: int
    free: int
    stranded: int
    out_of_service: int = Field(description="on nodes that are drained, down, reserved or powered off")
    unknown: int = Field(description="on nodes whose use was not shown")
    gpus_per_node: int
    whole_free_nodes: int
    largest_block_gpus: int = Field(description="the largest job of whole nodes that fits now")
    largest_on_one_node: int


class PartitionView(BaseModel):
    """A partition in numbers."""

    name: str
    default: bool
    up: bool | None
    time_limit_s: int | None
    nodes: int | None
    nodes_taking_jobs: int | None
    nodes_out_of_service: int | None


def free_gpus(nodes: Iterable[Node]) -> list[GpuBlock]:
    """One record for each partition and GPU type, the most free first."""
    groups: dict[tuple[str, str], list[Node]] = defaultdict(list)
    for node in nodes:
        for kind in node.gpus or {}:
            for partition in node.partitions or [""]:
                groups[partition, kind].append(node)
    blocks = [_block(partition, kind, members) for (partition, kind), members in groups.items()]
    return sorted(blocks, key=lambda block: (-block.free, block.partition, block.type))


def _block(partition: str, kind: str, nodes: list[Node]) -> GpuBlock:
    sums: dict[str, int] = defaultdict(int)
    whole: dict[int, int] = defaultdict(int)
    one = 0
    for node in nodes:
        has = (node.gpus or {})[kind]
        used = used_of(node, kind)
        sums["total"] += has
        if used is None:
            sums["unknown" if not node.broken else "out_of_service"] += has
            continue
        sums["in_use"] += used
        rest = max(has - used, 0)
        word = (
            "free"
            if node.takes_jobs and _has_room(node)
            else "stranded"
            if node.flags & {"ALLOCATED", "MIXED"} and not node.broken
            else "out_of_service"
        )
        sums[word] += rest
        if word == "free":
            one = max(one, rest)
            whole[has] += not used and not node.cpus_used
    size = max(whole, key=lambda count: count * whole[count], default=0)
    return GpuBlock(partition=partition, type=kind, gpus_per_node=size or max((node.gpus or {})[kind] for node in nodes),
                    whole_free_nodes=whole[size],
                    largest_block_gpus=max(size * whole[size], one), largest_on_one_node=one,
                    **{name: sums[name] for name in ("total", "in_use", "free", "stranded", "out_of_service", "unknown")})  # fmt: skip


def used_of(node: Node, kind: str) -> int | None:
    """GPUs of that type that jobs hold; None where it was not shown, or only a sum over several types was."""
    if node.gpus_used is None:
        return None
    if kind in node.gpus_used or not node.gpus_used:
        return node.gpus_used.get(kind, 0)
    if len(node.gpus or {}) == 1:
        return sum(node.gpus_used.values())
    return 0 if "gpu" not in node.gpus_used else None


def _has_room(node: Node) -> bool:
    """CPUs and memory left beside the GPUs; what was not shown is taken as left."""
    cpu = node.cpus is None or node.cpus_used is None or node.cpus_used < node.cpus
    memory = not node.memory_mib or node.memory_used_mib is None or node.memory_used_mib < node.memory_mib
    return cpu and memory


def partitions(seen: Iterable[Partition], nodes: list[Node]) -> list[PartitionView]:
    """Each partition with what its nodes can do now."""
    known = {part.name: part for part in seen}
    for node in nodes:
        for name in node.partitions:
            known.setdefault(name, Partition(name))
    return [_view(part, [node for node in nodes if part.name in node.partitions]) for part in known.values()]


def _view(part: Partition, nodes: list[Node]) -> PartitionView:
    return PartitionView(name=part.name, default=part.default, up=part.up, time_limit_s=part.limit_s, nodes=part.nodes or len(nodes) or None,
                         nodes_taking_jobs=sum(node.takes_jobs for node in nodes) if nodes else part.by_state.get("idle"),
                         nodes_out_of_service=sum(node.broken for node in nodes) if nodes else part.by_state.get("other"))  # fmt: skip


def findings(nodes: list[Node], views: list[PartitionView]) -> list[Finding]:
    """One finding for each reason that takes nodes out of service, and one for a partition that has none left."""
    found = []
    for view in views:
        if view.up is False or (view.nodes and view.nodes_out_of_service == view.nodes):
            why = "is switched off" if view.up is False else "has no node in service"
            found.append(_finding("partition_unusable", "critical", f"partition {view.name}", [], f"partition {view.name} {why}; jobs wait there",
                                  "fix_setup: use another partition, or ask the administrators"))  # fmt: skip
    groups: dict[tuple[str, str], list[Node]] = defaultdict(list)
    for node in nodes:
        if node.broken:
            groups[node.reason, _words(node)].append(node)
    for (reason, words), members in sorted(groups.items(), key=lambda item: -len(item[1])):
        meaning, action = _meaning(reason or words)
        since = f", by {members[0].by} since {members[0].since}" if members[0].since else ""
        found.append(_finding("nodes_out_of_service", "warning", names(members), [f"{words}: {reason or 'no reason given'}{since}"], meaning, action,
                              len(members)))  # fmt: skip
    return found


def _finding(code: str, severity: Severity, subject: str, evidence: list[str], reason: str, action: str, count: int = 1) -> Finding:
    return Finding(code=code, severity=severity, subject=subject, evidence=evidence, reason=reason, action=action, count=count,
                   sections=topics.sections("slurm_nodes"))  # fmt: skip


def _words(node: Node) -> str:
    if node.flags == {"DRAIN_OR_DOWN"}:
        return "drained or down"
    return "+".join(sorted(node.flags - {"DRAIN_OR_DOWN"})).lower()


def _meaning(reason: str) -> tuple[str, str]:
    for pattern, meaning, action in MEANINGS:
        if pattern.search(reason.replace("_", " ")):
            return meaning, action
    return "an administrator or a script took it out of service; no job starts there", "observe: ask whoever set the reason"


def names(nodes: list[Node]) -> str:
    """Names, the first dozen of them."""
    listed = sorted(node.name for node in nodes)
    return ", ".join(listed[:SHOWN_NAMES]) + (f" and {len(listed) - SHOWN_NAMES} more" if len(listed) > SHOWN_NAMES else "")
