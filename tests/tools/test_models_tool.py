"""describe_model as an agent meets it."""

import json
from pathlib import Path

import pytest

from skillserver import permissions
from skillserver.contract import document
from skillserver.errors import BadRequest, NotHere
from skillserver.tools.estimate import estimate_gpu_hours
from skillserver.tools.models import describe_model

CONFIG = {"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
          "intermediate_size": 14336, "vocab_size": 128256}  # fmt: skip


def test_the_answer_has_sizes_cache_flops_and_products_in_few_tokens():
    result = document(describe_model(model="llama-3-8b", seq_len=8192))
    assert (result["params_total"], result["params_active"], result["params_published"]) == (8_030_261_248,) * 3
    assert result["kv_bytes_per_token"] == 131_072
    assert result["kv_cache"]["gib_all_sequences"] == 1.0
    assert sum(part["params"] for part in result["parts"]) == 8_030_261_248
    assert sum(product["flops_share"] for product in result["matmuls"]) == pytest.approx(1, abs=1e-3)
    assert len(json.dumps(result)) < 4 * 2000


def test_the_larger_answers_fit_too():
    assert len(json.dumps(document(describe_model(model="deepseek-v3", tp=8)))) < 4 * 2000
    assert len(json.dumps(document(describe_model(model="gpt2-xl", tp=8)))) < 4 * 2000


def test_it_agrees_with_the_hours_estimate():
    job = estimate_gpu_hours(model="llama-3-8b", tokens="1T", accelerator="h100", seq_len=8192)
    assert describe_model(model="llama-3-8b", seq_len=8192).flops_per_token == job.flops_per_token


def test_a_name_a_config_its_text_a_file_and_a_folder_agree(tmp_path: Path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(CONFIG))
    given = ["meta-llama/Meta-Llama-3-8B", CONFIG, json.dumps(CONFIG), str(file), str(tmp_path)]
    assert {describe_model(model=one).params_total for one in given} == {8_030_261_248}


def test_a_folder_with_a_known_name_is_read_from_the_disk(tmp_path: Path):
    folder = tmp_path / "llama-3-8b"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG | {"num_hidden_layers": 2}))
    assert describe_model(model=str(folder)).architecture["layers"] == 2


def test_a_file_that_may_not_be_read_is_not(tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    before = permissions.current()
    permissions.grant(permissions.TEXT_ONLY)
    try:
        with pytest.raises(NotHere):
            describe_model(model=str(tmp_path / "config.json"))
    finally:
        permissions.grant(before)


def test_cache_type_batch_and_ranks_scale_the_cache():
    plain, small = describe_model(model="llama-3-8b"), describe_model(model="llama-3-8b", kv_dtype="fp8", batch=4, tp=16)
    assert small.kv_bytes_per_token == plain.kv_bytes_per_token / 2
    assert small.kv_cache.gib_all_sequences == 2 * plain.kv_cache.gib_all_sequences
    assert small.kv_cache.bytes_per_token_a_rank == plain.kv_bytes_per_token / 2 / 8
    assert [one.code for one in small.findings] == ["kv_heads_copied"]


def test_what_is_not_in_the_numbers_is_said():
    deepseek = describe_model(model="deepseek-v3")
    assert deepseek.prediction_module_params == 11_610_068_224
    assert any("multi-token prediction" in said for said in deepseek.skipped)
    composite = describe_model(model={"model_type": "llava", "text_config": CONFIG, "vision_config": {"hidden_size": 1024}})
    assert composite.params_total == 8_030_261_248
    assert "language part of llava" in composite.scope
    assert "not counted: vision_config" in composite.skipped[0]
    assert any("cannot take them" in said for said in describe_model(model="gpt2", seq_len=2048).assumptions)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model": "llama-9-8b"}, "llama-3-8b"),
        ({"model": "/nowhere/config.json"}, "/nowhere/config.json"),
        ({"model": "{broken"}, "JSON"),
        ({"model": "[1]"}, "not among"),
        ({"model": {"model_type": "rwkv", "hidden_size": 8}}, "rwkv"),
        ({"model": {}}, "without model_type"),
        ({"model": CONFIG, "tp": 0}, "tp"),
        ({"model": CONFIG, "kv_dtype": "fp7"}, "kv_dtype"),
        ({"model": CONFIG, "seq_len": 0}, "seq_len"),
    ],
)
def test_a_request_that_cannot_be_met_is_refused_by_field(change, said):
    with pytest.raises(BadRequest) as refused:
        describe_model(**change)
    assert said in str(refused.value)
