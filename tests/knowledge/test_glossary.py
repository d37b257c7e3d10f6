"""The glossary page: made of the rows that turn questions into the words of the pages, in both languages."""

from __future__ import annotations

import pytest

from skillserver import paths
from skillserver.knowledge import glossary
from skillserver.knowledge.glossary import Entry
from skillserver.knowledge.queries import Gloss
from skillserver.knowledge.sources import OURS


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> None:
    given = (
        Gloss(zh=("显存不足", "爆显存"), en=("out of memory",)),
        Gloss(same=("oom", "out of memory", "OutOfMemoryError"), term="OOM", about="memory", means="it does not fit"),
        Gloss(zh=("量化",), en=("quantization",), about="numbers", means="fewer bits"),
        Gloss(same=("slow", "slower")),
    )
    monkeypatch.setattr(glossary, "_rows", lambda: given)


@pytest.mark.usefixtures("rows")
def test_an_entry_gathers_the_spellings_of_rows_that_share_one() -> None:
    assert glossary.subjects() == ["memory", "numbers"]
    assert glossary.entries("memory") == [Entry("OOM", ("out of memory", "OutOfMemoryError"), ("显存不足", "爆显存"), "it does not fit")]
    assert glossary.markdown("numbers") == "- **quantization** (量化): fewer bits"
    assert glossary.entries("speed") == []


def test_every_subject_has_its_table_in_the_page_and_every_term_a_meaning() -> None:
    page = (paths.shipped(OURS) / "reference" / "glossary.md").read_text(encoding="utf-8")
    assert sorted(glossary.subjects()) == sorted(part.partition(" ")[0] for part in page.split("<!-- table: glossary_")[1:])
    terms = [entry for subject in glossary.subjects() for entry in glossary.entries(subject)]
    assert len({entry.term for entry in terms}) == len(terms) >= 100
    assert all(entry.means and len(entry.means) <= 100 for entry in terms)
    assert all(glossary.markdown(subject) in page for subject in glossary.subjects()), "run python -m skillserver.generated"
