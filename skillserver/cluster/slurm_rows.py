"""One line of a table of squeue, sinfo or sacct -> its cells, and cells -> a record.

A header is known by its words. Cells are cut at `|`, at the columns of sacct's ruler, or at spaces; then a state word
tells how many spaces belong to a job's name. Does not keep anything between lines.

>>> header("JOBID PARTITION NAME USER ST TIME NODES NODELIST(REASON)").cells("7 main a b c ann R 0:17 1 n3")["NAME"]
'a b c'
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from skillserver.cluster import slurm_records as records
from skillserver.cluster import slurm_text as text
from skillserver.cluster.slurm_records import Job, Node, Step

ALIASES = {
    "ST": "STATE", "TIME_LIMI": "TIME_LIMIT", "TIMELIMIT": "TIMELIMIT", "JOBNAME": "NAME", "ELAPSED": "TIME", "NNODES": "NODES",
    "ALLOCNODES": "NODES",
    "NODELIST(REASON)": "WHERE", "ALLOCCPUS": "CPUS", "NCPUS": "CPUS", "REASON": "REASON", "TRES_PER_NODE": "TRES_PER_N", "STATECOMPACT": "STATE",
    "NODEHOST": "HOSTNAMES", "NODE": "NODELIST", "GRES_USED": "GRES_USED", "GRESUSED": "GRES_USED", "USERNAME": "USER",
}  # fmt: skip
MOMENT = re.compile(r"\d{4}-\d\d-\d\dT[\d:]+|Unknown|N/A")
JOB_ID = re.compile(r"^(\d+(?:_\d+|_\[[^\]]*\])?(?:\+\d+)?)(?:\.(\w+(?:\+\d+)?))?$")
SINFO_WORDS = {"AVAIL", "TIMELIMIT", "NODES", "NODELIST", "HOSTNAMES", "GRES", "GRES_USED", "NODES(A/I/O/T)", "CPUS", "CPUS(A/I/O/T)", "REASON"}


@dataclass
class Header:
    """Column names of one table. `cuts` are set by a ruler under it."""

    kind: str
    names: list[str]
    piped: bool
    cuts: list[tuple[int, int]] = field(default_factory=list)

    def ruled(self, line: str) -> None:
        """Take the columns of a line of dashes."""
        found = [match.span() for match in re.finditer(r"-+", line)]
        self.cuts = found if len(found) == len(self.names) else []

    def cells(self, line: str) -> dict[str, str] | None:
        """{column: text} of a line; None when it is no row of this table."""
        if self.kind == "sinfo -R":
            return _reason_row(line.split())
        parts = self._piped(line) if self.piped else (self._cut(line) or self._squeezed(line))
        return dict(zip(self.names, parts, strict=True)) if parts else None

    def _piped(self, line: str) -> list[str] | None:
        parts = [part.strip() for part in line.split("|")]
        surplus = len(parts) - len(self.names)
        if surplus == 1 and not parts[-1]:  # sacct -p ends every line with a bar
            return parts[:-1]
        if surplus > 0 and "NAME" in self.names:  # a bar within the name
            at = self.names.index("NAME")
            return [*parts[:at], "|".join(parts[at : at + surplus + 1]), *parts[at + surplus + 1 :]]
        return parts if surplus == 0 else None

    def _cut(self, line: str) -> list[str] | None:
        """By the ruler; only where the blanks between columns really are blank."""
        if not self.cuts or any(line[end : end + 1].strip() for _, end in self.cuts):
            return None
        parts = [line[begin:end].strip() for begin, end in self.cuts]
        return parts if self._plausible(parts) else None

    def _plausible(self, parts: list[str]) -> bool:
        given = dict(zip(self.names, parts, strict=True))
        return bool(given.get("JOBID")) and ("STATE" not in given or text.state(given["STATE"]) is not None)

    def _squeezed(self, line: str) -> list[str] | None:
        words = line.split()
        count = len(self.names)
        if "STATE" not in self.names or self.kind == "sinfo":
            return [*words[: count - 1], " ".join(words[count - 1 :])] if len(words) >= count else None
        at = self.names.index("STATE")
        timed = self.names[at + 1 : at + 2] == ["TIME"]  # a name may hold a word that is a state, but no time follows it
        found = next((place for place in range(1, len(words)) if (place >= at or len(words) < count) and _is_state(words, place, timed)), None)
        if found is None:
            return None
        head = self._head(words[:found], self.names[:at])
        rest = words[found + 1 :]
        if rest[:1] == ["by"] and "STATE" in self.names:  # CANCELLED by 0
            words[found], rest = f"{words[found]} by {rest[1] if len(rest) > 1 else ''}", rest[2:]
        tail = count - at - 1
        rest = [*rest[: tail - 1], " ".join(rest[tail - 1 :])] if tail else []
        return [*head, words[found], *rest, *[""] * (tail - len(rest))] if head is not None else None

    def _head(self, words: list[str], names: list[str]) -> list[str] | None:
        """Columns before the state: a surplus of words belongs to the name; too few means empty cells, of a step of sacct."""
        surplus = len(words) - len(names)
        if surplus < 0:
            return [*words, *[""] * -surplus] if words and "JOBID" in names[:1] else None
        at = names.index("NAME") if "NAME" in names else len(names) - 1
        return [*words[:at], " ".join(words[at : at + surplus + 1]), *words[at + surplus + 1 :]]


def _reason_row(words: list[str]) -> dict[str, str] | None:
    """Of `sinfo -R`: a reason with spaces, a user, a moment, perhaps a state, nodes."""
    at = next((place for place in range(len(words) - 2, 0, -1) if MOMENT.fullmatch(words[place])), None)
    if at is None or len(words) - at not in (2, 3):
        return None
    state = words[at + 1] if len(words) - at == 3 else ""
    return {"REASON": " ".join(words[: at - 1]), "USER": words[at - 1], "TIMESTAMP": words[at], "STATE": state, "NODELIST": words[-1]}


def _is_state(words: list[str], place: int, timed: bool) -> bool:
    return text.state(words[place]) is not None and (not timed or bool(re.match(r"[\d-]*\d:\d|INVALID", " ".join(words[place + 1 : place + 2]))))


def header(line: str) -> Header | None:
    """The table that this line heads; None when it is no header."""
    piped = "|" in line
    words = [word.strip() for word in line.split("|")] if piped else line.split()
    words = words[:-1] if piped and not words[-1] else words
    upper = [word.upper() for word in words]
    if "JOBID" in upper or "JOBIDRAW" in upper:
        camel = any(word in ("JobID", "JobIDRaw", "ExitCode", "JobName") for word in words)
        names = [ALIASES.get(word, word) for word in ("JOBID" if word == "JOBIDRAW" and "JOBID" not in upper else word for word in upper)]
        return Header("sacct" if camel else "squeue", ["TIME_LIMIT" if name == "TIMELIMIT" else name for name in names], piped)
    if upper[:1] == ["REASON"] and "TIMESTAMP" in upper and upper[-1] == "NODELIST":
        return Header("sinfo -R", upper, False)
    names = [ALIASES.get(word, word) for word in upper]
    known = set(names) & SINFO_WORDS
    if len(known) >= 2 and ("STATE" in names or "NODES(A/I/O/T)" in names) and len(set(names)) == len(names):
        return Header("sinfo", names, piped)
    return None


def job(cells: dict[str, str]) -> tuple[Job, Step | None] | None:
    """(job, None) of a job's row, (its job, step) of a step's; None when the first cell is no job id."""
    found = JOB_ID.match(cells.get("JOBID", ""))
    if not found:
        return None
    state = text.state(cells.get("STATE", "")) or ""
    result = Job(found[1], cells.get("NAME", ""), cells.get("USER", ""), cells.get("PARTITION", ""), state, cells.get("STATE", ""))
    memory = text.gib(cells.get("MAXRSS", ""), bare="B")[0]
    if found[2]:
        return result, Step(found[2], state, cells.get("EXITCODE", ""), memory, _listed(cells))
    result.exit_code = cells.get("EXITCODE", "")
    where = cells.get("WHERE", "")
    reason = cells.get("REASON", "") or (where[1:].removesuffix(")") if where.startswith("(") else "")
    result.why = reason
    result.elapsed_s, result.limit_s = text.seconds(cells.get("TIME", "")), text.seconds(cells.get("TIME_LIMIT", ""))
    result.total_cpu_s = text.seconds(cells.get("TOTALCPU", ""))
    result.nodes, result.node_list, result.cpus = text.number(cells.get("NODES", "")), _listed(cells), text.number(cells.get("CPUS", ""))
    result.requested_gib, result.requested_per = text.gib(cells.get("REQMEM", ""))
    result.gpus = _gpus(cells, result.nodes)
    if memory is not None:
        result.steps.append(Step("job", state, "", memory))
    return result, None


def _listed(cells: dict[str, str]) -> str:
    where = cells.get("NODELIST", "") or cells.get("WHERE", "")
    return "" if where.startswith("(") or where in (*text.EMPTY, "None assigned") else where


def _gpus(cells: dict[str, str], nodes: int | None) -> dict[str, int]:
    tres = next((cells[name] for name in ("ALLOCTRES", "REQTRES", "TRES_ALLOC", "TRES") if "gpu" in cells.get(name, "")), "")
    if tres:
        return text.gpus(tres)
    a_node = text.gpus(cells.get("TRES_PER_N", "") or cells.get("GRES", ""))
    return {kind: count * nodes for kind, count in a_node.items()} if nodes else {}


def node(name: str, cells: dict[str, str], partitions: list[str]) -> Node:
    """One node of a sinfo line; GPUs only where GRES was shown, their use only where GRES_USED was."""
    result = Node(name, records.flags(cells.get("STATE", "")), partitions=partitions)
    result.reason = "" if cells.get("REASON", "") in text.EMPTY else cells["REASON"]
    if "CPUS(A/I/O/T)" in cells and len(cpus := cells["CPUS(A/I/O/T)"].split("/")) == 4:
        result.cpus_used, result.cpus = text.number(cpus[0]), text.number(cpus[3])
    if "GRES" in cells:
        result.gpus = text.gpus(cells["GRES"])
    if "GRES_USED" in cells:
        result.gpus_used = text.gpus(cells["GRES_USED"])
    if result.gpus is not None and result.gpus_used is None:
        result.gpus_used = {} if result.flags == {"IDLE"} else dict(result.gpus) if result.flags == {"ALLOCATED"} else None
    return result
