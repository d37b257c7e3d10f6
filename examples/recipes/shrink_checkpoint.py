"""Make a checkpoint as small as what is in it: no optimiser, one dtype, and no storage larger than its tensor.

    python shrink_checkpoint.py big.pt small.pt --dtype bf16

torch.save writes the whole storage behind a tensor: a slice of a flat buffer (DeepSpeed, FSDP) drags the buffer along, and a 1 GB
shard can become 40 GB. `clone()` cuts the tie. Tensors that share one storage on purpose (tied embeddings) stay shared.
"""

import argparse
from typing import Any

import torch

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
DROPPED = ("optimizer", "optimizer_states", "optimizer_state_dict", "lr_scheduler", "lr_schedulers", "rng_state")


def shrunk(value: Any, dtype: torch.dtype | None = None, seen: dict[Any, torch.Tensor] | None = None) -> Any:
    """The same nested value with small tensors. Whole numbers keep their dtype; fp16 that would overflow raises ValueError."""
    seen = {} if seen is None else seen
    if isinstance(value, torch.Tensor):
        key = (value.data_ptr(), value.shape, value.stride(), value.dtype)
        if value.numel() == 0 or key not in seen:
            seen[key] = _small(value, dtype)
        return seen[key]
    if isinstance(value, dict):
        return {name: shrunk(inner, dtype, seen) for name, inner in value.items() if name not in DROPPED}
    if isinstance(value, list | tuple):
        return type(value)(shrunk(inner, dtype, seen) for inner in value)
    return value


def _small(value: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    if dtype is None or not value.is_floating_point():
        return value.detach().clone(memory_format=torch.contiguous_format)
    cast = value.detach().to(dtype, copy=True)
    if dtype == torch.float16 and torch.isfinite(value).all() and not torch.isfinite(cast).all():
        raise ValueError(f"a tensor of shape {tuple(value.shape)} holds {value.abs().max().item():g}, above the largest fp16 (65504); use bf16")
    return cast.contiguous()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("source")
    parser.add_argument("target")
    parser.add_argument("--dtype", choices=DTYPES, default=None)
    told = parser.parse_args()
    loaded = torch.load(told.source, map_location="cpu", mmap=True)
    torch.save(shrunk(loaded, DTYPES.get(told.dtype)), told.target)
