"""What another program's benchmark printed, in one shape: rows with named units, and what the text says of itself.

Knows units and the noise that launchers put before a line. Does not know what a good number is (measure.judge,
measure.shares) nor which part was measured: `device` is the name as printed. GB/s = 10^9 bytes a second everywhere.

>>> to_gb_s(400, "Gb/s"), to_gb_s(1, "MiB/s")
(50.0, 0.001048576)
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from typing import Any

from pydantic import BaseModel, Field

from skillserver.findings import Finding

ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
RANKED = re.compile(r"^\s*(?:\[\d+(?:,\d+)+\]\s*<std\w+>\s*:|\[(?:default)?\d+\]:)\s?")  # mpirun --tag-output, torchrun --tee
STAMPED = re.compile(r"^\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:?\d\d)\s+(?:std(?:out|err) [FP] )?")
TASK = re.compile(r"^\s*\d{1,5}: ")  # srun --label
LABELLED = 0.8  # share of lines that carry a task number before it is one
PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "ki": 2.0**10, "mi": 2.0**20, "gi": 2.0**30, "ti": 2.0**40}
RATE = re.compile(
    r"^([kKmMgGtT]i?)?(bits?|bytes?|[bB])(?:ps|/s(?:ec(?:ond)?)?)$", re.I
)  # the case of a lone b decides between bits and bytes, see to_gb_s


class Mistake(BaseModel):
    """A usual misreading, found or possible; the code is stable."""

    code: str
    what: str = Field(description="what was misread, with the numbers")


@dataclass
class Row:
    """One measured line. Only what was printed, or follows from it by definition, is set."""

    what: str
    subject: str = ""
    place: str = ""
    bytes: int | None = None
    time_us: float | None = None
    algbw_gb_s: float | None = None
    busbw_gb_s: float | None = None
    gb_s: float | None = None
    tflops: float | None = None
    iops: float | None = None
    latency_us: float | None = None
    wrong: int | None = None
    facts: dict[str, Any] = field(default_factory=dict)

    def shown(self) -> dict[str, Any]:
        """The row for a reader: empty fields left out, floats to four digits."""
        flat = asdict(self)
        flat |= flat.pop("facts")
        return {name: _digits(value) for name, value in flat.items() if value not in (None, "", [])}


@dataclass
class Output:
    """Everything one benchmark said. `slips` are mistakes visible in the text itself, `alarms` what it complained of."""

    kind: str
    rows: list[Row]
    device: str = ""
    n_ranks: int | None = None
    n_nodes: int | None = None
    collective: str = ""
    dtype: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    slips: list[Mistake] = field(default_factory=list)
    alarms: list[Finding] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


def _digits(value: object) -> object:
    return float(f"{value:.4g}") if isinstance(value, float) else value


def lines(text: str) -> list[str]:
    """The lines as the program wrote them: no colours, no rank labels, no quote marks; a carriage return ends a line."""
    plain = [RANKED.sub("", STAMPED.sub("", line)) for line in re.split(r"\r\n|\n|\r", ANSI.sub("", text))]
    plain = [line.removeprefix("> ") for line in plain if not line.lstrip().startswith("```")]
    said = [line for line in plain if line.strip()]
    if said and sum(bool(TASK.match(line)) for line in said) >= LABELLED * len(said):
        plain = [TASK.sub("", line) for line in plain]
    return plain


def number(token: str) -> float | None:
    """The number a column holds; None for N/A, dashes and words."""
    try:
        value = float(token.replace(",", ""))
    except ValueError:
        return None
    return value if value == value and abs(value) != float("inf") else None


def to_gb_s(value: float, unit: str) -> float | None:
    """GB/s (10^9 bytes a second) of a rate in any usual unit; None for a unit that is no rate.

    "Gb/s", "Gbps" and "Gbits/sec" are bits, "GB/s" and "GBps" bytes; Ki, Mi, Gi are powers of 1024.
    """
    found = RATE.match(unit.strip())
    if not found:
        return None
    bits = found[2].lower().startswith("bit") or found[2] == "b"
    return value * PREFIXES[(found[1] or "").lower()] / (8 if bits else 1) / 1e9


def factor(collective: str, n: int) -> float:
    """busbw / algbw of a collective over n ranks, as nccl-tests defines it (doc/PERFORMANCE.md there)."""
    if collective == "all_reduce":
        return 2 * (n - 1) / n
    return (n - 1) / n if collective in ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter") else 1.0


def ranks_of(collective: str, ratio: float) -> int | None:
    """The number of ranks that a busbw/algbw ratio tells; None when it tells nothing."""
    rest = 2 - ratio if collective == "all_reduce" else 1 - ratio
    whole = 2.0 if collective == "all_reduce" else 1.0
    if rest <= 0.001 or (factor(collective, 2) == 1.0 and collective != "all_reduce"):
        return None
    n = round(whole / rest)
    return n if n >= 2 and abs(factor(collective, n) - ratio) < 0.004 else None


COLLECTIVES = {
    "allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter", "alltoall": "all_to_all",
    "alltoallv": "all_to_all", "broadcast": "broadcast", "bcast": "broadcast", "reduce": "reduce", "sendrecv": "send_recv",
    "gather": "gather", "scatter": "scatter", "hypercube": "hypercube", "allgatherv": "all_gather", "pt2pt": "send_recv",
    "alltoallsingle": "all_to_all", "allgatherintotensor": "all_gather", "reducescattertensor": "reduce_scatter",
    "allreducecoalesced": "all_reduce", "inferenceallreduce": "all_reduce", "gatherbase": "all_gather",
}  # fmt: skip


def collective(name: str) -> str:
    """Canonical name of "AllReduce", "all_reduce_perf", "all-to-all", "osu_allreduce"; "" when it is none."""
    key = re.sub(r"[^a-z0-9]", "", name.lower()).removesuffix("perf").removeprefix("osu").removesuffix("mpi")
    return COLLECTIVES.get(key, "")
