"""Peak memory of a training step on the fullest GPU: allocated, reserved and device, each with an 80% interval.

A step has three moments that can be the peak: the loss on the last pipeline stage, the backward of a layer on any
stage, and the optimizer step. The worst of first and last stage and of these moments is reported. `allocated` is
torch's maximum, `reserved` adds what the caching allocator cannot use, `device` adds context and NCCL.
Does not know other processes on the GPU, data on it, evaluation, or uneven loads of experts.

>>> job = plan(shape_of("llama-3-8b"), seq_len=8192, sharding="fsdp", recompute="full", sizes={"dp": 8})
>>> round(peak(job).device.expected)
37
"""

from __future__ import annotations

from typing import NamedTuple

from skillserver.estimate import memory_buffers as buffers
from skillserver.estimate.memory_activations import kept
from skillserver.estimate.memory_plan import Plan
from skillserver.estimate.memory_states import Stage, stages, states
from skillserver.estimate.memory_terms import Term, allowed, total
from skillserver.findings import Interval


class Peak(NamedTuple):
    """The fullest GPU at its worst moment."""

    moment: str
    stage: Stage
    terms: list[Term]
    beyond: list[Term]

    @property
    def allocated(self) -> Interval:
        """GiB, torch.cuda.max_memory_allocated."""
        return total(self.terms)

    @property
    def reserved(self) -> Interval:
        """GiB, torch.cuda.max_memory_reserved."""
        return total([*self.terms, self.beyond[0]])

    @property
    def device(self) -> Interval:
        """GiB, nvidia-smi."""
        return total([*self.terms, *self.beyond])


def peak(plan: Plan) -> Peak:
    """The worst moment of the worst stage."""
    found = [moment for stage in stages(plan) for moment in _moments(plan, stage)]
    return max(found, key=lambda one: one.device.expected)


def _moments(plan: Plan, stage: Stage) -> list[Peak]:
    steady = [*states(plan, stage), *buffers.buckets(plan, stage)]
    running = [*steady, *buffers.gathered(plan, stage), activations(plan, stage)]
    recomputed = plan.recompute == "full" or (plan.recompute == "selective" and plan.program == "fsdp")
    found = [_peak(plan, stage, "backward of a layer", [*running, *buffers.backward_working_set(plan, recomputed=recomputed)])]
    if stage.has_head:
        found.append(_peak(plan, stage, "loss", [*running, buffers.loss(plan)]))
    return [*found, _peak(plan, stage, "optimizer step", [*steady, buffers.step_temporary(plan, stage)])]


def _peak(plan: Plan, stage: Stage, moment: str, terms: list[Term]) -> Peak:
    terms = [term for term in terms if term.bytes]
    moving = sum(term.bytes for term in terms if term.transient)
    wasted = allowed("fragmentation", "reserved, not usable", moving, "share of what comes and goes in a step", transient=True)
    return Peak(moment, stage, terms, [wasted, *buffers.outside(plan)])


def in_flight(plan: Plan, stage: Stage) -> float:
    """Micro-batches whose activations a stage holds, in units of all its layers.

    1F1B: stages still ahead, itself included, at most the micro-batches of a step. Interleaved with v chunks a stage:
    times 1 + (p-1)/(p v) on the first (Korthikanti et al., arXiv 2205.05198, sec. 4.2.3).
    """
    ahead = plan.pp - stage.number
    if plan.micro_batches:
        ahead = min(ahead, plan.micro_batches)
    return ahead * (1 + (plan.pp - 1) / (plan.pp * plan.chunks)) if plan.chunks > 1 and stage.number == 0 else ahead


def activations(plan: Plan, stage: Stage) -> Term:
    """What the layers of the stage keep, times micro-batches in flight; with a pipeline each also keeps its output."""
    each, flying = kept(plan).on_one(plan), in_flight(plan, stage)
    output = plan.bytes_16 * plan.shape.hidden / (plan.tp if plan.sequence_parallel else 1) if plan.pp > 1 else 0
    size = plan.tokens * flying * (stage.layers * each + output)
    formula = f"{plan.tokens:,.0f} tokens x {stage.layers} layers x {each:,.0f} bytes"
    formula += f" x {flying:.3g} micro-batches in flight" if flying != 1 else ""
    uneven = 1.5 if plan.shape.experts and plan.recompute != "full" else 1.1
    return Term("activations", size, formula, "assumed" if plan.shape.state_layers else "derived", 0.85, uneven, transient=True)
