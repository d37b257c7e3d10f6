"""A CUDA memory snapshot of PyTorch -> who held the bytes when it mattered, by kind and by the user's own line.

The snapshot (torch.cuda.memory._dump_snapshot) has the blocks alive at its end and, when history was recorded, every
allocation and release before. Walked backwards from the end that gives the set alive at each moment; the moment is the
last failed allocation, else the peak. Allocations made before the recording have no stack. Sizes are those requested;
`reserved` is what the allocator took from the driver. Format: torch/cuda/memory.py and _memory_viz.py of torch 2.13.
Knows one process; what should fit is estimate_memory's business.

>>> alive(raw).moment, alive(raw).allocated
('peak', 6442450944)
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from skillserver.diagnose import flight_entries
from skillserver.diagnose.flight_findings import user_frames

Raw = dict[str, Any]
Moment = Literal["out of memory", "peak", "end of the snapshot"]
NO_STACK = "no stack"
UNWALKED = 64  # innermost frames looked at
BACKWARD: list[Raw] = [{"name": "backward pass", "filename": "<no Python stack>", "line": 0}]  # autograd's threads have no Python frames
PARAMETERS = (
    r"load_state_dict|from_pretrained|^_apply@|reset_parameters|^__init__@.*torch/nn/modules/(?!module\.py)|_init_weights|safetensors|unshard"
)
KINDS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("communication", re.compile(r"torch/distributed/(?:distributed_c10d|_functional_collectives)|deepspeed/comm/|nccl")),
    ("optimizer state", re.compile(r"torch/optim/|deepspeed/ops/adam|bitsandbytes/optim|apex/optimizers|@.*/optim(?:izer)?s?/")),
    ("gradients and backward", re.compile(r"_engine_run_backward|torch/autograd/|accumulate_grad|^backward\b")),
    ("logits and loss", re.compile(r"cross_entropy|nll_loss|log_softmax|lm_head|logits|torch/nn/modules/loss\.py")),
    ("KV cache", re.compile(r"kv_cache|cache_utils\.py|cache_engine|_init_cache")),
    ("parameters", re.compile(PARAMETERS)),
    ("data", re.compile(r"torch/utils/data/|pin_memory|collate")),
    ("activations", re.compile(r"_call_impl|^forward\b|torch/nn/functional|flash_attn|torch/utils/checkpoint")),
)


@dataclass
class Holder:
    """Bytes that one place of the program holds."""

    place: str
    kind: str
    bytes: int = 0
    blocks: int = 0


@dataclass
class Alive:
    """The state at one moment, all in bytes. `largest_free` and `unused` are those of the snapshot's end."""

    device: int
    moment: Moment
    allocated: int
    at_end: int
    reserved: int
    unused: int
    largest_free: int
    asked: int | None = None
    device_free: int | None = None
    asked_at: str = ""
    holders: list[Holder] = field(default_factory=list)
    kinds: dict[str, int] = field(default_factory=dict)
    expandable: bool = False
    recorded: int = 0
    before_recording: int = 0


def devices(raw: Raw) -> list[int]:
    """Devices with memory or history, the fullest first."""
    held: dict[int, int] = defaultdict(int)
    for segment in raw.get("segments") or []:
        held[int(segment.get("device") or 0)] += int(segment.get("total_size") or 0)
    for number, trace in enumerate(raw.get("device_traces") or []):
        if trace:
            held[number] += 0
    return sorted(held, key=lambda device: -held[device])


def alive(raw: Raw, device: int) -> Alive:
    """Who held what on one device."""
    segments = [segment for segment in raw.get("segments") or [] if int(segment.get("device") or 0) == device]
    traces = raw.get("device_traces") or []
    trace = [event for event in (traces[device] if device < len(traces) else []) if isinstance(event, dict)]
    end = _active(segments)
    place, moment, oom = _moment(trace, sum(size for size, _frames in end.values()))
    then = _rewound(trace, end, place)
    holders = _holders(then.values())
    kinds: dict[str, int] = defaultdict(int)
    for holder in holders:
        kinds[holder.kind] += holder.bytes
    free = [int(block["size"]) for segment in segments for block in segment.get("blocks") or [] if block.get("state") == "inactive"]
    return Alive(
        device, moment, sum(size for size, _frames in then.values()), sum(size for size, _frames in end.values()),
        sum(int(segment.get("total_size") or 0) for segment in segments), sum(free), max(free, default=0),
        asked=int(oom["size"]) if oom else None, device_free=_free(oom), asked_at=_place(oom.get("frames")) if oom else "",
        holders=holders, kinds=dict(sorted(kinds.items(), key=lambda item: -item[1])),
        expandable=any(segment.get("is_expandable") for segment in segments), recorded=len(trace),
        before_recording=sum(holder.bytes for holder in holders if holder.place == NO_STACK),
    )  # fmt: skip


