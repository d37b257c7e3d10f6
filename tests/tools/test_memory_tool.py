"""estimate_memory as a user calls it."""

from typing import Any

import pytest

from skillserver.contract import document
from skillserver.errors import BadRequest
from skillserver.tools.memory import estimate_memory

BASE: dict[str, Any] = {"model": "llama-3-8b", "seq_len": 8192, "n_accelerators": 8, "sharding": "fsdp"}


def test_the_answer_holds_three_quantities_and_where_the_memory_goes() -> None:
    found = document(estimate_memory(**BASE, accelerator="H100-80GB-SXM", activation_recompute="full"))
    assert found["peak_gib"]["expected"] < found["reserved_gib"]["expected"] < found["device_gib"]["expected"]
    assert (found["fits"], found["fit"]) == (True, "clear")
    allocated = sum(line["gib"] for line in found["breakdown"] if line["counts_in"] == "allocated")
    assert allocated == pytest.approx(found["peak_gib"]["expected"], abs=0.02)
    assert all(line["formula"] and line["basis"] for line in found["breakdown"])
    assert found["sections"] and found["assumptions"] and found["next"]


def test_without_an_accelerator_nothing_is_judged() -> None:
    found = estimate_memory(**BASE)
    assert (found.fits, found.fit, found.capacity_gib, found.suggestions) == (None, "unknown", None, [])
    assert any(line.startswith("fits:") for line in found.skipped)


def test_a_suggestion_can_be_passed_back_and_then_it_fits() -> None:
    request = {**BASE, "micro_batch": 2, "accelerator": "A100-80GB-SXM"}
    first = estimate_memory(**request)
    assert first.fits is False
    for one in first.suggestions:
        assert estimate_memory(**{**request, **one.arguments}).fits


def test_a_close_call_is_said_to_be_one() -> None:
    found = estimate_memory(model="llama-3-70b", seq_len=4096, n_accelerators=64, tp=8, pp=2, sharding="zero1", accelerator="H100-80GB-SXM")
    assert found.fit == "close"
    assert any("too close to call" in line for line in found.warnings)


def test_bad_sizes_are_named_together() -> None:
    with pytest.raises(BadRequest) as caught:
        estimate_memory(model="llama-3-8b", seq_len=0, tp=-1)
    assert "seq_len" in caught.value.message and "tp" in caught.value.message


def test_counts_and_shapes_are_read_as_people_write_them() -> None:
    shape = {"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 32, "ffn": 11008, "vocab": 32000}
    lora = {"seq_len": 1304, "peft": "lora", "lora_rank": 8, "trainable_params": "4.2M"}
    assert estimate_memory(model=shape, **lora).peak_gib == estimate_memory(model="llama-2-7b", **lora).peak_gib


@pytest.mark.parametrize("model", ["mixtral-8x7b", "deepseek-v3", "gpt2", "gemma-2-9b", "qwen3-30b-a3b", "gpt-oss-20b", "opt-175b"])
def test_every_kind_of_layer_has_an_answer(model: str) -> None:
    assert estimate_memory(model=model, seq_len=2048, n_accelerators=64, sharding="fsdp").peak_gib.expected > 0
