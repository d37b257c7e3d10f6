"""`skillserver doctor` looks at what is really possible, not at permission bits."""

from pathlib import Path

import pytest

from skillserver.procedures import host_report


def home_check(monkeypatch: pytest.MonkeyPatch, home: str) -> tuple[bool, str]:
    monkeypatch.setenv("SKILLSERVER_HOME", home)
    check = next(check for check in host_report.checks() if check["name"] == "home")
    return check["ok"], check["found"]


@pytest.fixture(autouse=True)
def only_the_home(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_torch", "_driver", "_slurm", "_login_node", "_index"):
        monkeypatch.setattr(host_report, name, lambda: {"name": "other"})
    monkeypatch.setattr(host_report, "_program", lambda *_arguments: {"name": "other"})


def test_a_home_that_does_not_exist_yet_is_judged_by_the_folder_above(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert home_check(monkeypatch, str(tmp_path / "not" / "yet")) == (True, str(tmp_path / "not" / "yet"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("home", ["/proc", "/dev/null", "/dev/null/below"])
def test_a_home_where_nothing_can_be_kept_is_not_ok(monkeypatch: pytest.MonkeyPatch, home: str) -> None:
    ok, found = home_check(monkeypatch, home)
    assert (ok, found.startswith(home + ": ")) == (False, True)


def test_a_home_without_room_is_not_ok(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(host_report, "ROOM", 2**62)
    ok, found = home_check(monkeypatch, str(tmp_path))
    assert (ok, found.endswith(" are free")) == (False, True)
