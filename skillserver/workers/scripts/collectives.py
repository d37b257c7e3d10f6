"""The collectives as they are counted: what a size means, the bus factor, the call, and the answer it must give.

Sizes and factors are those of nccl-tests (PERFORMANCE.md and src/*.cu, version of July 2026), so rows can be laid beside
its output. The size of all_gather, reduce_scatter and all_to_all is the whole over all ranks, cut so that each rank's
part is a multiple of 16 bytes; counting one rank's part is the usual mistake. send_recv is a ring: every rank sends its
size to the next one and takes as much from the one before. A barrier moves nothing and has no bandwidth.
busbw = algbw x factor(n) is what the slowest link must carry, and it does not depend on n when the links are the limit.

>>> COLLECTIVES["all_reduce"].factor(8), COLLECTIVES["all_gather"].factor(8), elements("all_gather", 1000, 4, 3)
(1.75, 0.875, 240)
"""

from collections import namedtuple

import torch
import torch.distributed as dist

Collective = namedtuple("Collective", "factor make call expected")  # call(buffers, later) returns what must be waited for
Buffers = namedtuple("Buffers", "given taken")  # the same tensor for collectives in place
CYCLE = 4  # rank r contributes r % 4 + 1: sums stay small enough for bf16 to hold them exactly
ALIGNED = 16  # bytes, as in nccl-tests
SPLIT = ("all_gather", "reduce_scatter", "all_to_all")


def elements(name, size, itemsize, world):
    """How many elements a size in bytes is, at least one a rank; 0 for a barrier."""
    if name == "barrier":
        return 0
    if name not in SPLIT:
        return max(1, size // itemsize)
    each, step = size // itemsize // world, ALIGNED // itemsize
    return max(1, each // step * step if each >= step else each) * world


def contribution(rank):
    """What rank r fills its part with when sums are checked."""
    return rank % CYCLE + 1


def whole(world):
    """The sum of every rank's contribution."""
    return sum(contribution(rank) for rank in range(world))


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


def _gather(buffers, later):
    return _either("all_gather_single", "all_gather_into_tensor")(buffers.taken, buffers.given, async_op=later)


def _scatter(buffers, later):
    return _either("reduce_scatter_single", "reduce_scatter_tensor")(buffers.taken, buffers.given, async_op=later)


def _ring(buffers, later):
    rank, world = dist.get_rank(), dist.get_world_size()
    return exchange(buffers, (rank + 1) % world, (rank - 1) % world, later)


def exchange(buffers, to, source, later=False):
    """Send `given` to one rank and take `taken` from another, both at once; `later` returns the works instead of waiting."""
    both = [dist.P2POp(dist.isend, buffers.given, to), dist.P2POp(dist.irecv, buffers.taken, source)]
    works = dist.batch_isend_irecv(both)
    if later:
        return works
    finish(works)
    return None


def finish(works):
    """Wait for what a call with `later` returned: one work, several, or None."""
    for work in works if isinstance(works, list) else [works]:
        if work is not None:
            work.wait()


def _of(value, taken):
    """A number as this dtype holds it; integers wrap as sums of them do."""
    return torch.full((), value, dtype=torch.int64).to(taken.dtype).to(taken.device)


def _blocks(taken, world):
    """Every rank's contribution in the order of ranks."""
    values = torch.tensor([contribution(rank) for rank in range(world)], device=taken.device)
    return values.repeat_interleave(taken.numel() // world).to(taken.dtype)


def _sum(taken, world):
    return _of(whole(world), taken).expand(taken.shape)


def _first(taken, world):
    return _of(contribution(0), taken).expand(taken.shape)


def _before(taken, world):
    return _of(contribution((dist.get_rank() - 1) % world), taken).expand(taken.shape)


COLLECTIVES = {
    "all_reduce": Collective(lambda n: 2.0 * (n - 1) / n, _in_place, lambda b, later: dist.all_reduce(b.given, async_op=later), _sum),
    "all_gather": Collective(lambda n: (n - 1.0) / n, _gathering, _gather, _blocks),
    "reduce_scatter": Collective(lambda n: (n - 1.0) / n, _scattering, _scatter, _sum),
    "all_to_all": Collective(
        lambda n: (n - 1.0) / n, _exchanging, lambda b, later: dist.all_to_all_single(b.taken, b.given, async_op=later), _blocks
    ),
    "broadcast": Collective(lambda n: 1.0, _in_place, lambda b, later: dist.broadcast(b.given, 0, async_op=later), _first),
    "reduce": Collective(lambda n: 1.0, _in_place, lambda b, later: dist.reduce(b.given, 0, async_op=later), _sum),
    "send_recv": Collective(lambda n: 1.0, _exchanging, _ring, _before),
    "barrier": Collective(lambda n: None, _in_place, lambda b, later: dist.barrier(async_op=later), _first),
}


def right(name, buffers, rank, world):
    """Run the collective once on known numbers; whether this rank got what it must."""
    collective = COLLECTIVES[name]
    buffers.taken.zero_()
    buffers.given.fill_(contribution(rank))
    collective.call(buffers, False)
    if name == "barrier" or (name == "reduce" and rank != 0):
        return True  # a barrier gives nothing, and of a reduce only the root has a result
    expected = collective.expected(buffers.taken, world)
    return bool((buffers.taken.double() - expected.double()).abs().max() <= allowed(expected.dtype, world))


def allowed(dtype, world):
    """How far a sum may be off: nothing while the dtype holds every partial sum exactly."""
    if not dtype.is_floating_point:
        return 0.0
    step = torch.finfo(dtype).eps
    return 0.0 if whole(world) <= 2.0 / step else whole(world) * step * world
