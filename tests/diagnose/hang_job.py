"""Small gloo jobs that really hang, run by hand or by the tests:    python hang_job.py FOLDER [NAME...]

Every rank is forked after one import of torch. At two moments each writes what an engineer would have: the Flight
Recorder (fr_rank_N) and the stacks of its threads (stack_rankN.txt) in FOLDER/NAME/first and second. Everything ends
within seconds: each rank is the head of a process group that is killed at the end.
"""

import contextlib
import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace
from torch.utils.data import DataLoader, Dataset

FIRST_S, SECOND_S, PATIENCE_S = 1.5, 3.0, 8.0
EARLY_S = 0.6  # for the rank that dies: its last dump lies before its death
WITH_STACKS = ("branch", "loader")
AT_ONCE = 3  # jobs; more ranks than that start too slowly on two cores


def ones(n: int = 1024) -> torch.Tensor:
    return torch.ones(n)


def steps(n: int) -> None:
    for _ in range(n):
        dist.all_reduce(ones())


def missing(rank: int) -> None:
    steps(3)
    if rank != 1:
        steps(1)


def skipped(rank: int) -> None:
    steps(3)
    if rank != 1:
        dist.broadcast(ones(), 0)
    steps(2)


def branch(rank: int) -> None:
    steps(3)
    if rank == 0:
        dist.broadcast(ones(), 0)
    else:
        steps(1)


def shape(rank: int) -> None:
    steps(3)
    time.sleep(0 if rank == 2 else 1.2)
    dist.all_reduce(ones(512 if rank == 2 else 1024))


class Stuck(Dataset):  # type: ignore[type-arg]
    """Its third sample never comes on one rank."""

    def __init__(self, stuck: bool) -> None:
        self.stuck = stuck

    def __len__(self) -> int:
        return 4

    def __getitem__(self, number: int) -> torch.Tensor:
        while self.stuck and number >= 2:
            time.sleep(1)
        return torch.ones(2)


def loader(rank: int) -> None:
    steps(3)
    for _batch in DataLoader(Stuck(rank == 1), batch_size=2, num_workers=1):
        steps(1)


def cycle(rank: int) -> None:
    left, right = dist.new_group([0, 1]), dist.new_group([0, 1])
    steps(2)
    if rank > 1:
        return
    for group in (left, right, *((left, right) if rank == 0 else (right, left))):
        dist.all_reduce(ones(), group=group)


def subgroup(rank: int) -> None:
    rows = [dist.new_group(ranks) for ranks in ([0, 2], [1, 3])]
    dist.barrier()
    if rank == 3:
        return
    if rank == 1:
        dist.all_reduce(ones(), group=rows[1])
    dist.barrier()


def exchange(rank: int) -> None:
    steps(2)
    if rank < 2:  # both receive before they send
        dist.recv(ones(), 1 - rank)
        dist.send(ones(), 1 - rank)


def straggler(rank: int) -> None:
    while True:
        if rank == 2:
            time.sleep(0.4)
        steps(1)


def healthy(_rank: int) -> None:
    steps(20)


JOBS = {"missing": (missing, 3), "skipped": (skipped, 3), "branch": (branch, 3), "shape": (shape, 3), "loader": (loader, 3), "cycle": (cycle, 3),
        "subgroup": (subgroup, 4), "straggler": (straggler, 3), "healthy": (healthy, 3), "exchange": (exchange, 3)}  # fmt: skip


def trace(name: str) -> bytes:
    """The dump; the first one with stacks loads symbols for a second and holds the GIL meanwhile."""
    return _dump_fr_trace(True, name in WITH_STACKS, False)


def write(folder: Path, moment: str, rank: int, world: int, last: bool) -> None:
    """Dump and stacks; after the last moment the rank ends."""
    place = folder / moment
    place.mkdir(exist_ok=True)
    with (place / f"stack_rank{rank}.txt").open("w") as file:
        faulthandler.dump_traceback(file=file, all_threads=True)
    (place / f".{rank}").write_bytes(trace(folder.name))
    (place / f".{rank}").rename(place / f"fr_rank_{rank}")
    if last:  # who leaves first would make the others fail, and their dumps different
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until and len(list(place.glob("fr_rank_*"))) < world:
            time.sleep(0.05)
        os._exit(0)


def rank_main(folder: Path, rank: int, world: int) -> None:
    os.setpgrp()
    signal.alarm(30)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    steps(1)
    trace(folder.name)
    early = folder.name == "shape" and rank == 2
    for after_s, moment, last in ((EARLY_S if early else FIRST_S, "first", False), (SECOND_S, "second", True)):
        timer = threading.Timer(after_s, write, (folder, moment, rank, world, last))
        timer.daemon = True
        timer.start()
    try:
        JOBS[folder.name][0](rank)
    except RuntimeError as problem:
        print(folder.name, rank, str(problem)[:100], file=sys.stderr)
    while True:
        time.sleep(1)


def start(folder: Path) -> Iterator[int]:
    """Fork the ranks of one job; their pids."""
    folder.mkdir(parents=True, exist_ok=True)
    world = JOBS[folder.name][1]
    for rank in range(world):
        pid = os.fork()
        if not pid:
            rank_main(folder, rank, world)
        yield pid


def main() -> None:
    torch.set_num_threads(1)
    out, names = Path(sys.argv[1]).resolve(), sys.argv[2:] or list(JOBS)
    for first in range(0, len(names), AT_ONCE):
        for pid in [pid for name in names[first : first + AT_ONCE] for pid in start(out / name)]:
            os.waitpid(pid, 0)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)  # data loader workers


if __name__ == "__main__":
    main()
