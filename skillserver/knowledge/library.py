"""The indexed pages of this process: every section, the index over them, and what a reader should be told about both.

One build serves all threads: `warm()` starts it, and a question that comes earlier waits for it. Sections are kept
beside the index, because parsing a whole book again costs a second; of a changed folder only the changed files are
parsed and indexed again. Knows nothing of questions or of Markdown.

>>> current().sections["training/memory#zero-stages"].trail
('Memory', 'ZeRO stages')
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import math
import re
import threading
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from skillserver import paths
from skillserver.errors import BadRequest, DataBroken
from skillserver.knowledge import index, sections, sources, words
from skillserver.knowledge.index import Content, Index
from skillserver.knowledge.sections import Page, Section
from skillserver.knowledge.sources import Folder
from skillserver.knowledge.vocabulary import Words

SURFACE = re.compile(r"(?<![\w-])[a-z]{4,}(?![\w-])")  # words worth correcting a typo to
PLAIN = re.compile(r"[a-z]+")

TWO_EDITS_FROM = 11  # letters; in shorter words two edits reach other words (prediction, production)
CHECK_EVERY_S = 5.0  # how often a running server looks whether files of a user's folder changed
CHANGED_FROM = 7  # letters; in shorter words one changed letter makes another word (react, reach)


@dataclass(eq=False)
class Library:
    """Pages in order, sections by id, old ids, the open index; `notes` are for the reader of an answer.

    `broken` is folder name -> file -> what is wrong with it; such a file is searched as far as it can be read.
    """

    pages: list[Page]
    index: Index
    folders: tuple[Folder, ...]
    notes: list[str] = field(default_factory=list)
    broken: dict[str, dict[str, str]] = field(default_factory=dict)
    indexed_pages: int = 0  # pages that this process had to cut into terms

    @functools.cached_property
    def sections(self) -> dict[str, Section]:
        return {section.id: section for page in self.pages for section in page.sections}

    @functools.cached_property
    def aliases(self) -> dict[str, str]:
        return {old: new for page in self.pages for old, new in page.aliases.items()}

    def words_of(self, section_id: str) -> Words:
        """What one section says."""
        return self.index.said.words(section_id)

    def title_of(self, section_id: str) -> dict[str, float]:
        """Terms of a section's title, each with its inverse document frequency."""
        if section_id not in self._titles:
            terms = {term.text for term in words.terms(self.sections[section_id].title, self.stem) if not term.joined}
            self._titles[section_id] = {term: math.log(1 + self.index.size / max(1, self.frequency(term))) for term in terms}
        return self._titles[section_id]

    @functools.cached_property
    def _titles(self) -> dict[str, dict[str, float]]:
        return {}

    def within(self, part: str, kind: str, source: str) -> frozenset[str] | None:
        """Ids of the sections under a page or chapter, of a kind, of a folder ("ours" or a user's); None without a filter.

        Raises BadRequest naming what there is.
        """
        if not (part or kind or source):
            return None
        key = (part.strip().strip("/").removesuffix(".md"), kind, source.strip())
        if key not in self._chosen:
            self._chosen[key] = self._within(*key)
        return self._chosen[key]

    @functools.cached_property
    def _chosen(self) -> dict[tuple[str, str, str], frozenset[str]]:
        return {}

    def _within(self, part: str, kind: str, source: str) -> frozenset[str]:
        names = ["ours", *(folder.name for folder in self.folders[1:])]
        if source and source not in names:
            raise BadRequest("unknown_source", f"no indexed folder is named {source[:80]!r}", valid=names, next="`skillserver sources list`")
        under = [section for section in self.sections.values() if not part or section.page == part or f"{section.id}/".startswith(f"{part}/")]
        if not under:
            chapters = list(dict.fromkeys(page.id.rpartition("/")[0] or page.id for page in self.pages))
            raise BadRequest("unknown_part", f"no page or chapter has the id {part[:80]!r}", valid=chapters[:40], next="name a chapter or page")
        wanted = "" if source == "ours" else source
        return frozenset(
            section.id for section in under if (not kind or kind in section.kinds) and (not source or self.folder_of(section).name == wanted)
        )

    def stem(self, word: str) -> str:
        """The stem that the index holds."""
        return index.stem(word)

    def frequency(self, term: str) -> int:
        """In how many sections a stemmed term occurs."""
        return self.index.frequency(term)

    def nearest(self, word: str) -> str:
        """The most frequent known word that a slip of the fingers makes `word` of, "" when there is none."""
        for distance in (1, 2) if len(word) >= TWO_EDITS_FROM else (1,):
            for near in words.nearest(word, self._by_first_letter.get(word[0], []), distance):
                if len(word) >= CHANGED_FROM or len(near) != len(word) or sorted(near) == sorted(word):
                    return near
        return ""

    def halves(self, word: str) -> tuple[str, str] | None:
        """The two neighbouring words that some page writes apart: flashattention -> flash, attention."""
        found = self.index.extra["pairs"].get(word)
        return (word[:found], word[found:]) if found else None

    @functools.cached_property
    def _by_first_letter(self) -> dict[str, list[str]]:
        known: dict[str, list[str]] = {}
        for word in self.index.extra["lexicon"]:
            known.setdefault(word[0], []).append(word)
        return known

    @functools.cached_property
    def _origins(self) -> dict[str, str]:
        return {}

    def origin(self, folder: Folder) -> str:
        """Commit and licence of a user's folder, as a hit cites them."""
        if folder.name not in self._origins:
            commit = sources.commit(folder.root)
            said = [f"commit {commit}"] * bool(commit) + [f"licence {folder.licence}"] * bool(folder.licence)
            self._origins[folder.name] = ", ".join(said)
        return self._origins[folder.name]

    def folder_of(self, section: Section) -> Folder:
        """The folder a section came from."""
        return next((folder for folder in self.folders[1:] if section.id.startswith(folder.prefix)), self.folders[0])


