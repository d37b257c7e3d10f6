"""Weights, gradients and optimizer states of one pipeline stage on one GPU.

Parameters first: matrices that tensor parallelism cuts are divided by tp, experts by ep x etp and not by tp, what has
no axis (norms, routers, low-rank down-projections) is kept whole. Then bytes a parameter, by program, precision,
optimizer and sharding; the sharded part is divided by the ranks that share it, which for experts are fewer.

| program | kept whole or with the shard | divided by the shard |
|---|---|---|
| torch | 4 weights (+2 autocast copy) + 4 gradients + optimizer | - |
| fsdp | - | 4 + 4 + optimizer |
| zero1, 16-bit gradients | 2 + 2 | 4 gradients + 4 master + optimizer |
| zero1, bf16 | 2 + 4 (+2: DeepSpeed keeps both) | 4 master + optimizer |
| zero2 / zero3 | 2 / 0 | 2 + 4 + 4 + optimizer / 2 more |

>>> job = plan(shape_of("llama-2-7b"), seq_len=4096, sharding="zero3")
>>> sum(term.bytes for term in states(job, stages(job)[0])) / 6_738_415_616
20.0
"""

from __future__ import annotations

import math
from typing import NamedTuple

from skillserver.estimate.architecture import Weight, weights
from skillserver.estimate.memory_plan import Plan
from skillserver.estimate.memory_terms import Term, allowance

OUTSIDE = ("embedding", "positions", "head")
FP32, HALF = 4, 2
MOMENTS = {"adamw": 8.0, "adam": 8.0, "adamw_8bit": 2.0, "adamw_bf16": 4.0, "adafactor": 0.03, "muon": 4.0, "lion": 4.0, "sgd": 0.0,
           "sgd_momentum": 4.0}  # bytes a parameter beside the master weights  # fmt: skip
MUON_TABLES = 4.0  # embeddings, head and norms keep AdamW's second moment (Muon's own recipe), so 4 more for those
ADAPTER_PROMPT = 10  # LLaMA-Adapter v1: ten prompt vectors a layer (arXiv 2303.16199)


class Stage(NamedTuple):
    """A pipeline stage: how many layers it holds, and whether it has the token table, and the head."""

    layers: int
    number: int
    has_table: bool
    has_head: bool


class Counts(NamedTuple):
    """Parameters of a stage on one GPU; `tables` are token and position tables and head."""

    dense: float
    experts: float
    tables: float

    @property
    def every(self) -> float:
        """All of them."""
        return self.dense + self.experts + self.tables


class PerParameter(NamedTuple):
    """Bytes a trainable parameter: (kept by every rank, divided by the ranks of a shard)."""

    weights: tuple[float, float]
    gradients: tuple[float, float]
    master: tuple[float, float]
    moments: tuple[float, float]


