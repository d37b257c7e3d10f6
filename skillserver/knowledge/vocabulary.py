"""What each section says, as the ranking asks for it: its terms, those of its headings, its neighbouring pairs.

Terms are kept as 32-bit hashes in one flat file beside the index, so that the first question of a process does not
cut forty sections into words again (60 ms), and a changed page replaces its own sections only. Knows words and
sections; no search engine, no ranking.

>>> said = Vocabulary.of([section], stem)
>>> said.words("training/memory#zero-stages").all >= {term_hash("shard")}
True
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import re
import zlib
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from skillserver.knowledge import words
from skillserver.knowledge.sections import Section
from skillserver.knowledge.words import Stem, Term

TITLE_REPEATS = 2


@dataclass(frozen=True, slots=True)
class Words:
    """Hashes of what a section says. `same` is equal in sections with the same text."""

    all: frozenset[int]
    heading: frozenset[int]
    pairs: frozenset[int]
    same: str


@dataclass(frozen=True, slots=True)
class Cut:
    """One section cut into terms: what is indexed as its text and as its title, and its words."""

    text: list[str]
    title: list[str]
    words: Words


@lru_cache(maxsize=100_000)
def term_hash(term: str) -> int:
    """The same in every process; among the 200 terms of a section two clash once in 10^5 sections."""
    return zlib.crc32(term.encode("utf-8", "surrogatepass"))


def pair_hash(left: str, right: str) -> int:
    """Of two neighbouring terms, in this order."""
    return (term_hash(left) * 31 + term_hash(right) + 1) & 0xFFFFFFFF


def cut(section: Section, stem: Stem) -> Cut:
    """Its title counts twice, search words and trail once: that is what a field-wise BM25 would mean by a heading."""
    title, body = _terms(section.title, stem), _terms(section.text, stem)
    said = _terms("\n".join([section.title_zh, *section.keywords, *section.keywords_zh]), stem)
    trail = _terms("\n".join(section.trail), stem)
    heading = [term.text for term in itertools.chain(trail, said)]
    text = [term.text for term in itertools.chain(*[title] * TITLE_REPEATS, trail, said, body)]
    plain = [term.text for term in itertools.chain(trail, said, body) if not term.joined]
    same = " ".join(re.findall(r"\w+", section.text)) or section.id
    return Cut(
        text, [term.text for term in itertools.chain(title, said)],
        Words(frozenset(map(term_hash, text)), frozenset(map(term_hash, heading)), frozenset(itertools.starmap(pair_hash, itertools.pairwise(plain))),
              hashlib.blake2b(same.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()))  # fmt: skip


def _terms(text: str, stem: Stem) -> list[Term]:
    return list(words.terms(text, stem))


class Vocabulary:
    """Words and lengths of many sections; `rows` is section id -> [start, terms, heading terms, pairs, text length, title length, same]."""

    def __init__(self, hashes: array[int], rows: dict[str, list[int | str]], counted: array[int] | None = None) -> None:
        self.hashes = hashes
        self.rows = rows
        self._seen: dict[str, Words] = {}
        if counted is not None:
            self.counted = counted

    @classmethod
    def of(cls, cuts: Iterable[tuple[str, Cut]], kept: Vocabulary | None = None, left: Iterable[str] = ()) -> Vocabulary:
        """Of new sections, after those of `kept` named in `left`."""
        made = cls(array("I"), {})
        for name in left if kept else ():
            row = kept.rows[name]  # type: ignore[union-attr]
            start = len(made.hashes)
            made.hashes += kept.hashes[int(row[0]) : int(row[0]) + sum(map(int, row[1:4]))]  # type: ignore[union-attr]
            made.rows[name] = [start, *row[1:]]
        for name, found in cuts:
            parts = (found.words.all, found.words.heading, found.words.pairs)
            made.rows[name] = [len(made.hashes), *map(len, parts), len(found.text), len(found.title), found.words.same]
            for part in parts:
                made.hashes.extend(sorted(part))
        return made

    def words(self, section_id: str) -> Words:
        """Words of one section, kept after the first time."""
        if section_id not in self._seen:
            start, terms, heading, pairs = map(int, self.rows[section_id][:4])
            edges = list(itertools.accumulate((terms, heading, pairs), initial=start))
            parts = [frozenset(self.hashes[first:last]) for first, last in itertools.pairwise(edges)]
            self._seen[section_id] = Words(parts[0], parts[1], parts[2], str(self.rows[section_id][6]))
        return self._seen[section_id]

    @functools.cached_property
    def counted(self) -> array[int]:
        """Every term's hash, sorted, and behind them in how many sections each stands: kept beside the index, since counting reads all."""
        counts: Counter[int] = Counter()
        for start, terms in ((int(row[0]), int(row[1])) for row in self.rows.values()):
            counts.update(self.hashes[start : start + terms])
        known = sorted(counts)
        return array("I", [*known, *(counts[one] for one in known)])

    def frequency(self, term: str) -> int:
        """In how many sections a stemmed term stands; without reading them, as the postings of a common one are long."""
        known, wanted = len(self.counted) // 2, term_hash(term)
        place = bisect_left(self.counted, wanted, 0, known)
        return self.counted[known + place] if place < known and self.counted[place] == wanted else 0

    def lengths(self, section_id: str) -> tuple[int, int]:
        """(terms of the text, terms of the title), repeats counted."""
        row = self.rows[section_id]
        return int(row[4]), int(row[5])

    def means(self) -> tuple[float, float]:
        """The same, mean of all sections."""
        count = max(1, len(self.rows))
        return sum(int(row[4]) for row in self.rows.values()) / count, max(1.0, sum(int(row[5]) for row in self.rows.values()) / count)
