"""How a model is laid out over GPUs: tensor, pipeline, context, expert and data parallelism, checked.

tp x pp x cp x dp is the number of GPUs; ep x etp divides the GPUs of one pipeline stage (tp x cp x dp). A layout that
cannot exist is refused with the nearest that can. Knows divisibility; not bytes and not speed.

>>> resolve(shape, 8192, {"tp": 8, "pp": 4, "n_accelerators": 128}, {})["dp"]
4
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from skillserver.errors import BadRequest
from skillserver.estimate.shape import Architecture

NEAREST = 6


def resolve(shape: Architecture, seq_len: int, sizes: Mapping[str, int | None], rare: Mapping[str, Any]) -> dict[str, int]:
    """tp, pp, dp, cp, ep, etp and chunks, checked against the shape and the number of GPUs."""
    tp, pp, cp, ep = (sizes.get(name) or 1 for name in ("tp", "pp", "cp", "ep"))
    chunks = rare.get("virtual_stages") or 1
    _divides("tp", tp, "heads", shape.heads or (shape.state_space.heads if shape.state_space else 0) or shape.hidden)
    if shape.kv_heads and tp % shape.kv_heads and shape.kv_heads % tp:
        _divides("tp", tp, "kv heads", shape.kv_heads)
    _divides("cp", cp, "tokens of seq_len", seq_len)
    if pp * chunks > shape.layers:
        fits = [number for number in range(shape.layers // chunks, 0, -1) if shape.layers % (number * chunks) == 0] or [1]
        fewer = f" and extra.virtual_stages={max(shape.layers // pp, 1)} or less" if chunks > 1 else ""
        raise BadRequest("too_many_stages", f"pp {pp} x virtual_stages {chunks} is more than the {shape.layers} layers",
                         valid=map(str, fits[:NEAREST]), next=f"pass pp={min(fits[0], pp)}{fewer or ' or less'}")  # fmt: skip
    dp = _data_parallel(sizes, tp * pp * cp)
    return {"tp": tp, "pp": pp, "dp": dp, "cp": cp, "ep": ep, "etp": _experts(shape, ep, rare, tp * cp * dp), "chunks": chunks}


def divisors(whole: int) -> list[int]:
    """All divisors, ascending; counts up to the square root, since a job of 10^9 GPUs must not take half a minute to refuse."""
    low = [number for number in range(1, math.isqrt(whole) + 1) if whole % number == 0]
    return low + [whole // number for number in reversed(low) if number * number != whole]


def nearest(fitting: Iterable[int], size: int) -> list[int]:
    """The few that are nearest to what was asked, ascending."""
    return sorted(sorted(fitting, key=lambda number: abs(number - size))[:NEAREST])


def _divides(name: str, size: int, what: str, whole: int) -> None:
    if whole % size:
        near = nearest(divisors(whole), size)
        raise BadRequest(
            f"bad_{name}", f"{name} {size} does not divide the {whole} {what}", valid=map(str, near), next=f"pass one of these as {name}"
        )


def _data_parallel(sizes: Mapping[str, int | None], others: int) -> int:
    """dp as given or derived; the product must be the number of GPUs."""
    n, dp = sizes.get("n_accelerators"), sizes.get("dp")
    if n is None:
        return dp or 1
    if n % others or n < others or (dp and dp * others != n):
        near = sorted({max(n // others, 1) * others, dp * others if dp else (n // others + 1) * others})
        said = (
            f"tp x pp x cp x dp = {others * (dp or 1)} is not n_accelerators {n}"
            if dp
            else f"tp x pp x cp = {others} does not divide n_accelerators {n}"
        )
        fits = f"dp={n // others}, or " if n % others == 0 and n >= others else ""
        raise BadRequest("bad_layout", said, valid=[f"n_accelerators={number}" for number in near], next=f"pass {fits}another count")
    return n // others


def _experts(shape: Architecture, ep: int, rare: Mapping[str, Any], ranks: int) -> int:
    """Tensor parallelism of experts: 1 unless asked, as in Megatron's recipes with expert parallelism."""
    etp = int(rare.get("etp") or 1)
    if ep * etp > 1 and not shape.experts:
        raise BadRequest("no_experts", f"ep {ep} was given and the model has no experts", next="drop ep")
    if shape.experts:
        _divides("ep", ep, "experts", shape.experts)
    if ranks % (ep * etp):
        fits = map(str, nearest([number for number in divisors(math.gcd(ranks, shape.experts)) if ranks % (number * etp) == 0], ep))
        said = f"ep {ep} x etp {etp} does not divide the {ranks} GPUs of a pipeline stage (tp x cp x dp)"
        raise BadRequest("bad_ep", said, valid=fits, next="pass one of these as ep, or another etp")
    return etp
