"""A collective over sizes and pairs as text, and a picture where matplotlib is there."""

import importlib.util
from pathlib import Path

import pytest

from skillserver.drawing import MARGIN, ROWS
from skillserver.measure import curve_plot

CURVE = [
    {"bytes": 2**power, "busbw_gb_s": 480.0 * 2**power / (2**power + 2**22), "time_us": 1.0, "p5_us": 0.9, "p95_us": 1.2} for power in range(16, 34)
]


def test_the_curve_rises_from_left_to_right_and_names_its_ends() -> None:
    lines = curve_plot.curve(CURVE, "all_reduce", width=60).splitlines()
    assert (lines[0], lines[-1].split()) == ("all_reduce: busbw GB/s over message size (logarithmic)", ["64", "KiB", "8", "GiB"])
    assert lines[1].startswith("   479.8 |")
    assert lines[ROWS].startswith("   7.385 |")
    assert max(map(len, lines)) <= 60
    assert len(lines[1].rstrip()) > len(lines[ROWS].rstrip()) > MARGIN


@pytest.mark.parametrize("rows", [[], CURVE[:1], [{"bytes": 0, "busbw_gb_s": None}]])
def test_one_size_is_no_curve(rows: list[dict[str, float]]) -> None:
    assert curve_plot.curve(rows, "x") == "a curve needs two sizes with a bandwidth"


def test_a_slow_player_is_a_light_row() -> None:
    lines = curve_plot.matrix(["n1", "n2", "n3"], [[None, 90.0, 9.0], [90.0, None, 9.0], [9.0, 9.0, None]]).splitlines()
    assert lines[1:] == ["n1 | @.", "n2 |@ .", "n3 |.. "]


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed")
def test_a_picture_is_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "curve.png"
    assert curve_plot.write(path, CURVE, "all_reduce") == f"written to {path}"
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert [each.name for each in tmp_path.iterdir()] == ["curve.png"]
