"""Seconds that the kernels of one decoder layer take on one GPU, by the size of each matrix product.

A product of [m, k] x [k, n] reaches the ceiling x k/(k + k_half) x waves/(waves + 1/2), where waves are its 128 x 256
tiles over the GPU's multiprocessors: the last wave is half empty on average, and a short k never leaves the start of
its loop. The ceiling is the published fastest matmul, else a share of peak, times what holds over a long run.
Attention runs at a share of the ceiling on the causal half; everything else moves bytes. Does not know your kernels:
fusions, clocks and power limits move it by 10 to 20%.

>>> round(share_of_ceiling(8192, 8192, 8192, 132), 3), round(share_of_ceiling(512, 1024, 8192, 132), 3)
(0.913, 0.184)
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import NamedTuple

from skillserver.estimate.architecture import score_width, weights
from skillserver.estimate.communication import Cluster, allowance
from skillserver.estimate.memory_activations import saved
from skillserver.estimate.memory_plan import Plan
from skillserver.estimate.shape import Architecture
from skillserver.estimate.work import mean_context
from skillserver.hardware import catalogue
from skillserver.units import GB

TILE = 128 * 256
OUTSIDE = ("embedding", "positions", "head")
BYTE_WIDE = ("fp8",)  # precisions whose layers' products run in 8 bits; head and attention stay in 16


class Kernels(NamedTuple):
    """Seconds of a forward pass of one mean layer for one micro-batch, and of head and loss; `touch` moves saved tensors once."""

    matmul_s: float
    attention_s: float
    touch_s: float
    head_s: float


class Chip(NamedTuple):
    """What kernels need of a part: ceilings in FLOPS of 16-bit and of the layers' products, of attention, and bytes a second."""

    wide: float
    narrow: float
    attention: float
    memory: float
    multiprocessors: int


@dataclass(frozen=True)
class Slice:
    """What one GPU sees of a micro-batch: the key under which kernels are remembered."""

    shape: Architecture
    tokens: int
    seq_len: int
    tp: int
    ep: int
    precision: str
    eager: bool = False


def share_of_ceiling(m: float, n: float, k: float, multiprocessors: int) -> float:
    """Between 0 and 1, smooth: tiles come in waves, and k is a loop with a start."""
    waves = m * n / (TILE * multiprocessors)
    return k / (k + allowance("k_half")) * waves / (waves + 0.5)


def ceiling_tflops(cluster: Cluster, precision: str) -> float:
    """TFLOPS a large matmul sustains: the published maximum (or a share of peak) times what holds over a long run."""
    kind = "fp8" if precision in BYTE_WIDE else "bf16" if precision == "bf16" else precision
    known = dict(cluster.matmul_tflops)
    peak = catalogue.peak_tflops(cluster.part, kind) or catalogue.peak_tflops(cluster.part, "fp16") or catalogue.peak_tflops(cluster.part, "bf16")
    assert peak is not None  # checked where the cluster is made
    ceiling = known.get(kind) or (known.get("bf16") if kind == "fp16" else None) or peak * allowance("matmul_share_of_peak")
    held = allowance("fp8_sustained") if kind == "fp8" else allowance("sustained")
    return ceiling * held


def kernels(plan: Plan, cluster: Cluster) -> Kernels:
    """Of one mean layer of the plan; remembered by what the GPU sees."""
    eager = plan.attention == "eager"
    piece = Slice(plan.shape, round(plan.tokens), plan.seq_len, plan.tp, plan.ep, plan.precision, eager)
    chip = chip_of(cluster, plan.precision)
    layer, head = _matmuls_s(piece, chip)
    return Kernels(layer, _attention_s(piece, chip), _touch_s(plan, chip), head)


def chip_of(cluster: Cluster, precision: str) -> Chip:
    """Rates of the cluster's part in this precision."""
    wide, part = ceiling_tflops(cluster, "bf16" if precision in BYTE_WIDE else precision) * 1e12, cluster.part
    memory = part.memory_bandwidth_gb_s * GB * allowance("memory_share")
    return Chip(wide, ceiling_tflops(cluster, precision) * 1e12, wide * allowance(_attention_row(cluster)), memory, part.sm_count or 100)


@functools.lru_cache(maxsize=4096)
def _matmuls_s(piece: Slice, chip: Chip) -> tuple[float, float]:
    """Forward seconds of the products of a mean layer, and of the head."""
    layer = head = 0.0
    for one in weights(piece.shape):
        if not one.k or one.looked_up:
            continue
        outside = one.part in OUTSIDE
        m, n, k, times = _on_one(one.part, one.axis, one.name, one.n, one.k, one.copies, piece)
        rate = (chip.wide if outside else chip.narrow) * share_of_ceiling(m, n, k, chip.multiprocessors)
        seconds = 2 * m * n * k * times / rate
        if one.part == "experts":
            seconds *= allowance("expert_imbalance") / allowance("grouped_gemm")
        if outside:
            head += seconds
        else:
            layer += seconds / piece.shape.layers
    return layer, head


def _on_one(part: str, axis: str, name: str, n: float, k: float, copies: float, piece: Slice) -> tuple[float, float, float, float]:
    """m, n, k and how often, on one of the ranks: experts get tokens from ep ranks and are not cut by tp."""
    shape = piece.shape
    if part == "experts":
        mine = piece.tokens / piece.tp * shape.experts_per_token
        return max(mine * piece.ep / shape.experts, 1), n, k, copies / piece.ep
    cut = min(piece.tp, shape.kv_heads) if axis == "kv_heads" else piece.tp if axis else 1
    if name in ("o_proj", "down", "out_proj", "x_proj"):
        return piece.tokens, n, k / cut, copies
    return piece.tokens, n / cut, k, copies


@functools.lru_cache(maxsize=4096)
def _attention_s(piece: Slice, chip: Chip) -> float:
    """Score and value products of a mean layer, causal half, with windows; eager attention also moves the score matrix."""
    shape = piece.shape
    windowed = min(shape.windowed_layers, shape.attention_layers) / shape.layers
    context = windowed * mean_context(piece.seq_len, shape.sliding_window, shape.chunked)
    context += (shape.attention_layers / shape.layers - windowed) * piece.seq_len / 2
    flops = 4 * score_width(shape) * context * piece.tokens / piece.tp
    found = flops / chip.attention
    if piece.eager:
        scores = shape.heads / piece.tp * piece.seq_len * piece.tokens
        found += scores * allowance("eager_bytes_a_score") / chip.memory
    return found


def _attention_row(cluster: Cluster) -> str:
    name = f"attention_{cluster.part.architecture.lower()}"
    return name if name in ("attention_hopper", "attention_blackwell") else "attention_other"


def _touch_s(plan: Plan, chip: Chip) -> float:
    """Moving a layer's saved tensors through memory once."""
    moved = _saved_bytes(plan.shape, plan.program, plan.fused, plan.tp, plan.sequence_parallel, plan.precision) * plan.tokens
    return moved / chip.memory


@functools.lru_cache(maxsize=1024)
def _saved_bytes(shape: Architecture, program: str, fused: bool, tp: int, sequence_parallel: bool, precision: str) -> float:
    plan = Plan(shape, 1, 1, program, tp=tp, sequence_parallel=sequence_parallel, precision=precision, fused=fused)  # type: ignore[arg-type]
    return saved(plan).on_one(plan)
