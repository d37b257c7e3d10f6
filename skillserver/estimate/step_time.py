"""How long one optimizer step of a layout takes, and where the time goes.

A step = micro-batches x the slowest pipeline stage + bubble + what communication could not hide + the optimizer.
Bubble of 1F1B: (p - 1) stage times, divided by the virtual stages (Narayanan et al., arXiv 2104.04473, sec. 2.2).
Tensor parallelism: two all-reduces of tokens x hidden a layer, forward and backward each (arXiv 1909.08053, sec. 3).
Gradients: 2 (d - 1)/d of their bytes; ZeRO-3 and FSDP gather weights twice and scatter gradients once a micro-batch,
1.5 times plain data parallelism (arXiv 1910.02054, sec. 7). Does not know data loading, checkpoints, or your code.

>>> found = predict(Work(plan(shape_of("llama-3-8b"), seq_len=8192, sharding="fsdp", sizes={"dp": 8}), eight_h100, 64))
>>> found.total_s > found.compute_s
True
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from skillserver.estimate import communication as links
from skillserver.estimate.communication import Cluster, allowance
from skillserver.estimate.memory_plan import Plan
from skillserver.estimate.memory_states import Counts, Stage, counts, expert_shards, stages
from skillserver.estimate.step_time_kernels import Kernels, kernels
from skillserver.units import GB

HALF, FP32 = 2, 4
OPTIMIZER_BYTES = 30  # a parameter: gradient 4, master 4 + 4, moments 8 + 8, 16-bit weight 2
FORWARD_AND_BACKWARD = 3.0


@dataclass(frozen=True)
class Work:
    """A plan, the cluster it runs on and its global batch, in sequences."""

    plan: Plan
    cluster: Cluster
    global_batch: int

    @property
    def micro_batches(self) -> int:
        """Micro-batches a data-parallel rank passes in one step."""
        return max(self.global_batch // (self.plan.dp * self.plan.micro_batch), 1)


class Step(NamedTuple):
    """Seconds of one step, each part beside the others: they add up to the total."""

    compute_s: float
    bubble_s: float
    tensor_s: float
    pipeline_s: float
    context_s: float
    expert_s: float
    data_s: float
    optimizer_s: float
    scale_s: float

    @property
    def total_s(self) -> float:
        """All of it."""
        return sum(self)

    @property
    def communication_s(self) -> float:
        """What communication adds after hiding."""
        return self.tensor_s + self.pipeline_s + self.context_s + self.expert_s + self.data_s


class _Pass(NamedTuple):
    """Seconds of one micro-batch on one stage."""

    compute: float
    tensor: float
    context: float
    expert: float
    sends: float

    @property
    def whole(self) -> float:
        return sum(self)


def predict(work: Work) -> Step:
    """The step of a layout that is known to be possible."""
    plan, m = work.plan, work.micro_batches
    slowest, mean = _passes(work)
    bubble = (plan.pp - 1) / plan.chunks * mean.whole + m * max(slowest.whole - mean.whole, 0)
    first = stages(plan)[0]
    data = _data_s(work, counts(plan, first), first, m * mean.compute)
    parts = Step(m * mean.compute, bubble, m * mean.tensor, m * mean.sends, m * mean.context, m * mean.expert, data, _optimizer_s(work), 0.0)
    return parts._replace(scale_s=parts.total_s * allowance("scale_a_doubling") * max(math.log2(work.cluster.n / work.cluster.node), 0))


def _passes(work: Work) -> tuple[_Pass, _Pass]:
    """The slowest stage and the mean one, for one micro-batch."""
    plan = work.plan
    kernel = kernels(plan, work.cluster)
    layer = _layer(work, kernel)
    head = kernel.head_s * FORWARD_AND_BACKWARD
    each = [_stage(work, layer, stage.layers, head if stage.has_head else 0.0) for stage in stages(plan)]
    mean = _stage(work, layer, plan.shape.layers / plan.pp, head / plan.pp)
    return max(each, key=lambda one: one.whole), mean


def _stage(work: Work, layer: _Pass, layers: float, head: float) -> _Pass:
    return _Pass(layers * layer.compute + head, layers * layer.tensor, layers * layer.context, layers * layer.expert, _sends_s(work))


def _layer(work: Work, kernel: Kernels) -> _Pass:
    """Forward and backward of one layer with its recomputation, and the communication inside it."""
    plan = work.plan
    again, touches, attention_again = _recomputed(plan)
    compute = kernel.matmul_s * (FORWARD_AND_BACKWARD + again) + kernel.touch_s * touches
    compute += kernel.attention_s * (1 + attention_again + allowance("attention_backward"))
    forward = kernel.matmul_s + kernel.attention_s + 2 * kernel.touch_s
    least = allowance("launch_us") * 1e-6
    compute *= max(1.0, least / forward) if forward else 1.0
    return _Pass(compute, _tensor_s(work), _context_s(work, kernel.attention_s), _expert_s(work), 0.0)


def _recomputed(plan: Plan) -> tuple[float, float, float]:
    """Forward passes of matmuls done again, times that saved tensors move, and attention done again."""
    touches = allowance("touches")
    if plan.recompute == "full":
        return 1.0, touches + 2, 1.0
    if plan.recompute == "selective" and plan.program == "fsdp":
        return 0.5, touches + 1, 0.0
    return 0.0, touches, 1.0 if plan.recompute == "selective" and plan.attention == "eager" else 0.0


def _tensor_s(work: Work) -> float:
    """Two all-reduces forward, two backward, two more when the forward is done again; experts need only the attention's."""
    plan = work.plan
    if plan.tp == 1:
        return 0.0
    each = links.all_reduce_s(work.cluster, plan.tp, 1, plan.tokens * plan.shape.hidden * plan.bytes_16)
    a_pass = 2 - (plan.shape.expert_layers / plan.shape.layers if plan.etp == 1 else 0)
    return each * a_pass * (3 if plan.recompute == "full" else 2) * allowance("tensor_exposed")


