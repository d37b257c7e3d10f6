"""Seconds that collectives take on the links of a cluster: bytes over the bus, and a latency for each hop.

A group of ranks lies `stride` apart: tensor parallelism has stride 1 and stays inside a node when it is small enough;
a group that leaves the node shares the node's network ports, so its bus is (its ranks in a node) x (network a GPU),
never faster than the link inside. Shares of links and latencies stand in data/layout_allowances.toml. Does not know
topology above the node (rails, oversubscribed switches) nor other jobs on the network.

>>> eight = Cluster(accelerator("h100"), 64, node=8, inside_gb_s=450, between_gb_s=50)
>>> round(bus_gb_s(eight, 8, 1)), round(bus_gb_s(eight, 8, 8)), round(bus_gb_s(eight, 64, 1))
(338, 40, 320)
"""

from __future__ import annotations

import functools
from typing import Literal, NamedTuple

from skillserver import tables
from skillserver.errors import BadRequest
from skillserver.hardware import catalogue
from skillserver.hardware.catalogue import Accelerator
from skillserver.units import GB


class Allowance(tables.Record):
    """One constant of layout_allowances.toml with where it comes from."""

    id: str
    value: float
    unit: str
    basis: Literal["derived", "published", "fitted", "assumed"]
    reason: str
    source: str


@functools.cache
def _allowances() -> dict[str, float]:
    return {row.id: row.value for row in tables.load("layout_allowances.toml", Allowance)}


def allowance(name: str) -> float:
    """One constant of the table; KeyError is a bug."""
    return _allowances()[name]


class Cluster(NamedTuple):
    """GPUs and their links. GB/s are one direction and a GPU; `matmul_tflops` are measured ceilings by dtype, if known."""

    part: Accelerator
    n: int
    node: int
    inside_gb_s: float
    between_gb_s: float
    matmul_tflops: tuple[tuple[str, float], ...] = ()


def inside_gb_s(part: Accelerator) -> float:
    """GB/s of a GPU's link to its neighbours, one direction; PCIe when it has no other. Raises BadRequest when unknown."""
    if part.link_each_way_gb_s:
        return part.link_each_way_gb_s
    if part.pcie_generation:
        return catalogue.link(f"PCIe{part.pcie_generation}").each_way_gb_s
    raise BadRequest("no_link", f"the catalogue has no link of {part.id}", next="pass another accelerator")


def between_gb_s(network: str | float, node: int) -> float:
    """GB/s a GPU and direction of a network named in the catalogue (one port a GPU; an instance's total is divided) or given."""
    if isinstance(network, int | float):
        return float(network)
    found = catalogue.link(network)
    return found.each_way_gb_s / node if found.kind == "instance" else found.each_way_gb_s


def per_node(cluster: Cluster, size: int, stride: int) -> int:
    """Ranks of a group that share one node."""
    return min(size, max(cluster.node // stride, 1))


def bus_gb_s(cluster: Cluster, size: int, stride: int) -> float:
    """GB/s of a ring over the group, as nccl-tests' busbw."""
    here = per_node(cluster, size, stride)
    inside = cluster.inside_gb_s * allowance("inside_share")
    if here == size:
        return inside
    return min(inside, here * cluster.between_gb_s * allowance("between_share"))


def gather_s(cluster: Cluster, size: int, stride: int, whole_bytes: float) -> float:
    """An all-gather or reduce-scatter of `whole_bytes` over the group: (size - 1)/size of them pass each rank (ring)."""
    if size == 1 or not whole_bytes:
        return 0.0
    return (size - 1) / size * whole_bytes / (bus_gb_s(cluster, size, stride) * GB) + _latency_s(cluster, size, stride)


def all_reduce_s(cluster: Cluster, size: int, stride: int, whole_bytes: float) -> float:
    """A reduce-scatter and an all-gather: 2 (size - 1)/size of the bytes."""
    return 2 * gather_s(cluster, size, stride, whole_bytes)


def all_to_all_s(cluster: Cluster, size: int, stride: int, sent_bytes: float) -> float:
    """Each rank sends `sent_bytes`, spread evenly over the group; what leaves the node and what stays flow side by side."""
    if size == 1 or not sent_bytes:
        return 0.0
    here = per_node(cluster, size, stride)
    outside_s = sent_bytes * (size - here) / size / (cluster.between_gb_s * allowance("between_share") * GB)
    inside_s = sent_bytes * (here - 1) / size / (cluster.inside_gb_s * allowance("inside_share") * GB)
    return max(outside_s, inside_s) + allowance("start_us") * 1e-6


def send_s(cluster: Cluster, stride: int, sent_bytes: float) -> float:
    """Point to point to a rank `stride` away."""
    crosses = stride >= cluster.node
    rate = cluster.between_gb_s * allowance("between_share") if crosses else cluster.inside_gb_s * allowance("inside_share")
    return sent_bytes / (rate * GB) + allowance("start_us") * 1e-6


def _latency_s(cluster: Cluster, size: int, stride: int) -> float:
    """A start and a hop a rank: short inside a node, longer between nodes."""
    nodes = size / per_node(cluster, size, stride)
    hops = allowance("hop_inside_us") * (size - 1) if nodes == 1 else allowance("hop_between_us") * (size - 1)
    return (allowance("start_us") + hops) * 1e-6
