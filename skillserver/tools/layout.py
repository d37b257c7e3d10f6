"""Face of layout planning: which parallelism for this model on this cluster, why, and the flags to pass.

Knows how a request is read and how an answer is laid out; the search is in estimate/layouts*.py. Published matmul
rates come from measure/published.py. Nothing here is measured: step times are predicted, and say how well.

>>> plan_parallelism(model="llama-3-70b", seq_len=8192, global_batch=512, n_accelerators=64, accelerator="h100").plans[0].tp
4
"""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import BaseModel, Field

from skillserver import topics
from skillserver.contract import tool
from skillserver.errors import BadRequest
from skillserver.estimate import communication, compute, layout_flags, layouts, layouts_alternatives, layouts_refusal, shape_advice
from skillserver.estimate.layouts import Job, Timed
from skillserver.estimate.memory_buffers import capacity_gib
from skillserver.estimate.memory_plan import shape_of
from skillserver.estimate.work import forward
from skillserver.findings import Interval
from skillserver.hardware import catalogue
from skillserver.hardware.catalogue import Accelerator
from skillserver.measure.published import published

PRECISIONS = ("bf16", "fp16", "fp8")
TIE = 1.05  # predicted times this near are the same, as far as the prediction knows
NVL72 = {"GB200-186GB": 72}
PAST_PEAK = 1.1  # boost clocks above the one that the printed peak is for
PLENTY_GB_S = 200  # a GPU, between nodes: twice the fastest port sold (XDR, 100)
NODE = 8
SKIPPED = [
    "data loading, evaluation, checkpoints, failures",
    "schedules beyond 1F1B and interleaved (zero bubble, DualPipe)",
    "tensor parallelism beyond 8 or a node",
]


class PlanRow(BaseModel):
    """One layout that fits. Shares are of the step."""

    tp: int
    pp: int
    virtual_stages: int
    dp: int
    cp: int
    ep: int
    micro_batch: int
    sharding: str
    activation_recompute: str
    framework: str
    step_s: float
    tokens_per_s_per_gpu: float
    tflops_per_gpu: float = Field(description="model FLOPs, causal attention")
    mfu: float
    bubble_share: float
    communication_share: float = Field(description="not hidden")
    device_gib: float
    headroom_gib: float


class Lost(BaseModel):
    """A layout that people try first, and what became of it."""

    layout: str
    verdict: str
    why: str
    step_s: float | None


class LayoutPlan(BaseModel):
    """Predicted, never measured; `plans` are fastest first, one of each division of the GPUs."""

    summary: str
    plans: list[PlanRow]
    step_s: Interval = Field(description="of the first plan, 80%")
    step_parts_s: dict[str, float] = Field(description="of the first plan")
    flags: list[str] = Field(description="of the first plan, for flags_of")
    flags_of: str
    alternatives: list[Lost]
    capacity_gib: float
    considered: int
    assumptions: list[str]
    warnings: list[str]
    skipped: list[str]
    sections: list[str]
    next: str


@tool(toolset="core", title="Plan parallelism", read_only=True)
def plan_parallelism(
    model: Annotated[str | dict[str, Any], Field(description="name or HF config")],
    seq_len: Annotated[int, Field(ge=1, le=10**8, description="tokens")],
    global_batch: Annotated[int, Field(ge=1, le=10**7, description="sequences a step")],
    n_accelerators: Annotated[int, Field(ge=1, le=10**6, description="GPUs")],
    accelerator: Annotated[str, Field(description="H100-80GB-SXM")],
    gpus_per_node: Annotated[int | None, Field(ge=1, le=1024, description="8")] = None,
    network: Annotated[str | float | None, Field(description="NDR, EFA-p5, or GB/s a GPU")] = None,
    precision: Annotated[str, Field(description="bf16 fp16 fp8")] = "bf16",
    framework: Annotated[str | None, Field(description="megatron torchtitan deepspeed fsdp")] = None,
    fixed: Annotated[dict[str, Any] | None, Field(description="tp pp virtual_stages dp cp ep micro_batch sharding activation_recompute")] = None,
    matmul_tflops: Annotated[float | None, Field(gt=0, le=1e5, description="measured")] = None,
) -> LayoutPlan:
    """Call to choose TP, PP, FSDP/ZeRO, CP, EP, micro-batch: layouts that fit, fastest first, why others lose, flags.

    `fixed` holds what is decided already; a layout that cannot exist is refused with the nearest that can. Without
    `framework` all four are searched and the flags are of the winner's. `matmul_tflops` is what run_mamf measured.
    """
    job, notes = _job(shape_of(model), seq_len, global_batch, n_accelerators, accelerator, gpus_per_node, network, precision, framework, fixed,
                      matmul_tflops)  # fmt: skip
    found = layouts.search(job)
    if not found.considered:
        raise layouts_refusal.impossible(job)
    if not found.fitting:
        raise _too_small(job, found)
    return _answer(job, found, notes)


