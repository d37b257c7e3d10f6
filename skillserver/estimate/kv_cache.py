"""What a model keeps of a sequence while it generates: elements a token, a window's limit, a state of fixed size.

Knows grouped, multi-query and latent attention, windowed and chunked layers, and Mamba states. Counts what has to be
kept; pages, padding and draft models of an engine come on top. Does not know cross-attention.

>>> cache_of(Architecture(layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=128256)).per_token
65536
"""

from __future__ import annotations

from typing import NamedTuple

from skillserver.estimate.shape import Architecture, StateSpace

DTYPE_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0, "fp4": 0.5, "int4": 0.5}


class Cache(NamedTuple):
    """Elements, not bytes. `full_layers` keep every token, `windowed_layers` the last `window`; `state` belongs to the sequence."""

    kind: str
    per_token_layer: int
    full_layers: int
    windowed_layers: int
    window: int
    state: int
    expanded_per_token: int

    @property
    def per_token(self) -> int:
        """Elements a token adds while no window is full."""
        return self.per_token_layer * (self.full_layers + self.windowed_layers)

    @property
    def per_token_past_window(self) -> int:
        """Elements a token adds once every window is full."""
        return self.per_token_layer * self.full_layers

    def per_sequence(self, tokens: int) -> int:
        """Elements of one sequence of that many tokens, its state included."""
        return self.per_token_layer * (self.full_layers * tokens + self.windowed_layers * min(tokens, self.window or tokens)) + self.state


def cache_of(shape: Architecture) -> Cache:
    """What a sequence of this model leaves behind. Keys and values are 2 x kv heads x head size a layer (arXiv 2305.13245).

    Latent attention keeps the compressed vector and the shared rotary key (arXiv 2405.04434, sec. 2.1.2); an engine that does
    not fold the up-projection into attention keeps `expanded_per_token` instead.
    """
    layers = shape.attention_layers if shape.heads else 0
    windowed = min(shape.windowed_layers, layers)
    state = shape.state_layers * state_elements(shape.state_space) if shape.state_space else 0
    kept, expanded = 2 * shape.kv_width, 0
    if mla := shape.latent:
        kept, expanded = mla.kv_rank + mla.rope, layers * shape.heads * (mla.nope + mla.rope + mla.value)
    return Cache(_kind(shape, layers), kept, layers - windowed, windowed, shape.sliding_window or 0, state, expanded)


def share_of_a_rank(shape: Architecture, tp: int) -> float | None:
    """Part of the cache that one of `tp` ranks keeps: all of it with MLA, at least one head else; None where tp does not fit."""
    kv = shape.kv_heads
    if shape.latent or not kv:
        return 1.0
    return None if kv % tp and tp % kv else 1 / min(tp, kv)


def state_elements(ssm: StateSpace) -> int:
    """One layer: the state of every channel, and the last kernel - 1 inputs of the convolution."""
    return ssm.inner * ssm.state + ssm.conv_width * (ssm.kernel - 1)


def _kind(shape: Architecture, layers: int) -> str:
    if not layers:
        return "none"
    if shape.latent:
        return "MLA"
    return "MHA" if shape.kv_heads == shape.heads else "MQA" if shape.kv_heads == 1 else "GQA"
