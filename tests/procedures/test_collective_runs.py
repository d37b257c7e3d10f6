"""A collective worker's payload as run_all_reduce_bench answers it, under the same rule as others' outputs."""

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "measure"))
from benchmark_texts import nccl, row

from skillserver.contract import document
from skillserver.errors import BadRequest, NotHere
from skillserver.procedures import collective_runs
from skillserver.procedures.judged_outputs import judge_text
from skillserver.procedures.measured_setting import Hints
from skillserver.tools.collectives import CollectiveResult, run_all_reduce_bench

ROW = {"bytes": 2**34, "time_us": 1.0, "algbw_gb_s": 274.0, "busbw_gb_s": 479.5, "iterations": 50, "drift": 0.0, "stalls": 0, "correct": True,
       "max_us": 2.0, "slowest_rank": None, "slowest_rank_us": None}  # fmt: skip
NODE = {"collective": "all_reduce", "dtype": "fp32", "nproc": 8, "backend": "nccl", "device_name": "NVIDIA H100 80GB HBM3", "device_backend": "cuda",
        "busbw_factor": 1.75, "queued": False, "rows": [ROW], "conditions": {"hosts": 1}}  # fmt: skip
CPU = {"device_backend": "cpu", "device_name": "some CPU", "backend": "gloo"}


def at(busbw: float, **more: Any) -> dict[str, Any]:
    return collective_runs.collective(NODE | {"rows": [ROW | {"busbw_gb_s": busbw}]} | more)


def test_eight_h100_are_compared_with_healthy_nodes() -> None:
    told = collective_runs.collective(NODE)
    assert (told["verdict"], told["slowest_rank"]) == ("ok", None)
    assert "NVLS" in told["compared_with"]


@pytest.mark.parametrize(
    ("busbw", "environment", "verdict"),
    [
        (480.0, {}, "ok"),
        (464.0, {}, "ok"),
        (420.0, {}, "ok"),
        (367.5, {}, "warning"),
        (367.5, {"NCCL_NVLS_ENABLE": "0"}, "ok"),
        (367.5, {"NCCL_ALGO": "Ring"}, "ok"),
        (367.5, {"NCCL_ALGO": "NVLS,Ring"}, "warning"),
        (200.0, {"NCCL_ALGO": "Ring"}, "warning"),
        (600.0, {}, "warning"),
    ],
)
def test_our_runs_and_the_output_of_others_get_one_verdict(busbw: float, environment: dict[str, str], verdict: str) -> None:
    ours = at(busbw, conditions={"hosts": 1, "env": environment})
    said = " ".join(f"{name}={value}" for name, value in environment.items())
    others = judge_text(nccl(row(2**34, busbw / 1.75, busbw), more=f"{said} ./all_reduce_perf"), Hints())
    assert (ours["verdict"], others.verdict) == (verdict, verdict)


def test_eight_bit_sums_take_the_ring_and_are_not_blamed_for_it() -> None:
    assert (at(367.5, dtype="int8")["verdict"], at(367.5, dtype="bf16")["verdict"]) == ("ok", "warning")


def test_small_messages_are_not_held_against_the_default_path() -> None:
    small = NODE | {"rows": [ROW | {"bytes": 2**29, "busbw_gb_s": 365.0}]}
    assert collective_runs.collective(small)["verdict"] == "ok"


def test_a_slow_node_is_a_warning_and_a_wrong_sum_critical() -> None:
    wrong = collective_runs.collective(NODE | {"rows": [ROW | {"correct": False}]})
    assert (at(40.0)["verdict"], wrong["verdict"]) == ("warning", "critical")


def test_two_hosts_or_a_cpu_have_no_reference() -> None:
    two, cpu = collective_runs.collective(NODE | {"conditions": {"hosts": 2}}), collective_runs.collective(NODE | CPU)
    assert (two["verdict"], cpu["verdict"], cpu["reason"]) == ("unknown", "unknown", "no reference is known to compare with")
    assert "link=" in two["reason"]


def test_where_nothing_was_measured_nothing_is_judged_however_busy_the_host_was() -> None:
    told = collective_runs.collective(NODE | CPU | {"rows": [], "conditions": {"other_cpu_cores": 1.4}, "skipped": ["10^15 bytes: no room"]})
    assert (told["verdict"], told["reason"], told["findings"]) == ("unknown", "nothing was measured; 10^15 bytes: no room", [])
    assert told["skipped"][0] == "10^15 bytes: no room"


def test_a_figure_above_the_wire_is_explained() -> None:
    assert ("NVLS" in at(480.0)["remarks"][0], at(367.0)["remarks"]) == (True, [])
    both_ways = at(700.0, collective="send_recv")
    assert (both_ways["verdict"], "both directions" in both_ways["remarks"][0]) == ("unknown", True)
    assert "cannot be" in at(700.0, collective="all_gather")["remarks"][0]


