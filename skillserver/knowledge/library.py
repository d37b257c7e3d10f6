"""The indexed pages of this process: every section, the index over them, and what a reader should be told about both.

One build serves all threads: `warm()` starts it, and a question that comes earlier waits for it. Sections are kept
beside the index, because parsing a whole book again costs a second. Knows nothing of questions or of Markdown.

>>> current().sections["training/memory#zero-stages"].trail
('Memory', 'ZeRO stages')
"""

from __future__ import annotations

import functools
import itertools
import re
import threading
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from skillserver import paths
from skillserver.errors import DataBroken
from skillserver.knowledge import index, sections, sources, words
from skillserver.knowledge.index import Index
from skillserver.knowledge.sections import Page, Section
from skillserver.knowledge.sources import Folder

SURFACE = re.compile(r"(?<![\w-])[a-z]{4,}(?![\w-])")  # words worth correcting a typo to
PLAIN = re.compile(r"[a-z]+")

TWO_EDITS_FROM = 11  # letters; in shorter words two edits reach other words (prediction, production)
CHANGED_FROM = 7  # letters; in shorter words one changed letter makes another word (react, reach)


@dataclass(frozen=True, slots=True)
class Words:
    """What a section says, for ranking: its terms, those of its headings and search words, its neighbouring pairs.

    `same` is equal in sections with the same text.
    """

    all: frozenset[str]
    heading: frozenset[str]
    pairs: frozenset[tuple[str, str]]
    same: str


@dataclass(eq=False)
class Library:
    """Pages in order, sections by id, old ids, the open index; `notes` are for the reader of an answer."""

    pages: list[Page]
    index: Index
    folders: tuple[Folder, ...]
    notes: list[str] = field(default_factory=list)

    @functools.cached_property
    def sections(self) -> dict[str, Section]:
        return {section.id: section for page in self.pages for section in page.sections}

    @functools.cached_property
    def aliases(self) -> dict[str, str]:
        return {old: new for page in self.pages for old, new in page.aliases.items()}

    @functools.cached_property
    def _words(self) -> dict[str, Words]:
        return {}

    def words_of(self, section_id: str) -> Words:
        """Terms of one section, kept after the first time."""
        if section_id not in self._words:
            self._words[section_id] = _words_of(self.sections[section_id])
        return self._words[section_id]

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


_lock = threading.Lock()
_open: dict[tuple[tuple[Folder, ...], Path], Library] = {}


def current() -> Library:
    """The library of the shipped pages and the user's folders, built or opened at the first call. Raises DataBroken."""
    return at(sources.folders(), paths.cache())


def at(folders: tuple[Folder, ...], cache: Path) -> Library:
    """The library of these folders with its index under `cache`; threads that come together wait for one build."""
    with _lock:
        if (folders, cache) not in _open:
            _open[folders, cache] = _opened(folders, cache)
        return _open[folders, cache]


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
    texts = {folder: sections.files(folder.root) for folder in folders}
    gone = [f"{folder.path} is not there any more and was not searched" for folder in folders if not folder.root.is_dir()]
    if not any(texts.values()):
        raise DataBroken("no_pages", f"no Markdown page lies in {', '.join(folder.path for folder in folders)}", next="reinstall skillserver")
    name = index.fingerprint(part for folder, pages in texts.items() for pair in ((folder.name, ""), *pages.items()) for part in pair)
    if opened := index.found(cache, name):
        return Library([_page(row) for row in opened.extra["pages"]], opened, folders, gone)
    pages = [page for folder in folders for page in _parsed(folder, texts[folder])]
    texts_shown = [f"{section.title} {section.text}".lower() for page in pages for section in page.sections]
    extra = {"pages": [asdict(page) for page in pages], "lexicon": _lexicon(texts_shown), "pairs": _pairs(texts_shown)}
    opened, note = index.ready(cache, name, (section for page in pages for section in page.sections), extra)
    return Library(pages, opened, folders, [*gone, note] if note else gone)


def _parsed(folder: Folder, texts: dict[str, str]) -> list[Page]:
    """Pages of one folder. A broken page of ours is an error; in a user's notes it only loses its front matter."""
    return [
        sections.parse(f"{folder.prefix}{name.removesuffix('.md')}", text, f"{folder.root.name}/{name}", strict=folder.ours)
        for name, text in texts.items()
    ]


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
        plain = PLAIN.findall(text)
        counts.update({(left, right) for left, right in itertools.pairwise(plain) if min(len(left), len(right)) > 2})
    return {left + right: len(left) for (left, right), count in sorted(counts.items()) if count > 1}


def _words_of(section: Section) -> Words:
    heading = "\n".join([*section.trail, section.title_zh, *section.keywords, *section.keywords_zh])
    heads = [term.text for term in words.terms(heading, index.stem)]
    pairs, last = set(), ""
    body = list(words.terms(f"{heading}\n{section.text}", index.stem))
    for term in body:
        if not term.joined:
            pairs.add((last, term.text))
            last = term.text
    return Words(frozenset(term.text for term in body), frozenset(heads), frozenset(pairs), " ".join(re.findall(r"\w+", section.text)) or section.id)
