"""Cache bytes, FLOPs with and without the causal half, product shapes and what their sizes cost."""

import pytest

from skillserver.errors import BadRequest
from skillserver.estimate import hf_config, kv_cache, matmuls, models, shape_advice, work
from skillserver.estimate.architecture import prediction_module
from skillserver.estimate.shape import Architecture

MISTRAL = {"model_type": "mistral", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
           "intermediate_size": 14336, "vocab_size": 32000, "sliding_window": 4096}  # fmt: skip
JAMBA = {"model_type": "jamba", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
         "intermediate_size": 14336, "vocab_size": 65536, "num_experts": 16, "num_experts_per_tok": 2}  # fmt: skip


def cache(name_or_config):
    return kv_cache.cache_of(models.shape_of(name_or_config))


def codes(shape, tp=1):
    return [(one.code, one.subject) for one in shape_advice.advice(shape, tp, [])]


@pytest.mark.parametrize(
    ("name", "kind", "bytes_per_token"),
    [("llama-3-8b", "GQA", 131_072), ("llama-3-70b", "GQA", 327_680), ("llama-2-7b", "MHA", 524_288), ("falcon-7b", "MQA", 8_192),
     ("deepseek-v3", "MLA", 70_272), ("qwen3-32b", "GQA", 262_144)],
)  # fmt: skip
def test_bf16_cache_bytes_of_a_token(name, kind, bytes_per_token):
    found = cache(name)
    assert (found.kind, 2 * found.per_token) == (kind, bytes_per_token)


def test_a_window_bounds_the_cache_of_its_layers_only():
    mistral, gptoss = cache(MISTRAL), cache("gpt-oss-120b")
    assert mistral.per_sequence(4096) == mistral.per_sequence(100_000) == 4096 * 65_536
    assert mistral.per_token_past_window == 0
    assert (gptoss.full_layers, gptoss.windowed_layers, gptoss.window) == (18, 18, 128)
    assert gptoss.per_sequence(10_000) == 1024 * (18 * 10_000 + 18 * 128)


def test_a_hybrid_keeps_tokens_in_attention_layers_and_a_state_in_the_others():
    jamba = cache(JAMBA)
    assert (jamba.full_layers, jamba.per_token) == (4, 4 * 2 * 8 * 128)
    assert jamba.state == 28 * (8192 * 16 + 8192 * 3)
    mamba = cache({"model_type": "mamba", "hidden_size": 768, "num_hidden_layers": 24, "vocab_size": 50280})
    assert (mamba.kind, mamba.per_token, mamba.per_sequence(10), mamba.per_sequence(10**6)) == ("none", 0, mamba.state, mamba.state)


def test_latent_attention_is_compressed_and_its_expanded_form_is_said():
    deepseek = cache("deepseek-v3")
    assert deepseek.expanded_per_token == 61 * 128 * (128 + 64 + 128)


@pytest.mark.parametrize(("kv_heads", "tp", "share"), [(8, 1, 1), (8, 4, 1 / 4), (8, 16, 1 / 8), (1, 8, 1), (8, 6, None)])
def test_a_rank_keeps_at_least_one_head(kv_heads, tp, share):
    shape = Architecture(layers=2, hidden=1024, heads=16, kv_heads=kv_heads, ffn=4096, vocab=32000)
    assert kv_cache.share_of_a_rank(shape, tp) == share


def test_the_causal_half_is_half_of_the_square_and_training_three_times_forward():
    one = work.forward(models.shape_of("llama-3-8b"), 8192)
    assert one.scores_causal * 2 == one.scores_square == 4 * 32 * 4096 * 8192
    assert 3 * one.causal * 1e12 == pytest.approx(51.5e21, rel=0.002)
    assert 3 * one.square * 1e12 == pytest.approx(57.9e21, rel=0.002)


@pytest.mark.parametrize(("seq_len", "window", "chunked"), [(100, None, False), (100, 64, False), (100, 100, True), (100, 40, True), (7, 64, True)])
def test_the_mean_context_is_that_of_a_mask_counted_by_hand(seq_len, window, chunked):
    """A token sees half of itself, so that a full sequence gives s / 2; a window, once full, moves with it."""
    edge = window or seq_len
    seen = [row % edge + 0.5 if chunked else min(row + 0.5, edge) for row in range(seq_len)]
    assert work.mean_context(seq_len, window, chunked) == pytest.approx(sum(seen) / seq_len)


