"""A layout as the flags of a program: Megatron-LM, torchtitan, DeepSpeed, or FSDP through accelerate.

Names are those of the programs' sources in August 2026. Knows what a layout says and nothing of data, model or paths;
a flag that a version lacks is refused by the program itself, so nothing is passed twice under two names.

>>> flags(layout, job)[0]
'--tensor-model-parallel-size 8'
"""

from __future__ import annotations

from skillserver.errors import BadRequest
from skillserver.estimate.layouts import FRAMEWORKS, Job, Layout, shard_size

RAN = {
    "megatron": "Megatron-LM (core, August 2026)",
    "torchtitan": "torchtitan (August 2026; before mid-2026 --training.local_batch_size, global_batch_size, seq_len)",
    "deepspeed": "DeepSpeed configuration JSON",
    "fsdp": "accelerate configuration YAML (FSDP2)",
}


def flags(layout: Layout, job: Job) -> list[str]:
    """Flags, or configuration lines, of the layout's program."""
    if layout.framework not in FRAMEWORKS:
        raise BadRequest("unknown_framework", f"framework {layout.framework!r} is not known", valid=FRAMEWORKS, next="pass one of these")
    return {"megatron": _megatron, "torchtitan": _torchtitan, "deepspeed": _deepspeed, "fsdp": _fsdp}[layout.framework](layout, job)


def accumulation(layout: Layout, job: Job) -> int:
    """Micro-batches a data-parallel rank passes in a step."""
    return job.global_batch // (layout.dp * layout.micro_batch)


def _megatron(layout: Layout, job: Job) -> list[str]:
    found = [f"--tensor-model-parallel-size {layout.tp}", f"--pipeline-model-parallel-size {layout.pp}"]
    found += [f"--num-virtual-stages-per-pipeline-rank {layout.virtual_stages}"] * (layout.virtual_stages > 1)
    if job.shape.layers % layout.pp and layout.virtual_stages == 1:
        most = -(-job.shape.layers // layout.pp)
        found += [f"--decoder-last-pipeline-num-layers {job.shape.layers - most * (layout.pp - 1)}"]
    elif job.shape.layers % (layout.pp * layout.virtual_stages):
        found += ["--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split"]
    found += ["--sequence-parallel"] * (layout.tp > 1) + [f"--context-parallel-size {layout.cp}"] * (layout.cp > 1)
    if job.shape.experts:
        found += [f"--expert-model-parallel-size {layout.ep}", "--expert-tensor-parallel-size 1", "--moe-grouped-gemm"]
        found += ["--moe-token-dispatcher-type alltoall"]
    if layout.sharding != "none":
        found += ["--use-distributed-optimizer", "--overlap-grad-reduce", "--overlap-param-gather"]
    found += [f"--micro-batch-size {layout.micro_batch}", f"--global-batch-size {job.global_batch}", f"--seq-length {job.seq_len}"]
    found += ["--fp16"] if job.precision == "fp16" else ["--bf16"]
    found += ["--fp8-format hybrid"] * (job.precision == "fp8")
    if layout.activation_recompute == "full":
        found += ["--recompute-granularity full", "--recompute-method uniform", "--recompute-num-layers 1"]
    return [*found, "--use-flash-attn"]


def _torchtitan(layout: Layout, job: Job) -> list[str]:
    ranks = layout.dp * layout.cp
    shard = shard_size(job.cluster.node, layout) if layout.sharding == "hsdp" else ranks
    found = [
        f"--parallelism.data_parallel_shard_degree {max(shard // layout.cp, 1)}",
        f"--parallelism.data_parallel_replicate_degree {ranks // shard}",
        f"--parallelism.tensor_parallel_degree {layout.tp}",
        f"--parallelism.pipeline_parallel_degree {layout.pp}",
        f"--parallelism.context_parallel_degree {layout.cp}",
        f"--training.max_context_length {job.seq_len}",
        f"--training.num_tokens_per_microbatch_per_dp_rank {layout.micro_batch * job.seq_len}",
        f"--training.num_tokens_per_train_step {job.global_batch * job.seq_len}",
        "--compile.enable",
    ]
    if layout.pp > 1:
        schedule = "Interleaved1F1B" if layout.virtual_stages > 1 else "1F1B"
        found += [f"--parallelism.pipeline_parallel_schedule {schedule}", f"--parallelism.num_pp_microbatches {accumulation(layout, job)}"]
    found += [f"--parallelism.expert_parallel_degree {layout.ep}"] * (layout.ep > 1)
    keeps = {"selective": "SelectiveAC", "full": "FullAC"}.get(layout.activation_recompute)
    found += [f"activation checkpointing: {keeps}.Config in the model's config"] if keeps else []
    return found + ["float8 converter for linear layers in the model's config"] * (job.precision == "fp8")


def _deepspeed(layout: Layout, job: Job) -> list[str]:
    kind = "fp16" if job.precision == "fp16" else "bf16"
    found = [
        f'"zero_optimization": {{"stage": {layout.sharding[-1]}, "overlap_comm": true, "contiguous_gradients": true}}',
        f'"train_micro_batch_size_per_gpu": {layout.micro_batch}',
        f'"gradient_accumulation_steps": {accumulation(layout, job)}',
        f'"train_batch_size": {job.global_batch}',
        f'"{kind}": {{"enabled": true}}',
    ]
    return found + ["gradient_checkpointing=True in the trainer"] * (layout.activation_recompute == "full")


def _fsdp(layout: Layout, job: Job) -> list[str]:
    found = [
        "fsdp_version: 2",
        "fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP",
        "fsdp_reshard_after_forward: true",
        f"fsdp_activation_checkpointing: {str(layout.activation_recompute == 'full').lower()}",
        f"mixed_precision: {job.precision}",
        f"per_device_train_batch_size={layout.micro_batch}, gradient_accumulation_steps={accumulation(layout, job)} in the trainer",
    ]
    if layout.sharding == "hsdp":
        shard = shard_size(job.cluster.node, layout)
        found += [f"parallelism_config_dp_shard_size: {shard}", f"parallelism_config_dp_replicate_size: {layout.dp // shard}"]
    return found
