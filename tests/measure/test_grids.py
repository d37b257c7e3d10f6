"""What a grid of shapes means, and what is refused before anybody waits for it."""

import pytest

from skillserver.errors import BadRequest
from skillserver.measure import grids


def test_one_range_stands_for_all_sides_and_ends_are_included() -> None:
    grid = grids.parse("256:512:128")
    assert (grid.m, grid.n, grid.k, grid.shapes) == ((256, 512, 128), (256, 512, 128), (256, 512, 128), 27)
    assert grid.flops == 2 * (256 + 384 + 512) ** 3


def test_three_ranges_are_m_n_and_k_and_a_number_alone_is_one_size() -> None:
    grid = grids.parse("1024:4096:1024, 2048:4096:2048, 4096")
    assert (grid.m, grid.n, grid.k, grid.shapes) == ((1024, 4096, 1024), (2048, 4096, 2048), (4096, 4096, 1), 8)


@pytest.mark.parametrize(
    ("text", "code"),
    [("", "bad_grid"), ("a:b", "bad_grid"), ("8:4:1", "bad_grid"), ("0:4:1", "bad_grid"), ("1:4:0", "bad_grid"), ("1:2,3:4", "bad_grid"),
     ("1:10000000:1", "bad_grid"), ("256:20480:256", "grid_too_large")],
)  # fmt: skip
def test_what_is_no_grid_is_refused_with_what_one_looks_like(text: str, code: str) -> None:
    with pytest.raises(BadRequest) as refused:
        grids.parse(text)
    assert refused.value.code == code
    assert refused.value.next


def test_time_counts_every_sample_and_the_flush_before_it() -> None:
    grid = grids.parse("1000")
    assert grids.seconds(grid, 1.0, gpu=True) == pytest.approx(6 * 2e9 / 1e12 + 5 * 0.3e-3)
    assert grids.seconds(grid, 1.0, gpu=False) == pytest.approx(4 * 2e9 / 1e12 + 3 * 20e-3)
