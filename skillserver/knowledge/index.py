"""The search index: built once beside its final name, moved there by one rename, opened by every later process.

The only file that imports whoosh, lazily and with its import warnings silenced. A directory is named by the
fingerprint of all it was made from, so one under its final name is whole. Where nothing can be written the same index
lives in memory. An index is a pickle: one that another user owns or could have changed is never opened.
Knows term weights and section ids; not questions, budgets or Markdown.

>>> index, note = ready(Path("~/.cache/skillserver"), "index-0f3a", sections, extra={})
>>> index.score({"zero": 1.0, "stage": 1.0}, limit=3)
[('training/memory#zero-stages', 9.1)]
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Iterable, Iterator
from importlib import import_module, metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from skillserver.knowledge import words
from skillserver.knowledge.sections import Section

PREFIX = "index-"
CONTENTS = "contents.json"  # written last: sizes of every file, and what the caller keeps beside the index
TITLE_REPEATS = 2
TITLE_BOOST = 0.4
LEFTOVER_S = 3600
KEPT = 2


class Index:
    """An open index with one searcher; safe to share between threads."""

    def __init__(self, opened: Any, extra: dict[str, Any]) -> None:
        self._whoosh = _whoosh()
        self._opened = opened
        self._searcher = opened.searcher(weighting=self._whoosh.scoring.BM25F(B=0.5, K1=1.2))
        self._reader = self._searcher.reader()
        self.extra = extra
        self.size: int = self._reader.doc_count()

    def score(self, weights: dict[str, float], limit: int) -> list[tuple[str, float]]:
        """(section id, score) of the best sections for weighted terms, best first, ties in the order of ids."""
        query = self._whoosh.query
        asked = [query.Term("text", term, boost=weight) for term, weight in weights.items()]
        asked += [query.Term("title", term, boost=weight * TITLE_BOOST) for term, weight in weights.items()]
        hits = self._searcher.search(query.Or(asked), limit=limit, scored=True) if asked else []
        return sorted(((hit["id"], hit.score) for hit in hits), key=lambda pair: (-round(pair[1], 9), pair[0]))

    def frequency(self, term: str) -> int:
        """In how many sections a stemmed term occurs."""
        return int(self._searcher.doc_frequency("text", term))


@functools.cache
def _whoosh() -> SimpleNamespace:
    """Whoosh 2.7.4 has invalid escapes: the first compile warns, and its codec is imported late, so take both here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        import_module("whoosh.codec.whoosh3")
        names = {"index", "fields", "scoring", "query", "analysis"}
        return SimpleNamespace(
            storage=import_module("whoosh.filedb.filestore"),
            porter2=import_module("whoosh.lang.porter2"),
            **{name: import_module(f"whoosh.{name}") for name in names},
        )


@functools.lru_cache(maxsize=100_000)
def stem(word: str) -> str:
    """English stem by porter2; whoosh's `porter` is wrong on doubled consonants (mapping -> mapp)."""
    return str(_whoosh().porter2.stem(word))


def fingerprint(texts: Iterable[str]) -> str:
    """Name of the index made of these texts by this folder's code, its tables of constants included, and this whoosh."""
    digest = hashlib.blake2b(digest_size=8)
    code = [path.read_text(encoding="utf-8") for path in sorted(Path(__file__).parent.glob("*.py"))]
    for text in (metadata.version("whoosh"), *code, *texts):
        digest.update(f"{len(text)}:".encode())
        digest.update(text.encode("utf-8", "surrogatepass"))
    return PREFIX + digest.hexdigest()


def found(root: Path, name: str) -> Index | None:
    """The whole index that an earlier process left, or None. Marks it as used."""
    place = root / name
    try:
        kept = json.loads((place / CONTENTS).read_text(encoding="utf-8")) if _trusted(place) else None
        if not kept or kept["sizes"] != _sizes(place):
            return None
        index = Index(_whoosh().index.open_dir(str(place), readonly=True, schema=_schema()), kept["extra"])
    except (OSError, ValueError, KeyError, TypeError, EOFError, _whoosh().index.IndexError):
        return None
    with contextlib.suppress(OSError):
        os.utime(place)
    return index


