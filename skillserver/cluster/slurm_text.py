"""The small notations of SLURM's text: durations, memory, node lists, GPU counts, `Key=value` blocks, states.

Knows the spellings that squeue, sinfo, sacct and scontrol have used since 17.x. A value it cannot read is None, never 0.
Does not know what a job or a node is.

>>> seconds("1-02:03:04"), gpus("cpu=2,gres/gpu:h100=8,gres/gpu=8"), count_nodes("n[1-3,7],login")
(93784, {'h100': 8}, 5)
"""

from __future__ import annotations

import re

DURATION = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+)(?::(\d+))?(?:\.\d+)?")
MEMORY = re.compile(r"([\d.]+)([KMGTP]?)(?:i?B)?([nc]?)", re.I)
KIB = {"": 2**10, "K": 1, "M": 2**10, "G": 2**20, "T": 2**30, "P": 2**40}  # scontrol's bare numbers are MiB
GRES = re.compile(r"(?:gres[/:])?gpu(?:[:=]([^:=,(\s]+))?[:=](\d+)(?![\d:=])", re.I)  # a type may be all digits: gpu:3090:4
KEY = re.compile(r"(?:(?<=\s)|^)([A-Z][\w/:&*-]*)=")
EMPTY = ("", "(null)", "N/A", "None", "none", "Unknown", "n/a", "UNLIMITED", "INVALID", "Partition_Limit", "NOT_SET")
MANY = 20_000  # a list of more nodes than this is not one
STATES = {
    "PD": "PENDING", "R": "RUNNING", "CG": "COMPLETING", "CF": "CONFIGURING", "CD": "COMPLETED", "F": "FAILED", "TO": "TIMEOUT", "CA": "CANCELLED",
    "NF": "NODE_FAIL", "OOM": "OUT_OF_MEMORY", "PR": "PREEMPTED", "S": "SUSPENDED", "ST": "STOPPED", "BF": "BOOT_FAIL", "DL": "DEADLINE",
    "RQ": "REQUEUED", "RH": "REQUEUE_HOLD", "RF": "REQUEUE_FED", "RD": "RESV_DEL_HOLD", "RS": "RESIZING", "RV": "REVOKED", "SE": "SPECIAL_EXIT",
    "SI": "SIGNALING", "SO": "STAGE_OUT", "LF": "LAUNCH_FAILED",
}  # fmt: skip
ENDED = (
    "COMPLETED",
    "FAILED",
    "TIMEOUT",
    "CANCELLED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "BOOT_FAIL",
    "DEADLINE",
    "REVOKED",
    "LAUNCH_FAILED",
)


def seconds(text: str) -> int | None:
    """Seconds of "1-02:03:04", "02:03:04", "02:03", "00:01.500"; None for UNLIMITED, INVALID and the like."""
    found = DURATION.fullmatch(text.strip())
    if not found:
        return None
    days, first, second, third = found.groups()
    if first and third is None:  # two parts: hours and minutes after days, else minutes and seconds
        parts = (int(first), int(second), 0) if days else (0, int(first), int(second))
    elif first:
        parts = (int(first), int(second), int(third or 0))
    else:  # one part: hours after days, else minutes
        parts = (int(second), 0, 0) if days else (0, int(second), 0)
    return int(days or 0) * 86400 + parts[0] * 3600 + parts[1] * 60 + parts[2]


def gib(text: str, *, bare: str = "M") -> tuple[float | None, str]:
    """(GiB, "n" for a node, "c" for a CPU or "" for the job) of "8G", "4Gc", "65536"; a bare number is in `bare` (B, K, M)."""
    found = MEMORY.fullmatch(text.strip())
    if not found or found[1].count(".") > 1 or found[1] == ".":
        return None, ""
    unit = found[2].upper()
    kib = float(found[1]) * (KIB[unit] if unit else {"B": 2**-10, "K": 1, "M": 2**10}[bare])
    return kib / 2**20, found[3].lower()


def gpus(text: str) -> dict[str, int]:
    """GPUs by type of a GRES or TRES text; the type is "gpu" where none is named. A total beside typed counts is not added."""
    typed: dict[str, int] = {}
    total = 0
    for kind, number in GRES.findall(re.sub(r"\([^)]*\)", "", text)):
        if kind:
            typed[kind] = typed.get(kind, 0) + int(number)
        else:
            total = max(total, int(number))
    rest = total - sum(typed.values())
    return typed | ({"gpu": rest} if rest > 0 else {})


def expand(text: str) -> list[str]:
    """Names of "n[01-03,7],login"; a list that cannot be read, or of more than 20,000 names, comes back as it is."""
    names = []
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text.strip()):
        names += _spelled(part)
        if len(names) > MANY:
            return [text]
    return names


def _spelled(part: str) -> list[str]:
    found = re.fullmatch(r"([^\[]*)\[([\d,-]+)\](.*)", part)
    if not found:
        return [part]
    head, ranges, tail = found.groups()
    tails = _spelled(tail)
    names: list[str] = []
    for piece in ranges.split(","):
        low, _, high = piece.partition("-")
        if not low.isdigit() or (high and not high.isdigit()) or int(high or low) - int(low) > MANY:
            return [part]
        numbers = range(int(low), int(high or low) + 1)
        if len(names) + len(numbers) * len(tails) > MANY:
            return [part]
        names += [f"{head}{number:0{len(low)}d}{rest}" for number in numbers for rest in tails]
    return names


def count_nodes(text: str) -> int:
    """How many nodes a list names."""
    return 0 if text in EMPTY else len(expand(text))


def state(text: str) -> str | None:
    """The full name of a job state: "PD", "OUT_OF_ME+", "CANCELLED by 0" -> a name of STATES; None for anything else."""
    word = text.strip().split(" ")[0].split(",")[0]
    if word in STATES:
        return STATES[word]
    if word in STATES.values():
        return word
    stem = word.rstrip("+")
    if len(stem) >= 7:  # columns cut names: squeue -l to eight characters, sacct to nine and a plus
        return next((name for name in STATES.values() if name.startswith(stem)), None)
    return None


def pairs(block: str) -> dict[str, str]:
    """`Key=value` of one scontrol block; a value may hold spaces, and the first of equal keys wins (a command line has its own)."""
    marks = list(KEY.finditer(block))
    found: dict[str, str] = {}
    for number, mark in enumerate(marks):
        end = marks[number + 1].start() if number + 1 < len(marks) else len(block)
        found.setdefault(mark[1], " ".join(block[mark.end() : end].split()))
    return found


def number(text: str) -> int | None:
    """The whole number at the start of "4", "4-4", "2(IDX:0-1)"; None where there is none."""
    found = re.match(r"\d+", text.strip())
    return int(found[0]) if found else None
