"""Statistics of a handful of timings, against textbook values."""

import random
import statistics

import pytest
import samples


def test_the_median_is_the_textbooks() -> None:
    assert samples.median([3.0, 1.0, 2.0]) == 2.0
    assert samples.median([4.0, 1.0, 2.0, 3.0]) == 2.5


def test_percentiles_interpolate_as_the_standard_library_does() -> None:
    values = [random.Random(1).random() for _ in range(41)]
    cuts = statistics.quantiles(values, n=20, method="inclusive")
    assert samples.percentile(values, 5) == pytest.approx(cuts[0])
    assert samples.percentile(values, 95) == pytest.approx(cuts[-1])


def test_no_values_have_no_percentile() -> None:
    with pytest.raises(ValueError, match="no values"):
        samples.percentile([], 50)


@pytest.mark.parametrize(("count", "ranks", "coverage"), [(6, (0, 5), 0.96875), (9, (1, 7), 0.9609), (20, (5, 14), 0.9586)])
def test_the_interval_of_the_median_takes_the_ranks_of_the_sign_test(count: int, ranks: tuple[int, int], coverage: float) -> None:
    low, high, covered = samples.median_interval([float(number) for number in range(count)])
    assert (low, high) == ranks
    assert covered == pytest.approx(coverage, abs=1e-4)


def test_too_few_values_say_the_coverage_they_have() -> None:
    assert samples.median_interval([1.0, 2.0, 3.0]) == (1.0, 3.0, 0.75)
    assert samples.median_interval([1.0]) == (1.0, 1.0, 0.0)


def test_the_interval_covers_the_median_as_often_as_it_says() -> None:
    draw = random.Random(7)
    hits = 0
    for _ in range(1000):
        low, high, _ = samples.median_interval([draw.expovariate(1.0) for _ in range(15)])
        hits += low <= 0.6931 <= high
    assert 940 <= hits <= 1000


def test_one_slow_rank_of_eight_stands_out() -> None:
    assert samples.slowest([10.0, 10.1, 9.9, 10.0, 14.0, 10.1, 9.9, 10.0]) == 4


@pytest.mark.parametrize(
    "times",
    [
        pytest.param([10.0, 14.0], id="of two ranks none is the odd one"),
        pytest.param([10.0, 10.0, 14.0], id="nor of three"),
        pytest.param([10.0, 10.0, 10.0, 10.3], id="three percent are nothing, however tight the rest"),
        pytest.param([8.0, 10.0, 12.0, 14.0, 16.0], id="a wide spread has no outlier"),
        pytest.param([10.0, 10.0, 10.0, 5.0], id="a fast rank is not slow"),
        pytest.param([], id="nobody"),
    ],
)
def test_no_rank_is_named_without_reason(times: list[float]) -> None:
    assert samples.slowest(times) is None


def test_a_summary_holds_the_percentiles() -> None:
    assert samples.summary([1.0, 2.0, 3.0]) == {"n": 3, "min": 1.0, "max": 3.0, "p5": 1.1, "p50": 2.0, "p95": 2.9}


def test_a_change_between_the_thirds_is_drift_and_scatter_is_not() -> None:
    draw = random.Random(5)
    steady = [10.0 * draw.lognormvariate(0.0, 0.1) for _ in range(60)]
    assert samples.drift(steady) == 0.0
    assert samples.drift([value * (1.3 if place >= 40 else 1.0) for place, value in enumerate(steady)]) == pytest.approx(0.3, abs=0.1)
    assert samples.drift([1.0] * 8) is None


def test_single_slow_calls_are_stalls_and_fast_ones_are_not() -> None:
    assert samples.dips([10.0] * 20 + [16.0, 14.0, 2.0]) == [20]
    assert samples.dips([]) == []
