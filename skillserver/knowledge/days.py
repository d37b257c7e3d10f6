"""The path: nineteen days from the overview to the final review, each a page in English and one in Chinese.

A day's page lies in `knowledge_base/path/`, `day-04-networks.md` beside `day-04-networks.zh.md`. Its second-level
sections are always these four, in this order: what to read, what to try, what you can do afterwards, questions. A
question is a numbered line, its answer the quotation under it, so that a day can be shown without answers. Knows the
pages; not who has done which day (`ticks`) and no search engine.

>>> day("4").number
4
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path

from skillserver import paths
from skillserver.errors import BadRequest, DataBroken
from skillserver.knowledge import sections
from skillserver.knowledge.sections import Section
from skillserver.knowledge.sources import OURS

CHAPTER = "path"
ENGLISH, CHINESE = "en", "zh"
PARTS = ("read", "try", "afterwards", "questions")
NAME = re.compile(r"day-(\d\d)-[\w-]+?(\.zh)?\.md")
ASKED = re.compile(r"(?:path/)?(?:day[\s-]*|第\s*)?0*(\d{1,6})(?:\s*天|-[\w-]+(?:\.zh)?)?", re.I)
DIGITS = "〇一二三四五六七八九"
SPELLED = re.compile(r"第?(十)?([一二三四五六七八九])?天?")  # 四, 第十九天
QUESTION = re.compile(r"(\d+)\. +(.+)")
ANSWER = re.compile(r" +> ?(.*)")
SECTION_ID = re.compile(r"`([a-z]+/[a-z0-9-]+(?:#[\w-]+)?)`")
LONGEST = 40  # characters of a wrong day worth repeating


@dataclass(frozen=True)
class Question:
    """One question of a day, with its answer."""

    question: str
    answer: str


@dataclass(frozen=True)
class Day:
    """One day in one language. `parts` are its four second-level sections, each with what is nested under it."""

    number: int
    page: str
    title: str
    summary: str
    lead: str
    parts: dict[str, tuple[Section, ...]]

    @property
    def reading(self) -> list[str]:
        """Ids of the sections to read, in order."""
        return SECTION_ID.findall("\n".join(section.text for section in self.parts["read"]))

    @property
    def questions(self) -> list[Question]:
        """The questions with their answers, in order."""
        return _questions(self.parts["questions"][0].text)

    def text(self, *, answers: bool = False) -> str:
        """The day in Markdown; without the answers unless `answers`."""
        blocks = [f"# {self.title}\n\n{self.lead}"]
        for name, part in self.parts.items():
            for section in part:
                body = section.text if answers or name != "questions" else _without_answers(section.text)
                blocks.append(f"{'#' * section.level} {section.title}\n\n{body}".strip())
        return "\n\n".join(blocks)


def days(language: str = ENGLISH) -> tuple[Day, ...]:
    """Every day in order. Raises DataBroken when a page cannot be read or does not have the four parts."""
    return tuple(_read(number, path) for number, path in sorted(_files(language).items()))


def day(asked: str, language: str = ENGLISH) -> Day:
    """One day by "4", "day 4", "第 4 天" or its page's id. Raises BadRequest naming the days there are."""
    known = _files(language)
    number = _number(asked.strip())
    if number not in known:
        shown = asked if len(asked) <= LONGEST else f"{asked[:LONGEST]}..."
        raise BadRequest(
            "unknown_day", f"the path has no day {shown!r}", valid=[f"{min(known)} to {max(known)}"], next="skillserver study lists the days"
        )
    return _read(number, known[number])


def _number(asked: str) -> int:
    """The day that is meant, 0 when none is."""
    if spelled := SPELLED.fullmatch(asked):
        return DIGITS.index(spelled[2] or "〇") + (10 if spelled[1] else 0)
    found = ASKED.fullmatch(asked)
    return int(found[1]) if found else 0


@functools.cache
def _files(language: str) -> dict[int, Path]:
    folder = paths.shipped(OURS) / CHAPTER
    named = [(path, NAME.fullmatch(path.name)) for path in folder.glob("day-*.md")]
    found = {int(name[1]): path for path, name in named if name and bool(name[2]) == (language == CHINESE)}
    if not found:
        raise DataBroken("no_days", f"no page of a day lies in {folder}", next="reinstall skillserver")
    return found


@functools.cache
def _read(number: int, path: Path) -> Day:
    file = f"{CHAPTER}/{path.name}"
    page = sections.parse(file.removesuffix(".md"), path.read_text(encoding="utf-8"), file)
    lead, *rest = page.sections
    starts = [place for place, section in enumerate(rest) if section.level == 2]
    if len(starts) != len(PARTS) or starts[0] != 0:
        raise DataBroken(
            "page_broken",
            f"{file}: a day has {len(PARTS)} second-level sections, not {len(starts)}",
            next="correct the page, or reinstall skillserver",
        )
    ends = [*starts[1:], len(rest)]
    parts = {name: tuple(rest[start:end]) for name, start, end in zip(PARTS, starts, ends, strict=True)}
    return Day(number, page.id, page.title, page.summary, lead.text, parts)


def _questions(text: str) -> list[Question]:
    found: list[tuple[str, list[str]]] = []
    for line in text.split("\n"):
        if asked := QUESTION.fullmatch(line):
            found.append((asked[2], []))
        elif found and (said := ANSWER.fullmatch(line)):
            found[-1][1].append(said[1])
    return [Question(asked, "\n".join(said)) for asked, said in found]


def _without_answers(text: str) -> str:
    return "\n".join(line for line in text.split("\n") if not ANSWER.fullmatch(line))