def _active(segments: Iterable[Raw]) -> dict[int, tuple[int, Sequence[Raw]]]:
    """{address: (bytes requested, frames)} of all blocks in use; older snapshots give no address, then it is counted up."""
    found: dict[int, tuple[int, Sequence[Raw]]] = {}
    for segment in segments:
        address = int(segment.get("address") or 0)
        for block in segment.get("blocks") or []:
            here = int(block.get("address") or address)
            if str(block.get("state", "")).startswith("active"):
                found[here] = (int(block.get("requested_size") or block["size"]), _frames(block))
            address = here + int(block["size"])
    return found


def _frames(block: Raw) -> Sequence[Raw]:
    """Frames of a block; up to torch 2.0 they stood in its history."""
    history = block.get("history") or []
    return block.get("frames") or (history[0].get("frames") if history else None) or []


def _moment(trace: Sequence[Raw], at_end: int) -> tuple[int, Moment, Raw | None]:
    """(events before the moment, which moment, the failed request): the last failure, else the highest point."""
    for number in range(len(trace) - 1, -1, -1):
        if trace[number].get("action") == "oom":
            return number, "out of memory", trace[number]
    now, best, place = at_end, at_end, len(trace)
    for number in range(len(trace) - 1, -1, -1):
        now -= _change(trace[number])
        if now > best:
            best, place = now, number
    return place, "peak" if trace else "end of the snapshot", None


def _change(event: Raw) -> int:
    size = int(event.get("size") or 0)
    return size if event.get("action") == "alloc" else -size if event.get("action") == "free_completed" else 0


def _rewound(trace: Sequence[Raw], end: dict[int, tuple[int, Sequence[Raw]]], place: int) -> dict[int, tuple[int, Sequence[Raw]]]:
    """What was alive before the event number `place`."""
    born: dict[int, Sequence[Raw]] = {}
    stacks: list[Sequence[Raw]] = []  # of the allocation that each release ended
    for event in trace:
        address = int(event.get("addr") or 0)
        if event.get("action") == "alloc":
            born[address] = event.get("frames") or BACKWARD
        stacks.append(born.get(address, []))
    now = {address: (size, frames or BACKWARD * (address in born)) for address, (size, frames) in end.items()}
    for number in range(len(trace) - 1, place - 1, -1):
        event, address = trace[number], int(trace[number].get("addr") or 0)
        if event.get("action") == "alloc":
            now.pop(address, None)
        elif event.get("action") == "free_completed":
            now[address] = (int(event.get("size") or 0), stacks[number])
    return now


def _holders(blocks: Iterable[tuple[int, Sequence[Raw]]]) -> list[Holder]:
    """Blocks by place and kind, the largest first."""
    found: dict[tuple[str, str], Holder] = {}
    seen: dict[int, tuple[str, str]] = {}
    for size, frames in blocks:
        if id(frames) not in seen:
            seen[id(frames)] = (_place(frames), kind(frames))
        name = seen[id(frames)]
        holder = found.setdefault(name, Holder(*name))
        holder.bytes += size
        holder.blocks += 1
    return sorted(found.values(), key=lambda holder: -holder.bytes)


def _triples(frames: Sequence[Raw] | None) -> list[tuple[str, str, int]]:
    return flight_entries.triples((frames or [])[:UNWALKED])


def _place(frames: Sequence[Raw] | None) -> str:
    """The user's own frames, else the innermost Python ones; NO_STACK without any."""
    python = [frame for frame in _triples(frames) if frame[1].endswith(".py") or frame[1][:1] == "<"]
    return user_frames(python) or NO_STACK


def kind(frames: Sequence[Raw] | None) -> str:
    """What the bytes are, by the first rule that matches any frame; a guess from names."""
    lines = [f"{name}@{file}" for name, file, _line in _triples(frames)]
    if not lines:
        return "unknown"
    return next((name for name, pattern in KINDS if any(pattern.search(line) for line in lines)), "other")


def _free(oom: Raw | None) -> int | None:
    """Free bytes of the device at the failure."""
    value = oom.get("device_free") if oom else None
    return int(value) if isinstance(value, int) else None
