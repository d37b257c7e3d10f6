"""What a person sees: the numbers first, with names, and no more digits than they deserve."""

import pytest

from skillserver import terminal

INTERVAL = {"low": 55342.1, "expected": 82337.4, "high": 122501.0}


def shown(document: dict[str, object], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int = 200) -> str:
    monkeypatch.setenv("COLUMNS", str(columns))
    terminal.show(document)
    return capsys.readouterr().out


def test_an_interval_is_shown_with_three_digits() -> None:
    assert terminal.plain(INTERVAL) == "82,300  (80%: 55,300 to 123,000)"
    assert terminal.plain({"low": 9.0071, "expected": 13.4031, "high": 19.94}) == "13.4  (80%: 9.01 to 19.9)"
    assert terminal.plain({"low": None, "expected": 0.3106, "high": 0.5}) == "0.311  (80%: - to 0.5)"


def test_what_was_measured_comes_before_the_conditions_of_measuring(capsys, monkeypatch) -> None:
    told = shown({"conditions": {"torch": "2.13.0"}, "skipped": ["x"], "best": {"tflops": 1.5}, "verdict": "ok", "next": "y"}, capsys, monkeypatch)
    assert [line.split(":")[0] for line in told.splitlines() if not line.startswith(" ")] == ["verdict", "best", "conditions", "skipped", "next"]


def test_a_row_that_begins_with_a_number_says_what_the_number_is(capsys, monkeypatch) -> None:
    rows = [{"bytes": 65536, "time_us": 403.6, "note": "a sentence that no column of a terminal of forty characters could hold"}]
    assert shown({"rows": rows}, capsys, monkeypatch, 40).splitlines()[1].startswith("  - bytes 65,536: time_us 403.6; note a sentence")


def test_what_is_empty_inside_a_value_is_left_out() -> None:
    assert terminal.plain({"torch": "2.13.0", "cuda": "", "gpus": [], "threads": 0}) == "torch 2.13.0, threads 0"


def test_what_commands_a_terminal_is_shown_and_not_obeyed(capsys, monkeypatch) -> None:
    told = shown({"model": "m\x1b[31m\u202e", "rows": [{"name": "a\x08b"}], "findings": [], "next": "显存\tx"}, capsys, monkeypatch)
    assert "m\\x1b[31m\\u202e" in told
    assert "a\\x08b" in told
    assert not {"\x1b", "\u202e", "\x08"} & set(told)
    assert "显存" in told


def test_a_table_inside_a_value_shows_what_only_some_rows_have(capsys, monkeypatch) -> None:
    rows = [{"node": "n1", "rate": 7.5}, {"node": "n2", "error": "CUDA error"}]
    told = shown({"table": {"nodes": 2, "answered": 1, "note": "a text long enough not to stand beside its name", "rows": rows}}, capsys, monkeypatch)
    assert [line.split() for line in told.splitlines()[-2:]] == [["n1", "│", "7.5", "│", "-"], ["n2", "│", "-", "│", "CUDA", "error"]]
