"""The search index: built once beside its final name, moved there by one rename, opened by every later process.

A changed page replaces its own sections in a copy of the newest index; everything else is taken over.

The only file that imports whoosh, lazily and with its import warnings silenced. A directory is named by the
fingerprint of all it was made from, so one under its final name is whole. Where nothing can be written the same index
lives in memory. An index is a pickle: one that another user owns or could have changed is never opened.
Knows term weights and section ids; not questions, budgets or Markdown.

>>> index, note = ready(Path("~/.cache/skillserver"), "index-0f3a", Content(sections, extra={}))
>>> index.score({"zero": 1.0, "stage": 1.0}, limit=3)
[('training/memory#zero-stages', 9.1)]
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import heapq
import json
import math
import os
import shutil
import tempfile
import threading
import time
import warnings
from array import array
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field
from importlib import import_module, metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from skillserver.knowledge import vocabulary
from skillserver.knowledge.sections import Section
from skillserver.knowledge.vocabulary import Vocabulary

PREFIX = "index-"
CONTENTS = "contents.json"  # written last: sizes of every file, and what the caller keeps beside the index
HASHES, COUNTED = "words.bin", "frequencies.bin"
K1, B = 1.2, 0.5
BOOSTS = {"text": 1.0, "title": 0.4}
LEFTOVER_S = 3600
KEPT = 2
CACHED_TERMS = 20_000


@dataclass(frozen=True)
class Content:
    """What an index is made of. With `base`, only `fresh` sections are cut into terms; the rest is taken from there."""

    sections: list[Section]
    extra: dict[str, Any]
    fresh: frozenset[str] = frozenset()
    base: Index | None = field(default=None, repr=False)


class Index:
    """An open index; safe to share between threads. Scores are BM25 a field, of the postings that whoosh keeps."""

    def __init__(self, opened: Any, extra: dict[str, Any], said: Vocabulary, place: Path | None = None) -> None:
        self._reader = opened.reader()
        self._reading = threading.Lock()
        self._ids: dict[int, str] = {number: kept["id"] for number, kept in self._reader.iter_docs()}
        self._means = dict(zip(BOOSTS, said.means(), strict=True))
        self._values = functools.lru_cache(CACHED_TERMS)(self._computed)
        self.extra, self.said, self.place = extra, said, place
        self.size = len(self._ids)

    def score(self, weights: dict[str, float], limit: int, among: Container[str] | None = None) -> list[tuple[str, float]]:
        """(section id, score) of the best sections for weighted terms, best first, ties in the order of ids."""
        scores: dict[str, float] = {}
        for term, weight in weights.items():
            for name, boost in BOOSTS.items():
                for section_id, value in self._values(name, term).items():
                    scores[section_id] = scores.get(section_id, 0.0) + weight * boost * value
        chosen = [pair for pair in scores.items() if among is None or pair[0] in among]
        return heapq.nsmallest(limit, chosen, key=lambda pair: (-round(pair[1], 9), pair[0]))

    def frequency(self, term: str) -> int:
        """In how many sections a stemmed term occurs."""
        return self.said.frequency(term)

    def _computed(self, name: str, term: str) -> dict[str, float]:
        """Section id -> BM25 of one term in one field; kept, since questions share their words."""
        counts = self._counts(name, term)
        idf = 1 + math.log(self.size / (len(counts) + 1))
        out = {}
        for section_id, count in counts.items():
            length = self.said.lengths(section_id)[name == "title"]
            out[section_id] = idf * count * (K1 + 1) / (count + K1 * (1 - B + B * length / self._means[name]))
        return out

    def _counts(self, name: str, term: str) -> dict[str, float]:
        """Section id -> how often the term stands there."""
        counts: dict[str, float] = {}
        with self._reading, contextlib.suppress(_whoosh().reading.TermNotFound):
            found = self._reader.postings(name, term)
            while found.is_active():
                counts[self._ids[found.id()]] = found.weight()
                found.next()
        return counts


@functools.cache
def _whoosh() -> SimpleNamespace:
    """Whoosh 2.7.4 has invalid escapes: the first compile warns, and its codec is imported late, so take both here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        import_module("whoosh.codec.whoosh3")
        names = {"index", "fields", "reading"}
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


def code() -> str:
    """Stands for all that turns pages into an index: this folder's code and this whoosh."""
    return fingerprint([])