def _context_s(work: Work, attention_s: float) -> float:
    """Keys and values pass round the ring, forward once and backward twice; attention over other chunks hides them."""
    plan, shape = work.plan, work.plan.shape
    if plan.cp == 1:
        return 0.0
    width = 2 * shape.kv_width if not shape.latent else shape.latent.kv_rank + shape.latent.rope
    whole = plan.tokens * plan.cp * width / min(plan.tp, max(shape.kv_heads, 1)) * plan.bytes_16
    passes = 3 + (plan.recompute == "full")
    moved = passes * links.gather_s(work.cluster, plan.cp, plan.tp, whole)
    hidden = attention_s * (1 + allowance("attention_backward"))
    return max(moved - hidden, allowance("overlap_cost") * moved)


def _expert_s(work: Work) -> float:
    """Tokens go to their experts and come back, forward and backward: four exchanges a layer (six when done again)."""
    plan, shape = work.plan, work.plan.shape
    if plan.ep == 1 or not shape.experts:
        return 0.0
    sent = plan.tokens / plan.tp * shape.experts_per_token * shape.hidden * plan.bytes_16
    each = links.all_to_all_s(work.cluster, plan.ep, 1, sent)
    share = shape.expert_layers / shape.layers
    return each * (6 if plan.recompute == "full" else 4) * share * allowance("expert_exposed")


def _sends_s(work: Work) -> float:
    """Activations to the next stage and gradients back, once a virtual stage."""
    plan = work.plan
    if plan.pp == 1:
        return 0.0
    stride = plan.tp * plan.cp * plan.dp
    sent = plan.tokens * plan.shape.hidden * plan.bytes_16 / plan.tp
    exposed = allowance("send_exposed") if plan.chunks == 1 else allowance("send_exposed") / 2
    return 2 * plan.chunks * links.send_s(work.cluster, stride, sent) * exposed


def _data_s(work: Work, here: Counts, stage: Stage, compute_s: float) -> float:
    """What synchronising gradients and gathering weights adds to the step."""
    plan, m = work.plan, work.micro_batches
    ranks, stride = plan.dp * plan.cp, plan.tp
    if ranks == 1:
        return 0.0
    dense, experts = here.dense + here.tables, here.experts
    if plan.sharding in ("zero3", "fsdp", "hsdp"):
        return _sharded_s(work, dense, experts, stage, compute_s)
    gradient = HALF if plan.precision == "fp16" or plan.program in ("deepspeed", "torch") else FP32
    scatters = m if plan.sharding == "zero2" else 1
    outer = max(round(expert_shards(plan)), 1) if plan.sharding != "none" else max(plan.tp * ranks // (plan.ep * plan.etp), 1)
    moved = scatters * links.gather_s(work.cluster, ranks, stride, dense * gradient) + links.gather_s(work.cluster, ranks, stride, dense * HALF)
    moved += scatters * links.gather_s(work.cluster, outer, plan.ep, experts * gradient) + links.gather_s(
        work.cluster, outer, plan.ep, experts * HALF
    )
    hidden = min(allowance("gradient_overlap") * moved, compute_s / m * 2 / 3 * scatters)
    return moved - hidden


def _sharded_s(work: Work, dense: float, experts: float, stage: Stage, compute_s: float) -> float:
    """Weights gathered for forward and again for backward, gradients scattered; a layer's transfers hide behind its neighbour's work."""
    plan, cluster = work.plan, work.cluster
    rounds = 1 if plan.pp > 1 else work.micro_batches  # with a pipeline the stage stays gathered for the step
    gathers = 1 if plan.pp > 1 else 2
    gradient = HALF if plan.program == "deepspeed" else FP32
    pieces = stage.layers
    one = gathers * links.gather_s(cluster, plan.shard_size, plan.tp, dense / pieces * HALF)
    one += links.gather_s(cluster, plan.shard_size, plan.tp, dense / pieces * gradient)
    shards = max(round(expert_shards(plan)), 1)
    one += gathers * links.gather_s(cluster, shards, plan.ep, experts / pieces * HALF)
    one += links.gather_s(cluster, shards, plan.ep, experts / pieces * gradient)
    moved = rounds * pieces * one
    copies = plan.dp * plan.cp // plan.shard_size
    if copies > 1:
        moved += links.all_reduce_s(cluster, copies, plan.tp * plan.shard_size, (dense + experts) / plan.shard_size * FP32)
    hidden = min(moved, compute_s * allowance("sharded_overlap"))
    return moved - hidden + allowance("overlap_cost") * hidden


def _optimizer_s(work: Work) -> float:
    """Memory traffic of AdamW over the parameters this GPU updates."""
    plan = work.plan
    here = counts(plan, stages(plan)[0])
    mine = (here.dense + here.tables) / plan.shard_size + here.experts / max(expert_shards(plan), 1)
    return mine * OPTIMIZER_BYTES / (work.cluster.part.memory_bandwidth_gb_s * GB * allowance("memory_share"))
