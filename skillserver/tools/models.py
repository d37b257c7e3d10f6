"""The face of model descriptions: a config goes in, what it costs to hold, run and serve comes out.

Knows how a request is read and how an answer is laid out; the arithmetic is in estimate/. Every number is derived from
the config and says for what sequence length, cache type and tensor-parallel size.

>>> describe_model(model="llama-3-8b").kv_bytes_per_token
131072.0
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from skillserver import topics
from skillserver.contract import tool
from skillserver.estimate import architecture, known_models, kv_cache, matmuls, models, shape_advice, work
from skillserver.estimate.hf_config import Reading
from skillserver.estimate.shape import Architecture
from skillserver.findings import Finding
from skillserver.units import GIB

KvDtype = Literal["bf16", "fp16", "fp8", "int8", "fp32", "fp4", "int4"]
CONVENTION = (
    "FLOPs = 2 x (active - looked-up parameters) + 4 x attention width x context a layer, forward; training is 3 x that, recomputation not counted"
)
ACTIVE = "params_active is all that a token passes through, token table and head included"


class Part(BaseModel):
    """Parameters of one part; `active` is what one token passes through."""

    part: str
    params: int
    active: int


class KvCache(BaseModel):
    """What one sequence keeps. Bytes at the dtype asked for, no paging overhead."""

    attention: str = Field(description="MHA, GQA, MQA, MLA or none")
    dtype: str
    layers: int = Field(description="layers that keep keys and values")
    windowed_layers: int
    window_tokens: int | None
    bytes_per_token: float = Field(description="while no window is full")
    bytes_per_token_past_window: float
    bytes_per_token_expanded: float | None = Field(description="MLA where an engine keeps full keys and values")
    bytes_per_token_a_rank: float | None = Field(description="on one of tp ranks; null where tp does not divide the heads")
    state_bytes_per_sequence: float = Field(description="fixed size, state-space layers")
    bytes_per_sequence: float = Field(description="at seq_len, state included")
    gib_all_sequences: float = Field(description="batch sequences of seq_len")


class Flops(BaseModel):
    """Model FLOPs of one token, a mean over seq_len. `causal` counts half the square of scores, `square` all of it."""

    forward_causal: float
    forward_square: float
    training_causal: float
    training_square: float
    attention_share: float = Field(description="scores' part of the causal count")


class Product(BaseModel):
    """[m, k] x [k, n] on one rank, `times` in a forward pass."""

    name: str
    m: int | float
    n: int | float
    k: int | float
    times: int
    flops_share: float = Field(description="of all products")


class ModelDescription(BaseModel):
    """Derived from the config, never measured."""

    model_type: str
    scope: str
    params_total: int
    params_active: int
    params_published: int | None = Field(description="of a known name, where a page or paper gives the exact count")
    parts: list[Part]
    prediction_module_params: int | None = Field(description="one multi-token prediction module, not in params_total")
    weights_gib: float = Field(description="2 bytes a parameter")
    kv_bytes_per_token: float
    kv_cache: KvCache
    flops_per_token: float = Field(description="training, causal, at seq_len")
    flops: Flops
    seq_len: int
    matmuls: list[Product]
    findings: list[Finding] = Field(description="sizes that cost speed or do not divide")
    architecture: dict[str, Any] = Field(description="sizes as read")
    assumptions: list[str]
    skipped: list[str]
    sections: list[str]
    next: str


@tool(toolset="estimate", title="Describe a model", read_only=True)
def describe_model(
    model: Annotated[str | dict[str, Any], Field(description="Hugging Face config.json (object or path), or a known name: 'llama-3-8b'")],
    seq_len: Annotated[int, Field(ge=1, le=10**8, description="tokens")] = 4096,
    batch: Annotated[int, Field(ge=1, le=10**6, description="sequences")] = 1,
    kv_dtype: Annotated[KvDtype, Field(description="of the KV cache")] = "bf16",
    tp: Annotated[int, Field(ge=1, le=1024, description="tensor-parallel size")] = 1,
) -> ModelDescription:
    """Call to know a model's size before planning: exact total and active parameters by part, KV-cache bytes, FLOPs per token, matmul shapes and
    whether they divide well.

    An unknown model_type is refused with the fields to pass. Raises BadRequest, or NotHere for a file that may not be read.
    """
    reading, row = models.reading_of(model), known_models.named(model)
    shape = reading.shape
    count, forward = architecture.parameters(shape), work.forward(shape, seq_len)
    cache = _cache(shape, seq_len, batch, kv_dtype, tp)
    return ModelDescription(
        model_type=reading.kind, scope=reading.scope, params_total=count.total, params_active=count.active,
        params_published=row.params_published if row else None, parts=_parts(shape),
        prediction_module_params=architecture.prediction_module(shape) if shape.predict_layers else None,
        weights_gib=round(2 * count.total / GIB, 3), kv_bytes_per_token=cache.bytes_per_token, kv_cache=cache,
        flops_per_token=_flops(forward).training_causal, flops=_flops(forward), seq_len=seq_len, matmuls=_products(shape, seq_len * batch, tp),
        findings=shape_advice.advice(shape, tp, topics.sections("matmul_shapes")), architecture=_as_read(shape),
        assumptions=[*reading.notes, *_assumptions(shape, seq_len)], skipped=_skipped(reading),
        sections=topics.sections("kv_cache", "attention_flops", "matmul_shapes"), next=_next(tp),
    )  # fmt: skip


def _parts(shape: Architecture) -> list[Part]:
    return [Part(part=name, params=total, active=active) for name, (total, active) in architecture.by_part(shape).items()]


def _cache(shape: Architecture, seq_len: int, batch: int, dtype: str, tp: int) -> KvCache:
    cache, size = kv_cache.cache_of(shape), kv_cache.DTYPE_BYTES[dtype]
    rank = kv_cache.share_of_a_rank(shape, tp)
    return KvCache(
        attention=cache.kind, dtype=dtype, layers=cache.full_layers + cache.windowed_layers, windowed_layers=cache.windowed_layers,
        window_tokens=cache.window if cache.windowed_layers else None, bytes_per_token=cache.per_token * size,
        bytes_per_token_past_window=cache.per_token_past_window * size,
        bytes_per_token_expanded=cache.expanded_per_token * size if cache.kind == "MLA" else None,
        bytes_per_token_a_rank=None if rank is None else cache.per_token * size * rank,
        state_bytes_per_sequence=cache.state * size, bytes_per_sequence=cache.per_sequence(seq_len) * size,
        gib_all_sequences=round(batch * cache.per_sequence(seq_len) * size / GIB, 4),
    )  # fmt: skip


def _flops(forward: work.Forward) -> Flops:
    both = 1 + work.BACKWARD
    return Flops(
        forward_causal=forward.causal, forward_square=forward.square, training_causal=both * forward.causal, training_square=both * forward.square,
        attention_share=round(forward.scores_causal / forward.causal, 4),
    )  # fmt: skip


def _products(shape: Architecture, tokens: int, tp: int) -> list[Product]:
    found = matmuls.shapes(shape, tokens, tp)
    whole = sum(one.flops for one in found)
    return [Product(**one._asdict(), flops_share=round(one.flops / whole, 4)) for one in found]


def _as_read(shape: Architecture) -> dict[str, Any]:
    """The sizes that are set, so that a misread config shows."""
    return shape.model_dump(exclude_defaults=True)


def _assumptions(shape: Architecture, seq_len: int) -> list[str]:
    said = [CONVENTION, ACTIVE]
    if shape.windowed_layers:
        kind = "chunks" if shape.chunked else "windows"
        said.append(f"{shape.windowed_layers} of {shape.layers} layers see {kind} of {shape.sliding_window} tokens, in cache and FLOPs alike")
    said += shape_advice.too_long(shape, seq_len)
    if shape.experts:
        said.append("m of an expert is the mean over experts: routing is never that even")
    if shape.state_space:
        operations = work.SCAN[shape.state_space.kind]
        said.append(f"state kept at the cache dtype (many kernels keep fp32); the scan counted as {operations} operations a state element")
    if shape.router_bias and shape.latent:
        said.append("the router's balancing bias is counted: it is stored, though transformers keeps it as a buffer")
    return said


def _skipped(reading: Reading) -> list[str]:
    said = [] if reading.scope == "whole model" else [reading.scope.partition("; ")[2]]
    if reading.shape.predict_layers:
        said.append(f"params_total is without {reading.shape.predict_layers} multi-token prediction module(s), which checkpoints also store")
    said.append("activations, optimizer states and gradients: this is the model alone")
    return said


def _next(tp: int) -> str:
    told = "" if tp > 1 else "pass tp to see the shapes of one rank; "
    return f"{told}estimate_gpu_hours for the cost of training it"
