"""What the workers measured on a node, judged: healthy, slow, wrong, failed, cut short. The runs are laid out as the workers send them."""

from typing import Any

import pytest

from skillserver.hardware.clock import Clock
from skillserver.hardware.numa import Layout, Node
from skillserver.procedures import node_host, node_judged
from skillserver.procedures.node_row import Told, folded

H100 = "NVIDIA H100 80GB HBM3"
GPUS = [f"cuda:{number}" for number in range(8)]


def rate(gb_s: float) -> dict[str, float]:
    return {"gb_s": gb_s, "p5_gb_s": gb_s, "p95_gb_s": gb_s, "n": 9}


def matmul_run(tflops: float, **more: Any) -> dict[str, Any]:
    best = {"m": 4096, "n": 4096, "k": 4096, "tflops": tflops, "ci_low": tflops, "ci_high": tflops, "rounds": 7}
    return {"result": {"device_name": H100, "backend": "cuda", "dtype": "bf16", "best": best, "correct": True, "peak": None, "conditions": {}} | more}


def bandwidth(**parts: Any) -> dict[str, Any]:
    return {"parts": {"bandwidth": {"runs": [{"result": {"devices": dict.fromkeys(GPUS, H100), "skipped": {}, "conditions": {}} | parts}]}}}


def told(part: str, payload: dict[str, Any], devices: list[str] = GPUS) -> Told:
    return node_judged.measured(payload, [part], devices)[0]


def matmuls(*runs: dict[str, Any]) -> Told:
    return told("matmul", {"parts": {"matmul": {"runs": list(runs)}}})


def test_eight_equal_gpus_near_the_published_speed_are_ok() -> None:
    found = matmuls(*(matmul_run(715 + number) for number in range(8)))
    assert (found.row.verdict, found.row.value, found.row.high, found.row.n, found.findings) == ("ok", 715, 722, 8, [])
    assert set(found.metrics) == {f"matmul bf16 {gpu}" for gpu in GPUS}


def test_a_gpu_slower_than_its_seven_equals_is_named() -> None:
    found = matmuls(*(matmul_run(715 + number) for number in range(7)), matmul_run(640))
    assert [(one.code, one.subject, one.severity) for one in found.findings] == [("device_outlier", "cuda:7", "warning")]


def test_a_node_whose_gpus_are_all_slow_is_a_warning_with_one_finding() -> None:
    found = matmuls(*(matmul_run(400 + number) for number in range(8)))
    assert [(one.code, one.count) for one in found.findings] == [("matmul_off", 8)]


def test_a_wrong_product_is_critical_whatever_the_speed() -> None:
    found = matmuls(*(matmul_run(720) for _ in range(7)), matmul_run(720, correct=False, check={"largest_error": 3.0, "allowed": 0.1}))
    assert (found.row.verdict, [(one.code, one.subject) for one in found.findings]) == ("critical", [("wrong_result", "cuda:7")])


def test_a_short_search_on_a_cpu_does_not_condemn_it() -> None:
    run = matmul_run(0.05, device_name="AMD EPYC", backend="cpu", dtype="fp32", peak={"tflops": 0.24, "from": "2 cores"})
    found = told("matmul", {"parts": {"matmul": {"runs": [run]}}}, ["cpu"])
    assert (found.row.verdict, found.findings) == ("unknown", [])


def test_one_gpu_whose_run_failed_is_a_warning_and_the_others_are_still_told() -> None:
    failure = {"code": "worker_exception", "message": "RuntimeError: CUDA error: uncorrectable ECC error encountered", "kind": "failed"}
    found = matmuls(*(matmul_run(720) for _ in range(7)), {"result": None, "failure": failure})
    assert (found.row.verdict, found.row.n, [(one.code, one.subject) for one in found.findings]) == ("warning", 7, [("part_failed", "cuda:7")])


def test_what_the_host_lacks_is_skipped_with_the_worker_s_words() -> None:
    failure = {"code": "no_room", "message": "/scratch has 3 MiB free", "kind": "not_here"}
    found = told("storage", {"parts": {"storage": {"runs": [{"result": None, "failure": failure}]}}})
    assert (found.row.verdict, found.row.note) == ("skipped", "/scratch has 3 MiB free")


def test_a_part_that_the_end_came_before_is_skipped() -> None:
    assert told("all_reduce", {"parts": {}, "skipped": {}, "partial": True}).row.note == "the run was ended before this part"


@pytest.mark.parametrize(("gb_s", "verdict"), [(2900, "ok"), (1500, "warning"), (9000, "warning")])
def test_memory_is_held_against_its_rate_on_paper(gb_s: float, verdict: str) -> None:
    one = {"cached": False, "correct": True, "triad": rate(gb_s)}
    assert told("memory", bandwidth(memory=dict.fromkeys(GPUS, one))).row.verdict == verdict


def test_memory_that_holds_other_numbers_is_critical() -> None:
    one = {"cached": False, "correct": True, "triad": rate(2900)}
    found = told("memory", bandwidth(memory=dict.fromkeys(GPUS, one) | {"cuda:2": one | {"correct": False}}))
    assert [(one.code, one.subject) for one in found.findings] == [("wrong_result", "cuda:2")]


def test_one_narrow_pcie_link_is_named_and_pageable_copies_are_not_judged() -> None:
    wide = {"correct": True, "to_device_pinned": rate(55), "to_host_pinned": rate(54), "to_device_pageable": rate(6), "to_host_pageable": rate(4)}
    found = told("transfers", bandwidth(transfers=dict.fromkeys(GPUS, wide)))
    assert (found.row.verdict, found.row.value, found.row.n) == ("ok", 54, 8)
    narrow = wide | {"to_device_pinned": rate(27)}
    found = told("transfers", bandwidth(transfers=dict.fromkeys(GPUS, wide) | {"cuda:5": narrow}))
    assert [(one.code, one.subject) for one in found.findings] == [("device_outlier", "cuda:5"), ("transfers_off", "transfers")]


