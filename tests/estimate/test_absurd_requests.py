"""Requests that no one should make: each is refused by its field, with the nearest that can be, and soon."""

from typing import Any

import pytest

from skillserver.errors import BadRequest
from skillserver.estimate.memory_layout import divisors, nearest
from skillserver.tools.layout import plan_parallelism
from skillserver.tools.memory import estimate_memory
from skillserver.tools.models import describe_model

MIXTRAL: dict[str, Any] = {"model_type": "mixtral", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
                           "intermediate_size": 14336, "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2}  # fmt: skip


@pytest.mark.parametrize("value", [10**9, 10**400, 1e300, 10**5000], ids=["1e9", "1e400", "1e300", "1e5000"])
@pytest.mark.parametrize("field", ["num_hidden_layers", "hidden_size", "num_local_experts"])
def test_a_size_that_no_model_has_is_refused_before_anything_is_counted(field: str, value: float) -> None:
    if field != "num_hidden_layers" and value == 10**9:
        pytest.skip("the largest size that is read")
    with pytest.raises(BadRequest, match=rf"bad_config: model.{field}: .* is more than"):
        describe_model(model=MIXTRAL | {field: value})


def test_a_size_of_zero_is_called_zero_and_not_absent() -> None:
    with pytest.raises(BadRequest, match=r"model.num_hidden_layers is 0\."):
        describe_model(model=MIXTRAL | {"num_hidden_layers": 0})


def test_a_home_that_does_not_exist_is_no_file() -> None:
    with pytest.raises(BadRequest, match="no_such_file"):
        describe_model(model="~nobody-of-this-name/model")


@pytest.mark.parametrize("whole", [1, 2, 36, 97, 4096, 720720])
def test_divisors_are_all_and_ascending(whole: int) -> None:
    assert divisors(whole) == [number for number in range(1, whole + 1) if whole % number == 0]
    assert nearest(divisors(whole), 1)[0] == 1


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"n_accelerators": 10**9, "sharding": "hsdp", "extra": {"shard_size": 3}}, "Valid: 1, 2, 4, 5, 8, 10."),
        ({"tp": 8, "dp": 3, "n_accelerators": 8}, "Valid: n_accelerators=8, n_accelerators=24. Next: pass dp=1, or another count"),
        ({"pp": 4, "n_accelerators": 4, "extra": {"virtual_stages": 99}}, "extra.virtual_stages=8 or less"),
    ],
)
def test_the_refusal_names_what_is_nearest_to_the_request(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(BadRequest) as refused:
        estimate_memory(model="llama-3-8b", seq_len=4096, **settings)
    assert said in str(refused.value)


def test_sharding_over_one_gpu_is_said_to_save_nothing() -> None:
    assert "fsdp over 1 GPU saves nothing: pass n_accelerators or dp" in estimate_memory(model="llama-3-8b", seq_len=4096, sharding="fsdp").warnings


@pytest.mark.parametrize("measured", [1979.0, 1e-9])
def test_a_matmul_rate_that_the_part_cannot_reach_is_refused(measured: float) -> None:
    with pytest.raises(BadRequest, match=r"bad_matmul_tflops.*peak of 989.4 of H100-80GB-SXM"):
        plan_parallelism(model="llama-3-8b", seq_len=8192, global_batch=64, n_accelerators=64, accelerator="h100", matmul_tflops=measured)


def test_a_network_rate_that_looks_like_bits_is_doubted() -> None:
    found = plan_parallelism(model="llama-3-8b", seq_len=8192, global_batch=64, n_accelerators=64, accelerator="h100", network=400)
    assert "if 400 Gb/s was meant, pass 50" in found.assumptions[0]
