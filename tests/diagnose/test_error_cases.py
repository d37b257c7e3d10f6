"""Real errors from public threads, and real logs in which nothing is wrong. Skipped where the shared cases are not."""

import json
from pathlib import Path

import pytest

from skillserver.diagnose import explain, reading

CASES = Path(__file__).resolve().parents[3] / "shared" / "cases"
TOP = {
    "bloom_eval_hang_pyspy.txt": ("stack_data_wait", "workers"),
    "accelerate3250_fsdp_after_save.txt": ("collective_divergence", "save"),
    "megatron_init_duplicate_gpu.txt": ("nccl_duplicate_gpu", "set_device"),
    "nccl_shm_no_space.txt": ("shm_full", "--shm-size"),
    "nccl697_socket_ifname_virtual.txt": ("nccl_virtual_interface", "NCCL_SOCKET_IFNAME"),
    "tr1_ecc_uncorrectable.txt": ("ecc_uncorrectable", "drain"),
    "bloom_cuda_unknown_error.txt": ("cuda_unknown_error", "checkpoints"),
    "gloo_size_mismatch_abort.txt": ("gloo_size_mismatch", "shapes"),
}
pytestmark = pytest.mark.skipif(not CASES.is_dir(), reason="the shared cases are not here")


@pytest.mark.parametrize("name", TOP)
def test_the_cause_of_a_real_error_comes_first(name: str) -> None:
    found = explain.explain(reading.of_file(CASES / "error_logs" / name))
    cause, remedy = TOP[name]
    assert (found.causes[0].id, found.causes[0].role) == (cause, "culprit")
    assert remedy in " ".join(found.causes[0].remedy)
    assert [other.id for other in found.causes[1:] if other.role == "culprit"] == []


@pytest.mark.skipif(not CASES.is_dir(), reason="the shared cases are not here")
def test_every_shared_error_has_an_expectation_here() -> None:
    index = json.loads((CASES / "error_logs" / "index.json").read_text(encoding="utf-8"))
    assert {case["file"] for case in index} == set(TOP)


def test_training_logs_without_a_crash_are_not_blamed_on_anything() -> None:
    wrong = {}
    for path in sorted((CASES / "training_logs").glob("*.log")) + sorted((CASES / "training_logs").glob("*.txt")):
        causes = explain.explain(reading.of_file(path)).causes
        if causes and "ecc" not in path.name:
            wrong[path.name] = [(cause.id, cause.evidence[:1]) for cause in causes]
    assert wrong == {}


def test_healthy_gpu_captures_are_not_blamed_on_anything() -> None:
    index = json.loads((CASES / "gpu_captures" / "index.json").read_text(encoding="utf-8"))["samples"]
    healthy = [case["file"] for case in index if case["expected_overall"] == "ok"]
    wrong = {}
    for name in healthy:
        causes = explain.explain(reading.of_file(CASES / "gpu_captures" / name)).causes
        if any(cause.role == "culprit" and cause.confidence >= 0.6 for cause in causes):
            wrong[name] = [(cause.id, cause.confidence, cause.evidence[:1]) for cause in causes]
    assert healthy and wrong == {}
