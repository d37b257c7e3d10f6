"""A training loop of the tests that hangs: every rank enters an all-reduce but one, which waits for data that never comes."""

import os
import queue
import sys
from pathlib import Path

import torch
import torch.distributed as dist


def load(source):
    return source.get()


def step(rank, source):
    if rank == int(sys.argv[1]):
        load(source)
    dist.all_reduce(torch.ones(4))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    dist.all_reduce(torch.ones(1))
    Path(sys.argv[2], f"rank.{rank}").write_text(os.environ["SLURMD_NODENAME"])
    step(rank, queue.Queue())


main()
