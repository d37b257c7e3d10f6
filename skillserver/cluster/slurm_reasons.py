"""SLURM's word for why a job is pending -> plain words, whether waiting helps, what to do.

The table is data/slurm_reasons.toml. Only one reason is ever shown by SLURM; another may hide behind it. A word that is
not in the table is repeated as it is, never guessed at.

>>> explain("QOSMaxGRESPerUser", "17").kind
'limit'
"""

from __future__ import annotations

import re
from typing import Literal

from pydantic import BaseModel

from skillserver import tables

Kind = Literal["queue", "own", "limit", "budget", "never", "held", "nodes", "passing", "unknown"]
BY_ITSELF = {"queue": True, "own": True, "passing": True, "never": False, "held": False}  # of the others nobody can say


class Reason(tables.Record):
    """One row of slurm_reasons.toml."""

    pattern: str
    kind: Kind
    words: str
    advice: str
    check: str


class Why(BaseModel):
    """Why a job waits; `starts_by_itself` is None where the word is not known."""

    code: str
    kind: Kind
    words: str
    advice: str
    check: str
    starts_by_itself: bool | None


def explain(code: str, job_id: str) -> Why:
    """The first row that fits the whole word, without SLURM's brackets."""
    word = code.strip().removeprefix("(").removesuffix(")") if code.startswith("(") else code.strip()
    job_id = job_id.split("[")[0].rstrip("_").split("_")[0] if "-" in job_id or "[" in job_id else job_id  # tasks that wait together
    if not word:
        return Why(code="", kind="unknown", words="the reason is not shown here", starts_by_itself=None, advice="observe: ask squeue for it",
                   check=f"squeue -j {job_id} -o '%T %r'")  # fmt: skip
    for row in tables.load("slurm_reasons.toml", Reason):
        if re.fullmatch(row.pattern, word):
            return Why(code=word, kind=row.kind, words=row.words, advice=row.advice.format(job=job_id), check=row.check.format(job=job_id),
                       starts_by_itself=BY_ITSELF.get(row.kind))  # fmt: skip
    return Why(code=word, kind="unknown", words=f"SLURM says {word[:200]!r}, which is not in our table", starts_by_itself=None,
               advice="observe: look the word up in SLURM's list of job reason codes", check=f"scontrol show job {job_id}")  # fmt: skip
