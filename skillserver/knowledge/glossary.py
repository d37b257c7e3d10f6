"""The glossary for readers: the rows of glossary.toml that say what a term means, by subject, in both languages.

The same rows turn questions into the words of the pages (`queries`). Chinese names come from a row's own spellings or
from the rows that share one of its English spellings; so do the other English spellings. Knows words; no pages, no search.

>>> [entry.term for entry in entries("inference")][:2]
['concurrency', 'continuous batching']
"""

from __future__ import annotations

from dataclasses import dataclass

from skillserver import tables
from skillserver.knowledge.queries import Gloss

NAMES = 3  # other spellings shown, of each language


@dataclass(frozen=True)
class Entry:
    """One term: its other spellings in English, its Chinese names, and what it means."""

    term: str
    also: tuple[str, ...]
    zh: tuple[str, ...]
    means: str


def subjects() -> list[str]:
    """What the terms are about, sorted."""
    return sorted({row.about for row in _rows() if row.about})


def entries(subject: str) -> list[Entry]:
    """The terms of a subject by name; an unknown subject has none."""
    found = [_entry(row) for row in _rows() if row.about == subject]
    return sorted(found, key=lambda entry: entry.term.lower())


def markdown(subject: str) -> str:
    """One line a term."""
    return "\n".join(_line(entry) for entry in entries(subject))


def _rows() -> tuple[Gloss, ...]:
    return tables.load("glossary.toml", Gloss)


def _entry(row: Gloss) -> Entry:
    own = (*row.same, *row.en)
    term = row.term or own[0]
    kin = [other for other in _rows() if {*other.same, *other.en} & set(own)]
    spellings = dict.fromkeys([*own, *(word for other in kin for word in other.same)])
    also = [word for word in spellings if word.lower() != term.lower()]
    zh = row.zh or tuple(dict.fromkeys(word for other in kin for word in other.zh))
    return Entry(term, tuple(also[:NAMES]), zh[:NAMES], row.means)


def _line(entry: Entry) -> str:
    names = ", ".join((*entry.also, *entry.zh))
    return f"- **{entry.term}**{f' ({names})' if names else ''}: {entry.means}"
