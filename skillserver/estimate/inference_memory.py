"""What fits beside the weights of a served model: the cache's room on each accelerator, and how many sequences that is.

Room = capacity x utilization - weights - activations of the largest step - what the framework takes (PagedAttention,
arXiv 2309.06180, sec. 4: paging makes the rest usable to a few percent). Knows no speeds.

>>> round(room(served(shape_of("llama-3-8b")), accelerator("H100-80GB-SXM")).cache_gib.expected, 1)  # vLLM printed 53.29
53.1
"""

from __future__ import annotations

import math
from typing import NamedTuple

from skillserver.errors import BadRequest
from skillserver.estimate import kv_cache
from skillserver.estimate.inference_allowances import allowance
from skillserver.estimate.inference_model import WEIGHT_FORMATS, Served, possible_tps, served
from skillserver.estimate.memory_buffers import capacity_gib
from skillserver.findings import Interval
from skillserver.hardware.catalogue import Accelerator
from skillserver.units import GIB

BLOCK = 16  # tokens of a cache block; the last one of a sequence is partly empty


class Room(NamedTuple):
    """GiB on one accelerator."""

    capacity_gib: float
    usable_gib: float
    weights_gib: float
    activations_gib: float
    framework_gib: float
    cache_gib: Interval


def room(model: Served, part: Accelerator) -> Room:
    """Where the memory of one rank goes; `cache_gib` may be negative when the weights alone are too much."""
    capacity, used, frame = capacity_gib(part), allowance("utilization"), _framework(model)
    weights, activations = model.held_bytes / GIB, _activations(model) / GIB
    middle = capacity * used.value - weights - activations - frame.expected
    below = math.hypot(frame.high - frame.expected, activations * 0.5, weights * 0.01)
    above = math.hypot(frame.expected - frame.low, activations * 0.5, weights * 0.01)
    return Room(
        capacity, capacity * used.value, weights, activations, frame.expected, Interval(low=middle - below, expected=middle, high=middle + above)
    )


def _framework(model: Served) -> Interval:
    one, more = allowance("framework_gib"), allowance("tensor_parallel_gib")
    add = model.tp > 1
    return Interval(low=one.low + add * more.low, expected=one.value + add * more.value, high=one.high + add * more.high)


def _activations(model: Served) -> float:
    """Bytes of the largest step: residual stream, attention and MLP of all its tokens in 16 bits, and the logits being sampled."""
    shape = model.shape
    wide = max(shape.ffn * (1 + shape.gated), shape.expert_ffn * (1 + shape.gated) * shape.experts_per_token)
    tokens = allowance("step_tokens").value * 2 * (4 * shape.hidden + 2 * wide / model.tp)
    return tokens + allowance("max_num_seqs").value * shape.vocab * allowance("logits_bytes").value


def sequences(model: Served, cache_gib: float, tokens: int, cached: int = 0) -> int:
    """Sequences of `tokens` that fit at their full length; the first `cached` tokens of all are one shared prefix (kept once)."""
    whole = math.ceil(tokens / BLOCK) * BLOCK
    size = kv_cache.DTYPE_BYTES[model.kv_dtype] * model.cache_share * model.cache.per_token_layer
    shared = size * model.cache.full_layers * cached  # windowed layers keep their own last tokens
    own = model.cache_bytes(whole) - shared
    left = cache_gib * GIB - shared
    return max(0, int(left / own)) if own > 0 else 0


def tokens_that_fit(model: Served, cache_gib: float) -> int | None:
    """Tokens of short sequences, added up; None for a model that keeps nothing a token."""
    each = model.cache_bytes(1) - model.state_bytes
    return int(cache_gib * GIB / each) if each else None


def longest(model: Served, cache_gib: float) -> int:
    """Tokens of the longest single sequence that fits (0 = none)."""
    one = model.cache_bytes(2) - model.cache_bytes(1)
    if cache_gib <= 0:
        return 0
    if not one:
        return 10**9
    return int((cache_gib * GIB - model.state_bytes) / one)


def nearest_that_fit(model: Served, part: Accelerator, tokens: int) -> list[dict[str, object]]:
    """Smallest changes that give room to one sequence: a narrower weight format at this tp, then more ranks for each format."""
    found: list[dict[str, object]] = []
    for weights in dict.fromkeys((model.weights, "fp8", "int4")):
        if WEIGHT_FORMATS.index(weights) < WEIGHT_FORMATS.index(model.weights):
            continue
        for tp in possible_tps(model.shape):
            one = served(model.shape, weights=weights, kv_dtype=model.kv_dtype, tp=tp)
            if tp >= model.tp and (tp == 1 or part.link_each_way_gb_s) and sequences(one, room(one, part).cache_gib.expected, tokens):
                found.append({"weights": weights, "tp": tp})
                break
    return sorted(found, key=lambda one: int(str(one["tp"])))


def refuse_what_does_not_fit(model: Served, part: Accelerator, tokens: int) -> Room:
    """The room, or BadRequest with the nearest settings that fit."""
    here = room(model, part)
    if sequences(model, here.cache_gib.expected, tokens):
        return here
    held = f"{here.weights_gib:.1f} GiB of weights on each of {model.tp} x {part.id}"
    told = f"{held} leave {max(0.0, here.cache_gib.expected):.1f} GiB of {here.usable_gib:.1f} for the cache"
    fits = nearest_that_fit(model, part, tokens)
    length = longest(model, here.cache_gib.expected)
    next_ = f"pass {', '.join(f'{name}={value!r}' for name, value in fits[0].items())}" if fits else "pass a larger accelerator"
    if length:
        next_ += f", or at most {length:,} tokens of input and output together"
    raise BadRequest("does_not_fit", f"{told}, less than one sequence of {tokens:,} tokens",
                     valid=[", ".join(f"{name}={value}" for name, value in one.items()) for one in fits], next=next_)  # fmt: skip
