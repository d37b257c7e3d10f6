"""Results on disk: one JSON file a result under `history/` of the home, written aside and renamed.

A home on a shared disk holds every node's results in one folder; other folders, or single files, can be read beside it.
Files that are no results are named, never guessed. Each new result prunes those of its own host and kind: the newest MOST
stay, and of those no more than the newest FEWEST when they are older than two years. Knows files; not what the numbers mean.

>>> keep(Kept(at=now(), host="n17", metrics={...}))[0]
'/home/anna/.local/state/skillserver/history/20261130T113153Z-check_node-n17-4f0a9c21.json'
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path

from pydantic import ValidationError

from skillserver import paths
from skillserver.errors import BadRequest
from skillserver.measure.history import Kept

LARGEST_BYTES = 2**20
MOST, FEWEST = 200, 20  # results of one host and kind
OLDEST = timedelta(days=730)


def folder() -> Path:
    """Where results are kept."""
    return paths.home() / "history"


def keep(result: Kept) -> tuple[str, str]:
    """(path of the new file, "") or ("", why it could not be written)."""
    stamp = re.sub(r"[-:]|\.\d+", "", result.at)
    owner = f"{result.kind}-{re.sub(r'[^A-Za-z0-9._-]', '_', result.host)}"
    name = f"{stamp}-{owner}-{secrets.token_hex(4)}.json"
    aside = folder() / f".{name}.{os.getpid()}"
    try:
        folder().mkdir(parents=True, exist_ok=True)
        aside.write_text(result.model_dump_json(indent=1), encoding="utf-8")
        aside.replace(folder() / name)
    except OSError as problem:
        return "", f"the result was not kept: {folder()}: {problem.strerror}"
    prune(owner, stamp)
    return str(folder() / name), ""


def prune(owner: str, now: str) -> None:
    """Remove the oldest results of one host and kind ("check_node-n17"), as of a stamp; what cannot be removed stays."""
    mine = re.compile(rf"(\d{{8}})T\d{{6}}Z-{re.escape(owner)}-[0-9a-f]{{8}}\.json")
    oldest = f"{datetime.strptime(now[:8], '%Y%m%d') - OLDEST:%Y%m%d}"
    with suppress(OSError):
        stamped = sorted((file.name for file in folder().iterdir() if mine.fullmatch(file.name)), reverse=True)
        for name in [*stamped[MOST:], *(name for name in stamped[FEWEST:MOST] if name < oldest)]:
            (folder() / name).unlink(missing_ok=True)


def read(places: Iterable[Path]) -> tuple[list[Kept], list[str]]:
    """(every result of files and folders, a line for each file that is none). Raises BadRequest for a place that is not there."""
    found, broken = [], []
    for place in places:
        if not place.exists():
            raise BadRequest("no_such_place", f"{str(place)!r} is neither a file nor a folder", next="name result files, or folders that hold them")
        for file in sorted(place.glob("[!.]*.json")) if place.is_dir() else [place]:
            one = _read(file)
            if isinstance(one, Kept):
                found.append(one)
            else:
                broken.append(f"{file}: {one}")
    return list({one.model_dump_json(): one for one in found}.values()), broken


def _read(file: Path) -> Kept | str:
    try:
        if file.stat().st_size > LARGEST_BYTES:
            return "too large to be a result"
        return Kept.model_validate_json(file.read_bytes())
    except OSError as problem:
        return str(problem.strerror)
    except ValidationError as problem:
        return f"no result ({problem.errors()[0]['msg']})"
