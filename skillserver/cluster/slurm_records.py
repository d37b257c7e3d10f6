"""What SLURM's text is about: jobs with their steps, nodes, partitions. Records only, and how a scontrol block becomes one.

A field that the text did not give is None or "", so that nobody mistakes "not said" for zero. Knows no table formats.

>>> node_of({"NodeName": "n1", "State": "IDLE+DRAIN", "CfgTRES": "cpu=16,gres/gpu=8"}).flags
{'IDLE', 'DRAIN'}
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from skillserver.cluster import slurm_text as text

BROKEN = {"DOWN", "DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING", "NOT_RESPONDING", "INVALID_REG", "INVAL", "ERROR", "UNKNOWN", "REBOOT",
          "DRAIN_OR_DOWN"}  # fmt: skip
AWAY = {"POWERED_DOWN", "POWERING_DOWN", "POWERING_UP", "POWER_DOWN", "MAINTENANCE", "MAINT", "RESERVED", "PLANNED", "FUTURE", "BLOCKED",
        "REBOOT_REQUESTED", "REBOOT_ISSUED", "COMPLETING", "ALLOCATED"}  # fmt: skip
SHORT = {"drain": "DRAIN", "drng": "DRAINING", "alloc": "ALLOCATED", "mix": "MIXED", "comp": "COMPLETING", "resv": "RESERVED", "maint": "MAINTENANCE",
         "plnd": "PLANNED", "unk": "UNKNOWN", "inval": "INVAL", "futr": "FUTURE", "failg": "FAILING", "pow_dn": "POWERING_DOWN",
         "pow_up": "POWERING_UP", "boot": "REBOOT", "npc": "PERFCTRS", "blocked": "BLOCKED"}  # fmt: skip
SUFFIX = {"*": "NOT_RESPONDING", "~": "POWERED_DOWN", "#": "POWERING_UP", "!": "POWERING_DOWN", "%": "POWERING_DOWN", "$": "MAINTENANCE",
          "@": "REBOOT_REQUESTED", "^": "REBOOT_ISSUED", "-": "PLANNED"}  # fmt: skip


@dataclass
class Step:
    """One row of sacct that is a step: "batch", "extern", "0"."""

    name: str
    state: str = ""
    exit_code: str = ""
    max_rss_gib: float | None = None
    nodes: str = ""


@dataclass
class Job:
    """One job or array task, from whatever was shown; `why` is SLURM's own word for waiting or for the end."""

    id: str
    name: str = ""
    user: str = ""
    partition: str = ""
    state: str = ""
    state_text: str = ""
    why: str = ""
    exit_code: str = ""
    elapsed_s: int | None = None
    limit_s: int | None = None
    total_cpu_s: int | None = None
    nodes: int | None = None
    node_list: str = ""
    cpus: int | None = None
    gpus: dict[str, int] = field(default_factory=dict)
    requested_gib: float | None = None
    requested_per: str = ""
    restarts: int | None = None
    dependency: str = ""
    steps: list[Step] = field(default_factory=list)


@dataclass
class Node:
    """One node; `flags` are state words in full, `named` more than one name only where sinfo grouped nodes."""

    name: str
    flags: set[str] = field(default_factory=set)
    reason: str = ""
    by: str = ""
    since: str = ""
    partitions: list[str] = field(default_factory=list)
    cpus: int | None = None
    cpus_used: int | None = None
    memory_mib: int | None = None
    memory_used_mib: int | None = None
    gpus: dict[str, int] | None = None
    gpus_used: dict[str, int] | None = None

    @property
    def broken(self) -> bool:
        """Drained, down, failed or silent: no job will start here until somebody acts."""
        return bool(self.flags & BROKEN)

    @property
    def takes_jobs(self) -> bool:
        """Idle or mixed and nothing else."""
        return bool(self.flags & {"IDLE", "MIXED"}) and not self.flags & (BROKEN | AWAY)


@dataclass
class Partition:
    """One partition; counts only where sinfo gave them."""

    name: str
    default: bool = False
    up: bool | None = None
    limit_s: int | None = None
    nodes: int | None = None
    node_list: str = ""
    by_state: dict[str, int] = field(default_factory=dict)


