"""knowledge_base/COVERAGE.tsv: every heading of the two handbooks leads to sections of ours, or says in a word why it is left out."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

import pytest

from skillserver import paths
from skillserver.knowledge import library
from skillserver.knowledge.sources import OUR_LICENCE, OURS, Folder

COVERAGE = Path(paths.shipped(OURS)) / "COVERAGE.tsv"
HEADINGS = Path(__file__).resolve().parents[3] / "shared" / "coverage" / "handbook_sections.tsv"
LEFT_OUT = "left out: "
REASONS = ("navigation", "personal", "obsolete", "duplicate", "advertisement", "empty", "not about")  # what a reason begins with
MOST_LEFT_OUT = 0.2


def rows(path: Path) -> list[list[str]]:
    """The lines of a table without its first."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))[1:]


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> library.Library:
    return library.at((Folder("", str(paths.shipped(OURS)), OUR_LICENCE),), tmp_path_factory.mktemp("cache"))


def test_every_target_is_a_section(ours: library.Library) -> None:
    targets = {target.strip() for row in rows(COVERAGE) if not row[4].startswith(LEFT_OUT) for target in row[4].split(",")}
    assert sorted(target for target in targets if target not in ours.sections) == []


def test_every_row_is_whole_and_a_reason_is_one_of_the_known() -> None:
    table = rows(COVERAGE)
    assert all(len(row) == 5 and all(row) for row in table)
    reasons = Counter(row[4].removeprefix(LEFT_OUT) for row in table if row[4].startswith(LEFT_OUT))
    assert [reason for reason in reasons if not reason.startswith(REASONS)] == []
    assert reasons.total() <= MOST_LEFT_OUT * len(table)


@pytest.mark.skipif(not HEADINGS.is_file(), reason="the list of headings is not beside this checkout")
def test_every_heading_is_there_once_and_in_order() -> None:
    assert [row[:4] for row in rows(COVERAGE)] == [row[:4] for row in rows(HEADINGS)]
