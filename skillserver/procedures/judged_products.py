"""The measured matmuls of a model put together: the speed and the MFU that they alone would allow, and what holds it down.

The time of a forward and backward pass is the sum over products of calls x time of one, so the speed of all is their mean
weighted by time (the harmonic mean weighted by FLOPs). Whatever else a step does only lowers it. Joins the worker's payload
with hardware.catalogue; shapes and their advice come from `mamf_request`.

>>> answer({"products": [...], "device_name": "NVIDIA H100 80GB HBM3", "dtype": "bf16", ...}, sizes, [])["mfu_ceiling"]
0.71
"""

from __future__ import annotations

from typing import Any

from skillserver import findings, topics
from skillserver.findings import Finding
from skillserver.measure import judge
from skillserver.procedures.judged_runs import UNTESTED, peak_of, rounded

Document = dict[str, Any]
LOSES = 0.02  # of the time of all products: less is not worth a word
SLOW = 0.85  # of the fastest product
NAMED, SHOWN = 4, 15
GOOD, TILE, SMALL = 64, 128, 1024
FULL_WAVE = 0.85
LEFT_OUT = "attention scores, norms, activations, recomputation, optimizer, communication and pipeline bubbles: a real MFU is lower"


def answer(payload: Document, sizes: Document, advice: list[Finding]) -> Document:
    """What run_mamf answers for a model; `sizes` are seq_len, micro_batch and tp, `advice` that of the shapes alone."""
    rows, conditions = payload.get("products") or [], payload.get("conditions") or {}
    on_cpu = payload.get("backend") == "cpu"
    peak, peak_from, _ = peak_of(payload)
    took_s = sum(row["times"] * row["us"] for row in rows) / 1e6
    tflops, low, high = (_speed(rows, name) for name in ("tflops", "ci_low", "ci_high"))
    disturbed = judge.circumstances(conditions, on_cpu=on_cpu) + judge.steadiness(tflops, low, high, "TFLOPS") + _wrong(payload)
    found = [*disturbed, *advice, *_slow(rows, took_s)]
    return {
        "matmul_tflops": rounded(tflops),
        "mfu_ceiling": rounded(tflops / peak) if peak else None,
        "mfu_ceiling_interval": [rounded(low / peak), rounded(high / peak)] if peak else None,
        "matmuls": [_shown(row, took_s) for row in sorted(rows, key=lambda row: -row["times"] * row["us"])[:SHOWN]],
        "peak_tflops": rounded(peak),
        "peak_from": peak_from,
        "verdict": findings.verdict(found, judged=payload.get("correct") is True),
        "reason": _reason(tflops, peak, took_s, sizes, disturbed),
        "findings": [finding.model_dump(exclude_defaults=True) for finding in findings.worst_first(found)],
        **{name: payload.get(name, "") for name in ("device", "device_name", "dtype")},
        "conditions": rounded(conditions | {"worker": payload.get("worker"), "method": payload.get("method")}),
        "assumptions": _assumptions(payload, rows, on_cpu),
        "sections": topics.sections("mfu_ceiling", "matmul_shapes"),
        "skipped": [LEFT_OUT, *([f"{len(rows) - SHOWN} products that take least; samples_file holds all"] if len(rows) > SHOWN else [])],
        "partial": bool(payload.get("partial")),
    }


def _flops(row: Document) -> float:
    return 2.0 * row["m"] * row["n"] * row["k"]


def _speed(rows: list[Document], name: str) -> float:
    """TFLOPS of all calls one after the other, each at its speed under `name`."""
    work = [row["times"] * _flops(row) for row in rows]
    return float(sum(work) / sum(done / row[name] for done, row in zip(work, rows, strict=True)))


def _shown(row: Document, took_s: float) -> Document:
    told = {name: row[name] for name in ("name", "pass", "m", "n", "k", "layout", "times")}
    return told | rounded({"tflops": row["tflops"], "ci_low": row["ci_low"], "ci_high": row["ci_high"], "time_share": _share(row, took_s)})