def test_the_stored_total_of_deepseek_v3_is_model_prediction_module_and_shared_tables():
    """684,531,386,000 on its page, of which 41.5 M are block scales: a 16,384th of the weights."""
    shape = models.shape_of("deepseek-v3")
    stored = 671_026_419_200 + prediction_module(shape) + 2 * shape.vocab * shape.hidden
    assert 684_531_386_000 - stored == pytest.approx(stored / 16_384, rel=0.01)


def test_tensor_parallelism_cuts_columns_then_rows_and_copies_few_heads():
    cut = {one.name: (one.m, one.n, one.k, one.times) for one in matmuls.shapes(models.shape_of("llama-3-8b"), 4096, tp=16)}
    assert cut == {"q_proj": (4096, 256, 4096, 32), "kv_proj": (4096, 256, 4096, 32), "o_proj": (4096, 4096, 256, 32),
                   "gate_up": (4096, 1792, 4096, 32), "down": (4096, 4096, 896, 32), "lm_head": (4096, 8016, 4096, 1)}  # fmt: skip


def test_products_of_one_rank_add_up_to_the_active_matrices():
    shape = models.shape_of("mixtral-8x7b")
    assert sum(one.flops for one in matmuls.shapes(shape, 1)) == pytest.approx(work.forward(shape, 1).matrices, rel=1e-4)


def test_sizes_are_judged():
    gpt2 = models.shape_of("gpt2-xl")
    assert codes(models.shape_of("llama-3-70b"), tp=8) == []
    assert codes(gpt2)[0] == ("vocabulary_not_aligned", "vocab")
    assert "50304" in shape_advice.advice(gpt2, 1, [])[0].action
    assert ("tp_does_not_divide", "heads") in codes(gpt2, tp=2)
    assert codes(models.shape_of("llama-3-8b"), tp=16) == [("kv_heads_copied", "kv_heads")]
    assert codes(models.shape_of("deepseek-v3"), tp=8) == [("latent_cache_copied", "kv cache")]
    assert codes(Architecture(layers=1, hidden=1020, heads=12, kv_heads=12, ffn=4096, vocab=32000))[0][0] == "head_size_not_aligned"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"layer_types": ["odd"] * 32}, "layer_types"),
        ({"model_type": "mixtral", "num_experts_per_tok": 9, "num_local_experts": 8}, "9 experts a token of 8"),
        ({"model_type": "mamba2", "num_heads": 3, "head_dim": 64}, "num_heads 3"),
        ({"model_type": "qwen3_moe", "mlp_only_layers": "all"}, "mlp_only_layers"),
        ({"model_type": "brand_new"}, "hidden_size, num_hidden_layers"),
    ],
)
def test_a_config_that_contradicts_itself_or_is_unknown_is_refused(change, said):
    with pytest.raises(BadRequest) as refused:
        hf_config.from_config(MISTRAL | change)
    assert said in str(refused.value)


def test_what_a_config_leaves_out_is_filled_from_the_class_and_said():
    reading = hf_config.read({name: value for name, value in MISTRAL.items() if name != "num_key_value_heads"})
    assert reading.shape.kv_heads == 8
    assert reading.notes == ["absent from the config, the defaults of the class used: num_key_value_heads 8"]
    assert hf_config.read(MISTRAL | {"num_key_value_heads": None}).shape.kv_heads == 32


def test_of_a_multimodal_config_the_language_part_is_read_and_said():
    """The text part of google/gemma-3-4b-pt, which leaves its heads and vocabulary to the class."""
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024}
    reading = hf_config.read({"model_type": "gemma3", "text_config": text, "vision_config": {"hidden_size": 1152}})
    assert (reading.shape.vocab, reading.shape.windowed_layers, reading.shape.tied) == (262_208, 29, True)
    assert reading.scope == "language part of gemma3; not counted: vision_config"
