"""A transformer decoder's shape -> parameters, active parameters, training FLOPs per token.

Knows dense and mixture-of-experts layers, grouped and latent (MLA) attention, tied embeddings, biases and norms, to
the last parameter. Does not know state-space layers, encoders or vision towers, and counts every attention layer as
full causal attention (a sliding window costs less on long sequences).

>>> llama = Architecture(layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=128256)
>>> parameters(llama).total
8030261248
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field


class Latent(BaseModel):
    """Multi-head latent attention of DeepSeek: ranks and head sizes."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    q_rank: int | None = None
    kv_rank: int
    nope: int
    rope: int
    value: int


class Architecture(BaseModel):
    """Sizes are counts of elements; `ffn` is the width of a dense MLP, `expert_ffn` that of one expert."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    layers: int = Field(ge=1)
    hidden: int = Field(ge=1)
    heads: int = Field(ge=1)
    kv_heads: int = Field(ge=1)
    ffn: int = Field(ge=1)
    vocab: int = Field(ge=1)
    head_dim: int = 0
    gated: bool = True
    tied: bool = False
    norm: Literal["rms", "layer", "none"] = "rms"
    norms_per_layer: int = 2
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    head_bias: bool = False
    sinks: bool = Field(False, description="one learned attention sink a head (gpt-oss)")
    qk_norm: Literal["none", "head", "full"] = "none"
    positions: int = Field(0, description="rows of a learned position table")
    embedding_norm: bool = False
    experts: int = 0
    experts_per_token: int = 0
    expert_ffn: int = 0
    shared_ffn: int = Field(0, description="width of the experts that every token passes")
    shared_gate: bool = False
    dense_layers: int = Field(0, description="layers with a dense MLP in a mixture-of-experts model")
    expert_bias: bool = False
    router_bias: bool = False
    latent: Latent | None = None
    sliding_window: int | None = None

    @property
    def attention_width(self) -> int:
        """Heads times head size; not always the hidden size."""
        return self.heads * (self.head_dim or self.hidden // self.heads)

    @property
    def kv_width(self) -> int:
        """Key (or value) heads times head size."""
        return self.kv_heads * (self.head_dim or self.hidden // self.heads)

    @property
    def expert_layers(self) -> int:
        """Layers whose MLP is a set of experts."""
        return self.layers - self.dense_layers if self.experts else 0


class Parameters(NamedTuple):
    """Counts of parameters. `lookup` are those of tables that are read and not multiplied (embeddings, positions)."""

    total: int
    active: int
    lookup: int


def parameters(shape: Architecture) -> Parameters:
    """Exact counts from the shape; `active` is what one token passes through."""
    every = _attention(shape) + _norm(shape) * shape.norms_per_layer
    dense = _mlp(shape, shape.ffn)
    table = shape.vocab * shape.hidden
    body = shape.layers * every + (shape.layers - shape.expert_layers) * dense
    outside = table * (1 if shape.tied else 2) + shape.positions * shape.hidden + _norm(shape) * (2 if shape.embedding_norm else 1)
    outside += shape.vocab if shape.head_bias else 0
    total = body + outside + shape.expert_layers * _experts(shape, shape.experts)
    active = body + outside + shape.expert_layers * _experts(shape, shape.experts_per_token)
    return Parameters(total, active, shape.positions * shape.hidden + (0 if shape.tied else table))


def flops_per_token(active: float, lookup: float, layers: int, attention_width: float, seq_len: int) -> float:
    """Training FLOPs of one token: 6 x (active - lookup) + 6 x layers x attention width x seq_len.

    The second term is causal attention: 12 L h s of the PaLM report (arXiv 2204.02311, app. B) halved, because a
    token sees half of the sequence on average. Recomputation is not counted: it is work of the machine, not of the model.
    """
    return 6 * (active - lookup) + 6 * layers * attention_width * seq_len


def score_width(shape: Architecture) -> float:
    """Width of the attention products: with latent attention the mean of key and value sizes, heads times head size else."""
    if shape.latent:
        return shape.heads * (shape.latent.nope + shape.latent.rope + shape.latent.value) / 2
    return shape.attention_width


def _attention(shape: Architecture) -> int:
    if shape.latent:
        return _latent_attention(shape, shape.latent)
    wide, narrow = shape.attention_width, shape.kv_width
    count = shape.hidden * (wide + 2 * narrow) + wide * shape.hidden
    count += (wide + 2 * narrow) * shape.qkv_bias + shape.hidden * shape.out_bias + shape.heads * shape.sinks
    head = wide // shape.heads
    return count + {"none": 0, "head": 2 * head, "full": wide + narrow}[shape.qk_norm]


def _latent_attention(shape: Architecture, mla: Latent) -> int:
    """Down- and up-projections of queries and of the compressed keys and values (arXiv 2405.04434, sec. 2.1)."""
    query = mla.nope + mla.rope
    q = shape.hidden * mla.q_rank + mla.q_rank + mla.q_rank * shape.heads * query if mla.q_rank else shape.hidden * shape.heads * query
    kv = shape.hidden * (mla.kv_rank + mla.rope) + mla.kv_rank + mla.kv_rank * shape.heads * (mla.nope + mla.value)
    return q + kv + shape.heads * mla.value * shape.hidden


def _mlp(shape: Architecture, width: int) -> int:
    matrices = 3 if shape.gated else 2
    bias = (matrices - 1) * width + shape.hidden if shape.mlp_bias else 0
    return matrices * shape.hidden * width + bias


def _experts(shape: Architecture, count: int) -> int:
    """One layer's router, `count` experts and the shared ones."""
    one = (3 if shape.gated else 2) * shape.hidden * shape.expert_ffn
    one += (2 * shape.expert_ffn + shape.hidden) * shape.expert_bias
    router = shape.experts * (shape.hidden + shape.router_bias)
    shared = (3 if shape.gated else 2) * shape.hidden * shape.shared_ffn + shape.hidden * shape.shared_gate
    return router + count * one + shared


def _norm(shape: Architecture) -> int:
    return {"rms": 1, "layer": 2, "none": 0}[shape.norm] * shape.hidden
