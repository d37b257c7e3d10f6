"""What happened first is the cause; who only lost a peer is a victim; hardware outranks software."""

import pytest

from skillserver.diagnose import explain, reading

OOM = "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
TIMEOUT = (
    "[rank{0}]:[E1122 06:4{1}:00.504052 ProcessGroupNCCL.cpp:616] [Rank {0}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=5, OpType=ALLREDUCE, NumelIn=9, NumelOut=9, Timeout(ms)=600000) ran for 600080 milliseconds before timing out."
)
PEER = "node1:95:181 [1] misc/socket.cc:538 NCCL WARN Net : Connection closed by remote peer node2<47861>"
REMOTE = "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely."
XID = "[  100.5] NVRM: Xid (PCI:0000:44:00): 79, GPU has fallen off the bus"
ILLEGAL = "RuntimeError: CUDA error: an illegal memory access was encountered"
SLURM_OOM = "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=191.batch cgroup."
SUMMARY = """torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
train.py FAILED
Failures:
[1]:
  time      : 2026-02-01_10:10:24
  host      : node7
  rank      : 1 (local_rank: 1)
  exitcode  : -15 (pid: 101)
Root Cause (first observed failure):
[0]:
  time      : 2026-02-01_10:10:23
  host      : node9
  rank      : 13 (local_rank: 5)
  exitcode  : -9 (pid: 100)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 100"""


def told(*lines: str) -> list[tuple[str, str]]:
    return [(cause.id, cause.role) for cause in explain.explain(reading.of_text("\n".join(lines))).causes]


def test_the_first_cause_wins_and_timeouts_after_it_are_victims() -> None:
    assert told(OOM, TIMEOUT.format(0, 5), REMOTE) == [
        ("cuda_out_of_memory", "culprit"),
        ("nccl_watchdog_timeout", "victim"),
        ("nccl_remote_error", "victim"),
    ]


def test_an_error_that_the_same_ranks_print_after_their_timeout_does_not_come_first() -> None:
    assert told(TIMEOUT.format(3, 5), OOM)[0] == ("nccl_watchdog_timeout", "culprit")


def test_an_error_of_a_rank_that_did_not_wait_is_what_the_others_waited_for() -> None:
    """Logs of ranks put one after the other: the line stands later, the error came first."""
    assert told(TIMEOUT.format(0, 5), TIMEOUT.format(1, 5), OOM) == [("cuda_out_of_memory", "culprit"), ("nccl_watchdog_timeout", "victim")]


def test_an_unknown_exception_of_the_missing_rank_explains_the_timeouts() -> None:
    assert told(TIMEOUT.format(0, 5), "[rank3]: KeyError: 'pixel_values'") == [("python_exception", "culprit"), ("nccl_watchdog_timeout", "victim")]


def test_an_unknown_exception_of_a_waiting_rank_does_not() -> None:
    assert told("[rank0]: KeyError: 'no cache yet'", *["working"] * 100, TIMEOUT.format(0, 5)) == [
        ("nccl_watchdog_timeout", "culprit"),
        ("python_exception", "culprit"),
    ]


def test_times_of_one_clock_decide_over_the_order_of_lines() -> None:
    late = "[rank1]:[E1122 06:49:00.1 x.cpp:1] RuntimeError: CUDA error: device-side assert triggered"
    early = "[rank2]:[E1122 06:41:00.1 x.cpp:1] RuntimeError: CUDA error: no kernel image is available for execution on the device"
    assert told(late, early)[0][0] == "no_kernel_image"


def test_hardware_outranks_software_wherever_it_stands() -> None:
    assert told(ILLEGAL, TIMEOUT.format(0, 5), XID)[0] == ("xid_hardware", "culprit")
    assert told(XID, ILLEGAL) == [("xid_hardware", "culprit"), ("illegal_memory_access", "victim")]


def test_only_victims_say_whose_log_to_open() -> None:
    found = explain.explain(reading.of_text(PEER))
    assert [(cause.id, cause.role) for cause in found.causes] == [("nccl_remote_error", "victim")]
    assert found.causes[0].confidence <= 0.3
    assert found.causes[0].reading == ["other end: node2; open its log"]
    assert found.summary.startswith("Only consequences")


def test_what_slurm_writes_at_the_end_happened_before_the_consequences() -> None:
    assert told(TIMEOUT.format(0, 5), REMOTE, SUMMARY, SLURM_OOM)[0] == ("slurm_oom", "culprit")


