"""Latency plus size over bandwidth: the two numbers come back, and where the line does not hold is said."""

import random

import pytest

from skillserver.measure import alpha_beta

SIZES = [2**power for power in range(12, 31, 2)]


def table(latency_us: float, gb_s: float, noise: float = 0.0) -> list[tuple[int, float]]:
    draw = random.Random(3)
    return [(size, (latency_us * 1e-6 + size / gb_s / 1e9) * draw.lognormvariate(0.0, noise)) for size in SIZES]


@pytest.mark.parametrize(("latency_us", "gb_s"), [(20.0, 10.0), (400.0, 1.2), (30.0, 270.0)])
def test_a_clean_line_gives_both_numbers_back(latency_us: float, gb_s: float) -> None:
    found = alpha_beta.fit(table(latency_us, gb_s))
    assert found is not None
    assert (found.latency_us, found.algbw_gb_s) == (pytest.approx(latency_us), pytest.approx(gb_s))
    assert (found.half_bytes, found.does_not_hold) == (pytest.approx(latency_us * gb_s * 1e3, abs=1), [])
    assert found.residual == pytest.approx(0.0, abs=1e-9)


def test_scatter_of_five_percent_moves_them_by_less_than_ten() -> None:
    found = alpha_beta.fit(table(20.0, 10.0, noise=0.05))
    assert found is not None
    assert (found.latency_us, found.algbw_gb_s) == (pytest.approx(20.0, rel=0.1), pytest.approx(10.0, rel=0.1))


def test_a_size_that_takes_another_path_is_named() -> None:
    points = table(20.0, 10.0)
    points[4] = (points[4][0], 2 * points[4][1])
    found = alpha_beta.fit(points)
    assert found is not None
    assert [line.split(" bytes")[0] for line in found.does_not_hold] == [str(SIZES[4])]


def test_what_the_sizes_do_not_show_is_not_given() -> None:
    large, small = alpha_beta.fit([(size, size / 1e10) for size in SIZES]), alpha_beta.fit([(8, 1e-5), (16, 1e-5), (64, 1e-5)])
    assert large is not None
    assert small is not None
    assert (large.latency_us, small.algbw_gb_s) == (None, None)
    assert (large.algbw_gb_s, small.latency_us) == (pytest.approx(10.0), pytest.approx(10.0))


@pytest.mark.parametrize("points", [[], [(8, 1e-5), (16, 1e-5)], [(100, 1e-5), (110, 1e-5), (120, 1e-5)], [(0, 1e-4)]])
def test_few_or_equal_sizes_have_no_line(points: list[tuple[int, float]]) -> None:
    assert alpha_beta.fit(points) is None
