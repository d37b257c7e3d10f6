"""Start N local ranks of a worker script with torch's own launcher, and never outlive the process that started this one.

    python launch.py --nproc 4 torch_all_reduce.py --settings-file settings.json

torchrun gives each rank a session of its own, so killing a process group leaves them behind: each rank checks, in
`protocol.start`, that this launcher still is its parent. SIGTERM is passed on by torch's agent, which then waits for
the ranks. The rendezvous binds to 127.0.0.1 with a port chosen by the kernel: no host name is resolved and no two runs
meet. With --nodes 2 or more it is one launcher a node under srun: the node's number is SLURM_NODEID, the first node listens at
MASTER_ADDR:MASTER_PORT, and ranks count node by node. Needs torch; knows nothing of skillserver.
"""

from __future__ import annotations

import argparse
import os
import sys

import protocol

LOOPBACK = "127.0.0.1"


def main(argv=None):
    """Arm the death signal, then hand over to torch.distributed.run, which exits with the ranks' status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nproc", type=int, required=True, help="ranks on this host")
    parser.add_argument("--nodes", type=int, default=0, help="hosts, each with such a launcher; 0 is this host alone")
    parser.add_argument("script", help="worker script")
    parser.add_argument("rest", nargs=argparse.REMAINDER, help="its arguments")
    parsed = parser.parse_args(argv)
    protocol.arm()
    os.environ["SKILLSERVER_PARENT"] = str(os.getpid())  # what the ranks must find as their parent
    from torch.distributed import run

    run.main([*launcher_arguments(parsed.nproc, parsed.nodes), parsed.script, *parsed.rest])


def launcher_arguments(nproc, nodes=0):
    """torchrun's arguments for one host or for this node of several, no restarts."""
    ranks = ["--nnodes", str(nodes or 1), "--nproc-per-node", str(nproc), "--max-restarts", "0", *log_folder()]
    if nodes:
        first = ["--master-addr", os.environ["MASTER_ADDR"], "--master-port", os.environ["MASTER_PORT"]]
        return [*ranks, "--node-rank", os.environ["SLURM_NODEID"], *first]
    return [*ranks, "--rdzv-backend", "c10d", "--rdzv-id", "skillserver", "--rdzv-endpoint", LOOPBACK + ":0", "--local-addr", LOOPBACK]


def log_folder():
    """torchrun's own files go into the run folder (its working directory); by default they pile up in the temporary folder."""
    return ["--log-dir", os.path.join(os.getcwd(), "torchrun")] if "SKILLSERVER_JOB" in os.environ else []  # noqa: PTH109, PTH118


if __name__ == "__main__":
    main(sys.argv[1:])
