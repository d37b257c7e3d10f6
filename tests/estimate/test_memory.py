"""The memory estimate: bytes a parameter, what each kind of parallelism divides, moments, and published readings."""

import json
import math
import statistics
from pathlib import Path
from typing import Any

import pytest

from skillserver.estimate import memory, memory_states
from skillserver.estimate.architecture import parameters
from skillserver.estimate.memory_buffers import capacity_gib, loss
from skillserver.estimate.memory_plan import Plan, plan, shape_of
from skillserver.hardware import catalogue
from skillserver.units import GIB

CASES = Path(__file__).resolve().parents[3] / "shared/cases/memory.json"
LLAMA = shape_of("llama-2-7b")
SIZES = ("tp", "pp", "dp", "cp", "ep", "n_accelerators")


def job(model: Any = "llama-2-7b", **settings: Any) -> Plan:
    sizes = {name: settings.pop(name) for name in SIZES if name in settings}
    return plan(shape_of(model), **{"seq_len": 4096, "sizes": sizes, **settings})


def state_bytes(made: Plan, stage: int = 0) -> float:
    return sum(term.bytes for term in memory_states.states(made, memory_states.stages(made)[stage]))


@pytest.mark.parametrize(
    ("settings", "each"),
    [
        ({"sharding": "zero1", "precision": "fp16", "dp": 4}, 2 + 2 + (4 + 12) / 4),
        ({"sharding": "zero2", "dp": 4}, 2 + 18 / 4),
        ({"sharding": "zero3", "dp": 4}, 20 / 4),
        ({"sharding": "zero1", "dp": 4}, 8 + 12 / 4),
        ({"sharding": "fsdp", "dp": 8}, 16 / 8),
        ({"sharding": "fsdp", "dp": 8, "cp": 2}, 16 / 16),
        ({"sharding": "hsdp", "dp": 16}, 16 / 8),
        ({"sharding": "none", "precision": "fp32"}, 16),
        ({"sharding": "none"}, 18),
        ({"sharding": "none", "dp": 2}, 22),
        ({"sharding": "fsdp", "optimizer": "adamw_8bit"}, 10),
        ({"sharding": "fsdp", "optimizer": "sgd"}, 8),
        ({"sharding": "zero2", "dp": 4, "extra": {"offload": "optimizer"}}, 2),
    ],
)
def test_bytes_a_parameter_follow_sharding_precision_and_optimizer(settings: dict[str, Any], each: float) -> None:
    assert state_bytes(job(**settings)) / parameters(LLAMA).total == pytest.approx(each, rel=1e-3)


def test_tensor_and_pipeline_parallelism_divide_gradients_too() -> None:
    whole, cut = (state_bytes(job(sharding="zero1", **sizes)) for sizes in ({"dp": 4, "tp": 2}, {"dp": 4, "tp": 8, "pp": 4}))
    assert whole / cut == pytest.approx(16, rel=0.08)  # the token table is not divided by pp


def test_tied_embeddings_are_held_once_without_a_pipeline_and_by_both_ends_with_one() -> None:
    tied = job({"model_type": "bloom", "hidden_size": 4096, "num_hidden_layers": 30, "num_attention_heads": 32, "vocab_size": 250880}, tp=2)
    assert memory_states.counts(tied, memory_states.stages(tied)[0]).tables == 250880 * 4096 / 2
    ends = memory_states.stages(job(pp=4))
    assert [(one.layers, one.has_table, one.has_head) for one in ends] == [(8, True, False), (8, False, True)]


def test_experts_are_divided_by_ep_and_not_by_tp_and_all_of_them_are_held() -> None:
    shape = shape_of("mixtral-8x7b")
    made = job("mixtral-8x7b", tp=4, ep=2, dp=2, sharding="zero1")
    found = memory_states.counts(made, memory_states.stages(made)[0])
    assert found.experts == shape.layers * shape.experts * 3 * shape.hidden * shape.expert_ffn / 2
    assert memory_states.expert_shards(made) == 4 * 2 / 2


def test_low_rank_adapters_train_few_and_freeze_the_rest() -> None:
    made = job(peft="lora", lora_rank=8)
    assert memory_states.adapter_size(made, every_linear=False) == 4194304  # what litgpt prints for q and v
    assert state_bytes(made) / GIB == pytest.approx(2 * 6.738e9 / GIB + 16 * memory_states.adapter_size(made, every_linear=True) / GIB, rel=0.01)
    assert state_bytes(job(peft="qlora")) < 0.4 * state_bytes(made)


