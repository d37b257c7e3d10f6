"""Every model_type that transformers can build has exactly the parameters it has there, on default and random configs; what it computes and
caches is what a small model of it computes and caches."""

import importlib.util
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from skillserver.estimate import hf_config, kv_cache, matmuls
from skillserver.estimate.architecture import parameters, score_width

pytestmark = [
    pytest.mark.skipif(not all(map(importlib.util.find_spec, ("torch", "transformers"))), reason="transformers is not installed"),
    pytest.mark.slow,
]
REMOTE = {"yi", "kimi_k2", "chatglm", "RefinedWeb", "RefinedWebModel"}  # names of remote code, other names of the same layers
KINDS = sorted(set(hf_config.model_types()) - REMOTE)
RANDOM_A_KIND = 12
RUN_TOKENS = 12
ALL_EXPERTS = {"llama4_text", "phimoe"}  # these classes send every token through every expert on a CPU
STATE_SPACE = {"mamba", "mamba2", "jamba"}  # their CPU path writes the scan as products
NOT_RUN = {"dbrx", "gptj"}  # dbrx fails without clip_qkv, gptj with a head smaller than its rotary part
BIASES = ("attention_bias", "mlp_bias", "qkv_bias", "bias", "use_bias", "enable_bias", "lm_head_bias", "use_qkv_bias", "mamba_proj_bias",
          "mamba_conv_bias", "use_conv_bias", "qk_layernorm", "use_qk_norm", "use_parallel_residual", "layer_norm_elementwise_affine",
          "do_layer_norm_before", "new_decoder_architecture", "multi_query", "parallel_attn", "use_sliding_window")  # fmt: skip
CHOICES = {
    "num_experts": (4, 6), "num_local_experts": (4, 6), "n_routed_experts": (8, 16), "num_experts_per_tok": (1, 2), "moe_intermediate_size": (24, 40),
    "n_shared_experts": (1, 2), "shared_expert_intermediate_size": (40, 72), "first_k_dense_replace": (0, 1, 2), "decoder_sparse_step": (1, 2),
    "kv_lora_rank": (16, 32), "q_lora_rank": (None, 24), "qk_nope_head_dim": (8, 16), "qk_rope_head_dim": (8,), "v_head_dim": (8, 12),
    "n_group": (1,), "topk_group": (1,), "intermediate_size_mlp": (48, 96), "interleave_moe_layer_step": (1, 2), "ffn_dim": (96, 160),
    "n_inner": (None, 96),
    "sliding_window": (4, 8), "sliding_window_pattern": (2, 3), "max_window_layers": (1, 2), "state_size": (8, 16), "conv_kernel": (2, 4),
    "expand": (2,), "time_step_rank": ("auto", 6), "mamba_d_state": (8, 16), "mamba_d_conv": (2, 4), "mamba_expand": (1, 2),
    "mamba_dt_rank": ("auto", 6), "attn_layer_period": (2, 3), "attn_layer_offset": (0, 1), "expert_layer_period": (1, 2), "n_positions": (64, 128),
    "max_position_embeddings": (64, 128), "tie_word_embeddings": (True, False), "num_ln_in_parallel_attn": (None, 1, 2), "mlp_only_layers": ([], [0]),
    "expert_layer_offset": (0,), "no_rope_layer_interval": (2, 3), "attention_chunk_size": (16,),
}  # fmt: skip


