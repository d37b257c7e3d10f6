"""Results on disk: what is kept, and what a new one removes."""

from pathlib import Path

import pytest

from skillserver.measure.history import Kept
from skillserver.procedures import kept_results


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SKILLSERVER_HOME", str(tmp_path))
    (tmp_path / "history").mkdir()
    return tmp_path / "history"


def old(folder: Path, day: str, place: int, owner: str = "run_mamf-n1") -> Path:
    file = folder / f"{day}T100000Z-{owner}-{place:08x}.json"
    file.write_text("{}")
    return file


def keep(host: str = "n1") -> Path:
    path, why = kept_results.keep(Kept(kind="run_mamf", at="2026-11-30T10:00:00.123Z", host=host))
    assert why == ""
    return Path(path)


def test_a_result_is_named_by_time_kind_and_host_and_reads_back(folder: Path) -> None:
    path = keep("n1/odd name")
    assert path.name.startswith("20261130T100000Z-run_mamf-n1_odd_name-")
    assert [one.host for one in kept_results.read([folder])[0]] == ["n1/odd name"]


def test_the_newest_two_hundred_of_a_host_and_kind_stay(folder: Path) -> None:
    files = [old(folder, "20261001", place) for place in range(kept_results.MOST)]
    others = [old(folder, "20200101", 1, owner) for owner in ("run_mamf-n2", "run_mamf-x-n1", "check_node-n1")]
    newest = keep()
    left = set(folder.iterdir())
    assert files[0] not in left and newest in left
    assert len(left) == kept_results.MOST + len(others)


def test_results_older_than_two_years_go_when_twenty_newer_ones_are_there(folder: Path) -> None:
    ancient = [old(folder, "20240101", place) for place in range(30)]
    keep()
    left = [file for file in ancient if file.exists()]
    assert len(left) == kept_results.FEWEST - 1  # with the new one they are twenty
    recent = [old(folder, "20250101", place) for place in range(30)]
    keep()
    assert all(file.exists() for file in recent)
    assert not any(file.exists() for file in ancient)


def test_what_is_no_result_of_ours_is_never_touched(folder: Path) -> None:
    notes = folder / "notes.json"
    notes.write_text("mine")
    for place in range(kept_results.MOST + 5):
        old(folder, "20261001", place)
    keep()
    assert notes.read_text() == "mine"
