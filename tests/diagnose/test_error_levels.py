"""A warning, a retry and program text are told from an error that ended something."""

import pytest

from skillserver.diagnose import explain, levels, reading

OOM = "[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
RETRY = "WARNING huggingface_hub: 429 Client Error: Too Many Requests for url: https://huggingface.co/api/models; Retrying in 2s"
BIND = "[W1119 13:00:00.1 socket.cpp:426] [c10d] The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use)."
MISSING = '\tMissing key(s) in state_dict: "head.weight".'
CLOSED = "node1:95:181 [1] NCCL INFO [Service thread] Connection closed by localRank 0"
EAGER = "W1119 13:00:00.1 convert_frame.py:862] torch._dynamo.exc.Unsupported: call_function; falling back to eager"
CUDNN = "[W Conv_v8.cpp:919] Warning: Plan failed: cudnnFinalizeDescriptor Failed cudnn_status: CUDNN_STATUS_NOT_SUPPORTED"
CONTROLLER = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
SUMMARY = """E1119 13:21:21.0 84933 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: 1) local_rank: 0 (pid: 33054)
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
  exitcode  : 1 (pid: 33054)"""


def told(*lines: str) -> list[tuple[str, str]]:
    return [(cause.id, cause.role) for cause in explain.explain(reading.of_text("\n".join(lines))).causes]


@pytest.mark.parametrize("warning", [RETRY, BIND, MISSING, EAGER, CUDNN, CONTROLLER])
def test_what_was_only_warned_of_comes_behind_the_error_that_followed(warning: str) -> None:
    assert told(warning, *["step 1"] * 100, OOM, SUMMARY)[0] == ("cuda_out_of_memory", "culprit")
    assert told(warning, "[rank0]: KeyError: 'pixel_values'", SUMMARY)[0] == ("python_exception", "culprit")


@pytest.mark.parametrize("warning", [RETRY, BIND, EAGER])
def test_a_warning_alone_is_told_as_one(warning: str) -> None:
    found = explain.explain(reading.of_text(warning))
    assert found.summary.startswith("Nothing in this log says what ended it; it only warns: ")
    assert found.causes[0].confidence < 0.3
    assert explain.WARNED_ONLY in found.causes[0].reading


def test_the_same_message_at_error_level_counts_in_full_after_many_warnings() -> None:
    cause = explain.explain(reading.of_text("\n".join([BIND] * 200 + [BIND.replace("[W", "[E")]))).causes[0]
    assert (cause.id, cause.confidence) == ("port_in_use", 0.9)
    assert cause.evidence[0].startswith("line 201: ")


def test_a_healthy_end_has_no_victims() -> None:
    assert told("step 100 loss 2.3", CLOSED, "urllib3 WARNING Retrying after ConnectionResetError(104, 'Connection reset by peer')", "finished") == []
    assert told(OOM, CLOSED) == [("cuda_out_of_memory", "culprit"), ("nccl_remote_error", "victim")]


@pytest.mark.parametrize("line", [
    '    raise RuntimeError("Trying to backward through the graph a second time")',
    '[rank0]:     raise ValueError(f"Default process group has not been initialized")',
    '        logger.error("No space left on device")',
    "    warnings.warn('Missing key(s) in state_dict: ' + str(missing))",
    '        """Raises RuntimeError: CUDA error: device-side assert triggered."""',
    '>>> print("CUDA error: misaligned address")',
    "#SBATCH --requeue  # JOB 1 ON n CANCELLED AT 2026-01-01T00:00:00 DUE TO PREEMPTION ***",
])  # fmt: skip
def test_program_text_is_no_hit(line: str) -> None:
    assert told(line) == []


@pytest.mark.parametrize("line", [
    "I am getting RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB",
    "NCCL_DEBUG=INFO torchrun train.py ends with CUDA out of memory. Tried to allocate 2.00 GiB",
    "INFO 06-30 13:53:10 started. ERROR 06-30 13:53:19 CUDA out of memory. Tried to allocate 2.00 GiB",
    "OSError('CUDA out of memory. Tried to allocate 2.00 GiB')",
])  # fmt: skip
def test_what_people_write_around_an_error_does_not_soften_it(line: str) -> None:
    start = line.index("CUDA out")
    assert not levels.mild(line, start) and not levels.quoted(line, start)
    assert told(line) == [("cuda_out_of_memory", "culprit")]


def test_an_exception_that_python_ignored_ended_nothing() -> None:
    ignored = ["Exception ignored in: <function X.__del__ at 0x7f>", "Traceback (most recent call last):", "AssertionError: can only test a child"]
    assert told(*ignored) == []
    assert told(*ignored, "Traceback (most recent call last):", "ZeroDivisionError: division by zero") == [("python_exception", "culprit")]


def test_an_exception_just_above_the_launchers_summary_is_the_cause() -> None:
    assert told("[rank0]: KeyError: 'pixel_values'", SUMMARY) == [("python_exception", "culprit"), ("launcher_child_failed", "victim")]


@pytest.mark.parametrize(("echo", "reason"), [
    ("RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `x(h)`", "RuntimeError: CUDA error: device-side assert triggered"),
    ("RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED", OOM),
    ("RuntimeError: CUDA error: unspecified launch failure", "[ 7063.2] NVRM: Xid (PCI:0000:44:00): 79, GPU has fallen off the bus."),
])  # fmt: skip
def test_a_library_that_only_noticed_follows_from_the_reason_wherever_that_stands(echo: str, reason: str) -> None:
    for lines in ((echo, reason), (reason, echo)):
        assert [role for _name, role in told(*lines)] == ["culprit", "victim"]
