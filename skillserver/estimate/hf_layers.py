"""Which layers of a config are windowed, hold experts or are state spaces.

Knows the rules that the configuration and modeling classes of transformers follow, `layer_types` first where it is
given. Returns counts, because sums need no order. Does not know sizes of attention.

>>> windowed({"num_hidden_layers": 26, "sliding_window": 512}, "pattern", 6)
{'windowed_layers': 22, 'sliding_window': 512}
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from skillserver.errors import BadRequest
from skillserver.estimate import hf_fields
from skillserver.estimate.shape import StateSpace

Windows = Literal["none", "all", "pattern", "late", "early", "without_rope", "chunks"]
Experts = Literal["none", "all", "step", "first", "listed", "offset"]
Mixer = Literal["attention", "mamba", "mamba2", "jamba"]
KNOWN_TYPES = {"full_attention", "sliding_attention", "chunked_attention", "linear_attention", "mamba"}


def windowed(config: Mapping[str, Any], rule: Windows, every: int) -> dict[str, Any]:
    """Fields of Architecture about windows; empty when no layer has one."""
    layers = hf_fields.size(config, hf_fields.LAYERS)
    key = "attention_chunk_size" if rule == "chunks" else "sliding_window"
    window = hf_fields.optional(config, (key,)) if config.get("use_sliding_window", True) else None
    types = _layer_types(config, layers)
    if not window or rule == "none":
        return {}
    if types is not None:
        count = sum(kind in ("sliding_attention", "chunked_attention") for kind in types)
    else:
        count = sum(_is_windowed(config, rule, every, number) for number in range(layers))
    found = {"windowed_layers": count, "sliding_window": window}
    return found | ({"chunked": True} if rule == "chunks" else {}) if count else {}


def _layer_types(config: Mapping[str, Any], layers: int) -> list[str] | None:
    types = config.get("layer_types")
    if types is None:
        return None
    if not isinstance(types, list) or len(types) != layers or not set(types) <= KNOWN_TYPES:
        raise BadRequest("bad_config", f"model.layer_types: {len(types) if isinstance(types, list) else types!r} entries for {layers} layers, "
                         "or a kind that is not known", valid=sorted(KNOWN_TYPES), next="correct the config")  # fmt: skip
    return types


def _is_windowed(config: Mapping[str, Any], rule: Windows, every: int, number: int) -> bool:
    """The rules of the classes; `number` counts from 0. In a pattern every n-th layer sees all."""
    if rule in ("late", "early"):
        border = int(config.get("max_window_layers") or 0)
        return number >= border if rule == "late" else number < border and number % 2 == 0
    if rule in ("without_rope", "chunks"):
        listed = config.get("no_rope_layers")
        step = hf_fields.optional(config, ("no_rope_layer_interval",)) or every
        rope = bool(listed[number]) if isinstance(listed, list) and number < len(listed) else (number + 1) % step != 0
        return rope if rule == "chunks" else not rope
    return rule == "all" or (number + 1) % (hf_fields.optional(config, ("sliding_window_pattern",)) or every) != 0


def dense_layers(config: Mapping[str, Any], rule: Experts) -> int:
    """Layers that keep a dense MLP in a mixture-of-experts model."""
    layers = hf_fields.size(config, hf_fields.LAYERS)
    return layers - sum(_has_experts(config, rule, number) for number in range(layers))


def _has_experts(config: Mapping[str, Any], rule: Experts, number: int) -> bool:
    if rule == "step":
        step = hf_fields.optional(config, ("decoder_sparse_step",)) or 1
        return number not in hf_fields.indices(config, "mlp_only_layers") and (number + 1) % step == 0
    if rule == "first":
        step = hf_fields.optional(config, ("moe_layer_freq",)) or 1
        return number >= (hf_fields.optional(config, ("first_k_dense_replace",)) or 0) and number % step == 0
    if rule == "listed":
        step = hf_fields.optional(config, ("interleave_moe_layer_step",)) or 1
        return number in hf_fields.indices(config, "moe_layers") if config.get("moe_layers") is not None else (number + 1) % step == 0
    if rule == "offset":
        return number % hf_fields.size(config, ("expert_layer_period",)) == int(config.get("expert_layer_offset") or 0)
    return rule == "all"


def state_space(config: Mapping[str, Any], mixer: Mixer) -> dict[str, Any]:
    """Fields of Architecture about state-space layers; empty for attention alone."""
    if mixer == "attention":
        return {}
    layers, hidden = hf_fields.size(config, hf_fields.LAYERS), hf_fields.size(config, hf_fields.HIDDEN)
    if mixer == "jamba":
        period, offset = hf_fields.size(config, ("attn_layer_period",)), int(config.get("attn_layer_offset") or 0)
        count = sum(number % period != offset for number in range(layers))
        names = {"state": "mamba_d_state", "kernel": "mamba_d_conv", "expand": "mamba_expand", "rank": "mamba_dt_rank",
                 "bias": "mamba_proj_bias", "conv_bias": "mamba_conv_bias"}  # fmt: skip
    else:
        count = layers
        names = {"state": "state_size", "kernel": "conv_kernel", "expand": "expand", "rank": "time_step_rank", "bias": "use_bias",
                 "conv_bias": "use_conv_bias"}  # fmt: skip
    named = hf_fields.optional(config, ("intermediate_size",)) if mixer == "mamba" else None  # Mamba alone lets it win over expand
    values: dict[str, Any] = {
        "kind": "mamba2" if mixer == "mamba2" else "mamba", "inner": named or int(float(config[names["expand"]]) * hidden),
        "state": hf_fields.size(config, (names["state"],)), "kernel": hf_fields.size(config, (names["kernel"],)),
        "bias": bool(config.get(names["bias"])), "conv_bias": bool(config.get(names["conv_bias"])), "inner_norms": mixer == "jamba",
    }  # fmt: skip
    if mixer == "mamba2":
        values |= _heads(config, values["inner"])
    else:
        rank = config.get(names["rank"])
        values["dt_rank"] = math.ceil(hidden / 16) if rank in (None, "auto") else hf_fields.size(config, (names["rank"],))
    return {"state_space": StateSpace(**values), "state_layers": count}


def _heads(config: Mapping[str, Any], inner: int) -> dict[str, int]:
    """Mamba-2's heads, which must fill the expanded width."""
    heads, head_dim = hf_fields.size(config, ("num_heads",)), hf_fields.size(config, ("head_dim",))
    if heads * head_dim != inner:
        raise BadRequest("bad_config", f"model: num_heads {heads} x head_dim {head_dim} is not expand x hidden_size = {inner}", next="correct one")
    return {"heads": heads, "groups": hf_fields.size(config, ("n_groups",))}
