"""Mixtures of lines after public threads, shortened, some with a line of another kind added.

The cause expected is the one that the lines point to; not every thread ended with a confirmed one.
"""

import pytest

from skillserver.diagnose import explain, reading

TIMEOUT = (
    "[rank{0}]:[E1119 13:21:12.5 ProcessGroupNCCL.cpp:563] [Rank {0}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=15734, OpType={1}, NumelIn=220084533, NumelOut=220084533, Timeout(ms)=600000) ran for 600037 milliseconds before timing out."
)
MIXTURES = {
    "https://github.com/modelscope/FunASR/issues/2006": ("cuda_out_of_memory", [
        "[rank2]: torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 336.00 MiB. GPU  has a total capacity of 79.15 GiB",
        "w-0:15325:16199 [2] NCCL INFO [Service thread] Connection closed by localRank 2",
        TIMEOUT.format(5, "ALLREDUCE"), TIMEOUT.format(3, "ALLREDUCE"),
    ]),
    "https://github.com/NVIDIA/nccl/issues/1235": ("nccl_out_of_memory", [
        "ng30903:3063025:3066048 [0] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer ng30903-ib<51159>",
        "ng30903:3063025:3066048 [0] proxy.cc:1143 NCCL WARN Socket recv failed while polling for opId=0x55a51966cc80",
        "ng30903:3063028:3066152 [3] include/alloc.h:178 NCCL WARN Cuda failure 'out of memory'",
        "ncclInternalError: Internal check failed.",
    ]),
    "https://github.com/NVIDIA/nccl/issues/1284": ("nccl_watchdog_timeout", [
        TIMEOUT.format(0, "BROADCAST"), TIMEOUT.format(1, "BROADCAST"),
        "[rank0]: torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate more than 1EB memory.",
    ]),
    "https://github.com/deepspeedai/DeepSpeed/issues/3160": ("exit_sigkill", [
        "[2023-04-07 13:09:33,201] [INFO] [launch.py:318:sigkill_handler] Killing subprocess 80",
        "[2023-04-07 13:09:33,220] [ERROR] [launch.py:324:sigkill_handler] ['/usr/bin/python3', 'run_clm.py'] exits with return code = -9",
    ]),
    "https://github.com/modelscope/ms-swift/issues/5884": ("launcher_hangup", [
        "W0920 09:10:41.194000 84933 torch/distributed/elastic/agent/server/api.py:719] Received 1 death signal, shutting down workers",
        "W0920 09:10:41.195000 84933 torch/distributed/elastic/multiprocessing/api.py:900] Sending process 85005 closing signal SIGHUP",
        "node1:1:2 [0] misc/socket.cc:538 NCCL WARN Net : Connection closed by remote peer node2<47861>",
    ]),
    "https://github.com/OpenMOSS/MOSS/issues/237": ("launcher_hangup", [
        "torch.distributed.elastic.multiprocessing.api.SignalException: Process 2890585 got signal: 1",
        "During handling of the above exception, another exception occurred:",
        "OSError: [Errno 5] Input/output error",
    ]),
    "https://github.com/OpenRLHF/OpenRLHF/issues/970": ("ray_worker_died", [
        "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR. There are some potential root causes.",
        "(ActorModelRayActor pid=744, ip=10.1.59.27) " + TIMEOUT.format(9, "BROADCAST"),
    ]),
    "https://github.com/InternLM/lmdeploy/issues/3258": ("illegal_memory_access", [
        "[PG ID 0 PG GUID 0(default_pg) Rank 2] Process group watchdog thread terminated with exception: CUDA error: "
        "an illegal memory access was encountered",
        TIMEOUT.format(0, "ALLREDUCE"), "  exitcode  : -6 (pid: 33054)",
    ]),
    "https://github.com/NVIDIA/nccl/issues/969": ("collective_mismatch", [
        "h:1307367:1307586 [0] transport/net_ib.cc:1038 NCCL WARN NET/IB : req 0/1 tag 0 peer 10.10.23.6<58683> collective mismatch error, "
        "local size 496640 remote size 65536",
        "RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:1269, invalid usage, NCCL version 2.14.3",
    ]),
    "https://github.com/vllm-project/vllm/pull/6102": ("python_exception", [
        "WARNING 08-20 10:18:39 s.py:1141] Sequence group 147 is preempted by PreemptionMode.RECOMPUTE mode because there is not enough KV space.",
        "[rank0]: Traceback (most recent call last):", "[rank0]: KeyError: 'block_tables'",
    ]),
}  # fmt: skip


@pytest.mark.parametrize("source", MIXTURES)
def test_the_line_that_says_why_comes_first(source: str) -> None:
    name, lines = MIXTURES[source]
    causes = explain.explain(reading.of_text("\n".join(lines))).causes
    assert (causes[0].id, causes[0].role) == (name, "culprit")
