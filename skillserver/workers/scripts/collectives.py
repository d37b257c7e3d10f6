"""The collectives as they are counted: what a size means, the bus factor, the call, and the answer it must give.

Sizes and factors are those of nccl-tests (PERFORMANCE.md), so rows can be laid beside its output. The size of
all_gather, reduce_scatter and all_to_all is the whole over all ranks; counting one rank's part is the usual mistake.
busbw = algbw x factor(n) is what the slowest link must carry, and it does not depend on n when the links are the limit.

>>> COLLECTIVES["all_reduce"].factor(8), COLLECTIVES["all_gather"].factor(8)
(1.75, 0.875)
"""

from collections import namedtuple

import torch
import torch.distributed as dist

Collective = namedtuple("Collective", "factor make call expected")
Buffers = namedtuple("Buffers", "given taken")  # the same tensor for collectives in place
CYCLE = 4  # rank r contributes r % 4 + 1: sums stay small enough for bf16 to hold them exactly


def contribution(rank):
    """What rank r fills its part with when sums are checked."""
    return rank % CYCLE + 1


def whole(world):
    """The sum of every rank's contribution."""
    return float(sum(contribution(rank) for rank in range(world)))


def _in_place(count, world, dtype, place):
    tensor = torch.zeros(count, dtype=dtype, device=place)
    return Buffers(tensor, tensor)


def _gathering(count, world, dtype, place):
    return Buffers(torch.zeros(count // world, dtype=dtype, device=place), torch.zeros(count, dtype=dtype, device=place))


def _scattering(count, world, dtype, place):
    return Buffers(torch.zeros(count, dtype=dtype, device=place), torch.zeros(count // world, dtype=dtype, device=place))


def _exchanging(count, world, dtype, place):
    return Buffers(torch.zeros(count, dtype=dtype, device=place), torch.zeros(count, dtype=dtype, device=place))


def _either(new, old):
    """torch 2.13 renames the flat collectives; older ones have only the old name."""
    return getattr(dist, new, None) or getattr(dist, old)


def _blocks(taken, world):
    """Every rank's contribution in the order of ranks."""
    values = torch.tensor([float(contribution(rank)) for rank in range(world)], dtype=taken.dtype, device=taken.device)
    return values.repeat_interleave(taken.numel() // world)


def _sum(taken, world):
    return torch.full_like(taken, whole(world))


def _first(taken, world):
    return torch.full_like(taken, contribution(0))


COLLECTIVES = {
    "all_reduce": Collective(lambda n: 2.0 * (n - 1) / n, _in_place, lambda b: dist.all_reduce(b.given), _sum),
    "all_gather": Collective(
        lambda n: (n - 1.0) / n, _gathering, lambda b: _either("all_gather_single", "all_gather_into_tensor")(b.taken, b.given), _blocks
    ),
    "reduce_scatter": Collective(
        lambda n: (n - 1.0) / n, _scattering, lambda b: _either("reduce_scatter_single", "reduce_scatter_tensor")(b.taken, b.given), _sum
    ),
    "all_to_all": Collective(lambda n: (n - 1.0) / n, _exchanging, lambda b: dist.all_to_all_single(b.taken, b.given), _blocks),
    "broadcast": Collective(lambda n: 1.0, _in_place, lambda b: dist.broadcast(b.given, 0), _first),
    "reduce": Collective(lambda n: 1.0, _in_place, lambda b: dist.reduce(b.given, 0), _sum),
}


def right(name, buffers, rank, world):
    """Run the collective once on known numbers; whether this rank got what it must."""
    collective = COLLECTIVES[name]
    buffers.taken.zero_()
    buffers.given.fill_(contribution(rank))
    collective.call(buffers)
    if name == "reduce" and rank != 0:
        return True  # only the root has a result
    expected = collective.expected(buffers.taken, world)
    largest_exact = 2.0 / torch.finfo(expected.dtype).eps
    allowed = 0.0 if whole(world) <= largest_exact else whole(world) * torch.finfo(expected.dtype).eps * world
    return bool((buffers.taken.double() - expected.double()).abs().max() <= allowed)