def stages(plan: Plan) -> list[Stage]:
    """First and last stage, the two that can be the fullest; layers that do not divide go to the earlier ones."""
    if plan.pp == 1:
        return [Stage(plan.shape.layers, 0, True, True)]
    most = math.ceil(plan.shape.layers / plan.pp)
    last = plan.shape.layers - most * (plan.pp - 1)
    last = last if last > 0 else max(plan.shape.layers // plan.pp, 1)
    return [Stage(most, 0, True, False), Stage(last, plan.pp - 1, False, True)]


def counts(plan: Plan, stage: Stage) -> Counts:
    """Parameters of the stage on one GPU."""
    share = stage.layers / plan.shape.layers
    dense = experts = tables = 0.0
    for one in weights(plan.shape):
        size = one.elements * one.copies / _cut(plan, one)
        if one.part in OUTSIDE:
            here = stage.has_head if one.part == "head" else stage.has_table
            tied_copy = plan.shape.tied and one.name == "token_table" and stage.has_head
            tables += size if here or tied_copy else 0
        elif one.part == "experts":
            experts += size * share
        else:
            dense += size * share
    return Counts(dense, experts, tables)


def _cut(plan: Plan, one: Weight) -> int:
    """How many GPUs share one tensor: experts by ep x etp only (dividing them by tp too is a known mistake)."""
    if one.part == "experts":
        return plan.ep * plan.etp
    if one.axis == "kv_heads":
        return min(plan.tp, plan.shape.kv_heads)
    return plan.tp if one.axis else 1


def per_parameter(plan: Plan) -> PerParameter:
    """Bytes of a trainable parameter under the plan's program."""
    moments = MOMENTS[plan.optimizer]
    if plan.program == "fsdp":
        return PerParameter((0, FP32), (0, FP32), (0, 0), (0, moments))
    if plan.precision == "fp32":
        return _sharded(plan, FP32, FP32, 0, moments)
    if plan.program == "torch" and plan.peft == "none":
        return PerParameter((FP32 + HALF, 0), (FP32 * (2 if plan.dp > 1 else 1), 0), (0, 0), (moments, 0))
    if plan.program == "torch":
        return PerParameter((FP32, 0), (FP32, 0), (0, 0), (moments, 0))
    if plan.precision != "fp16" and plan.sharding in ("none", "zero1"):
        both = HALF if plan.sharding == "zero1" and not plan.shape.experts else 0
        return _sharded(plan, HALF, FP32 + both, FP32, _published_moments(plan, moments))
    return _sharded(plan, HALF, HALF, FP32, _published_moments(plan, moments), copied=FP32)


def _published_moments(plan: Plan, moments: float) -> float:
    """DeepSeek-V3 keeps both moments in bf16 (arXiv 2412.19437, sec. 3.3.1), and recipes for its family follow it."""
    return 4.0 if plan.shape.experts and plan.shape.latent and plan.optimizer in ("adamw", "adam") else moments


def _sharded(plan: Plan, weights: float, gradients: float, master: float, moments: float, copied: float = 0) -> PerParameter:
    """ZeRO's three steps: states, then gradients, then weights go to the shards. `copied` are fp32 gradients for the step."""
    stage = {"none": 0, "zero1": 1, "zero2": 2, "zero3": 3}[plan.sharding]

    def at(least: int, size: float) -> tuple[float, float]:
        return (0, size) if stage >= least else (size, 0)

    kept, shared = at(2, gradients)
    return PerParameter(at(3, weights), (kept, shared + copied) if stage else (kept + copied, shared), at(1, master), at(1, moments))


def trainable(plan: Plan, here: Counts) -> float:
    """Trained parameters on this GPU, of a fine-tuning that trains few of them."""
    every = sum(one.elements * one.copies for one in weights(plan.shape))
    count = plan.trainable
    if count is None and plan.peft == "adapter":
        count = plan.shape.layers * ADAPTER_PROMPT * plan.shape.hidden
    if count is None:
        count = adapter_size(plan, every_linear=True)
    return count * here.every / every


def adapter_size(plan: Plan, *, every_linear: bool) -> int:
    """Parameters of low-rank adapters: rank x (inputs + outputs) of each matrix, on every linear layer or on q and v only."""
    found = 0
    for one in weights(plan.shape):
        if not one.k or one.part in (*OUTSIDE, "router"):
            continue
        pieces = 2 if one.name in ("kv_proj", "gate_up") else 1
        if every_linear:
            found += plan.lora_rank * (pieces * one.k + one.n) * one.copies
        elif one.name in ("q_proj", "kv_proj"):
            found += plan.lora_rank * (one.k + one.n // pieces) * one.copies
    return found


def adapts_every_linear(plan: Plan) -> bool:
    """Whether adapters sit on every linear layer: assumed, unless trainable_params is what q and v alone would take."""
    return plan.trainable is None or plan.trainable > 1.2 * adapter_size(plan, every_linear=False)


def states(plan: Plan, stage: Stage) -> list[Term]:
    """Every term that lives through the whole step: weights, gradients, master weights, optimizer moments."""
    here = counts(plan, stage)
    if plan.peft != "none" or plan.trainable is not None:
        return [*_frozen(plan, here), *_trained(plan, trainable(plan, here), 0, 0)]
    return _trained(plan, here.dense, here.experts, here.tables)


def expert_shards(plan: Plan) -> float:
    """Ranks that share one expert: the stage's GPUs over ep x etp; with hsdp no more than a shard has."""
    ranks = plan.tp * plan.cp * plan.dp / (plan.ep * plan.etp)
    return max(ranks * plan.shard_size / (plan.dp * plan.cp), 1) if plan.sharding != "none" else 1


def _trained(plan: Plan, dense: float, experts: float, tables: float) -> list[Term]:
    each = per_parameter(plan)
    names = ("weights", "gradients", "master weights", "optimizer moments")
    on_cpu = _on_cpu(plan)
    found = []
    for name, (whole, shared) in zip(names, each, strict=True):
        if name in on_cpu:
            continue
        size = (dense + tables) * (whole + shared / plan.shard_size) + experts * (whole + shared / expert_shards(plan))
        if name == "optimizer moments" and plan.optimizer == "muon":
            size += tables * MUON_TABLES / plan.shard_size
        if name == "weights" and plan.precision == "fp8" and plan.program == "megatron":
            size += (dense + experts) * HALF  # two fp8 copies, one transposed, beside the 16-bit weights
        count = dense + experts + tables
        formula = f"{count / 1e9:.3f}e9 parameters x ({whole:g} + {shared:g}/{plan.shard_size})"
        formula += f", {experts / 1e9:.3f}e9 of them experts over {expert_shards(plan):g}" if experts else ""
        found.append(Term(name, size, formula, "convention" if name == "gradients" else "derived", *_doubt(plan, name)))
    return [term for term in found if term.bytes]


def _doubt(plan: Plan, name: str) -> tuple[float, float]:
    """Programs keep gradients in 16 or 32 bits, or both: what the request cannot say."""
    if plan.program == "megatron" and name == "gradients" and plan.precision != "fp16":
        return 0.5, 1.1
    if name == "optimizer moments" and _published_moments(plan, 0) and plan.optimizer != "adamw_bf16":
        return 1.0, 2.0
    return 1.0, 1.0


def _on_cpu(plan: Plan) -> set[str]:
    """ZeRO-Offload: states and, from stage 2 on, the gradients; with parameters, the weights too (gathered ones are a buffer)."""
    if plan.offload == "none":
        return set()
    gone = {"master weights", "optimizer moments"}
    gone |= {"gradients"} if plan.sharding in ("zero2", "zero3", "fsdp", "hsdp") else set()
    return gone | ({"weights"} if plan.offload == "parameters" else set())


def _frozen(plan: Plan, here: Counts) -> list[Term]:
    """Frozen weights: 16 bits, or four bits and a scale for the linear layers of QLoRA."""
    size = float(plan.bytes_16)
    shards = plan.shard_size if plan.sharding in ("zero3", "fsdp", "hsdp") else 1
    linear = here.dense + here.experts
    if plan.offload == "parameters":
        return []
    if plan.peft != "qlora":
        return [Term("frozen weights", here.every * size / shards, f"{here.every / 1e9:.3f}e9 x {size:g} / {shards}", "derived")]
    row = allowance("nf4")
    four = Term(
        "frozen 4-bit weights", linear * row.value / shards, f"{linear / 1e9:.3f}e9 x {row.value} / {shards}", "published", row.low / row.value
    )
    return [
        four,
        Term("frozen tables", here.tables * size / shards, f"{here.tables / 1e9:.3f}e9 x {size:g} / {shards} (token table and head)", "derived"),
    ]