def test_copies_between_gpus_are_held_against_nvlink_and_each_other() -> None:
    def rows(slow: float) -> list[dict[str, Any]]:
        pairs = [(one, other) for one in GPUS for other in GPUS if one != other]
        return [{"from": one, "to": other, "direct": True, "correct": True, "rate": rate(slow if one == "cuda:3" else 380)} for one, other in pairs]

    assert told("peers", bandwidth(peers=rows(380))).row.verdict == "ok"
    found = told("peers", bandwidth(peers=rows(190)))
    assert {one.code for one in found.findings} == {"device_outlier", "peers_off"}
    assert all(one.subject.startswith("cuda:3>") for one in found.findings if one.code == "device_outlier")


def test_bits_that_differ_are_critical_with_the_element() -> None:
    right = {"dtype": "bf16", "size": 4096, "rounds": 900, "wrong_rounds": 0, "wrong_elements": 0, "first": ""}
    wrong = right | {"wrong_rounds": 2, "wrong_elements": 3, "first": "element (1, 2) is 5.0 and must be 4.0"}
    assert told("correctness", bandwidth(correctness={"cuda:0": [right]})).row.verdict == "ok"
    found = told("correctness", bandwidth(correctness={"cuda:0": [right], "cuda:1": [wrong]}))
    assert (found.row.verdict, found.findings[0].subject, found.findings[0].action.split(":")[0]) == ("critical", "cuda:1", "drain_rma")
    assert "element (1, 2)" in found.findings[0].evidence[0]


def test_products_that_differ_everywhere_alike_do_not_condemn_every_gpu() -> None:
    alike = {"dtype": "bf16", "size": 4096, "rounds": 10, "wrong_rounds": 10, "wrong_elements": 70, "first": "element (0, 0) is 1.0 and must be 2.0"}
    found = told("correctness", bandwidth(correctness={gpu: [alike] for gpu in GPUS}))
    assert [(one.code, one.severity) for one in found.findings] == [("inexact_kernel", "warning")]
    one_off = bandwidth(correctness={gpu: [alike if gpu == "cuda:1" else alike | {"wrong_rounds": 0, "wrong_elements": 0}] for gpu in GPUS})
    assert [(one.code, one.subject) for one in told("correctness", one_off).findings] == [("wrong_result", "cuda:1")]


def test_gpus_that_torch_cannot_reach_are_a_finding_and_never_a_lack() -> None:
    failure = {"code": "no_such_device", "message": "torch sees no cuda device; it sees cpu", "kind": "not_here"}
    payload = {"parts": {"bandwidth": {"runs": [{"result": None, "failure": failure}]}}}
    every = [told(part, payload) for part in ("memory", "transfers", "peers", "correctness")]
    assert {one.row.verdict for one in every} == {"warning"}
    assert [(one.code, one.subject, one.count) for one in folded([find for one in every for find in one.findings])] == [
        ("part_failed", "bandwidth", 4)
    ]
    assert told("memory", payload, ["cpu"]).row.verdict == "skipped"


def test_no_round_of_products_is_no_proof() -> None:
    assert told("correctness", bandwidth(correctness={})).row.verdict == "unknown"


def test_storage_that_lies_is_critical_and_one_slow_stream_is_not_judged() -> None:
    sample = {"folder": "/scratch", "file_system": "nfs4", "bytes": 2**28, "block_bytes": 2**23, "write_gb_s": 0.2, "read_gb_s": 0.3,
              "past_page_cache": True, "wrong_blocks": 0}  # fmt: skip
    assert told("storage", {"parts": {"storage": {"runs": [{"result": sample}]}}}).row.verdict == "unknown"
    found = told("storage", {"parts": {"storage": {"runs": [{"result": sample | {"wrong_blocks": 1}}]}}})
    assert (found.row.verdict, found.findings[0].code) == ("critical", "storage_wrong")
    memory = sample | {"file_system": "tmpfs", "write_gb_s": 9.0, "read_gb_s": 9.0}
    assert told("storage", {"parts": {"storage": {"runs": [{"result": memory}]}}}).row.verdict == "unknown"


def test_a_socket_with_less_memory_is_a_warning_and_equal_ones_are_fine() -> None:
    assert node_host.layout(Layout([Node(0, 64, 503.5), Node(1, 64, 503.9)], {}, [0, 1])).row.verdict == "ok"
    found = node_host.layout(Layout([Node(0, 64, 503.5), Node(1, 64, 440.0)], {}, [0, 1]))
    assert (found.row.verdict, [one.code for one in found.findings]) == ("warning", ["memory_uneven"])


def test_gpus_on_a_socket_that_this_process_may_not_use_are_told_without_a_warning() -> None:
    found = node_host.layout(Layout([Node(0, 64, 503.5), Node(1, 64, 503.9)], {"0000:19:00.0": 0, "0000:9b:00.0": 1}, [0]))
    assert (found.row.verdict, found.findings[0].evidence) == ("ok", ["GPU 0000:9b:00.0: node 1, whose CPUs this process may not use"])


def test_the_clock_is_ok_when_kept_and_near_and_a_warning_when_far() -> None:
    assert node_host.clock(Clock(True, 2.0, 0.02, "chronyc")).row.verdict == "ok"
    assert node_host.clock(Clock(True, 2.0, 900.0, "chronyc")).row.verdict == "warning"
    assert node_host.clock(Clock()).row.verdict == "skipped"
    assert node_host.clock(Clock(False, source="kernel")).row.verdict in ("warning", "unknown")
