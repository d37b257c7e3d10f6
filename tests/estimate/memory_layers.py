"""Small transformer layers in plain torch, and what they keep for backward.

Written the way training code writes them: norms in fp32 inside a 16-bit model, scaled_dot_product_attention, gated MLPs,
experts by gather and scatter. Dropout is 0 and rotary tables are shared by all layers, so they are not counted.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode


def kept_bytes(layer: nn.Module, tokens: int, hidden: int, *, dtype: torch.dtype = torch.bfloat16) -> int:
    """Bytes of the distinct storages that a forward pass keeps for backward, parameters and shared tables apart."""
    layer = layer.to(dtype)
    apart = {one.untyped_storage().data_ptr() for one in [*layer.parameters(), *layer.buffers()]}
    kept: dict[int, tuple[int, Tensor]] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in apart:
            kept[storage.data_ptr()] = (storage.nbytes(), tensor)  # the tensor is held, so that its address is not used again
        return tensor

    stream = torch.randn(1, tokens, hidden, dtype=dtype, requires_grad=True) * 1.0
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = layer(stream)
    assert output.requires_grad
    return sum(size for size, _tensor in kept.values())


class Matmuls(TorchDispatchMode):
    """Bytes of every second matmul's result and of attention's, as torchtitan's per-operator policy keeps them."""

    def __init__(self) -> None:
        super().__init__()
        self.count, self.bytes = 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        self.count += name == "mm"
        if (name == "mm" and self.count % 2) or "attention" in name:
            self.bytes += sum(
                one.nbytes for one in (out if isinstance(out, tuple) else (out,)) if isinstance(one, Tensor) and one.is_floating_point()
            )
        return out


def every_second_matmul(block: nn.Module, tokens: int, hidden: int) -> int:
    """Bytes that the policy keeps of one forward pass."""
    stream = torch.randn(1, tokens, hidden, dtype=torch.bfloat16, requires_grad=True)
    with Matmuls() as seen:
        block(stream)
    return seen.bytes


class FusedNorm(torch.autograd.Function):
    """What a fused RMSNorm kernel keeps: its input and one statistic a token (torch's own falls apart into pieces on a CPU)."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        inverse = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-5)
        ctx.save_for_backward(x, weight, inverse)
        return (x.float() * inverse).to(x.dtype) * weight

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[no-untyped-def]
        raise NotImplementedError


class Flash(torch.autograd.Function):
    """What flash attention keeps, with heads of unequal size too: Q, K, V, the output in token order, log-sum-exp."""

    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        scores = (q @ k.transpose(-1, -2)).float()
        out = (torch.softmax(scores, -1).to(v.dtype) @ v).transpose(1, 2).contiguous()
        ctx.save_for_backward(q, k, v, out, torch.logsumexp(scores, -1))
        return out

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # type: ignore[no-untyped-def]
        raise NotImplementedError


class RmsNorm(nn.Module):
    """RMSNorm as models write it: fp32 inside, the weight applied in the model's type; or fused."""

    def __init__(self, width: int, *, fused: bool = False) -> None:
        super().__init__()
        self.weight, self.fused = nn.Parameter(torch.ones(width)), fused

    def forward(self, x: Tensor) -> Tensor:
        if self.fused:
            return FusedNorm.apply(x, self.weight)
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        return self.weight * wide.to(x.dtype)


