"""What a copy or a memory kernel is held against: the rate on paper of the part's memory or link, with its source.

Joins the catalogue with the shares that healthy parts deliver. One direction everywhere. What nothing is known of has no
reference: a CPU's memory (its DIMMs are told to root only), a GPU without NVLink beside another, a module that NVLink-C2C
joins to its host.

>>> pcie(catalogue.accelerator("A100-80GB-SXM")).gb_s
31.5
"""

from __future__ import annotations

from dataclasses import dataclass

from skillserver.errors import BadRequest
from skillserver.hardware import catalogue
from skillserver.measure import shares
from skillserver.measure.judge import Judgement

LINKED_TO_CPU = ("GH200", "GB200", "GB300")  # NVLink-C2C, not PCIe, joins these to their host
NO_REFERENCE = Judgement(verdict="unknown", reason="no reference is known to compare with")


@dataclass(frozen=True)
class Reference:
    """A rate on paper, GB/s = 10^9 bytes a second one way; `kind` is a key of shares.LIMITS."""

    kind: str
    gb_s: float
    what: str
    source: str

    @property
    def good_gb_s(self) -> float:
        """What a healthy part reaches at least."""
        return self.gb_s * shares.LIMITS[self.kind].good


def part_of(model: str) -> catalogue.Accelerator | None:
    """The catalogue's part of a driver's name; None when it is not one or not just one."""
    try:
        return catalogue.accelerator(model)
    except BadRequest:
        return None


def memory(part: catalogue.Accelerator | None) -> Reference | None:
    """The part's own memory."""
    if part is None:
        return None
    return Reference("memory", part.memory_bandwidth_gb_s, f"memory of {part.id} on paper", part.sources[0])


def pcie(part: catalogue.Accelerator | None) -> Reference | None:
    """The slot of the part at the generation that it is sold with."""
    if part is None or not part.pcie_generation or part.id.startswith(LINKED_TO_CPU):
        return None
    link = catalogue.link(f"PCIe{part.pcie_generation}")
    return Reference("PCIe", link.each_way_gb_s, f"{link.id}, {link.note}, one way", link.source)


def nvlink(part: catalogue.Accelerator | None, direct: bool | None) -> Reference | None:
    """All NVLinks of the part, where it reaches the other one directly."""
    if part is None or not part.link_each_way_gb_s or not direct or not (part.link or "").startswith("NVLink"):
        return None
    return Reference("NVLink", part.link_each_way_gb_s, f"{part.link} of {part.id}, one way", catalogue.link(part.link or "").source)


def judge(gb_s: float, reference: Reference | None) -> Judgement:
    """A rate against its reference. More than a slot carries says that the part sits in a faster one, not that it is ill."""
    if reference is None:
        return NO_REFERENCE
    judgement = shares.of_link(gb_s, reference.gb_s, reference.kind)
    if reference.kind == "PCIe" and judgement.verdict == "warning" and (judgement.ratio or 0.0) > 1:
        return Judgement(verdict="unknown", reason=judgement.reason, ratio=judgement.ratio)
    return judgement
