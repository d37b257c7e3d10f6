"""A pydantic ValidationError -> one BadRequest sentence: every bad field, the value seen, its bound, no library URLs.

>>> str(refusal("run_mamf", ["dtype", "budget_s"], problem))
"bad_arguments: run_mamf: budget_s: -1 should be greater than 0; unknown argument 'dtyp', did you mean 'dtype'? Next: ..."
"""

from __future__ import annotations

import difflib
import json
import re
from typing import Any

from pydantic import ValidationError

from skillserver.errors import BadRequest

SEEN = 60  # characters of a bad value worth repeating
LISTED = 8  # bad fields worth naming in one sentence


def refusal(name: str, known: list[str], problem: ValidationError) -> BadRequest:
    """One error for the whole call."""
    fields: dict[str, list[str]] = {}
    for error in problem.errors(include_url=False):
        fields.setdefault(_where(error["loc"]), []).append(_said(error, known))
    told = [text for texts in fields.values() for text in _folded(texts)]
    more = f"; and {len(told) - LISTED} more" if len(told) > LISTED else ""
    return BadRequest("bad_arguments", f"{name}: {'; '.join(told[:LISTED])}{more}", next=f"{name} takes {', '.join(known)}")


def _folded(texts: list[str]) -> list[str]:
    """The members of a union each complain; one line for the field is enough."""
    unique = list(dict.fromkeys(texts))
    return unique if len(unique) == 1 else [f"{unique[0]} (or {', or '.join(text.split(': ', 1)[-1] for text in unique[1:3])})"]


def _where(location: tuple[int | str, ...]) -> str:
    """`shapes.0.2` -> shapes[0][2]; the names pydantic gives to union members are left out."""
    text = ""
    for part in location:
        if isinstance(part, int):
            text += f"[{part}]"
        elif re.fullmatch(r"[a-z_][a-z0-9_]*", part) and part not in ("str", "int", "float", "bool") and not part.startswith("function"):
            text += f".{part}" if text else part
    return text or "arguments"


def _said(error: Any, known: list[str]) -> str:
    where, kind, seen = _where(error["loc"]), error["type"], _shown(error["input"])
    if kind == "extra_forbidden":
        near = difflib.get_close_matches(str(error["loc"][-1]), known, 1)
        return f"unknown argument {where!r}" + (f", did you mean {near[0]!r}?" if near else "")
    if kind == "missing":
        return f"{where} is required"
    message = error["msg"].removeprefix("Value error, ").removeprefix("Input ")
    if kind == "list_type" and isinstance(error["input"], str | int | float) and len(seen) <= SEEN:
        message += f", such as [{json.dumps(error['input'])}]"
    if kind == "literal_error":
        message = f"is not one of {error['ctx']['expected'].replace(' or ', ', ')}"
    return f"{where}: {seen} {message}" if message.startswith(("should", "is not")) else f"{where}: {seen}: {message}"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SEEN else f"{text[:SEEN]}... ({len(text)} characters)"
