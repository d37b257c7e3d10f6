"""The records that describe a decoder's shape: what every layer is made of, and how many layers are of which kind.

Knows sizes and switches (biases, norms, experts, latent attention, windows, state-space layers); not how a config
names them (hf_config.py) and not what they add up to (architecture.py). Layers of one model may mix attention with
state-space mixers and dense MLPs with experts: counts say how many are of which kind, because sums need no order.

>>> Architecture(layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=128256).kv_width
1024
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Norm = Literal["rms", "layer", "layer_no_bias", "none"]
QkNorm = Literal["none", "head", "head_bias", "full"]


class Latent(BaseModel):
    """Multi-head latent attention of DeepSeek: ranks and head sizes."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    q_rank: int | None = None
    kv_rank: int
    nope: int
    rope: int
    value: int


class StateSpace(BaseModel):
    """A Mamba mixer. `inner` is the expanded width, `state` the size of one channel's state, `kernel` that of the convolution."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    kind: Literal["mamba", "mamba2"]
    inner: int = Field(ge=1)
    state: int = Field(ge=1)
    kernel: int = Field(ge=1)
    dt_rank: int = Field(0, description="rank of the step size (Mamba)")
    heads: int = Field(0, description="heads (Mamba-2)")
    groups: int = Field(0, description="groups that share B and C (Mamba-2)")
    bias: bool = False
    conv_bias: bool = True
    inner_norms: bool = Field(False, description="norms on step size, B and C (Jamba)")

    @property
    def conv_width(self) -> int:
        """Channels of the convolution: Mamba-2 sends B and C through it too."""
        return self.inner + (2 * self.groups * self.state if self.kind == "mamba2" else 0)


class Architecture(BaseModel):
    """Sizes are counts of elements; `ffn` is the width of a dense MLP, `expert_ffn` that of one expert; 0 = the model has none."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    layers: int = Field(ge=1)
    hidden: int = Field(ge=1)
    heads: int = Field(ge=0)
    kv_heads: int = Field(ge=0)
    ffn: int = Field(ge=0)
    vocab: int = Field(ge=1)
    head_dim: int = 0
    gated: bool = True
    tied: bool = False
    norm: Norm = "rms"
    norms_per_layer: int = 2
    final_norm: bool = True
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    head_bias: bool = False
    sinks: bool = Field(False, description="one learned attention sink a head (gpt-oss)")
    qk_norm: QkNorm = "none"
    positions: int = Field(0, description="rows of a learned position table")
    embedding_norm: bool = False
    embedding_width: int = Field(0, description="width of the token table where it is not the hidden size (OPT-350M)")
    experts: int = 0
    experts_per_token: int = 0
    expert_ffn: int = 0
    shared_ffn: int = Field(0, description="width of the experts that every token passes")
    shared_gate: bool = False
    dense_layers: int = Field(0, description="layers with a dense MLP in a mixture-of-experts model")
    expert_bias: bool = False
    router_bias: bool = False
    latent: Latent | None = None
    sliding_window: int | None = Field(None, description="tokens that a windowed layer sees")
    windowed_layers: int = Field(0, description="attention layers that see the window only")
    chunked: bool = Field(False, description="the window is a fixed chunk (Llama 4) and does not slide")
    state_space: StateSpace | None = None
    state_layers: int = Field(0, description="layers whose mixer is a state space and not attention")
    predict_layers: int = Field(0, description="multi-token prediction modules, beside the model proper")

    @property
    def head_size(self) -> int:
        """Elements of one query or key head."""
        return self.head_dim or (self.hidden // self.heads if self.heads else 0)

    @property
    def attention_width(self) -> int:
        """Heads times head size; not always the hidden size."""
        return self.heads * self.head_size

    @property
    def kv_width(self) -> int:
        """Key (or value) heads times head size."""
        return self.kv_heads * self.head_size

    @property
    def attention_layers(self) -> int:
        """Layers whose mixer is attention."""
        return self.layers - self.state_layers

    @property
    def expert_layers(self) -> int:
        """Layers whose MLP is a set of experts."""
        return self.layers - self.dense_layers if self.experts else 0