def found(root: Path, name: str) -> Index | None:
    """The whole index that an earlier process left, or None. Marks it as used."""
    place = root / name
    try:
        kept = json.loads((place / CONTENTS).read_text(encoding="utf-8")) if _trusted(place) else None
        if not kept or kept["sizes"] != _sizes(place):
            return None
        hashes, counted = array("I"), array("I")
        hashes.frombytes((place / HASHES).read_bytes())
        counted.frombytes((place / COUNTED).read_bytes())
        opened = _whoosh().index.open_dir(str(place), readonly=True, schema=_schema())
        index = Index(opened, kept["extra"], Vocabulary(hashes, kept["rows"], counted), place)
    except (OSError, ValueError, KeyError, TypeError, EOFError, _whoosh().index.IndexError):
        return None
    with contextlib.suppress(OSError):
        os.utime(place)
    return index


def newest(root: Path) -> Index | None:
    """The whole index that was used last, to take over what has not changed."""
    with contextlib.suppress(OSError):
        for place in sorted(root.glob(f"{PREFIX}*"), key=lambda place: place.stat().st_mtime, reverse=True):
            if index := found(root, place.name):
                return index
    return None


def ready(root: Path, name: str, content: Content) -> tuple[Index, str]:
    """Build the index and open it; the note says why it lives in memory, "" when it does not."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        _sweep(root)
        _build_beside(root, name, content)
    except OSError as problem:
        return _in_memory(content), f"the index is kept in memory, since {root} cannot be written ({problem.strerror or problem})"
    if index := found(root, name):
        return index, ""
    return _in_memory(content), f"the index is kept in memory, since {root / name} belongs to another user or was damaged"


def _build_beside(root: Path, name: str, content: Content) -> None:
    """Build in a dot folder and rename it; another process that was first wins."""
    aside = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=root))
    try:
        said = _filled(aside, content)
        (aside / HASHES).write_bytes(said.hashes.tobytes())
        (aside / COUNTED).write_bytes(said.counted.tobytes())
        kept = {"extra": content.extra, "rows": said.rows, "sizes": _sizes(aside)}
        (aside / CONTENTS).write_text(json.dumps(kept, ensure_ascii=False, separators=(",", ":")), encoding="utf-8")
        aside.chmod(0o755)
        _move(aside, root / name)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _filled(aside: Path, content: Content) -> Vocabulary:
    if content.base and content.base.place:
        try:
            return _changed(aside, content)
        except FileNotFoundError:  # another process swept the base away meanwhile
            for path in aside.iterdir():
                path.unlink()
    return _all_new(aside, content)


def _all_new(aside: Path, content: Content) -> Vocabulary:
    opened = _whoosh().index.create_in(str(aside), _schema())
    said = _write(opened.writer(), content.sections)
    opened.close()
    return said


def _changed(aside: Path, content: Content) -> Vocabulary:
    """A copy of the base without the sections that are gone or changed, and with the fresh ones."""
    base = content.base
    assert base and base.place
    for path in base.place.iterdir():
        if path.name not in (CONTENTS, HASHES, COUNTED):
            shutil.copyfile(path, aside / path.name)
    opened = _whoosh().index.open_dir(str(aside), schema=_schema())
    writer = opened.writer()
    staying = {section.id for section in content.sections} - content.fresh
    for section_id in base.said.rows:
        if section_id not in staying:
            writer.delete_by_term("id", section_id)
    said = _write(writer, [section for section in content.sections if section.id not in staying], base.said, sorted(staying))
    opened.close()
    return said


def _move(aside: Path, final: Path) -> None:
    if final.is_dir() and _trusted(final) and not _whole(final):
        shutil.rmtree(final, ignore_errors=True)  # a cleaner of temporary files has eaten from it
    try:
        aside.rename(final)
    except OSError:
        if not final.is_dir():
            raise


def _in_memory(content: Content) -> Index:
    opened = _whoosh().storage.RamStorage().create_index(_schema())
    said = _write(opened.writer(), content.sections)
    return Index(opened, content.extra, said)


def _write(writer: Any, sections: Iterable[Section], kept: Vocabulary | None = None, left: Iterable[str] = ()) -> Vocabulary:
    """Add the sections and commit; each is cut into terms once, for the index and for the vocabulary."""

    def added() -> Iterator[tuple[str, vocabulary.Cut]]:
        for section in sections:
            cut = vocabulary.cut(section, stem)
            writer.add_document(id=section.id, text=cut.text, title=cut.title)
            yield section.id, cut

    said = Vocabulary.of(added(), kept, left)
    writer.commit()
    return said


def _schema() -> Any:
    fields = _whoosh().fields
    text, title = fields.KEYWORD(scorable=True), fields.KEYWORD(scorable=True)  # given as lists of terms
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
