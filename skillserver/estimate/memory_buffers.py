"""What is neither a state nor an activation of a layer: logits and loss, gathered weights, buckets, context, capacity.

Sizes come from the program's own defaults (data/memory_allowances.toml). Knows one GPU; not the links between them.

>>> round(loss(plan(shape_of("llama-3-8b"), seq_len=8192, sharding="fsdp")).bytes / 2**30, 2)
12.05
"""

from __future__ import annotations

from skillserver.estimate.memory_activations import saved
from skillserver.estimate.memory_plan import Plan
from skillserver.estimate.memory_states import Counts, Stage, counts, per_parameter, trainable
from skillserver.estimate.memory_terms import Term, allowance, allowed
from skillserver.hardware.catalogue import Accelerator

GATHERED_LAYERS = 2  # the one at work and the one prefetched
GDDR = ("T4", "A10-", "L4-", "L40S", "RTX")


def loss(plan: Plan) -> Term:
    """Logits and what the loss makes of them at its worst moment; tensor parallelism cuts the vocabulary."""
    name = f"loss_{plan.program}" if plan.loss == "eager" else f"loss_{plan.loss}"
    row = allowance(name)
    logits = plan.tokens * plan.shape.vocab / plan.tp
    per_logit = row.value * (2 if plan.bytes_16 == 4 and name == "loss_deepspeed" else 1)
    ends = plan.tokens * (8 + plan.bytes_16) * plan.shape.hidden / (plan.tp if plan.sequence_parallel else 1)
    formula = f"{plan.tokens:,.0f} tokens x {plan.shape.vocab} / {plan.tp} x {per_logit:g} bytes a logit, and the final norm"
    return Term("logits and loss", logits * per_logit + ends, formula, "convention", row.low / row.value, row.high / row.value, transient=True)


def gathered(plan: Plan, stage: Stage) -> list[Term]:
    """Whole weights that sharded programs hold for a while, and the gradients on their way to the shards."""
    here = counts(plan, stage)
    if plan.program == "fsdp":
        return _fsdp(plan, here, stage)
    if plan.sharding == "zero3":
        live = min(here.every, allowance("zero3_live").value) * plan.bytes_16
        return [Term("gathered weights", live, "stage3_max_live_parameters", "convention", 0.2, 1.0, transient=True)]
    if plan.offload == "parameters":
        return [_layer(plan, here, stage, GATHERED_LAYERS)]
    return []


def _fsdp(plan: Plan, here: Counts, stage: Stage) -> list[Term]:
    """Without a pipeline two layers and the tables are gathered; with one the stage stays whole and its gradients add up in fp32."""
    if plan.pp > 1 and plan.peft == "none":
        size = here.every * (plan.bytes_16 + 4)
        formula = f"{here.every / 1e9:.3f}e9 x (16-bit weights, kept between micro-batches, + fp32 gradients until the last)"
        return [Term("gathered weights and gradients", size, formula, "convention", 0.7, 1.05)]
    tables = here.tables * plan.bytes_16
    found = [
        _layer(plan, here, stage, GATHERED_LAYERS),
        Term("gathered tables", tables, "token table and head in 16 bits", "convention", 0.5, 2.0, True),
    ]
    if plan.peft == "none":
        size = (here.dense + here.experts) / stage.layers * (2 + 4)
        found.append(Term("gradients before reduction", size, "one layer, 16 bits and fp32", "convention", 0.5, 2, True))
    return found


def _layer(plan: Plan, here: Counts, stage: Stage, layers: int) -> Term:
    size = (here.dense + here.experts) / stage.layers * layers * plan.bytes_16
    return Term("gathered layers", size, f"{layers} layers in 16 bits", "convention", 0.5, 1.5, transient=True)


def buckets(plan: Plan, stage: Stage) -> list[Term]:
    """DeepSpeed's flat buffers: one to reduce gradients, one to gather weights; never more than what is trained.

    Megatron-Core, which trains the models with experts, communicates from the gradients' own buffer.
    """
    if plan.sharding not in ("zero1", "zero2", "zero3") or (plan.program == "megatron" and plan.shape.experts):
        return []
    here = counts(plan, stage)
    trained = here.every if plan.peft == "none" and plan.trainable is None else trainable(plan, here)
    row = allowance("zero_bucket")
    elements = min(row.value, trained)
    return [Term("ZeRO buckets", 2 * elements * plan.bytes_16, f"2 x {elements:.2g} elements", "convention", row.low / row.value, 1.5)]


def backward_working_set(plan: Plan, *, recomputed: bool) -> list[Term]:
    """The layer that backward is in: what it recomputed, the gradients inside it, and the inputs that tensor parallelism gathers."""
    shape, size = plan.shape, plan.bytes_16
    wide = max(shape.ffn * (1 + shape.gated), shape.expert_ffn * shape.experts_per_token * 2, shape.attention_width)
    inside = plan.tokens * size * (2 * shape.hidden + 2 * wide / plan.tp)
    found = [Term("gradients inside a layer", inside, "largest tensors of one layer", "derived", 0.5, 1.5, True)]
    if recomputed:
        found.append(Term("layer recomputed", plan.tokens * saved(plan).on_one(plan), "one layer with nothing recomputed", "derived", 0.7, 1.2, True))
    return found


def step_temporary(plan: Plan, stage: Stage) -> Term:
    """torch's foreach AdamW makes one temporary of every parameter it updates."""
    each, here = per_parameter(plan), counts(plan, stage)
    if plan.program not in ("fsdp", "torch") or plan.peft != "none":
        return Term("optimizer step", 0, "", "convention")
    whole, shared = each.weights
    size = here.every * (4 * bool(whole) + 4 * bool(shared) / plan.shard_size)
    return Term("optimizer step", size, "one fp32 temporary of the parameters on this GPU (foreach)", "convention", 0.0, 2.0, transient=True)


def outside(plan: Plan) -> list[Term]:
    """What PyTorch does not report: the CUDA context, and NCCL's buffers for each process group."""
    groups = sum(size > 1 for size in (plan.tp, plan.pp, plan.dp, plan.cp, plan.ep))
    groups += groups > 1 or (plan.program == "deepspeed" and not groups)  # the group of all ranks, which DeepSpeed opens for one rank too
    found = [allowed("context", "CUDA context", 2**30, "published readings")]
    if groups:
        found.append(allowed("communicator", "NCCL buffers", groups * 2**30, f"{groups} process groups"))
    return found


def capacity_gib(part: Accelerator) -> float:
    """GiB of a part that programs can use."""
    kind = "capacity_gddr" if part.id.startswith(GDDR) else "capacity_hbm"
    return part.memory_gb * allowance(kind).value
