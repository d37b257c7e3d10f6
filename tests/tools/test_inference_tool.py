"""estimate_inference as agents call it: the whole answer, its size, its refusals."""

import pytest

from skillserver.contract import compact_json, document
from skillserver.errors import BadRequest
from skillserver.tools.inference import estimate_inference

BUDGET = 2000 * 4  # characters


@pytest.mark.parametrize(
    "asked",
    [
        {"model": "llama-3-8b", "accelerator": "H100"},
        {"model": "llama-3-70b", "accelerator": "H100", "tp": 8, "request_rate": 20, "price_per_gpu_hour_usd": 2.5, "cached_tokens": 500},
        {"model": "deepseek-v3", "accelerator": "B200", "tp": 8, "weights": "fp4", "kv_dtype": "fp8", "request_rate": 5},
        {"model": "gpt-oss-120b", "accelerator": "MI300X", "weights": "fp4", "input_tokens": 30000},
        {"model": "gemma-2-9b", "accelerator": "TPUv5e", "tp": 4},
        {"model": "tinyllama-1.1b", "accelerator": "T4-16GB", "weights": "int4"},
    ],
)
def test_an_answer_is_whole_and_within_its_budget(asked: dict) -> None:
    answer = document(estimate_inference(**asked))
    assert len(compact_json(answer)) <= BUDGET
    assert "not_finite" not in answer
    assert answer["lowest_tpot_s"] < answer["tpot_s"]["expected"]
    assert all(value >= 0 for value in answer["decode"].values() if not isinstance(value, str))


def test_cost_and_replicas_are_said_only_when_asked_for() -> None:
    bare, full = estimate_inference("llama-3-8b", "H100"), estimate_inference("llama-3-8b", "H100", request_rate=100, price_per_gpu_hour_usd=2)
    assert (bare.cost_usd_per_million_output_tokens, bare.replicas) == (None, None)
    cost, speed = full.cost_usd_per_million_output_tokens, full.output_tokens_s
    assert cost and cost.expected == pytest.approx(2 / 3600 / speed.expected * 1e6, rel=1e-3)
    assert full.replicas and full.replicas > 1
    assert next(one for one in full.batching if one.policy == "continuous").keeps_up


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"tp": 3}, "bad_tp"),
        ({"model": "llama-3.1-405b"}, "does_not_fit"),
        ({"input_tokens": 10**7}, "does_not_fit"),
        ({"concurrency": 5000}, "cache_too_small"),
        ({"cached_tokens": 1024}, "bad_cached_tokens"),
        ({"accelerator": "TPUv4", "tp": 4}, "no_link"),
    ],
)
def test_what_cannot_be_is_refused_with_what_can(asked: dict, code: str) -> None:
    with pytest.raises(BadRequest) as refused:
        estimate_inference(**({"model": "llama-3-8b", "accelerator": "H100"} | asked))
    assert refused.value.code == code
    assert refused.value.next


def test_tp_beyond_the_node_is_a_warning() -> None:
    found = estimate_inference("llama-3.1-405b", "H100", tp=16)
    assert "tp_leaves_the_node" in [one.code for one in found.findings]
