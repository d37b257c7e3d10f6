"""Why the layouts people try first lose to the best one, or do not fit.

Each family is represented by its fastest member that fits; when none fits, by the member that needs the least
memory; when none exists, by what forbids it. Reasons name the part of the step that differs most.

>>> [one.verdict for one in alternatives(job, search(job))]
['slower', 'does not fit', 'impossible']
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from skillserver.estimate.layouts import ROOM, Found, Job, Layout, Timed, plan_of
from skillserver.estimate.layouts_bounds import Bound
from skillserver.estimate.memory import peak
from skillserver.estimate.memory_buffers import capacity_gib

TRIES = 12  # memory estimates for one family
NAMES = {"compute_s": "compute (recomputation and small products)", "bubble_s": "pipeline bubble", "tensor_s": "tensor-parallel all-reduces",
         "pipeline_s": "stage transfers", "context_s": "key-value exchange", "expert_s": "expert all-to-all",
         "data_s": "weight gathers and gradient traffic",
         "optimizer_s": "optimizer step", "scale_s": "stragglers"}  # fmt: skip


class Alternative(NamedTuple):
    """One popular family and what became of it."""

    name: str
    verdict: Literal["slower", "does not fit", "impossible"]
    why: str
    best: Timed | None = None


class _Family(NamedTuple):
    name: str
    holds: Callable[[Layout], bool]
    needs: str


def _flat(one: Layout) -> bool:
    return one.tp == one.pp == one.cp == 1


FAMILIES = (
    _Family("data parallel with ZeRO-1", lambda one: _flat(one) and one.sharding in ("none", "zero1"), "a sequence for every GPU"),
    _Family("FSDP or ZeRO-3 over all GPUs", lambda one: _flat(one) and one.sharding in ("fsdp", "zero3"), "a sequence for every GPU"),
    _Family("HSDP, shards within a node", lambda one: _flat(one) and one.sharding == "hsdp", "a sequence for every GPU and several nodes"),
    _Family("FSDP with tensor parallelism", lambda one: one.tp > 1 and one.pp == 1 and one.sharding in ("fsdp", "hsdp"), "tp that divides the heads"),
    _Family("tensor parallelism, no pipeline, ZeRO-1", lambda one: one.tp > 1 and one.pp == 1 and one.sharding in ("none", "zero1"),
            "tp that divides the heads"),
    _Family("tensor and pipeline parallelism, ZeRO-1", lambda one: one.tp > 1 and one.pp > 1 and one.sharding in ("none", "zero1"),
            "stages that divide the layers nearly evenly"),
    _Family("pipeline without tensor parallelism", lambda one: one.tp == 1 and one.pp > 1, "stages that divide the layers nearly evenly"),
    _Family("full recomputation", lambda one: one.activation_recompute == "full", "nothing"),
)  # fmt: skip
PROGRAMS = {"megatron": (0, 4, 5, 6, 7), "torchtitan": (1, 2, 3, 6, 7), "deepspeed": (0, 1, 7), "fsdp": (1, 2, 7)}


def alternatives(job: Job, found: Found) -> list[Alternative]:
    """Every family the best layout is not of, and that the chosen program runs."""
    if not found.fitting:
        return []
    best = found.fitting[0]
    shown = [family for number, family in enumerate(FAMILIES) if job.framework is None or number in PROGRAMS[job.framework]]
    judged = [_judged(job, found, best, family) for family in shown if not family.holds(best.layout)]
    return [one for one in judged if one.verdict != "impossible" or not job.fixed]  # what the caller ruled out is no news


def _judged(job: Job, found: Found, best: Timed, family: _Family) -> Alternative:
    members = [one for one in found.considered if family.holds(one.layout)]
    if not members:
        return Alternative(family.name, "impossible", f"needs {family.needs}: {job.global_batch} sequences on {job.cluster.n} GPUs")
    bound = Bound(job.shape, job.seq_len, job.precision, job.optimizer, job.cluster.node)
    room = ROOM * capacity_gib(job.cluster.part)
    likely = [one for one in members if bound.gib(one.layout, job.global_batch) <= room]
    for one in likely[:TRIES]:
        memory = peak(plan_of(job, one.layout))
        if memory.device.expected <= room:
            return Alternative(family.name, "slower", _slower(best, one), one._replace(memory=memory))
    least = leanest(job, members)
    assert least.memory is not None
    if least.memory.device.expected <= room:
        return Alternative(family.name, "slower", _slower(best, least), least)
    largest = max(least.memory.terms, key=lambda term: term.bytes)
    why = (
        f"at least {least.memory.device.expected:,.0f} GiB of {capacity_gib(job.cluster.part):.0f} ({brief(least.layout)}), most of it {largest.name}"
    )
    return Alternative(family.name, "does not fit", why)


def leanest(job: Job, members: list[Timed]) -> Timed:
    """The member that takes the least memory, by the full estimate of the dozen with the lowest bounds."""
    bound = Bound(job.shape, job.seq_len, job.precision, job.optimizer, job.cluster.node)
    likely = sorted(members, key=lambda one: bound.gib(one.layout, job.global_batch))[:TRIES]
    judged = [one._replace(memory=peak(plan_of(job, one.layout))) for one in likely]
    return min(judged, key=lambda one: one.memory.device.expected if one.memory else 0.0)


def _slower(best: Timed, one: Timed) -> str:
    """How much slower and by which part of the step."""
    gaps = {name: getattr(one.step, name) - getattr(best.step, name) for name in NAMES}
    worst = max(gaps, key=lambda name: gaps[name])
    more = one.step.total_s / best.step.total_s - 1
    return f"{more:.0%} slower ({brief(one.layout)}): {NAMES[worst]} +{gaps[worst]:.3g} s a step"


def brief(layout: Layout) -> str:
    """tp8 pp4x2 dp16 mb1 zero1 full"""
    virtual = f"x{layout.virtual_stages}" if layout.virtual_stages > 1 else ""
    rest = "".join(f" {name}{size}" for name, size in (("cp", layout.cp), ("ep", layout.ep)) if size > 1)
    return (
        f"tp{layout.tp} pp{layout.pp}{virtual} dp{layout.dp}{rest} mb{layout.micro_batch} {layout.sharding} recompute {layout.activation_recompute}"
    )
