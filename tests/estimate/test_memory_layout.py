"""Layouts that cannot be are refused with the nearest that can, and advice leads to requests that fit."""

from typing import Any

import pytest

from skillserver.errors import BadRequest
from skillserver.estimate.memory_advice import ROOM, suggest
from skillserver.estimate.memory_plan import plan, shape_of

LLAMA = shape_of("llama-3-8b")


def refusal(model: str = "llama-3-8b", **settings: Any) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        plan(shape_of(model), **{"seq_len": 4096, **settings})
    return caught.value


@pytest.mark.parametrize(
    ("settings", "code", "valid"),
    [
        ({"sizes": {"tp": 3}}, "bad_tp", "4"),
        ({"sizes": {"pp": 64}}, "too_many_stages", "32"),
        ({"sizes": {"pp": 16}, "extra": {"virtual_stages": 4}}, "too_many_stages", "8"),
        ({"sizes": {"tp": 8, "n_accelerators": 12}}, "bad_layout", "n_accelerators=16"),
        ({"sizes": {"tp": 8, "dp": 4, "n_accelerators": 16}}, "bad_layout", "n_accelerators=16"),
        ({"sizes": {"ep": 8}}, "no_experts", None),
        ({"sizes": {"cp": 3}}, "bad_cp", "4"),
        ({"precision": "int3"}, "unknown_precision", "bf16"),
        ({"sharding": "zero4"}, "unknown_sharding", "zero3"),
        ({"recompute": "some"}, "unknown_activation_recompute", "selective"),
        ({"optimizer": "adamx"}, "unknown_optimizer", "adamw"),
        ({"peft": "dora2"}, "unknown_peft", "lora"),
        ({"lora_rank": 8}, "lora_rank_without_lora", None),
        ({"trainable": 1e12}, "too_many_trainable", None),
        ({"sequence_parallel": True}, "sequence_parallel_without_tp", None),
        ({"extra": {"ofload": "optimizer"}}, "bad_extra", "offload"),
        ({"extra": {"loss": "fast"}}, "bad_extra", "chunked"),
        ({"extra": {"virtual_stages": True}}, "bad_extra", None),
        ({"sharding": "zero1", "extra": {"offload": "parameters"}}, "bad_offload", None),
        ({"sharding": "hsdp", "sizes": {"dp": 8}, "extra": {"shard_size": 3}}, "bad_shard_size", "4"),
    ],
)
def test_what_cannot_be_is_refused_with_what_can(settings: dict[str, Any], code: str, valid: str | None) -> None:
    error = refusal(**settings)
    assert error.code == code
    assert valid is None or valid in error.valid
    assert error.next


def test_experts_need_gpus_and_a_divisor() -> None:
    assert refusal("mixtral-8x7b", sizes={"ep": 3, "dp": 3}).code == "bad_ep"
    assert refusal("mixtral-8x7b", sizes={"ep": 8, "dp": 4}).valid == ["1", "2", "4"]


def test_the_data_parallel_size_is_derived() -> None:
    made = plan(LLAMA, seq_len=4096, sizes={"tp": 2, "pp": 2, "cp": 2, "n_accelerators": 64})
    assert (made.dp, made.world, made.program) == (8, 64, "megatron")


def test_programs_differ_in_what_they_leave_on() -> None:
    assert plan(LLAMA, seq_len=4096, sharding="fsdp", sizes={"tp": 2, "dp": 2}).sequence_parallel
    assert not plan(LLAMA, seq_len=4096, sharding="zero1", sizes={"tp": 2, "dp": 2}).sequence_parallel
    assert plan(shape_of("mixtral-8x7b"), seq_len=4096, sharding="zero1", sizes={"tp": 2, "dp": 2}).sequence_parallel


@pytest.mark.parametrize(
    ("request_", "capacity"),
    [
        ({"seq_len": 8192, "sizes": {"n_accelerators": 8}}, 79),
        ({"seq_len": 4096, "micro_batch": 4, "sharding": "fsdp", "sizes": {"n_accelerators": 8}}, 79),
        ({"seq_len": 32768, "sharding": "fsdp", "sizes": {"n_accelerators": 8}}, 39),
        ({"seq_len": 8192, "sharding": "zero1", "sizes": {"n_accelerators": 64, "tp": 4, "pp": 2}}, 24),
    ],
)
def test_every_suggestion_fits_and_the_least_slowdown_comes_first(request_: dict[str, Any], capacity: float) -> None:
    found = suggest(LLAMA, request_, capacity)
    assert found
    assert all(change.device_gib <= ROOM * capacity and change.arguments and change.slowdown for change in found)


def test_nothing_is_suggested_where_nothing_helps() -> None:
    assert suggest(shape_of("llama-3.1-405b"), {"seq_len": 8192}, 24) == []


def test_a_single_change_is_preferred_to_several() -> None:
    request = {"seq_len": 4096, "micro_batch": 2, "sharding": "fsdp", "sizes": {"n_accelerators": 8}}
    found = suggest(LLAMA, request, 60)
    assert found[0].arguments == {"activation_recompute": "selective"}
    assert not any(";" in change.what for change in found)
