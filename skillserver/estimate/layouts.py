"""Every layout of a model over a cluster that can exist, and those that fit, fastest first.

A layout is tensor, pipeline (with virtual stages), data, context and expert parallelism, sharding, micro-batch and
recomputation. Candidates keep tensor parallelism within the node, as its all-reduces sit on the critical path, and
are cut before the memory estimate by a lower bound on their states and activations. Only what FSDP2, Megatron-LM or
DeepSpeed run is a candidate. Does not know programs that mix layouts by layer.

>>> found = search(job); found.fitting[0].step.total_s <= found.fitting[-1].step.total_s
True
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from skillserver.estimate.communication import Cluster
from skillserver.estimate.layouts_bounds import Bound
from skillserver.estimate.memory import Peak, peak
from skillserver.estimate.memory_buffers import capacity_gib
from skillserver.estimate.memory_plan import Plan, plan
from skillserver.estimate.shape import Architecture
from skillserver.estimate.step_time import Step, Work, predict

MICRO_BATCHES = (1, 2, 4, 8, 16)
RECOMPUTES = ("none", "selective", "full")
CHUNKS = (1, 2, 4, 8)
LONG = 16384  # tokens from which context parallelism is worth its exchanges
LEAST_CHUNK = 2048  # tokens a rank keeps of a sequence
UNEVEN = 1.12  # the fullest stage against the mean
ROOM = 0.95  # of the capacity: a plan at the brim fails on the first long step
TESTED = 300  # memory estimates a search may make
FRAMEWORKS = ("megatron", "torchtitan", "deepspeed", "fsdp")
SHARDINGS = {"megatron": ("zero1",), "torchtitan": ("fsdp", "hsdp"), "deepspeed": ("zero1", "zero2", "zero3"), "fsdp": ("fsdp", "hsdp")}
FIXED = ("tp", "pp", "dp", "cp", "ep", "micro_batch", "virtual_stages", "sharding", "activation_recompute")


class Layout(NamedTuple):
    """Sizes of one layout; data parallelism is what is left of the GPUs."""

    tp: int
    pp: int
    dp: int
    cp: int
    ep: int
    micro_batch: int
    virtual_stages: int
    sharding: str
    activation_recompute: str
    framework: str


@dataclass(frozen=True)
class Job:
    """What is to be laid out: `global_batch` in sequences, `fixed` what the caller has decided."""

    shape: Architecture
    seq_len: int
    global_batch: int
    cluster: Cluster
    precision: str = "bf16"
    optimizer: str = "adamw"
    framework: str | None = None
    fixed: dict[str, Any] = field(default_factory=dict)


class Timed(NamedTuple):
    """A layout with its step, before or after its memory is known."""

    layout: Layout
    step: Step
    memory: Peak | None = None


class Found(NamedTuple):
    """`fitting` are fastest first; `considered` every possible one, fastest first, with `tested` memory estimates made."""

    fitting: list[Timed]
    considered: list[Timed]
    tested: int


def search(job: Job, *, wanted: int = 5) -> Found:
    """The fastest layout that fits of each division, fastest first; nothing is considered when none can exist (layouts_refusal.py says why)."""
    timed = sorted((Timed(one, predict(work_of(job, one))) for one in candidates(job)), key=lambda one: one.step.total_s)
    bound, tested = Bound(job.shape, job.seq_len, job.precision, job.optimizer, job.cluster.node), 0
    fitting: dict[tuple[int | str, ...], Timed] = {}
    room = ROOM * capacity_gib(job.cluster.part)
    for one in timed:
        if len(fitting) >= wanted or tested >= TESTED:
            break
        division = division_of(one.layout)
        if division in fitting or bound.gib(one.layout, job.global_batch) > room:
            continue
        tested += 1
        memory = peak(plan_of(job, one.layout))
        if memory.device.expected <= room:
            fitting[division] = one._replace(memory=memory)
    return Found(list(fitting.values()), timed, tested)


def division_of(layout: Layout) -> tuple[int | str, ...]:
    """What makes two layouts different answers: a list of one division with five micro-batches helps nobody."""
    return layout.tp, layout.pp, layout.cp, layout.ep, layout.sharding


def candidates(job: Job) -> Iterator[Layout]:
    """Every layout that can exist and that one of the programs runs."""
    for framework in _frameworks(job):
        for tp, pp, cp in _outer(job, framework):
            dp = job.cluster.n // (tp * pp * cp)
            for ep in _experts(job, framework, tp * cp * dp):
                for sharding in _shardings(job, framework, dp * cp):
                    yield from _inner(job, framework, (tp, pp, dp, cp, ep), sharding)


def _frameworks(job: Job) -> tuple[str, ...]:
    """All of them; those without expert parallelism run experts one after the other and are tried only when asked for."""
    if job.framework is not None:
        return (job.framework,)
    return FRAMEWORKS if not job.shape.experts else ("megatron", "torchtitan")


def _outer(job: Job, framework: str) -> Iterator[tuple[int, int, int]]:
    """tp, pp and cp whose product divides the GPUs."""
    plain, n = framework in ("deepspeed", "fsdp"), job.cluster.n
    if plain and any(job.fixed.get(name, 1) > 1 for name in ("tp", "pp", "cp", "ep")):
        return
    for tp in [1] if plain else _pick(job, "tp", _tensor(job)):
        for pp in [1] if plain else _pick(job, "pp", _pipeline(job.shape.layers, n)):
            for cp in [1] if plain else _pick(job, "cp", _context(job)):
                dp = n // (tp * pp * cp)
                if n % (tp * pp * cp) == 0 and dp in _pick(job, "dp", [dp]):
                    yield tp, pp, cp


def _inner(job: Job, framework: str, sizes: tuple[int, int, int, int, int], sharding: str) -> Iterator[Layout]:
    """Micro-batches, virtual stages and recomputation of one division of the GPUs."""
    tp, pp, dp, cp, ep = sizes
    for micro in _pick(job, "micro_batch", MICRO_BATCHES):
        if job.global_batch % (dp * micro):
            continue
        for chunks in _chunks(job, pp, job.global_batch // (dp * micro), framework):
            for recompute in _pick(job, "activation_recompute", RECOMPUTES):
                if recompute != "selective" or framework == "torchtitan":  # with flash attention Megatron's selective saves nothing
                    yield Layout(tp, pp, dp, cp, ep, micro, chunks, sharding, recompute, framework)


def _pick(job: Job, name: str, possible: Iterable[Any]) -> list[Any]:
    """What the caller fixed, else everything possible."""
    return [job.fixed[name]] if name in job.fixed else list(possible)


def _tensor(job: Job) -> list[int]:
    shape = job.shape
    whole = shape.heads or shape.hidden
    sizes = [size for size in (1, 2, 4, 8, 16, 32, 64) if size <= min(job.cluster.node, 8) and whole % size == 0]
    return [size for size in sizes if not shape.kv_heads or shape.kv_heads % size == 0 or size % shape.kv_heads == 0]


def _pipeline(layers: int, n: int) -> list[int]:
    """Stage counts that leave the stages nearly even."""
    return [pp for pp in range(1, min(layers, n) + 1) if n % pp == 0 and _even(layers, pp)]


def _even(layers: int, stages: int) -> bool:
    """Whether the fullest of so many stages holds nearly the mean, and every stage has a layer."""
    most = -(-layers // stages)
    return (stages - 1) * most < layers and most <= UNEVEN * layers / stages


def _interleaves(layers: int, stages: int, framework: str) -> bool:
    """Megatron cuts virtual stages evenly, counting embedding and loss as layers if asked; torchtitan nearly so."""
    return _even(layers, stages) and (framework != "megatron" or layers % stages == 0 or (layers + 2) % stages == 0)


def _context(job: Job) -> list[int]:
    if job.seq_len < LONG:
        return [1]
    return [size for size in (1, 2, 4, 8, 16, 32) if job.seq_len % size == 0 and job.seq_len // size >= LEAST_CHUNK]


def _experts(job: Job, framework: str, ranks: int) -> list[int]:
    if not job.shape.experts or framework in ("deepspeed", "fsdp"):
        return _pick(job, "ep", [1])
    divide = (size for size in range(1, job.shape.experts + 1) if job.shape.experts % size == 0 and ranks % size == 0)
    sizes = [size for size in divide if size & (size - 1) == 0]
    return _pick(job, "ep", sizes)


def _shardings(job: Job, framework: str, ranks: int) -> list[str]:
    found = [] if framework != "megatron" or ranks > 1 else ["none"]
    found += [one for one in SHARDINGS[framework] if ranks > 1 or one == "fsdp"]
    if "hsdp" in found and ranks <= job.cluster.node:
        found.remove("hsdp")
    asked = job.fixed.get("sharding")
    return [asked] if asked in [*SHARDINGS[framework], "none"] else found if asked is None else []


def _chunks(job: Job, pp: int, micro_batches: int, framework: str) -> list[int]:
    """Virtual stages a GPU; interleaving needs micro-batches in whole rounds of the stages and a nearly even cut of the layers."""
    if pp == 1:
        return [1] if job.fixed.get("virtual_stages", 1) == 1 else []
    whole = micro_batches % pp == 0
    return [c for c in _pick(job, "virtual_stages", CHUNKS) if c == 1 or (whole and _interleaves(job.shape.layers, pp * c, framework))]


def plan_of(job: Job, layout: Layout) -> Plan:
    """The memory plan of a layout, checked. Raises BadRequest with the nearest possible when it cannot exist."""
    sizes = {"tp": layout.tp, "pp": layout.pp, "dp": layout.dp, "cp": layout.cp, "ep": layout.ep, "n_accelerators": job.cluster.n}
    extra: dict[str, Any] = {"virtual_stages": layout.virtual_stages, "micro_batches": max(job.global_batch // (layout.dp * layout.micro_batch), 1)}
    if layout.sharding == "hsdp":
        extra["shard_size"] = shard_size(job.cluster.node, layout)
    return plan(job.shape, seq_len=job.seq_len, micro_batch=layout.micro_batch, sharding=layout.sharding, recompute=layout.activation_recompute,
                precision=job.precision, optimizer=job.optimizer, sequence_parallel=True if layout.tp > 1 else None, part=job.cluster.part,
                sizes=sizes, extra=extra)  # fmt: skip


def shard_size(node: int, layout: Layout) -> int:
    """Ranks of an HSDP shard: the data-parallel ranks of one node, as far as they divide."""
    ranks, size = layout.dp * layout.cp, max(node // layout.tp, 1)
    return next(one for one in range(min(size, ranks), 0, -1) if ranks % one == 0)


def work_of(job: Job, layout: Layout) -> Work:
    """The same for the step time, without checks (candidates are possible by construction)."""
    program = "fsdp" if layout.sharding in ("fsdp", "hsdp") else "deepspeed" if layout.framework == "deepspeed" else "megatron"
    ranks = layout.dp * layout.cp
    size = shard_size(job.cluster.node, layout) if layout.sharding == "hsdp" else 1 if layout.sharding == "none" else ranks
    made = Plan(job.shape, job.seq_len, layout.micro_batch, program, tp=layout.tp, pp=layout.pp, dp=layout.dp, cp=layout.cp,  # type: ignore[arg-type]
                ep=layout.ep, sharding=layout.sharding, shard_size=size, recompute=layout.activation_recompute, precision=job.precision,
                sequence_parallel=layout.tp > 1, chunks=layout.virtual_stages, optimizer=job.optimizer,
                fused=layout.framework != "deepspeed")  # fmt: skip
    return Work(made, job.cluster, job.global_batch)
