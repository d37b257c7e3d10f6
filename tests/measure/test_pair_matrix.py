"""Synthetic matrices of pairs: who is blamed, and that noise blames nobody."""

import random
from typing import Any

import pytest

from skillserver.measure import pair_matrix
from skillserver.measure.pair_matrix import Slow


def rates(count: int, noise: float, seed: int, nodes: tuple[int, ...] = (), pairs: tuple[tuple[int, int], ...] = (), half: int = 0,
          factor: float = 0.5) -> list[list[float | None]]:  # fmt: skip
    """100 GB/s with lognormal noise; slow nodes, pairs and everything between the first `half` and the rest by `factor`."""
    draw = random.Random(seed)
    matrix: list[list[float | None]] = [[None] * count for _ in range(count)]
    for a in range(count):
        for b in range(a + 1, count):
            slow = (a in nodes) + (b in nodes) + ((a, b) in pairs) + (bool(half) and (a < half) != (b < half))
            matrix[a][b] = matrix[b][a] = 100.0 * factor**slow * draw.lognormvariate(0.0, noise)
    return matrix


def judged(count: int, noise: float, seed: int, **slow: Any) -> Slow:
    return pair_matrix.judge([str(number) for number in range(count)], rates(count, noise, seed, **slow))


def blamed(count: int, noise: float, seed: int, **slow: Any) -> tuple[list[str], list[tuple[str, str]], list[list[str]]]:
    told = judged(count, noise, seed, **slow)
    return told.players, told.pairs, told.groups


@pytest.mark.parametrize("count", [4, 6, 8, 16])
@pytest.mark.parametrize(
    ("slow", "expected"),
    [
        pytest.param({}, ([], [], []), id="noise only"),
        pytest.param({"nodes": (1,)}, (["1"], [], []), id="a slow node"),
        pytest.param({"pairs": ((0, 2),)}, ([], [("0", "2")], []), id="a slow pair"),
    ],
)
def test_the_slow_one_is_named_and_nobody_else(count: int, slow: dict[str, Any], expected: tuple[Any, ...]) -> None:
    assert [blamed(count, 0.03, seed, **slow) for seed in range(20)] == [expected] * 20


@pytest.mark.parametrize(("count", "pairs"), [(4, []), (6, [("0", "2")]), (16, [("0", "2")])])
def test_beside_a_slow_node_a_slow_pair_is_named_where_enough_others_are_left(count: int, pairs: list[tuple[str, str]]) -> None:
    assert [blamed(count, 0.03, seed, nodes=(1,), pairs=((0, 2),)) for seed in range(20)] == [(["1"], pairs, [])] * 20


@pytest.mark.parametrize("count", [6, 8, 16])
def test_two_slow_nodes_are_both_named(count: int) -> None:
    assert [blamed(count, 0.03, seed, nodes=(1, 3)) for seed in range(20)] == [(["1", "3"], [], [])] * 20


@pytest.mark.parametrize("count", [4, 8, 16])
def test_a_slow_uplink_between_halves_blames_no_node(count: int) -> None:
    halves = [[str(one) for one in range(count // 2)], [str(one) for one in range(count // 2, count)]]
    assert [blamed(count, 0.03, seed, half=count // 2) for seed in range(20)] == [([], [], halves)] * 20


def test_a_node_at_three_quarters_is_found_among_eight() -> None:
    assert [blamed(8, 0.03, seed, nodes=(5,), factor=0.75) for seed in range(20)] == [(["5"], [], [])] * 20


@pytest.mark.parametrize(("count", "noise"), [(4, 0.05), (4, 0.1), (8, 0.05), (8, 0.1), (8, 0.2), (16, 0.2)])
def test_noise_seldom_blames_anybody(count: int, noise: float) -> None:
    false = sum(blamed(count, noise, seed) != ([], [], []) for seed in range(200))
    assert false <= 4


@pytest.mark.parametrize("count", [2, 3])
def test_few_players_are_not_told_apart(count: int) -> None:
    told = judged(count, 0.0, 1, nodes=(1,))
    assert (told.players, told.pairs, "fewer than 4" in told.reason) == ([], [], True)


def test_pairs_that_were_not_measured_are_left_out() -> None:
    matrix = rates(6, 0.02, 1, nodes=(2,))
    matrix[0][5] = matrix[5][0] = None
    assert pair_matrix.judge(list("abcdef"), matrix).players == ["c"]
    empty: list[list[float | None]] = [[None] * 6 for _ in range(6)]
    assert "were measured" in pair_matrix.judge(list("abcdef"), empty).reason
