"""Hours of published training runs, each family predicted from the others, beside a rule of two constants.

Effects stand in data/mfu_prior.toml and come from papers; they are not refitted. A generation's share is the median of
benchmarks, taken again without those of the family that is predicted. Whole runs give two numbers, goodput and spread,
also refitted without it: the median over families (siblings are one vote), drawn to what papers say of goodput, and the
root mean square over families, drawn to a spread of 0.30. Promise: median
|ln error| at most 0.14, 90th percentile at most 0.40, 65 to 95% inside the 80% interval, median width at most x2.2, and
smaller errors than 0.35 (A100) and 0.25 (Hopper) of 6ND, run by run.    .venv/bin/python benchmarks/gpu_hours_left_out.py
"""

from __future__ import annotations

import functools
import json
import math
import random
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import generation_shares

from skillserver.estimate import compute, models, prior
from skillserver.estimate.architecture import flops_per_token
from skillserver.hardware import catalogue
from skillserver.hardware.catalogue import Accelerator

CASES = Path(__file__).resolve().parents[1].parent / "shared" / "cases" / "training_runs.json"
PAPERS = prior.Fitted(0.91, 0.10)  # goodput as papers tell it, the middle of 0.77 and 0.91 (OLMo 3), 0.67 (PaLM), 0.96 (Apertus), about 1 (LLaMA)
SPREAD, SPREAD_WEIGHT = 0.30, 8  # judgement before any run, worth as much as this many families
TWO_CONSTANTS = {"Ampere": 0.35, "Hopper": 0.25}
# family -> words of the benchmark sources that tell of it
OWN_BENCHMARKS = {"llm.c": ("llm.c",), "tinyllama": ("TinyLlama",), "bloom": ("bigscience",), "opt": ("OPT",), "llama1": ("LLaMA paper",),
                  "starcoder": ("starcoder",), "apertus": ("Apertus",), "olmo3": ("OLMo", "Ai2")}  # fmt: skip
RECOMPUTE = {True: "full", False: "none"}
MEDIAN_NOISE = 1.25  # standard error of a median over that of a mean
RESAMPLES = 2000


class Case(NamedTuple):
    """A published run as a request, its hours at full peak, and the hours it took."""

    name: str
    family: str
    reliability: str
    part: Accelerator
    setting: prior.Setting
    hours_at_peak: float
    hours_at_peak_6nd: float
    hours: float


class Predicted(NamedTuple):
    """ln(predicted / published) by the estimate, whether it is inside, the width, and the same error of the two constants."""

    case: Case
    error: float
    inside: bool
    width: float
    rule_error: float | None


def case_of(run: dict[str, Any]) -> Case:
    """The request that a user would have made before that run."""
    part = catalogue.accelerator(run["accelerator"])
    peak = compute.peak_for(part, run["precision"])
    size = models.size_of(params_total=run["params_total"], params_active=run["params_active"], architecture=run["arch"])
    per_token = flops_per_token(size.active, size.lookup, size.layers, size.attention_width, run["seq_len"] or 4096)
    said = RECOMPUTE.get(run["activation_recompute"], run["activation_recompute"])
    setting = prior.Setting(peak.precision, size.active, size.has_experts, run["n_accelerators"],
                            said if said in ("none", "selective", "full") else None, run["year"], run["seq_len"],
                            max(0.0, 1 - 6 * (size.active - size.lookup) / per_token))  # fmt: skip
    second = peak.tflops * 1e12 * 3600
    return Case(run["id"], run["family"], run["reliability"], part, setting, per_token * run["tokens"] / second,
                6 * run["params_active"] * run["tokens"] / second, run["gpu_hours"])  # fmt: skip


def cases() -> list[Case]:
    """Every published run that is complete enough to estimate."""
    return [case_of(run) for run in json.loads(CASES.read_text(encoding="utf-8")) if run["in_baseline"]]


@functools.cache
def corrections(family: str | None) -> dict[str, float]:
    """Generation -> its share without the family's own benchmarks over the table's."""
    found = generation_shares.refit(OWN_BENCHMARKS.get(family or "", ()))
    return {name: share / prior.row(name).value for name, share in found.items()}


