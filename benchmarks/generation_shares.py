"""Published benchmarks brought to the terms of data/mfu_prior.toml: the share of peak of each source, by generation.

A row's MFU (three quarters of it where recomputation was counted) is put into causal attention and divided by every
effect of the table, which leaves the share of a dense model without recomputation on 512 accelerators. A source's
figure is its median, a generation's the median over sources. bf16 and fp16 rows of dense models only.
    .venv/bin/python benchmarks/generation_shares.py
"""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

from skillserver.estimate import prior
from skillserver.hardware import catalogue

CASES = Path(__file__).resolve().parents[1].parent / "shared" / "cases" / "throughput.json"
PARTS = {"H100-80GB": "H100-80GB-SXM", "H100": "H100-80GB-SXM", "A100-80GB": "A100-80GB-SXM", "A100-40GB": "A100-40GB-SXM",
         "V100-32GB": "V100-32GB-SXM", "V100-16GB": "V100-16GB-SXM", "GH200-96GB": "GH200-96GB", "H200-141GB": "H200-141GB-SXM"}  # fmt: skip
BEFORE_2023 = ("bigscience", "2104.04473", "MT-NLG", "OPT", "2205.05198")
RECOMPUTE = {"True": "full", "False": "none"}
KNOWN = ("none", "selective", "full")
EXPERTS = ("MoE", "DeepSeek", "A3B", "A22B", "oss", "Mixtral")
NAME = 48  # characters of a source that tell it from others


def shares() -> dict[str, dict[str, float]]:
    """Generation -> source -> share."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in json.loads(CASES.read_text(encoding="utf-8")):
        if row["accelerator"] in PARTS and (share := share_of(row)):
            generation = catalogue.accelerator(PARTS[row["accelerator"]]).architecture
            found[generation][row["source"].split(" (")[0][:NAME]].append(share)
    return {name: {source: statistics.median(values) for source, values in sources.items()} for name, sources in found.items()}


def share_of(row: dict[str, Any]) -> float | None:
    """One row in the table's terms; None where it says too little."""
    part = catalogue.accelerator(PARTS[row["accelerator"]])
    precision = (row["precision"] or "").removeprefix("amp_").split(" ")[0]
    if precision not in ("bf16", "fp16") or any(word in row["model"] for word in EXPERTS):
        return None
    recompute = RECOMPUTE.get(str(row["activation_recompute"]), str(row["activation_recompute"]))
    peak = catalogue.peak_tflops(part, precision) or catalogue.peak_tflops(part, "fp16")
    mfu = row["mfu"] or (row["tflops_per_gpu"] or 0) / (peak or 1) * (0.75 if recompute == "full" else 1)
    active = row["params"] or 7e9
    scores = 6 * row["layers"] * row["hidden"] * row["seq_len"] / (6 * active) if row["layers"] and row["hidden"] and row["seq_len"] else None
    causal = 1.0 if scores is None else (1 + scores) / (1 + 2 * scores)  # published counts attend to the whole square
    attention = prior.TYPICAL_ATTENTION if scores is None else scores / (1 + scores)
    setting = prior.Setting(precision, active, False, row["n_accelerators"], recompute if recompute in KNOWN else None,  # type: ignore[arg-type]
                            2021 if any(word in row["source"] for word in BEFORE_2023) else None, None, attention)  # fmt: skip
    effects = prior.expect(part, setting, runs=prior.Fitted(1e-3, 0.3)).mfu / 1e-3 / prior.row(part.architecture).value
    return float(mfu * causal / effects) or None


def refit(without: tuple[str, ...] = ()) -> dict[str, float]:
    """Generation -> median over the sources that hold none of the words."""
    kept = {name: [share for source, share in sources.items() if not any(word in source for word in without)] for name, sources in shares().items()}
    return {name: statistics.median(values) for name, values in kept.items() if values}


def summary() -> dict[str, Any]:
    """Each source's share and each generation's median."""
    return {
        "medians": {name: round(value, 3) for name, value in refit().items()},
        "sources": {name: {source: round(value, 3) for source, value in sources.items()} for name, sources in shares().items()},
    }


if __name__ == "__main__":
    print("generation_shares", json.dumps(summary()) if CASES.is_file() else "the cases are not here")
