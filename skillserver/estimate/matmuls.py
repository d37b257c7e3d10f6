"""The matrix products of a forward pass, as GEMM shapes on one GPU.

Knows which side tensor parallelism cuts: columns of query, key-value, gate and up products, rows of output and down
products, the vocabulary of the head. Shapes are derived from the architecture; whether a kernel fuses more is not known.

>>> shapes(Architecture(layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=128256), tokens=4096, tp=1)[0]
Matmul(name='q_proj', m=4096, n=4096, k=4096, times=32)
"""

from __future__ import annotations

from typing import NamedTuple

from skillserver.estimate.architecture import Weight, weights
from skillserver.estimate.shape import Architecture

ROWS_CUT = ("o_proj", "down", "out_proj", "x_proj")


class Matmul(NamedTuple):
    """[m, k] x [k, n]; `times` it stands in one forward pass. `m` of experts is what each gets when all are chosen alike."""

    name: str
    m: int | float
    n: int | float
    k: int | float
    times: int

    @property
    def flops(self) -> float:
        """Forward FLOPs of all of them."""
        return 2 * self.m * self.n * self.k * self.times


def shapes(shape: Architecture, tokens: int, tp: int = 1) -> list[Matmul]:
    """Every matrix product of `tokens` tokens on one of `tp` ranks; sizes that do not divide come out as fractions."""
    found = [_matmul(one, shape, tokens, tp) for one in weights(shape) if one.k and not one.looked_up]
    return [*(one for one in found if one.name != "lm_head"), *(one for one in found if one.name == "lm_head")]


def _matmul(one: Weight, shape: Architecture, tokens: int, tp: int) -> Matmul:
    """A tied table is the head. Key and value heads fewer than ranks are copied, not cut."""
    n, k, m = float(one.n), float(one.k), float(tokens)
    if one.part == "experts":
        m = tokens * shape.experts_per_token / shape.experts
    cut = min(tp, shape.kv_heads) if one.axis == "kv_heads" else tp
    if one.axis and one.name in ROWS_CUT:
        k /= cut
    elif one.axis:
        n /= cut
    name = "lm_head" if one.name == "token_table" else f"{one.part}.{one.name}" if "experts" in one.part else one.name
    return Matmul(name, _whole(m), _whole(n), _whole(k), one.copies)


def _whole(value: float) -> int | float:
    return int(value) if value == int(value) else round(value, 2)
