"""The same run twice: seeds for every generator, deterministic kernels, and the generators' state in the checkpoint.

Ranks get different seeds for dropout and data, but must build the same weights: seed with the same number first, build the
model, then call `seed(base + rank)`. Deterministic kernels cost speed, so use them to debug, not to train. A result is
repeatable only on the same hardware, number of devices and library versions.
"""

import os
import random

import numpy
import torch


def seed(value: int) -> None:
    """Python, numpy and torch on every device."""
    random.seed(value)
    numpy.random.seed(value % 2**32)
    torch.manual_seed(value)  # CUDA and the others too


def deterministic() -> None:
    """Raise at an operation that has no deterministic kernel. Call before the first CUDA call."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(True)


def worker_init(number: int) -> None:
    """For DataLoader(worker_init_fn=...): torch seeds its own generator in a worker, numpy and random are yours."""
    value = torch.initial_seed() % 2**32
    random.seed(value)
    numpy.random.seed(value)


def state() -> dict[str, object]:
    """All generators, for the checkpoint of this rank."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {"python": random.getstate(), "numpy": numpy.random.get_state(), "torch": torch.get_rng_state(), "cuda": cuda}


def restore(kept: dict[str, object]) -> None:
    """Go on exactly where `state()` was taken. Loading it with torch.load needs weights_only=False: it is not only tensors."""
    random.setstate(kept["python"])
    numpy.random.set_state(kept["numpy"])
    torch.set_rng_state(kept["torch"])
    if kept["cuda"]:
        torch.cuda.set_rng_state_all(kept["cuda"])
