"""Serving estimates against exact sizes, lower bounds and published servers."""

import math

import pytest

from skillserver.errors import BadRequest
from skillserver.estimate import inference, inference_memory
from skillserver.estimate.inference import Job
from skillserver.estimate.inference_model import possible_tps, served
from skillserver.estimate.inference_step import Engine
from skillserver.estimate.models import shape_of
from skillserver.hardware.catalogue import accelerator


def engine(model: str, part: str, weights: str = "bf16", tp: int = 1, kv_dtype: str = "bf16") -> Engine:
    return Engine(served(shape_of(model), weights=weights, tp=tp, kv_dtype=kv_dtype), accelerator(part))


@pytest.mark.parametrize(("model", "each"), [("llama-2-7b", 524_288), ("llama-3-8b", 131_072), ("llama-3-70b", 327_680), ("llama-3.1-405b", 516_096)])
def test_a_token_of_cache_has_its_exact_bytes(model: str, each: int) -> None:
    assert served(shape_of(model)).cache_bytes(1) == each


def test_tp_cuts_weights_and_cache_until_the_key_value_heads_run_out() -> None:
    one, eight, sixteen = (served(shape_of("llama-3-70b"), tp=tp) for tp in (1, 8, 16))
    assert eight.held_bytes == pytest.approx(one.held_bytes / 8, rel=1e-3)
    assert (eight.cache_bytes(1), sixteen.cache_bytes(1)) == (327_680 / 8, 327_680 / 8)


def test_latent_cache_is_kept_whole_by_every_rank() -> None:
    assert served(shape_of("deepseek-v3"), tp=8).cache_bytes(1) == 61 * 576 * 2


def test_quantised_weights_keep_their_tables_in_16_bits() -> None:
    shape = shape_of("llama-3-8b")
    tables = 2 * 128256 * 4096
    assert served(shape, weights="fp8").held_bytes == pytest.approx(8_030_261_248 + tables, rel=1e-3)


def test_few_tokens_read_few_experts() -> None:
    model = served(shape_of("mixtral-8x7b"))
    assert model.read_bytes(1) - model.streamed_bytes == pytest.approx(model.expert_bytes * 2 / 8)
    assert model.read_bytes(1000) == pytest.approx(model.held_bytes, rel=0.01)


@pytest.mark.parametrize("model", ["llama-3-8b", "mixtral-8x7b", "deepseek-v3", "gemma-2-9b", "gpt-oss-20b"])
def test_no_step_beats_weight_bytes_over_bandwidth(model: str) -> None:
    one = engine(model, "H200")
    assert one.step_s(decoding=1, context=1) > inference.lowest_tpot_s(one.model, one.part)


def test_llama_8b_reads_its_weights_in_at_least_4_and_a_half_milliseconds_on_h100() -> None:
    one = engine("llama-3-8b", "H100")
    assert inference.lowest_tpot_s(one.model, one.part) == pytest.approx((8_030_261_248 - 128256 * 4096) * 2 / 3350e9)


def test_a_prefix_costs_neither_its_matmuls_nor_its_own_scores() -> None:
    model = served(shape_of("llama-3-8b"))
    assert model.seen(0, 1000) == 32 * 1000**2 / 2
    assert model.seen(600, 1000) == 32 * (1000**2 - 600**2) / 2


def test_prefill_is_held_by_compute_and_decode_by_memory() -> None:
    one = engine("llama-3-8b", "H100")
    assert (one.prefill_parts(4096).bound, one.parts(decoding=8, context=4096).bound) == ("compute", "memory bandwidth")


def test_a_larger_batch_gives_more_tokens_and_slower_ones() -> None:
    one, job = engine("llama-3-8b", "H100"), Job(512, 256)
    points = [inference.point(one, job, size) for size in (1, 8, 64, 256)]
    assert sorted(points, key=lambda at: at.output_tokens_s) == points == sorted(points, key=lambda at: at.tpot_s)


@pytest.mark.parametrize("part", ["H100", "A100-80GB-SXM", "MI300X", "L40S-48GB", "V100-32GB-SXM", "B200"])
def test_intervals_are_ordered_and_hold_the_expected_value(part: str) -> None:
    one = engine("llama-3-8b", part)
    found = inference.speed(one.model, one.part, Job(1024, 256), 16)
    assert all(each.low < each.expected < each.high for each in found)
    assert found.output_tokens_s.expected == pytest.approx(inference.point(one, Job(1024, 256), 16).output_tokens_s)


