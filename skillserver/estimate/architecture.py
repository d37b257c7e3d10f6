"""A decoder's shape -> every weight it has -> parameters by part, active parameters, FLOPs per token.

Knows dense and mixture-of-experts layers, grouped and latent (MLA) attention, Mamba mixers, tied embeddings, biases
and norms, to the last parameter. Does not know encoders or vision towers, and `flops_per_token` counts every attention
layer as full causal attention (work.py knows windows).

>>> llama = Architecture(layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=128256)
>>> parameters(llama).total
8030261248
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from skillserver.estimate.shape import Architecture, Latent, StateSpace


class Parameters(NamedTuple):
    """Counts of parameters. `lookup` are those of tables that are read and not multiplied (embeddings, positions)."""

    total: int
    active: int
    lookup: int


class Weight(NamedTuple):
    """One kind of tensor. A matrix maps `k` inputs to `n` outputs; `n` alone is a vector; `bias` adds n more.

    `copies` of them are in the model, a token passes through `used`; `axis` says what tensor parallelism cuts.
    """

    part: str
    name: str
    n: int
    k: int = 0
    copies: int = 1
    used: int = 1
    bias: bool = False
    looked_up: bool = False
    axis: str = ""

    @property
    def elements(self) -> int:
        """Parameters of one."""
        return self.n * (self.k or 1) + self.n * self.bias


def weights(shape: Architecture) -> list[Weight]:
    """Every kind of tensor of the model proper, multi-token prediction modules apart."""
    attention = shape.attention_layers
    found = [*_tables(shape), *_times(_mixer(shape), attention, attention)]
    if shape.state_space:
        found += _times(_state_space(shape, shape.state_space), shape.state_layers, shape.state_layers)
    found += _times([Weight("norms", "layer_norm", _norm(shape))], shape.layers * shape.norms_per_layer, shape.layers * shape.norms_per_layer)
    dense = shape.layers - shape.expert_layers
    found += _times(_mlp(shape, shape.ffn, "mlp", shape.mlp_bias), dense, dense)
    found += _expert_block(shape, shape.expert_layers)
    return [one for one in found if one.copies and one.n]


def parameters(shape: Architecture) -> Parameters:
    """Exact counts from the shape; `active` is what one token passes through."""
    every = weights(shape)
    lookup = sum(one.elements * one.copies for one in every if one.looked_up)
    return Parameters(sum(one.elements * one.copies for one in every), sum(one.elements * one.used for one in every), lookup)


def by_part(shape: Architecture) -> dict[str, tuple[int, int]]:
    """Part -> (total, active) parameters, in the order of the model."""
    found: dict[str, tuple[int, int]] = {}
    for one in weights(shape):
        total, active = found.get(one.part, (0, 0))
        found[one.part] = (total + one.elements * one.copies, active + one.elements * one.used)
    return found


def prediction_module(shape: Architecture) -> int:
    """Parameters of one multi-token prediction module without the table and head it shares (arXiv 2412.19437, sec. 2.2)."""
    layer = [*_mixer(shape), *_times([Weight("norms", "layer_norm", _norm(shape))], shape.norms_per_layer, 0), *_expert_block(shape, 1)]
    return sum(one.elements * one.copies for one in layer) + 2 * shape.hidden**2 + 3 * _norm(shape)


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


def _times(found: list[Weight], copies: int, used: int) -> list[Weight]:
    return [one._replace(copies=one.copies * copies, used=one.used * used) for one in found]


def _tables(shape: Architecture) -> Iterator[Weight]:
    """Token and position tables, final norm, head. A tied table is multiplied too, so it is no look-up."""
    width = shape.embedding_width or shape.hidden
    yield Weight("embedding", "token_table", shape.vocab, width, looked_up=not shape.tied, axis="vocab")
    if shape.positions:
        yield Weight("positions", "position_table", shape.positions, shape.hidden, looked_up=True)
    if width != shape.hidden:
        yield Weight("embedding", "project_in", shape.hidden, width)
        yield Weight("head", "project_out", width, shape.hidden)
    if norms := shape.final_norm + shape.embedding_norm:
        yield Weight("norms", "final_norm", _norm(shape), copies=norms, used=norms)
    if not shape.tied:
        yield Weight("head", "lm_head", shape.vocab, width, axis="vocab")
    if shape.head_bias:
        yield Weight("head", "lm_head_bias", shape.vocab)


def _mixer(shape: Architecture) -> list[Weight]:
    """One attention layer."""
    if not shape.heads:
        return []
    if shape.latent:
        return list(_latent_attention(shape, shape.latent))
    wide, narrow = shape.attention_width, shape.kv_width
    norms = {"none": 0, "head": 2 * shape.head_size, "head_bias": 4 * shape.head_size, "full": wide + narrow}[shape.qk_norm]
    return [
        Weight("attention", "q_proj", wide, shape.hidden, bias=shape.qkv_bias, axis="heads"),
        Weight("attention", "kv_proj", 2 * narrow, shape.hidden, bias=shape.qkv_bias, axis="kv_heads"),
        Weight("attention", "o_proj", shape.hidden, wide, bias=shape.out_bias, axis="heads"),
        Weight("attention", "sinks", shape.heads * shape.sinks),
        Weight("norms", "qk_norm", norms),
    ]


def _latent_attention(shape: Architecture, mla: Latent) -> Iterator[Weight]:
    """Down- and up-projections of queries and of the compressed keys and values (arXiv 2405.04434, sec. 2.1)."""
    query = shape.heads * (mla.nope + mla.rope)
    if mla.q_rank:
        yield Weight("attention", "q_down", mla.q_rank, shape.hidden, bias=shape.qkv_bias)
        yield Weight("norms", "q_down_norm", mla.q_rank)
    yield Weight("attention", "q_up", query, mla.q_rank or shape.hidden, axis="heads")
    yield Weight("attention", "kv_down", mla.kv_rank + mla.rope, shape.hidden, bias=shape.qkv_bias)
    yield Weight("norms", "kv_down_norm", mla.kv_rank)
    yield Weight("attention", "kv_up", shape.heads * (mla.nope + mla.value), mla.kv_rank, axis="heads")
    yield Weight("attention", "o_proj", shape.hidden, shape.heads * mla.value, bias=shape.out_bias, axis="heads")


def _state_space(shape: Architecture, ssm: StateSpace) -> list[Weight]:
    """One Mamba (arXiv 2312.00752) or Mamba-2 (arXiv 2405.21060) mixer. The convolution is depthwise: kernel weights a channel."""
    part, wide = "state_space", ssm.conv_width
    conv = [Weight(part, "conv", wide * ssm.kernel), Weight(part, "conv_bias", wide * ssm.conv_bias)]
    out = Weight(part, "out_proj", shape.hidden, ssm.inner, bias=ssm.bias, axis="inner")
    if ssm.kind == "mamba2":
        entry = Weight(part, "in_proj", ssm.inner + wide + ssm.heads, shape.hidden, bias=ssm.bias, axis="inner")
        return [entry, *conv, Weight(part, "decay_skip_step", 3 * ssm.heads), Weight("norms", "gated_norm", ssm.inner), out]
    rank = ssm.dt_rank + 2 * ssm.state
    return [
        Weight(part, "in_proj", 2 * ssm.inner, shape.hidden, bias=ssm.bias, axis="inner"),
        *conv,
        Weight(part, "x_proj", rank, ssm.inner, axis="inner"),
        Weight(part, "dt_proj", ssm.inner, ssm.dt_rank, bias=True, axis="inner"),
        Weight(part, "decay_skip", ssm.inner * (ssm.state + 1)),
        Weight("norms", "step_norms", rank * ssm.inner_norms),
        out,
    ]


def _mlp(shape: Architecture, width: int, part: str, bias: bool) -> list[Weight]:
    up = Weight(part, "gate_up" if shape.gated else "up", (1 + shape.gated) * width, shape.hidden, bias=bias, axis="ffn")
    return [up, Weight(part, "down", shape.hidden, width, bias=bias, axis="ffn")] if width else []


def _expert_block(shape: Architecture, layers: int) -> list[Weight]:
    """The routers, experts and shared experts of so many layers."""
    found = _times(_mlp(shape, shape.expert_ffn, "experts", shape.expert_bias), shape.experts * layers, shape.experts_per_token * layers)
    found += _times(_mlp(shape, shape.shared_ffn, "shared_experts", shape.mlp_bias), layers, layers)
    gate = [Weight("shared_experts", "shared_gate", 1, shape.hidden)] if shape.shared_gate else []
    router = [Weight("router", "router", shape.experts, shape.hidden, bias=shape.router_bias)] if shape.experts else []
    return found + _times(gate + router, layers, layers)


def _norm(shape: Architecture) -> int:
    return {"rms": 1, "layer": 2, "layer_no_bias": 1, "none": 0}[shape.norm] * shape.hidden
