"""How large outputs and gradients became, beside what their dtype can hold, and what a loss scale should be.

Growth is judged between the first and the last of the latest watched healthy passes. An output near fp16's end is a
warning, a large one in bf16 or fp32 is for the record: it says only that fp16 would not hold it. fp8 formats end at 448
(E4M3) and 57,344 (E5M2), so they rest on scaling. Knows numbers; not causes.

>>> loss_scale([rank])
'largest fp16 gradient 2.1: a scale up to 8192 leaves two doublings before 65,504'
"""

from __future__ import annotations

import math

from pydantic import BaseModel

from skillserver import topics
from skillserver.diagnose.numerics_causes import FP16_MAX
from skillserver.diagnose.numerics_reading import Rank
from skillserver.findings import Finding

SHOWN = 8  # modules
ENOUGH = 5  # scans for a word on growth
GREW = 4.0  # times
WORTH_A_WORD = 1 / 64  # of the dtype's largest number: six doublings
NEAR = 0.25
ROOM = 2  # doublings kept free
FAR = 12  # doublings: a gradient a few thousand times smaller than the largest falls out of fp16
HALF = ("float16",)


class Growth(BaseModel):
    """Largest absolute output of one module, at the first and last healthy pass of those kept, any rank."""

    module: str
    dtype: str
    first_absmax: float
    last_absmax: float
    passes: list[int]
    ratio: float | None
    share_of_dtype_max: float | None


def table(ranks: list[Rank]) -> list[Growth]:
    """The modules nearest to their dtype's end, of the rank where each is largest."""
    rows: dict[str, Growth] = {}
    for rank in ranks:
        if not rank.scans:
            continue
        first, last = rank.scans[0], rank.scans[-1]
        for name, value in last.outputs.items():
            before = first.outputs.get(name, math.nan)
            if not (math.isfinite(value) and math.isfinite(before)) or (name in rows and rows[name].last_absmax >= value):
                continue
            _kind, dtype, most = rank.modules.get(name, ("", "", math.inf))
            rows[name] = Growth(module=name or "(whole model)", dtype=dtype, first_absmax=before, last_absmax=value, passes=[first.pass_, last.pass_],
                                ratio=round(value / before, 2) if before > 0 else None,
                                share_of_dtype_max=float(f"{value / most:.3g}") if math.isfinite(most) and most > 0 else None)  # fmt: skip
    return sorted(rows.values(), key=lambda row: (-(row.share_of_dtype_max or 0.0), -row.last_absmax))[:SHOWN]


def largest(ranks: list[Rank]) -> float | None:
    """The largest finite output of the scans kept."""
    values = [value for rank in ranks for scan in rank.scans for value in scan.outputs.values() if math.isfinite(value)]
    return max(values, default=None)


def findings_of(ranks: list[Rank]) -> list[Finding]:
    """Outputs near their dtype's end; outputs that grow towards it; values that fp16 could not hold."""
    near = _near(ranks)
    growing = [] if near else _growing(ranks)
    most = largest(ranks)
    if near or most is None or most < FP16_MAX:
        return near + growing
    return [*growing, _finding("beyond_fp16", "info", "outputs", [f"largest output {most:.4g}, fp16 ends at 65,504"],
                               "bf16 and fp32 hold it; fp16 would overflow, and fp8 needs scaling.",
                               "none: do not convert this model to fp16 as it is", None)]  # fmt: skip


def _near(ranks: list[Rank]) -> list[Finding]:
    seen = [
        (value / most, name, value, dtype, most, step, rank) for rank in ranks for name, (value, dtype, most, step) in rank.ranges.items() if most > 0
    ]
    if not seen:
        return []
    share, name, value, dtype, most, step, rank = max(seen, key=lambda each: each[0])
    eight = dtype.startswith("float8")
    reason = f"{'Twice' if share >= 0.5 else 'Four times'} as much and {dtype} overflows"
    reason += "; with a scale chosen per tensor that is intended." if eight else "."
    action = "none: check that the scaling is on" if eight else "fix_setup: bf16, or this module in fp32; lower its inputs or initialisation"
    found = _finding("near_overflow", "info" if eight else "warning", f"{name or 'the whole model'}, rank {rank.rank}",
                     [f"largest output {value:.4g}, {share:.0%} of {dtype}'s {most:.6g}"], reason, action, step)  # fmt: skip
    found.count = len({each[1] for each in seen})
    return [found]


def _growing(ranks: list[Rank]) -> list[Finding]:
    if max((len(rank.scans) for rank in ranks), default=0) < ENOUGH:
        return []
    rows = [row for row in table(ranks) if row.dtype in HALF and (row.ratio or 0) >= GREW and (row.share_of_dtype_max or 0) >= WORTH_A_WORD]
    if not rows:
        return []
    row = max(rows, key=lambda each: each.share_of_dtype_max or 0)
    found = _finding("absmax_growth", "warning", row.module,
                     [f"largest output {row.first_absmax:.4g} -> {row.last_absmax:.4g} from pass {row.passes[0]} to {row.passes[1]}"],
                     f"At {row.share_of_dtype_max:.0%} of {row.dtype}'s largest number and growing.",
                     "observe: lower the learning rate or change to bf16 before it overflows", None)  # fmt: skip
    found.count = len(rows)
    return [found]


def loss_scale(ranks: list[Rank]) -> str:
    """What the gradients' size says about the loss scale; "" when none of them is in fp16 and no scaler is used."""
    scans = [scan for rank in ranks for scan in rank.scans]
    fp16 = [scan.gradient[0] for scan in scans if scan.gradient[1] and scan.gradient[2] == "float16" and 0 < scan.gradient[0] < math.inf]
    scaler = any(rank.scaler for rank in ranks)
    dtypes = {dtype for rank in ranks for _kind, dtype, _most in rank.modules.values()}
    if not fp16:
        no_need = scaler and dtypes and "float16" not in dtypes
        return f"no output is in fp16 ({', '.join(sorted(dtypes))}): the loss scaler is not needed, remove it" if no_need else ""
    room = math.floor(math.log2(FP16_MAX / max(fp16)))
    if not scaler:
        said = f"up to {2 ** max(room - ROOM, 0)} leaves two doublings before 65,504" if room > ROOM else "would overflow: bf16 is the way"
        return f"largest fp16 gradient {max(fp16):.3g} without a known loss scaler: a scale {said}"
    now = next((scan.scale for scan in reversed(scans) if scan.scale is not None), None)
    if room > FAR:
        said = f"largest scaled gradient {max(fp16):.3g}: {room} doublings are free and small gradients may vanish"
        return f"{said}; the scale ({now}) may rise {2 ** (room - ROOM)} times"
    return f"largest scaled gradient {max(fp16):.3g}, {room} doublings before 65,504: the scale ({now}) is right"


def _finding(code: str, severity: str, subject: str, evidence: list[str], reason: str, action: str, step: int | None) -> Finding:
    return Finding.model_validate({"code": code, "severity": severity, "subject": subject, "evidence": evidence, "reason": reason, "action": action,
                                   "step": step, "sections": topics.sections("fp16_range")})  # fmt: skip
