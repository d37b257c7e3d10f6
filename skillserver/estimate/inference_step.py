"""How long one step of a serving engine takes: a roofline of weights, cache, arithmetic and tensor-parallel messages.

A step holds prefill chunks and one token of each decoding sequence. Matmuls take the longer of their arithmetic and of
reading the weights once; attention reads each sequence's cache; two all-reduces a layer join the ranks; gaps come on
top (Pope et al. 2022, arXiv 2211.05102, sec. 2-3; Kipply, transformer inference arithmetic). Knows no queue.

>>> engine = Engine(served(shape_of("llama-3-8b")), accelerator("H100-80GB-SXM"))
>>> round(engine.parts(decoding=1, context=1024).weights_s * 1e3, 2)  # 15.0 GB at 0.8 of 3,350 GB/s
5.6
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from skillserver.errors import BadRequest
from skillserver.estimate.inference_allowances import Speeds, allowance, expected_speeds
from skillserver.estimate.inference_model import Served
from skillserver.hardware import catalogue
from skillserver.hardware.catalogue import Accelerator
from skillserver.units import GB

KNEE = 2.5  # between the two roofs a kernel reaches neither: (a^p + b^p)^(1/p); p fitted to published throughput at batches near the ridge
NODE, RACK = 8, 72
RACK_SCALE = ("GB200", "GB300")  # NVL72: 72 GPUs behind one NVLink switch level
SIXTEEN = 2  # bytes of an activation


class Parts(NamedTuple):
    """Seconds of one step. `weights_s` and `matmul_s` overlap (the longer counts), so do `cache_s` and `scores_s`; the rest adds."""

    weights_s: float
    matmul_s: float
    cache_s: float
    scores_s: float
    prefill_scores_s: float
    messages_s: float
    gaps_s: float

    @property
    def total_s(self) -> float:
        """Time of the step."""
        matmuls = (self.weights_s**KNEE + self.matmul_s**KNEE) ** (1 / KNEE)
        return matmuls + max(self.cache_s, self.scores_s) + self.prefill_scores_s + self.messages_s + self.gaps_s

    @property
    def bound(self) -> str:
        """Which resource takes the largest part: compute, memory bandwidth (weights or cache), network or gaps."""
        sides = {"gaps": self.gaps_s, "network": self.messages_s, "compute": self.prefill_scores_s}
        sides["memory bandwidth" if self.weights_s >= self.matmul_s else "compute"] = max(self.weights_s, self.matmul_s)
        name = "memory bandwidth" if self.cache_s >= self.scores_s else "compute"
        sides[name] = sides.get(name, 0.0) + max(self.cache_s, self.scores_s)
        if self.matmul_s > self.weights_s:
            sides["compute"] += self.prefill_scores_s
        return max(sides, key=lambda side: sides[side])


@dataclass(frozen=True)
class Engine:
    """A served model on one accelerator type; `speeds` are the allowances it reckons with."""

    model: Served
    part: Accelerator
    speeds: Speeds = field(default_factory=expected_speeds)

    def parts(self, *, decoding: float = 0, context: float = 0, prefill: float = 0, prefill_seen: float = 0, finishing: float = 0) -> Parts:
        """Of a step with `decoding` sequences of `context` tokens, and `prefill` tokens that attend to `prefill_seen` positions.

        `finishing` prompts end in this step and are sampled. All times in s.
        """
        model, speeds = self.model, self.speeds
        tokens, sampled = decoding + prefill, decoding + finishing
        bandwidth = self.part.memory_bandwidth_gb_s * GB * speeds["bandwidth_share"]
        sixteen, attention = sixteen_bit(self.part) * speeds["compute_share"], sixteen_bit(self.part) * speeds["attention_share"]
        matmuls = matmul_flops(self.part, model.weights) * speeds["compute_share"] * (speeds["expert_compute"] if model.shape.experts else 1)
        seen = decoding * model.seen_by_one(context)
        cache = decoding * (model.cache_bytes(context) + model.state_bytes)  # a state is read and written
        return Parts(
            weights_s=model.read_bytes(int(tokens)) / (bandwidth * kernel_factor(model.weights, "read")),
            matmul_s=tokens * model.token_flops / matmuls + sampled * model.head_flops / sixteen,
            cache_s=cache / bandwidth,
            scores_s=seen * model.decode_flops_a_position / attention,
            prefill_scores_s=prefill_seen * model.prefill_flops_a_position / attention,
            messages_s=self._messages_s(tokens),
            gaps_s=speeds["step_s"] + speeds["layer_s"] * model.shape.layers + speeds["sequence_s"] * sampled,
        )

    def step_s(self, **load: float) -> float:
        """Seconds of one step."""
        return self.parts(**load).total_s

    def prefill_parts(self, tokens: float, cached: float = 0) -> Parts:
        """One prompt by itself, its first `cached` tokens taken from the prefix cache; one step of any length."""
        return self.parts(prefill=tokens - cached, prefill_seen=self.model.seen(cached, tokens), finishing=1)

    def _messages_s(self, tokens: float) -> float:
        """Two all-reduces a layer of tokens x hidden in 16 bits (arXiv 1909.08053, sec. 3): ring volume and a latency each."""
        tp, shape, speeds = self.model.tp, self.model.shape, self.speeds
        if tp == 1:
            return 0.0
        inside = tp <= scale_up(self.part)
        link = link_gb_s(self.part) * speeds["link_share"] if inside else speeds["fabric_gb_s"]
        latency = speeds["all_reduce_s"] if inside else speeds["fabric_all_reduce_s"]
        volume = tokens * shape.hidden * SIXTEEN * 2 * (tp - 1) / tp
        return 2 * shape.layers * (latency + volume / (link * GB))


def scale_up(part: Accelerator) -> int:
    """Accelerators that the fast link joins."""
    return RACK if part.id.startswith(RACK_SCALE) else NODE


def link_gb_s(part: Accelerator) -> float:
    """One-way GB/s between accelerators of a node. Raises BadRequest where the catalogue has none."""
    if part.link_each_way_gb_s:
        return part.link_each_way_gb_s
    raise BadRequest("no_link", f"the link of {part.id} is not in the catalogue, so tp > 1 cannot be estimated", next="pass tp=1")


def sixteen_bit(part: Accelerator) -> float:
    """FLOP/s of 16-bit matmuls: bf16, or fp16 on parts without it. Raises BadRequest."""
    peak = catalogue.peak_tflops(part, "bf16") or catalogue.peak_tflops(part, "fp16")
    if not peak:
        raise BadRequest("no_peak", f"{part.id} has no 16-bit matmul peak in the catalogue", next="pass another accelerator")
    return peak * 1e12


def matmul_flops(part: Accelerator, weights: str) -> float:
    """FLOP/s to expect against, before `compute_share`: narrow units where the part has them, else 16 bits after the weights are expanded.

    int4 weights are always expanded. Narrow units reach less of their peak, which a factor of the allowances says.
    """
    own = catalogue.peak_tflops(part, weights) if weights in ("fp8", "int8", "fp4") else None
    return own * 1e12 * kernel_factor(weights, "compute") if own else sixteen_bit(part)


def kernel_factor(weights: str, side: str) -> float:
    """Share of the usual efficiency that kernels for this weight format reach, reading (`read`) or multiplying (`compute`)."""
    name = {("int4", "read"): "int4_read", ("fp8", "compute"): "fp8_compute", ("int8", "compute"): "fp8_compute", ("fp4", "compute"): "fp4_compute"}
    found = name.get((weights, side))
    return allowance(found).value if found else 1.0