def _job(shape: Any, seq_len: int, batch: int, n: int, accelerator: str, node: int | None, network: str | float | None, precision: str,
         framework: str | None, fixed: dict[str, Any] | None, matmul_tflops: float | None) -> tuple[Job, list[str]]:  # fmt: skip
    """The request, checked, and how it was read. Raises BadRequest naming the field."""
    if framework is not None and framework not in layouts.FRAMEWORKS:
        raise BadRequest("unknown_framework", f"framework {framework!r} is not known", valid=layouts.FRAMEWORKS, next="pass one of these")
    part, kind = catalogue.accelerator(accelerator), catalogue.dtype(precision)
    if kind not in PRECISIONS:
        raise BadRequest("unknown_precision", f"precision {precision!r} is not planned for", valid=PRECISIONS, next="pass precision='bf16'")
    compute.peak_for(part, kind)
    size = node or NVL72.get(part.id, NODE)
    between, notes = _between(part, network, size, n)
    if node is None and n > 1:
        notes.append(f"{size} GPUs a node taken")
    ceilings = {"bf16": matmul_tflops} if matmul_tflops and kind != "fp8" else {}
    for one in ("bf16", "fp8"):
        if one not in ceilings and (known := published(part.id, one)):
            ceilings[one] = known.tflops
    if matmul_tflops and kind == "fp8":
        ceilings["fp8"] = matmul_tflops
    _check_measured(matmul_tflops, part, kind)
    notes.append(_ceiling_note(ceilings, kind, matmul_tflops))
    cluster = communication.Cluster(part, n, size, communication.inside_gb_s(part), between, tuple(ceilings.items()))
    return Job(shape, seq_len, batch, cluster, kind, framework=framework, fixed=layouts_refusal.checked(fixed or {}, shape, seq_len, n)), notes


def _check_measured(measured: float | None, part: Accelerator, kind: str) -> None:
    """A matmul faster than the dense peak was counted with sparsity, in another precision, or on another part: no plan rests on it."""
    peak = compute.peak_for(part, kind).tflops
    if measured and not 0.01 * peak <= measured <= PAST_PEAK * peak:
        raise BadRequest("bad_matmul_tflops", f"matmul_tflops {measured:g} against the dense {kind} peak of {peak:g} of {part.id} cannot be",
                         valid=[f"{0.01 * peak:.3g} to {PAST_PEAK * peak:.4g}"],
                         next="pass TFLOPS of a dense matmul in that precision, as run_mamf measures")  # fmt: skip


def _between(part: Accelerator, network: str | float | None, node: int, n: int) -> tuple[float, list[str]]:
    """GB/s a GPU between nodes; named, given, or the usual port of the part's years."""
    if network is None:
        usual = "InfiniBand-NDR" if part.year >= 2022 else "InfiniBand-HDR"
        rate = communication.between_gb_s(usual, node)
        return rate, [f"network taken as {usual}, {rate:g} GB/s a GPU: pass network"] if n > node else []
    rate = communication.between_gb_s(_number(network), node)
    if not 0 < rate <= 10**4:
        raise BadRequest("bad_network", f"network: {rate:g} GB/s a GPU is not a rate", next="pass a link's name or GB/s a GPU")
    doubt = f"; more than any port sold: if {rate:g} Gb/s was meant, pass {rate / 8:g}" if rate > PLENTY_GB_S and n > node else ""
    return rate, [f"{rate:g} GB/s a GPU between nodes, each way{doubt}"]


def _number(network: str | float) -> str | float:
    try:
        return float(network)
    except ValueError:
        return network


def _ceiling_note(ceilings: dict[str, float], kind: str, measured: float | None) -> str:
    key = "bf16" if kind == "fp16" else kind
    if measured:
        return f"matmuls reach {measured:g} TFLOPS as measured"
    if key in ceilings:
        return f"matmuls reach at most {ceilings[key]:g} TFLOPS ({key}), the fastest published"
    return f"no published matmul rate of this part: {communication.allowance('matmul_share_of_peak'):.0%} of peak assumed"


def _too_small(job: Job, found: layouts.Found) -> BadRequest:
    """Nothing fits: say by how much the leanest layout misses."""
    least = layouts_alternatives.leanest(job, found.considered)
    need, have = least.memory.device.expected if least.memory else 0.0, capacity_gib(job.cluster.part)
    freed = "; or free what is fixed" if job.fixed else ""
    digits = 1 if need < 1.1 * have else 0  # "8 of 8 GiB" would tell nobody why
    leanest = layouts_alternatives.brief(least.layout)
    said = f"the leanest of {len(found.considered)} layouts ({leanest}) takes {need:,.{digits}f} GiB of {have:.{digits}f}"
    enough = max(math.ceil(job.cluster.n * need / have), job.cluster.n + 1)
    return BadRequest("does_not_fit", said, next=f"use at least {enough:,} GPUs, larger ones, or shorter sequences{freed}")


