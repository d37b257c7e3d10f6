"""What the numbers of a serving benchmark are said to mean."""

from typing import Any

import pytest

from skillserver.procedures import judged_serving
from skillserver.procedures.judged_serving import Asked


def latency(p50: float, n: int = 20, width: float = 0.02) -> dict[str, Any]:
    return {"p50": p50, "p95": 1.2 * p50, "p99": 1.5 * p50, "ci_low": (1 - width / 2) * p50, "ci_high": (1 + width / 2) * p50, "coverage": 0.95,
            "n": n}  # fmt: skip


def level(concurrency: int, rate: float, share: float | None = None, refused: int = 0) -> dict[str, Any]:
    row = {"concurrency": concurrency, "n": 200, "refused": refused, "prompt_tokens": 512, "output_tokens": 64, "passes": 2, "output_tokens_s": rate,
           "output_tokens_s_each": [rate], "requests_s": rate / 64, "ttft_ms": latency(60), "tpot_ms": latency(9)}  # fmt: skip
    return row | ({} if share is None else {"share_in_target": share, "goodput_requests_s": share * rate / 64})


def payload(**more: Any) -> dict[str, Any]:
    told = {
        "base_url": "http://10.0.0.7:8000/v1", "model": "llama-3-8b", "api": "completions", "skipped": [], "refused": [], "dropped": [], "seed": 1,
        "by_prompt": [{"tokens": 128, "counted": 128, "ttft_ms": latency(20)}, {"tokens": 2048, "counted": 2048, "ttft_ms": latency(212)}],
        "by_output": [{"tokens": 64, "counted": 64, "tpot_ms": latency(8), "pieces": 64}],
        "levels": [level(1, 120), level(4, 400), level(8, 420)], "counts": {"reported": True, "prompts": True}, "targets": {},
        "prefix": {"prompt_tokens": 2048, "fresh_ttft_ms": latency(212), "shared_ttft_ms": latency(42), "ratio": latency(0.2), "cached_tokens": 1840},
        "conditions": {"other_cpu_cores": 2.0}, "worker": {"host": "n1"}, "partial": False,
    }  # fmt: skip
    return told | more


def codes(told: dict[str, Any]) -> list[str]:
    return [one["code"] for one in told["findings"]]


def test_without_a_target_the_numbers_are_told_and_nothing_is_called_good() -> None:
    told, metrics = judged_serving.answer(payload(), Asked())
    assert (told["verdict"], told["findings"], told["pays_up_to"]) == ("unknown", [], 4)
    assert told["prefill_tokens_s"] == 10_000
    assert told["by_prompt"][0] == {"tokens": 128, "counted": 128, "ttft_ms_p50": 20, "ttft_ms_ci_low": 19.8, "ttft_ms_ci_high": 20.2,
                                    "ttft_ms_p95": 24.0, "n": 20}  # fmt: skip
    assert told["by_concurrency"][0]["tpot_ms_p99"] == 13.5
    assert told["prefix_cache"]["effect"] == "a start that the server knows leaves 20% of TTFT"
    assert told["conditions"]["load_of_concurrency"] == {"prompt_tokens": 512, "output_tokens": 64}
    assert {name: metric.value for name, metric in metrics.items()} == {
        "prefill": 10_000,
        "decode alone": 125.0,
        **{f"output at concurrency {count}": rate for count, rate in ((1, 120), (4, 400), (8, 420))},
    }


@pytest.mark.parametrize(("shares", "verdict", "words"), [
    ((1.0, 0.97, 0.2), "ok", "97% of requests keep TTFT 200 ms and TPOT 10 ms at concurrency 4: 6.06 requests/s of goodput"),
    ((0.5, 0.1, 0.0), "warning", "no load keeps TTFT 200 ms and TPOT 10 ms for 95% of requests; at best 50% at concurrency 1"),
])  # fmt: skip
def test_targets_are_judged_by_the_highest_load_that_keeps_them(shares: tuple[float, ...], verdict: str, words: str) -> None:
    levels = [level(count, rate, share) for count, rate, share in zip((1, 4, 8), (120, 400, 420), shares, strict=True)]
    told, _ = judged_serving.answer(payload(levels=levels, targets={"ttft_ms": 200, "tpot_ms": 10}), Asked())
    assert (told["verdict"], told["reason"]) == (verdict, words)
    assert codes(told) == (["target_missed"] if verdict == "warning" else [])


def test_an_estimate_stands_beside_the_load_only_where_model_and_part_are_known() -> None:
    told, _ = judged_serving.answer(payload(), Asked("H100-80GB-SXM"))
    row = told["compared_with"][0]
    assert row["concurrency"] == 1
    assert row["tpot_ms"]["low"] < row["tpot_ms"]["expected"] < row["tpot_ms"]["high"]
    assert row["output_tokens_s"]["measured"] == 120
    unknown, _ = judged_serving.answer(payload(model="my-own"), Asked("H100-80GB-SXM"))
    assert unknown["compared_with"] == []
    assert unknown["skipped"][0].startswith("not compared with an estimate: ")
    told, _ = judged_serving.answer(payload(), Asked("no such part"))
    assert "'no such part' is not in the catalogue" in told["skipped"][0]


def test_a_token_faster_than_the_weights_can_be_read_is_explained() -> None:
    fast = [{"tokens": 64, "counted": 64, "tpot_ms": latency(2), "pieces": 64}]
    told, _ = judged_serving.answer(payload(by_output=fast), Asked("H100-80GB-SXM"))
    assert codes(told) == ["faster_than_memory"]
    assert "2 ms a token alone, and reading bf16 weights once takes 4." in told["findings"][0]["evidence"][0]


def test_what_went_wrong_under_load_short_answers_and_wide_intervals_are_findings() -> None:
    limited = [{"code": "rate_limited", "message": "http://x limits its requests (429)."}]
    short = [{"tokens": 64, "counted": 20.0, "tpot_ms": latency(8, width=0.6), "pieces": 20}]
    told, _ = judged_serving.answer(payload(levels=[level(8, 400, refused=50)], refused=limited, by_output=short), Asked())
    assert codes(told) == ["requests_failed", "unsteady", "short_answers"]
    assert told["findings"][0]["evidence"] == ["50 of 250 requests under load", "rate_limited: http://x limits its requests (429)."]


def test_a_busy_client_is_told_for_a_remote_server_and_no_finding_beside_a_local_one() -> None:
    assert codes(judged_serving.answer(payload(), Asked(loopback=False))[0]) == ["not_alone"]
    assert codes(judged_serving.answer(payload(), Asked(loopback=True))[0]) == []


def test_a_run_cut_short_before_any_load_still_has_an_answer() -> None:
    bare = {"base_url": "http://127.0.0.1:8000/v1", "model": "m", "partial": True, "by_prompt": [], "by_output": [], "levels": [], "prefix": None}
    told, metrics = judged_serving.answer(bare, Asked())
    assert (told["verdict"], told["partial"], told["prefix_cache"], metrics) == ("unknown", True, {}, {})
    assert told["skipped"][-1] == "the run was ended early"


def test_ttft_that_does_not_grow_with_the_prompt_gives_no_prefill_speed() -> None:
    flat = [{"tokens": size, "counted": size, "ttft_ms": latency(20)} for size in (128, 512)]
    assert judged_serving.prefill_tokens_s(flat) is None
    assert judged_serving.prefill_tokens_s(flat[:1]) is None
