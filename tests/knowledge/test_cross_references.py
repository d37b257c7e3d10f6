"""Where a page sends its reader: every section that is named in backticks exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from skillserver import paths
from skillserver.knowledge import library
from skillserver.knowledge.sources import OUR_LICENCE, OURS, Folder

NAMED = re.compile(r"`([a-z]+/[a-z0-9-]+#[\w-]+)`")


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> library.Library:
    return library.at((Folder("", str(paths.shipped(OURS)), OUR_LICENCE),), tmp_path_factory.mktemp("cache"))


def test_every_section_that_a_page_names_exists(ours: library.Library) -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(Path(paths.shipped(OURS)).rglob("*.md"))}
    named = {(path.name, found) for path, text in texts.items() for found in NAMED.findall(text)}
    assert len(named) > 100
    assert sorted(pair for pair in named if pair[1] not in ours.sections and pair[1] not in ours.aliases) == []


def test_every_lesson_leads_to_a_section() -> None:
    pages = [path for path in sorted((Path(paths.shipped(OURS)) / "lessons").glob("*.md")) if path.stem != "overview"]
    bare = [
        (path.stem, lesson.split("\n")[0])
        for path in pages
        for lesson in path.read_text(encoding="utf-8").split("\n## ")[1:]
        if "*Read:* `" not in lesson
    ]
    assert bare == []
