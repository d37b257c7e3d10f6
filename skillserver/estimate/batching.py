"""A small discrete-event simulation of one replica under a load: static against continuous batching.

Requests arrive at random times (Poisson) or all at once, with answers of random length; the seed is fixed. Static
batching fills a batch, and admits nobody until its longest answer ends. Continuous batching (Orca, OSDI 2022) admits
at every step while a slot is free, and cuts prompts into chunks. Steps between two events are taken together. Knows
nothing of preemption, priorities or prompts of different lengths.

>>> load = Load(Job(512, 128), slots=32, rate=None, requests=128)
>>> saturated(engine, load, "continuous") > saturated(engine, load, "static")
True
"""

from __future__ import annotations

import heapq
import math
import random
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from skillserver.estimate.inference import Job
from skillserver.estimate.inference_allowances import allowance
from skillserver.estimate.inference_step import Engine

Policy = Literal["static", "continuous"]
SEED = 20260201
LONGEST = 4  # answers are cut at this multiple of their mean, as max_tokens does
WARM_UP = 0.1  # share of the first requests that statistics leave out


class Load(NamedTuple):
    """`slots` sequences at most together; `rate` requests a second, None = all at once."""

    job: Job
    slots: int
    rate: float | None
    requests: int


class Served(NamedTuple):
    """When one request arrived, showed its first token and ended (s), and its tokens."""

    arrived: float
    first: float
    ended: float
    tokens: int

    @property
    def tpot_s(self) -> float:
        """Mean time a token after the first."""
        return (self.ended - self.first) / max(1, self.tokens - 1)


@dataclass
class _State:
    """A replica in time: `steps` counts decode steps, so a sequence ends at a known count."""

    now: float = 0.0
    steps: int = 0
    running: list[tuple[int, int]] = field(default_factory=list)  # (step at which it ends, request)
    started: dict[int, int] = field(default_factory=dict)
    first: dict[int, float] = field(default_factory=dict)
    ended: dict[int, float] = field(default_factory=dict)
    filling: list[list[int]] = field(default_factory=list)  # [request, tokens of its prompt that are done]


def answers(load: Load) -> list[int]:
    """Answer lengths, log-normal with the mean asked for and the spread of the allowances, at most four means."""
    spread = math.log(1 + allowance("output_spread").value ** 2)
    chance, mean = random.Random(SEED), load.job.output_tokens
    draw = [chance.lognormvariate(math.log(mean) - spread / 2, spread**0.5) for _ in range(load.requests)]
    return [max(1, min(LONGEST * mean, round(one))) for one in draw]


def arrivals(load: Load) -> list[float]:
    """Times of arrival (s)."""
    chance, now, found = random.Random(SEED + 1), 0.0, []
    for _ in range(load.requests):
        now += chance.expovariate(load.rate) if load.rate else 0.0
        found.append(now)
    return found


def simulate(engine: Engine, load: Load, policy: Policy) -> list[Served]:
    """Every request of the load, in order of arrival."""
    times, lengths = arrivals(load), answers(load)
    state = _State()
    (_static if policy == "static" else _continuous)(engine, load, times, lengths, state)
    return [Served(times[one], state.first[one], state.ended[one], lengths[one]) for one in range(load.requests)]


def _continuous(engine: Engine, load: Load, times: list[float], lengths: list[int], state: _State) -> None:
    waiting = 0  # index of the next request that has no slot
    while len(state.ended) < load.requests:
        while waiting < load.requests and times[waiting] <= state.now and len(state.running) + len(state.filling) < load.slots:
            state.filling.append([waiting, load.job.cached])
            waiting += 1
        if state.filling:
            _mixed_step(engine, load, lengths, state)
        elif state.running:
            free = waiting < load.requests and len(state.running) < load.slots
            _decode(engine, load, state, times[waiting] if free else math.inf)
        else:
            state.now = times[waiting]
        _retire(state)


