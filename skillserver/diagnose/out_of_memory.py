"""The numbers of a GPU out-of-memory message, in all wordings of PyTorch, and what they say.

Wordings: 1.x `(GPU 0; 15.90 GiB total capacity; 13.13 GiB already allocated; ...)`, 2.1 `total capacty`, 2.2 and later
`total capacity`, with `this process has`, `Process 123 has` or private pools of CUDA graphs. Judges in this order: more
than the card has, other processes on the card, pieces too small (fragmentation), plainly too much. Knows the message
only; what the bytes belong to is the business of a memory snapshot. Wordings: c10/cuda/CUDACachingAllocator.cpp.

>>> judge(parse("Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8.00 GiB of which 1.00 GiB is free. ...")).kind
'shortage'
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from skillserver.units import GIB, show_bytes

Kind = Literal["too_big", "other_process", "fragmentation", "shortage", "limited", "unknown"]
SIZE = r"(\d{1,20}(?:\.\d{1,4})?) (bytes|KiB|MiB|GiB|TiB|PiB|EiB)"
UNIT = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "PiB": 2**50, "EiB": 2**60}
FIELDS = {
    "tried": (rf"Tried to allocate {SIZE}",),
    "capacity": (rf"total capaci?ty of {SIZE}", rf"{SIZE} total capacity"),
    "free": (rf"of which {SIZE} is free", rf"; {SIZE} free"),
    "in_use": (rf"this process has {SIZE} memory in use",),
    "allocated": (rf"{SIZE} is allocated by PyTorch", rf"{SIZE} already allocated"),
    "unallocated": (rf"{SIZE} is reserved by PyTorch but unallocated",),
    "reserved": (rf"{SIZE} reserved in total", rf"{SIZE} cached"),
    "private": (rf"{SIZE} allocated in private pools",),
}
COMPILED = {name: tuple(map(re.compile, patterns)) for name, patterns in FIELDS.items()}
OTHERS = re.compile(rf"Process \d{{1,9}} has {SIZE} memory in use")
MARGIN_GIB = 0.25  # the allocator asks the driver for whole segments, so a little more than the request must be free
FOREIGN_GIB = 1.5  # a CUDA context with NCCL's buffers takes up to this without being another process


@dataclass(frozen=True, slots=True)
class Numbers:
    """Bytes; None where the message does not say."""

    tried: float | None = None
    capacity: float | None = None
    free: float | None = None
    in_use: float | None = None
    allocated: float | None = None
    unallocated: float | None = None
    private: float | None = None
    named_processes: int = 0


@dataclass(frozen=True, slots=True)
class Judgement:
    """The kind of shortage, sentences with the numbers, and what helps against this kind."""

    kind: Kind
    title: str
    reading: list[str]
    remedies: list[str]


def parse(text: str) -> Numbers:
    """Every number that the message has; the lines may be joined by spaces."""
    values = {name: _size(text, patterns) for name, patterns in COMPILED.items()}
    reserved, allocated = values.pop("reserved"), values["allocated"]
    if values["unallocated"] is None and reserved is not None and allocated is not None:
        values["unallocated"] = max(reserved - allocated, 0.0)
    return Numbers(**values, named_processes=len(OTHERS.findall(text)))


def judge(numbers: Numbers) -> Judgement:
    """What ran out and what helps."""
    kind = _kind(numbers)
    return Judgement(kind, TITLES[kind], [text for text in (_said(numbers), _verdict(kind, numbers)) if text], REMEDIES[kind])


def _size(text: str, patterns: tuple[re.Pattern[str], ...]) -> float | None:
    match = next((match for pattern in patterns if (match := pattern.search(text))), None)
    return float(match[1]) * UNIT[match[2]] if match else None


def _foreign(numbers: Numbers) -> float:
    """Bytes on the card that are not this process's; 0 when the message cannot tell."""
    if numbers.capacity is None or numbers.free is None:
        return 0.0
    if numbers.in_use is not None:
        return max(numbers.capacity - numbers.free - numbers.in_use, 0.0)
    if numbers.named_processes or numbers.allocated is None:
        return 0.0  # `Process N has` without `this process`: inside a container N may be this very process
    return max(numbers.capacity - numbers.free - numbers.allocated - (numbers.unallocated or 0.0) - FOREIGN_GIB * GIB, 0.0)


