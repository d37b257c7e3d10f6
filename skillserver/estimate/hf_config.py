"""A Hugging Face `config.json` (as a dict) -> Architecture, for the families of data/model_families.toml.

Knows how llama-like models, gpt2, gpt_neox, bloom, opt, falcon, deepseek and others name their sizes and what their
classes assume when a key is absent. Does not download anything, and refuses a model_type it has no row for: a guess
about gates or tied embeddings is a silent error of several percent.

>>> from_config({"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
...              "intermediate_size": 11008, "vocab_size": 32000}).tied
False
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import ValidationError

from skillserver import tables
from skillserver.errors import BadRequest
from skillserver.estimate.architecture import Architecture, Latent

LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
HIDDEN = ("hidden_size", "n_embd", "d_model", "dim")
HEADS = ("num_attention_heads", "n_head", "n_heads")
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num")
FFN = ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size")
POSITIONS = ("n_positions", "max_position_embeddings")
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
PER_TOKEN = ("num_experts_per_tok", "num_experts_per_token", "moe_top_k")


class Family(tables.Record):
    """One row of model_families.toml."""

    model_types: list[str]
    gated: bool = True
    tied: bool = False
    norm: Literal["rms", "layer", "none"] = "rms"
    norms_per_layer: int = 2
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    head_bias: bool = False
    sinks: bool = False
    qk_norm: Literal["none", "head", "full"] = "none"
    learned_positions: bool = False
    extra_positions: int = 0
    embedding_norm: bool = False
    expert_bias: bool = False
    router_bias: bool = False


def model_types() -> list[str]:
    """Every model_type that can be read."""
    return sorted(kind for row in tables.load("model_families.toml", Family) for kind in row.model_types)


def from_config(config: Mapping[str, Any]) -> Architecture:
    """The shape of a config. Raises BadRequest for an unknown model_type, a missing or a senseless size."""
    kind, family = _family(config)
    text = config.get("text_config") if isinstance(config.get("text_config"), Mapping) else None
    if text and not any(key in config for key in HIDDEN):
        raise BadRequest("nested_config", "model is a multimodal config; only its text part can be estimated", next="pass its text_config as model")
    hidden, heads = _size(config, HIDDEN), _size(config, HEADS)
    values: dict[str, Any] = {
        "layers": _size(config, LAYERS), "hidden": hidden, "heads": heads, "kv_heads": _kv_heads(config, kind, heads),
        "ffn": _ffn(config, kind, hidden), "vocab": _size(config, ("vocab_size", "padded_vocab_size")),
        "head_dim": _optional(config, ("head_dim", "kv_channels")) or 0, "tied": bool(config.get("tie_word_embeddings", family.tied)),
    }  # fmt: skip
    values |= _traits(config, kind, family) | _experts(config, kind) | _latent(config)
    _divisible(values)
    try:
        return Architecture(**values)
    except ValidationError as problem:
        error = problem.errors()[0]
        raise BadRequest("bad_config", f"model.{error['loc'][0]}: {error['input']!r}: {error['msg']}", next="correct the config") from problem


def _family(config: Mapping[str, Any]) -> tuple[str, Family]:
    kind = str(config.get("model_type", ""))
    for row in tables.load("model_families.toml", Family):
        if kind in row.model_types:
            return kind, row
    seen = f"model_type {kind!r}" if kind else "a config without model_type"
    raise BadRequest("unknown_model_type", f"model: {seen} cannot be read", valid=model_types(),
                     next="pass params_total (and params_active), or architecture with layers, hidden, heads, kv_heads, ffn, vocab")  # fmt: skip


def _optional(config: Mapping[str, Any], keys: tuple[str, ...]) -> int | None:
    """The first of `keys` that holds a positive integer; 0 and null count as absent."""
    for key in keys:
        value = config.get(key)
        if value is None or value == 0:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value) or value < 0:
            raise BadRequest("bad_config", f"model.{key}: {value!r} is not a positive whole number", next="correct the config")
        return int(value)
    return None


def _size(config: Mapping[str, Any], keys: tuple[str, ...]) -> int:
    value = _optional(config, keys)
    if value is None:
        raise BadRequest("bad_config", f"model: the config has no {keys[0]}", valid=keys, next="add it, or pass architecture or params_total")
    return value


def _kv_heads(config: Mapping[str, Any], kind: str, heads: int) -> int:
    if kind == "falcon" and not config.get("new_decoder_architecture"):
        return 1 if config.get("multi_query", True) else heads
    return _optional(config, KV_HEADS) or heads


def _ffn(config: Mapping[str, Any], kind: str, hidden: int) -> int:
    """OPT, Falcon, GPT-2, GPT-J and BLOOM mean four times the hidden size when they name none."""
    return _optional(config, FFN) or (4 * hidden if kind in ("gpt2", "gptj", "bloom", "falcon", "opt") else _size(config, FFN))


def _traits(config: Mapping[str, Any], kind: str, family: Family) -> dict[str, Any]:
    named = (
        "gated",
        "norm",
        "norms_per_layer",
        "qkv_bias",
        "out_bias",
        "mlp_bias",
        "head_bias",
        "sinks",
        "qk_norm",
        "embedding_norm",
        "expert_bias",
        "router_bias",
    )
    values: dict[str, Any] = {name: getattr(family, name) for name in named}
    if family.learned_positions:
        values["positions"] = _size(config, POSITIONS) + family.extra_positions
    if kind in ("llama", "mistral", "mixtral", "qwen3", "qwen3_moe", "olmo2", "olmo3", "granite", "smollm3", "deepseek_v3") and config.get(
        "attention_bias"
    ):
        values |= {"qkv_bias": True, "out_bias": True}
    if kind == "llama" and config.get("mlp_bias"):
        values["mlp_bias"] = True
    if kind == "stablelm":
        values["qkv_bias"] = bool(config.get("use_qkv_bias", False))
    if kind == "starcoder2" and config.get("use_bias") is False:
        values |= {"qkv_bias": False, "out_bias": False, "mlp_bias": False}
    if kind == "falcon" and (config.get("new_decoder_architecture") or config.get("parallel_attn") is False):
        values["norms_per_layer"] = 2
    if config.get("use_sliding_window", True) and config.get("sliding_window"):
        values["sliding_window"] = int(config["sliding_window"])
    return values


def _experts(config: Mapping[str, Any], kind: str) -> dict[str, Any]:
    experts = _optional(config, EXPERTS)
    if not experts:
        return {}
    width = _optional(config, ("moe_intermediate_size", "expert_ffn_hidden_size")) or _size(config, FFN)
    shared = _optional(config, ("n_shared_experts",))
    return {
        "experts": experts, "experts_per_token": _size(config, PER_TOKEN), "expert_ffn": width,
        "shared_ffn": shared * width if shared else _optional(config, ("shared_expert_intermediate_size",)) or 0,
        "shared_gate": kind == "qwen2_moe", "dense_layers": _dense_layers(config),
    }  # fmt: skip


def _dense_layers(config: Mapping[str, Any]) -> int:
    """Layers that keep a dense MLP: the first ones, or those that the step leaves out."""
    layers, step = _size(config, LAYERS), _optional(config, ("decoder_sparse_step", "moe_layer_freq")) or 1
    first = _optional(config, ("first_k_dense_replace",)) or 0
    return first + (layers - first) - (layers - first) // step


def _latent(config: Mapping[str, Any]) -> dict[str, Any]:
    rank = _optional(config, ("kv_lora_rank",))
    if not rank:
        return {}
    sizes = {name: _size(config, (key,)) for name, key in (("nope", "qk_nope_head_dim"), ("rope", "qk_rope_head_dim"), ("value", "v_head_dim"))}
    return {"latent": Latent(q_rank=_optional(config, ("q_lora_rank",)), kv_rank=rank, **sizes)}


def _divisible(values: Mapping[str, Any]) -> None:
    if not values["head_dim"] and not values.get("latent") and values["hidden"] % values["heads"]:
        raise BadRequest(
            "bad_config", f"model: {values['heads']} heads do not divide hidden_size {values['hidden']}", next="give head_dim, or correct the sizes"
        )
    if values["heads"] % values["kv_heads"]:
        raise BadRequest(
            "bad_config", f"model: {values['kv_heads']} kv heads do not divide {values['heads']} heads", next="correct num_key_value_heads"
        )
