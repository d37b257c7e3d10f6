"""A worker's payload joined with the catalogue, as the tools answer it."""

import pytest

from skillserver.contract import document
from skillserver.errors import BadRequest
from skillserver.procedures import judged_runs
from skillserver.tools.mamf import MamfResult, run_mamf

BEST = {"m": 2048, "n": 2048, "k": 13312, "tflops": 760.123456, "ci_low": 758.0, "ci_high": 761.0, "rounds": 7}
GPU = {"device": "cuda:0", "device_name": "NVIDIA H100 80GB HBM3", "backend": "cuda", "dtype": "bf16", "peak": None, "trials": 80, "correct": True,
       "best": BEST, "conditions": {"other_processes": [], "gpu": {"throttle_reasons": []}}, "method": {"warm_up_s": 30.0}}  # fmt: skip


def test_a_gpu_is_compared_with_paper_and_with_what_others_measured() -> None:
    told = judged_runs.matmul(GPU)
    assert {name: told[name] for name in ("peak_tflops", "share_of_peak", "published_tflops", "verdict", "findings")} == {
        "peak_tflops": 989.4, "share_of_peak": 0.7683, "published_tflops": 794.5, "verdict": "ok", "findings": [],
    }  # fmt: skip
    assert told["best"]["tflops"] == 760.1
    assert "untested" in told["assumptions"][0]


def test_an_unknown_gpu_has_no_share_and_says_why() -> None:
    told = judged_runs.matmul(GPU | {"device_name": "Frobnicator 9000"})
    assert (told["peak_tflops"], told["share_of_peak"], told["verdict"]) == (None, None, "unknown")
    assert "Frobnicator 9000" in told["peak_from"]


def test_a_wrong_product_is_critical_however_fast() -> None:
    told = judged_runs.matmul(GPU | {"correct": False, "check": {"largest_error": 9.0, "allowed": 0.1}})
    assert (told["verdict"], told["findings"][0]["code"]) == ("critical", "wrong_result")


def test_a_speed_above_the_peak_blames_the_reference() -> None:
    told = judged_runs.matmul(GPU | {"best": BEST | {"tflops": 1500.0, "ci_low": 1490.0, "ci_high": 1510.0}})
    assert told["verdict"] == "warning"
    assert "cannot be" in told["reason"]


def test_a_run_that_was_cut_short_is_not_called_ok() -> None:
    partial = {name: GPU[name] for name in ("device", "device_name", "backend", "dtype", "peak")} | {"best": BEST | {"rounds": 1}, "partial": True}
    told = judged_runs.matmul(partial)
    assert (told["verdict"], told["partial"]) == ("unknown", True)
    assert "ended early" in told["skipped"][0]


def test_a_search_that_ran_out_of_time_says_so() -> None:
    assert "longer budget_s" in judged_runs.matmul(GPU | {"ended_by": "time"})["skipped"][0]


def test_a_low_number_of_a_disturbed_run_is_not_held_against_the_part() -> None:
    slow = GPU | {"best": BEST | {"tflops": 300.0, "ci_low": 299.0, "ci_high": 301.0}}
    alone = judged_runs.matmul(slow)
    shared = judged_runs.matmul(slow | {"conditions": {"other_processes": ["4711 python"]}})
    assert [finding["code"] for finding in alone["findings"]] == ["matmul_off"]
    assert [finding["code"] for finding in shared["findings"]] == ["not_alone"]
    assert "lower bound and not judged" in shared["reason"]
    assert shared["verdict"] == "warning"


def test_the_answer_fits_the_model_of_the_tool_and_two_thousand_tokens() -> None:
    text = str(document(MamfResult.model_validate({"state": "done", **judged_runs.matmul(GPU)})))
    assert len(text) / 4 <= 2000


def test_bad_arguments_are_refused_before_anything_starts() -> None:
    with pytest.raises(BadRequest, match=r"dtype: 'fp4'.*unknown argument 'dtyp'"):
        run_mamf.sync(dtype="fp4", dtyp="fp8")
