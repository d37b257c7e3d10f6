"""Verdicts on numbers: what nothing is known of is unknown, what cannot be is said."""

import pytest

from skillserver import tables
from skillserver.hardware import catalogue
from skillserver.measure import judge
from skillserver.measure.published import Published, published


@pytest.mark.parametrize(
    ("tflops", "peak", "other", "verdict"),
    [
        (794.0, 989.4, 794.5, "ok"),
        (745.0, 989.4, 794.5, "ok"),
        (600.0, 989.4, 794.5, "warning"),
        (1100.0, 989.4, 794.5, "warning"),  # above paper
        (668.0, 1307.4, 668.4, "ok"),  # half of its peak is all that this part was seen to reach
        (668.0, 1307.4, None, "unknown"),
        (800.0, 989.4, None, "ok"),
        (300.0, 989.4, None, "warning"),
        (300.0, None, None, "unknown"),
    ],
)
def test_a_matmul_is_judged_by_its_part_then_by_paper(tflops: float, peak: float | None, other: float | None, verdict: str) -> None:
    assert judge.matmul(tflops, peak_tflops=peak, published_tflops=other).verdict == verdict


@pytest.mark.parametrize(
    ("busbw", "size", "low", "high", "verdict"),
    [
        (480.0, 2**34, 360.0, 485.0, "ok"),
        (367.0, 2**34, 360.0, 485.0, "ok"),
        (340.0, 2**34, 360.0, 485.0, "ok"),
        (200.0, 2**34, 360.0, 485.0, "warning"),
        (200.0, 2**24, 360.0, 485.0, "unknown"),  # too small to fill the links
        (900.0, 2**34, 360.0, 485.0, "warning"),
        (1.5, 2**26, None, None, "unknown"),
    ],
)
def test_busbw_is_judged_by_what_healthy_nodes_showed(busbw: float, size: int, low: float | None, high: float | None, verdict: str) -> None:
    assert judge.busbw(busbw, size, low_gb_s=low, high_gb_s=high).verdict == verdict


def test_a_power_cap_is_normal_and_heat_is_not() -> None:
    assert judge.circumstances({"gpu": {"throttle_reasons": ["sw_power_cap"]}}, on_cpu=False) == []
    assert [finding.code for finding in judge.circumstances({"gpu": {"throttle_reasons": ["hw_thermal"]}}, on_cpu=False)] == ["throttled"]


def test_a_busy_host_matters_to_a_cpu_and_not_to_a_gpu() -> None:
    busy = {"other_cpu_cores": 1.7, "steal_share": 0.0, "other_processes": []}
    assert judge.circumstances(busy, on_cpu=False) == []
    assert [finding.code for finding in judge.circumstances(busy, on_cpu=True)] == ["not_alone"]


def test_somebody_else_on_the_gpu_is_named() -> None:
    assert judge.circumstances({"other_processes": ["4711 python"]}, on_cpu=False)[0].evidence == ["other processes: 4711 python"]


def test_a_wide_interval_is_a_finding() -> None:
    assert judge.steadiness(100.0, 99.0, 101.0, "TFLOPS") == []
    wide = judge.steadiness(100.0, 80.0, 101.0, "TFLOPS")[0]
    assert (wide.code, wide.evidence) == ("unsteady", ["interval 80 to 101 around 100 TFLOPS"])


def test_every_published_row_names_parts_of_the_catalogue_and_stays_below_their_peak() -> None:
    for row in tables.load("mamf.toml", Published):
        for part in row.accelerators:
            peak = catalogue.peak_tflops(catalogue.accelerator(part), row.dtype)
            assert peak and 0.4 < row.tflops / peak < 1.0


def test_what_nobody_measured_is_none() -> None:
    assert published("T4-16GB", "bf16") is None
