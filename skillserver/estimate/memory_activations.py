"""What one layer keeps for backward, a token at a time, and what recomputation leaves of it.

Coefficients are counts of saved tensors, not a textbook's 34: a test runs real layers under torch's saved-tensor hooks
and compares to within 1%. `cut` bytes are divided by tp always, `whole` ones only with sequence parallelism. Flash (or
any fused) attention is the default; the score matrices of eager attention are counted with extra.attention='eager'.
Not proved: state-space layers, whose kernels differ.

| piece | unfused | fused |
|---|---|---|
| RMSNorm | fp32 input 4h + normalised 2h | input 2h |
| LayerNorm | input 2h | 2h |
| gated MLP | gate, silu, up, product 8f | 6f |
| eager attention, a head and key | fp32 softmax 4 + its 16-bit copy 2 | - |

>>> llama = saved(plan(shape_of("llama-3-8b"), seq_len=8192)); (llama.whole + llama.cut) / 4096
49.03...
"""

from __future__ import annotations

from typing import NamedTuple

from skillserver.estimate.memory_plan import Plan
from skillserver.estimate.memory_states import adapts_every_linear

LORA_DROPOUT = 1.5  # bytes a byte: the dropped-out copy of an adapter's input and its mask


class Saved(NamedTuple):
    """Bytes a token: `whole` on every tensor-parallel rank unless sequence parallel, `cut` divided by tp."""

    whole: float
    cut: float

    def __add__(self, other: object) -> Saved:
        if not isinstance(other, Saved):
            return NotImplemented
        return Saved(self.whole + other.whole, self.cut + other.cut)

    def times(self, factor: float) -> Saved:
        """Scaled."""
        return Saved(self.whole * factor, self.cut * factor)

    def on_one(self, plan: Plan) -> float:
        """Bytes a token on one GPU."""
        return self.whole / (plan.tp if plan.sequence_parallel else 1) + self.cut / plan.tp


def saved(plan: Plan) -> Saved:
    """An average layer of the model with nothing recomputed."""
    shape = plan.shape
    mixers = shape.attention_layers, shape.state_layers
    dense, routed = shape.layers - shape.expert_layers, shape.expert_layers
    found = norms(plan)
    if mixers[0]:
        found += attention(plan).times(mixers[0] / shape.layers)
    if mixers[1]:
        found += _state_space(plan).times(mixers[1] / shape.layers)
    found += mlp(plan, shape.ffn).times(dense / shape.layers)
    return found + experts(plan).times(routed / shape.layers) if routed else found


def kept(plan: Plan) -> Saved:
    """An average layer under the plan's recomputation."""
    if plan.recompute == "full":
        return Saved(plan.bytes_16 * plan.shape.hidden, 0)
    if plan.recompute == "selective" and plan.program == "fsdp":
        return every_second_matmul(plan)
    if plan.recompute == "selective" and plan.attention == "eager":
        return saved(plan) + scores(plan).times(-1)
    return saved(plan)


def norms(plan: Plan) -> Saved:
    """A layer's norms: each keeps its input, unfused RMSNorm in fp32 and its 16-bit result beside it, with fp32 statistics."""
    shape, size, frozen = plan.shape, plan.bytes_16, plan.peft != "none"
    if shape.norm == "none":
        return Saved(0, 0)
    if shape.norm == "rms" and not plan.fused:
        one = (4 + (0 if frozen else size)) * shape.hidden + 4
    else:
        one = size * shape.hidden + (8 if shape.norm != "rms" else 4)
    return Saved(shape.norms_per_layer * one, 0)


def linear_input(plan: Plan, width: float, *, adapters: int = 1) -> float:
    """Bytes that linear layers keep of one input: none when frozen, save what each adapter and 4-bit kernels keep."""
    size = plan.bytes_16 * width
    if plan.peft == "none":
        return size
    lora = adapters * LORA_DROPOUT * size if plan.peft in ("lora", "qlora") else 0
    return lora + (size if plan.peft == "qlora" else 0)  # bitsandbytes' 4-bit matmul keeps its input whether needed or not


