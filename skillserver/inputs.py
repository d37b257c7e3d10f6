"""What people type -> arguments, and what a result means for the exit code. Knows no tool.

>>> arguments(["tokens=15T", "n_accelerators=64"])
{'tokens': '15T', 'n_accelerators': 64}
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Container
from dataclasses import replace
from pathlib import Path
from typing import Any

from skillserver.errors import BadRequest
from skillserver.permissions import Profile

RANK = {"warning": 1, "critical": 2}
ENDED_BADLY = ("cancelled", "failed", "lost")
LEVELS = ("debug", "info", "warning", "error")


def arguments(given: list[str]) -> dict[str, Any]:
    """Arguments from JSON, @file, `-` (stdin) and name=value pairs, later ones winning. Raises BadRequest.

    In a pair the value is JSON when it reads as JSON, the text of a file after `@`, stdin for `-`, else text.
    """
    merged: dict[str, Any] = {}
    for text in given:
        merged |= _document(text) if text == "-" or text[:1] in ("{", "@", "[") else _pair(text)
    return merged


def _document(text: str) -> dict[str, Any]:
    raw = _read(text)
    try:
        parsed = json.loads(raw) if raw.strip() else {}
    except (ValueError, RecursionError) as problem:
        why = "nested too deeply" if isinstance(problem, RecursionError) else problem
        raise BadRequest("bad_json", f"the arguments are not JSON: {why}", next='pass {"name": value}, @file.json, - or name=value') from None
    if not isinstance(parsed, dict):
        raise BadRequest("bad_json", f"the arguments are a JSON {type(parsed).__name__}", next="pass one JSON object")
    return parsed


def _read(text: str) -> str:
    try:
        if text == "-":
            return sys.stdin.read()
        return Path(text[1:]).read_text(encoding="utf-8") if text.startswith("@") else text
    except OSError as problem:
        raise BadRequest("bad_input", f"{text[1:]!r} cannot be read: {problem.strerror}", next="check the path after @") from None
    except UnicodeDecodeError as problem:
        place = "stdin" if text == "-" else repr(text[1:])
        raise BadRequest("bad_input", f"{place} is not UTF-8 text (byte {problem.start})",
                         next="convert it (iconv -t UTF-8), or name the file by the tool's own path or paths") from None  # fmt: skip


def _pair(text: str) -> dict[str, Any]:
    name, found, value = text.partition("=")
    if not found:
        raise BadRequest("bad_usage", f"{text!r} is neither JSON nor name=value", next="skillserver tools NAME lists the arguments")
    if value == "-" or value.startswith("@"):
        return {name: _read(value)}
    try:
        return {name: json.loads(value)}
    except (ValueError, RecursionError):
        return {name: value}


def pythons(given: list[str], entered: Container[str] = ()) -> dict[str, str]:
    """{name: path} of `--python NAME=PATH`, in the order given; the path of a name in `entered` is one inside its profile."""
    found = {}
    for text in given:
        name, equals, path = text.partition("=")
        if not (equals and name and path):
            raise BadRequest("bad_usage", f"--python {text!r} is not NAME=PATH")
        if name not in entered and not Path(path).expanduser().exists():
            raise BadRequest("no_such_python", f"--python {name}: {path} does not exist")
        found[name] = path
    return found


def profiles(prefixes: list[str], env_files: list[str]) -> dict[str, Profile]:
    """{name: profile} of `--profile NAME=WORDS` and `--env-file NAME=PATH`; one name may have both."""
    found: dict[str, Profile] = {}
    for text in prefixes:
        name, equals, words = text.partition("=")
        if not (equals and name and words.strip()):
            raise BadRequest("bad_usage", f"--profile {text!r} is not NAME=WORDS", next="--profile nemo='apptainer exec --nv /images/nemo.sif'")
        found[name] = Profile(prefix=tuple(shlex.split(words)))
    for text in env_files:
        name, equals, path = text.partition("=")
        if not (equals and name and path) or not Path(path).expanduser().is_file():
            raise BadRequest("bad_usage", f"--env-file {text!r} is not NAME=PATH of a file")
        found[name] = replace(found.get(name, Profile()), env_file=path)
    return found


def log_level(name: str) -> str:
    """A known level. Raises BadRequest."""
    if name.lower() not in LEVELS:
        raise BadRequest("bad_usage", f"--log-level {name!r} is not known", valid=LEVELS)
    return name.lower()


def pretty(document: dict[str, Any]) -> str:
    """The JSON that `--json` prints; where stdout cannot show every character they are escaped, and it stays JSON."""
    utf_8 = (getattr(sys.stdout, "encoding", None) or "").lower().replace("-", "") == "utf8"
    return json.dumps(document, ensure_ascii=not utf_8, indent=1, allow_nan=False)


def exit_code(document: dict[str, Any], fail_on: str, *, told_to_end: bool = False) -> int:
    """1 for a run that failed or was ended early (unless the call was to end it), 3 for a verdict at or above `fail_on`, else 0."""
    if document.get("state") in ENDED_BADLY[told_to_end:]:
        return 1
    bad = RANK.get(str(document.get("verdict")), 0)
    return 3 if fail_on and bad >= RANK[fail_on] else 0
