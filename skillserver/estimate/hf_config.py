"""A Hugging Face `config.json` (as a dict) -> Architecture, for the families of data/model_families.toml.

Knows how the classes of transformers name their sizes and what they assume when a key is absent. Does not download
anything, and refuses a model_type it has no row for: a guess about gates or tied embeddings is a silent error of
several percent. Of a multimodal config it reads the language part and says so.

>>> from_config({"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
...              "intermediate_size": 11008, "vocab_size": 32000}).tied
False
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from pydantic import Field, ValidationError

from skillserver import tables
from skillserver.errors import BadRequest
from skillserver.estimate import hf_fields, hf_layers
from skillserver.estimate.hf_fields import optional, size
from skillserver.estimate.shape import Architecture, Latent, Norm, QkNorm

TRAITS = ("gated", "norm", "norms_per_layer", "qkv_bias", "out_bias", "mlp_bias", "head_bias", "sinks", "qk_norm", "embedding_norm",
          "expert_bias", "router_bias", "shared_gate")  # fmt: skip
NEEDED = "hidden_size, num_hidden_layers, num_attention_heads, num_key_value_heads, intermediate_size, vocab_size, tie_word_embeddings"
PARTS_BESIDE_TEXT = ("vision_config", "audio_config")


class Family(tables.Record):
    """One row of model_families.toml."""

    model_types: list[str]
    gated: bool = True
    tied: bool = False
    norm: Norm = "rms"
    norms_per_layer: int = 2
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    head_bias: bool = False
    sinks: bool = False
    qk_norm: QkNorm = "none"
    learned_positions: bool = False
    extra_positions: int = 0
    embedding_norm: bool = False
    expert_bias: bool = False
    router_bias: bool = False
    shared_gate: bool = False
    own_head_dim: bool = True
    kv_heads: Literal["grouped", "all", "falcon"] = "grouped"
    ffn_keys: list[str] = Field(list(hf_fields.FFN))
    ffn_factor: int = 0
    windows: hf_layers.Windows = "none"
    window_every: int = 0
    experts: hf_layers.Experts = "none"
    mixer: hf_layers.Mixer = "attention"
    when: dict[str, dict[str, Any]] = Field({})
    defaults: dict[str, Any] = Field({})


class Reading(NamedTuple):
    """A config as understood: its shape, what part of the model that is, what was filled in."""

    kind: str
    shape: Architecture
    scope: str
    notes: list[str]


def model_types() -> list[str]:
    """Every model_type that can be read."""
    return sorted(kind for row in tables.load("model_families.toml", Family) for kind in row.model_types)


def from_config(config: Mapping[str, Any]) -> Architecture:
    """The shape of a config. Raises BadRequest for an unknown model_type, a missing or a senseless size."""
    return read(config).shape


def read(config: Mapping[str, Any]) -> Reading:
    """The shape and how the config was understood. Raises BadRequest as `from_config` does."""
    text = config.get("text_config")
    if isinstance(text, Mapping) and config.get("model_type") not in model_types():
        inner = read({"tie_word_embeddings": config["tie_word_embeddings"], **text} if "tie_word_embeddings" in config else text)
        beside = [name for name in PARTS_BESIDE_TEXT if config.get(name)]
        return inner._replace(scope=f"language part of {config.get('model_type')}; not counted: {', '.join(beside) or 'whatever stands beside it'}")
    kind, family = _family(config)
    full, notes = hf_fields.filled(hf_fields.flat(config), family.defaults)
    values = _sizes(full, family) | _traits(full, family) | _experts(full, family) | _latent(full)
    values |= hf_layers.windowed(full, family.windows, family.window_every) | hf_layers.state_space(full, family.mixer)
    if "num_nextn_predict_layers" in full:
        values["predict_layers"] = optional(full, ("num_nextn_predict_layers",)) or 0
    _divisible(values)
    try:
        return Reading(kind, Architecture(**values), "whole model", notes)
    except ValidationError as problem:
        error = problem.errors()[0]
        raise BadRequest("bad_config", f"model.{error['loc'][0]}: {error['input']!r}: {error['msg']}", next="correct the config") from problem


def _family(config: Mapping[str, Any]) -> tuple[str, Family]:
    kind = str(config.get("model_type", ""))
    for row in tables.load("model_families.toml", Family):
        if kind in row.model_types:
            return kind, row
    seen = f"model_type {kind!r}" if kind else "a config without model_type"
    raise BadRequest("unknown_model_type", f"model: {seen} cannot be read: its layers are not known and a guess would be wrong without a sign",
                     valid=model_types(), next=f"if its layers are those of a type listed, name that one and pass {NEEDED}; "
                     "else pass params_total (and params_active) or architecture to the tools that take them")  # fmt: skip


def _sizes(config: Mapping[str, Any], family: Family) -> dict[str, Any]:
    hidden = size(config, hf_fields.HIDDEN)
    values: dict[str, Any] = {
        "layers": size(config, hf_fields.LAYERS), "hidden": hidden, "vocab": size(config, hf_fields.VOCAB),
        "tied": bool(config.get("tie_word_embeddings", family.tied)), "embedding_width": optional(config, ("word_embed_proj_dim",)) or 0,
    }  # fmt: skip
    if family.mixer in ("mamba", "mamba2"):
        return values | {"heads": 0, "kv_heads": 0, "ffn": 0}
    heads = size(config, hf_fields.HEADS)
    values |= {"heads": heads, "kv_heads": _kv_heads(config, family, heads)}
    values["head_dim"] = (optional(config, ("head_dim", "kv_channels")) or 0) if family.own_head_dim and not config.get("kv_lora_rank") else 0
    return values | {"ffn": _ffn(config, family, hidden)}


def _kv_heads(config: Mapping[str, Any], family: Family, heads: int) -> int:
    if family.kv_heads == "falcon" and not config.get("new_decoder_architecture"):
        return 1 if config.get("multi_query", True) else heads
    if family.kv_heads == "all" or config.get("multi_query_attention") is False:
        return heads
    return optional(config, hf_fields.KV_HEADS) or heads


def _ffn(config: Mapping[str, Any], family: Family, hidden: int) -> int:
    """The width of a dense MLP. BLOOM and MPT have no key for it; Llama 4 names experts and dense layers apart."""
    return optional(config, family.ffn_keys) or (family.ffn_factor * hidden if family.ffn_factor else size(config, family.ffn_keys))


def _traits(config: Mapping[str, Any], family: Family) -> dict[str, Any]:
    values: dict[str, Any] = {name: getattr(family, name) for name in TRAITS}
    for switch, traits in family.when.items():
        if config.get(switch):
            values |= traits
    if family.learned_positions:
        values["positions"] = size(config, hf_fields.POSITIONS) + family.extra_positions
    if "do_layer_norm_before" in config:  # OPT-350M normalises after the block and has no last norm
        values["final_norm"] = bool(config["do_layer_norm_before"]) and not config.get("_remove_final_layer_norm")
    if family.kv_heads == "falcon":
        values["norms_per_layer"] = _falcon_norms(config)
    return values


def _falcon_norms(config: Mapping[str, Any]) -> int:
    """Sequential layers have two norms; parallel ones one, or two in the new decoder (Falcon-11B says one)."""
    if config.get("parallel_attn") is False:
        return 2
    return optional(config, ("num_ln_in_parallel_attn",)) or (2 if config.get("new_decoder_architecture") else 1)


def _experts(config: Mapping[str, Any], family: Family) -> dict[str, Any]:
    experts = optional(config, hf_fields.EXPERTS) if family.experts != "none" else None
    if not experts or (family.experts == "offset" and experts == 1):  # Jamba with one expert has a plain MLP
        return {}
    width = optional(config, ("moe_intermediate_size",)) or size(config, hf_fields.FFN)
    shared = optional(config, ("n_shared_experts",)) or (1 if family.experts == "listed" else 0)
    return {
        "experts": experts, "experts_per_token": size(config, hf_fields.PER_TOKEN), "expert_ffn": width,
        "shared_ffn": width * shared or optional(config, ("shared_expert_intermediate_size",)) or 0,
        "dense_layers": hf_layers.dense_layers(config, family.experts),
    }  # fmt: skip


def _latent(config: Mapping[str, Any]) -> dict[str, Any]:
    rank = optional(config, ("kv_lora_rank",))
    if not rank:
        return {}
    sizes = {name: size(config, (key,)) for name, key in (("nope", "qk_nope_head_dim"), ("rope", "qk_rope_head_dim"), ("value", "v_head_dim"))}
    return {"latent": Latent(q_rank=optional(config, ("q_lora_rank",)), kv_rank=rank, **sizes)}


def _divisible(values: Mapping[str, Any]) -> None:
    heads, kv_heads = values["heads"], values["kv_heads"]
    if heads and not values["head_dim"] and not values.get("latent") and values["hidden"] % heads:
        raise BadRequest(
            "bad_config", f"model: {heads} heads do not divide hidden_size {values['hidden']}", next="give head_dim, or correct the sizes"
        )
    if heads and heads % kv_heads:
        raise BadRequest("bad_config", f"model: {kv_heads} kv heads do not divide {heads} heads", next="correct num_key_value_heads")
    if values.get("experts_per_token", 0) > values.get("experts", 0):
        raise BadRequest("bad_config", f"model: {values['experts_per_token']} experts a token of {values['experts']}", next="correct one")
