"""What layers of Hugging Face models keep for backward is what the formula says, to within 1%."""

import importlib.util

import pytest

from skillserver.estimate import memory_activations as activations
from skillserver.estimate.memory_plan import plan, shape_of

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not all(map(importlib.util.find_spec, ("torch", "transformers"))), reason="transformers is not installed"),
]
TOKENS = 96
SIZES = {"hidden_size": 256, "intermediate_size": 704, "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 128, "head_dim": 32}
KINDS = {"llama": {}, "mistral": {"sliding_window": None}, "qwen2": {}, "qwen3": {}}


def kept(kind: str, layers: int) -> int:
    """Bytes that a model of so many layers keeps."""
    import memory_layers
    import torch
    import transformers

    config = transformers.AutoConfig.for_model(kind, **SIZES, **KINDS[kind], num_hidden_layers=layers, attn_implementation="sdpa")
    model = transformers.AutoModel.from_config(config, torch_dtype=torch.bfloat16)

    class Body(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, stream: torch.Tensor) -> torch.Tensor:
            return self.model(inputs_embeds=stream, use_cache=False).last_hidden_state

    return memory_layers.kept_bytes(Body(), TOKENS, SIZES["hidden_size"])


@pytest.mark.parametrize("kind", KINDS)
def test_one_more_layer_keeps_what_the_formula_says(kind: str) -> None:
    made = plan(shape_of({"model_type": kind, "num_hidden_layers": 4, **SIZES, **KINDS[kind]}), seq_len=TOKENS)
    assert activations.saved(made).on_one(made) * TOKENS == pytest.approx(kept(kind, 4) - kept(kind, 3), rel=0.01)
