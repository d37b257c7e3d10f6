"""Parameters are exact, FLOPs follow one stated convention."""

import json
from pathlib import Path

import pytest

from skillserver.errors import BadRequest
from skillserver.estimate import models
from skillserver.estimate.architecture import Architecture, Latent, flops_per_token, parameters
from skillserver.estimate.hf_config import from_config

CASES = Path(__file__).parents[2].parent / "shared/cases/param_counts.json"
LLAMA_3_8B = {"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
              "intermediate_size": 14336, "vocab_size": 128256}  # fmt: skip
NORMS = {"rms": "rms", "ln": "layer", "none": "none"}
SANDWICH = ("gemma2", "gemma3_text")


@pytest.mark.parametrize("row", [row for row in models.known() if row.params_published], ids=lambda row: row.id)
def test_a_known_model_counts_to_its_published_size(row):
    assert parameters(models.shape_of(row.id)).total == row.params_published


def test_llama_3_counts_to_the_last_parameter():
    assert parameters(from_config(LLAMA_3_8B)).total == 8_030_261_248
    assert models.size_of(model="meta-llama/Meta-Llama-3-70B").total == 70_553_706_496


def test_tied_embeddings_are_counted_once_and_still_multiplied():
    tied = parameters(from_config(LLAMA_3_8B | {"tie_word_embeddings": True}))
    assert tied == (8_030_261_248 - 128256 * 4096, 8_030_261_248 - 128256 * 4096, 0)
    assert parameters(from_config(LLAMA_3_8B)).lookup == 128256 * 4096


def test_experts_are_counted_in_full_and_active():
    mixtral = parameters(models.shape_of("mixtral-8x7b"))
    assert (mixtral.total, mixtral.active) == (46_702_792_704, 12_879_925_248)
    deepseek = parameters(models.shape_of("deepseek-v3"))
    assert (deepseek.total, deepseek.active) == (671_026_419_200, 37_552_297_472)


def test_flops_are_6nd_plus_causal_attention():
    """Llama-3-8B at 8192 over 1T tokens: 51.5 ZF causal; 57.9 would be the full square."""
    size = models.size_of(model="llama-3-8b")
    assert flops_per_token(size.active, size.lookup, size.layers, size.attention_width, 8192) * 1e12 == pytest.approx(51.5e21, rel=0.002)


def test_blooms_logged_tflops_are_hardware_flops():
    """384 A100, 105.22 s for 2048 x 2048 tokens, logged 149.02: that is 4/3 of the model FLOPs in the full-square convention."""
    shape = models.shape_of("bloom")
    count = parameters(shape)
    full_square = 6 * (count.active - count.lookup) + 12 * shape.layers * shape.hidden * 2048
    model_tflops = full_square * 2048 * 2048 / 105.22 / 384 / 1e12
    assert model_tflops * 4 / 3 == pytest.approx(149.02, rel=0.006)  # the log does not recompute the head
    assert 6 * count.total * 2048 * 2048 / 105.22 / 384 / 1e12 == pytest.approx(109.8, rel=0.005)


def test_a_head_size_of_its_own_widens_attention():
    qwen = models.shape_of("qwen3-32b")
    assert (qwen.hidden, qwen.attention_width) == (5120, 8192)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"model_type": "mamba", "hidden_size": 768}, "params_total"),
        ({"hidden_size": 4096}, "without model_type"),
        ({"model_type": "llama"}, "hidden_size"),
        (LLAMA_3_8B | {"num_attention_heads": 33, "num_key_value_heads": 33}, "do not divide"),
        (LLAMA_3_8B | {"num_hidden_layers": "many"}, "num_hidden_layers"),
        (LLAMA_3_8B | {"num_hidden_layers": -3}, "num_hidden_layers"),
        ({"model_type": "gemma3", "text_config": {"hidden_size": 8}}, "cannot be read"),
    ],
)
def test_a_config_that_cannot_be_read_is_refused_with_what_to_pass(config, said):
    with pytest.raises(BadRequest) as refused:
        from_config(config)
    assert said in str(refused.value)


def test_legacy_keys_of_gpt2_bloom_and_opt_are_read():
    gpt2 = from_config({"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257, "n_positions": 1024, "n_inner": None})
    assert parameters(gpt2).total == 124_439_808
    opt = from_config({"model_type": "opt", "hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 32, "ffn_dim": 8192,
                       "vocab_size": 50272, "max_position_embeddings": 2048})  # fmt: skip
    assert parameters(opt).total == 1_315_758_080


def shape_of_case(case):
    config, moe = case["config"], case["config"].get("moe") or {}
    kind = case["architecture"]
    values = {
        "layers": config["num_hidden_layers"], "hidden": config["hidden_size"], "heads": config["num_attention_heads"],
        "kv_heads": config.get("num_key_value_heads") or config["num_attention_heads"], "ffn": config["intermediate_size"],
        "vocab": config["vocab_size"], "head_dim": config.get("head_dim") or 0, "tied": bool(config.get("tie_word_embeddings")),
        "gated": config.get("gated_mlp", True), "norm": NORMS[config.get("norm") or "rms"], "qkv_bias": bool(config.get("qkv_bias")),
        "out_bias": bool(config.get("attn_out_bias")), "mlp_bias": bool(config.get("mlp_bias")), "qk_norm": config.get("qk_norm") or "none",
        "positions": config.get("learned_positions") or 0, "norms_per_layer": 4 if kind in SANDWICH else 1 if kind == "phi" else 2,
        "head_bias": kind in ("phi", "phimoe"), "embedding_norm": kind == "bloom", "sinks": kind == "gpt_oss",
    }  # fmt: skip
    if moe:
        values |= {"experts": moe["E"], "experts_per_token": moe["k"], "expert_ffn": moe["ff"]}
        values |= {"expert_bias": bool(moe.get("expert_bias")), "router_bias": bool(moe.get("router_bias"))}
    if "n_routed_experts" in config:
        width = config["moe_intermediate_size"]
        values |= {"experts": config["n_routed_experts"], "experts_per_token": config["num_experts_per_tok"], "expert_ffn": width}
        values |= {"shared_ffn": width * config["n_shared_experts"], "dense_layers": config["first_k_dense_replace"]}
        values["router_bias"] = "V2" not in case["model"]
        values["latent"] = Latent(q_rank=config["q_lora_rank"], kv_rank=config["kv_lora_rank"], nope=config["qk_nope_head_dim"],
                                  rope=config["qk_rope_head_dim"], value=config["v_head_dim"])  # fmt: skip
    return Architecture(**values)


@pytest.mark.skipif(not CASES.is_file(), reason="the real cases are not here")
def test_every_shape_of_the_real_cases_counts_exactly():
    cases = json.loads(CASES.read_text())
    counted = {case["model"]: tuple(parameters(shape_of_case(case))[:2]) for case in cases}
    assert counted == {case["model"]: (case["params_formula"], case["params_active_formula"]) for case in cases}
