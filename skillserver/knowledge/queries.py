"""A question -> concepts: what it asks for, each with the ways a page may say it.

Cleans pasted log lines (time stamps, host names, process ids, addresses), cuts what is too long and says so, turns
Chinese into English by the glossary, adds synonyms at half weight, joins neighbours ("check point") and offers
corrections of unknown words. Knows words and the glossary; not how sections are ranked.

>>> [concept.surface for concept in concepts("显存不足 on H100", lexicon)]
['显存不足', 'H100']
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from skillserver import tables
from skillserver.knowledge import words
from skillserver.knowledge.words import Word

LONGEST = 2_000  # characters of a question that are worth ranking by
READ_AT_MOST = 200_000  # characters looked at, so that no paste takes long
MOST_CONCEPTS = 48
JOINED, PIECE, SYNONYM, CORRECTED, ASKING, HALF = 2.0, 0.5, 0.5, 0.8, 0.3, 0.5
# Pages say little in Chinese, so that any word of theirs is rare and most words of a question are unknown
HEARD, FOREIGN = 0.3, 1.8
PARTICLES = frozenset("的了吗呢吧啊么是在和与或及把被我你都也就又很太那这得着过")  # never a part of a word of the field
XID = re.compile(r"\bXid\s*\(PCI:[\w:.]{1,20}\)\s*:\s*(?=\d)")  # the kernel writes the address between the word and its number
URL = re.compile(r"\bhttps?://(?:www\.)?([\w-]{1,63})\.[\w.-]{1,200}(?:[/?#:][^\s'\"<>)]*)?")  # of an address only the name says what it is about
NOISE = [  # (what it is, how it looks); order matters
    ("time stamps", r"\[?\b\d{4}[-/]\d\d[-/]\d\d[T ,_]+\d\d:\d\d(?::\d\d)?(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?"),
    ("time stamps", r"^(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\s+\d{1,2}\s\d\d:\d\d:\d\d\s\S+\s"),  # syslog, with its host
    ("time stamps", r"^[ \t]{0,8}\[ {0,8}\d{1,9}\.\d{6}\]"),  # dmesg
    ("time stamps", r"\b\d\d:\d\d:\d\d(?:[.,]\d+)?\b"),
    ("host names", r"^[ \t]{0,8}[\w.-]{1,80}:\d{1,9}:\d{1,9} \[\d{1,3}\]"),  # NCCL
    ("process ids", r"\b(?:pid|tid|PID|TID)[ =:]*'?\d+"),
    ("rank prefixes", r"^[ \t]{0,8}\[(?:rank|default)\s?\d+\]\s?:?"),
    ("addresses", r"\b0x[0-9a-fA-F]{5,}\b"),
    ("addresses", r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?(?:<\d+>)?"),
    ("addresses", r"\b(?=[0-9a-f-]{0,40}\d)(?=[0-9a-f-]{0,40}[a-f])[0-9a-f]{8}(?:-?[0-9a-f]{4,12}){1,6}\b"),
    ("addresses", r"\b[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.\d)?\b"),  # PCI
    ("folders", r"(?:/[\w.@+-]{1,80}){3,40}/(?=[\w.@+-]{1,80}/[\w.@+-])"),  # /usr/lib/python3/site-packages/torch/x.py -> torch/x.py
]
PATTERNS = [(name, re.compile(pattern, re.M)) for name, pattern in NOISE]
VERSIONED = re.compile(r"([a-z]{3,})v?\d{1,2}")
TELLING = re.compile(r"error|fail|exception|assert|abort|timeout|timed out|killed|nan\b|xid|cannot|unable|warn|不足|错误|失败|超时", re.I)


class Gloss(tables.Record):
    """One row of glossary.toml: Chinese and its English, words that mean the same, or words that only ask (`skip`).

    With `means` it stands in the glossary too, as `term` (its first spelling by default), under the subject `about`.
    """

    zh: tuple[str, ...] = ()
    en: tuple[str, ...] = ()
    same: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    term: str = ""
    about: str = ""
    means: str = ""


class Lexicon(Protocol):
    """What a question is asked of: how common a stemmed term is, and the words as written."""

    def __hash__(self) -> int: ...
    def frequency(self, term: str) -> int: ...
    def stem(self, word: str) -> str: ...
    def nearest(self, word: str) -> str: ...
    def halves(self, word: str) -> tuple[str, str] | None: ...


@dataclass(frozen=True)
class Way:
    """One way to say a concept: terms and the weight of each in the ranking; `share` is what it counts for coverage."""

    terms: tuple[str, ...]
    weight: float
    share: float = 1.0


@dataclass
class Concept:
    """One thing asked for; `asks` marks a word that only asks ("does", "best"): it counts little. `worth` is its part of a full word's rarity."""

    surface: str
    ways: list[Way] = field(default_factory=list)
    asks: bool = False
    worth: float = 1.0


