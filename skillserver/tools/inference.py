"""The face of serving estimates: a model, an accelerator and a load go in; what fits, how fast and how dear comes out.

Knows how a request is read and how an answer is laid out; the arithmetic is in estimate/inference*.py and batching.py.

>>> estimate_inference(model="llama-3-8b", accelerator="H100-80GB-SXM").memory.kv_bytes_per_token
131072.0
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from skillserver import topics
from skillserver.contract import tool
from skillserver.errors import BadRequest
from skillserver.estimate import batching, inference, inference_memory, models
from skillserver.estimate.inference import Job
from skillserver.estimate.inference_allowances import allowance
from skillserver.estimate.inference_memory import Room
from skillserver.estimate.inference_model import Served, possible_tps, served
from skillserver.estimate.inference_step import Engine, Parts
from skillserver.findings import Finding, Interval, worst_first
from skillserver.hardware import catalogue
from skillserver.hardware.catalogue import Accelerator
from skillserver.tools import inference_remarks as remarks

Weights = Literal["bf16", "fp16", "fp8", "int8", "int4", "fp4"]
KvDtype = Literal["bf16", "fp16", "fp8", "int8"]
SIMULATED = 600  # requests of a load
MOST_SLOTS = 1024  # of a simulation of saturation: 4 x as many requests
MOST_CHUNKS = 20_000  # prompt chunks of one simulation


class Memory(BaseModel):
    """GiB on one accelerator; sequences of input + output tokens of one replica."""

    capacity_gib: float
    usable_gib: float
    weights_gib: float
    activations_gib: float
    framework_gib: float
    kv_cache_gib: Interval
    kv_bytes_per_token: float = Field(description="whole model, while no window is full")
    kv_tokens: int | None
    max_sequences: Interval


class Phase(BaseModel):
    """One step and what holds it. Milliseconds; weights and matmuls overlap, cache and scores too."""

    bound: str
    total_ms: float
    weights_ms: float
    matmuls_ms: float
    kv_cache_ms: float
    scores_ms: float
    network_ms: float
    gaps_ms: float


class Choice(BaseModel):
    """One alternative, expected values, with `sequences` together."""

    choice: str
    fits: bool
    max_sequences: int = 0
    sequences: int = 0
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    output_tokens_s_per_gpu: float | None = None


class Policy(BaseModel):
    """Simulated, fixed seed. Latencies at `requests_s` a replica, null without a load or when it cannot keep up."""

    policy: str
    saturated_output_tokens_s: float
    requests_s: float | None = None
    keeps_up: bool | None = None
    ttft_p50_s: float | None = None
    ttft_p95_s: float | None = None
    tpot_p50_ms: float | None = None
    tpot_p95_ms: float | None = None


class InferenceEstimate(BaseModel):
    """One replica = tp accelerators. Derived from shapes and printed peaks times the shares that published servers reached."""

    summary: str
    memory: Memory
    concurrency: int = Field(description="sequences together that the speeds are for")
    ttft_s: Interval = Field(description="one prompt, empty server")
    tpot_s: Interval = Field(description="at concurrency, others' prefill included")
    output_tokens_s: Interval = Field(description="one replica at concurrency")
    cost_usd_per_million_output_tokens: Interval | None
    lowest_tpot_s: float = Field(description="weight bytes / printed bandwidth, batch 1: no engine beats it")
    prefill: Phase = Field(description="one prompt")
    decode: Phase = Field(description="one step at concurrency, no prefill in it")
    decode_with_prefill: Phase = Field(description="the same with others' prefill spread over the steps")
    by_concurrency: list[Choice]
    by_tp: list[Choice]
    by_weights: list[Choice]
    prefix_cache: str
    batching: list[Policy]
    replicas: int | None = Field(description="for request_rate with room to spare")
    findings: list[Finding]
    assumptions: list[str]
    skipped: list[str]
    sections: list[str]
    next: str


@tool(toolset="estimate", title="Estimate inference", read_only=True)
def estimate_inference(
    model: Annotated[str | dict[str, Any], Field(description="name or HF config")],
    accelerator: Annotated[str, Field(description="H100-80GB-SXM")],
    tp: Annotated[int, Field(ge=1, le=64, description="tensor-parallel size")] = 1,
    input_tokens: Annotated[int, Field(ge=1, le=10**7, description="prompt")] = 1024,
    output_tokens: Annotated[int, Field(ge=1, le=10**6, description="mean answer")] = 256,
    weights: Annotated[Weights, Field(description="format")] = "bf16",
    kv_dtype: Annotated[KvDtype, Field(description="of the KV cache")] = "bf16",
    concurrency: Annotated[int | None, Field(ge=1, le=10**5, description="sequences together; default what fits, at most 256")] = None,
    request_rate: Annotated[float | None, Field(gt=0, le=1e6, description="requests/s in all")] = None,
    cached_tokens: Annotated[int, Field(ge=0, le=10**7, description="shared prefix of every prompt")] = 0,
    price_per_gpu_hour_usd: Annotated[float | None, Field(gt=0, le=1e4, description="USD")] = None,
) -> InferenceEstimate:
    """Call before serving a model: does it fit, how many sequences, TTFT, TPOT, tokens/s, cost, what bounds it, which tp and quantization.

    A tp that does not divide the model and a model that does not fit are refused with the nearest that do.
    """
    reading, part = models.reading_of(model), catalogue.accelerator(accelerator)
    if cached_tokens >= input_tokens:
        raise BadRequest("bad_cached_tokens", f"cached_tokens {cached_tokens} is not below input_tokens {input_tokens}",
                         next=f"pass at most {input_tokens - 1}: the last token is always computed")  # fmt: skip
    engine = Engine(served(reading.shape, weights=weights, kv_dtype=kv_dtype, tp=tp), part)
    return _answer(engine, Job(input_tokens, output_tokens, cached_tokens), concurrency, request_rate, price_per_gpu_hour_usd, reading.notes)


def _answer(engine: Engine, job: Job, asked: int | None, rate: float | None, price: float | None, notes: list[str]) -> InferenceEstimate:
    one, part = engine.model, engine.part
    room = inference_memory.refuse_what_does_not_fit(one, part, job.total)
    memory = _memory(one, room, job)
    most = int(memory.max_sequences.expected)
    slots = _slots(asked, most)
    found = inference.speed(one, part, job, slots)
    cost = _cost(price, one.tp, found.output_tokens_s)
    policies, replicas = _batching(engine, job, slots, rate)
    alone, mixed = inference.decode_alone(engine, job, slots), inference.decode_parts(engine, job, slots)
    return InferenceEstimate(
        summary=_summary(found, slots, alone, most), memory=memory, concurrency=slots, ttft_s=_short(found.ttft_s), tpot_s=_short(found.tpot_s),
        output_tokens_s=_short(found.output_tokens_s), cost_usd_per_million_output_tokens=cost and _short(cost),
        lowest_tpot_s=_round(inference.lowest_tpot_s(one, part)), prefill=_phase(engine.prefill_parts(job.input_tokens, job.cached)),
        decode=_phase(alone), decode_with_prefill=_phase(mixed), by_concurrency=_by_concurrency(engine, job, most, slots),
        by_tp=_by_tp(one, part, job), by_weights=_by_weights(one, part, job), prefix_cache=_prefix(engine, job, room), batching=policies,
        replicas=replicas,
        findings=_findings(engine, alone, memory, slots, policies, job.total), assumptions=[*notes, *remarks.assumptions(engine, asked)],
        skipped=remarks.skipped(price, rate), sections=topics.sections("serving_speed", "serving_memory", "batching"),
        next="run_mamf on this part; then run_inference_bench at this load and compare ttft_s, tpot_s and output_tokens_s",
    )  # fmt: skip


def _memory(one: Served, room: Room, job: Job) -> Memory:
    fit = [inference_memory.sequences(one, gib, job.total, job.cached) for gib in (room.cache_gib.low, room.cache_gib.expected, room.cache_gib.high)]
    whole = one._replace(cache_share=1.0, tp=1)
    per_token = whole.cache_bytes(1) - whole.state_bytes
    return Memory(
        capacity_gib=_round(room.capacity_gib), usable_gib=_round(room.usable_gib), weights_gib=_round(room.weights_gib),
        activations_gib=_round(room.activations_gib), framework_gib=_round(room.framework_gib), kv_cache_gib=_short(room.cache_gib),
        kv_bytes_per_token=per_token, kv_tokens=inference_memory.tokens_that_fit(one, room.cache_gib.expected),
        max_sequences=Interval(low=fit[0], expected=fit[1], high=fit[2]),
    )  # fmt: skip


def _slots(asked: int | None, most: int) -> int:
    if asked is None:
        return min(most, int(allowance("max_num_seqs").value))
    if asked > most:
        raise BadRequest("cache_too_small", f"concurrency {asked} of these lengths does not fit, {most} do", valid=[str(most)],
                         next=f"pass concurrency={most}, kv_dtype='fp8', a larger tp, or fewer tokens")  # fmt: skip
    return asked


def _phase(parts: Parts) -> Phase:
    return Phase(
        bound=parts.bound, total_ms=_ms(parts.total_s), weights_ms=_ms(parts.weights_s), matmuls_ms=_ms(parts.matmul_s),
        kv_cache_ms=_ms(parts.cache_s),
        scores_ms=_ms(parts.scores_s + parts.prefill_scores_s), network_ms=_ms(parts.messages_s), gaps_ms=_ms(parts.gaps_s),
    )  # fmt: skip


def _choice(name: str, engine: Engine, job: Job, sequences: int, most: int) -> Choice:
    at = inference.point(engine, job, sequences)
    return Choice(choice=name, fits=True, max_sequences=most, sequences=sequences, ttft_ms=_ms(at.ttft_s), tpot_ms=_ms(at.tpot_s),
                  output_tokens_s_per_gpu=_round(at.output_tokens_s / engine.model.tp))  # fmt: skip


def _by_concurrency(engine: Engine, job: Job, most: int, slots: int) -> list[Choice]:
    sizes = sorted({size for size in (1, 4, 16, 64, slots, most) if size <= most})
    return [_choice(f"concurrency {size}", engine, job, size, most) for size in sizes]


def _other(name: str, model: Served, part: Accelerator, job: Job) -> Choice:
    """The same job on another layout, with as many sequences as fit, at most the engines' default."""
    most = inference_memory.sequences(model, inference_memory.room(model, part).cache_gib.expected, job.total, job.cached)
    if not most:
        return Choice(choice=name, fits=False)
    return _choice(name, Engine(model, part), job, min(most, int(allowance("max_num_seqs").value)), most)


