"""What serving_bench.py measured -> rows, prefill and decode speed, where load stops paying, one verdict, numbers to keep.

A server is judged by the targets that its user names, and by what its hardware can give where the accelerator is named;
without either nothing is known of what it should reach, and the verdict is unknown. Latencies are in ms, rates in tokens
a second of one server. The client's own time (its network, its Python) is in every figure.

>>> answer({"model": "m", "by_prompt": [...], "levels": [...]}, Asked())[0]["prefill_tokens_s"]
4100.0
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from skillserver import findings, topics
from skillserver.findings import Finding
from skillserver.measure import judge
from skillserver.measure.history import Metric
from skillserver.procedures import judged_runs, kept_runs, served_beside_estimate

Document = dict[str, Any]
TOOL = "run_inference_bench"
IN_TARGET = 0.95  # share of requests that keep the targets
PAYS = 1.10  # a level that adds less throughput than this does not pay
STARTS_LOW = 0.90  # a shared start that leaves more of TTFT than this has no visible effect
SHORT_OUTPUT = 0.9
UNSTEADY = 0.25  # width of the interval of a median over the median
FEWEST = 100  # requests that a 99th percentile is one of
APPROXIMATE = "the server reports no usage: answer tokens are counted as pieces of the stream, which may hold several tokens"
WORDS_ONLY = "the server reports no prompt tokens: a common English word was taken as one token, so prompt lengths are approximate"
LOOPBACK = "client and server share this host: the client's own work takes cores from the server where that computes on the CPU"
CLIENT = "times are the client's: network, HTTP and the client's Python are in them"
PROMPT = "prompts are random common words, new for each request; the text decides speculative decoding and where answers end"


@dataclass(frozen=True)
class Asked:
    """What the caller said of the server."""

    accelerator: str = ""
    tp: int = 1
    loopback: bool = True


def shaped(asked: Asked) -> Callable[[Document], Document]:
    """Payload -> the answer, kept for comparison when it is whole."""

    def shape(payload: Document) -> Document:
        told, metrics = answer(payload, asked)
        kept_runs.keep(TOOL, told, metrics, part=f"{payload.get('model', '')} at {payload.get('base_url', '')}")
        return told

    return shape


def answer(payload: Document, asked: Asked) -> tuple[Document, dict[str, Metric]]:
    """What run_inference_bench answers, and its numbers by name."""
    levels, conditions = payload.get("levels") or [], payload.get("conditions") or {}
    compared, why = served_beside_estimate.expected(payload, asked.accelerator, asked.tp)
    judged = _judged(payload, levels)
    found = [
        *_broken(payload, levels),
        *_missed(judged),
        *served_beside_estimate.impossible(payload, compared),
        *_short(payload),
        *_unsteady(payload),
    ]
    found += [] if asked.loopback else judge.circumstances(conditions, on_cpu=True)
    told = {
        "model": payload.get("model", ""),
        "api": payload.get("api", ""),
        "by_prompt": judged_runs.rounded([_alone(row, "ttft_ms") for row in payload.get("by_prompt") or []]),
        "by_output": judged_runs.rounded([_alone(row, "tpot_ms") for row in payload.get("by_output") or []]),
        "by_concurrency": judged_runs.rounded([_level(row) for row in levels]),
        "prefix_cache": judged_runs.rounded(_prefix(payload.get("prefix"))),
        "prefill_tokens_s": judged_runs.rounded(prefill_tokens_s(payload.get("by_prompt") or [])),
        "pays_up_to": _pays_up_to(levels),
        "compared_with": judged_runs.rounded(compared.rows) if compared else [],
        "verdict": findings.verdict(found, judged=judged.verdict != "unknown"),
        "reason": judged.reason,
        "findings": [one.model_dump(exclude_defaults=True) for one in findings.worst_first(found)],
        "conditions": judged_runs.rounded(conditions | _method(payload, levels)),
        "assumptions": _assumptions(payload, asked),
        "sections": topics.sections("serving_speed", "batching"),
        "skipped": [*(payload.get("skipped") or []), *why, *(["the run was ended early"] if payload.get("partial") else [])],
        "partial": bool(payload.get("partial")),
    }
    return told, _metrics(payload, told["prefill_tokens_s"])


def _alone(row: Document, name: str) -> Document:
    """A length measured alone, in one flat row."""
    latency = {f"{name}_{key}": value for key, value in _flat(row.get(name), ("p50", "ci_low", "ci_high", "p95")).items()}
    told = {"tokens": row["tokens"], "counted": row.get("counted"), **latency, **_flat(row.get(name), ("n",))}
    return told | ({"pieces": row["pieces"]} if row.get("pieces") not in (None, row.get("counted")) else {})


def _level(row: Document) -> Document:
    """One level of concurrency; the lengths stand in conditions."""
    names = ("concurrency", "n", "refused", "output_tokens_s", "requests_s", "share_in_target", "goodput_requests_s")
    told = {name: row[name] for name in names if row.get(name) is not None}
    latencies = {name: _flat(row.get(name), ("p50", "p95", "p99")) for name in ("ttft_ms", "tpot_ms")}
    return told | {f"{name}_{percent}": value for name, told_of in latencies.items() for percent, value in told_of.items()}


def _flat(row: Document | None, names: tuple[str, ...]) -> Document:
    return {name: row[name] for name in names} if row else {}


def prefill_tokens_s(rows: list[Document]) -> float | None:
    """Prompt tokens a second beyond what every request costs: 1 / the median slope of TTFT over length (Theil, Sen).

    None below two lengths, or where TTFT does not grow with the prompt.
    """
    points = [(row.get("counted") or row["tokens"], row["ttft_ms"]["p50"] / 1e3) for row in rows if row.get("ttft_ms")]
    slopes = [(after - before) / (more - few) for (few, before), (more, after) in combinations(points, 2) if more > few]
    slope = statistics.median(slopes) if slopes else 0.0
    return 1.0 / slope if slope > 0 else None


def _pays_up_to(levels: list[Document]) -> int | None:
    """The concurrency from which on throughput grows by less than a tenth a level."""
    rates = [(row["concurrency"], row["output_tokens_s"]) for row in levels if row.get("output_tokens_s")]
    best = rates[0] if rates else None
    for level, rate in rates[1:]:
        if best and rate < PAYS * best[1]:
            break
        best = (level, rate)
    return best[0] if best else None


def _prefix(pairs: Document | None) -> Document:
    if not pairs:
        return {}
    ratio = pairs["ratio"]
    certain = ratio["ci_high"] < STARTS_LOW
    effect = f"a start that the server knows leaves {ratio['p50']:.0%} of TTFT" if certain else "no effect is seen: off, or hidden by the spread"
    shown = {name: {"p50": pairs[name]["p50"], "ci_low": pairs[name]["ci_low"], "ci_high": pairs[name]["ci_high"]}
             for name in ("fresh_ttft_ms", "shared_ttft_ms")}  # fmt: skip
    return {"prompt_tokens": pairs["prompt_tokens"], "pairs": ratio["n"], "shared": "nine tenths", **shown, "ratio": ratio["p50"],
            "cached_tokens": pairs["cached_tokens"], "effect": effect}  # fmt: skip


def _judged(payload: Document, levels: list[Document]) -> judge.Judgement:
    """By the targets: the highest load that keeps them."""
    targets = {name: value for name, value in (payload.get("targets") or {}).items() if value}
    if not levels:
        return judge.Judgement(verdict="unknown", reason="no load was measured")
    if not targets:
        return judge.Judgement(verdict="unknown", reason="no target was named: pass ttft_ms and tpot_ms to have it judged")
    said = " and ".join(f"{name.removesuffix('_ms').upper()} {value:g} ms" for name, value in targets.items())
    fit = [row for row in levels if row.get("share_in_target", 0.0) >= IN_TARGET]
    if not fit:
        best = max(levels, key=lambda row: row.get("share_in_target", 0.0))
        share = f"{best.get('share_in_target', 0.0):.0%} at concurrency {best['concurrency']}"
        return judge.Judgement(verdict="warning", reason=f"no load keeps {said} for {IN_TARGET:.0%} of requests; at best {share}")
    most = max(fit, key=lambda row: row["concurrency"])
    share = f"{most['share_in_target']:.0%} of requests keep {said} at concurrency {most['concurrency']}"
    return judge.Judgement(verdict="ok", reason=f"{share}: {most['goodput_requests_s']:.3g} requests/s of goodput")


def _missed(judged: judge.Judgement) -> list[Finding]:
    if judged.verdict != "warning":
        return []
    return [Finding(code="target_missed", severity="warning", subject="server", evidence=[judged.reason],
                    reason="The server is too slow for its targets.",
                    action="observe: by_prompt (prefill) and by_output (decode) say which it is; then call estimate_inference",
                    sections=topics.sections("serving_speed"))]  # fmt: skip


def _broken(payload: Document, levels: list[Document]) -> list[Finding]:
    count, asked = sum(row["refused"] for row in levels), sum(row["refused"] + row["n"] for row in levels)
    if not count:
        return []
    lines = [f"{one['code']}: {one['message']}" for one in payload.get("refused") or []]
    return [Finding(code="requests_failed", severity="warning", subject="server", evidence=[f"{count} of {asked} requests under load", *lines],
                    reason="Under load the server refused or broke off requests; the rates leave them out.",
                    action="observe: look at the server's log and its limits, then measure with less concurrency",
                    sections=topics.sections("batching"))]  # fmt: skip


def _short(payload: Document) -> list[Finding]:
    """Answers that ended before their length say less than they seem to."""
    low = [f"{row['tokens']} asked, {row['counted']:.3g} on average" for row in payload.get("by_output") or []
           if row.get("counted") is not None and row["counted"] < SHORT_OUTPUT * row["tokens"]]  # fmt: skip
    if not low:
        return []
    return [Finding(code="short_answers", severity="info", subject="answers", evidence=low, action="observe: use a server that knows ignore_eos",
                    reason="The model ended its answers itself, so TPOT is of shorter ones than asked for.")]  # fmt: skip


def _unsteady(payload: Document) -> list[Finding]:
    """Medians whose interval is too wide to compare them with another day's."""
    rows = [("TTFT", row["tokens"], row["ttft_ms"]) for row in payload.get("by_prompt") or [] if row.get("ttft_ms")]
    rows += [("TPOT", row["tokens"], row["tpot_ms"]) for row in payload.get("by_output") or [] if row.get("tpot_ms")]
    wide = [f"{name} at {tokens} tokens: {one['ci_low']:.3g} to {one['ci_high']:.3g} ms around {one['p50']:.3g} ({one['n']} requests)"
            for name, tokens, one in rows if one["ci_high"] - one["ci_low"] > UNSTEADY * one["p50"]]  # fmt: skip
    if not wide:
        return []
    return [Finding(code="unsteady", severity="warning", subject="measurement", evidence=wide[:4], count=len(wide),
                    reason="Requests that were alone differ much: other users of the server, a neighbour on its host, or too few of them.",
                    action="observe: measure longer (budget_s) while nobody else uses the server")]  # fmt: skip


