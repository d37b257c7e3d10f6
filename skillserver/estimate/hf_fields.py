"""Reads single fields of a Hugging Face config: one meaning under its many names, whole numbers only.

Knows the names that families give to the same size and how a class fills what is absent; not what a model does with
a size. Nothing is guessed: an absent size with no class default is refused, a default that was used is listed.

>>> size({"n_embd": 768}, HIDDEN)
768
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from skillserver.errors import BadRequest

LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
HIDDEN = ("hidden_size", "n_embd", "d_model", "n_embed", "dim")
HEADS = ("num_attention_heads", "n_head", "n_heads")
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "kv_n_heads", "multi_query_group_num")
FFN = ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size")
VOCAB = ("vocab_size", "padded_vocab_size")
POSITIONS = ("n_positions", "max_position_embeddings")
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
PER_TOKEN = ("num_experts_per_tok", "num_experts_per_token", "moe_top_k")
LARGEST, DEEPEST = 10**9, 100_000  # a size, and layers, which are walked one by one; the largest of public models are 10^6 and 200
ALIASES = (LAYERS, HIDDEN, HEADS, KV_HEADS, FFN, VOCAB, POSITIONS, EXPERTS, PER_TOKEN)
WINDOW_KEYS = {"use_sliding_window", "sliding_window", "max_window_layers"}


def optional(config: Mapping[str, Any], keys: Sequence[str]) -> int | None:
    """The first of `keys` that holds a positive integer; 0 and null count as absent. Raises BadRequest for anything else."""
    for key in keys:
        value = config.get(key)
        if value is None or value == 0:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not value < math.inf or value != int(value) or value < 0:
            raise BadRequest("bad_config", f"model.{key}: {value!r} is not a positive whole number", next="correct the config")
        if value > (most := DEEPEST if key in LAYERS else LARGEST):
            raise BadRequest(
                "bad_config", f"model.{key}: {value if value < 10**18 else 'a number beyond 1e18'} is more than {most:,}", next="correct the config"
            )
        return int(value)
    return None


def size(config: Mapping[str, Any], keys: Sequence[str]) -> int:
    """The same, required: BadRequest naming the field that is missing and its other names."""
    value = optional(config, keys)
    if value is None:
        zero = [key for key in keys if config.get(key) == 0]
        said = f"model.{zero[0]} is 0" if zero else f"model: the config has no {keys[0]}"
        raise BadRequest("bad_config", said, valid=keys, next=f"{'correct' if zero else 'add'} it, or pass architecture or params_total")
    return value


def indices(config: Mapping[str, Any], key: str) -> set[int]:
    """A list of layer numbers, such as `mlp_only_layers`. Raises BadRequest."""
    value = config.get(key) or []
    if not isinstance(value, list) or not all(isinstance(one, int) for one in value):
        raise BadRequest("bad_config", f"model.{key}: {str(value)[:60]!r} is not a list of layer numbers", next="correct the config")
    return set(value)


def filled(config: Mapping[str, Any], defaults: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The config with the class's defaults for absent keys, and what was filled in; an explicit null stays null."""
    same = {name: group for group in ALIASES for name in group}
    absent = {key: value for key, value in defaults.items() if not any(name in config for name in same.get(key, (key,)))}
    full = {**absent, **config}
    hidden = WINDOW_KEYS if not full.get("use_sliding_window", True) else set()
    said = ", ".join(f"{key} {value}" for key, value in absent.items() if key not in hidden)
    return full, [f"absent from the config, the defaults of the class used: {said}"] if said else []


def flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """MPT and DBRX nest sizes in `attn_config` and `ffn_config`: lift those that the top level does not name."""
    lifted = dict(config)
    for nested in ("attn_config", "ffn_config"):
        inner = config.get(nested)
        for key in ("kv_n_heads", "ffn_hidden_size", "moe_num_experts", "moe_top_k"):
            if isinstance(inner, Mapping) and key in inner and lifted.get(key) is None:
                lifted[key] = inner[key]
    return lifted
