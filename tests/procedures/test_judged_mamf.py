"""One device, several beside each other, the matmuls of a model: what is said of their numbers."""

from pathlib import Path
from typing import Any

import pytest

from skillserver.contract import document
from skillserver.procedures import judged_mamf
from skillserver.procedures.mamf_request import Asked, Request, build
from skillserver.tools.mamf import MamfResult

PLAIN = Request("", {})


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SKILLSERVER_HOME", str(tmp_path))
    return tmp_path


def gpu(place: int, tflops: float, **more: Any) -> dict[str, Any]:
    best = {"m": 2048, "n": 2048, "k": 13312, "tflops": tflops, "ci_low": 0.995 * tflops, "ci_high": 1.005 * tflops, "rounds": 7}
    conditions = {"other_processes": [], "gpu": {"throttle_reasons": [], "sm_clock_mhz": [1700.0, 1980.0], "power_w": 690.0}}
    return {"device": f"cuda:{place}", "device_name": "NVIDIA H100 80GB HBM3", "backend": "cuda", "dtype": "bf16", "layout": "NT", "peak": None,
            "trials": 80, "correct": True, "best": best, "conditions": conditions, "method": {"warm_up_s": 30.0},
            "trace": [0.9 * tflops, tflops]} | more  # fmt: skip


def node(*runs: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"runs": list(runs), "failed": [], "in_turn": False, "partial": False} | more


def codes(told: dict[str, Any]) -> list[str]:
    return [finding["code"] for finding in told["findings"]]


def test_a_slow_device_is_named_by_the_rule_that_is_said() -> None:
    told = judged_mamf.answer(node(*(gpu(place, 760.0 + place) for place in range(7)), gpu(7, 650.0)), PLAIN)
    slow = told["findings"][0]
    assert (slow["code"], slow["subject"], slow["evidence"]) == (
        "slow_device", "cuda:7", ["650 TFLOPS, -15% of the median 762.5 of 8 devices"],
    )  # fmt: skip
    assert [row["device"] for row in told["devices"] if row["odd"]] == ["cuda:7"]
    assert (told["verdict"], told["device"], told["best"]["tflops"]) == ("warning", "cuda:2", 762.0)
    assert any("3.5 robust deviations" in said for said in told["assumptions"])


def test_equal_devices_are_ok_and_within_five_percent_none_is_named() -> None:
    told = judged_mamf.answer(node(*(gpu(place, 760.0 + place) for place in range(7)), gpu(7, 745.0)), PLAIN)
    assert (told["verdict"], told["findings"]) == ("ok", [])
    assert "none stands out" in told["reason"]


def test_two_devices_that_differ_leave_nobody_blamed() -> None:
    told = judged_mamf.answer(node(gpu(0, 760.0), gpu(1, 600.0)), PLAIN)
    assert "devices_disagree" in codes(told)
    assert not any(row["odd"] for row in told["devices"])


def test_a_device_that_failed_is_critical_and_the_others_stand() -> None:
    failed = {"device": "cuda:1", "code": "worker_exception", "message": "CUDA error: uncorrectable ECC", "kind": "failed", "next": ""}
    told = judged_mamf.answer(node(gpu(0, 760.0), failed=[failed]), PLAIN)
    assert (told["verdict"], codes(told), told["findings"][0]["subject"]) == ("critical", ["device_failed"], "cuda:1")
    assert len(told["devices"]) == 1


def test_what_happened_to_several_is_said_once_with_all_named() -> None:
    hot = {"other_processes": [], "gpu": {"throttle_reasons": ["hw_thermal"]}}
    told = judged_mamf.answer(node(*(gpu(place, 760.0, conditions=hot) for place in range(2)), gpu(2, 760.0)), PLAIN)
    assert [(finding["code"], finding["subject"], finding["count"]) for finding in told["findings"]] == [("throttled", "cuda:0, cuda:1", 2)]


def test_a_winner_that_fell_when_measured_again_was_disturbed() -> None:
    told = judged_mamf.answer(gpu(0, 600.0, first_look=760.0), PLAIN)
    assert codes(told) == ["not_repeatable"]
    assert "lower bound and not judged" in told["reason"]
    assert codes(judged_mamf.answer(gpu(0, 760.0, first_look=780.0), PLAIN)) == []


def test_shapes_of_a_grid_without_time_are_counted() -> None:
    told = judged_mamf.answer(gpu(0, 760.0, wanted=400, ended_by="time"), PLAIN)
    assert told["skipped"] == ["320 of 400 shapes, for which there was no time; those timed were chosen at random"]