def _by_tp(one: Served, part: Accelerator, job: Job) -> list[Choice]:
    sizes = sorted({tp for tp in possible_tps(one.shape) if tp in (1, 2, 4, 8)} | {one.tp}) if part.link_each_way_gb_s else [1]
    return [_other(f"tp {tp}", served(one.shape, weights=one.weights, kv_dtype=one.kv_dtype, tp=tp), part, job) for tp in sizes]


def _by_weights(one: Served, part: Accelerator, job: Job) -> list[Choice]:
    formats = ["bf16", "fp8", "int4", *(["fp4"] if catalogue.peak_tflops(part, "fp4") else [])]
    return [_other(kind, served(one.shape, weights=kind, kv_dtype=one.kv_dtype, tp=one.tp), part, job) for kind in formats]


def _prefix(engine: Engine, job: Job, room: Room) -> str:
    """What a shared prefix saves, or would."""
    cached = job.cached or job.input_tokens // 2
    without, with_ = (inference.ttft_s(engine, job._replace(cached=size)) for size in (0, cached))
    fit = [inference_memory.sequences(engine.model, room.cache_gib.expected, job.total, size) for size in (0, cached)]
    change = f"{1 - with_ / without:.0%} of TTFT ({without * 1e3:.0f} to {with_ * 1e3:.0f} ms)"
    saves, makes = ("saves", "makes") if job.cached else ("would save", "make")
    return f"a shared prefix of {cached:,} tokens {saves} {change} and {makes} room for {fit[1]} sequences instead of {fit[0]}"


