"""What to change when a job does not fit, the least slowdown first.

Each change is tried alone on the same request; when none suffices alone they are added up in the same order. The order
is what each costs in speed (training/memory#reducing-memory-in-order-of-slowdown), not how much memory it saves. Only
changes that keep the model, the data and what is trained are offered. A change must leave room for the estimate's error.

>>> suggest(llama_3_8b, {"seq_len": 4096, "micro_batch": 2, "sharding": "fsdp", "sizes": {"n_accelerators": 8}}, 60)[0].arguments
{'activation_recompute': 'selective'}
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from skillserver.errors import BadRequest
from skillserver.estimate.memory import peak
from skillserver.estimate.memory_plan import NODE, Plan, plan
from skillserver.estimate.shape import Architecture

ROOM = 0.93  # of the capacity: the median error of the estimate is 6%
SAVES = 0.99  # a change that leaves more than this of the memory is not worth its words
SHOWN = 4
Request = dict[str, Any]


class Change(NamedTuple):
    """Arguments to pass instead; `slowdown` is a range from practice, not from this job."""

    what: str
    arguments: Request
    slowdown: str
    device_gib: float


class Idea(NamedTuple):
    """A change that may apply: None when it does not."""

    what: str
    slowdown: str
    made: Callable[[Request, Plan], Request | None]


def suggest(shape: Architecture, request: Request, capacity: float) -> list[Change]:
    """Changes that make the job fit in `capacity` GiB, alone if any does, else together; empty when nothing helps."""
    alone = [change for change in _tried(shape, request) if change.device_gib <= ROOM * capacity]
    if alone:
        return alone[:SHOWN]
    together = _together(shape, request, capacity)
    return [together] if together else []


def _tried(shape: Architecture, request: Request) -> Iterator[Change]:
    for idea in IDEAS:
        change = _replayed(shape, request, [idea])
        if change:
            yield change


def _together(shape: Architecture, request: Request, capacity: float) -> Change | None:
    """Ideas added up until it fits; then those that are not needed after all are dropped, the dearest first."""
    taken: list[Idea] = []
    best = peak(plan(shape, **request)).device.expected
    for idea in IDEAS:
        change = _replayed(shape, request, [*taken, idea])
        if change is None or change.device_gib > SAVES * best:
            continue
        taken, best = [*taken, idea], change.device_gib
        if best <= ROOM * capacity:
            break
    else:
        return None
    for idea in taken[-2::-1]:
        fewer = [one for one in taken if one is not idea]
        change = _replayed(shape, request, fewer)
        taken = fewer if change and change.device_gib <= ROOM * capacity else taken
    return _replayed(shape, request, taken)


def _replayed(shape: Architecture, request: Request, ideas: list[Idea]) -> Change | None:
    """The request with these ideas made in order; None when one does not apply."""
    now = dict(request)
    for idea in ideas:
        arguments = idea.made(now, plan(shape, **now))
        if arguments is None:
            return None
        now |= arguments
    size = _device(shape, now)
    if size is None:
        return None
    return Change("; ".join(one.what for one in ideas), _public(shape, request, now), "; ".join(one.slowdown for one in ideas), size)


def _device(shape: Architecture, request: Request) -> float | None:
    """Device GiB of a changed request; None when its layout cannot be."""
    try:
        return peak(plan(shape, **request)).device.expected
    except BadRequest:
        return None


def _public(shape: Architecture, before: Request, now: Request) -> Request:
    """What differs, in the tool's own words: sizes one by one, `recompute` by its long name."""
    old, new = plan(shape, **before), plan(shape, **now)
    found = {key: getattr(new, key) for key in ("tp", "pp", "dp", "cp") if getattr(new, key) != getattr(old, key)}
    found |= {"n_accelerators": new.world} if new.world != old.world else {}
    for key in now.keys() - {"sizes"}:
        if now[key] != before.get(key):
            found["activation_recompute" if key == "recompute" else key] = now[key]
    return found


