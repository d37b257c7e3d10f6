"""Which days of the path are done: one small JSON file in `paths.home()`, written aside and renamed.

It holds {"done": {"4": "2026-11-30"}} and nothing else. Knows numbers and dates; not what a day holds.

>>> tick(4); done()
{4: '2026-11-30'}
"""

from __future__ import annotations

import datetime
import json
import os
import tempfile
from pathlib import Path

from skillserver import paths
from skillserver.errors import DataBroken, NotHere

RECORD = "study.json"


def record() -> Path:
    """Where the ticks are kept."""
    return paths.home() / RECORD


def done() -> dict[int, str]:
    """Day -> the date it was ticked. Raises DataBroken when the record cannot be read."""
    try:
        kept = json.loads(record().read_text(encoding="utf-8"))["done"]
        return {int(number): str(kept[number]) for number in sorted(kept, key=int)}
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as problem:
        raise DataBroken("study_broken", f"{record()}: {type(problem).__name__}: {problem}", next="correct or remove that file") from problem


def tick(number: int) -> None:
    """Day `number` is done today; a day that was ticked before keeps its date. Raises NotHere where nothing can be written."""
    _write({number: datetime.date.today().isoformat()} | done())


def untick(number: int) -> None:
    """Day `number` is not done."""
    kept = done()
    if kept.pop(number, None):
        _write(kept)


def _write(kept: dict[int, str]) -> None:
    text = json.dumps({"done": {str(number): kept[number] for number in sorted(kept)}}, indent=1)
    try:
        record().parent.mkdir(parents=True, exist_ok=True)
        handle, aside = tempfile.mkstemp(prefix=f".{RECORD}.", dir=record().parent)
        os.close(handle)
        Path(aside).write_text(text, encoding="utf-8")
        Path(aside).replace(record())
    except OSError as problem:
        raise NotHere("home_not_writable", f"{record()} cannot be written: {problem}", next="set SKILLSERVER_HOME to a folder of yours") from problem
