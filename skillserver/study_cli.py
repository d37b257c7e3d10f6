"""`skillserver study`: the nineteen days of the path, with ticks for what is done.

    skillserver study
    skillserver study 4 --answers
    skillserver study 4 --done

Thin: what is shown is made by `study.py`, the ticks are kept by `knowledge/ticks.py`. Chinese with --zh or by the locale.
"""

from __future__ import annotations

from typing import Annotated

import typer

from skillserver import inputs, paths
from skillserver.errors import BadRequest, SkillError

LOCALES = ("LC_ALL", "LC_MESSAGES", "LANG")  # the first that is set counts


def study(day: Annotated[str, typer.Argument(help="A day, such as 4; nothing for the list.")] = "",
          done: Annotated[bool, typer.Option("--done", help="Tick the day.")] = False,
          undo: Annotated[bool, typer.Option("--undo", help="Take the tick away.")] = False,
          answers: Annotated[bool, typer.Option("--answers", help="Show the answers under the questions.")] = False,
          zh: Annotated[bool | None, typer.Option("--zh/--en", help="Chinese or English; else by the locale.")] = None,
          as_json: Annotated[bool, typer.Option("--json", help="Print the one result document as JSON.")] = False) -> None:  # fmt: skip
    """Learn the field in nineteen days: what to read, what to try, questions with answers; remembers what is done."""
    try:
        _refuse(day, done, undo, answers)
        typer.echo(_answer(day, done, undo, answers, _language(zh), as_json))
    except SkillError as refused:
        if as_json:
            typer.echo(inputs.pretty(refused.document()))
        raise


def _answer(day: str, done: bool, undo: bool, answers: bool, language: str, as_json: bool) -> str:
    from skillserver import study as shown
    from skillserver.knowledge import days, ticks

    one = days.day(day, language) if day else None
    if one and (done or undo):
        ticks.tick(one.number) if done else ticks.untick(one.number)
    if one and not (done or undo):
        return inputs.pretty(shown.document(one, ticks.done())) if as_json else shown.page(one, language, answers=answers)
    if as_json:
        return inputs.pretty({"days": [shown.row(each, ticks.done()) for each in days.days(language)]})
    return shown.listing(language)


def _refuse(day: str, done: bool, undo: bool, answers: bool) -> None:
    """Raises BadRequest for options that do not go together."""
    if done and undo:
        raise BadRequest("bad_usage", "--done and --undo exclude each other", next="give one of them")
    if not day and (done or undo or answers):
        option = "--done" if done else "--undo" if undo else "--answers"
        raise BadRequest("bad_usage", f"{option} needs a day", next=f"skillserver study 4 {option}")


def _language(zh: bool | None) -> str:
    if zh is None:
        zh = next((value for name in LOCALES if (value := paths.environment(name))), "").lower().startswith("zh")
    return "zh" if zh else "en"
