"""Which days of the path are done: one small file a day in `paths.home()/study`, named by its number, holding the date.

A file a day, written aside and renamed, so that terminals that tick at once never lose each other's ticks, without a
lock (homes are on NFS). Knows numbers and dates; not what a day holds.

>>> tick(4); done()
{4: '2026-11-30'}
"""

from __future__ import annotations

import datetime
import os
import tempfile
from pathlib import Path

from skillserver import paths
from skillserver.errors import DataBroken, NotHere

FOLDER = "study"
SHOWN = 100  # characters of a problem worth repeating


def record(number: int) -> Path:
    """Where the tick of day `number` is kept."""
    return paths.home() / FOLDER / str(number)


def done() -> dict[int, str]:
    """Day -> the date it was ticked. Raises DataBroken when a tick cannot be read; other files there are left alone."""
    try:
        numbers = sorted(int(path.name) for path in (paths.home() / FOLDER).iterdir() if path.name.isascii() and path.name.isdigit())
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as problem:
        raise _broken(paths.home() / FOLDER, problem) from problem
    return {number: date for number in numbers if (date := _date(record(number)))}


def tick(number: int) -> None:
    """Day `number` is done today; a day that was ticked before keeps its date. Raises NotHere where nothing can be written."""
    if _date(record(number)):
        return
    try:
        record(number).parent.mkdir(parents=True, exist_ok=True)
        handle, aside = tempfile.mkstemp(prefix=f".{number}.", dir=record(number).parent)
        os.close(handle)
        Path(aside).write_text(datetime.date.today().isoformat() + "\n", encoding="utf-8")
        Path(aside).replace(record(number))
    except OSError as problem:
        raise _unwritable(number, problem) from problem


def untick(number: int) -> None:
    """Day `number` is not done, whatever its file held."""
    try:
        record(number).unlink(missing_ok=True)
    except NotADirectoryError:
        return
    except OSError as problem:
        raise _unwritable(number, problem) from problem


def _date(path: Path) -> str:
    """The date in one tick, "" when there is none."""
    try:
        return datetime.date.fromisoformat(path.read_text(encoding="utf-8").strip()).isoformat()
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except (OSError, ValueError) as problem:
        raise _broken(path, problem) from problem


def _broken(path: Path, problem: Exception) -> DataBroken:
    said = f"{path} is not the date of a tick ({str(problem)[:SHOWN]})"
    return DataBroken("study_broken", said, next=f"remove it, or skillserver study {path.name} --undo")


def _unwritable(number: int, problem: OSError) -> NotHere:
    return NotHere("home_not_writable", f"{record(number)} cannot be written: {problem}", next="set SKILLSERVER_HOME to a folder of yours")