def _kind(numbers: Numbers) -> Kind:
    tried, capacity, free = numbers.tried, numbers.capacity, numbers.free
    if tried is None or capacity is None or free is None:
        return "unknown"
    if tried > capacity:
        return "too_big"
    if _foreign(numbers) > max(FOREIGN_GIB * GIB, 0.05 * capacity) and tried <= free + _foreign(numbers):
        return "other_process"
    if free > 1.05 * tried + MARGIN_GIB * GIB:
        return "limited"
    idle = numbers.unallocated or 0.0
    return "fragmentation" if idle >= 0.02 * capacity and tried <= free + idle else "shortage"


def _said(numbers: Numbers) -> str:
    parts = [
        ("tried", numbers.tried), ("capacity", numbers.capacity), ("free", numbers.free), ("this process", numbers.in_use),
        ("allocated by PyTorch", numbers.allocated), ("reserved but unallocated", numbers.unallocated), ("in private pools", numbers.private),
    ]  # fmt: skip
    return ", ".join(f"{name} {show_bytes(value)}" for name, value in parts if value is not None)


def _verdict(kind: Kind, numbers: Numbers) -> str:
    tried, free, idle = numbers.tried or 0.0, numbers.free or 0.0, numbers.unallocated or 0.0
    if kind == "too_big":
        card = show_bytes(numbers.capacity or 0)
        return f"one tensor of {show_bytes(tried)} is more than the whole card ({card}): no allocator setting helps, the shape must shrink"
    if kind == "other_process":
        return f"{show_bytes(_foreign(numbers))} on this card belong to other processes; without them the request would fit"
    if kind == "limited":
        return (f"{show_bytes(free)} were free, more than was asked for: a memory fraction is set (set_per_process_memory_fraction), "
                "another process took and gave back memory in that moment, or the figure is of another moment")  # fmt: skip
    if kind == "fragmentation":
        pools = "; a part may lie in private pools of CUDA graphs, which nothing else can use" if numbers.private else ""
        return f"free plus reserved-but-unallocated is {show_bytes(free + idle)}, enough for the request, but in pieces: fragmentation{pools}"
    if kind == "shortage":
        short = tried - free - idle
        missing = f"{show_bytes(short)} short" if short > 0 else f"the last {show_bytes(free)} do not make a whole segment"
        return f"even in one piece free plus reserved-but-unallocated would be {show_bytes(free + idle)}, {missing}: too much is in use"
    return ""


TITLES: dict[Kind, str] = {
    "too_big": "GPU out of memory: one tensor is larger than the card",
    "other_process": "GPU out of memory: other processes hold memory on this card",
    "fragmentation": "GPU out of memory by fragmentation",
    "shortage": "GPU out of memory: the job needs more than the card has",
    "limited": "GPU out of memory although enough was free",
    "unknown": "GPU out of memory",
}
FIT = "smaller micro batch with more accumulation, activation recomputation, sharding (FSDP, ZeRO); read training/memory for what should fit"
REMEDIES: dict[Kind, list[str]] = {
    "too_big": [
        "find the tensor in the traceback: often logits (batch x sequence x vocabulary) or attention scores without flash attention",
        "chunk it, or cut batch or sequence length",
    ],
    "other_process": [
        "nvidia-smi names the holders: end leftovers of an earlier run, or take another GPU",
        "check that ranks do not share a GPU (set_device(LOCAL_RANK)) and that nothing allocates on cuda:0 by default",
    ],
    "fragmentation": [
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True (PYTORCH_ALLOC_CONF in the newest releases)",
        "fewer distinct shapes: pad or bucket sequence lengths; torch.cuda.empty_cache() between phases such as training and evaluation",
        FIT,
    ],
    "shortage": [FIT, "diagnose_memory on a snapshot says who held the bytes"],
    "limited": ["look for a memory fraction and for other processes on the card", FIT],
    "unknown": [FIT, "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True when much is reserved but unallocated"],
}