class FusedGate(torch.autograd.Function):
    """silu(gate) * up that recomputes the silu in backward."""

    @staticmethod
    def forward(ctx, gate: Tensor, up: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.save_for_backward(gate, up)
        return F.silu(gate) * up

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[no-untyped-def]
        gate, up = ctx.saved_tensors
        return grad * up * torch.sigmoid(gate), grad * F.silu(gate)


class GatedMlp(nn.Module):
    """down(silu(gate) * up)."""

    def __init__(self, hidden: int, width: int, *, fused: bool = False) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(hidden, width, False), nn.Linear(hidden, width, False), nn.Linear(width, hidden, False)
        self.fused = fused

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate(x), self.up(x)
        return self.down(FusedGate.apply(gate, up) if self.fused else F.silu(gate) * up)


class PlainMlp(nn.Module):
    """down(gelu(up))."""

    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(hidden, width), nn.Linear(width, hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


def eager_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Softmax in fp32 with its copy in the model's type; the scale is in q, so that no scaled scores are kept."""
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)
    return torch.softmax(scores.float(), -1).to(q.dtype) @ v


class Attention(nn.Module):
    """Grouped attention with rotary positions and, if wanted, a norm on each query and key head."""

    def __init__(
        self, hidden: int, heads: int, kv_heads: int, tokens: int, *, qk_norm: bool = False, eager: bool = False, rotary: bool = True
    ) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.size, self.eager, self.rotary = heads, kv_heads, hidden // heads, eager, rotary
        self.q, self.k, self.v = (nn.Linear(hidden, n * self.size, False) for n in (heads, kv_heads, kv_heads))
        self.o = nn.Linear(hidden, hidden, False)
        self.norms = nn.ModuleList([RmsNorm(self.size), RmsNorm(self.size)]) if qk_norm else None
        self.register_buffer("cos", torch.ones(tokens, self.size))
        self.register_buffer("sin", torch.ones(tokens, self.size))

    def turn(self, x: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        return x * self.cos + torch.cat((-x[..., half:], x[..., :half]), -1) * self.sin if self.rotary else x

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        q, k, v = (made(x).view(batch, tokens, n, self.size) for made, n in ((self.q, self.heads), (self.k, self.kv_heads), (self.v, self.kv_heads)))
        if self.norms:
            q, k = self.norms[0](q), self.norms[1](k)
        q, k, v = self.turn(q.transpose(1, 2)), self.turn(k.transpose(1, 2)), v.transpose(1, 2)
        out = (
            eager_attention(q, k, v)
            if self.eager
            else F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.heads != self.kv_heads)
        )
        return self.o(out.transpose(1, 2).reshape(batch, tokens, -1))


class LatentAttention(nn.Module):
    """DeepSeek's: queries, keys and values grow from low ranks; each key is its own part beside a shared rotary part."""

    def __init__(self, hidden: int, heads: int, q_rank: int, kv_rank: int, nope: int, rope: int, value: int) -> None:
        super().__init__()
        self.heads, self.kv_rank, self.nope, self.rope, self.value = heads, kv_rank, nope, rope, value
        self.q_down, self.q_norm = nn.Linear(hidden, q_rank, False), RmsNorm(q_rank)
        self.q_up = nn.Linear(q_rank, heads * (nope + rope), False)
        self.kv_down, self.kv_norm = nn.Linear(hidden, kv_rank + rope, False), RmsNorm(kv_rank)
        self.kv_up = nn.Linear(kv_rank, heads * (nope + value), False)
        self.o = nn.Linear(heads * value, hidden, False)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        q = self.q_up(self.q_norm(self.q_down(x))).view(batch, tokens, self.heads, -1).transpose(1, 2)
        low, rotary = self.kv_down(x).split([self.kv_rank, self.rope], -1)
        grown = self.kv_up(self.kv_norm(low)).view(batch, tokens, self.heads, -1).transpose(1, 2)
        k_own, v = grown.split([self.nope, self.value], -1)
        k = torch.cat((k_own, rotary.unsqueeze(1).expand(-1, self.heads, -1, -1)), -1)
        q = torch.cat(q.split([self.nope, self.rope], -1), -1)  # rotation would copy here
        return self.o(Flash.apply(q, k, v).reshape(batch, tokens, -1))


class Experts(nn.Module):
    """A router and its experts by gather and scatter; the load is made even by hand."""

    def __init__(self, hidden: int, width: int, count: int, taken: int, shared: int = 0) -> None:
        super().__init__()
        self.router = nn.Linear(hidden, count, False)
        self.each = nn.ModuleList(GatedMlp(hidden, width) for _ in range(count))
        self.shared = GatedMlp(hidden, shared) if shared else None
        self.taken = taken

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, x.shape[-1])
        weight = torch.softmax(self.router(flat).float(), -1)
        out = torch.zeros_like(flat)
        for number, expert in enumerate(self.each):
            mine = torch.arange(number * self.taken, flat.shape[0] * self.taken + number * self.taken, len(self.each)) % flat.shape[0]
            out = out.index_add(0, mine, expert(flat[mine]) * weight[mine, number, None].to(flat.dtype))
        return (out + self.shared(flat) if self.shared else out).view(x.shape)


class Block(nn.Module):
    """Norm, mixer, norm, MLP, each added to the stream."""

    def __init__(self, norms: tuple[nn.Module, nn.Module], mixer: nn.Module, mlp: nn.Module) -> None:
        super().__init__()
        self.first, self.second = norms
        self.mixer, self.mlp = mixer, mlp

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.mixer(self.first(x))
        return x + self.mlp(self.second(x))


class Adapted(nn.Module):
    """A frozen linear layer with a low-rank adapter behind dropout."""

    def __init__(self, frozen: nn.Linear, rank: int) -> None:
        super().__init__()
        self.frozen = frozen
        self.down, self.up = nn.Linear(frozen.in_features, rank, False), nn.Linear(rank, frozen.out_features, False)

    def forward(self, x: Tensor) -> Tensor:
        dropped, _mask = torch.native_dropout(x, 0.05, True)  # the operator of GPUs, whose mask is one byte; F.dropout on a CPU keeps two
        return self.frozen(x) + self.up(self.down(dropped))