def ready(root: Path, name: str, sections: Iterable[Section], extra: dict[str, Any]) -> tuple[Index, str]:
    """Build the index and open it; the note says why it lives in memory, "" when it does not."""
    sections = list(sections)
    try:
        root.mkdir(parents=True, exist_ok=True)
        _sweep(root)
        _build_beside(root, name, sections, extra)
    except OSError as problem:
        return _in_memory(sections, extra), f"the index is kept in memory, since {root} cannot be written ({problem.strerror or problem})"
    if index := found(root, name):
        return index, ""
    return _in_memory(sections, extra), f"the index is kept in memory, since {root / name} belongs to another user or was damaged"


def _build_beside(root: Path, name: str, sections: list[Section], extra: dict[str, Any]) -> None:
    """Build in a dot folder and rename it; another process that was first wins."""
    aside = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=root))
    try:
        opened = _whoosh().index.create_in(str(aside), _schema())
        _write(opened, sections)
        opened.close()
        (aside / CONTENTS).write_text(json.dumps({"extra": extra, "sizes": _sizes(aside)}, ensure_ascii=False), encoding="utf-8")
        aside.chmod(0o755)
        _move(aside, root / name)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _move(aside: Path, final: Path) -> None:
    if final.is_dir() and _trusted(final) and not _whole(final):
        shutil.rmtree(final, ignore_errors=True)  # a cleaner of temporary files has eaten from it
    try:
        aside.rename(final)
    except OSError:
        if not final.is_dir():
            raise


def _in_memory(sections: list[Section], extra: dict[str, Any]) -> Index:
    opened = _whoosh().storage.RamStorage().create_index(_schema())
    _write(opened, sections)
    return Index(opened, extra)


def _write(opened: Any, sections: list[Section]) -> None:
    writer = opened.writer()
    for section in sections:
        said = [section.title_zh, *section.keywords, *section.keywords_zh]
        heading = "\n".join([section.title, *said])
        body = "\n".join([section.title] * TITLE_REPEATS + [*section.trail, *said, section.text])
        writer.add_document(id=section.id, text=body, title=heading)
    writer.commit()


class CodeWords:
    """`words.terms` as whoosh calls an analyzer. At module level, since whoosh pickles it into the index."""

    def __call__(self, value: str, **_: Any) -> Iterator[Any]:
        token = _whoosh().analysis.Token(positions=True, chars=True)
        for term in words.terms(value, stem):
            token.text, token.pos, token.startchar, token.endchar = term.text, term.position, term.start, term.end
            token.boost, token.stopped = 1.0, False
            yield token

    def has_morph(self) -> bool:
        """Whoosh asks; we stem, but never list variants."""
        return False


def _schema() -> Any:
    fields = _whoosh().fields
    text, title = fields.TEXT(CodeWords(), phrase=False), fields.TEXT(CodeWords(), phrase=False)
    return fields.Schema(id=fields.ID(stored=True, unique=True), text=text, title=title)


def _sizes(place: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in sorted(place.iterdir()) if path.name != CONTENTS and not path.name.endswith("LOCK")}


def _whole(place: Path) -> bool:
    try:
        return bool(json.loads((place / CONTENTS).read_text(encoding="utf-8"))["sizes"] == _sizes(place))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _trusted(place: Path) -> bool:
    """Ours or root's, and nobody else may write there: whoosh unpickles what it reads."""
    if not place.is_dir():
        return False
    if not hasattr(os, "getuid"):
        return True
    return all(found.st_uid in (os.getuid(), 0) and not found.st_mode & 0o002 for found in (place.stat(), *(p.stat() for p in place.iterdir())))


def _sweep(root: Path) -> None:
    """Drop what killed builds left more than an hour ago, and all indexes but the newest."""
    for path in root.glob(f".{PREFIX}*"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > LEFTOVER_S:
                shutil.rmtree(path, ignore_errors=True)
    with contextlib.suppress(OSError):
        for path in sorted(root.glob(f"{PREFIX}*"), key=lambda path: path.stat().st_mtime, reverse=True)[KEPT - 1 :]:
            shutil.rmtree(path, ignore_errors=True)