@dataclass
class _Opened:
    library: Library
    stamp: object
    checked_s: float


_lock = threading.Lock()
_open: dict[tuple[tuple[Folder, ...], Path], _Opened] = {}


def current() -> Library:
    """The library of the shipped pages and the user's folders, built or opened at the first call. Raises DataBroken."""
    return at(sources.folders(), paths.cache())


def at(folders: tuple[Folder, ...], cache: Path) -> Library:
    """The library of these folders with its index under `cache`; threads that come together wait for one build."""
    key = (folders, cache)
    with _lock:
        kept = _open.get(key)
        if not kept or time.monotonic() - kept.checked_s > CHECK_EVERY_S:
            stamp = sources.stamp(folders)
            library = kept.library if kept and kept.stamp == stamp else _opened(folders, cache)
            for other in [known for known in _open if known[1] == cache]:  # what was open before a folder was added
                del _open[other]
            _open[key] = kept = _Opened(library, stamp, time.monotonic())
        return kept.library


def warm() -> threading.Thread:
    """Start building in a thread; what goes wrong there is raised again by the first question."""
    thread = threading.Thread(target=_quietly, name="knowledge index", daemon=True)
    thread.start()
    return thread


def forget() -> None:
    """Open everything anew at the next question: pages or folders changed. Answers under way keep what they hold."""
    with _lock:
        _open.clear()


def _quietly() -> None:
    try:
        current()
    except DataBroken:
        return


def _opened(folders: tuple[Folder, ...], cache: Path) -> Library:
    read = {folder: sections.files(folder.root) for folder in folders}
    broken = {folder.name: dict(files.unread) for folder, files in read.items() if files.unread}
    notes = [f"{folder.path} is not there any more and was not searched" for folder in folders if not folder.root.is_dir()]
    notes += [f"{len(files)} files of {name} cannot be read and were not searched" for name, files in broken.items()]
    if not any(files.texts for files in read.values()):
        raise DataBroken("no_pages", f"no Markdown page lies in {', '.join(folder.path for folder in folders)}", next="reinstall skillserver")
    name = index.fingerprint(part for folder, files in read.items() for pair in ((folder.name, ""), *files.texts.items()) for part in pair)
    if opened := index.found(cache, name):
        return _library([_page(row) for row in opened.extra["pages"]], opened, folders, notes, broken)
    pages, fresh, extra, base = _content({folder: files.texts for folder, files in read.items()}, index.newest(cache))
    held = [section for page in pages for section in page.sections if section.searched]
    opened, note = index.ready(cache, name, Content(held, extra, frozenset(section.id for section in held if section.page in fresh), base))
    return _library(pages, opened, folders, [*notes, *[note] * bool(note)], broken, len(fresh))