def _answer(job: Job, found: layouts.Found, notes: list[str]) -> LayoutPlan:
    best, spread = found.fitting[0], communication.allowance("spread_experts" if job.shape.experts else "spread")
    lost = layouts_alternatives.alternatives(job, found)
    total = best.step.total_s
    return LayoutPlan(
        summary=_summary(found.fitting), plans=[_row(job, one) for one in found.fitting],
        step_s=Interval(low=_three(total / spread), expected=_three(total), high=_three(total * spread)),
        step_parts_s={name: _three(value) for name, value in best.step._asdict().items() if value},
        flags=layout_flags.flags(best.layout, job), flags_of=layout_flags.RAN[best.layout.framework],
        alternatives=[_lost(one) for one in lost],
        capacity_gib=round(capacity_gib(job.cluster.part), 1), considered=len(found.considered), assumptions=[*notes, *_assumptions(job)],
        warnings=_warnings(job, best), skipped=SKIPPED, sections=topics.sections("layout_choice", "layout_pipeline", *_topics(job)),
        next="run 20 steps of plans 1 and 2 and keep the faster; estimate_memory with the same sizes shows where memory goes",
    )  # fmt: skip


def _lost(one: layouts_alternatives.Alternative) -> Lost:
    return Lost(layout=one.name, verdict=one.verdict, why=one.why, step_s=_three(one.best.step.total_s) if one.best else None)


def _three(value: float) -> float:
    return float(f"{value:.3g}")


def _row(job: Job, one: Timed) -> PlanRow:
    total, n, tokens = one.step.total_s, job.cluster.n, job.global_batch * job.seq_len
    tflops = 3 * forward(job.shape, job.seq_len).causal * tokens / total / n / 1e12
    peak = compute.peak_for(job.cluster.part, job.precision).tflops
    used = one.memory.device.expected if one.memory else 0.0
    sizes: dict[str, Any] = one.layout._asdict()
    return PlanRow(**sizes, step_s=_three(total), tokens_per_s_per_gpu=_three(tokens / total / n), tflops_per_gpu=_three(tflops),
                   mfu=round(tflops / peak, 3),
                   bubble_share=round(one.step.bubble_s / total, 3), communication_share=round(one.step.communication_s / total, 3),
                   device_gib=round(used, 1), headroom_gib=round(capacity_gib(job.cluster.part) - used, 1))  # fmt: skip


def _summary(fitting: list[Timed]) -> str:
    """The best plan, and the simplest of those that are as fast as far as anyone can predict."""
    best = fitting[0]
    said = f"Predicted fastest: {layouts_alternatives.brief(best.layout)} ({best.layout.framework}), {best.step.total_s:.3g} s a step"
    ties = [one for one in fitting if one.step.total_s <= TIE * best.step.total_s]
    simple = min(ties, key=lambda one: (_parts(one), one.step.total_s))
    if _parts(simple) < _parts(best):
        said += f"; {layouts_alternatives.brief(simple.layout)} ({simple.layout.framework}) is simpler and within {TIE - 1:.0%}, a difference "
        said += "no prediction can tell"
    return said + "."


def _parts(one: Timed) -> int:
    return sum(size > 1 for size in one.layout[:2]) + (one.layout.cp > 1) + (one.layout.ep > 1) + (one.layout.virtual_stages > 1)


def _assumptions(job: Job) -> list[str]:
    cluster = job.cluster
    said = [f"{cluster.inside_gb_s:g} GB/s each way inside a node; shares that collectives and kernels reach are in data/layout_allowances.toml",
            "AdamW; fused attention; tensor parallelism with sequence parallelism; ranks in the order tp, cp, dp, pp",
            f"a plan leaves {1 - layouts.ROOM:.0%} of {capacity_gib(cluster.part):.0f} GiB free"]  # fmt: skip
    if job.shape.experts:
        said.append("experts evenly loaded, not cut by tp; DeepSpeed and plain FSDP are tried for experts only when asked for")
    return said


def _warnings(job: Job, best: Timed) -> list[str]:
    said, cluster = shape_advice.too_long(job.shape, job.seq_len), job.cluster
    if cluster.part.vendor not in ("NVIDIA", "AMD"):
        said.append(f"{cluster.part.id}: rates are of GPUs under PyTorch; compilers of other parts arrange work in their own way")
    if cluster.n > cluster.node and cluster.n % cluster.node:
        said.append(f"{cluster.n} GPUs are not whole nodes of {cluster.node}: some groups cross nodes that are taken to lie inside one")
    if best.memory and best.memory.device.high > capacity_gib(cluster.part):
        said.append(f"memory of the first plan may reach {best.memory.device.high:.0f} GiB of {capacity_gib(cluster.part):.0f}: try two steps first")
    if job.shape.experts or job.shape.state_layers:
        said.append("published speeds of experts and state-space layers vary twofold between releases: trust the order more than the times")
    return said


def _topics(job: Job) -> list[str]:
    return ["layout_experts"] * bool(job.shape.experts) + ["layout_context"] * (job.seq_len >= layouts.LONG) + ["layout_limits"]