def goodput_of(case: Case, changed: dict[str, float]) -> float:
    """ln(share reached / share expected at a goodput of 1)."""
    expected = prior.expect(case.part, case.setting, runs=prior.Fitted(1.0, SPREAD)).mfu * changed.get(case.part.architecture, 1)
    return math.log(case.hours_at_peak / case.hours / expected)


def fit(known: list[Case], changed: dict[str, float] | None = None) -> prior.Fitted:
    """Goodput and spread from whole runs, a family one vote; `changed` are corrections of the table's generations."""
    families: dict[str, list[float]] = defaultdict(list)
    for case in known:
        families[case.family].append(goodput_of(case, changed or {}))
    seen = statistics.median(statistics.median(values) for values in families.values())
    trust, weight = 1 / PAPERS.log_sd**2, len(families) / (MEDIAN_NOISE * SPREAD) ** 2
    goodput = (math.log(PAPERS.goodput) * trust + seen * weight) / (trust + weight)
    squares = sum(statistics.fmean((value - goodput) ** 2 for value in values) for values in families.values())
    return prior.Fitted(math.exp(goodput), math.sqrt((SPREAD_WEIGHT * SPREAD**2 + squares) / (SPREAD_WEIGHT + len(families))))


def predict(case: Case, known: list[Case]) -> Predicted:
    """The estimate of one run from what is known without its family."""
    changed = corrections(case.family)
    runs = fit(known, changed)
    runs = runs._replace(goodput=runs.goodput * changed.get(case.part.architecture, 1))
    share, _ = compute.prior_share(case.part, case.setting, runs=runs)
    low, expected, high = (case.hours_at_peak / one for one in (share.high, share.expected, share.low))
    constant = TWO_CONSTANTS.get(case.part.architecture)
    rule = math.log(case.hours_at_peak_6nd / constant / case.hours) if constant else None
    return Predicted(case, math.log(expected / case.hours), low <= case.hours <= high, high / low, rule)


def left_out(known: list[Case]) -> list[Predicted]:
    """Every run, predicted without its family."""
    return [predict(case, [other for other in known if other.family != case.family]) for case in known]


def better_by(found: list[Predicted]) -> tuple[float, float, float]:
    """Mean of |rule's error| - |ours| over the runs that the rule covers, and its 90% interval, families resampled."""
    families: dict[str, list[float]] = defaultdict(list)
    for one in found:
        if one.rule_error is not None:
            families[one.case.family].append(abs(one.rule_error) - abs(one.error))
    dice, groups = random.Random(0), list(families.values())
    means = sorted(statistics.fmean(value for group in dice.choices(groups, k=len(groups)) for value in group) for _ in range(RESAMPLES))
    return statistics.fmean(value for group in groups for value in group), means[RESAMPLES // 20], means[-RESAMPLES // 20]


def spread(errors: list[float]) -> dict[str, float]:
    """Median and 90th percentile of absolute errors."""
    ordered = sorted(map(abs, errors))
    return {"median": round(statistics.median(ordered), 3), "p90": round(ordered[math.ceil(0.9 * len(ordered)) - 1], 3)}


def summary() -> dict[str, Any]:
    """The promised figures."""
    known = cases()
    found = left_out(known)
    covered = [one for one in found if one.rule_error is not None]
    return {
        "runs": len(found),
        "families": len({case.family for case in known}),
        "abs_log_error": spread([one.error for one in found]),
        "signed_median": round(statistics.median(one.error for one in found), 3),
        "reliable_only": spread([one.error for one in found if one.case.reliability == "A"]),
        "inside": round(sum(one.inside for one in found) / len(found), 2),
        "median_width": round(statistics.median(one.width for one in found), 2),
        "two_constants": spread([one.rule_error for one in covered if one.rule_error is not None]),
        "ours_on_the_same": spread([one.error for one in covered]),
        "better_by": [round(value, 3) for value in better_by(found)],
        "nearer": f"{sum(abs(one.error) < abs(one.rule_error or 0) for one in covered)} of {len(covered)}",
        "fitted_on_all": [round(value, 3) for value in fit(known)],
    }


if __name__ == "__main__":
    print("gpu_hours_left_out", json.dumps(summary()) if CASES.is_file() else "the cases are not here")
