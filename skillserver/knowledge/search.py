"""A question -> whole sections, best first, while they fit the budget; or an honest "no section answers this".

Two steps: BM25F picks candidates, then each is judged by how much of what was asked it covers, weighted by how rare
each word is, with a bonus for headings and for words that stand side by side. The same measure, coverage, decides
whether anything answers at all. Knows sections and budgets; not whoosh, not Markdown.

>>> print(search("ZeRO stage 3 memory", max_tokens=300).splitlines()[0])
## ZeRO stages [training/memory#zero-stages]
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from skillserver.errors import BadRequest
from skillserver.knowledge import library, queries, words
from skillserver.knowledge.library import Library, Words
from skillserver.knowledge.queries import Concept
from skillserver.knowledge.sections import Section

CHARACTERS_A_TOKEN = 4
LEAST_TOKENS = 100
CANDIDATES = 40
COVERED = 0.75  # coverage from which the answer does not say what it lacks
# Measured over 247 sections: of 80 real questions those answered had 0.49 and more, of 30 strange ones 26 had less than 0.45
ANSWERS = 0.45  # below this coverage no section answers
ANSWERS_FEW, FEW = 0.55, 2  # of two words one common word is half the question: "how to memorise a poem"
RELATED = 0.45  # a section with less than this share of the best score is not shown
SAME_PAGE = 0.93  # a page that was already shown counts a little less each time
UNKNOWN_NAME = 0.4  # an identifier that no page holds, against a plain word that none does
NEAREST = 5
NOTES_ROOM = 600  # characters of remarks under "no section answers this"
CLOSED = "\n```"
MORE_ROOM = 160  # characters kept for the ids of what did not fit


@dataclass(frozen=True)
class Hit:
    """One section and how well it answers; `coverage` is the share of the question it speaks of, 0 to 1."""

    section: Section
    score: float
    coverage: float
    twins: tuple[str, ...] = ()


def search(query: str, max_tokens: int = 2000) -> str:
    """Markdown: the sections that answer `query`, best first. Raises BadRequest for an empty question."""
    return answer(library.current(), query, max_tokens)


def answer(shelf: Library, query: str, max_tokens: int = 2000) -> str:
    """The same on a given library."""
    question = queries.clean(query)
    asked, offered = queries.concepts(question.text, shelf)
    if not asked:
        raise BadRequest(
            "empty_query", f"the question {query[:40]!r} holds no word to search for", next="ask with a few words, an error line or a name"
        )
    notes = [*question.notes, *shelf.notes]
    if offered:
        notes.insert(0, f"did you mean: {', '.join(offered)}? Both spellings were searched")
    hits = rank(shelf, asked)
    budget = max(LEAST_TOKENS, max_tokens) * CHARACTERS_A_TOKEN
    if not hits or hits[0].coverage < (ANSWERS if len(asked) > FEW else ANSWERS_FEW):
        return _nothing(hits, notes)
    if missing := _missing(shelf, asked, hits[0]):
        notes.insert(0, f"the first section does not speak of: {', '.join(missing)}")
    return _rendered(shelf, hits, notes, budget)


def rank(shelf: Library, asked: list[Concept]) -> list[Hit]:
    """Sections best first: duplicates folded, pages mixed."""
    rarity = {id(concept): _rarity(shelf, concept) for concept in asked}
    weights: dict[str, float] = {}
    for concept in asked:
        for way in concept.ways:
            for term in way.terms:
                weights[term] = max(weights.get(term, 0.0), way.weight)
    total = sum(rarity.values()) or 1.0
    hits = []
    for section_id, bm25 in shelf.index.score(weights, CANDIDATES):
        said = shelf.words_of(section_id)
        coverage = sum(rarity[id(concept)] * _covered(concept, said.all) for concept in asked) / total
        heading = sum(rarity[id(concept)] * _covered(concept, said.heading) for concept in asked) / total
        beside = _beside(asked, said)
        hits.append(Hit(shelf.sections[section_id], bm25 * (0.3 + coverage + 0.4 * heading + 0.2 * beside), coverage))
    return _mixed(_folded(shelf, sorted(hits, key=lambda hit: (-hit.score, hit.section.id))))


def _rarity(shelf: Library, concept: Concept) -> float:
    """Inverse document frequency of a concept; of an unknown word as if one page held it, of an unknown name less.

    A plain word that no page holds says that the question is about something else; names and numbers of somebody's
    machine do not.
    """
    frequencies = [min(shelf.frequency(term) for term in way.terms) for way in concept.ways if way.terms]
    if known := [frequency for frequency in frequencies if frequency]:
        return math.log(1 + shelf.index.size / max(known))
    word = concept.surface
    plain = word.isalpha() and word[1:].islower()
    return (0.0 if word.isdigit() or len(word) == 1 else 1.0 if plain else UNKNOWN_NAME) * math.log(1 + shelf.index.size)


def _missing(shelf: Library, asked: list[Concept], hit: Hit) -> list[str]:
    """What a half-covered question asked for and the best section does not say, rarest first."""
    if hit.coverage >= COVERED:
        return []
    said = shelf.words_of(hit.section.id).all
    rest = [concept for concept in asked if not _covered(concept, said)]
    rest.sort(key=lambda concept: -_rarity(shelf, concept))
    return [concept.surface for concept in rest[:NEAREST] if _rarity(shelf, concept)]


def _covered(concept: Concept, terms: frozenset[str]) -> float:
    """0 to 1: how much of a concept these terms say; half a phrase counts for less than its half."""
    best = 0.0
    for way in concept.ways:
        present = sum(term in terms for term in way.terms)
        if present:
            best = max(best, way.share * (present / len(way.terms)) ** 2)
    return best


def _beside(asked: list[Concept], said: Words) -> float:
    """Share of the question's neighbouring words that stand side by side in the section."""
    firsts = [concept.ways[0].terms[0] for concept in asked]
    pairs = list(itertools.pairwise(firsts))
    return sum(pair in said.pairs for pair in pairs) / len(pairs) if pairs else 0.0