def _mixed_step(engine: Engine, load: Load, lengths: list[int], state: _State) -> None:
    """One step: a token for each running sequence, and as many prompt tokens as the budget leaves."""
    budget = max(1, int(allowance("step_tokens").value) - len(state.running))
    tokens, seen, done = 0, 0.0, []
    for entry in state.filling:
        part = min(budget - tokens, load.job.input_tokens - entry[1])
        if part <= 0:
            break
        tokens, seen = tokens + part, seen + engine.model.seen(entry[1], entry[1] + part)
        entry[1] += part
        if entry[1] == load.job.input_tokens:
            done.append(entry[0])
    state.now += engine.step_s(decoding=len(state.running), context=_context(load, state), prefill=tokens, prefill_seen=seen, finishing=len(done))
    state.steps += 1
    state.filling = state.filling[len(done) :]
    for request in done:
        state.first[request], state.started[request] = state.now, state.steps
        heapq.heappush(state.running, (state.steps + lengths[request] - 1, request))


def _decode(engine: Engine, load: Load, state: _State, until: float) -> None:
    """Steps without prefill up to the next answer's end, or the next arrival."""
    count, context = state.running[0][0] - state.steps, _context(load, state)
    if until < math.inf:
        count = min(count, max(1, math.ceil((until - state.now) / engine.step_s(decoding=len(state.running), context=context))))
    state.now += count * engine.step_s(decoding=len(state.running), context=context + count / 2)
    state.steps += count


def _context(load: Load, state: _State) -> float:
    """Mean tokens of the running sequences."""
    if not state.running:
        return 0.0
    return load.job.input_tokens + state.steps - sum(state.started.values()) / len(state.started)


def _retire(state: _State) -> None:
    while state.running and state.running[0][0] <= state.steps:
        request = heapq.heappop(state.running)[1]
        state.ended[request] = state.now
        del state.started[request]


def _static(engine: Engine, load: Load, times: list[float], lengths: list[int], state: _State) -> None:
    """Whole batches: whoever waits when the last one ended; ended sequences keep their slot as padding."""
    job, start = load.job, 0
    while start < load.requests:
        state.now = max(state.now, times[start])
        stop = start
        while stop < load.requests and stop - start < load.slots and times[stop] <= state.now:
            stop += 1
        batch = range(start, stop)
        size = len(batch)
        new = size * (job.input_tokens - job.cached)
        state.now += engine.step_s(prefill=new, prefill_seen=size * engine.model.seen(job.cached, job.input_tokens), finishing=size)
        begun, previous = state.now, 1
        for request in sorted(batch, key=lambda one: lengths[one]):
            step = engine.step_s(decoding=size, context=job.input_tokens + (previous + lengths[request]) / 2)
            state.now += (lengths[request] - previous) * step
            previous = lengths[request]
            state.first[request], state.ended[request] = begun, state.now
        start = stop


def saturated(engine: Engine, load: Load, policy: Policy) -> float:
    """Output tokens a second when work never runs out: the middle half of the requests by end, or whole batches."""
    done = sorted(simulate(engine, load._replace(rate=None), policy), key=lambda one: one.ended)
    if policy == "static":
        return sum(one.tokens for one in done) / done[-1].ended
    low, high = len(done) // 4, 3 * len(done) // 4
    return sum(one.tokens for one in done[low:high]) / max(1e-9, done[high - 1].ended - done[low - 1].ended)


class Latencies(NamedTuple):
    """Seconds, over the requests after the warm-up."""

    ttft_p50_s: float
    ttft_p95_s: float
    tpot_p50_s: float
    tpot_p95_s: float


def latencies(done: list[Served]) -> Latencies:
    """Percentiles of a simulated load."""
    kept = done[int(WARM_UP * len(done)) :]
    first, each = sorted(one.first - one.arrived for one in kept), sorted(one.tpot_s for one in kept if one.tokens > 1) or [0.0]
    return Latencies(_at(first, 0.5), _at(first, 0.95), _at(each, 0.5), _at(each, 0.95))


def _at(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]
