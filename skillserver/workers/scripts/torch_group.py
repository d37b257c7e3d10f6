"""One rank of the last step of a connectivity check: torch's store, a group, one sum; each step told before it is tried.

    RANK=0 WORLD_SIZE=2 MASTER_ADDR=n1 MASTER_PORT=29500 python torch_group.py gloo 20

stdout is JSON lines: {"step": "store"} before a step, {"step": "done"} at the end. What hangs is told by the last line;
whoever started this ends it. Needs torch.
"""

import datetime
import json
import os
import sys

import protocol


def main():
    """Import, store, group, sum."""
    protocol.arm()
    backend, limit = sys.argv[1], datetime.timedelta(seconds=float(sys.argv[2]))
    say("import")
    import torch
    import torch.distributed as dist

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    on_gpu = torch.cuda.is_available() and dist.is_nccl_available()
    backend = ("nccl" if on_gpu else "gloo") if backend == "auto" else backend
    say("store", backend=backend, torch=torch.__version__)
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), world, rank == 0, timeout=limit)
    say("group")
    dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=limit)
    say("sum")
    device = torch.device("cuda", rank % torch.cuda.device_count()) if backend == "nccl" else torch.device("cpu")
    one = torch.ones(1, device=device)
    dist.all_reduce(one)
    if float(one) != world:
        raise ValueError("the sum of ones over {0} ranks is {1}".format(world, float(one)))
    say("done")
    sys.stdout.flush()
    os._exit(0)  # a destructor that waits for a rank which already went would spoil the answer


def say(step, **more):
    """One line."""
    sys.stdout.write(json.dumps(dict(more, step=step)) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
