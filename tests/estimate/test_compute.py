"""The prior and the arithmetic of hours."""

import json
import math
import statistics
from pathlib import Path

import pytest

from skillserver import tables
from skillserver.errors import BadRequest
from skillserver.estimate import compute, models, prior
from skillserver.estimate.prior import Setting
from skillserver.hardware import catalogue
from skillserver.tools.estimate import estimate_gpu_hours

CASES = Path(__file__).parents[2].parent / "shared/cases/training_runs.json"
H100 = catalogue.accelerator("h100")
A100 = catalogue.accelerator("A100-80GB-SXM")


def mfu(part=A100, **known):
    return prior.expect(part, Setting(**{"precision": "bf16"} | known)).mfu


def test_full_recomputation_costs_a_quarter_of_the_share():
    assert mfu(recompute="full") / mfu(recompute="none") == pytest.approx(0.75, abs=0.02)
    assert mfu(recompute="full") < mfu() < mfu(recompute="selective")


def test_newer_parts_reach_a_smaller_share_of_a_larger_peak():
    assert mfu(H100) < mfu(A100)
    assert mfu(H100) * H100.tensor["bf16"] > mfu(A100) * A100.tensor["bf16"]


def test_experts_scale_small_models_and_old_software_lower_the_share():
    assert mfu(has_experts=True) < mfu()
    assert mfu(n_accelerators=16384) < mfu(n_accelerators=512) < mfu(n_accelerators=8)
    assert mfu(active=1e8) < mfu(active=2e9) == mfu(active=2e11)
    assert mfu(software_year=2021) < mfu(software_year=2024) == mfu()


def test_fp8_raises_the_share_counted_against_bf16():
    assert mfu(H100, precision="fp8") == pytest.approx(1.3 * mfu(H100))
    assert compute.peak_for(H100, "fp8") == ("fp8", "bf16", 989.4)


def test_the_interval_widens_where_less_is_known():
    spread = {part: prior.expect(catalogue.accelerator(part), Setting("bf16")).log_sd for part in ("A100-80GB-SXM", "h100", "b200", "gaudi3")}
    assert spread["A100-80GB-SXM"] < spread["h100"] < spread["b200"] < spread["gaudi3"]
    assert prior.expect(H100, Setting("bf16", has_experts=True)).log_sd > spread["h100"]


def test_every_architecture_of_the_catalogue_has_a_prior():
    known = {row.id for row in tables.load("mfu_prior.toml", prior.Row) if row.kind == "generation"}
    assert {part.architecture for part in catalogue.accelerators()} <= known


def test_hours_are_flops_over_peak_and_share():
    hours = compute.run_hours(3600e12 * 400, 1000, compute.Share(0.2, 0.4, 0.8))
    assert (hours.low, hours.expected, hours.high) == pytest.approx((0.5, 1.0, 2.0))


@pytest.mark.parametrize(
    ("part", "precision", "valid"),
    [
        ("A100-80GB-SXM", "fp8", "bf16"),
        ("V100-32GB-SXM", "bf16", "fp16"),
        ("h100", "int8", "bf16"),
        ("h100", "fp4", "bf16"),
        ("TPUv5e", "fp16", "bf16"),
    ],
)
def test_a_precision_without_a_peak_is_refused_with_those_that_have_one(part, precision, valid):
    with pytest.raises(BadRequest) as refused:
        compute.peak_for(catalogue.accelerator(part), precision)
    assert valid in refused.value.valid


def test_the_precision_defaults_to_what_the_part_has():
    assert compute.peak_for(catalogue.accelerator("t4"), None) == ("fp16", "fp16", 65)


def test_nearest_runs_share_generation_and_kind():
    runs = compute.nearest_runs(H100, 37e9, 15e12, has_experts=True)
    assert [run.model for run in runs] == ["DeepSeek-V3", "DeepSeek-V2"]
    assert all(0.1 < compute.share_6nd(run) < 0.5 for run in runs)


def test_a_bare_count_is_given_a_typical_shape_and_says_so():
    size = models.size_of(params_total=70e9)
    assert (size.lookup, size.has_experts) == (0, False)
    assert 60 < size.layers < 100
    assert "typical shape" in size.assumptions[0]


def test_total_and_shape_together_tell_which_embeddings_are_looked_up():
    fields = {"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 32, "ffn": 11008, "vocab": 32000}
    assert models.size_of(params_total=6738415616, architecture=fields).lookup == 32000 * 4096
    gpt2 = {"layers": 12, "hidden": 768, "heads": 12, "kv_heads": 12, "ffn": 3072, "vocab": 50304}
    assert models.size_of(params_total=124439808, architecture=gpt2).lookup == 0


@pytest.mark.skipif(not CASES.is_file(), reason="the real cases are not here")
def test_published_runs_are_met_and_the_interval_is_honest():
    errors, inside = [], []
    for run in json.loads(CASES.read_text()):
        if not run["in_baseline"] or run["reliability"] != "A":
            continue
        recompute = {True: "full", False: "none"}.get(run["activation_recompute"], run["activation_recompute"])
        hours = estimate_gpu_hours(
            tokens=run["tokens"], accelerator=run["accelerator"], params_total=run["params_total"], params_active=run["params_active"],
            architecture=run["arch"], seq_len=run["seq_len"], n_accelerators=run["n_accelerators"], precision=run["precision"],
            activation_recompute=recompute, software_year=run["year"],
        ).gpu_hours  # fmt: skip
        errors.append(abs(math.log(hours.expected / run["gpu_hours"])))
        inside.append(hours.low <= run["gpu_hours"] <= hours.high)
    assert statistics.median(errors) <= 0.25
    assert sum(inside) / len(inside) >= 0.75