def _library(
    pages: list[Page], opened: Index, folders: tuple[Folder, ...], notes: list[str], unread: dict[str, dict[str, str]], indexed: int = 0
) -> Library:
    broken = {name: {**unread.get(name, {}), **opened.extra["broken"].get(name, {})} for name in {*unread, *opened.extra["broken"]}}
    return Library(pages, opened, folders, notes, broken, indexed)


def _content(texts: dict[Folder, dict[str, str]], base: Index | None) -> tuple[list[Page], set[str], dict[str, Any], Index | None]:
    """(pages in order, ids of those that had to be parsed, what is kept beside the index, the index to take the rest from)."""
    usable = base if base and base.extra.get("code") == index.code() else None
    known = {row["id"]: row for row in usable.extra["pages"]} if usable else {}
    pages: list[Page] = []
    fresh: set[str] = set()
    hashes: dict[str, str] = {}
    broken: dict[str, dict[str, str]] = {}
    for folder, files in texts.items():
        for name, text in files.items():
            page_id, file = f"{folder.prefix}{name.removesuffix('.md')}", f"{folder.root.name}/{name}"
            hashes[page_id] = _hash(file, text)
            if usable and page_id in known and usable.extra["hashes"].get(page_id) == hashes[page_id]:
                pages.append(_page(known[page_id]))
                problem = usable.extra["broken"].get(folder.name, {}).get(name, "")
            else:
                page, problem = _parsed(folder, page_id, text, file)
                pages.append(page)
                fresh.add(page_id)
            if problem:
                broken.setdefault(folder.name, {})[name] = problem
    shown = [f"{section.title} {section.text}".lower() for page in pages for section in page.sections]
    extra = {"pages": [asdict(page) for page in pages], "lexicon": _lexicon(shown), "pairs": _pairs(shown), "hashes": hashes, "broken": broken,
             "code": index.code()}  # fmt: skip
    return pages, fresh, extra, usable if len(fresh) < 0.9 * len(pages) else None


def _hash(file: str, text: str) -> str:
    return hashlib.blake2b(f"{file}\n{text}".encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _parsed(folder: Folder, page_id: str, text: str, file: str) -> tuple[Page, str]:
    """(the page, what is wrong with it). A broken page of ours is an error; one of a user's only loses its front matter."""
    try:
        return sections.parse(page_id, text, file), ""
    except DataBroken as problem:
        if folder.ours:
            raise
        return sections.parse(page_id, text, file, strict=False), problem.message


def _page(row: dict[str, Any]) -> Page:
    """A page as it was kept in JSON, where tuples became lists."""
    rows: list[dict[str, Any]] = [
        {key: tuple(value) if isinstance(value, list) else value for key, value in kept.items()} for kept in row["sections"]
    ]
    return Page(**{**row, "sections": tuple(Section(**kept) for kept in rows)})


def _lexicon(texts: list[str]) -> list[str]:
    """Words as written, the most frequent first."""
    counts = Counter(word for text in texts for word in SURFACE.findall(text))
    return [word for word, _ in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))]


def _pairs(texts: list[str]) -> dict[str, int]:
    """Neighbouring words that stand together in two sections or more: joined spelling -> where it is to be cut."""
    counts: Counter[tuple[str, str]] = Counter()
    for text in texts:
        counts.update(set(itertools.pairwise(PLAIN.findall(text))))
    often = [pair for pair, count in counts.items() if count > 1 and min(map(len, pair)) > 2]
    return {left + right: len(left) for left, right in sorted(often)}
