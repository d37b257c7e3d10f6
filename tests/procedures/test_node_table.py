"""One table of many nodes: values, who stands out, who is missing, and what the nodes agree on."""

from typing import Any

from skillserver.measure.history import Metric
from skillserver.procedures import node_table


def rate(answer: dict[str, Any]) -> dict[str, Metric]:
    return {"rate": Metric(value=answer["value"], unit="GB/s")} if "value" in answer else {}


def joined(values: dict[str, float], errors: dict[str, str] | None = None, silent: dict[str, str] | None = None, **more: Any) -> dict[str, Any]:
    answers = {node: {"value": value, "verdict": "ok", "dtype": "bf16", "device_name": "H200"} | more for node, value in values.items()}
    return node_table.joined([*values, *(errors or {}), *(silent or {})], answers, errors or {}, silent or {}, rate)


def test_equal_nodes_agree_and_nobody_is_named() -> None:
    told = joined({"n1": 700.0, "n2": 701.0, "n3": 699.0, "n4": 702.0})
    assert (told["verdict"], told["table"]["outliers"], told["partial"], told["dtype"]) == ("ok", [], False, "bf16")
    assert told["table"]["columns"][0] == {"name": "rate", "unit": "GB/s", "nodes": 4, "median": 700.5, "low": 699.0, "high": 702.0, "mad": 1.0,
                                           "spread": "0.4%", "outliers": "", "part": "H200"}  # fmt: skip
    assert told["reason"] == "4 of 4 nodes answered; rate: median 700.5 GB/s, 699 to 702 (0.4% spread)"


def test_the_slow_node_is_named_with_its_distance() -> None:
    told = joined({"n1": 700.0, "n2": 701.0, "n3": 610.0, "n4": 702.0})
    assert (told["verdict"], told["table"]["outliers"]) == ("warning", ["n3"])
    assert told["table"]["rows"][2]["outlier"] == "rate: 610 GB/s, -13% of the median of 4 hosts"


def test_three_per_cent_are_no_outlier() -> None:
    assert joined({"n1": 700.0, "n2": 700.1, "n3": 680.0, "n4": 700.0})["table"]["outliers"] == []


def test_two_nodes_that_disagree_leave_open_which_is_slow() -> None:
    told = joined({"n1": 700.0, "n2": 600.0})
    assert (told["verdict"], told["table"]["outliers"], told["findings"][0]["code"]) == ("warning", [], "nodes_disagree")


def test_failed_and_silent_nodes_are_told_apart_and_named() -> None:
    told = joined({"n1": 700.0}, {"n2": "CUDA error", "n3": "CUDA error"}, {"n4": "SLURM says down: Not responding"})
    assert [(row["node"], row["state"], row.get("error", "")) for row in told["table"]["rows"]] == [
        ("n1", "done", ""), ("n2", "failed", "CUDA error"), ("n3", "failed", "CUDA error"),
        ("n4", "never answered", "SLURM says down: Not responding")]  # fmt: skip
    assert [(one["code"], one["subject"], one.get("count", 1)) for one in told["findings"]] == [
        ("node_failed", "n2, n3", 2),
        ("node_silent", "n4", 1),
    ]
    assert (told["table"]["failed"], told["table"]["never_answered"], told["partial"]) == (["n2", "n3"], ["n4"], True)


def test_an_answer_that_was_cut_short_is_shown_and_not_compared() -> None:
    answers = {node: {"value": value, "verdict": "ok"} for node, value in {"n1": 10.0, "n2": 10.0, "n3": 10.0, "n4": 10.0, "n5": 1.0}.items()}
    told = node_table.joined(list(answers), answers, {}, {}, rate, cut=["n5"])
    assert (told["table"]["outliers"], told["table"]["cut_short"], told["table"]["rows"][4]["state"]) == ([], ["n5"], "partial")


def test_the_same_finding_of_several_nodes_is_told_once() -> None:
    finding = {"code": "ecc", "severity": "critical", "subject": "GPU 0", "evidence": ["8 errors"], "reason": "Bad memory.", "action": "drain_rma"}
    answers = {f"n{number}": {"findings": [finding]} for number in range(1, 12)}
    told = node_table.joined(list(answers), answers, {}, {}, node_table.nothing)
    assert (told["verdict"], len(told["findings"])) == ("critical", 1)
    assert told["findings"][0]["subject"] == "n1, n10, n11, n2, n3, n4, n5, n6 and 3 more: GPU 0"
    assert (told["findings"][0]["count"], told["findings"][0]["evidence"]) == (11, [f"n{number}: 8 errors" for number in (1, 2, 3)])


def test_of_many_nodes_those_to_look_at_are_shown() -> None:
    values = {f"n{number:03}": 700.0 + number % 3 for number in range(100)} | {"n050": 300.0}
    told = joined(values, {"n200": "died"})
    rows = told["table"]["rows"]
    assert (len(rows), {rows[0]["node"], rows[1]["node"]}) == (node_table.SHOWN, {"n200", "n050"})
    assert "69 more rows" in told["skipped"][0]


def test_conditions_keep_what_all_nodes_share() -> None:
    answers = {"n1": {"conditions": {"torch": "2.13", "load": 1}}, "n2": {"conditions": {"torch": "2.13", "load": 2}}}
    assert node_table.joined(["n1", "n2"], answers, {}, {}, rate)["conditions"] == {"torch": "2.13"}


def test_the_slowest_rank_of_one_job_leads_to_its_node() -> None:
    told = node_table.of_one_job(["n1", "n2"], {"n1": {"slowest_rank": 3, "verdict": "ok"}}, {}, {}, 2)
    assert (told["table"]["slowest_node"], told["verdict"]) == ("n2", "ok")


def test_one_job_without_an_answer_says_who_failed() -> None:
    told = node_table.of_one_job(["n1", "n2"], {}, {"n2": "CUDA error"}, {}, 2)
    assert (told["reason"], told["findings"][0]["subject"]) == ("no answer of the 4 ranks; failed: n2", "n2")


def test_rates_are_the_lowest_over_devices() -> None:
    rows = [{"what": "triad", "gb_s": 4.0}, {"what": "triad", "gb_s": 3.0}, {"what": "copy", "gb_s": None}]
    assert node_table.of_rows({"rows": rows}) == {"triad": Metric(value=3.0, unit="GB/s")}


def test_nodes_are_compared_by_a_models_products_where_those_were_timed() -> None:
    best = {"best": {"tflops": 700.0}}
    assert node_table.of_matmul(best) == {"matmul": Metric(value=700.0, unit="TFLOPS")}
    assert node_table.of_matmul(best | {"matmul_tflops": 500.0}) == {"model matmuls": Metric(value=500.0, unit="TFLOPS")}
    assert node_table.of_matmul({"best": None}) == {}


def test_one_node_has_no_spread() -> None:
    assert joined({"n1": 700.0})["reason"] == "1 of 1 nodes answered; rate: 700 GB/s"


def test_the_reason_tells_of_a_number_in_which_nodes_differ() -> None:
    answers = {
        f"n{number}": {"parts": [{"part": "numa", "value": 1}, {"part": "memory", "value": 40.0 + number, "unit": "GB/s"}]} for number in (1, 2)
    }
    told = node_table.joined(list(answers), answers, {}, {}, node_table.of_parts)
    assert told["reason"] == "2 of 2 nodes answered; memory: median 41.5 GB/s, 41 to 42 (2.4% spread)"


def test_a_section_is_named_once() -> None:
    first = joined({"n1": 700.0, "n2": 600.0})["sections"]
    assert joined({"n1": 700.0, "n2": 600.0}, sections=first[:1])["sections"] == first