def _share(row: Document, took_s: float) -> float:
    return float(row["times"] * row["us"] / 1e6 / took_s)


def _reason(tflops: float, peak: float | None, took_s: float, sizes: Document, disturbed: list[Finding]) -> str:
    tokens = sizes["seq_len"] * sizes["micro_batch"]
    words = f"the matmuls of {tokens:,} tokens, forward and backward, take {took_s:.3g} s on one rank of tp {sizes['tp']}: {tflops:.4g} TFLOPS"
    words += f", an MFU of {tflops / peak:.0%} if nothing else took time" if peak else "; the peak is not known, so neither is the MFU they allow"
    lower = [f"{one.evidence[0]}, so the true ceiling may be higher" for one in disturbed if one.code in ("not_alone", "unsteady")]
    return "; ".join([words, *lower])


def _wrong(payload: Document) -> list[Finding]:
    if payload.get("correct") is not False:
        return []
    check = payload.get("check", {})
    seen = f"error {check.get('largest_error')} where {check.get('allowed')} is allowed"
    return [judge.wrong_result(payload.get("device_name", ""), [seen])]


def _slow(rows: list[Document], took_s: float) -> list[Finding]:
    """The products that lose most time against the fastest one, with what in their shape may be the cause."""
    best = max(row["tflops"] for row in rows)
    lost = {place: _share(row, took_s) * (1 - row["tflops"] / best) for place, row in enumerate(rows)}
    order = sorted(lost, key=lambda place: -lost[place])[:NAMED]
    slow = [rows[place] for place in order if lost[place] >= LOSES and rows[place]["ci_high"] < SLOW * best]
    if not slow:
        return []
    evidence = [f"{row['name']} {row['pass']} {row['m']}x{row['n']}x{row['k']} {row['layout']}: {row['tflops']:.4g} TFLOPS, fastest {best:.4g}"
                + (f" ({', '.join(why)})" if (why := _causes(row)) else "") for row in slow]  # fmt: skip
    gained = sum(lost[place] for place in order if rows[place] in slow)
    return [Finding(code="slow_products", severity="info", subject=", ".join(dict.fromkeys(row["name"] for row in slow)), evidence=evidence,
                    reason=f"At the speed of the fastest product they would save {gained:.0%} of the matmul time.",
                    action="fix_setup: make sizes multiples of 128 (pad the vocabulary), cut less by tp, or raise micro_batch",
                    sections=topics.sections("matmul_shapes"))]  # fmt: skip


def _causes(row: Document) -> list[str]:
    odd = [f"{side} {row[side]} is no multiple of {GOOD}" for side in ("m", "n", "k") if row[side] % GOOD]
    half = [f"{side} {row[side]} is no multiple of {TILE}" for side in ("m", "n") if row[side] % GOOD == 0 and row[side] % TILE]
    small = [f"{side} {row[side]} is small" for side in ("m", "n", "k") if row[side] < SMALL]
    waves = [f"the last wave leaves {1 - row['fill']:.0%} of the SMs' time idle"] if row.get("fill") and row["fill"] < FULL_WAVE else []
    return [*odd, *half, *small, *waves]


def _assumptions(payload: Document, rows: list[Document], on_cpu: bool) -> list[str]:
    said = [] if on_cpu else [UNTESTED.format(payload.get("backend", "these"))]
    if payload.get("dtype") in ("fp8", "int8"):
        said.append(f"every product in NT: libraries transpose {payload['dtype']} operands first, which is not timed, nor is quantizing them")
    if any("experts" in row["name"] for row in rows):
        said.append("experts as single matmuls with tokens spread evenly; a grouped kernel may be faster, uneven routing is slower")
    said.append(f"MFU of matrix FLOPs alone, {payload.get('rounds')} rounds in turn, operands cold; key-value and gate-up products as fused ones")
    return said
