"""One tokenizer for prose, identifiers, flags, units and CJK, used when indexing and when asking.

A compound gives its joined form and its pieces, so that every spelling of a name finds every other. Knows characters
only: no search engine, no glossary, no stemmer (one is passed in). Words with digits are never stemmed.

>>> [found.text for found in terms("torch.cuda.memory_summary() on 8xH100")]
['torchcudamemorysummary', 'torch', 'cuda', 'memory', 'summary', '8xh100', '8', 'h100']
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from skillserver.knowledge.traditional import SIMPLIFIED

CJK = r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uac00-\ud7af"
WORD = re.compile(rf"[{CJK}]+|[^\W{CJK}]+(?:[_\-./:+]+[^\W{CJK}]+)*")
IS_CJK = re.compile(f"[{CJK}]")
JOINT = re.compile(r"[_\-./:+]+")
COUNTED = re.compile(r"^(\d+)x([a-z]+\d+\w*)$", re.I)  # 8xH100
UNIT = re.compile(r"^(\d+)(kb|mb|gb|tb|kib|mib|gib|tib|gbps|gbits?|tflops|gflops|pflops|ms|us|ns|hz|mhz|ghz|kw)$", re.I)
CAMEL = re.compile(r"[A-Z]+(?![a-z])\d*|[A-Z]?[a-z]+\d*|\d+")
PLURAL = re.compile(r"^([A-Z]{2,}|[A-Za-z]+\d+)s$")  # GPUs, H100s: stemmers leave "gpus" alone
PLURALS = {"gpus": "gpu", "cpus": "cpu", "tpus": "tpu", "npus": "npu", "hpus": "hpu", "ipus": "ipu", "dpus": "dpu"}
# "all", "per", "not", "out" stay: all-reduce, per-rank, not found, out of memory
STOP = frozenset(re.findall(r"\w+", "a an and are as at be by for from how if in is it of on or that the this to was what when which with you your"))
Stem = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Term:
    """One term of a text; `joined` marks the whole of a compound, which shares the position of its first piece."""

    text: str
    position: int
    start: int
    end: int
    joined: bool = False


@dataclass(frozen=True, slots=True)
class Word:
    """One word as written, with the terms it is found by."""

    surface: str
    joined: str
    pieces: tuple[str, ...]


def _unchanged(word: str) -> str:
    return word


def terms(text: str, stem: Stem = _unchanged) -> Iterator[Term]:
    """Every term of a text with its place; stop words leave a gap in the positions."""
    position = 0
    for match in WORD.finditer(text):
        first, last = match.span()
        if IS_CJK.match(match[0]):
            for offset, pair in enumerate(bigrams(match[0])):
                yield Term(pair, position, first + offset, first + offset + len(pair))
                position += 1
            continue
        pieces = _pieces(match[0])
        if len(pieces) > 1:
            yield Term(_stemmed(JOINT.sub("", match[0]).lower(), stem), position, first, last, joined=True)
        for piece in pieces:
            if piece not in STOP:
                yield Term(_stemmed(piece, stem), position, first, last)
            position += 1


def words(text: str, stem: Stem = _unchanged) -> Iterator[Word]:
    """The words of a question: a run of CJK is one word whose pieces are its bigrams; stop words are left out."""
    for match in WORD.finditer(text):
        surface = match[0]
        if IS_CJK.match(surface):
            yield Word(surface.translate(SIMPLIFIED), "", tuple(bigrams(surface)))
            continue
        pieces = _pieces(surface)
        kept = tuple(_stemmed(piece, stem) for piece in pieces if piece not in STOP)
        joined = _stemmed(JOINT.sub("", surface).lower(), stem) if len(pieces) > 1 else ""
        if kept:
            yield Word(surface, joined, kept)


def bigrams(run: str) -> list[str]:
    """Overlapping pairs of a CJK run in simplified characters, as Lucene's CJKAnalyzer makes them; a single character stays."""
    run = run.translate(SIMPLIFIED)
    return [run[start : start + 2] for start in range(max(1, len(run) - 1))]


@functools.lru_cache(maxsize=50_000)
def _pieces(word: str) -> tuple[str, ...]:
    """The pieces of a compound in lower case; just the word itself when it has none."""
    found: list[str] = []
    for part in JOINT.split(word):
        if counted := COUNTED.match(part) or UNIT.match(part):
            found += [counted[1], counted[2]]
        elif plural := PLURAL.match(part):
            found += _camel(plural[1])
        elif part:
            found += _camel(part)
    return tuple(PLURALS.get(piece.lower(), piece.lower()) for piece in found)


def _camel(part: str) -> list[str]:
    """DataLoader -> Data Loader; PCIe, ZeRO, NVLink, PyTorch stay whole, since no piece may be under three letters."""
    if part.isupper() or part.islower() or part.isdigit():
        return [part]
    found = CAMEL.findall(part)
    return found if "".join(found) == part and all(len(piece) > 2 for piece in found) else [part]


def _stemmed(word: str, stem: Stem) -> str:
    return word if any(letter.isdigit() for letter in word) else stem(word)


def nearest(word: str, known: Iterable[str], distance: int = 1) -> list[str]:
    """Known words within `distance` edits (insert, drop, change, swap of neighbours), in the order of `known`."""
    mask = _letters(word)
    return [
        other
        for other in known
        if abs(len(other) - len(word)) <= distance
        and (mask ^ _letters(other)).bit_count() <= 2 * distance
        and _edits(word, other, distance) <= distance
    ]


@functools.lru_cache(maxsize=50_000)
def _letters(word: str) -> int:
    """A bit for every letter: two words that differ in many letters are far apart, without counting edits."""
    mask = 0
    for letter in word:
        mask |= 1 << (ord(letter) % 64)
    return mask


def _edits(left: str, right: str, limit: int) -> int:
    """Optimal string alignment distance, given up above `limit`."""
    before: list[int] = []
    row = list(range(len(right) + 1))
    for i, a in enumerate(left, 1):
        older, before, row = before, row, [i]
        for j, b in enumerate(right, 1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (a != b))
            if i > 1 and j > 1 and a == right[j - 2] and left[i - 2] == b:
                cost = min(cost, older[j - 2] + 1)
            row.append(cost)
        if min(row) > limit:
            return limit + 1
    return row[-1]
