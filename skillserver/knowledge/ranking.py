"""Which sections answer: BM25 picks candidates, then each is judged by how much of what was asked it covers.

Words count by how rare they are; headings, a title that the question names, and words that stand side by side count
more. The same measure, coverage, decides whether anything answers at all. Sections with the same text are one, those
that say nearly the same are named with the better one. Knows sections and concepts; not budgets, not Markdown.

>>> [hit.section.id for hit in rank(shelf, asked)][:1]
['training/memory#zero-stages']
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

from skillserver.knowledge.library import Library
from skillserver.knowledge.queries import Concept
from skillserver.knowledge.sections import Section
from skillserver.knowledge.vocabulary import Words, pair_hash, term_hash

CANDIDATES = 40
COVERED = 0.75  # coverage from which the answer does not say what it lacks
# A section answers when it speaks of enough of the question, above all in its headings. Measured over 534 sections, with
# coverage + HEADED * coverage by headings, best of the first SEEN: none of 203 real questions had less, 59 of 64 strange ones
ANSWERS, HEADED, SEEN = 0.6, 0.5, 3
ASKING = 0.15  # a word that only asks, against one that says what about
LEAD = 0.7  # the lead of a page touches all its subjects, its sections answer; of 170 questions 6 more had the right one first
SAME_PAGE = 0.93  # a page that was already shown counts a little less each time
UNKNOWN_NAME = 0.4  # an identifier that no page holds, against a plain word that none does
NUMBERED = {"xid", "error", "err", "errno", "status", "code", "exit", "signal", "port", "version", "cuda", "sm"}  # a number after these is a name
COMPARED, ALIKE, KIN = 10, 0.19, 0.75  # hits compared, share of pairs that makes them kin, what the lesser one then counts
MISSED = 5


@dataclass(frozen=True, slots=True)
class Hit:
    """One section and how well it answers: shares of the question, 0 to 1, that it and its headings speak of."""

    section: Section
    score: float
    coverage: float
    heading: float
    twins: tuple[str, ...] = ()  # sections with the same text
    kin: tuple[str, ...] = ()  # sections of other pages that say nearly the same


@dataclass(frozen=True, slots=True)
class Wanted:
    """A concept as the ranking sees it: how much it counts, and its ways as (share, hashes of terms)."""

    rarity: float
    single: tuple[tuple[float, int], ...]
    phrases: tuple[tuple[float, frozenset[int]], ...]

    def covered(self, terms: frozenset[int]) -> float:
        """0 to 1: how much of the concept these terms say; half a phrase counts for less than its half."""
        best = 0.0
        for share, term in self.single:
            if share > best and term in terms:
                best = share
        for share, phrase in self.phrases:
            if share > best and (present := len(phrase & terms)):
                best = max(best, share * (present / len(phrase)) ** 2)
        return best


def fit(hit: Hit) -> float:
    """How far a section speaks of what was asked, by which the line between an answer and none is drawn."""
    return hit.coverage + HEADED * hit.heading


def answers(hits: list[Hit]) -> bool:
    """Whether one of the first sections speaks of enough of what was asked."""
    return max(map(fit, hits[:SEEN]), default=0.0) >= ANSWERS


def rank(shelf: Library, asked: list[Concept], among: frozenset[str] | None = None) -> list[Hit]:
    """Sections best first: duplicates folded, pages mixed."""
    weights: dict[str, float] = {}
    for concept in asked:
        for way in concept.ways:
            for term in way.terms:
                weights[term] = max(weights.get(term, 0.0), way.weight)
    wanted = [_wanted(concept, _rarity(shelf, concept)) for concept in asked]
    named = frozenset(term for concept in asked if not concept.asks for way in concept.ways for term in way.terms)
    total = sum(concept.rarity for concept in wanted) or 1.0
    pairs = [pair_hash(*pair) for pair in itertools.pairwise(concept.ways[0].terms[0] for concept in asked)]
    hits = []
    for section_id, bm25 in shelf.index.score(weights, CANDIDATES, among):
        said = shelf.words_of(section_id)
        found = [(concept, covered) for concept in wanted if (covered := concept.covered(said.all))]
        coverage = sum(concept.rarity * covered for concept, covered in found) / total
        heading = sum(concept.rarity * concept.covered(said.heading) for concept, _ in found) / total
        worth = 0.1 + coverage + 0.4 * heading + 0.2 * _beside(pairs, said) + 0.3 * _title_named(shelf, section_id, named)
        section = shelf.sections[section_id]
        hits.append(Hit(section, bm25 * worth * (LEAD if section.id == section.page else 1.0), coverage, heading))
    return _apart(shelf, _mixed(_folded(shelf, sorted(hits, key=lambda hit: (-hit.score, hit.section.id)))))


def worth_of(shelf: Library, asked: list[Concept]) -> dict[int, float]:
    """Hash of every term of the question -> what its concept counts, for finding the part of a long section that answers."""
    worth: dict[int, float] = {}
    for concept in asked:
        rarity = _rarity(shelf, concept)
        for way in concept.ways:
            for term in way.terms:
                worth[term_hash(term)] = max(worth.get(term_hash(term), 0.0), rarity * way.share / len(way.terms))
    return worth


def _wanted(concept: Concept, rarity: float) -> Wanted:
    single = tuple((way.share, term_hash(way.terms[0])) for way in concept.ways if len(way.terms) == 1)
    phrases = tuple((way.share, frozenset(map(term_hash, way.terms))) for way in concept.ways if len(way.terms) > 1)
    return Wanted(rarity, single, phrases)


def _rarity(shelf: Library, concept: Concept) -> float:
    """Inverse document frequency of a concept; of an unknown word as if one page held it, of an unknown name less.

    A plain word that no page holds says that the question is about something else; names and numbers of somebody's
    machine do not. A word that only asks counts little wherever it stands.
    """
    frequencies = [min(shelf.frequency(term) for term in way.terms) for way in concept.ways if way.terms]
    if known := [frequency for frequency in frequencies if frequency]:
        return math.log(1 + shelf.index.size / max(known)) * (ASKING if concept.asks else concept.worth)
    word = concept.surface
    plain = word.isalpha() and word[1:].islower()
    share = 0.0 if word.isdigit() or len(word) == 1 or concept.asks else 1.0 if plain else UNKNOWN_NAME
    return share * concept.worth * math.log(1 + shelf.index.size)


def missing(shelf: Library, asked: list[Concept], hit: Hit) -> list[str]:
    """What a half-covered question asked for and the best section does not say, rarest first.

    Not named are words that only ask, and amounts ("after 3000 steps").
    """
    if hit.coverage >= COVERED:
        return []
    said = shelf.words_of(hit.section.id).all
    numbered = {right.surface for left, right in itertools.pairwise(asked) if left.surface.lower() in NUMBERED}
    rest = [
        (_rarity(shelf, concept), concept)
        for concept in asked
        if not (concept.asks or (concept.surface.isdigit() and concept.surface not in numbered)) and not _wanted(concept, 1.0).covered(said)
    ]
    rest.sort(key=lambda pair: -pair[0])
    return [concept.surface for _, concept in rest[:MISSED]]


def _title_named(shelf: Library, section_id: str, named: frozenset[str]) -> float:
    """Share of the title that the question says, by rarity; in full from three words on, since any question says "GPU"."""
    title = shelf.title_of(section_id)
    found = [worth for term, worth in title.items() if term in named]
    return sum(found) / (sum(title.values()) or 1.0) * min(1.0, len(found) / 3)


def _beside(pairs: list[int], said: Words) -> float:
    """Share of the question's neighbouring words that stand side by side in the section."""
    return sum(pair in said.pairs for pair in pairs) / len(pairs) if pairs else 0.0


