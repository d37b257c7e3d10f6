"""What one tensor-parallel rank of a served model holds and does: bytes of weights, bytes of cache, FLOPs of a token.

Knows which parts a weight format shrinks, what tensor parallelism cuts and what it repeats, how many experts a step
touches, and the cache of windowed, latent and state-space layers. Knows no hardware.

>>> served(shape_of("llama-3-8b")).cache_bytes(1)
131072.0
"""

from __future__ import annotations

from typing import NamedTuple

from skillserver.errors import BadRequest
from skillserver.estimate import architecture, kv_cache, work
from skillserver.estimate.inference_allowances import allowance
from skillserver.estimate.shape import Architecture

QUANTISED = {"attention", "mlp", "experts", "shared_experts"}  # tables, head, norms, routers and state-space mixers stay in 16 bits
WEIGHT_FORMATS = ("bf16", "fp16", "fp8", "int8", "int4", "fp4")
LARGEST_TP = 64


class Served(NamedTuple):
    """Per rank. `streamed_bytes` are read in every step, `expert_bytes` by those experts that a token of the step picked.

    `token_flops` are the matmuls of one token without the head, `head_flops` those of one token that is sampled.
    """

    shape: Architecture
    weights: str
    kv_dtype: str
    tp: int
    held_bytes: float
    streamed_bytes: float
    expert_bytes: float
    token_flops: float
    head_flops: float
    cache: kv_cache.Cache
    cache_share: float

    def cache_bytes(self, tokens: float) -> float:
        """Bytes on this rank of one sequence of that many tokens, fixed state included."""
        return self._kept(tokens) * kv_cache.DTYPE_BYTES[self.kv_dtype] * self.cache_share + self.state_bytes

    @property
    def state_bytes(self) -> float:
        """State-space layers: kept in 16 bits and cut by tp."""
        return self.cache.state * 2 / self.tp

    def _kept(self, tokens: float) -> float:
        cache = self.cache
        return cache.per_token_layer * (cache.full_layers * tokens + cache.windowed_layers * min(tokens, cache.window or tokens))

    def read_bytes(self, tokens: int) -> float:
        """Weights that a step of so many tokens reads: of E experts with k a token, E x (1 - (1 - k/E)^tokens) are touched."""
        shape = self.shape
        touched = 1 - (1 - shape.experts_per_token / shape.experts) ** tokens if shape.experts else 0.0
        return self.streamed_bytes + self.expert_bytes * touched

    def seen(self, start: float, end: float) -> float:
        """Positions that the new tokens start..end of a sequence attend to, summed over attention layers."""
        cache = self.cache

        def to(length: float, window: int | None) -> float:
            return length * work.mean_context(int(length), window, self.shape.chunked) if length else 0.0

        full = cache.full_layers * (to(end, None) - to(start, None))
        return full + cache.windowed_layers * (to(end, cache.window or None) - to(start, cache.window or None))

    def seen_by_one(self, context: float) -> float:
        """The same for the one token that a decode step adds."""
        cache = self.cache
        return cache.full_layers * context + cache.windowed_layers * min(context, cache.window or context)

    @property
    def prefill_flops_a_position(self) -> float:
        """4 x width on this rank: a score and a weighted value for each attended position."""
        return 4 * architecture.score_width(self.shape) / self.tp

    @property
    def decode_flops_a_position(self) -> float:
        """The same in decode; latent attention works on the compressed vector itself (arXiv 2405.04434, sec. 2.1.2)."""
        if mla := self.shape.latent:
            return 2 * self.shape.heads * (2 * mla.kv_rank + mla.rope) / self.tp
        return self.prefill_flops_a_position


def served(shape: Architecture, *, weights: str = "bf16", kv_dtype: str = "bf16", tp: int = 1) -> Served:
    """The model as one of `tp` ranks serves it. Raises BadRequest for a tp that does not divide it."""
    _check_tp(shape, tp)
    held = streamed = experts = flops = head = 0.0
    for one in architecture.weights(shape):
        share = _share(shape, one.axis, tp)
        size = weight_bytes(weights) if one.part in QUANTISED else 2.0
        total = one.elements * one.copies * size * share
        held += total
        if one.part == "experts":
            experts += total
        elif not one.looked_up:
            streamed += total
        if one.k and not one.looked_up:
            done = 2 * one.n * one.k * one.used * share
            is_head = one.axis == "vocab"
            flops, head = flops + done * (not is_head), head + done * is_head
    cache_share = kv_cache.share_of_a_rank(shape, tp) or 1.0
    return Served(shape, weights, kv_dtype, tp, held, streamed, experts, flops, head, kv_cache.cache_of(shape), cache_share)


def weight_bytes(weights: str) -> float:
    """Bytes of one quantised weight, scales included."""
    if weights in ("int4", "fp4"):
        return allowance(f"{weights}_bytes").value
    return {"bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0}[weights]


def possible_tps(shape: Architecture) -> list[int]:
    """Tensor-parallel sizes up to 64 that divide heads, key-value heads (or are divided by them) and MLP widths."""
    return [tp for tp in range(1, LARGEST_TP + 1) if not _undivided(shape, tp)]


def _undivided(shape: Architecture, tp: int) -> str:
    sizes = {"heads": shape.heads, "ffn": shape.ffn, "expert_ffn": shape.expert_ffn, "shared_ffn": shape.shared_ffn,
             "state-space width": shape.state_space.inner if shape.state_space else 0}  # fmt: skip
    told = [f"{size} {name}" for name, size in sizes.items() if size % tp]
    if kv_cache.share_of_a_rank(shape, tp) is None:
        told.append(f"{shape.kv_heads} kv_heads")
    return ", ".join(told)


def _check_tp(shape: Architecture, tp: int) -> None:
    if not (left := _undivided(shape, tp)):
        return
    fits = sorted(possible_tps(shape), key=lambda one: (abs(one - tp), one))[:3]
    raise BadRequest("bad_tp", f"tp {tp} does not divide {left}", valid=[str(one) for one in fits], next=f"pass tp={fits[0]}")


def _share(shape: Architecture, axis: str, tp: int) -> float:
    """Part of a tensor on one rank: cut along its axis, or repeated."""
    if axis == "kv_heads":
        return kv_cache.share_of_a_rank(shape, tp) or 1.0
    return 1 / tp if axis in ("heads", "ffn", "vocab", "inner") else 1.0
