"""How much of a one-way link, of a memory or of a published speed a healthy device delivers, and what a lower share says.

Between the two limits of a kind nothing is known to be wrong, and nothing to be right: unknown. A share above 102% is an
error of the comparison. Each limit names the measurements behind it. Knows no part: rates come in, judgements go out.

>>> of_link(25.1, 31.5, "PCIe").verdict, of_link(12.4, 31.5, "PCIe").verdict
('ok', 'warning')
"""

from __future__ import annotations

from typing import NamedTuple

from skillserver.measure.judge import Judgement

ABOVE_PAPER = 1.02


class Limits(NamedTuple):
    """Shares of the one-way rate: fine from `good`, wrong below `poor`."""

    good: float
    poor: float
    basis: str


LIMITS = {
    # H100 55 of 63 GB/s, A100 25.1 of 31.5, RTX 4090 23.9 to 26.4 of 31.5 (nvbandwidth issues 15 and 42)
    "PCIe": Limits(0.75, 0.60, "healthy hosts copy at 76 to 88% of the one-way rate"),
    # A100 274 of 300, H100 376 of 450, H200 396, GB200 746 of 900: pairwise copies, one way
    "NVLink": Limits(0.75, 0.60, "healthy pairs copy at 83 to 91% of the one-way rate"),
    # NDR ports are expected to give 46 to 48 of 50 GB/s (nccl-tests issue 290); 98% on 100 Gb/s (perftest issue 225)
    "RDMA": Limits(0.88, 0.80, "healthy ports carry 92 to 98% of their rate"),
    # BabelStream 304 of 336 GB/s on an RTX 2060 (alpaka issue 1874), 1573 of 1792 on an RTX 5090 (cccl 9881)
    "memory": Limits(0.75, 0.55, "STREAM kernels reach 80 to 93% of the memory rate on paper"),
    # network chapter: 75 to 90% of the one-way rate inside a node when nothing measured is known
    "ring": Limits(0.75, 0.45, "rings reach 75 to 90% of the one-way rate inside a node"),
}
BURN_GOOD, BURN_POOR = 0.85, 0.70  # one hot 8192 GEMM: about 730 of MAMF 794.5 on an H100, 270 of 271 on an A100 (gpu-fryer)
FABRIC_POOR = 0.60  # less than this of a node's NICs: wrong interface, no GPUDirect, ACS (network chapter)
TREE_MOST = 2.0
LATENCY_LIMITS_US = {"IB": (3.0, 10.0), "Ethernet": (5.0, 15.0)}


def of_link(gb_s: float, one_way_gb_s: float, kind: str) -> Judgement:
    """A rate in one direction against the rate on paper in that direction, GB/s; `kind` is a key of LIMITS."""
    limits, share = LIMITS[kind], gb_s / one_way_gb_s
    said = f"{gb_s:.4g} GB/s is {share:.0%} of {one_way_gb_s:g} GB/s one way"
    if kind == "memory":
        said = f"{gb_s:.4g} GB/s is {share:.0%} of the {one_way_gb_s:g} GB/s on paper"
    if share > ABOVE_PAPER:
        why = "a cache, both directions added, or another part or link" if kind != "memory" else "a cache held the arrays, or it is another part"
        return Judgement(verdict="warning", reason=f"{said}, which cannot be: {why}", ratio=share)
    if share >= limits.good:
        return Judgement(verdict="ok", reason=f"{said}; {limits.basis}", ratio=share)
    if share >= limits.poor:
        return Judgement(verdict="unknown", reason=f"{said}; {limits.basis}, and this is below but not far enough to name a fault", ratio=share)
    return Judgement(verdict="warning", reason=f"{said}; {limits.basis}", ratio=share)


def of_published_burn(tflops: float, published_tflops: float) -> Judgement:
    """One hot shape against the best matmul that others measured on the part (MAMF), TFLOPS."""
    share = tflops / published_tflops
    said = f"{tflops:.4g} TFLOPS is {share:.0%} of the {published_tflops:g} published as the best matmul of this part"
    if share >= BURN_GOOD:
        return Judgement(verdict="ok", reason=f"{said}; one hot shape gives 90 to 100%", ratio=share)
    if share >= BURN_POOR:
        return Judgement(verdict="unknown", reason=f"{said}; a stress test holds one shape at full heat, so this need not be a fault", ratio=share)
    return Judgement(verdict="warning", reason=f"{said}; one hot shape gives 90 to 100% on a healthy part", ratio=share)


def between_nodes(busbw_gb_s: float, node_gb_s: float, n_ranks: int, n_nodes: int, *, ring_only: bool = False) -> Judgement:
    """busbw of a collective over several nodes against what all NICs of one node carry one way, GB/s.

    A ring puts busbw itself on a node's NICs. A hierarchy or tree puts less there: busbw x g (k-1) / (n-1) for k nodes of
    g ranks. Which of them ran is not in the number, so only what both agree on is judged, unless the ring was forced.
    """
    ring = busbw_gb_s / node_gb_s
    if ring_only:
        return _ring_between(busbw_gb_s, ring, node_gb_s)
    each = n_ranks / n_nodes
    least = ring * each * (n_nodes - 1) / (n_ranks - 1)
    said = f"{busbw_gb_s:.4g} GB/s needs between {least:.0%} (tree) and {ring:.0%} (ring) of the {node_gb_s:g} GB/s that a node's NICs carry one way"
    if least > ABOVE_PAPER or ring > TREE_MOST * ABOVE_PAPER:
        return Judgement(verdict="warning", reason=f"{said}, which cannot be: more or faster NICs, or fewer nodes than assumed", ratio=least)
    if ring < FABRIC_POOR:
        return Judgement(verdict="warning", reason=f"{said}: wrong interface, no GPUDirect RDMA, ACS, or a bad link", ratio=ring)
    if least >= FABRIC_POOR:
        return Judgement(verdict="ok", reason=said, ratio=least)
    return Judgement(verdict="unknown", reason=f"{said}; run it with NCCL_ALGO=RING to measure the wire", ratio=ring)


def _ring_between(busbw_gb_s: float, ring: float, node_gb_s: float) -> Judgement:
    """A forced ring: EFA and HDR nodes showed 80 to 95% of their NICs (network chapter), NDR ports are expected at 92% and more."""
    said = f"{busbw_gb_s:.4g} GB/s of a forced ring is {ring:.0%} of the {node_gb_s:g} GB/s that a node's NICs carry one way"
    if ring > ABOVE_PAPER:
        return Judgement(verdict="warning", reason=f"{said}, which cannot be: more or faster NICs than assumed", ratio=ring)
    if ring >= LIMITS["ring"].good:
        return Judgement(verdict="ok", reason=said, ratio=ring)
    return Judgement(verdict="warning" if ring < FABRIC_POOR else "unknown", reason=f"{said}; healthy fabrics give 80 to 95%", ratio=ring)


def small_latency(latency_us: float, layer: str) -> Judgement:
    """Half a round trip of a few bytes between two ports, us; layer is IB or Ethernet."""
    good, poor = LATENCY_LIMITS_US.get(layer, LATENCY_LIMITS_US["Ethernet"])
    said = f"{latency_us:.3g} us; ports add 0.5 to 0.6 us and a switch 0.1 to 0.5"
    if latency_us <= good:
        return Judgement(verdict="ok", reason=said)
    return Judgement(verdict="unknown" if latency_us <= poor else "warning", reason=f"{said}, so look at CPU clocks (C-states), NUMA node and hops")
