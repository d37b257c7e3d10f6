"""How the path is shown: the list with its ticks, one day, and the task of an agent that guides somebody through a day.

Joins `knowledge/days.py` and `knowledge/ticks.py`; knows no terminal and no protocol.

>>> print(listing("en").splitlines()[1])
[ ] Day 1: overview
"""

from __future__ import annotations

from typing import Any

from skillserver.knowledge import days, ticks
from skillserver.knowledge.days import Day

WORDS = {
    "en": {
        "path": "The path, day by day",
        "progress": "{done} of {all} days done. ",
        "next": "Next: skillserver study {day}",
        "all": "Look back with skillserver study 19 --answers.",
        "hidden": "(In stated outputs ... is anything, ~ is about. Answers: skillserver study {day} --answers. Done: skillserver study {day} --done)",
    },
    "zh": {
        "path": "学习路径：十九天",
        "progress": "已完成 {done} 天，共 {all} 天。",
        "next": "下一步：skillserver study {day} --zh",
        "all": "可以用 skillserver study 19 --zh --answers 复习。",
        "hidden": "（... 表示任意内容，~ 表示大约。看答案：skillserver study {day} --zh --answers；学完打勾：skillserver study {day} --done）",
    },
}
GUIDE = """Guide the user through the day of the ML engineering path that stands below, in the user's language.
Ask the user first, unless it is known: what they know of it already, and which GPU they have, if any.
1. Read the sections under the first heading with read_knowledge, and explain each in a few sentences of your own, with its numbers.
2. Do the exercises together: tool calls with your tools, code on the user's machine when they agree. Compare with the output stated there.
3. Ask the questions one at a time. Show no answer before the user has tried; judge by the answers below and name the section.
4. At the end say what they can do now, and that `skillserver study {day} --done` ticks the day.
Stop: when every question is answered, or when the user has had enough for today."""


def row(one: Day, kept: dict[int, str]) -> dict[str, Any]:
    """One line of the list as a record; `done` is the date of the tick."""
    return {"day": one.number, "title": one.title, "page": one.page, "done": kept.get(one.number)}


def document(one: Day, kept: dict[int, str]) -> dict[str, Any]:
    """One day as a record: its text without answers, what to read, and the questions with their answers."""
    asked = [{"question": each.question, "answer": each.answer} for each in one.questions]
    return row(one, kept) | {"reading": one.reading, "text": one.text(), "questions": asked}


def listing(language: str) -> str:
    """The days with their ticks, how many are done, and the next one."""
    words, kept, listed = WORDS[language], ticks.done(), days.days(language)
    lines = [f"[{'x' if one.number in kept else ' '}] {one.title}" for one in listed]
    waiting = [one.number for one in listed if one.number not in kept]
    progress = words["progress"].format(done=len(listed) - len(waiting), all=len(listed))
    return "\n".join([words["path"], *lines, "", f"{progress}{words['next'].format(day=waiting[0]) if waiting else words['all']}"])


def page(one: Day, language: str, *, answers: bool) -> str:
    """The day for a person: without `answers` it ends with how to see them."""
    return one.text(answers=answers) + ("" if answers else "\n\n" + WORDS[language]["hidden"].format(day=one.number))


def following() -> str:
    """The first day without a tick; the last when all are done."""
    kept, known = ticks.done(), [one.number for one in days.days()]
    return str(next((number for number in known if number not in kept), known[-1]))


def guide(asked: str, language: str) -> str:
    """An agent's task for one day, with the day and its answers; without `asked` the next day. Raises BadRequest for an unknown day."""
    one = days.day(asked or following(), language)
    return f"{GUIDE.format(day=one.number)}\n\n{one.text(answers=True)}"
