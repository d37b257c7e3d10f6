"""The trials of a search as a picture."""

import importlib.util
from pathlib import Path

import pytest

from skillserver.measure import trials_plot


def test_the_best_so_far_is_a_line_and_every_trial_a_dot() -> None:
    lines = trials_plot.draw([100.0, 140.0, 120.0, 180.0], "bf16 on cuda:0", 50).splitlines()
    assert lines[0] == "bf16 on cuda:0: TFLOPS over trials"
    assert (lines[1].split(" |")[0].strip(), lines[12].split(" |")[0].strip()) == ("180", "100")
    assert lines[1].rstrip()[-1] != "|" and lines[-1].split() == ["1", "4"]


def test_a_span_of_ten_is_drawn_on_a_logarithmic_axis_and_one_trial_not_at_all() -> None:
    assert "(logarithmic)" in trials_plot.draw([1.0, 20.0], "x", 50).splitlines()[0]
    assert trials_plot.draw([1.0], "x") == trials_plot.TOO_FEW


def test_two_trials_are_needed_for_a_picture(tmp_path: Path) -> None:
    assert "nothing was written" in trials_plot.write(tmp_path / "a.png", [1.0], "x")
    assert not (tmp_path / "a.png").exists()


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="pictures need matplotlib")
def test_a_picture_is_a_png(tmp_path: Path) -> None:
    assert trials_plot.write(tmp_path / "a.png", [1.0, 3.0, 2.0], "x") == f"written to {tmp_path}/a.png"
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
