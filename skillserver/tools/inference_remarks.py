"""What deserves a word beside the numbers of a serving estimate: findings, assumptions, what was left out.

Knows the wording only; numbers come from estimate/inference*.py.

>>> about_memory(slots=4, certain=0)[0].code
'fit_is_close'
"""

from __future__ import annotations

from skillserver import topics
from skillserver.estimate import shape_advice
from skillserver.estimate.inference_allowances import allowance
from skillserver.estimate.inference_step import Engine, Parts, matmul_flops, scale_up, sixteen_bit
from skillserver.estimate.shape import Architecture
from skillserver.findings import Finding

NETWORK_SHARE = 0.3  # of a step in messages, above which tp deserves a remark
FEW = 8  # sequences


def about_tp(engine: Engine, decode: Parts) -> list[Finding]:
    """Tensor parallelism that leaves the fast link, or spends its step in messages."""
    tp, part, where = engine.model.tp, engine.part, topics.sections("serving_parallelism")
    if tp > scale_up(part):
        reason = "two all-reduces a layer cross the network; its speed was assumed (400 Gb/s an accelerator)"
        action = f"fix_setup: tp at most {scale_up(part)}, with pipeline stages between nodes"
        return [Finding(code="tp_leaves_the_node", severity="warning", subject=f"tp {tp}", reason=reason, action=action, sections=where)]
    share = decode.messages_s / decode.total_s
    if share <= NETWORK_SHARE:
        return []
    reason = "replicas with a smaller tp give more tokens a second for the money, if the model fits"
    return [Finding(code="tp_costs", severity="info", subject=f"tp {tp}", evidence=[f"{share:.0%} of a decode step goes to all-reduces"],
                    reason=reason, action="observe", sections=where)]  # fmt: skip


def about_memory(slots: int, certain: int) -> list[Finding]:
    """A fit that the uncertainty of the allowances could undo, and batches too small to be worth the weights' reading."""
    found, where = [], topics.sections("serving_memory")
    if certain < 1:
        reason = "the expected value fits, the low end of the interval does not hold one sequence"
        found.append(Finding(code="fit_is_close", severity="warning", subject="memory", reason=reason, sections=where,
                             action="observe: start the engine once and read its KV cache size before relying on this"))  # fmt: skip
    if slots < FEW:
        found.append(Finding(code="few_sequences", severity="info", subject=f"{slots} sequences", sections=where,
                             reason="so small a batch reads all weights for few tokens",
                             action="observe: narrower weights or cache, or a larger tp, make room for more"))  # fmt: skip
    return found


def about_format(engine: Engine) -> list[Finding]:
    """A weight format that the part has no units for."""
    weights, part = engine.model.weights, engine.part
    if weights not in ("fp8", "int8", "fp4") or matmul_flops(part, weights) != sixteen_bit(part):
        return []
    reason = f"no {weights} peak is known for this part: weights are read narrow and multiplied in 16 bits"
    return [Finding(code="no_narrow_units", severity="info", subject=f"{weights} on {part.id}", reason=reason, action="none")]


def about_load(slow: list[str]) -> list[Finding]:
    """Ways of batching that the load is too much for."""
    if not slow:
        return []
    return [Finding(code="load_exceeds_policy", severity="info", subject=f"{', '.join(slow)} batching", action="none",
                    reason="its queue would grow without end at this load a replica", sections=topics.sections("batching"))]  # fmt: skip


def about_length(shape: Architecture, tokens: int) -> list[Finding]:
    """A prompt and answer that the model has no positions for."""
    return [Finding(code="past_positions", severity="warning", subject="input_tokens + output_tokens", reason=said, action="fix_setup: fewer tokens",
                    sections=[]) for said in shape_advice.too_long(shape, tokens)]  # fmt: skip


def assumptions(engine: Engine, concurrency: int | None) -> list[str]:
    """What the speeds and sizes rest on."""
    model, part, speeds = engine.model, engine.part, engine.speeds
    shares = f"{speeds['bandwidth_share']:.0%} of memory bandwidth, {speeds['compute_share']:.0%} of the dense peak in 16-bit matmuls"
    told = [
        f"{shares} (less in fp8, fp4 and experts), chosen on 147 published readings (TensorRT-LLM, NIM, vLLM, gpt-fast): half lie within 10%, "
        "nine in ten within 34%",
        f"engine takes {allowance('utilization').value:.0%} of memory; steps of at most {allowance('step_tokens').value:,.0f} tokens; "
        "chunked prefill and CUDA graphs on",
        f"answers differ in length (standard deviation {allowance('output_spread').value:g} of the mean) in `batching`; elsewhere they are equal",
    ]
    if concurrency is None:
        told.append(f"concurrency: what fits, at most {allowance('max_num_seqs').value:.0f}")
    if model.weights not in ("bf16", "fp16"):
        told.append("tables, head, norms and routers stay in 16 bits")
    if part.vendor != "NVIDIA":
        told.append(f"{part.id}: shares were read on NVIDIA GPUs; take the intervals as too narrow")
    if model.shape.experts:
        told.append("experts evenly used and cut by tp, no expert parallelism")
    return told


def skipped(price: float | None, rate: float | None) -> list[str]:
    """What the estimate does not hold."""
    told = ["tokenizing, network to the client, speculative decoding, pipeline and expert parallelism, the model's own context limit, "
            "quality lost to quantization"]  # fmt: skip
    if price is None:
        told.append("cost: price_per_gpu_hour_usd was not given")
    return told if rate else [*told, "latency under load and replicas: request_rate was not given"]
