"""Pages are split at their headings; ids, lines and comments come out as promised."""

from __future__ import annotations

import pytest

from skillserver.errors import DataBroken
from skillserver.knowledge import sections

PAGE = """---
title: Memory
title_zh: 显存
summary: What fills it.
keywords: [OOM, out of memory]
keywords_zh: 显存不足、爆显存
sources:
  - {title: A paper, url: "https://example.org/a"}
  - plain source
checked: 2026-11-30
aliases: [training/ram]
---
Lead text.

## ZeRO & FSDP: stages
<!-- zh: 分片; 关键词1 关键词2 -->
<!-- keywords: sharding, stage 3 -->
Three of them.
<!-- a remark that nobody sees -->
The end.

### `zero_optimization` in **bold**
Nested.

```bash
# not a heading
## neither
```

## Again
One.

## Again
Two.

> ## quoted, no heading
"""


def test_a_page_becomes_sections_with_ids_trails_lines_and_search_words() -> None:
    page = sections.parse("training/memory", PAGE, "kb/training/memory.md")
    rows = [(s.id, s.trail, s.first_line, s.last_line, sorted(s.kinds), s.title_zh, s.keywords, s.keywords_zh) for s in page.sections]
    assert rows == [
        ("training/memory", ("Memory",), 13, 13, ["failure"], "显存", ("OOM", "out of memory"), ("显存不足", "爆显存")),
        ("training/memory#zero-fsdp-stages", ("Memory", "ZeRO & FSDP: stages"), 15, 20, [],
         "分片", ("sharding", "stage 3"), ("关键词1", "关键词2")),
        ("training/memory#zero-optimization-in-bold", ("Memory", "ZeRO & FSDP: stages", "zero_optimization in bold"), 22, 28, ["code"], "", (), ()),
        ("training/memory#again", ("Memory", "Again"), 30, 31, [], "", (), ()),
        ("training/memory#again-2", ("Memory", "Again"), 33, 36, [], "", (), ()),
    ]  # fmt: skip
    assert page.sections[1].text == "Three of them.\nThe end."
    assert page.sections[2].text == "Nested.\n\n```bash\n# not a heading\n## neither\n```"
    assert page.sections[0].sources == ("A paper https://example.org/a", "plain source")
    assert page.aliases == {"training/ram": "training/memory"}


def test_a_first_level_heading_is_the_title_of_a_page_without_front_matter() -> None:
    page = sections.parse("notes/ops", "# Ops notes\n\nHello.\n\n## Drain\nText.\n")
    found = [(s.id, s.title, s.text, s.first_line) for s in page.sections]
    assert found == [("notes/ops", "Ops notes", "Hello.", 1), ("notes/ops#drain", "Drain", "Text.", 5)]


def test_a_page_without_anything_is_one_empty_section() -> None:
    assert [(s.id, s.title, s.text) for s in sections.parse("a/b", "").sections] == [("a/b", "b", "")]


@pytest.mark.parametrize(
    ("title", "slug"),
    [("ZeRO stages", "zero-stages"), ("TP/PP & DP", "tp-pp-dp"), ("What's NCCL_IB_HCA?", "whats-nccl-ib-hca"),
     ("All-reduce – 2 × n", "all-reduce-2-n"), ("显存 不足", "显存-不足"), ("(80%)", "80")],
)  # fmt: skip
def test_a_slug_is_lower_case_words_joined_by_hyphens(title: str, slug: str) -> None:
    assert sections.slug(title) == slug


@pytest.mark.parametrize(
    ("head", "said"),
    [
        ("---\ntitle: a\nsummary: b: c: d\n---\n", "kb/p.md:3: the front matter is not YAML"),
        ("---\ntitle: a\n", "kb/p.md:1: the front matter is opened with --- and never closed"),
        ("---\n- a\n---\n", "kb/p.md:2: the front matter is list"),
        ("---\nkeyword: a\n---\n", "unknown key 'keyword', did you mean 'keywords'?"),
        ("---\ntitle: {a: b}\n---\n", "title is dict, not text"),
    ],
)
def test_broken_front_matter_is_named_with_file_and_line(head: str, said: str) -> None:
    with pytest.raises(DataBroken, match="page_broken") as raised:
        sections.parse("p", head + "Text.\n", "kb/p.md")
    assert said in str(raised.value)


def test_in_a_users_notes_broken_front_matter_only_loses_its_words() -> None:
    page = sections.parse("p", "---\ntitle: a: b: c\n---\n# Real\nText.\n", strict=False)
    assert (page.title, page.sections[0].text) == ("Real", "Text.")


def test_contents_list_pages_and_the_sections_of_a_chapter() -> None:
    pages = [sections.parse("training/memory", PAGE), sections.parse("hardware/gpu", "# GPUs\n")]
    assert sections.contents(pages) == "- `training/memory` Memory: What fills it.\n- `hardware/gpu` GPUs"
    assert sections.contents(pages, "hardware", depth=2) == "- `hardware/gpu` GPUs"
    assert "  - `training/memory#again-2` Again" in sections.contents(pages, "training", depth=2)


def test_a_step_of_a_longer_way_is_searched_by_its_lead_and_listed_in_its_chapter_by_title() -> None:
    text = "---\ntitle: Day 1\nsummary: First.\npart_of: path/overview\n---\nLead.\n\n## Try\nIt.\n"
    pages = [sections.parse("path/overview", "# The path\n\n## Days\nOne.\n"), sections.parse("path/day-01", text)]
    assert [(section.id, section.searched) for page in pages for section in page.sections] == [
        ("path/overview", True), ("path/overview#days", True), ("path/day-01", True), ("path/day-01#try", False)]  # fmt: skip
    assert sections.contents(pages) == "- `path/overview` The path"
    assert sections.contents(pages, "path", depth=2) == "- `path/overview` The path\n  - `path/overview#days` Days\n- `path/day-01` Day 1"