def flags(state: str) -> set[str]:
    """State words of "IDLE+DRAIN", "mix", "comp*", "idle~" in full."""
    found = set()
    for word in state.strip().split("+"):
        stem = word.rstrip("".join(SUFFIX))
        found |= {SUFFIX[mark] for mark in word[len(stem) :]}
        if stem:
            found.add(SHORT.get(stem.lower(), stem.upper()))
    return found


def node_of(said: Mapping[str, str]) -> Node:
    """Of one block of `scontrol show node`."""
    reason, by, since = split_reason(said.get("Reason", ""))
    configured = said.get("CfgTRES", "") if "gpu" in said.get("CfgTRES", "") else said.get("Gres", "")
    typed = text.gpus(said.get("Gres", ""))
    node = Node(said["NodeName"], flags(said.get("State", "")), reason, by, since, _names(said.get("Partitions", "")))
    node.cpus, node.cpus_used = text.number(said.get("CPUEfctv") or said.get("CPUTot", "")), text.number(said.get("CPUAlloc", ""))
    node.memory_mib, node.memory_used_mib = text.number(said.get("RealMemory", "")), text.number(said.get("AllocMem", ""))
    if "CfgTRES" in said or "Gres" in said:
        node.gpus = typed or text.gpus(configured)
    if "GresUsed" in said:  # with -d; by type, which AllocTRES often is not
        node.gpus_used = text.gpus(said["GresUsed"])
    elif "AllocTRES" in said and ("gpu" in said.get("CfgTRES", "") or not node.gpus):  # a site that does not track GPUs shows none as used
        node.gpus_used = text.gpus(said["AllocTRES"])
    return node


def split_reason(reason: str) -> tuple[str, str, str]:
    """(reason, who, when) of "ECC errors [root@2026-11-30T08:36:40]"."""
    found = re.fullmatch(r"(.*?)\s*\[([^\[\]@]*)@([^\[\]]*)\]", reason)
    words, by, since = found.groups() if found else (reason, "", "")
    return ("" if words in text.EMPTY else words), by, since


def job_of(said: Mapping[str, str]) -> Job:
    """Of one block of `scontrol show job`."""
    array, task = said.get("ArrayJobId", ""), said.get("ArrayTaskId", "")
    job = Job(f"{array}_{task}" if array and task and task not in text.EMPTY else said["JobId"], said.get("JobName", ""))
    job.user, job.partition = said.get("UserId", "").split("(")[0], said.get("Partition", "")
    job.state = job.state_text = text.state(said.get("JobState", "")) or said.get("JobState", "")
    reason = said.get("Reason", "")
    job.why = reason.replace("_", " ") if " " not in reason and ",_" in reason else reason
    job.exit_code, job.dependency = said.get("ExitCode", ""), _said(said.get("Dependency", ""))
    job.elapsed_s, job.limit_s = text.seconds(said.get("RunTime", "")), text.seconds(said.get("TimeLimit", ""))
    job.nodes, job.cpus = text.number(said.get("NumNodes", "")), text.number(said.get("NumCPUs", ""))
    job.node_list, job.restarts = _said(said.get("NodeList", "")), text.number(said.get("Restarts", ""))
    tres = next((said[key] for key in ("AllocTRES", "TRES", "ReqTRES") if "gpu" in said.get(key, "")), "")
    job.gpus = text.gpus(tres) or {kind: count * (job.nodes or 1) for kind, count in text.gpus(said.get("TresPerNode", "")).items()}
    return job


def partition_of(said: Mapping[str, str]) -> Partition:
    """Of one block of `scontrol show partition`."""
    up = said.get("State")
    found = Partition(said["PartitionName"], said.get("Default") == "YES", None if up is None else up == "UP", text.seconds(said.get("MaxTime", "")))
    found.nodes, found.node_list = text.number(said.get("TotalNodes", "")), _said(said.get("Nodes", ""))
    return found


def _names(listed: str) -> list[str]:
    return [name.strip().rstrip("*") for name in listed.split(",") if name.strip() not in text.EMPTY]


def _said(value: str) -> str:
    return "" if value in text.EMPTY else value
