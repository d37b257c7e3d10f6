"""Which node or device is odd, and what moved over time."""

import pytest

from skillserver.measure.history import Kept, Metric, compare, odd


def kept(host: str, tflops: float, *, at: str = "2026-11-30T10:00:00Z", driver: str = "570.86", part: str = "NVIDIA H100 80GB HBM3") -> Kept:
    return Kept(at=at, host=host, part=part, driver=driver, metrics={"matmul bf16 cuda:0": Metric(value=tflops, unit="TFLOPS")})


def test_the_odd_one_is_named_from_four_values_on() -> None:
    assert odd({"a": 700.0, "b": 702.0, "c": 698.0, "d": 610.0}) == {"d": pytest.approx(-0.1273, abs=1e-3)}
    assert odd({"a": 700.0, "b": 702.0, "c": 610.0}) == {}
    assert odd({}) == odd({"a": 1.0}) == {}


def test_a_tight_group_has_no_odd_one_within_five_percent() -> None:
    assert odd({"a": 700.0, "b": 700.1, "c": 700.0, "d": 690.0}) == {}
    assert odd({"a": 0.0, "b": 0.0, "c": 0.0, "d": 5.0}) == {}


def test_the_slow_node_is_named_with_the_software_in_which_it_differs() -> None:
    told = compare([*(kept(f"n{number}", 700 + number) for number in range(4)), kept("n9", 600, driver="550.54")])
    assert (told.verdict, [finding.subject for finding in told.findings]) == ("warning", ["n9"])
    assert told.findings[0].evidence[1] == "driver 550.54 here, 570.86 on the others"
    assert told.rows[0].odd == "n9"


def test_a_faster_node_is_no_warning() -> None:
    told = compare([*(kept(f"n{number}", 700) for number in range(4)), kept("n9", 800)])
    assert (told.verdict, told.findings[0].code) == ("ok", "faster_node")


def test_other_parts_are_not_compared_with_each_other() -> None:
    told = compare([*(kept(f"n{number}", 700) for number in range(4)), kept("n9", 250, part="NVIDIA A100-SXM4-80GB")])
    assert (told.verdict, told.findings) == ("ok", [])
    assert told.skipped == ["no odd one out is named below 4 hosts of one part: NVIDIA A100-SXM4-80GB"]


def test_two_nodes_that_differ_are_told_without_a_culprit() -> None:
    told = compare([kept("n1", 700), kept("n2", 500)])
    assert [(finding.code, finding.subject) for finding in told.findings] == [("nodes_disagree", "2 hosts")]


def test_a_node_slower_than_it_ever_was_is_named_with_what_changed() -> None:
    past = [kept("n1", value, at=f"2026-11-{day:02d}T10:00:00Z") for day, value in enumerate((700, 705, 690), 1)]
    told = compare([*past, kept("n1", 600, at="2026-11-20T10:00:00Z", driver="580.1")])
    assert [finding.code for finding in told.findings] == ["slower_than_before"]
    assert "driver: 570.86 before, 580.1 now" in told.findings[0].evidence
    assert compare([*past[:2], kept("n1", 600, at="2026-11-20T10:00:00Z")]).verdict == "unknown"
    assert compare([*past, kept("n1", 695, at="2026-11-20T10:00:00Z")]).verdict == "ok"


def test_nothing_kept_is_unknown() -> None:
    told = compare([])
    assert (told.verdict, told.rows) == ("unknown", [])


def test_a_result_that_others_disturbed_is_left_out_and_said() -> None:
    disturbed = kept("n9", 300).model_copy(update={"disturbed": True})
    told = compare([*(kept(f"n{number}", 700) for number in range(4)), disturbed])
    assert (told.verdict, told.findings, told.skipped) == ("ok", [], ["1 results that other processes disturbed: n9"])
