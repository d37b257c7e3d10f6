"""What a user measured -> the speed of the planned run: step time, tokens per second, or the fastest matmul.

Knows the fields of the `evidence` argument and refuses what contradicts itself. A speed replaces the prior of prior.py
and leaves goodput open; a MAMF (maximum achievable matmul FLOPS) corrects the prior. A speed measured on another number
of accelerators is carried over by the scale effect, and what that effect takes away is added to the doubt. Does not read
logs: the caller brings the step time found in one.

>>> speed(read({"step_s": 10, "tokens_per_step": "4M"}), None, 512).tokens_per_s
781.25
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from skillserver.errors import BadRequest
from skillserver.estimate import prior
from skillserver.units import Count, Seconds, show_count

ABOVE_PEAK = 1.02  # a clock a little above the catalogue's boost clock is no mistake
SPEEDS = ("step_s", "tokens_per_s_per_gpu", "log")


class Evidence(BaseModel):
    """One measurement of a user. `n_accelerators` is what the speed was measured on, when that is not the planned number."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    mamf_tflops: float | None = Field(None, gt=0, le=1e5, allow_inf_nan=False)
    step_s: Seconds | None = Field(None, gt=0, le=1e6)
    tokens_per_step: Count | None = Field(None, ge=1, le=1e12)
    tokens_per_s_per_gpu: Count | None = Field(None, gt=0, le=1e9)
    log: str | None = Field(None, min_length=1)
    n_accelerators: int | None = Field(None, ge=1, le=10**7)


FIELDS = tuple(Evidence.model_fields)


class Logged(NamedTuple):
    """Step times found in a log: the usual one, the mean with its slow steps (None when the log cannot say), and a description."""

    step_s: float
    mean_s: float | None
    said: str


class Speed(NamedTuple):
    """Tokens per second and accelerator of the planned run, the spread of its logarithm, the best goodput still possible, and why."""

    tokens_per_s: float
    log_sd: float
    best_goodput: float
    said: str


def read(given: Mapping[str, Any] | None) -> Evidence:
    """The evidence of a request. Raises BadRequest naming every bad or contradicting field."""
    try:
        found = Evidence.model_validate(dict(given or {}))
    except ValidationError as problem:
        told = "; ".join(_told(error) for error in problem.errors(include_url=False))
        raise BadRequest("bad_evidence", told, valid=FIELDS, next="correct evidence") from problem
    speeds = [name for name in SPEEDS if getattr(found, name) is not None]
    if len(speeds) > 1:
        raise BadRequest("two_speeds", f"evidence has {' and '.join(speeds)}, and each of them says the speed", next="pass one of them")
    if bool(found.tokens_per_step) != bool(found.step_s or found.log):
        have, lacks = ("tokens_per_step", "step_s or log") if found.tokens_per_step else (speeds[0], "tokens_per_step")
        raise BadRequest("half_a_speed", f"evidence has {have} without {lacks}", next="tokens_per_step = sequences of the global batch x seq_len")
    if found.n_accelerators and not speeds:
        raise BadRequest("no_speed", "evidence.n_accelerators says where a speed was measured, and no speed is there", valid=SPEEDS)
    return found


def _told(error: Any) -> str:
    name = str(error["loc"][0])
    if error["type"] == "extra_forbidden":
        near = difflib.get_close_matches(name, FIELDS, 1)
        return f"evidence has an unknown field {name!r}" + (f", did you mean {near[0]!r}?" if near else "")
    return f"evidence.{name}: {str(error['input'])[:40]!r}: {error['msg'].removeprefix('Value error, ')}"


def speed(found: Evidence, logged: Logged | None, n_accelerators: int | None) -> Speed | None:
    """What the planned run will do, from what was measured; None without a speed. Raises BadRequest when the number of accelerators is missing."""
    measured_on = found.n_accelerators or n_accelerators
    step_s = logged.step_s if logged else found.step_s
    if step_s is None and found.tokens_per_s_per_gpu is None:
        return None
    if step_s is None:
        rate, said = float(found.tokens_per_s_per_gpu or 0), f"{found.tokens_per_s_per_gpu:g} tokens per second and accelerator, as measured"
    elif measured_on is None:
        raise BadRequest("no_n_accelerators", "a step time says nothing without the number of accelerators it was measured on",
                         next="pass n_accelerators, or evidence.n_accelerators where it was another number")  # fmt: skip
    else:
        rate = float(found.tokens_per_step or 0) / step_s / measured_on
        how = logged.said if logged else f"{step_s:g} s a step, as measured"
        said = f"{how}: {show_count(found.tokens_per_step or 0)} tokens a step on {measured_on} accelerators are {rate:.4g} tokens/s each"
    best = min(1.0, logged.step_s / logged.mean_s) if logged and logged.mean_s else 1.0
    return _at_scale(Speed(rate, 0.0, best, said), measured_on, n_accelerators)


def _at_scale(found: Speed, measured_on: int | None, n_accelerators: int | None) -> Speed:
    """Carried to the planned number of accelerators; the doubt is as large as the effect."""
    if not measured_on or not n_accelerators or measured_on == n_accelerators:
        return found
    factor = prior.scale_factor(measured_on, n_accelerators)
    said = f"{found.said}; x{factor:.2f} from {measured_on} to {n_accelerators} accelerators"
    return found._replace(tokens_per_s=found.tokens_per_s * factor, log_sd=abs(math.log(factor)), said=said)


def mfu_of(found: Speed, flops_per_token: float, peak_tflops: float) -> float:
    """Model FLOPs over the peak. Raises BadRequest for a speed that no such part can reach."""
    mfu = flops_per_token * found.tokens_per_s / (peak_tflops * 1e12)
    if mfu > 1:
        raise BadRequest("impossible_speed", f"{found.tokens_per_s:.4g} tokens per second and accelerator are {mfu:.2f} of the peak of "
                         f"{peak_tflops:g} TFLOPS", next="check the model, and that tokens per second are of one accelerator")  # fmt: skip
    return mfu


def ceiling(found: Evidence, peak_tflops: float, published_tflops: float | None) -> prior.Ceiling | None:
    """The measured MAMF beside peak and published; None without one. Raises BadRequest when it lies above the dense peak."""
    if found.mamf_tflops is None:
        return None
    if found.mamf_tflops > ABOVE_PEAK * peak_tflops:
        raise BadRequest("mamf_above_peak", f"evidence.mamf_tflops {found.mamf_tflops:g} is above the dense peak of {peak_tflops:g} TFLOPS",
                         next="check accelerator, precision and sparsity, and that the benchmark waits for the device")  # fmt: skip
    return prior.Ceiling(found.mamf_tflops, peak_tflops, published_tflops)