def test_the_launchers_summary_names_the_first_rank_and_host() -> None:
    found = explain.explain(reading.of_text(SUMMARY))
    assert (found.first_rank, found.first_rank_from) == (13, "torchrun's root cause on node9")
    assert [(cause.id, cause.role) for cause in found.causes] == [
        ("exit_sigkill", "culprit"),
        ("launcher_child_failed", "victim"),
        ("peer_terminated", "victim"),
    ]


def test_an_exit_code_follows_from_the_kernels_word() -> None:
    kernel = "[441280.8] Out of memory: Killed process 100 (python) total-vm:49978204kB, anon-rss:12918388kB"
    assert told(SUMMARY, kernel)[0] == ("kernel_oom", "culprit")


def test_a_system_error_follows_from_its_reason_wherever_that_stands() -> None:
    reason = "host:1:2 [0] include/shm.h:28 NCCL WARN Call to posix_fallocate failed : No space left on device"
    error = "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error."
    for lines in ((reason, error), (error, reason)):
        assert told(*lines) == [("shm_full", "culprit"), ("nccl_system_error", "victim")]


def test_virtual_interfaces_alone_are_no_cause() -> None:
    listed = "host:1:2 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0> [1]docker0:172.17.0.1<0>"
    assert told(listed) == []
    assert told(listed, OOM) == [("cuda_out_of_memory", "culprit")]
    assert told(listed, "host:1:2 [0] misc/socket.cc:533 NCCL WARN socketPollConnect: Connect to 172.17.0.1<5> returned 113(No route to host)") == [
        ("nccl_virtual_interface", "culprit"),
        ("nccl_connect_failed", "victim"),
    ]


def test_a_failed_name_look_up_alone_is_only_a_warning() -> None:
    assert (
        told("[W socket.cpp:601] [c10d] The IPv6 network addresses of (node1, 5) cannot be retrieved (gai error: -2 - Name or service not known).")
        == []
    )


def test_a_hang_that_ran_into_the_time_limit_is_the_cause_of_it() -> None:
    limit = "slurmstepd: error: *** JOB 1 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***"
    assert told(TIMEOUT.format(0, 5), limit)[0][0] == "nccl_watchdog_timeout"
    assert told(limit, REMOTE) == [("slurm_time_limit", "culprit"), ("nccl_remote_error", "victim")]


def test_a_second_restart_does_not_hide_the_first_failure() -> None:
    port = "RuntimeError: The server socket has failed to listen on any local network address. port: 29500, code: -98, name: EADDRINUSE"
    assert told(ILLEGAL, port)[0] == ("illegal_memory_access", "culprit")


def test_later_causes_and_victims_lose_confidence() -> None:
    first, second, victim = explain.explain(reading.of_text("\n".join([ILLEGAL, *["x"] * 9, OOM, REMOTE]))).causes
    assert first.confidence > second.confidence > victim.confidence
    assert (first.likelihood, victim.likelihood) == ("likely", "possible")


@pytest.mark.parametrize(
    "text",
    [
        "all is well",
        "loss_scale: nan",
        "401 Client Error: Unauthorized for url: https://api.example.org",
        "step 1 loss: 2.5 nan_count: 0",
        "number of nan iterations: 0 | grad norm: 1.0",
        "0 errors, 0 warnings",
    ],
)
def test_a_healthy_text_has_no_cause(text: str) -> None:
    assert told(text) == []


def test_evidence_is_cut_and_counted() -> None:
    lines = [f"[rank{rank}]: {'x' * 300} RuntimeError: CUDA error: device-side assert triggered {'y' * 300}" for rank in range(9)]
    cause = explain.explain(reading.of_text("\n".join(lines))).causes[0]
    assert [text.split(":")[0] for text in cause.evidence] == ["line 1", "line 2", "line 3", "and 6 more such lines"]
    assert all(len(text) < 230 and "device-side assert" in text for text in cause.evidence[:3])


def test_more_causes_than_can_be_shown_are_named() -> None:
    texts = [
        ILLEGAL, OOM, "CUDA error: invalid device ordinal", "OSError: [Errno 24] Too many open files", "Driver/library version mismatch",
        "OSError: [Errno 116] Stale file handle", "EADDRINUSE",
    ]  # fmt: skip
    found = explain.explain(reading.of_text("\n".join(texts)))
    assert len(found.causes) == explain.SHOWN_CAUSES
    assert found.left_out == ["stale_file_handle (line 6)", "port_in_use (line 7)"]