def _extra(name: str, value: Any, when: Callable[[Plan], bool]) -> Callable[[Request, Plan], Request | None]:
    """Set one of the rarer settings."""
    return lambda request, now: {"extra": {**(request.get("extra") or {}), name: value}} if when(now) else None


def _set(name: str, value: Any, when: Callable[[Plan], bool]) -> Callable[[Request, Plan], Request | None]:
    return lambda request, now: {name: value} if when(now) else None


def _halve_batch(request: Request, now: Plan) -> Request | None:
    return {"micro_batch": now.micro_batch // 2} if now.micro_batch > 1 else None


def _sizes(now: Plan, **changed: int) -> Request:
    """The same GPUs in another layout; ranks of the dimension that grows come from data parallelism."""
    sizes = {"tp": now.tp, "pp": now.pp, "dp": now.dp, "cp": now.cp, "ep": now.ep, "n_accelerators": now.world} | changed
    return {"sizes": sizes}


def _double(name: str, most: int | None = None) -> Callable[[Request, Plan], Request | None]:
    def made(request: Request, now: Plan) -> Request | None:
        size = 2 * int(getattr(now, name))
        return _sizes(now, **{name: size, "dp": now.dp // 2}) if now.dp % 2 == 0 and (most is None or size <= most) else None

    return made


def _more_gpus(request: Request, now: Plan) -> Request | None:
    return _sizes(now, dp=2 * now.dp, n_accelerators=2 * now.world) if now.sharding != "none" else None


def _shard_more(request: Request, now: Plan) -> Request | None:
    """ZeRO-3, or FSDP in place of replicas; neither goes with a pipeline, whose stages are used many times a step."""
    return {"sharding": "zero3"} if now.dp > 1 and now.pp == 1 and now.sharding in ("none", "zero1", "zero2") and now.program != "megatron" else None


IDEAS = (
    Idea("flash attention", "faster", _extra("attention", "flash", lambda now: now.attention == "eager")),
    Idea("chunked or fused cross-entropy", "none", _extra("loss", "chunked", lambda now: now.loss != "chunked")),
    Idea("fused norms and gates (kernels or torch.compile)", "faster", _extra("fused_kernels", True, lambda now: not now.fused)),
    Idea("sequence parallelism beside tp", "none", _set("sequence_parallel", True, lambda now: now.tp > 1 and not now.sequence_parallel)),
    Idea("ZeRO-1 (distributed optimizer)", "0 to 2%", _set("sharding", "zero1", lambda now: now.dp > 1 and now.sharding == "none")),
    Idea("micro batch halved, accumulation doubled", "0 to 10%", _halve_batch),
    Idea("selective recomputation", "1 to 5%", _set("recompute", "selective", lambda now: now.recompute == "none")),
    Idea("8-bit optimizer states", "1 to 5%", _set("optimizer", "adamw_8bit", lambda now: now.optimizer in ("adamw", "adam") and now.peft == "none")),
    Idea("ZeRO-3: weights and gradients sharded too", "0 to 20%, more on slow links", _shard_more),
    Idea("full recomputation", "20 to 33%", _set("recompute", "full", lambda now: now.recompute != "full")),
    Idea("context parallelism doubled", "5 to 20%", _double("cp")),
    Idea("tensor parallelism doubled, within the node", "10 to 30%", _double("tp", NODE)),
    Idea("pipeline stages doubled", "a bubble of (pp-1)/micro-batches", _double("pp")),
    Idea("twice the GPUs", "none for each step; twice the price an hour", _more_gpus),
    Idea("optimizer states in CPU memory", "1.2 to 3 times slower", _extra("offload", "optimizer", lambda now: now.offload == "none")),
    Idea("weights in CPU memory too", "several times slower",
         _extra("offload", "parameters", lambda now: now.sharding in ("zero3", "fsdp") and now.offload != "parameters")),
)  # fmt: skip
