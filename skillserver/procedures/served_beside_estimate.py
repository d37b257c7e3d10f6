"""A measured load of a server beside what the estimate says of it, where its accelerator was named and its model is known.

The estimate is of bf16 weights and cache; a server that quantises is faster than it. Joins estimate.inference with the
rows of serving_bench.py; an unknown model or part is no error but a reason.

>>> expected({"model": "llama-3-8b", "levels": [...]}, "H100-80GB-SXM", 1)[0].lowest_tpot_ms
4.79
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from skillserver import topics
from skillserver.errors import SkillError
from skillserver.estimate import inference, known_models
from skillserver.estimate.inference import Job, Speed
from skillserver.estimate.inference_model import served
from skillserver.findings import Finding
from skillserver.hardware import catalogue

Document = dict[str, Any]
FASTER_THAN_MEMORY = 0.95


@dataclass(frozen=True)
class Expected:
    """What the estimate says of the same load, and the bound that nothing beats."""

    rows: list[Document]
    lowest_tpot_ms: float


def expected(payload: Document, accelerator: str, tp: int) -> tuple[Expected | None, list[str]]:
    """The estimate where the accelerator was named and the model is known; else why there is none."""
    if not accelerator:
        return None, ["not compared with an estimate: pass accelerator= (and tp=) of the server"]
    try:
        part = catalogue.accelerator(accelerator)
        one = served(known_models.reading_of(payload.get("model", "")).shape, weights="bf16", kv_dtype="bf16", tp=tp)
    except SkillError as unknown:
        return None, [f"not compared with an estimate: {unknown.message}"]
    rows = [_beside(row, inference.speed(one, part, Job(row["prompt_tokens"], row["output_tokens"]), row["concurrency"]))
            for row in payload.get("levels") or [] if row.get("output_tokens_s")]  # fmt: skip
    return Expected(rows, inference.lowest_tpot_s(one, part) * 1e3), []


def _beside(row: Document, speed: Speed) -> Document:
    told = {"concurrency": row["concurrency"], "basis": "derived (estimate_inference, bf16, 80% interval)"}
    for name, interval, factor in (("tpot_ms", speed.tpot_s, 1e3), ("output_tokens_s", speed.output_tokens_s, 1.0)):
        measured = row[name]["p50"] if isinstance(row[name], dict) else row[name]
        told[name] = {"measured": measured, "low": interval.low * factor, "expected": interval.expected * factor, "high": interval.high * factor}
    return told


def impossible(payload: Document, compared: Expected | None) -> list[Finding]:
    """A token in less time than the weights take to be read."""
    alone = [row["tpot_ms"]["p50"] for row in payload.get("by_output") or [] if row.get("tpot_ms")]
    if compared is None or not alone or min(alone) >= FASTER_THAN_MEMORY * compared.lowest_tpot_ms:
        return []
    seen = f"{min(alone):.3g} ms a token alone, and reading bf16 weights once takes {compared.lowest_tpot_ms:.3g} ms"
    return [Finding(code="faster_than_memory", severity="info", subject="TPOT", evidence=[seen],
                    reason="Faster than bf16 weights can be read: quantised weights, speculative decoding, or another part or model than named.",
                    action="none: call estimate_inference with the weights that the server really uses",
                    sections=topics.sections("serving_speed"))]  # fmt: skip