def _batching(engine: Engine, job: Job, slots: int, rate: float | None) -> tuple[list[Policy], int | None]:
    most = _simulated(job)
    slots = min(slots, MOST_SLOTS, most // 4)
    names: tuple[batching.Policy, ...] = ("static", "continuous")
    full = {name: batching.saturated(engine, batching.Load(job, slots, None, 4 * slots), name) for name in names}
    if not rate:
        return [Policy(policy=name, saturated_output_tokens_s=_round(speed)) for name, speed in full.items()], None
    replicas = math.ceil(rate * job.output_tokens / (full["continuous"] * allowance("run_below").value))
    return [_loaded(engine, job, slots, rate / replicas, name, speed) for name, speed in full.items()], replicas


def _simulated(job: Job) -> int:
    """Requests that a second of simulation allows: a long prompt takes many steps."""
    return max(64, int(MOST_CHUNKS / math.ceil(job.input_tokens / allowance("step_tokens").value)))


def _loaded(engine: Engine, job: Job, slots: int, rate: float, name: batching.Policy, full: float) -> Policy:
    told = Policy(policy=name, saturated_output_tokens_s=_round(full), requests_s=_round(rate), keeps_up=rate * job.output_tokens < full)
    if not told.keeps_up:
        return told
    seen = batching.latencies(batching.simulate(engine, batching.Load(job, slots, rate, min(SIMULATED, _simulated(job))), name))
    return told.model_copy(update={"ttft_p50_s": _round(seen.ttft_p50_s), "ttft_p95_s": _round(seen.ttft_p95_s),
                                   "tpot_p50_ms": _ms(seen.tpot_p50_s), "tpot_p95_ms": _ms(seen.tpot_p95_s)})  # fmt: skip


def _cost(price: float | None, tp: int, tokens_s: Interval) -> Interval | None:
    if price is None:
        return None
    low, expected, high = (inference.usd_per_million(price, tp, speed) for speed in (tokens_s.high, tokens_s.expected, tokens_s.low))
    return Interval(low=low, expected=expected, high=high)


def _summary(found: inference.Speed, slots: int, decode: Parts, most: int) -> str:
    speeds = f"about {found.output_tokens_s.expected:,.0f} output tokens/s a replica, {found.tpot_s.expected * 1e3:.1f} ms a token"
    first = f"first token after {found.ttft_s.expected * 1e3:.0f} ms"
    return f"{most} sequences fit; with {slots} together {speeds}, {first}; decode is held by {decode.bound}"


def _findings(engine: Engine, decode: Parts, memory: Memory, slots: int, policies: list[Policy], tokens: int) -> list[Finding]:
    slow = [one.policy for one in policies if one.keeps_up is False]
    found = [*remarks.about_tp(engine, decode), *remarks.about_memory(slots, int(memory.max_sequences.low)), *remarks.about_format(engine)]
    return worst_first([*found, *remarks.about_load(slow), *remarks.about_length(engine.model.shape, tokens)])


def _ms(seconds: float) -> float:
    return _round(seconds * 1e3)


def _round(value: float) -> float:
    """Four figures are more than the estimate holds."""
    return float(f"{value:.4g}")


def _short(interval: Interval) -> Interval:
    return Interval(low=_round(interval.low), expected=_round(interval.expected), high=_round(interval.high))
