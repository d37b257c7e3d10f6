"""Predicted step times beside published ones: rank correlation within each sweep, and error on complete rows.

A sweep is one model on the same GPUs with the same batch, laid out in at least four ways. A row is complete when its
shape is published (or its model has a public config) with sequence length, batch and layout. Links are those of the
machines the sources name. Promise: rank correlation at least 0.7 at the median sweep, error at most 25% at the median
complete row.    .venv/bin/python benchmarks/layout_sweeps.py
"""

from __future__ import annotations

import json
import math
import re
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

from skillserver.estimate.communication import Cluster, inside_gb_s
from skillserver.estimate.memory_plan import Plan, shape_of
from skillserver.estimate.shape import Architecture
from skillserver.estimate.step_time import Work, predict
from skillserver.estimate.work import forward
from skillserver.hardware import catalogue
from skillserver.measure.published import published

CASES = Path(__file__).resolve().parents[1].parent / "shared" / "cases" / "throughput.json"
PARTS = {"H100-80GB": "H100-80GB-SXM", "H100": "H100-80GB-SXM", "H100-96GB (HBM2e, 500 W)": "H100-80GB-SXM", "A100-80GB": "A100-80GB-SXM",
         "A100-40GB": "A100-40GB-SXM", "V100-32GB": "V100-32GB-SXM", "V100-16GB": "V100-16GB-SXM", "H200-141GB": "H200-141GB-SXM",
         "GB200": "GB200-186GB", "GB300": "B300-288GB-SXM",
         "B200": "B200-180GB-SXM", "B300": "B300-288GB-SXM", "GH200-96GB": "GH200-96GB"}  # fmt: skip
# source word, GPUs a node, GB/s a GPU between nodes
NETWORKS = (("bigscience experiments", 4, 12.5), ("bigscience", 8, 6.25), ("OneFlow", 8, 1.5625),
            ("llm-foundry", 8, 50.0), ("Megatron-Bridge", 8, 50.0),
            ("Apertus", 4, 25.0))  # fmt: skip
NAMES = (("llama3_8b", "llama-3-8b"), ("llama3_70b", "llama-3-70b"), ("llama3.1_405b", "llama-3.1-405b"), ("llama 3.1 8b", "llama-3-8b"),
         ("llama 3.1 405b", "llama-3.1-405b"), ("deepseekv3", "deepseek-v3"), ("gpt oss 120b", "gpt-oss-120b"), ("qwen3_30b", "qwen3-30b-a3b"),
         ("qwen3_235b", "qwen3-235b-a22b"), ("apertus-70b", "llama-3-70b"), ("apertus-8b", "llama-3-8b"))  # fmt: skip
RECOMPUTE = {"True": "full", "False": "none", "None": "none"}
LEAST_ROWS, LEAST_SPEEDS = 4, 3


def shape_for(row: dict[str, Any]) -> tuple[Architecture, bool] | None:
    """The architecture of a row, and whether it is published rather than fitted to the number of parameters."""
    plain = row["model"].lower()
    for start, name in NAMES:
        if plain.startswith(start):
            return shape_of(name), True
    if row["layers"] and row["hidden"] and "MoE" not in row["model"]:
        return gpt(int(row["layers"]), int(row["hidden"]), row), True
    return (fitted(row), False) if row["params"] and row["pp"] and row["model"].startswith("GPT") else None