def test_a_search_is_kept_for_compare_and_the_best_of_ones_own_shapes_is_not(home: Path) -> None:
    kept = judged_mamf.answer(gpu(0, 760.0), PLAIN)["history_file"]
    assert '"matmul bf16 NT cuda:0"' in Path(kept).read_text()
    assert "history_file" not in judged_mamf.answer(gpu(0, 760.0, wanted=3), PLAIN)
    assert len(list((home / "history").iterdir())) == 1


def test_a_low_speed_of_ones_own_shapes_or_of_a_short_search_is_not_held_against_the_device() -> None:
    for more, words in (({"wanted": 3}, "chosen by the caller"), ({"ended_by": "time", "trials": 12}, "after 12 trials")):
        told = judged_mamf.answer(gpu(0, 400.0, **more), PLAIN)
        assert (told["verdict"], codes(told)) == ("unknown", [])
        assert words in told["reason"]
    assert codes(judged_mamf.answer(gpu(0, 400.0), PLAIN)) == ["matmul_off"]


def test_tunableop_that_was_off_is_said_for_amd() -> None:
    amd = gpu(0, 600.0, backend="rocm", device_name="AMD Instinct MI300X", layout="TN")
    amd["conditions"]["software"] = {"tunableop": "off"}
    said = " ".join(judged_mamf.answer(amd, PLAIN)["assumptions"])
    assert "PYTORCH_TUNABLEOP_ENABLED=1" in said and "published figures are of NT" in said


def test_the_trials_can_be_drawn() -> None:
    assert "bf16 on cuda:0: TFLOPS over trials" in judged_mamf.answer(gpu(0, 760.0), PLAIN, "text")["plot"]


def products(request: Request, speed: Any) -> dict[str, Any]:
    rows = []
    for row in request.settings["products"]:
        tflops = speed(row)
        us = 2e-6 * row["m"] * row["n"] * row["k"] / tflops
        rows.append(row | {"tflops": tflops, "ci_low": 0.99 * tflops, "ci_high": 1.01 * tflops, "us": us, "fill": 0.7})
    return gpu(0, 1.0) | {"products": rows, "rounds": 7}


def test_the_ceiling_is_the_speed_of_all_products_over_the_peak() -> None:
    request = build(Asked(model="llama-3-8b"))
    told = judged_mamf.answer(products(request, lambda row: 0.5 * 989.4), request)
    assert (told["mfu_ceiling"], told["mfu_ceiling_interval"], told["verdict"]) == (0.5, [0.495, 0.505], "ok")
    assert sum(row["time_share"] for row in told["matmuls"]) == pytest.approx(1.0, abs=1e-3)
    assert "attention" in told["skipped"][0]


def test_a_slow_product_weighs_by_its_time_and_is_named_with_a_cause() -> None:
    request = build(Asked(model="llama-3-8b"))
    told = judged_mamf.answer(products(request, lambda row: 350.0 if row["name"] == "down" else 700.0), request)
    flops = [2 * row["m"] * row["n"] * row["k"] * row["times"] * (2 if row["name"] == "down" else 1) for row in request.settings["products"]]
    plain = [2 * row["m"] * row["n"] * row["k"] * row["times"] for row in request.settings["products"]]
    assert told["matmul_tflops"] == pytest.approx(700 * sum(plain) / sum(flops), rel=1e-3)
    slow = next(finding for finding in told["findings"] if finding["code"] == "slow_products")
    assert slow["subject"] == "down"
    assert "the last wave leaves 30% of the SMs' time idle" in slow["evidence"][0]


def test_a_disturbed_ceiling_is_called_a_lower_bound() -> None:
    request = build(Asked(model="llama-3-8b"))
    payload = products(request, lambda row: 400.0)
    payload["conditions"]["other_processes"] = ["4711 python"]
    told = judged_mamf.answer(payload, request)
    assert told["verdict"] == "warning"
    assert "the true ceiling may be higher" in told["reason"]


def test_answers_of_eight_devices_and_of_a_model_fit_two_thousand_tokens() -> None:
    request = build(Asked(model="deepseek-v3"))
    for told in (judged_mamf.answer(node(*(gpu(place, 760.0) for place in range(8))), PLAIN),
                 judged_mamf.answer(products(request, lambda row: 400.0 + row["m"] % 97), request)):  # fmt: skip
        assert len(str(document(MamfResult.model_validate({"state": "done", **told})))) / 4 <= 2000
