"""Output of squeue, sinfo, sacct and scontrol, any mixture of it in one text -> jobs, nodes, partitions.

Reads tables by their header, aligned, squeezed by a chat window, or parted by `|`, and scontrol's blocks in both forms.
A job name with spaces is found by the state behind it, an empty cell by the ruler that sacct draws. A row that fits no
header is kept in `unread`. JSON is not read: its layout differs between versions. Does not judge.

>>> read("JOBID PARTITION NAME USER ST TIME NODES NODELIST(REASON)\\n5 main my run ann PD 0:00 4 (Priority)").jobs[0].why
'Priority'
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from skillserver.cluster import slurm_records as records
from skillserver.cluster import slurm_rows as rows
from skillserver.cluster import slurm_text as text
from skillserver.cluster.slurm_records import Job, Node, Partition

EVENT = re.compile(r"slurmstepd|slurmctld|slurmd\[|srun: (?:error|Job step|Force)|oom[-_ ]?kill|\*\*\* (?:JOB|STEP) |DUE TO |Out of memory", re.I)
PROMPT = re.compile(r"^\S*[$#>%]\s+(?:squeue|sinfo|sacct|scontrol|srun|sbatch)\b|^\s*$|^\w{3} \w{3} +\d+ [\d:]+ \d{4}$")
MOST_EVENTS = 200
MOST_NODES = 100_000
LONGEST = 4000  # characters of a row; longer ones are no table


@dataclass
class Seen:
    """All that a text said. `formats` names what was recognised, `events` are lines of slurmstepd and the kernel."""

    jobs: dict[str, Job] = field(default_factory=dict)
    nodes: dict[str, Node] = field(default_factory=dict)
    partitions: dict[str, Partition] = field(default_factory=dict)
    events: list[str] = field(default_factory=list)
    formats: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)


def read(pasted: str) -> Seen:
    """Everything the text says. Nothing is raised: what cannot be read is in `unread`."""
    seen = Seen()
    header: rows.Header | None = None
    block: list[str] = []
    for line in pasted.replace("\r", "").split("\n"):
        starts = re.match(r"\s*(JobId|NodeName|PartitionName)=", line)
        if starts or (block and not line.strip()):
            _block(seen, block)
            block = [line] if starts else []
            header = None
        elif block and re.match(r"\s+\S", line):
            block.append(line)
        else:
            _block(seen, block)
            block = []
            header = _line(seen, header, line)
    _block(seen, block)
    return seen


def _line(seen: Seen, header: rows.Header | None, line: str) -> rows.Header | None:
    """Take one line that belongs to no block; returns the header in force after it."""
    if EVENT.search(line):
        seen.events += [line.strip()[:300]] if len(seen.events) < MOST_EVENTS else []
        return header
    if len(line) > LONGEST:
        seen.unread.append(line.strip()[:200])
        return header
    if PROMPT.search(line):
        return header
    if header and "---" in line and set(line) <= {"-", " "}:
        header.ruled(line)
        return header
    if found := rows.header(line):
        seen.formats += [found.kind] if found.kind not in seen.formats else []
        return found
    if header is None:
        seen.unread.append(line.strip()[:200])
        return None
    cells = header.cells(line)
    if cells is None or not _row(seen, header.kind, cells):
        seen.unread.append(line.strip()[:200])
    return header


def _block(seen: Seen, block: list[str]) -> None:
    if not block:
        return
    said = text.pairs("\n".join(block))
    kind = next((key for key in ("JobId", "NodeName", "PartitionName") if key in said and block[0].strip().startswith(f"{key}=")), "")
    name = {"JobId": "scontrol show job", "NodeName": "scontrol show node", "PartitionName": "scontrol show partition"}.get(kind)
    if not name:
        return
    seen.formats += [name] if name not in seen.formats else []
    if kind == "JobId":
        _join(seen, records.job_of(said))
    elif kind == "NodeName":
        _join_node(seen, records.node_of(said))
    else:
        found = records.partition_of(said)
        seen.partitions[found.name] = found


def _join(seen: Seen, job: Job) -> Job:
    """One job may be shown by several commands: what a later one adds is taken, what is known stays."""
    known = seen.jobs.setdefault(job.id, job)
    if known is not job:
        for name, value in vars(job).items():
            if value not in (None, "", [], {}) and getattr(known, name) in (None, "", [], {}):
                setattr(known, name, value)
        if job.state in text.ENDED and known.state not in text.ENDED:  # squeue first, sacct after the end
            known.state, known.state_text = job.state, job.state_text
    return known


def _join_node(seen: Seen, node: Node) -> None:
    if node.name not in seen.nodes and len(seen.nodes) >= MOST_NODES:
        return
    known = seen.nodes.setdefault(node.name, node)
    if known is not node:
        known.flags |= node.flags
        known.partitions += [name for name in node.partitions if name not in known.partitions]
        for name, value in vars(node).items():
            if name not in ("flags", "partitions") and value not in (None, "") and getattr(known, name) in (None, ""):
                setattr(known, name, value)


def _row(seen: Seen, kind: str, cells: dict[str, str]) -> bool:
    if kind in ("squeue", "sacct"):
        return _job_row(seen, cells)
    if kind == "sinfo -R":
        for name in text.expand(cells["NODELIST"]):
            node = Node(name, records.flags(cells.get("STATE", "")) or {"DRAIN_OR_DOWN"}, cells["REASON"], cells["USER"], cells["TIMESTAMP"])
            _join_node(seen, node)
        return True
    return _sinfo_row(seen, cells)


def _job_row(seen: Seen, cells: dict[str, str]) -> bool:
    found = rows.job(cells)
    if found is None:
        return False
    job, step = found
    if step is None:
        _join(seen, job)
        return True
    parent = seen.jobs.setdefault(job.id, Job(job.id))
    if step.name not in {known.name for known in parent.steps}:
        parent.steps.append(step)
    return True


def _sinfo_row(seen: Seen, cells: dict[str, str]) -> bool:
    """One line of sinfo: a partition's nodes in one state, or one node of `sinfo -N`."""
    name = cells.get("PARTITION", "")
    state, listed = cells.get("STATE", ""), cells.get("NODELIST", "") or cells.get("HOSTNAMES", "")
    if not (state or "NODES(A/I/O/T)" in cells) or not (name or listed):
        return False
    count = text.number(cells.get("NODES", "")) or text.count_nodes(listed)
    if name:
        part = seen.partitions.setdefault(name.rstrip("*"), Partition(name.rstrip("*"), name.endswith("*")))
        part.up = cells["AVAIL"] == "up" if "AVAIL" in cells else part.up
        part.limit_s = text.seconds(cells.get("TIMELIMIT", "")) or part.limit_s
        _counts(part, state, count, cells.get("NODES(A/I/O/T)", ""))
    names = [] if listed in text.EMPTY else text.expand(listed)
    if any("[" in node for node in names):  # cut or absurd: counted as one node it would be wrong
        return False
    for node in names:
        _join_node(seen, rows.node(node, cells, [name.rstrip("*")] if name else []))
    return True


def _counts(part: Partition, state: str, count: int, summary: str) -> None:
    numbers = summary.split("/")
    if len(numbers) == 4 and all(item.isdigit() for item in numbers):
        part.by_state, part.nodes = dict(zip(("allocated", "idle", "other"), map(int, numbers[:3]), strict=True)), int(numbers[3])
    elif state:
        part.by_state[state] = part.by_state.get(state, 0) + count
        part.nodes = (part.nodes or 0) + count
