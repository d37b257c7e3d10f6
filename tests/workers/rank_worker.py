"""A worker of the tests that runs as ranks: one all-reduce over gloo, then what `mode` says."""

import os

import protocol


def main():
    print("half a line of rank", os.environ.get("RANK"), end="", flush=True)
    settings = protocol.start()
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    total = torch.tensor([float(protocol.rank() + 1)])
    dist.all_reduce(total)
    if settings.get("mode") == "failure" and protocol.rank() == 1:
        protocol.failure("bad_rank", "this rank gives up")
    stop = torch.zeros(1)
    while settings.get("mode") == "hang":
        protocol.progress(1, 2, "ready", partial={"sum": total.item()})
        stop[0] = protocol.stopping()
        dist.all_reduce(stop, op=dist.ReduceOp.MAX)
        if stop.item():
            break
    protocol.result({"sum": total, "world_size": protocol.world_size(), "stopped": bool(stop.item())})
    dist.barrier()
    dist.destroy_process_group()


main()