def _folded(shelf: Library, hits: list[Hit]) -> list[Hit]:
    """Sections with the same text are one; the others' ids are named with it."""
    groups: dict[str, list[Hit]] = {}
    for hit in hits:
        groups.setdefault(shelf.words_of(hit.section.id).same, []).append(hit)
    return [Hit(group[0].section, group[0].score, group[0].coverage, tuple(hit.section.id for hit in group[1:])) for group in groups.values()]


def _mixed(hits: list[Hit]) -> list[Hit]:
    """Best first, where every further section of a page counts a little less."""
    shown: dict[str, int] = {}
    out = []
    for hit in hits:
        times = shown.get(hit.section.page, 0)
        shown[hit.section.page] = times + 1
        out.append(Hit(hit.section, hit.score * SAME_PAGE**times, hit.coverage, hit.twins))
    return sorted(out, key=lambda hit: (-hit.score, hit.section.id))


def _rendered(shelf: Library, hits: list[Hit], notes: list[str], budget: int) -> str:
    """Whole sections while they fit; the best always, cut at a line when it must be."""
    related = [hit for hit in hits if hit.score >= RELATED * hits[0].score and hit.section.text] or hits[:1]
    told = _told(notes, budget // 3)
    room = budget - len(told)
    first = block_of(shelf, related[0], cite=True)
    blocks = [first if len(first) <= room else cut(first, room, f"read_knowledge with id={related[0].section.id} shows the rest")]
    room -= len(blocks[0]) + MORE_ROOM
    left, cited = [], {related[0].section.page}
    for hit in related[1:]:
        block = block_of(shelf, hit, cite=hit.section.page not in cited)
        if len(block) + 2 > room:
            left.append(hit)
            continue
        blocks.append(block)
        cited.add(hit.section.page)
        room -= len(block) + 2
    return "\n\n".join(blocks) + _more(left, room + MORE_ROOM) + told


def _told(notes: list[str], room: int) -> str:
    """The notes in brackets, as many as there is room for."""
    lines = [f"({note}.)" for note in notes]
    while lines and sum(len(line) + 1 for line in lines) + 1 > room:
        lines.pop()
    return "\n\n" + "\n".join(lines) if lines else ""


def block_of(shelf: Library, hit: Hit, *, cite: bool) -> str:
    """Heading with id, where it stands, its text."""
    section = hit.section
    same = f" · same text: {', '.join(hit.twins)}" if hit.twins else ""
    return f"## {section.title} [{section.id}]\n{where(shelf, section, cite=cite)}{same}\n\n{section.text}"


def where(shelf: Library, section: Section, *, cite: bool) -> str:
    """One line: title trail, file and lines, the page's source nearest to the section; commit and licence of a user's folder."""
    folder = shelf.folder_of(section)
    parts = [" > ".join(section.trail[:-1]), f"{section.file}:{section.first_line}-{section.last_line}"]
    if cite and section.sources:
        said = shelf.words_of(section.id).all
        nearest = max(section.sources, key=lambda source: sum(term.text in said for term in words.terms(source, shelf.stem)))
        parts.append(f"source: {nearest}" + (f" (+{len(section.sources) - 1})" if len(section.sources) > 1 else ""))
    if not folder.ours:
        parts.append(shelf.origin(folder))
    return f"_{' · '.join(part for part in parts if part)}_"


def cut(text: str, room: int, how_on: str) -> str:
    """As much of `text` as fits into `room` characters with the note on how to read on."""
    note = f"\n\n(cut here; {how_on}.)"
    return fitting(text, room - len(note))[0] + note


def fitting(text: str, room: int) -> tuple[str, int]:
    """(the first whole lines within `room` characters, how many); where they fill less than half, words of the next one too."""
    room = max(0, room - len(CLOSED))
    kept = text[: room + 1].rpartition("\n")[0]
    whole = kept.count("\n") + bool(kept)
    if len(kept) < room // 2:
        kept = text[: room - 4].rpartition(" ")[0] + " ..."
    return kept + (CLOSED if kept.count("```") % 2 else ""), whole


def _more(left: list[Hit], room: int) -> str:
    """Ids of what did not fit, as far as there is room for them."""
    line = "\n\nMore for read_knowledge:"
    for hit in left[:NEAREST]:
        name = f" `{hit.section.id}`"
        if len(line) + len(name) > room:
            break
        line += name
    return line if line.endswith("`") else ""


def _nothing(hits: list[Hit], notes: list[str]) -> str:
    told = _told(notes, NOTES_ROOM)
    if not hits:
        return f"no section answers this: no page holds any of its words. `read_knowledge` without an id lists all pages.{told}"
    near = "\n".join(f"- `{hit.section.id}` {' > '.join(hit.section.trail)}" for hit in hits[:NEAREST])
    return f"no section answers this. The nearest, which cover at most {hits[0].coverage:.0%} of the question:\n{near}{told}"