def attention(plan: Plan) -> Saved:
    """Projections' inputs, Q, K, V, the output, and flash attention's log-sum-exp of 4 bytes a head."""
    shape, size = plan.shape, plan.bytes_16
    if shape.latent:
        return _latent(plan)
    wide, narrow = shape.attention_width, shape.kv_width
    every = adapts_every_linear(plan)
    whole = linear_input(plan, shape.hidden, adapters=3 if every else 2)
    cut: float = size * (2 * wide + 2 * narrow) + 4 * shape.heads
    if plan.peft in ("lora", "qlora") and every:
        cut += LORA_DROPOUT * size * wide
    if shape.qk_norm != "none" and shape.norm == "rms":
        cut += (size if plan.fused else 4 + size) * (wide + narrow) + 4 * (shape.heads + shape.kv_heads)
    return Saved(whole, cut) + (scores(plan) if plan.attention == "eager" else Saved(0, 0))


def scores(plan: Plan) -> Saved:
    """Eager attention: the fp32 softmax and its 16-bit copy, for every head and key; replaces the log-sum-exp."""
    per_key = 4 if plan.bytes_16 == 4 else 4 + 2
    return Saved(0, plan.shape.heads * plan.seq_len / plan.cp * per_key - 4 * plan.shape.heads)


def _latent(plan: Plan) -> Saved:
    """Multi-head latent attention: down-projections are whole on every rank, heads are cut. K is put together per head."""
    mla, size, heads = plan.shape.latent, plan.bytes_16, plan.shape.heads
    assert mla is not None
    norm = size if plan.fused else 4 + size
    low = mla.kv_rank + (mla.q_rank or 0)
    whole = linear_input(plan, plan.shape.hidden) + low * norm + sum(linear_input(plan, rank) for rank in (mla.kv_rank, mla.q_rank or 0))
    whole += 4 * (2 if mla.q_rank else 1)
    query = mla.nope + mla.rope
    cut = size * heads * (2 * query + (mla.nope + mla.value) + mla.value) + 4 * heads
    return Saved(whole, cut)


def mlp(plan: Plan, width: float) -> Saved:
    """One MLP of that width."""
    if not width:
        return Saved(0, 0)
    size, every = plan.bytes_16, adapts_every_linear(plan)
    inner = (2 if plan.fused else 3) * size if plan.shape.gated else size
    entry = linear_input(plan, plan.shape.hidden, adapters=(1 + plan.shape.gated) * every)
    return Saved(entry, inner * width + linear_input(plan, width, adapters=int(every)))


def experts(plan: Plan) -> Saved:
    """Router input, a copy of the token for each expert that takes it, its MLP and output; shared experts beside it.

    The output is kept for the router's gradient; written with index_add, its weighted copy is kept once more.

    With expert parallelism tokens move and their number stays, as long as experts are loaded evenly.
    """
    shape, size = plan.shape, plan.bytes_16
    routed = mlp(plan, shape.expert_ffn).times(shape.experts_per_token)
    moved = routed.whole + size * shape.hidden * shape.experts_per_token * (1 if plan.fused else 2)
    shared = mlp(plan, shape.shared_ffn) if shape.shared_ffn else Saved(size * shape.hidden, 0)
    spread = Saved(moved + routed.cut, 0) if plan.etp == 1 else Saved(moved, routed.cut)  # without etp a token's MLP is on one rank
    return spread + shared + Saved(8 * shape.experts, 0)


def _state_space(plan: Plan) -> Saved:
    """A Mamba mixer as its fused kernels keep it: both halves of the entry, convolution, step, output and gated output."""
    ssm, size = plan.shape.state_space, plan.bytes_16
    assert ssm is not None
    return Saved(linear_input(plan, plan.shape.hidden), size * (6 * ssm.inner + 2 * (ssm.groups or 1) * ssm.state))


def every_second_matmul(plan: Plan) -> Saved:
    """Per-operator selective recomputation of torchtitan: a layer's input, every second matmul result and the attention output."""
    shape, size = plan.shape, plan.bytes_16
    if shape.latent or shape.experts or shape.state_layers:
        return saved(plan).times(0.5)
    widths = [shape.attention_width, shape.kv_width, shape.kv_width, shape.hidden, *[shape.ffn] * (1 + shape.gated), shape.hidden]
    columns = [True, True, True, False, *[True] * (1 + shape.gated), False]
    whole = size * (shape.hidden + sum(width for width, cut in list(zip(widths, columns, strict=True))[::2] if not cut))
    cut = size * (shape.attention_width + sum(width for width, cut in list(zip(widths, columns, strict=True))[::2] if cut))
    return Saved(whole, cut + 4 * shape.heads)