# vLLM pull request 10511 prints 53.29 GiB of cache for Llama-3-8B on one H100 at 0.9
def test_the_room_for_the_cache_is_what_vllm_printed() -> None:
    one = engine("llama-3-8b", "H100")
    room = inference_memory.room(one.model, one.part).cache_gib
    assert room.expected == pytest.approx(53.29, abs=1.0)
    assert room.low < 53.29 < room.high


# gpt-fast README, batch 1, A100-80GB; NIM performance page, Llama-3.3-70B fp8 on 2 H100; TPOT in ms
@pytest.mark.parametrize(
    ("model", "part", "weights", "tp", "job", "sequences", "tpot_ms"),
    [
        ("llama-2-7b", "A100-80GB-SXM", "bf16", 1, Job(5, 200), 1, 9.53),
        ("llama-2-7b", "A100-80GB-SXM", "bf16", 4, Job(5, 200), 1, 3.94),
        ("llama-2-70b", "A100-80GB-SXM", "bf16", 8, Job(5, 200), 1, 16.0),
        ("llama-3-70b", "H100", "fp8", 2, Job(5000, 500), 1, 18.58),
        ("llama-3-70b", "H100", "fp8", 2, Job(5000, 500), 25, 38.75),
        ("llama-3-70b", "H100", "fp8", 2, Job(5000, 500), 50, 59.73),
    ],
)
def test_published_times_per_token_lie_within_the_interval(
    model: str, part: str, weights: str, tp: int, job: Job, sequences: int, tpot_ms: float
) -> None:
    one = engine(model, part, weights, tp)
    found = inference.speed(one.model, one.part, job, sequences).tpot_s
    assert found.low <= tpot_ms / 1e3 <= found.high
    assert abs(math.log(found.expected * 1e3 / tpot_ms)) < 0.15


# TensorRT-LLM performance overview 1.0, output tokens a second at full load with an fp8 cache
@pytest.mark.parametrize(
    ("model", "part", "tp", "job", "sequences", "tokens_s"),
    [
        ("llama-3-8b", "H100", 1, Job(1000, 1000), 591, 15220),
        ("llama-3-8b", "H200", 1, Job(5000, 500), 358, 3902),
        ("llama-3-70b", "H100", 2, Job(2048, 128), 233, 762),
        ("llama-3-70b", "H200", 1, Job(20000, 2000), 19, 283),
        ("llama-3.1-405b", "H200", 8, Job(1000, 1000), 1582, 3330),
    ],
)
def test_published_throughput_lies_within_the_interval(model: str, part: str, tp: int, job: Job, sequences: int, tokens_s: float) -> None:
    one = engine(model, part, "fp8", tp, "fp8")
    found = inference.speed(one.model, one.part, job, sequences).output_tokens_s
    assert found.low <= tokens_s <= found.high


def test_the_dollars_of_a_million_tokens() -> None:
    assert inference.usd_per_million(3.6, 2, 1000) == pytest.approx(2.0)


def test_a_tp_that_does_not_divide_is_refused_with_the_nearest() -> None:
    with pytest.raises(BadRequest, match=r"bad_tp: tp 6 does not divide .*heads.* Valid: 4, 8"):
        served(shape_of("llama-3-8b"), tp=6)
    assert possible_tps(shape_of("llama-3-8b"))[:4] == [1, 2, 4, 8]


def test_a_model_that_does_not_fit_is_refused_with_what_would() -> None:
    one = engine("llama-3-70b", "H100")
    with pytest.raises(BadRequest, match="does_not_fit") as refused:
        inference_memory.refuse_what_does_not_fit(one.model, one.part, 4096)
    assert refused.value.valid == ["weights=int4, tp=1", "weights=fp8, tp=2", "weights=bf16, tp=4"]


def test_a_shared_prefix_is_kept_once() -> None:
    model = served(shape_of("llama-3-8b"))
    assert inference_memory.sequences(model, 20, 1600) == 102
    assert inference_memory.sequences(model, 20, 1600, 800) == int((20 * 2**30 - 800 * 131072) / (800 * 131072))
