"""Which folders are indexed: the shipped knowledge base, and the handbooks that a user added.

The user's list is one JSON file in `paths.home()`, written aside and renamed. A folder's pages get ids that start with
its name ("ops/runbooks#drain"), so that ours and theirs never collide. Reads the commit of a git checkout from its
files; starts no git. Knows nothing of searching.

>>> add("~/handbooks/ops", licence="internal").name
'ops'
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from skillserver import paths
from skillserver.errors import BadRequest, DataBroken, NotHere

OURS = "knowledge_base"
OUR_LICENCE = "CC-BY-SA-4.0"
RECORD = "sources.json"


@dataclass(frozen=True)
class Folder:
    """A folder of Markdown pages; `name` is "" for ours, whose ids carry no prefix."""

    name: str
    path: str
    licence: str

    @property
    def root(self) -> Path:
        return Path(self.path)

    @property
    def prefix(self) -> str:
        """What the ids of its pages start with."""
        return f"{self.name}/" if self.name else ""

    @property
    def ours(self) -> bool:
        return not self.name


def folders() -> tuple[Folder, ...]:
    """Ours first, then the user's in the order added. Raises DataBroken when the user's record cannot be read."""
    return (Folder("", str(paths.shipped(OURS)), OUR_LICENCE), *_added())


def add(path: str | Path, licence: str = "", name: str = "") -> Folder:
    """Index a folder from now on. Raises BadRequest when it is no folder, holds no page, or its name is taken."""
    root = Path(path).expanduser().resolve()
    if not root.is_dir():
        raise BadRequest("no_such_folder", f"{str(path)!r} is not a folder", next="pass a folder that holds Markdown files")
    if not any(root.rglob("*.md")):
        raise BadRequest("no_pages", f"{str(path)!r} holds no *.md file", next="pass a folder that holds Markdown files")
    folder = Folder(name or re.sub(r"[^\w.-]+", "-", root.name), str(root), licence)
    known = _added()
    if taken := [other for other in known if other.name == folder.name and other.path != folder.path]:
        raise BadRequest("name_taken", f"the name {folder.name!r} stands for {taken[0].path}", next="pass another name")
    if (paths.shipped(OURS) / folder.name).exists():
        raise BadRequest("name_taken", f"{folder.name!r} is a chapter of the shipped knowledge base", next="pass another name")
    _write([*(other for other in known if other.path != folder.path), folder])
    return folder


def remove(name: str) -> None:
    """Forget a folder; its files stay. Raises BadRequest naming the folders there are."""
    known = _added()
    kept = [other for other in known if other.name != name]
    if len(kept) == len(known):
        raise BadRequest("unknown_source", f"no added folder is named {name!r}", valid=[other.name for other in known], next="name one of them")
    _write(kept)


def commit(root: Path) -> str:
    """The first 12 characters of the commit checked out at or above `root`; "" when it is no git checkout."""
    for place in (root, *root.parents):
        head = place / ".git" / "HEAD"
        if head.is_file():
            return _commit(place / ".git", head.read_text(encoding="utf-8").strip())[:12]
    return ""


def _commit(git: Path, head: str) -> str:
    if not head.startswith("ref: "):
        return head
    name, packed = head.removeprefix("ref: "), git / "packed-refs"
    if (git / name).is_file():
        return (git / name).read_text(encoding="utf-8").strip()
    lines = packed.read_text(encoding="utf-8").splitlines() if packed.is_file() else []
    return next((line.split()[0] for line in lines if line.endswith(f" {name}")), "")


def _added() -> list[Folder]:
    record = paths.home() / RECORD
    try:
        return [Folder(**row) for row in json.loads(record.read_text(encoding="utf-8"))]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except (OSError, ValueError, TypeError) as problem:
        raise DataBroken("sources_broken", f"{record}: {problem}", next="correct or remove that file") from problem


def _write(known: list[Folder]) -> None:
    record = paths.home() / RECORD
    text = json.dumps([asdict(folder) for folder in known], indent=1, ensure_ascii=False)
    try:
        record.parent.mkdir(parents=True, exist_ok=True)
        handle, aside = tempfile.mkstemp(prefix=f".{RECORD}.", dir=record.parent)
        os.close(handle)
        Path(aside).write_text(text, encoding="utf-8")
        Path(aside).replace(record)
    except OSError as problem:
        raise NotHere("home_not_writable", f"{record} cannot be written: {problem}", next="set SKILLSERVER_HOME to a folder of yours") from problem
