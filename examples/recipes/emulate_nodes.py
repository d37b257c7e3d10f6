"""Run a script as if on several nodes, on one machine: several launchers, each believing to be a node.

    python emulate_nodes.py --nodes 2 --per-node 1 -- train.py --config small.yaml

What it tests: rendezvous, LOCAL_RANK against RANK, sharding over nodes, one-rank-first, checkpoints of every rank, resuming with
another number of nodes. What it cannot show: network speed and faults. With enough GPUs each node gets its own
(CUDA_VISIBLE_DEVICES); with one GPU NCCL refuses two ranks, so use gloo and a tiny model.
"""

import argparse
import os
import socket
import subprocess
import sys


def launch(script: list[str], nodes: int, per_node: int, gpus: int = 0) -> int:
    """Start the launchers and wait; the first exit status that is not 0, else 0. One failing node ends the others."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    running = []
    for node in range(nodes):
        own = range(node * per_node, (node + 1) * per_node)
        visible = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, own))} if gpus >= nodes * per_node else {}
        argv = [sys.executable, "-m", "torch.distributed.run", f"--nnodes={nodes}", f"--nproc-per-node={per_node}", f"--node-rank={node}",
                "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=emulated", "--local-addr=127.0.0.1", *script]  # fmt: skip
        running.append(subprocess.Popen(argv, env={**os.environ, **visible, "EMULATED_NODE": str(node)}))
    statuses = [node.wait() for node in running]
    return next((status for status in statuses if status), 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--per-node", type=int, default=1)
    parser.add_argument("--gpus", type=int, default=0, help="of this machine")
    parser.add_argument("script", nargs="+")
    told = parser.parse_args()
    raise SystemExit(launch(told.script, told.nodes, told.per_node, told.gpus))