def test_micro_batches_in_flight_are_most_on_the_first_stage() -> None:
    made = job(pp=8)
    first, last = memory_states.stages(made)
    assert (memory.in_flight(made, first), memory.in_flight(made, last)) == (8, 1)
    assert memory.in_flight(job(pp=8, extra={"micro_batches": 4}), first) == 4
    assert memory.in_flight(job(pp=8, extra={"virtual_stages": 2}), first) == 8 * (1 + 7 / 16)


def test_layers_that_do_not_divide_go_to_the_earlier_stages() -> None:
    assert [one.layers for one in memory_states.stages(job("llama-3.1-405b", pp=8))] == [16, 14]
    assert [one.layers for one in memory_states.stages(job(pp=7))] == [5, 2]


def test_selective_and_full_recomputation_are_not_the_same() -> None:
    sizes = [memory.peak(job(recompute=kind, sharding="fsdp", dp=8)).allocated.expected for kind in ("none", "selective", "full")]
    assert sizes[0] > 1.3 * sizes[1] > 1.3 * sizes[2]


def test_sequence_parallelism_divides_what_tensor_parallelism_alone_leaves_whole() -> None:
    off, on = (memory.peak(job(tp=8, recompute="full", pp=2, sequence_parallel=wanted)) for wanted in (False, True))
    kept = [next(term.bytes for term in one.terms if term.name == "activations") for one in (off, on)]
    assert kept[0] / kept[1] == pytest.approx(8)


def test_context_parallelism_divides_tokens() -> None:
    assert job(seq_len=8192, cp=4, n_accelerators=4).tokens == 2048


def test_the_sum_is_of_terms_alive_together_and_device_is_the_most() -> None:
    worst = memory.peak(job(sharding="fsdp", dp=8))
    assert worst.allocated.expected == pytest.approx(sum(term.bytes for term in worst.terms) / GIB)
    assert worst.allocated.expected < worst.reserved.expected < worst.device.expected
    for interval in (worst.allocated, worst.reserved, worst.device):
        assert interval.low < interval.expected < interval.high


def test_the_loss_is_the_peak_of_a_large_vocabulary_and_a_chunked_one_is_not() -> None:
    eager, chunked = (job("llama-3-8b", seq_len=8192, sharding="fsdp", dp=8, recompute="full", extra={"loss": kind}) for kind in ("eager", "chunked"))
    assert memory.peak(eager).moment == "loss"
    assert memory.peak(chunked).moment == "backward of a layer"
    assert loss(eager).bytes / GIB == pytest.approx(12 * 8192 * 128256 / GIB, rel=0.03)


def test_capacity_is_what_programs_see_of_the_gigabytes_sold() -> None:
    seen = {name: capacity_gib(catalogue.accelerator(name)) for name in ("A100-40GB-SXM", "H100-80GB-SXM", "H200-141GB-SXM", "T4-16GB")}
    read = {"A100-40GB-SXM": 40536 / 1024, "H100-80GB-SXM": 81559 / 1024, "H200-141GB-SXM": 143771 / 1024, "T4-16GB": 15360 / 1024}
    assert seen == pytest.approx(read, rel=0.01)


def test_a_first_qwen_is_read_though_its_width_counts_twice() -> None:
    config = {"model_type": "qwen", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "kv_channels": 128,
              "intermediate_size": 22016, "vocab_size": 151936, "no_bias": True, "tie_word_embeddings": False}  # fmt: skip
    assert parameters(shape_of(config)).total == 7721324544  # as published


@pytest.mark.skipif(not CASES.is_file(), reason="the real cases are not here")
def test_published_readings_are_met() -> None:
    rows = [row for row in json.loads(CASES.read_text(encoding="utf-8")) if row.get("request") and row["certainty"] != "low"]
    errors: dict[str, list[float]] = {}
    inside = 0
    for row in rows:
        found = reading(row["request"], row["quantity"])
        errors.setdefault(row["source"], []).append(abs(math.log(found.expected / row["measured_gib"])))
        inside += found.low <= row["measured_gib"] <= found.high
    every = sorted(error for group in errors.values() for error in group)
    assert statistics.median(every) < 0.12
    assert every[int(0.9 * (len(every) - 1))] < 0.30
    assert max(statistics.median(group) for group in errors.values()) < 0.20
    assert inside >= 0.8 * len(rows)


def reading(request: dict[str, Any], quantity: str) -> Any:
    names = {"activation_recompute": "recompute", "trainable_params": "trainable"}
    settings = {names.get(key, key): value for key, value in request.items() if key not in ("model", "accelerator")}
    if request.get("accelerator"):
        settings["part"] = catalogue.accelerator(request["accelerator"])
    return getattr(memory.peak(job(request["model"], **settings)), quantity)
