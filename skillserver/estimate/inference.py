"""Serving speed of one replica: time to first token, time per token, tokens per second, each as an 80% interval.

Prefill of one prompt gives TTFT without a queue. With B sequences together, one step makes B tokens and, in the mean,
carries (B - 1) x prompt / answer tokens of others' prefill (chunked prefill, Sarathi-Serve, arXiv 2403.02310); a replica
then serves B / (TTFT + TPOT x (answer - 1)) requests a second. Knows no queue (batching.py) and no memory.

>>> point(Engine(served(shape_of("llama-3-8b")), accelerator("H100-80GB-SXM")), Job(1024, 256), 1).tpot_s
0.0072...
"""

from __future__ import annotations

import math
from typing import NamedTuple

from skillserver.estimate.inference_allowances import Speeds, allowance, interval_of
from skillserver.estimate.inference_model import Served
from skillserver.estimate.inference_step import Engine, Parts
from skillserver.findings import Interval
from skillserver.hardware.catalogue import Accelerator


class Job(NamedTuple):
    """One request: tokens of the prompt, of the answer, and how many of the prompt's first tokens are cached."""

    input_tokens: int
    output_tokens: int
    cached: int = 0

    @property
    def total(self) -> int:
        """Length at the end."""
        return self.input_tokens + self.output_tokens


class Point(NamedTuple):
    """One replica with so many sequences together. Times in s."""

    sequences: int
    ttft_s: float
    tpot_s: float
    requests_s: float
    output_tokens_s: float


def ttft_s(engine: Engine, job: Job) -> float:
    """Prefill of one prompt with nothing else running; a prompt longer than a step's token budget pays the gaps once more a chunk."""
    parts = engine.prefill_parts(job.input_tokens, job.cached)
    chunks = math.ceil((job.input_tokens - job.cached) / allowance("step_tokens").value)
    return parts.total_s + (chunks - 1) * parts.gaps_s


def decode_parts(engine: Engine, job: Job, sequences: int) -> Parts:
    """A mean step: every sequence half way through its answer, and the others' prefill spread over the answer."""
    share = (sequences - 1) / job.output_tokens
    seen = engine.model.seen(job.cached, job.input_tokens)
    return engine.parts(decoding=sequences, context=job.input_tokens + job.output_tokens / 2, prefill=share * (job.input_tokens - job.cached),
                        prefill_seen=share * seen, finishing=share)  # fmt: skip


def decode_alone(engine: Engine, job: Job, sequences: int) -> Parts:
    """The same without anybody's prefill."""
    return engine.parts(decoding=sequences, context=job.input_tokens + job.output_tokens / 2)


def point(engine: Engine, job: Job, sequences: int) -> Point:
    """Speed with `sequences` always running. `ttft_s` is that of an empty server."""
    first, step = ttft_s(engine, job), decode_parts(engine, job, sequences).total_s
    requests = sequences / (first + step * (job.output_tokens - 1))
    return Point(sequences, first, step, requests, requests * job.output_tokens)


class Speed(NamedTuple):
    """80% intervals; `output_tokens_s` of one replica."""

    ttft_s: Interval
    tpot_s: Interval
    output_tokens_s: Interval


def speed(model: Served, part: Accelerator, job: Job, sequences: int) -> Speed:
    """The point with its intervals: every allowance moved to its ends."""

    def at(speeds: Speeds) -> Point:
        return point(Engine(model, part, speeds), job, sequences)

    slow = interval_of(lambda speeds: 1 / at(speeds).output_tokens_s)
    return Speed(
        interval_of(lambda speeds: at(speeds).ttft_s),
        interval_of(lambda speeds: at(speeds).tpot_s),
        Interval(low=1 / slow.high, expected=1 / slow.expected, high=1 / slow.low),
    )


def lowest_tpot_s(model: Served, part: Accelerator) -> float:
    """What no engine beats at batch 1: weights of one token / printed bandwidth (Pope et al., arXiv 2211.05102, sec. 2)."""
    return model.read_bytes(1) / (part.memory_bandwidth_gb_s * 1e9)


def usd_per_million(price_per_hour: float, accelerators: int, tokens_s: float) -> float:
    """USD for a million tokens: price x accelerators / 3600 / tokens a second x 10^6."""
    return price_per_hour * accelerators / 3600 / tokens_s * 1e6
