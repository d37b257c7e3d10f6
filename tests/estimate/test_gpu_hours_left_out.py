"""Hours of published runs, each family predicted from the others, hold what the benchmark promises."""

import importlib.util
import math
import sys
from pathlib import Path

import pytest

from skillserver.estimate import prior

SCRIPT = Path(__file__).parents[2] / "benchmarks/gpu_hours_left_out.py"


@pytest.fixture(scope="module")
def benchmark():
    spec = importlib.util.spec_from_file_location("gpu_hours_left_out", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(SCRIPT.parent))  # as for a script: its neighbours by plain name
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(SCRIPT.parent))
    if not module.CASES.is_file():
        pytest.skip("the real cases are not here")
    return module


def test_runs_left_out_are_met_with_honest_intervals_and_better_than_by_two_constants(benchmark):
    found = benchmark.summary()
    assert found["abs_log_error"]["median"] <= 0.14
    assert found["abs_log_error"]["p90"] <= 0.40
    assert 0.65 <= found["inside"] <= 0.95
    assert found["median_width"] <= 2.2
    assert found["better_by"][1] > 0


def test_the_table_holds_what_benchmarks_and_runs_give(benchmark):
    known = benchmark.generation_shares.refit()
    assert {name: prior.row(name).value for name in known} == pytest.approx(known, abs=0.005)
    assert prior.fitted() == pytest.approx(benchmark.fit(benchmark.cases()), abs=0.006)


def test_siblings_have_one_vote(benchmark):
    case = benchmark.cases()[0]
    share = prior.expect(case.part, case.setting, runs=prior.Fitted(1.0, 0.3)).mfu

    def reaching(goodput, family):
        return case._replace(hours=case.hours_at_peak / share / goodput, family=family)

    known = [*[reaching(0.5, "many")] * 20, reaching(0.8, "one"), reaching(0.9, "two")]
    assert math.log(benchmark.fit(known).goodput) == pytest.approx((math.log(0.91) / 0.01 + math.log(0.8) * 3 / 0.375**2) / (100 + 3 / 0.375**2))
