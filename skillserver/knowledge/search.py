"""A question -> whole sections, best first, while they fit the budget; or an honest "no section answers this".

Cleans the question, ranks, and hands the sections to be shown. Knows the steps; each is in its own file: `queries`,
`ranking`, `showing`.

>>> print(search("ZeRO stage 3 memory", max_tokens=300).splitlines()[0])
## ZeRO stages [training/memory#zero-stages]
"""

from __future__ import annotations

from dataclasses import dataclass

from skillserver.errors import BadRequest
from skillserver.knowledge import library, queries
from skillserver.knowledge.library import Library
from skillserver.knowledge.ranking import answers, missing, rank, worth_of
from skillserver.knowledge.showing import CHARACTERS_A_TOKEN, LEAST_TOKENS, nothing, rendered


@dataclass(frozen=True, slots=True)
class Chosen:
    """Only these sections: under a chapter or page, of a kind, of a folder."""

    part: str = ""
    kind: str = ""
    source: str = ""

    def said(self) -> str:
        """As the answer names it, "" without a filter."""
        return ", ".join(f"{name}={value}" for name, value in (("part", self.part), ("kind", self.kind), ("source", self.source)) if value)


def search(query: str, max_tokens: int = 2000, part: str = "", kind: str = "", source: str = "") -> str:
    """Markdown: the sections that answer `query`, best first. Raises BadRequest for an empty question or an unknown filter."""
    return answer(library.current(), query, max_tokens, Chosen(part, kind, source))


def answer(shelf: Library, query: str, max_tokens: int = 2000, only: Chosen = Chosen()) -> str:
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
    hits = rank(shelf, asked, shelf.within(only.part, only.kind, only.source))
    budget = max(LEAST_TOKENS, max_tokens) * CHARACTERS_A_TOKEN
    if not answers(hits):
        return nothing(shelf, hits, notes, only.said(), budget)
    if lacking := missing(shelf, asked, hits[0]):
        notes.insert(0, f"the first section does not speak of: {', '.join(lacking)}")
    return rendered(shelf, hits, notes, budget, worth_of(shelf, asked))
