"""A model of the same class as a large one, small enough for a test: every code path, random weights, about a megabyte.

    python tiny_model.py meta-llama/Llama-3.1-8B ./tiny-llama        # a hub name or a folder with config.json

Only sizes shrink: head counts keep their ratio, so that grouped-query attention stays what it is. The vocabulary is cut to
what the tiny tokenizer has (`tiny_tokenizer.py`).
"""

import sys

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig

SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "max_position_embeddings": 512, "head_dim": 16,
         "moe_intermediate_size": 32, "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4,
         "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1}  # fmt: skip


def shrunk(config: PretrainedConfig, vocabulary: int = 512) -> PretrainedConfig:
    """The same kind of configuration with small sizes. What the class does not know is left alone."""
    for name, value in SIZES.items():
        if getattr(config, name, None):
            setattr(config, name, value)
    heads = getattr(config, "num_attention_heads", 0)
    groups = max(1, heads // max(1, getattr(config, "num_key_value_heads", heads) or heads))
    config.num_attention_heads = 4
    if hasattr(config, "num_key_value_heads"):
        config.num_key_value_heads = max(1, 4 // groups)
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[: SIZES["num_hidden_layers"]]
    config.vocab_size = vocabulary
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        token = getattr(config, name, None)
        setattr(config, name, 0 if isinstance(token, int) and token >= vocabulary else token if isinstance(token, int) else None)
    return config


def make(source: str | PretrainedConfig, folder: str, vocabulary: int = 512, dtype: torch.dtype = torch.bfloat16) -> int:
    """Write the model; returns its number of parameters."""
    config = source if isinstance(source, PretrainedConfig) else AutoConfig.from_pretrained(source)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(shrunk(config, vocabulary)).to(dtype)
    model.save_pretrained(folder)
    return sum(weight.numel() for weight in model.parameters())


if __name__ == "__main__":
    print(f"{make(*sys.argv[1:3]):,} parameters")
