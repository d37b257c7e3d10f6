"""What a caller fixed, checked; and when nothing can exist, what would.

Sizes are checked one by one against the model (memory_layout.py), then together against the GPUs and the batch. A
refusal names the nearest possible value: each fixed size is released in turn, and what then exists is offered.

>>> checked({"tp": 7}, shape_of("llama-3-8b"), 8192, 64)
BadRequest: bad_tp: tp 7 does not divide the 32 heads
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

from skillserver.errors import BadRequest
from skillserver.estimate import memory_layout
from skillserver.estimate.layouts import FIXED, SHARDINGS, Job, candidates
from skillserver.estimate.memory_plan import RECOMPUTES
from skillserver.estimate.memory_plan import SHARDINGS as EVERY_SHARDING
from skillserver.estimate.shape import Architecture

WORDS = {"sharding": EVERY_SHARDING, "activation_recompute": RECOMPUTES}
LOOKED_AT = 20000  # layouts read for the nearest possible
SHOWN = 6


def checked(given: Mapping[str, Any], shape: Architecture, seq_len: int, n: int) -> dict[str, Any]:
    """The fixed part of a request. Raises one BadRequest naming what is unknown or out of range."""
    wrong = [f"fixed.{name}: {value!r}" for name, value in given.items() if not _right(name, value)]
    if wrong:
        names = [f"{name}={'|'.join(WORDS[name])}" if name in WORDS else f"{name}=a whole number from 1" for name in FIXED]
        raise BadRequest("bad_fixed", f"not understood: {', '.join(wrong)}", valid=names, next="correct fixed")
    sizes = {name: given.get(name) for name in ("tp", "pp", "cp", "ep")}
    memory_layout.resolve(shape, seq_len, {"tp": sizes["tp"], "pp": sizes["pp"], "cp": sizes["cp"], "n_accelerators": n},
                          {"virtual_stages": given.get("virtual_stages")})  # fmt: skip
    if sizes["ep"] and sizes["ep"] > 1 and (not shape.experts or shape.experts % sizes["ep"]):
        memory_layout.resolve(shape, seq_len, {"ep": sizes["ep"]}, {})
    return {name: value for name, value in given.items() if value is not None}


def _right(name: str, value: Any) -> bool:
    if name in WORDS:
        return value in WORDS[name]
    return name in FIXED and isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 10**6


def impossible(job: Job) -> BadRequest:
    """The error for a job without any layout, with what would exist if one thing were changed."""
    near = [*_released(job), *_batches(job)]
    fixed = ", ".join(f"{name}={value}" for name, value in job.fixed.items())
    said = f"no layout of {job.cluster.n} GPUs divides model and batch of {job.global_batch} sequences"
    said += f" with {fixed}" if fixed else ""
    said += f" under {job.framework}, which runs {' '.join(SHARDINGS[job.framework])}" if job.framework else ""
    return BadRequest("no_layout", said, valid=near[:SHOWN], next=f"pass {near[0]}" if near else "use another number of GPUs or another global_batch")


def _released(job: Job) -> list[str]:
    """For each fixed size, the nearest value with which a layout exists."""
    found = []
    for name, value in job.fixed.items():
        others = {key: kept for key, kept in job.fixed.items() if key != name}
        possible = {getattr(one, name) for one in islice(candidates(replace(job, fixed=others)), LOOKED_AT)}
        if possible and isinstance(value, int):
            found.append(f"{name}={min(possible, key=lambda other: (abs(other - value), other))}")
        else:
            found += [f"{name}={other}" for other in sorted(possible)[:1]]
    return found


def _batches(job: Job) -> list[str]:
    """The nearest global batches that have a layout, among multiples of the GPUs' divisors."""
    for step in sorted((size for size in range(1, job.cluster.n + 1) if job.cluster.n % size == 0), key=lambda size: abs(size - job.cluster.n // 8)):
        low = job.global_batch // step * step
        tried = [size for size in (low, low + step) if size and next(candidates(replace(job, global_batch=size)), None)]
        if tried:
            return [f"global_batch={size}" for size in tried]
    return []