@dataclass
class Question:
    """A cleaned question and what the reader should be told about the cleaning."""

    text: str
    notes: list[str]


def clean(text: str) -> Question:
    """Strip what no page can hold; cut to LONGEST characters, its telling lines first."""
    whole, notes, stripped = len(text), [], []
    text = URL.sub(r"\1", XID.sub("Xid ", text[:READ_AT_MOST]))
    for name, pattern in PATTERNS if len(text) > 60 or "\n" in text else PATTERNS[:0]:
        text, times = pattern.subn(" ", text)
        stripped += [name] * bool(times)
    if stripped:
        notes.append(f"left out of the question: {', '.join(dict.fromkeys(stripped))}")
    if len(text) > LONGEST:
        text = _cut(text)
        notes.append(f"the question had {whole:,} characters and was cut to {len(text):,}, error lines first; `explain_error` reads whole logs")
    return Question(text.strip(), notes)


def _cut(text: str) -> str:
    """The lines that tell of an error, repeats folded, then the first and the last ones, up to LONGEST characters."""
    lines = list(dict.fromkeys(line.strip()[: LONGEST // 2] for line in text.splitlines() if line.strip()))
    seen: dict[str, str] = {}
    for line in sorted(lines, key=lambda line: not TELLING.search(line)):
        seen.setdefault(re.sub(r"\d+", "0", line), line)
    out, room = [], LONGEST
    for line in seen.values():
        if len(line) < room:
            out.append(line)
            room -= len(line) + 1
    return "\n".join(out)[:LONGEST]


def concepts(text: str, lexicon: Lexicon) -> tuple[list[Concept], list[str]]:
    """(what is asked, corrections offered as "right (for wrong)")."""
    found: list[Concept] = []
    asked: list[Word] = []
    offered: list[str] = []
    for word in words.words(text, lexicon.stem):
        if words.IS_CJK.match(word.surface):
            found += _chinese(word.surface, lexicon)
        else:
            asked.append(word)
    spelled = [_concept(word) for word in asked]
    for number, (word, concept) in enumerate(zip(asked, spelled, strict=True)):
        if right := _mend(word, concept, lexicon):
            offered.append(f"{right} (for {word.surface})")
            asked[number] = Word(right, "", (lexicon.stem(right),))
    _join_neighbours(asked, spelled, lexicon)
    _add_synonyms(asked, spelled, lexicon)
    return _once([*spelled, *found])[:MOST_CONCEPTS], list(dict.fromkeys(offered))


def _concept(word: Word) -> Concept:
    if word.surface.lower() in _skipped() or (len(word.surface) == 1 and word.surface.isalpha()):
        return Concept(word.surface, [Way(word.pieces, ASKING)], asks=True)
    if not word.joined:
        return Concept(word.surface, [Way(word.pieces, 1.0)])
    return Concept(word.surface, [Way((word.joined,), JOINED), Way(word.pieces, PIECE, 0.9)])


def _mend(word: Word, concept: Concept, lexicon: Lexicon) -> str:
    """Give a word a second chance: without its version (fsdp1); an unknown one as two words, or as the known word that is returned."""
    term = word.surface.lower()
    if version := VERSIONED.fullmatch(term):
        concept.ways.append(Way((lexicon.stem(version[1]),), PIECE, 0.6))
        return ""
    if word.joined or concept.asks or not re.fullmatch(r"[a-z]{5,}", term) or lexicon.frequency(word.pieces[0]):
        return ""
    if halves := lexicon.halves(term):
        concept.ways.append(Way(tuple(map(lexicon.stem, halves)), PIECE, 0.7))
        return ""
    if right := lexicon.nearest(term):
        concept.ways.append(Way((lexicon.stem(right),), CORRECTED, 0.7))
    return right


def _join_neighbours(asked: list[Word], spelled: list[Concept], lexicon: Lexicon) -> None:
    """ "check point" finds checkpoint, where some page writes it as one."""
    for left, right, first, second in zip(asked, asked[1:], spelled, spelled[1:], strict=False):
        joined = lexicon.stem(f"{left.surface}{right.surface}".lower())
        if not left.joined and not right.joined and lexicon.frequency(joined):
            first.ways.append(Way((joined,), 1.0))
            second.ways.append(Way((joined,), 1.0))


def _add_synonyms(asked: list[Word], spelled: list[Concept], lexicon: Lexicon) -> None:
    """Every word of a known phrase gets the other ways to say the phrase, longest phrase first."""
    plain = [(number, piece) for number, word in enumerate(asked) for piece in word.pieces]
    start, table = 0, _synonyms(lexicon)
    longest = max(map(len, table), default=0)
    while start < len(plain):
        for size in range(longest, 0, -1):
            span = tuple(piece for _, piece in plain[start : start + size])
            if len(span) == size and span in table:
                for number in dict.fromkeys(number for number, _ in plain[start : start + size]):
                    spelled[number].ways += [Way(other, SYNONYM, 0.8) for other in table[span]]
                start += size - 1
                break
        start += 1


def _chinese(run: str, lexicon: Lexicon) -> list[Concept]:
    """Glossary terms of a run, longest first; what is left counts a little, by its pairs of characters."""
    found, start, rest = [], 0, ""
    table, skipped = _chinese_terms(), _skipped()
    while start < len(run):
        size = next((n for n in range(min(12, len(run) - start), 0, -1) if run[start : start + n] in table or run[start : start + n] in skipped), 0)
        span = run[start : start + size] if size else ""
        if span in table:
            ways = [Way(tuple(words.bigrams(span)), 1.0)] if size > 1 else []
            ways += [Way(_phrase(english, lexicon.stem), 1.0) for english in table[span]]
            found.append(Concept(span, ways))
        # one character that only asks may be part of a word: 张 of 张量
        rest += run[start] if not size else span if size == 1 and span not in table and span not in PARTICLES else " "
        start += size or 1
    return [*found, *(concept for left in rest.split() for concept in _left(left, lexicon))]


def _left(run: str, lexicon: Lexicon) -> list[Concept]:
    """What the glossary does not know: stretches whose pairs some heading holds, then what no page holds.

    A character that only asks counts inside such a stretch and nowhere else.
    """
    pairs = words.bigrams(run) if len(run) > 1 else []
    held = [place for place, pair in enumerate(pairs) if lexicon.frequency(pair)]
    said = {place + side for place in held for side in (0, 1)}
    rest = "".join(" " if place in said or one in _skipped() else one for place, one in enumerate(run))
    found = [Concept(left, [_pairs(left)], worth=FOREIGN) for left in rest.split() if len(left) > 1]
    for _, numbered in itertools.groupby(enumerate(held), key=lambda pair: pair[1] - pair[0]):
        places = [place for _, place in numbered]
        text = run[places[0] : places[-1] + 2]
        found.append(Concept(text, [_pairs(text)], worth=HEARD))
    return found


def _pairs(text: str) -> Way:
    return Way(tuple(words.bigrams(text)), HALF)


def _phrase(text: str, stem: Callable[[str], str]) -> tuple[str, ...]:
    return tuple(piece for word in words.words(text, stem) for piece in word.pieces)


@functools.cache
def _chinese_terms() -> dict[str, tuple[str, ...]]:
    return {zh: row.en for row in _glossary() for zh in row.zh}


@functools.cache
def _skipped() -> frozenset[str]:
    return frozenset(word for row in _glossary() for word in row.skip)


@functools.lru_cache(maxsize=4)
def _synonyms(lexicon: Lexicon) -> dict[tuple[str, ...], list[tuple[str, ...]]]:
    table: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
    for row in _glossary():
        phrases = [_phrase(text, lexicon.stem) for text in row.same]
        for phrase in phrases:
            table.setdefault(phrase, []).extend(other for other in phrases if other != phrase)
    return table


def _glossary() -> tuple[Gloss, ...]:
    return tables.load("glossary.toml", Gloss)


def _once(found: Iterable[Concept]) -> list[Concept]:
    """A word said twice is one concept."""
    return list({tuple(way.terms for way in concept.ways): concept for concept in found}.values())
