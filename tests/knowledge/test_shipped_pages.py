"""The pages that the product carries: every one parses, ids are unique, aliases lead somewhere, real questions are answered."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import pytest

from skillserver import paths
from skillserver.knowledge import library, search
from skillserver.knowledge.sources import OUR_LICENCE, OURS, Folder
from skillserver.tools.knowledge import read_knowledge, search_knowledge

OUT_OF_SCOPE = Path(__file__).resolve().parents[2] / "benchmarks" / "out_of_scope.txt"
QUESTIONS = Path(__file__).resolve().parents[3] / "shared" / "cases" / "questions.json"


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> library.Library:
    return library.at((Folder("", str(paths.shipped(OURS)), OUR_LICENCE),), tmp_path_factory.mktemp("cache"))


def test_every_page_has_a_title_a_summary_and_sources(ours: library.Library) -> None:
    bare = [page.id for page in ours.pages if not (page.title and page.summary and page.sections[0].sources) and "/" in page.id]
    assert bare == []


def test_every_alias_leads_to_a_section(ours: library.Library) -> None:
    assert {old: new for old, new in ours.aliases.items() if new not in ours.sections} == {}


def test_every_section_is_found_by_its_own_title(ours: library.Library) -> None:
    lost = []
    searched = [section for section in ours.sections.values() if section.searched]
    for section in searched:
        found = re.findall(r"^## .* \[(\S+)\]$", search.answer(ours, f"{section.title} {section.trail[0]}", 8000), re.M)
        if section.text and section.id not in found[:3]:
            lost.append(section.id)
    assert len(lost) <= len(searched) // 50, lost


@pytest.mark.parametrize(
    "question",
    ["how to bake sourdough bread", "what is the capital of Mongolia", "css center a div vertically", "photosynthesis in plants",
     "北京今天天气怎么样", "java spring boot bean circular dependency", "best pizza restaurants in Naples",
     "how to memorise a poem", "excel vlookup across sheets", *OUT_OF_SCOPE.read_text(encoding="utf-8").splitlines()],
)  # fmt: skip
def test_a_question_about_something_else_is_not_answered(ours: library.Library, question: str) -> None:
    assert search.answer(ours, question).startswith("no section answers this")


def test_no_two_pages_say_the_same_at_length(ours: library.Library) -> None:
    pairs = {section.id: ours.words_of(section.id).pairs for section in ours.sections.values() if section.text and section.searched}
    alike = [
        (left, right)
        for left, right in itertools.combinations(pairs, 2)
        if len(pairs[left] & pairs[right]) > 0.45 * min(len(pairs[left]), len(pairs[right])) and ours.sections[left].page != ours.sections[right].page
    ]
    assert alike == [], "merge them: keep one, and its old id as an alias"


def test_the_tools_answer_over_the_shipped_pages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SKILLSERVER_HOME", str(tmp_path))
    assert search_knowledge("FSDP out of memory").startswith("## ")
    assert read_knowledge().startswith("# Pages")
    assert search_knowledge.hints.read_only and read_knowledge.hints.read_only
    library.forget()


@pytest.mark.skipif(not QUESTIONS.is_file(), reason="the real questions lie beside the project")
def test_real_questions_never_break_the_search_or_its_budget(ours: library.Library) -> None:
    for row in json.loads(QUESTIONS.read_text(encoding="utf-8")):
        assert 0 < len(search.answer(ours, row["query"])) <= 8000