def _folded(shelf: Library, hits: list[Hit]) -> list[Hit]:
    """Sections with the same text are one; the others' ids are named with it."""
    groups: dict[str, list[Hit]] = {}
    for hit in hits:
        groups.setdefault(shelf.words_of(hit.section.id).same, []).append(hit)
    return [replace(group[0], twins=tuple(hit.section.id for hit in group[1:])) for group in groups.values()]


def _mixed(hits: list[Hit]) -> list[Hit]:
    """Best first, where every further section of a page counts a little less."""
    shown: dict[str, int] = {}
    out = []
    for hit in hits:
        times = shown.get(hit.section.page, 0)
        shown[hit.section.page] = times + 1
        out.append(replace(hit, score=hit.score * SAME_PAGE**times))
    return sorted(out, key=lambda hit: (-hit.score, hit.section.id))


def _apart(shelf: Library, hits: list[Hit]) -> list[Hit]:
    """Of the first hits, one that says nearly what a better one said is named there and stands behind what says more."""
    out: list[Hit] = []
    for hit in hits[:COMPARED]:
        pairs = shelf.words_of(hit.section.id).pairs
        alike = next((number for number, better in enumerate(out) if _alike(pairs, shelf.words_of(better.section.id).pairs)), None)
        if alike is not None and out[alike].section.page != hit.section.page:
            out[alike] = replace(out[alike], kin=(*out[alike].kin, hit.section.id))
            hit = replace(hit, score=hit.score * KIN)
        out.append(hit)
    return sorted([*out, *hits[COMPARED:]], key=lambda hit: (-hit.score, hit.section.id))


def _alike(left: frozenset[int], right: frozenset[int]) -> bool:
    """Measured over 534 sections: of 26 pairs on the same subject 25 share this much of their neighbouring words, of 5,600 others 6 do."""
    return len(left & right) >= ALIKE * max(1, min(len(left), len(right)))