def gpt(layers: int, hidden: int, row: dict[str, Any], vocab: int = 50304) -> Architecture:
    """A GPT of plain width: heads of 128 where that divides."""
    said = re.search(r"nheads (\d+)", row["notes"] or "")
    heads = int(said[1]) if said else max(hidden // 128, 1)
    heads = heads if hidden % heads == 0 else hidden // math.gcd(hidden, 128)
    mpt = row["model"].startswith("MPT")
    return Architecture(layers=layers, hidden=hidden, heads=heads, kv_heads=heads, ffn=4 * hidden, vocab=vocab, gated=False, tied=True,
                        norm="layer_no_bias" if mpt else "layer")  # fmt: skip


def fitted(row: dict[str, Any]) -> Architecture:
    """Layers that the pipeline divides and a hidden size near layers x 185 (or 110 below 20e9) that give the parameters."""
    step, best = int(row["pp"] or 1), None
    for layers in range(step, 129, step):
        hidden = round(math.sqrt(row["params"] / (12 * layers)) / 128) * 128
        if hidden < 256:
            continue
        away = abs(math.log(hidden / layers / (185 if row["params"] > 2e10 else 110)))
        if best is None or away < best[0]:
            best = (away, gpt(layers, hidden, row))
    assert best is not None
    return best[1]


def cluster_of(row: dict[str, Any]) -> Cluster | None:
    """The machine of a row."""
    if row["accelerator"] not in PARTS or not row["n_accelerators"]:
        return None
    part = catalogue.accelerator(PARTS[row["accelerator"]])
    node, between = next(((node, rate) for word, node, rate in NETWORKS if word in row["source"]), (8, 50.0 if part.year >= 2022 else 25.0))
    if row["accelerator"].startswith("A100") and "llm-foundry" in row["source"]:
        between = 25.0
    node = 72 if row["accelerator"].startswith("GB") else node
    ceilings = tuple((kind, found.tflops) for kind in ("bf16", "fp8") if (found := published(part.id, kind)))
    return Cluster(part, int(row["n_accelerators"]), node, inside_gb_s(part), between, ceilings)


def work_of(row: dict[str, Any]) -> tuple[Work, bool] | None:
    """What is predicted for a row; None when it says too little."""
    found, cluster = shape_for(row), cluster_of(row)
    precision = (row["precision"] or "").replace("amp_", "").split(" ")[0].split("-")[0]
    if not found or not cluster or not row["seq_len"] or precision not in ("bf16", "fp16", "fp8", "mxfp8"):
        return None
    shape, exact = found
    tp = int(row["tp"] or (4 if "bigscience V100" in row["model"] and row["pp"] else 1))
    pp, cp, ep, n = int(row["pp"] or 1), int(row["cp"] or 1), int(row["ep"] or 1), cluster.n
    if n % (tp * pp * cp) or pp > shape.layers:
        return None
    dp, micro = n // (tp * pp * cp), int(row["micro_batch"] or 1)
    if "asyncTP" in row["source"] or (row["sharding"] == "FSDP2" and pp > 1):
        micro = 1 if pp > 1 else max(micro // tp, 1)
    return Work(plan_of(row, shape, precision, (tp, pp, dp, cp, ep, micro)), cluster, batch_of(row, dp, micro)), exact


def batch_of(row: dict[str, Any], dp: int, micro: int) -> int:
    """Sequences a step; one micro-batch a rank where the source names none."""
    return int(row["global_batch_sequences"] or dp * micro * (int(row["micro_batch"] or 1) if (row["pp"] or 1) > 1 else 1))


def plan_of(row: dict[str, Any], shape: Architecture, precision: str, sizes: tuple[int, ...]) -> Plan:
    """The plan as the source's program runs it."""
    tp, pp, dp, cp, ep, micro = sizes
    wide = row["sharding"] or ""
    sharding = "zero2" if "SHARD_GRAD" in wide else "fsdp" if "FSDP" in wide else "zero1"
    program = "fsdp" if sharding in ("fsdp", "zero2") else "megatron"
    old = "bigscience" in row["source"] or "2104.04473" in row["source"] or "OneFlow" in row["source"]
    recompute = RECOMPUTE.get(str(row["activation_recompute"]), str(row["activation_recompute"]))
    chunks = 2 if "Interleaved" in (row["notes"] or "") else 1
    return Plan(shape, int(row["seq_len"]), micro, program, tp=tp, pp=pp, dp=dp, cp=cp, ep=ep, sharding=sharding,  # type: ignore[arg-type]
                shard_size=dp * cp, recompute=recompute if recompute in ("none", "selective", "full") else "selective",
                precision="fp8" if "fp8" in precision else precision, sequence_parallel=tp > 1 and not old, chunks=chunks,
                fused=program == "megatron" or "llm-foundry" in row["source"],
                attention="eager" if old else "flash")  # fmt: skip


def tflops(row: dict[str, Any], work: Work) -> float:
    """Predicted TFLOPS a GPU in the row's own way of counting: square attention, recomputation in "hardware"."""
    plan = work.plan
    per_token = 3 * forward(plan.shape, plan.seq_len).square
    per_token *= 4 / 3 if not (row["tflops_kind"] or "").startswith("model") and plan.recompute == "full" else 1
    tokens = work.global_batch * plan.seq_len
    return per_token * tokens / predict(work).total_s / work.cluster.n / 1e12


def measured(row: dict[str, Any], work: Work) -> float | None:
    """TFLOPS as published; else from tokens per second, or from the iteration time in the notes."""
    if row["tflops_per_gpu"]:
        return float(row["tflops_per_gpu"])
    per_token = 3 * forward(work.plan.shape, work.plan.seq_len).square
    return float(row["tokens_per_s_per_gpu"]) * per_token / 1e12 if row["tokens_per_s_per_gpu"] else None


def spearman(pairs: list[tuple[float, float]]) -> float:
    """Rank correlation, ties sharing their mean rank."""

    def ranks(values: list[float]) -> list[float]:
        return [sum(other < one for other in values) + (sum(other == one for other in values) - 1) / 2 for one in values]

    first, second = ranks([one for one, _ in pairs]), ranks([two for _, two in pairs])
    return statistics.correlation(first, second) if len(set(first)) > 1 and len(set(second)) > 1 else 0.0


def rows_and_works() -> list[tuple[dict[str, Any], Work, bool, float, float]]:
    """Row, work, whether its shape is published, predicted and measured TFLOPS."""
    found = []
    for row in json.loads(CASES.read_text(encoding="utf-8")):
        made = work_of(row)
        if made and (real := measured(row, made[0])):
            found.append((row, made[0], made[1], tflops(row, made[0]), real))
    return found


def sweeps(found: list[tuple[dict[str, Any], Work, bool, float, float]]) -> dict[str, list[tuple[float, float]]]:
    """Predicted and measured speeds by model, GPUs and batch; layouts of one kind with different precision stay apart."""
    groups: dict[str, dict[Plan, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for row, work, _, guess, real in found:
        batch = row["global_batch_tokens"] or "any"
        key = f"{row['model']} {row['accelerator'][:9]} x{work.cluster.n} batch {batch} {row['precision']}"
        plan = work.plan
        layout = (plan.tp, plan.pp, plan.dp, plan.cp, plan.ep, plan.micro_batch, plan.recompute, plan.seq_len, plan.shape.heads, plan.chunks)
        groups[key][layout].append((guess, real))  # type: ignore[index]
    merged = {key: [(one[0][0], statistics.median(real for _, real in one)) for one in group.values()] for key, group in groups.items()}
    return {key: pairs for key, pairs in merged.items() if len(pairs) >= LEAST_ROWS and len({real for _, real in pairs}) >= LEAST_SPEEDS}


def summary() -> dict[str, Any]:
    """The two promised figures, and how many sweeps and rows they rest on."""
    found = rows_and_works()
    correlations = {key: spearman(pairs) for key, pairs in sweeps(found).items()}
    errors = [abs(guess / real - 1) for row, _, exact, guess, real in found if exact and row["micro_batch"]]
    logs = sorted(abs(math.log(guess / real)) for row, _, exact, guess, real in found if exact and row["micro_batch"])
    return {
        "sweeps": len(correlations),
        "median_rank_correlation": round(statistics.median(correlations.values()), 2),
        "rows": len(errors),
        "median_error": round(statistics.median(errors), 3),
        "p90_error": round(statistics.quantiles(errors, n=10)[-1], 2),
        "factor_of_four_in_five": round(math.exp(logs[len(logs) * 4 // 5]), 2),
        "each_sweep": {key: round(value, 2) for key, value in correlations.items()},
    }


if __name__ == "__main__":
    print("layout_sweeps", json.dumps(summary()) if CASES.is_file() else "the cases are not here")
