"""Let one process do the work of downloading or preprocessing, and the others find it done.

    with one_first():                    # one process of each node: a cache on local disk
        tokenizer = load()
    with one_first(of="world"):          # one process of all: a cache on a shared file system
        dataset = prepare()

The others wait at a barrier, which has a time limit (NCCL: 10 minutes): give the group a longer one
(`init_process_group(timeout=timedelta(hours=2))`), or prepare in a job of its own.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist


@contextmanager
def one_first(of: str = "node") -> Iterator[bool]:
    """True in the process that goes first. `of`: node (LOCAL_RANK 0) or world (RANK 0). An exception frees the others too."""
    if not dist.is_initialized():
        yield True
        return
    first = int(os.environ["LOCAL_RANK" if of == "node" else "RANK"]) == 0
    if not first:
        dist.barrier()
    try:
        yield first
    finally:
        if first:
            dist.barrier()
