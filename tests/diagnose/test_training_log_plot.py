"""The loss with its events as text and as a picture, and the refusals before anything is read."""

import importlib.util
from pathlib import Path

import pytest

from skillserver import permissions
from skillserver.diagnose import log_plot, log_reading
from skillserver.errors import BadRequest, NotHere
from skillserver.findings import Finding
from skillserver.permissions import Permissions
from skillserver.tools.training_log import diagnose_training_log

LOG = "\n".join(f"iter {step}: loss {9.5 if step == 70 else 4 - step / 100:.4f}, time 100.00ms, mfu 1.00%" for step in range(100))
SPIKE = Finding(code="loss_spike", severity="critical", subject="training loss", reason="r", action="none", step=70, last_step=72)


def test_a_spike_stands_out_and_its_letter_stands_under_it() -> None:
    lines = log_plot.draw(log_reading.read_text(LOG).run, [SPIKE], width=60).splitlines()
    assert (lines[0], lines[-1]) == ("loss over steps", "a: critical loss_spike, step 70 to 72")
    assert lines[1].startswith("     9.5 |")
    assert lines[log_plot.ROWS].startswith("    3.01 |")
    top = lines[1][log_plot.MARGIN :].rstrip()
    mark = lines[log_plot.ROWS + 1][log_plot.MARGIN :].index("a")
    assert abs(len(top) - 1 - mark) <= 1
    assert max(map(len, lines)) <= 60


def test_a_wide_span_is_drawn_logarithmically() -> None:
    assert log_plot.draw(log_reading.read_text("\n".join(f"iter {n}: loss {10**-n}" for n in range(4))).run, []).startswith("loss (logarithmic)")


@pytest.mark.parametrize("text", ["iter 0: loss 4.2", "iter 0: loss 4.2\niter 1: loss 4.2", "iter 0: loss nan\niter 1: loss nan\niter 2: loss 2"])
def test_one_value_a_flat_line_and_nan_are_drawn(text: str) -> None:
    assert diagnose_training_log(text=text, plot="text").plot.startswith("\nloss over steps")


def test_a_plot_comes_only_when_asked_for() -> None:
    assert diagnose_training_log(text=LOG).plot == ""
    assert "loss_spike, step 70" in diagnose_training_log(text=LOG, plot="text").plot


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed")
def test_a_picture_is_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "loss.png"
    assert diagnose_training_log(text=LOG, plot=str(path)).plot == f"written to {path}"
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert [each.name for each in tmp_path.iterdir()] == ["loss.png"]


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is not None, reason="matplotlib is installed")
def test_without_matplotlib_the_way_out_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotHere) as refusal:
        diagnose_training_log(text=LOG, plot=str(tmp_path / "loss.png"))
    assert (refusal.value.code, "text" in refusal.value.next) == ("no_matplotlib", True)


@pytest.mark.parametrize("name", ["loss.svg", "there.png", "none/loss.png"])
def test_nothing_is_overwritten_and_no_folder_is_made(tmp_path: Path, name: str) -> None:
    (tmp_path / "there.png").write_text("mine")
    with pytest.raises(BadRequest):
        diagnose_training_log(text=LOG, plot=str(tmp_path / name))
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("there.png", "mine")]


@pytest.mark.parametrize("granted", [Permissions(run=False), Permissions(read_roots=(Path("/"),)), permissions.TEXT_ONLY])
def test_a_server_that_may_not_write_refuses(tmp_path: Path, granted: Permissions) -> None:
    kept = permissions.current()
    permissions.grant(granted)
    try:
        with pytest.raises(NotHere, match="not_permitted"):
            diagnose_training_log(text=LOG, plot=str(tmp_path / "loss.png"))
        assert diagnose_training_log(text=LOG, plot="text").plot
    finally:
        permissions.grant(kept)


def test_two_logs_have_no_plot() -> None:
    with pytest.raises(BadRequest, match="one run"):
        diagnose_training_log(paths=["a", "b"], plot="text")
