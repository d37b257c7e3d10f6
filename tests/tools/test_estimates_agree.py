"""What must hold between estimates and between tools, whatever the numbers are: order, scale, and one answer to one question."""

import json
from typing import Any

import pytest

from skillserver.contract import document
from skillserver.errors import BadRequest
from skillserver.tools.estimate import estimate_gpu_hours
from skillserver.tools.inference import estimate_inference
from skillserver.tools.layout import plan_parallelism
from skillserver.tools.memory import estimate_memory
from skillserver.tools.models import describe_model

MODELS = ("llama-3-8b", "llama-3-70b", "mixtral-8x7b", "deepseek-v3")


def device(model: str, **job: Any) -> float:
    return estimate_memory(**{"model": model, "seq_len": 4096, "sharding": "fsdp", "n_accelerators": 64} | job).device_gib.expected


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("sharding", ["zero1", "zero2", "zero3", "fsdp"])
def test_more_gpus_never_need_more_memory_on_each(model: str, sharding: str) -> None:
    needs = [device(model, sharding=sharding, n_accelerators=count) for count in (8, 16, 64, 512, 4096)]
    assert needs == sorted(needs, reverse=True)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_a_longer_sequence_or_larger_batch_never_needs_less(model: str, recompute: str) -> None:
    for name, sizes in (("seq_len", (1, 512, 4096, 32768, 10**7)), ("micro_batch", (1, 2, 8, 10**6))):
        needs = [device(model, activation_recompute=recompute, **{name: size}) for size in sizes]
        assert needs == sorted(needs)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("sharding", ["none", "zero1", "fsdp"])
def test_more_recomputation_never_uses_more_memory_and_more_tp_never_either(model: str, sharding: str) -> None:
    for sizes in ({"tp": 1}, {"tp": 2}, {"tp": 8, "pp": 2}):
        needs = [device(model, sharding=sharding, activation_recompute=each, **sizes) for each in ("none", "selective", "full")]
        assert needs == sorted(needs, reverse=True)
    by_tp = [device(model, sharding="none", sequence_parallel=tp > 1, tp=tp) for tp in (2, 4, 8)]
    assert by_tp == sorted(by_tp, reverse=True)


@pytest.mark.parametrize("model", MODELS)
def test_the_model_is_as_large_and_its_cache_as_wide_for_every_tool(model: str) -> None:
    described = describe_model(model=model)
    whole = estimate_memory(model=model, seq_len=1, sharding="none", precision="fp32", n_accelerators=1)
    weights = sum(part.gib for part in whole.breakdown if "weights" in part.term or part.term.startswith("param"))
    assert weights == pytest.approx(described.params_total * 4 / 2**30, rel=0.001)
    served = estimate_inference(model=model, accelerator="MI355X", tp=8, weights="fp8")
    assert served.memory.kv_bytes_per_token == described.kv_bytes_per_token


@pytest.mark.parametrize(("model", "count"), [("llama-3-8b", 16), ("llama-3-70b", 64), ("mixtral-8x7b", 32), ("deepseek-v3", 512)])
def test_every_plan_takes_the_memory_that_estimate_memory_says_and_fits(model: str, count: int) -> None:
    found = plan_parallelism(model=model, seq_len=4096, global_batch=1024, n_accelerators=count, accelerator="h100")
    for plan in found.plans:
        if plan.framework != "torchtitan" and plan.framework != "megatron":
            continue
        sizes = {name: getattr(plan, name) for name in ("tp", "pp", "dp", "cp", "ep", "micro_batch", "sharding", "activation_recompute")}
        extra = {"virtual_stages": plan.virtual_stages, "micro_batches": 1024 // plan.dp // plan.micro_batch}
        again = estimate_memory(model=model, seq_len=4096, accelerator="h100", sequence_parallel=plan.tp > 1 or None, extra=extra, **sizes)
        assert again.fits
        assert again.device_gib.expected <= plan.device_gib + 0.5 or plan.framework == "megatron"


def test_price_scales_cost_and_bandwidth_never_slows_decoding() -> None:
    def cost(price: float) -> Any:
        return estimate_inference(model="llama-3-8b", accelerator="h100", price_per_gpu_hour_usd=price).cost_usd_per_million_output_tokens

    assert cost(4.0).expected == pytest.approx(2 * cost(2.0).expected, rel=0.001)
    pace = [
        estimate_inference(model="llama-3-8b", accelerator=part, concurrency=16).tpot_s.expected
        for part in ("A100-80GB-SXM", "H100-80GB-SXM", "H200-141GB", "B200")
    ]
    assert pace == sorted(pace, reverse=True)


def test_tokens_past_a_learned_position_table_are_said_by_every_tool() -> None:
    said = "100,000 tokens are more than the 1,024 rows of the learned position table: the model cannot take them"
    job: dict[str, Any] = {"model": "gpt2", "seq_len": 100_000}
    assert said in describe_model(**job).assumptions
    assert said in estimate_memory(**job).warnings
    assert said in plan_parallelism(**job, global_batch=8, n_accelerators=8, accelerator="h100").warnings
    served = estimate_inference(model="gpt2", accelerator="h100", input_tokens=99_000, output_tokens=1000)
    assert [one.reason for one in served.findings if one.code == "past_positions"] == [said]


SHAPE = {"layers": 12, "hidden": 768, "heads": 12, "kv_heads": 12, "ffn": 3072, "vocab": 50304}
TAKING_A_MODEL = [
    (describe_model, {}),
    (estimate_inference, {"accelerator": "h100"}),
    (estimate_memory, {"seq_len": 2048, "accelerator": "h100"}),
    (estimate_gpu_hours, {"tokens": "1B", "accelerator": "h100"}),
    (plan_parallelism, {"seq_len": 2048, "global_batch": 64, "n_accelerators": 8, "accelerator": "h100"}),
]


@pytest.mark.parametrize(("tool", "more"), TAKING_A_MODEL, ids=lambda value: getattr(value, "name", ""))
def test_a_bare_shape_is_a_model_to_every_tool_as_an_object_and_as_its_text(tool: Any, more: dict[str, Any]) -> None:
    assert document(tool(model=SHAPE, **more)) == document(tool(model=json.dumps(SHAPE), **more))
    with pytest.raises(BadRequest, match="bad_architecture: architecture lacks heads, ffn, vocab"):
        tool(model={"layers": 12, "hidden": 768}, **more)


def test_a_bare_shape_counts_what_the_same_config_counts() -> None:
    config = {"model_type": "llama", "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072,
              "vocab_size": 50304}  # fmt: skip
    assert describe_model(model=SHAPE).params_total == describe_model(model=config).params_total