def on_meta(configs):
    script = Path(__file__).with_name("transformers_models.py")
    done = subprocess.run([sys.executable, script], input=json.dumps(configs), capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def buildable(kind):
    """What a class cannot build from its own defaults: Nemotron has no kv heads, DBRX no rotary base."""
    given = {"nemotron": {"num_key_value_heads": 8}, "dbrx": {"attn_config": {"kv_n_heads": 8, "rope_theta": 1e4}},
             "deepseek_v2": {"num_experts_per_tok": 6}}  # fmt: skip
    return {"model_type": kind} | given.get(kind, {})


def drawn(whole, rng):
    """A small random config with the fields that the class has, and nothing else."""
    heads = rng.choice((4, 6, 8))
    head_dim = rng.choice((8, 16))
    sizes = {"hidden_size": heads * head_dim, "num_hidden_layers": rng.choice((4, 5, 6)), "num_attention_heads": heads,
             "num_key_value_heads": rng.choice([n for n in (1, 2, heads) if heads % n == 0]), "vocab_size": rng.choice((320, 500)),
             "intermediate_size": rng.choice((96, 160))}  # fmt: skip
    names = {"n_embd": "hidden_size", "d_model": "hidden_size", "n_layer": "num_hidden_layers", "n_layers": "num_hidden_layers",
             "n_head": "num_attention_heads", "n_heads": "num_attention_heads", "num_kv_heads": "num_key_value_heads"}  # fmt: skip
    given = {name: sizes[names.get(name, name)] for name in [*sizes, *names] if name in whole}
    given |= {name: rng.choice((True, False)) for name in BIASES if name in whole}
    given |= {name: rng.choice(values) for name, values in CHOICES.items() if name in whole}
    given["pad_token_id"] = 0  # the class default may lie beyond a small vocabulary
    kind = whole["model_type"]
    if kind == "mamba2":
        given |= {"num_heads": 2 * heads, "head_dim": head_dim, "n_groups": rng.choice((1, 2))}
    elif whole.get("head_dim") and "kv_lora_rank" not in whole:
        given["head_dim"] = rng.choice((head_dim, 2 * head_dim)) if kind != "cohere2" else head_dim
    if kind == "dbrx":
        given |= {"tie_word_embeddings": False, "attn_config": {"kv_n_heads": sizes["num_key_value_heads"], "rope_theta": 1e4},
                  "ffn_config": {"ffn_hidden_size": 96, "moe_num_experts": 4, "moe_top_k": rng.choice((1, 2))}}  # fmt: skip
        del given["num_key_value_heads"]
    if kind == "opt":
        given["word_embed_proj_dim"] = rng.choice((given["hidden_size"], 24))
    return {"model_type": kind} | given


@pytest.fixture(scope="module")
def defaults():
    return dict(zip(KINDS, on_meta([buildable(kind) for kind in KINDS]), strict=True))


@pytest.fixture(scope="module")
def random_models(defaults):
    rng = random.Random(7)
    given = [drawn(defaults[kind]["whole"], rng) for kind in KINDS for _ in range(RANDOM_A_KIND)]
    return list(zip(given, on_meta(given), strict=True))


def test_every_family_is_built(defaults):
    assert {kind: answer["problem"] for kind, answer in defaults.items() if "problem" in answer} == {}


@pytest.mark.parametrize("form", ["whole", "saved"])
def test_default_configs_have_exactly_the_parameters_of_the_built_model(defaults, form):
    counted = {kind: parameters(hf_config.from_config(answer[form])).total for kind, answer in defaults.items()}
    assert counted == {kind: answer["params"] + answer["router_bias"] for kind, answer in defaults.items()}


@pytest.mark.parametrize("form", ["given", "whole", "saved"])
def test_random_configs_have_exactly_the_parameters_of_the_built_model(random_models, form):
    assert set(KINDS) == {given["model_type"] for given, answer in random_models if "params" in answer}
    wrong = []
    for given, answer in random_models:
        if "problem" not in answer:
            total = parameters(hf_config.from_config(given if form == "given" else answer[form])).total
            if total != answer["params"] + answer["router_bias"]:
                wrong.append((total - answer["params"], given))
    assert wrong == []


def test_windows_follow_the_layer_types_of_the_class(random_models):
    for given, answer in random_models:
        types = answer.get("whole", {}).get("layer_types")
        if types and "jamba" not in given["model_type"]:
            windowed = sum(kind in ("sliding_attention", "chunked_attention") for kind in types)
            assert hf_config.from_config(given).windowed_layers == windowed, given


@pytest.fixture(scope="module")
def runs(defaults):
    rng = random.Random(3)
    given = [drawn(defaults[kind]["whole"], rng) for kind in KINDS if kind not in STATE_SPACE | NOT_RUN for _ in range(2)]
    given = [one | ({"num_key_value_heads": one["num_attention_heads"]} if "kv_lora_rank" in one else {}) for one in given]
    return [pair for pair in zip(given, on_meta([one | {"run_tokens": RUN_TOKENS} for one in given]), strict=True) if "problem" not in pair[1]]


def test_small_models_of_nearly_every_family_run(runs):
    assert {given["model_type"] for given, _ in runs} == set(KINDS) - STATE_SPACE - NOT_RUN


def test_the_matrix_products_and_scores_are_those_that_torch_counts(runs):
    wrong = []
    for given, answer in runs:
        shape = hf_config.from_config(given)
        products = sum(one.flops for one in matmuls.shapes(shape, RUN_TOKENS))
        scores = 4 * RUN_TOKENS**2 * score_width(shape) * shape.attention_layers  # an eager mask hides the other half, it does not save it
        if answer["flops"] != products + scores and given["model_type"] not in ALL_EXPERTS:
            wrong.append((answer["flops"] / (products + scores), given))
    assert wrong == []


def test_the_cache_is_what_the_model_keeps(runs):
    """transformers drops the token that is about to leave the window one step early: it keeps window - 1."""
    wrong = []
    for given, answer in runs:
        shape = hf_config.from_config(given)
        cache = kv_cache.cache_of(shape)
        if given["model_type"] == "falcon" and cache.kind != "MHA":
            continue  # the class copies shared heads before it caches them
        early = cache.per_token_layer * cache.windowed_layers * (not shape.chunked and cache.window <= RUN_TOKENS)
        if answer["cache"] not in (cache.per_sequence(RUN_TOKENS) - early, cache.expanded_per_token * RUN_TOKENS):
            wrong.append((answer["cache"], cache, given))
    assert wrong == []
