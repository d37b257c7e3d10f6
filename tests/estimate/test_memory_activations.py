"""Activation formulas against real layers: bytes that torch keeps for backward, to within 1%."""

import pytest

from skillserver.estimate import memory_activations as activations
from skillserver.estimate.memory_plan import plan
from skillserver.estimate.shape import Architecture, Latent

torch = pytest.importorskip("torch")
layers = pytest.importorskip("memory_layers")

pytestmark = pytest.mark.torch
TOKENS, HIDDEN, HEADS, FFN = 128, 512, 8, 1408
LLAMA = Architecture(layers=1, hidden=HIDDEN, heads=HEADS, kv_heads=HEADS, ffn=FFN, vocab=1000)


def per_layer(shape: Architecture, **settings: object) -> float:
    """Bytes a layer of the formula."""
    made = plan(shape, seq_len=TOKENS, **settings)
    return activations.saved(made).on_one(made) * TOKENS


def rms(count: int = 2, *, fused: bool = False) -> tuple:
    return tuple(layers.RmsNorm(HIDDEN, fused=fused) for _ in range(count))


@pytest.mark.parametrize("kv_heads", [8, 2, 1])
def test_a_llama_layer_keeps_what_the_formula_says(kv_heads: int) -> None:
    block = layers.Block(rms(), layers.Attention(HIDDEN, HEADS, kv_heads, TOKENS), layers.GatedMlp(HIDDEN, FFN))
    shape = LLAMA.model_copy(update={"kv_heads": kv_heads})
    assert per_layer(shape) == pytest.approx(layers.kept_bytes(block, TOKENS, HIDDEN), rel=0.01)


def test_a_llama_layer_in_fp32() -> None:
    block = layers.Block(rms(), layers.Attention(HIDDEN, HEADS, HEADS, TOKENS), layers.GatedMlp(HIDDEN, FFN))
    assert per_layer(LLAMA, precision="fp32") == pytest.approx(layers.kept_bytes(block, TOKENS, HIDDEN, dtype=torch.float32), rel=0.01)


def test_fused_norms_and_gates_keep_less() -> None:
    block = layers.Block(rms(fused=True), layers.Attention(HIDDEN, HEADS, HEADS, TOKENS), layers.GatedMlp(HIDDEN, FFN, fused=True))
    fused = per_layer(LLAMA, extra={"fused_kernels": True})
    assert fused == pytest.approx(layers.kept_bytes(block, TOKENS, HIDDEN), rel=0.01)
    assert fused < 0.75 * per_layer(LLAMA)


def test_norms_on_queries_and_keys_are_counted() -> None:
    block = layers.Block(rms(), layers.Attention(HIDDEN, HEADS, 4, TOKENS, qk_norm=True), layers.GatedMlp(HIDDEN, FFN))
    shape = LLAMA.model_copy(update={"kv_heads": 4, "qk_norm": "head"})
    assert per_layer(shape) == pytest.approx(layers.kept_bytes(block, TOKENS, HIDDEN), rel=0.01)


def test_eager_attention_keeps_scores_of_every_pair() -> None:
    attention = layers.Attention(HIDDEN, HEADS, HEADS, TOKENS, eager=True, rotary=False)
    block = layers.Block(rms(), attention, layers.GatedMlp(HIDDEN, FFN))
    assert per_layer(LLAMA, extra={"attention": "eager"}) == pytest.approx(layers.kept_bytes(block, TOKENS, HIDDEN), rel=0.01)


def test_a_gpt_layer_with_layer_norm_and_gelu() -> None:
    norms = torch.nn.LayerNorm(HIDDEN), torch.nn.LayerNorm(HIDDEN)
    block = layers.Block(norms, layers.Attention(HIDDEN, HEADS, HEADS, TOKENS, rotary=False), layers.PlainMlp(HIDDEN, 4 * HIDDEN))
    shape = LLAMA.model_copy(update={"norm": "layer", "gated": False, "ffn": 4 * HIDDEN})
    assert per_layer(shape) == pytest.approx(layers.kept_bytes(block, TOKENS, HIDDEN), rel=0.01)


def test_latent_attention_builds_keys_for_every_head() -> None:
    mla = Latent(q_rank=192, kv_rank=128, nope=64, rope=32, value=64)
    attention = layers.LatentAttention(HIDDEN, HEADS, 192, 128, 64, 32, 64)
    shape = LLAMA.model_copy(update={"latent": mla})
    block = layers.Block(rms(), attention, layers.GatedMlp(HIDDEN, FFN))
    assert per_layer(shape) == pytest.approx(layers.kept_bytes(block, TOKENS, HIDDEN), rel=0.01)


@pytest.mark.parametrize("shared", [0, 256])
def test_experts_keep_a_copy_of_a_token_for_each_that_takes_it(shared: int) -> None:
    block = layers.Block(rms(), layers.Attention(HIDDEN, HEADS, HEADS, TOKENS), layers.Experts(HIDDEN, 704, 8, 2, shared))
    shape = LLAMA.model_copy(update={"experts": 8, "experts_per_token": 2, "expert_ffn": 704, "shared_ffn": shared})
    assert per_layer(shape) == pytest.approx(layers.kept_bytes(block, TOKENS, HIDDEN), rel=0.01)


def test_frozen_layers_keep_what_gradients_flow_through_and_inputs_of_adapters() -> None:
    block = layers.Block(rms(), layers.Attention(HIDDEN, HEADS, HEADS, TOKENS), layers.GatedMlp(HIDDEN, FFN)).requires_grad_(False)
    adapter = layers.kept_bytes(block, TOKENS, HIDDEN)
    assert per_layer(LLAMA, peft="adapter") == pytest.approx(adapter, rel=0.01)
    assert adapter < 0.85 * per_layer(LLAMA)


@pytest.mark.parametrize("every", [True, False])
def test_adapters_keep_a_dropped_out_copy_and_its_mask(every: bool) -> None:
    block = layers.Block(rms(), layers.Attention(HIDDEN, HEADS, HEADS, TOKENS), layers.GatedMlp(HIDDEN, FFN)).requires_grad_(False)
    targets = {block.mixer: ("q", "k", "v", "o"), block.mlp: ("gate", "up", "down")} if every else {block.mixer: ("q", "v")}
    for module, names in targets.items():
        for name in names:
            setattr(module, name, layers.Adapted(getattr(module, name), 1))
    formula = per_layer(LLAMA, peft="lora", lora_rank=1, trainable=None if every else 4 * HIDDEN)
    assert formula == pytest.approx(layers.kept_bytes(block, TOKENS, HIDDEN), rel=0.01)


def test_selective_recomputation_under_fsdp_keeps_every_second_matmul() -> None:
    block = layers.Block(rms(), layers.Attention(HIDDEN, HEADS, 2, TOKENS), layers.GatedMlp(HIDDEN, FFN)).to(torch.bfloat16)
    made = plan(LLAMA.model_copy(update={"kv_heads": 2}), seq_len=TOKENS, sharding="fsdp", recompute="selective")
    formula = activations.kept(made).on_one(made) * TOKENS
    assert formula == pytest.approx(TOKENS * HIDDEN * 2 + layers.every_second_matmul(block, TOKENS, HIDDEN), rel=0.01)
