"""Which folders are indexed: the shipped knowledge base, and the handbooks that a user added.

The user's list is one JSON file in `paths.home()`, written aside and renamed. A folder's pages get ids that start with
its name ("ops/runbooks#drain"), so that ours and theirs never collide. Reads the commit of a git checkout from its
files; starts no git. Knows nothing of searching.

>>> add("~/handbooks/ops", licence="internal").name
'ops'
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from skillserver import paths
from skillserver.errors import BadRequest, DataBroken, NotHere
from skillserver.knowledge import licences, sections

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
    return (Folder("", str(paths.shipped(OURS)), OUR_LICENCE), *added())


def add(path: str | Path, licence: str = "", name: str = "") -> Folder:
    """Index a folder from now on; the licence is looked for when none is said.

    Raises BadRequest when it is no folder, holds no page, or its name is taken.
    """
    root = Path(path).expanduser().resolve()
    if not root.is_dir():
        raise BadRequest("no_such_folder", f"{str(path)!r} is not a folder", next="pass a folder that holds Markdown files")
    if not any(root.rglob("*.md")):
        raise BadRequest("no_pages", f"{str(path)!r} holds no *.md file", next="pass a folder that holds Markdown files")
    folder = Folder(re.sub(r"[^\w.-]+", "-", name or root.name).strip("-."), str(root), licence or licences.of(root))
    known = added()
    if taken := [other for other in known if other.name == folder.name and other.path != folder.path]:
        raise BadRequest("name_taken", f"the name {folder.name!r} stands for {taken[0].path}", next="pass another name")
    if not folder.name or folder.name == "ours" or (paths.shipped(OURS) / folder.name).exists():
        raise BadRequest("name_taken", f"{folder.name!r} stands for the shipped knowledge base or a chapter of it", next="pass another name")
    _write([*(other for other in known if other.path != folder.path), folder])
    return folder


def refresh(name: str = "") -> None:
    """Look again for the licence of one folder, or of all. One that was said by hand is kept where no file names any."""
    _write([
        replace(folder, licence=licences.of(folder.root) or folder.licence) if name in ("", folder.name) else folder for folder in added()
    ])  # fmt: skip


def remove(name: str) -> None:
    """Forget a folder; its files stay. Raises BadRequest naming the folders there are."""
    known = added()
    kept = [other for other in known if other.name != name]
    if len(kept) == len(known):
        raise BadRequest("unknown_source", f"no added folder is named {name!r}", valid=[other.name for other in known], next="name one of them")
    _write(kept)


def stamp(folders: Iterable[Folder]) -> tuple[tuple[str, int, int], ...]:
    """Equal as long as no file of the user's folders changed. The shipped pages do not change under a server."""
    found = []
    for folder in folders:
        if not folder.ours:
            found.append((f"{folder.name} {commit(folder.root)}", 0, 0))
            for path in sections.pages_of(folder.root):
                with contextlib.suppress(OSError):
                    about = path.stat()
                    found.append((str(path), about.st_mtime_ns, about.st_size))
    return tuple(found)


def commit(root: Path) -> str:
    """The first 12 characters of the commit checked out at or above `root`; "" when it is no git checkout."""
    for place in (root, *root.parents):
        git = place / ".git"
        if git.is_file():  # a linked work tree names its folder there
            git = place / git.read_text(encoding="utf-8", errors="replace").strip().removeprefix("gitdir: ")
        if (git / "HEAD").is_file():
            return _commit(git, (git / "HEAD").read_text(encoding="utf-8", errors="replace").strip())[:12]
    return ""


def _commit(git: Path, head: str) -> str:
    if not head.startswith("ref: "):
        return head
    shared = git / (git / "commondir").read_text(encoding="utf-8").strip() if (git / "commondir").is_file() else git
    name, packed = head.removeprefix("ref: "), shared / "packed-refs"
    if (shared / name).is_file():
        return (shared / name).read_text(encoding="utf-8").strip()
    lines = packed.read_text(encoding="utf-8").splitlines() if packed.is_file() else []
    return next((line.split()[0] for line in lines if line.endswith(f" {name}")), "")


def added() -> list[Folder]:
    """The user's folders. Raises DataBroken when the record cannot be read."""
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
