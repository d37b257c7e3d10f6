"""The search, on a seeded model of a GPU: good enough, cheap enough, honest about its winner."""

import pytest
import shape_search
from gpu_model import UNITS, ModelGpu
from shape_search import Ask, Space, Told

SPACE = Space(1024, 20480, 256, (1024, 2048, 4096, 8192, 16384))
SMALL = Space(128, 1024, 128, (256, 512))


def true_best(gpu: ModelGpu) -> float:
    sizes = range(256, 20481, 256)
    return max(gpu.true((m, n, k)) for m in sizes for n in sizes for k in SPACE.ks)


@pytest.mark.parametrize("ten", range(4))
def test_it_finds_99_percent_of_the_grids_best_in_at_most_100_trials_on_nine_of_ten_seeds(ten: int) -> None:
    good, asked = 0, []
    for seed in range(10 * ten, 10 * ten + 10):
        gpu = ModelGpu(seed)
        best = shape_search.drive(shape_search.search(SPACE, UNITS), gpu.sample)
        good += gpu.true(best.shape) >= 0.99 * true_best(ModelGpu(seed))
        asked.append(best.asked)
    assert good >= 9
    assert max(asked) <= 100


def test_it_stops_when_two_refinements_in_a_row_gain_less_than_half_a_percent() -> None:
    asks, told = [], None
    generator = shape_search.search(SPACE)
    while not asks or asks[-1].phase != "duel":
        asks.append(generator.send(told))
        told = Told(100.0, False)  # nothing is ever faster
    refined = [ask.shape for ask in asks if ask.phase == "refine"]
    assert len(asks) - 1 < shape_search.MAX_ASKS - shape_search.CONFIRMING
    assert 0 < len(refined) <= 2 * shape_search.STARTS * 6


def test_without_the_number_of_compute_units_it_still_comes_within_three_percent() -> None:
    for seed in range(4):
        gpu = ModelGpu(seed)
        best = shape_search.drive(shape_search.search(SPACE), gpu.sample)
        assert gpu.true(best.shape) >= 0.97 * true_best(ModelGpu(seed))
        assert best.asked <= 100


def test_the_value_returned_is_not_the_lucky_look_that_chose_the_winner() -> None:
    gpu = ModelGpu(3, noise=0.05)
    best = shape_search.drive(shape_search.search(SPACE, UNITS), gpu.sample)
    middle = sorted(best.values)[len(best.values) // 2]
    assert len(best.values) == shape_search.FRESH
    assert middle == pytest.approx(gpu.true(best.shape), rel=0.06)


def asked_by(generator, hurry_at: int = 10**9) -> list[Ask]:
    asks, told = [], None
    while True:
        try:
            asks.append(generator.send(told))
        except StopIteration:
            return asks
        told = Told(float(sum(asks[-1].shape)), len(asks) >= hurry_at)


def test_when_time_is_short_it_stops_looking_and_confirms_what_it_has() -> None:
    phases = [ask.phase for ask in asked_by(shape_search.search(SMALL), hurry_at=6)]
    assert phases == ["k"] * 4 + ["grid"] * 2 + ["duel"] * 15 + ["fresh"] * 7


def test_no_shape_is_looked_at_twice_and_all_lie_in_the_space() -> None:
    looks = [ask.shape for ask in asked_by(shape_search.search(SPACE, UNITS)) if ask.phase not in ("duel", "fresh")]
    assert len(looks) == len(set(looks))
    for m, n, k in looks:
        assert SPACE.low <= m <= SPACE.high and SPACE.low <= n <= SPACE.high and k in SPACE.ks


def test_finalists_are_measured_in_turns() -> None:
    duels = [ask.shape for ask in asked_by(shape_search.search(SMALL)) if ask.phase == "duel"]
    assert duels[:5] == duels[5:10] == duels[10:]
    assert len(set(duels)) == 5


def test_listed_shapes_are_all_looked_at_and_the_best_is_measured_again() -> None:
    best = shape_search.drive(shape_search.listed([(64, 64, 64), (128, 64, 64)]), lambda shape: float(shape[0]))
    assert (best.shape, best.tried, best.runners_up) == ((128, 64, 64), 2, [((64, 64, 64), 64.0)])


def test_a_grid_stops_when_time_is_short_and_a_list_does_not() -> None:
    shapes = [(64 * edge, 64, 64) for edge in range(1, 9)]
    grid = [ask.phase for ask in asked_by(shape_search.listed(shapes, effort=1, may_stop=True), hurry_at=3)]
    own = [ask.phase for ask in asked_by(shape_search.listed(shapes), hurry_at=3)]
    assert (grid.count("grid"), own.count("listed")) == (3, 8)
    assert grid[3:] == ["duel"] * 9 + ["fresh"] * 7


def test_one_listed_shape_needs_no_duel() -> None:
    assert {ask.phase for ask in asked_by(shape_search.listed([(64, 64, 64)]))} == {"listed", "duel", "fresh"}
    assert len(asked_by(shape_search.listed([(64, 64, 64)]))) == 1 + 1 + shape_search.FRESH


@pytest.mark.parametrize("units", [46, 108, 132, 142, 304])
def test_whole_waves_leave_no_compute_unit_idle(units: int) -> None:
    pool = shape_search.whole_waves(SPACE, units)
    assert pool
    for m, n in pool:
        tiles = m * n // (128 * 256)
        assert tiles / (-(-tiles // units) * units) >= shape_search.FILLED


def test_shapes_that_others_found_fast_are_looked_at_too() -> None:
    asks = asked_by(shape_search.search(SPACE, also=[(2048, 2048, 13312)]))
    assert Ask((2048, 2048, 13312), "known", 1) in asks
