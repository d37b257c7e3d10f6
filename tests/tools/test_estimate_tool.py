"""estimate_gpu_hours as an agent meets it."""

import json

import pytest

from skillserver.contract import document
from skillserver.errors import BadRequest
from skillserver.tools.estimate import estimate_gpu_hours

JOB = {"model": "llama-3-8b", "tokens": "1T", "accelerator": "h100"}
MEGATRON = (
    " iteration {step:8d}/     100 | consumed samples: {step:12d} | elapsed time per iteration (ms): {ms:.1f} | learning rate: 1.0E-04 |"
    " global batch size:  512 | lm loss: 2.5E+00 | loss scale: 1.0 | grad norm: 1.000 | number of skipped iterations:   0 |"
    " number of nan iterations:   0 |\n"
)
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


def test_energy_is_hours_at_full_power_and_wider_than_hours():
    found = estimate_gpu_hours(**JOB)
    assert found.energy_kwh.expected == pytest.approx(found.gpu_hours.expected * 0.7 * 1.2)
    assert found.energy_kwh.high / found.energy_kwh.low > found.gpu_hours.high / found.gpu_hours.low
    assert any("PUE 1.2" in said for said in found.assumptions)


def test_a_step_time_replaces_the_prior():
    found = estimate_gpu_hours(**JOB, n_accelerators=512, evidence={"step_s": "1.5s", "tokens_per_step": "8M"})
    at_rate = 1e12 / 8e6 * 1.5 * 512 / 3600
    assert found.mfu.basis == "measured"
    assert found.gpu_hours.low == pytest.approx(at_rate)
    assert found.gpu_hours.expected == pytest.approx(at_rate / found.goodput.expected)
    same = estimate_gpu_hours(**JOB, evidence={"tokens_per_s_per_gpu": 8e6 / 1.5 / 512})
    assert same.gpu_hours.expected == pytest.approx(found.gpu_hours.expected)


def test_a_speed_from_a_smaller_job_costs_scale_and_doubt():
    here = estimate_gpu_hours(**JOB, n_accelerators=64, evidence={"tokens_per_s_per_gpu": 9000})
    larger = estimate_gpu_hours(**JOB, n_accelerators=4096, evidence={"tokens_per_s_per_gpu": 9000, "n_accelerators": 64})
    assert larger.gpu_hours.expected > here.gpu_hours.expected
    assert larger.gpu_hours.high / larger.gpu_hours.low > here.gpu_hours.high / here.gpu_hours.low


def test_a_log_gives_its_usual_step_time_and_caps_goodput_by_its_slow_steps(tmp_path):
    times = [9000, *[1500] * 9, 3000]
    log = tmp_path / "train.log"
    log.write_text("".join(MEGATRON.format(step=step, ms=ms) for step, ms in enumerate(times, 1)))
    found = estimate_gpu_hours(**JOB, n_accelerators=512, evidence={"log": str(log), "tokens_per_step": "8M"})
    assert found.goodput.high == pytest.approx(1.5 / 1.65)
    assert found.gpu_hours.low == pytest.approx(1e12 / 8e6 * 1.65 * 512 / 3600)


def test_a_log_without_step_times_is_asked_back(tmp_path):
    log = tmp_path / "train.log"
    log.write_text("".join(f"step {step}: loss 2.5, lr 1e-4\n" for step in range(1, 9)))
    with pytest.raises(BadRequest, match="step_s"):
        estimate_gpu_hours(**JOB, n_accelerators=8, evidence={"log": str(log), "tokens_per_step": "1M"})


def test_a_measured_mamf_corrects_the_prior_and_narrows_it_most_where_nothing_is_published():
    prior, slow = (estimate_gpu_hours(**JOB, **more) for more in ({}, {"evidence": {"mamf_tflops": 397.25}}))
    assert slow.gpu_hours.expected == pytest.approx(2 * prior.gpu_hours.expected)
    assert slow.mfu.basis == "prior_mamf"
    gaudi = JOB | {"accelerator": "gaudi3"}
    known = estimate_gpu_hours(**gaudi, evidence={"mamf_tflops": 900}).gpu_hours
    unknown = estimate_gpu_hours(**gaudi).gpu_hours
    assert known.high / known.low < 0.6 * unknown.high / unknown.low


def test_a_request_outside_of_what_was_fitted_says_so_and_is_wider():
    usual, far = estimate_gpu_hours(**JOB, seq_len=8192), estimate_gpu_hours(**JOB, seq_len=131072, n_accelerators=10**5)
    assert usual.warnings == []
    assert [word for word in ("n_accelerators", "seq_len") if not any(word in said for said in far.warnings)] == []
    assert far.gpu_hours.high / far.gpu_hours.low > 1.2 * usual.gpu_hours.high / usual.gpu_hours.low


@pytest.mark.parametrize(
    ("evidence", "said"),
    [
        ({"mamf_tflop": 700}, "did you mean 'mamf_tflops'"),
        ({"mamf_tflops": 1979}, "above the dense peak"),
        ({"step_s": 2}, "tokens_per_step"),
        ({"tokens_per_step": "4M"}, "step_s or log"),
        ({"step_s": 2, "tokens_per_step": "4M"}, "n_accelerators"),
        ({"step_s": -2, "tokens_per_step": "4M"}, "greater than 0"),
        ({"step_s": 2, "tokens_per_step": "4M", "tokens_per_s_per_gpu": 9000}, "each of them says the speed"),
        ({"tokens_per_s_per_gpu": "4M"}, "of the peak"),
        ({"n_accelerators": 8}, "no speed is there"),
        ({"log": "no/such.log", "tokens_per_step": "4M"}, "no/such.log"),
    ],
)
def test_evidence_that_contradicts_itself_or_the_part_is_refused(evidence, said):
    with pytest.raises(BadRequest) as refused:
        estimate_gpu_hours(**JOB, evidence=evidence)
    assert said in str(refused.value)


def test_mfu_and_a_measured_speed_together_are_refused():
    with pytest.raises(BadRequest, match="each say how fast"):
        estimate_gpu_hours(**JOB, mfu=0.4, evidence={"tokens_per_s_per_gpu": 9000})


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