def test_a_barrier_has_a_time_and_no_bandwidth() -> None:
    nothing = ROW | {"bytes": 0, "algbw_gb_s": None, "busbw_gb_s": None}
    told = collective_runs.collective(NODE | {"collective": "barrier", "busbw_factor": None, "rows": [nothing]})
    assert (told["verdict"], "barrier" in told["reason"], "busbw_gb_s" in told["rows"][0]) == ("unknown", True, False)


def test_drift_and_stalls_of_the_largest_size_are_told() -> None:
    told = collective_runs.collective(NODE | {"rows": [ROW | {"drift": 0.3, "stalls": 9}]})
    assert [finding["code"] for finding in told["findings"]] == ["drifting", "stalls"]
    assert told["verdict"] == "ok"


def test_the_line_through_the_sizes_is_told() -> None:
    rows = [ROW | {"bytes": size, "time_us": 20.0 + size / 1e4} for size in (2**16, 2**20, 2**24, 2**28)]
    told = collective_runs.collective(NODE | CPU | {"rows": rows})
    assert told["latency_and_bandwidth"] == {"latency_us": 20.0, "algbw_gb_s": 10.0, "half_bytes": 200000, "residual": pytest.approx(0.0, abs=1e-9)}


def test_the_answer_fits_the_model_of_the_tool_and_two_thousand_tokens() -> None:
    rows = [ROW | dict.fromkeys(("min_us", "p5_us", "p50_us", "p95_us", "max_us"), 123.4) | {"bytes": 2**power} for power in range(16, 34)]
    text = str(document(CollectiveResult.model_validate({"state": "done", **collective_runs.collective(NODE | {"rows": rows})})))
    assert len(text) / 4 <= 2000


def of_pairs(rates: dict[tuple[int, int], float], **more: Any) -> dict[str, Any]:
    matrix = [[None if a == b else rates.get((min(a, b), max(a, b)), 10.0) for b in range(5)] for a in range(5)]
    table = {"players": ["n1", "n2", "n3", "n4", "n5"], "player": "host", "bytes": 2**22, "matrix": matrix, "passes": 3, "between_passes": 0.02}
    return collective_runs.answer(NODE | CPU | table | {"correct": True, "collective": "send_recv"} | more)


@pytest.mark.parametrize(
    ("rates", "code", "subject"),
    [
        ({(0, 2): 4.0, (1, 2): 4.0, (2, 3): 4.0, (2, 4): 4.0}, "slow_host", "host n3"),
        ({(0, 3): 4.0}, "slow_pair", "hosts n1 and n4"),
        ({(a, b): 4.0 for a in (0, 1) for b in (2, 3, 4)}, "slow_between_groups", "hosts n1, n2 | n3, n4, n5"),
    ],
)
def test_a_slow_host_a_slow_pair_and_a_slow_uplink_are_told_apart(rates: dict[tuple[int, int], float], code: str, subject: str) -> None:
    told = of_pairs(rates)
    assert [(finding["code"], finding["subject"]) for finding in told["findings"]] == [(code, subject)]
    assert told["verdict"] == "warning"


def test_equal_pairs_are_ok_and_a_busy_host_blames_nobody() -> None:
    assert (of_pairs({})["verdict"], "none stands out" in of_pairs({})["reason"]) == ("ok", True)
    busy = of_pairs({(0, 3): 4.0}, conditions={"hosts": 1, "other_cpu_cores": 1.5})
    assert {finding["code"]: finding["severity"] for finding in busy["findings"]} == {"not_alone": "warning", "slow_pair": "info"}
    assert "cannot be judged" in busy["reason"]


def test_wrong_bytes_between_a_pair_are_critical() -> None:
    assert of_pairs({}, correct=False)["verdict"] == "critical"


def test_pairs_are_drawn_as_a_matrix() -> None:
    assert collective_runs.pairs(of_pairs_payload(), "text")["plot"].splitlines()[-1].startswith("n2 |")


def of_pairs_payload() -> dict[str, Any]:
    return NODE | CPU | {"players": ["n1", "n2"], "player": "host", "bytes": 8, "matrix": [[None, 1.0], [1.0, None]], "passes": 1, "correct": True}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"sizes": [0]}, "hold no element"),
        ({"dtype": "int3"}, "unknown_dtype"),
        ({"nproc": 1}, "nproc: 1 is not between 2 and 64"),
        ({"budget_s": 1e6}, "budget_s"),
        ({"groups": "pairs", "collective": "reduce"}, "pairs_exchange"),
        ({"plot": "curve.svg"}, "plot_format"),
        ({"colective": "reduce"}, "unknown argument 'colective'"),
    ],
)
def test_bad_arguments_are_refused_before_anything_starts(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises((BadRequest, NotHere), match=words):
        run_all_reduce_bench.sync(**arguments)