def _method(payload: Document, levels: list[Document]) -> Document:
    load = {name: levels[0][name] for name in ("prompt_tokens", "output_tokens")} if levels else {}
    return {"base_url": payload.get("base_url"), "worker": payload.get("worker"), "load_of_concurrency": load, "seed": str(payload.get("seed", ""))}


def _assumptions(payload: Document, asked: Asked) -> list[str]:
    counts, dropped = payload.get("counts") or {}, payload.get("dropped") or []
    told = [] if counts.get("reported", True) else [APPROXIMATE]
    told += [] if counts.get("prompts", True) else [WORDS_ONLY]
    told += ["the server does not take ignore_eos: answers may end early"] if "ignore_eos" in dropped else []
    few = min((row["n"] for row in payload.get("levels") or [] if row["n"]), default=FEWEST)
    told += [f"p95 and p99 of {few} requests are close to the largest seen; p99 wants {FEWEST} of them (budget_s)"] if few < FEWEST else []
    return [*told, LOOPBACK if asked.loopback else CLIENT, PROMPT]


def _metrics(payload: Document, prefill: float | None) -> dict[str, Metric]:
    """More is better in every one of them, as history compares."""
    metrics = {"prefill": Metric(value=prefill, unit="tokens/s")} if prefill else {}
    alone = [row["tpot_ms"]["p50"] for row in payload.get("by_output") or [] if row.get("tpot_ms")]
    metrics |= {"decode alone": Metric(value=1e3 / statistics.median(alone), unit="tokens/s")} if alone else {}
    return metrics | {f"output at concurrency {row['concurrency']}": Metric(value=row["output_tokens_s"], unit="tokens/s")
                      for row in payload.get("levels") or [] if row.get("output_tokens_s")}  # fmt: skip
