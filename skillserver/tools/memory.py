"""Face of the memory estimate: does a training job fit on a GPU, what takes the memory, and what to change.

Knows how a request is read and how an answer is laid out; the arithmetic is in estimate/memory*.py. Nothing here is
measured: every number is derived, and says from what.

>>> job = {"model": "llama-3-8b", "seq_len": 8192, "sharding": "fsdp", "n_accelerators": 8, "accelerator": "h100"}
>>> estimate_memory(**job).fit, estimate_memory(**job, activation_recompute="full").fits
('close', True)
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field

from skillserver import topics
from skillserver.contract import tool
from skillserver.estimate import memory_advice, shape_advice
from skillserver.estimate.memory import Peak, peak
from skillserver.estimate.memory_buffers import capacity_gib
from skillserver.estimate.memory_plan import Plan, plan, shape_of
from skillserver.estimate.memory_terms import Term
from skillserver.estimate.shape import Architecture
from skillserver.findings import Interval
from skillserver.hardware import catalogue
from skillserver.units import GIB, parse_count

PROGRAMS = {
    "fsdp": "FSDP2 as in torchtitan: fp32 weights, gradients and states in shards, layers gathered in 16 bits",
    "megatron": "Megatron-like: 16-bit weights, fp32 master copy, vocabulary-parallel loss, fused kernels",
    "deepspeed": "DeepSpeed ZeRO under a Hugging Face trainer: 16-bit model, fp32 master copy and gradients in the optimizer",
    "torch": "one process or DDP: fp32 weights under autocast, logits returned in fp32",
}


def _positive(value: int) -> int:
    if not 1 <= value <= 10**9:
        raise ValueError("give a whole number from 1 to 1e9")
    return value


def _few(value: float) -> float:
    if not 1 <= value <= 1e15:
        raise ValueError("give a count from 1 to 1e15, such as '4.2M'")
    return value


Size = Annotated[int, AfterValidator(_positive)]  # no bounds in the schema: they would cost an agent more than they tell it
Few = Annotated[float, BeforeValidator(parse_count), AfterValidator(_few)]


class Part(BaseModel):
    """One line of the sum."""

    term: str
    gib: float
    formula: str
    basis: str = Field(description="derived: shapes; convention: a program's habit; published: readings; assumed")
    counts_in: Literal["allocated", "reserved", "device"] = Field(description="the smallest of the three that holds it")


class Suggestion(BaseModel):
    """A change that makes it fit, to be passed as arguments."""

    change: str
    arguments: dict[str, Any]
    slowdown: str
    device_gib: float


class MemoryEstimate(BaseModel):
    """Derived, never measured; of the fullest GPU at its worst moment. Intervals are 80%."""

    peak_gib: Interval = Field(description="torch.cuda.max_memory_allocated")
    reserved_gib: Interval = Field(description="torch.cuda.max_memory_reserved")
    device_gib: Interval = Field(description="nvidia-smi: with CUDA context and NCCL")
    fits: bool | None = Field(description="device_gib.expected against capacity; null without accelerator")
    fit: str = Field(description="clear: the whole interval agrees; close: it does not; unknown")
    capacity_gib: float | None
    moment: str
    pipeline_stage: int
    layout: dict[str, int]
    breakdown: list[Part]
    suggestions: list[Suggestion] = Field(description="what makes it fit, least slowdown first")
    warnings: list[str]
    assumptions: list[str]
    skipped: list[str]
    sections: list[str]
    next: str


@tool(toolset="core", title="Estimate memory", read_only=True)
def estimate_memory(
    model: Annotated[str | dict[str, Any], Field(description="name or HF config")],
    seq_len: Annotated[Size, Field(description="tokens")],
    micro_batch: Annotated[Size | None, Field(description="1")] = None,
    tp: Annotated[Size | None, Field(description="tensor")] = None,
    pp: Annotated[Size | None, Field(description="pipeline")] = None,
    dp: Annotated[Size | None, Field(description="data")] = None,
    cp: Annotated[Size | None, Field(description="context")] = None,
    ep: Annotated[Size | None, Field(description="expert")] = None,
    n_accelerators: Annotated[Size | None, Field(description="GPUs")] = None,
    accelerator: Annotated[str | None, Field(description="H100-80GB-SXM")] = None,
    sharding: Annotated[str | None, Field(description="none zero1-3 fsdp hsdp")] = None,
    activation_recompute: Annotated[str | None, Field(description="none selective full")] = None,
    precision: Annotated[str | None, Field(description="bf16 fp16 fp8 fp32")] = None,
    optimizer: Annotated[str | None, Field(description="adamw adamw_8bit muon sgd")] = None,
    peft: Annotated[str | None, Field(description="none lora qlora adapter")] = None,
    lora_rank: Annotated[Size | None, Field(description="16")] = None,
    trainable_params: Annotated[Few | None, Field(description="if not all")] = None,
    sequence_parallel: Annotated[bool | None, Field(description="with tp")] = None,
    extra: Annotated[dict[str, Any] | None, Field(description="etp virtual_stages micro_batches offload loss")] = None,
) -> MemoryEstimate:
    """Call to see whether training fits: peak GPU memory by term, and what to change if not.

    The first word of a description is the default. Layouts that cannot exist are refused with the nearest that can.
    `extra` holds etp, virtual_stages, micro_batches, shard_size (of hsdp), offload (optimizer, parameters),
    fused_kernels, attention (flash, eager), loss (eager, compiled, chunked).
    """
    part = catalogue.accelerator(accelerator) if accelerator else None
    sizes = {"tp": tp, "pp": pp, "dp": dp, "cp": cp, "ep": ep, "n_accelerators": n_accelerators}
    request: dict[str, Any] = {
        "seq_len": seq_len, "micro_batch": micro_batch or 1, "sharding": sharding or "none", "recompute": activation_recompute or "none",
        "precision": precision or "bf16", "optimizer": optimizer or "adamw", "peft": peft or "none", "lora_rank": lora_rank,
        "trainable": trainable_params, "sequence_parallel": sequence_parallel, "part": part, "sizes": sizes, "extra": extra,
    }  # fmt: skip
    return _answer(shape_of(model), request)


def _answer(shape: Architecture, request: dict[str, Any]) -> MemoryEstimate:
    job = plan(shape, **request)
    worst, capacity = peak(job), capacity_gib(job.part) if job.part else None
    fits = worst.device.expected <= capacity if capacity else None
    changes = memory_advice.suggest(shape, request, capacity) if capacity and not fits else []
    fit = _fit(worst.device, capacity)
    return MemoryEstimate(
        peak_gib=_rounded(worst.allocated), reserved_gib=_rounded(worst.reserved), device_gib=_rounded(worst.device), fits=fits, fit=fit,
        capacity_gib=capacity, moment=worst.moment, pipeline_stage=worst.stage.number,
        layout={name: getattr(job, name) for name in ("tp", "pp", "dp", "cp", "ep", "etp", "shard_size")} | {"n_accelerators": job.world},
        breakdown=_breakdown(worst), suggestions=[_suggestion(one) for one in changes],
        warnings=_warnings(job, worst, capacity, fit), assumptions=_assumptions(job), skipped=_skipped(job, job.part is None),
        sections=topics.sections(*_topics(job, fits)), next=_next(fits, fit, bool(changes)),
    )  # fmt: skip


def _suggestion(one: memory_advice.Change) -> Suggestion:
    return Suggestion(change=one.what, arguments=one.arguments, slowdown=one.slowdown, device_gib=round(one.device_gib, 2))


def _rounded(interval: Interval) -> Interval:
    return Interval(low=round(interval.low, 2), expected=round(interval.expected, 2), high=round(interval.high, 2))


def _fit(device: Interval, capacity: float | None) -> str:
    if capacity is None:
        return "unknown"
    return "close" if device.low <= capacity <= device.high else "clear"


def _breakdown(worst: Peak) -> list[Part]:
    """Every term, largest first within what torch allocates, then what it reserves, then what it does not see."""
    allocated = sorted(worst.terms, key=lambda term: -term.bytes)
    reserved, *device = worst.beyond
    return [*(_part(term, "allocated") for term in allocated), _part(reserved, "reserved"), *(_part(term, "device") for term in device)]


def _part(term: Term, counts_in: Literal["allocated", "reserved", "device"]) -> Part:
    return Part(term=term.name, gib=round(term.bytes / GIB, 3), formula=term.formula, basis=term.basis, counts_in=counts_in)


def _warnings(job: Plan, worst: Peak, capacity: float | None, fit: str) -> list[str]:
    """What makes the number doubtful."""
    said = shape_advice.too_long(job.shape, job.seq_len)
    if job.sharding != "none" and job.world == 1:
        said.append(f"{job.sharding} over 1 GPU saves nothing: pass n_accelerators or dp")
    if capacity and fit == "close":
        said.append(
            f"too close to call: {worst.device.low:.0f} to {worst.device.high:.0f} GiB against {capacity:.0f}; measure a few steps before a long run"
        )
    if job.part and job.part.vendor not in ("NVIDIA", "AMD"):
        said.append(f"{job.part.id}: the formulas are of PyTorch on NVIDIA GPUs; compilers of other parts arrange memory in their own way")
    if job.shape.state_layers:
        said.append("activations of state-space layers are assumed, not proved against their kernels")
    if job.shape.experts:
        said.append("experts are taken as evenly loaded; a hot expert takes more")
    if job.program == "megatron" and job.precision != "fp16" and job.sharding in ("none", "zero1"):
        said.append("gradients may be kept in 16 bits, fp32 or both: 2, 4 or 6 bytes a parameter, as the program is set")
    return said


def _assumptions(job: Plan) -> list[str]:
    """How the request was understood, where it left something open."""
    said = [PROGRAMS[job.program], *job.notes, f"{'fused' if job.fused else 'unfused'} norms and gates, {job.attention} attention, {job.loss} loss"]
    if job.recompute == "selective":
        said.append("selective recomputation as torchtitan's per-operator policy" if job.program == "fsdp" else
                    "selective recomputation as Megatron's core attention, which flash attention does anyway")  # fmt: skip
    if job.pp > 1:
        flying = f"{job.micro_batches} micro-batches a step" if job.micro_batches else "at least as many micro-batches as stages"
        said.append(f"{'interleaved' if job.chunks > 1 else ''} 1F1B with {flying}".strip())
    if job.shape.experts and job.shape.latent and job.optimizer in ("adamw", "adam") and job.program in ("megatron", "deepspeed"):
        said.append("Adam's moments in bf16 as DeepSeek-V3 keeps them; in fp32 they take twice as much")
    if job.peft == "lora" and job.trainable is None:
        said.append(f"adapters of rank {job.lora_rank} on every linear layer")
    return said


def _skipped(job: Plan, no_part: bool) -> list[str]:
    said = ["evaluation, checkpoints being gathered, data on the GPU and other processes"]
    if no_part:
        said.append("fits: accelerator was not given")
    if job.offload != "none":
        said.append("CPU memory, which offloading fills with what left the GPU")
    return said


def _topics(job: Plan, fits: bool | None) -> list[str]:
    found = ["memory_states", "memory_activations", "memory_device"]
    if job.peft != "none":
        found.append("memory_adapters")
    if job.tp * job.pp * job.cp > 1:
        found.append("memory_parallel")
    return ["memory_reduce", *found] if fits is False else found


def _next(fits: bool | None, fit: str, changes: bool) -> str:
    if fits is None:
        return "pass accelerator to judge whether it fits"
    if fits:
        return "run two steps and compare max_memory_reserved with reserved_gib" if fit == "close" else "estimate_gpu_hours for the price of the run"
    return "call again with one suggestion's arguments" if changes else "use more or larger accelerators, or a smaller seq_len"
