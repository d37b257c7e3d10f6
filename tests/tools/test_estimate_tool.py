"""estimate_gpu_hours as an agent meets it."""

import json

import pytest

from skillserver.contract import document
from skillserver.errors import BadRequest
from skillserver.tools.estimate import estimate_gpu_hours

JOB = {"model": "llama-3-8b", "tokens": "1T", "accelerator": "h100"}
DENSE = {"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 32, "ffn": 11008, "vocab": 32000}


def test_the_answer_names_its_basis_and_what_was_left_out():
    result = document(estimate_gpu_hours(**JOB))
    assert result["gpu_hours"]["low"] < result["gpu_hours"]["expected"] < result["gpu_hours"]["high"]
    assert (result["wall_days"], result["cost_usd"], result["goodput"]) == (None, None, None)
    assert {"wall_days", "cost_usd"} <= {said.split(":")[0] for said in result["skipped"]}
    assert result["mfu"]["basis"] == "prior"
    assert result["accelerator"] == "H100-80GB-SXM"
    assert any("H100-80GB-SXM" in said for said in result["assumptions"])
    assert len(result["comparisons"]) == 2
    assert len(json.dumps(result)) < 4 * 2000


def test_days_and_money_follow_from_hours():
    result = estimate_gpu_hours(**JOB, n_accelerators=512, price_per_gpu_hour_usd=2)
    assert result.wall_days.expected == pytest.approx(result.gpu_hours.expected / 512 / 24)
    assert result.cost_usd.high == pytest.approx(2 * result.gpu_hours.high)


def test_a_measured_mfu_is_used_and_only_goodput_stays_open():
    prior, given = estimate_gpu_hours(**JOB), estimate_gpu_hours(**JOB, mfu=0.4)
    at_rate = given.flops / (0.4 * 989.4e12 * 3600)
    assert (given.mfu.expected, given.mfu.basis) == (0.4, "given")
    assert given.gpu_hours.low == pytest.approx(at_rate)
    assert given.gpu_hours.expected == pytest.approx(at_rate / given.goodput.expected)
    assert given.gpu_hours.high / given.gpu_hours.low < prior.gpu_hours.high / prior.gpu_hours.low


def test_recomputation_changes_hours_and_not_flops():
    none, full = (estimate_gpu_hours(**JOB, activation_recompute=kind) for kind in ("none", "full"))
    assert none.flops == full.flops
    assert full.gpu_hours.expected / none.gpu_hours.expected == pytest.approx(4 / 3, rel=0.03)


def test_only_active_parameters_cost_flops():
    one = estimate_gpu_hours(params_total="100B", params_active="10B", tokens="1T", accelerator="h100")
    other = estimate_gpu_hours(params_total="400B", params_active="10B", tokens="1T", accelerator="h100")
    dense = estimate_gpu_hours(params_total="10B", tokens="1T", accelerator="h100")
    assert one.flops == other.flops == dense.flops
    assert one.gpu_hours.expected > dense.gpu_hours.expected


def test_a_name_a_config_and_an_architecture_agree():
    config = {
        "model_type": "llama",
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "intermediate_size": 11008,
        "vocab_size": 32000,
    }
    rest = {"tokens": "2T", "accelerator": "A100-80GB-SXM"}
    answers = [
        estimate_gpu_hours(model="Llama-2-7b-hf", **rest),
        estimate_gpu_hours(model=config, **rest),
        estimate_gpu_hours(model=json.dumps(config), **rest),
        estimate_gpu_hours(architecture=DENSE, **rest),
        estimate_gpu_hours(params_total=6738415616, architecture=DENSE, **rest),
    ]
    assert len({answer.flops for answer in answers}) == 1


def test_a_job_that_cannot_fit_and_a_hardware_mfu_are_warned_of():
    assert "does not fit" in estimate_gpu_hours(model="llama-3-70b", tokens="1T", accelerator="h100", n_accelerators=8).warnings[0]
    assert "HFU" in estimate_gpu_hours(**JOB, mfu=0.55, activation_recompute="full").warnings[0]
    assert "Gaudi" in estimate_gpu_hours(model="llama-3-8b", tokens="1T", accelerator="gaudi3").warnings[0]
    assert estimate_gpu_hours(**JOB, n_accelerators=64).warnings == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tokens": 0}, "tokens"),
        ({"tokens": "1e17"}, "tokens"),
        ({"tokens": "lots"}, "tokens"),
        ({"mfu": 1.2}, "mfu"),
        ({"mfu": 0}, "mfu"),
        ({"price_per_gpu_hour_usd": -1}, "price_per_gpu_hour_usd"),
        ({"n_accelerators": 0}, "n_accelerators"),
        ({"seq_len": 0}, "seq_len"),
        ({"activation_recompute": "half"}, "activation_recompute"),
        ({"token": 5}, "did you mean 'tokens'"),
        ({"accelerator": "A100"}, "A100-40GB-SXM"),
        ({"accelerator": "H1000"}, "H100-80GB-SXM"),
        ({"precision": "int4"}, "precision"),
        ({"model": "llama-9-8b"}, "llama-3-8b"),
        ({"model": None}, "params_total"),
        ({"params_total": "8B"}, "params_total"),
        ({"model": None, "params_active": "8B"}, "params_total"),
        ({"model": None, "params_total": "8B", "params_active": "9B"}, "params_active"),
        ({"model": None, "params_total": 10}, "params_total"),
        ({"model": None, "params_total": "8B", "architecture": {"hidden": 4096}}, "layers"),
        ({"model": None, "params_total": "70B", "architecture": DENSE}, "does not fit architecture"),
        ({"model": None, "architecture": DENSE | {"heads": 33, "kv_heads": 33}}, "do not divide"),
        ({"model": None, "architecture": DENSE | {"kv_heads": 5}}, "kv_heads"),
        ({"model": None, "architecture": DENSE | {"experts": 8}}, "experts_per_token"),
        ({"model": None, "architecture": DENSE | {"experts": 2, "experts_per_token": 4}}, "experts_per_token"),
        ({"model": None, "architecture": DENSE | {"layer": 3}}, "did you mean 'layers'"),
        ({"model": None, "architecture": DENSE | {"layers": 0.5}}, "layers"),
    ],
)
def test_an_absurd_or_contradictory_request_is_refused_by_field(change, said):
    with pytest.raises(BadRequest) as refused:
        estimate_gpu_hours(**(JOB | change))
    assert said in str(refused.value)


def test_the_tool_costs_an_agent_at_most_350_tokens():
    schema = json.dumps(estimate_gpu_hours.input_schema(), separators=(",", ":"))
    assert len(estimate_gpu_hours.name) + len(estimate_gpu_hours.description) + len(schema) <= 4 * 350
