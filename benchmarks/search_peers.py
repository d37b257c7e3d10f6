"""What people use instead of our search, over the same Markdown: SQLite FTS5, bm25s, an agent with grep.

Each is a function from a question to text, best first, 8,000 characters at most. Sections are cut as we cut them, so
that only ranking and text differ. bm25s is optional: without it `engines` leaves it out.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from pathlib import Path

from skillserver.knowledge import sections

MOST = 8_000
WINDOW = 20  # lines that an agent reads around a match
STOP = frozenset(
    re.findall(
        r"\w+", "a an and are as at be by do does for from how i if in is it my of on or so that the this to vs was what when which why with you"
    )
)
Engine = Callable[[str], str]


def pieces(root: Path) -> list[tuple[str, str]]:
    """(title trail, text with its title) of every section with text."""
    found = []
    for name, text in sections.files(root).texts.items():
        for section in sections.parse(name, text, strict=False).sections:
            if section.text.strip():
                trail = " > ".join(section.trail)
                found.append((trail, f"## {trail}\n{section.text}"))
    return found


def filled(texts: list[str]) -> str:
    """As many texts as fit, the last one cut."""
    return "\n\n".join(texts)[:MOST]


def fts5(held: list[tuple[str, str]]) -> Engine:
    """Porter stems, any word matches, the title counts twice: the usual set-up."""
    base = sqlite3.connect(":memory:")
    base.execute("create virtual table pages using fts5(title, text, tokenize='porter unicode61')")
    base.executemany("insert into pages values (?, ?)", held)

    def ask(question: str) -> str:
        words = [word for word in re.findall(r"\w+", question) if word.lower() not in STOP]
        match = " OR ".join(f'"{word}"' for word in words)
        rows = base.execute("select text from pages where pages match ? order by bm25(pages, 2, 1) limit 12", (match,)) if words else []
        return filled([row[0] for row in rows])

    return ask


def bm25s(held: list[tuple[str, str]]) -> Engine | None:
    """The library as its README shows it; None where it is not installed."""
    try:
        import bm25s as library
    except ImportError:
        return None
    texts = [text for _, text in held]
    index = library.BM25()
    index.index(library.tokenize(texts, stopwords="en", show_progress=False), show_progress=False)

    def ask(question: str) -> str:
        asked = library.tokenize(question, stopwords="en", show_progress=False)
        numbers, _ = index.retrieve(asked, k=12, show_progress=False)
        return filled([texts[int(number)] for number in numbers[0]])

    return ask


def grep(root: Path) -> Engine:
    """An agent that greps for every word, and reads the windows in which most of them stand."""
    windows = []
    for text in sections.files(root).texts.values():
        lines = text.split("\n")
        windows += ["\n".join(lines[start : start + WINDOW]) for start in range(0, len(lines), WINDOW // 2)]
    lowered = [window.lower() for window in windows]

    def ask(question: str) -> str:
        words = {word.lower() for word in re.findall(r"[\w.]+", question)} - STOP
        counts = [(sum(word in window for word in words), number) for number, window in enumerate(lowered)]
        best = sorted((pair for pair in counts if pair[0]), key=lambda pair: (-pair[0], pair[1]))
        return filled([windows[number] for _, number in best[:8]])

    return ask


def engines(root: Path) -> dict[str, Engine]:
    """Those that can be had here, over the pages below `root`."""
    held = pieces(root)
    found = {"SQLite FTS5": fts5(held), "bm25s": bm25s(held), "grep agent": grep(root)}
    return {name: engine for name, engine in found.items() if engine}
