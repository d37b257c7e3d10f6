"""Text or a file -> pieces of at most 8,000 characters with their line numbers, in bounded memory.

A piece is a line as a person saw it: colour codes are gone, a progress bar's carriage returns part it, and a line that
is longer than a piece comes in several that overlap. Line numbers are an editor's: only newlines count. Refuses what
is empty or not text. Knows encodings and terminals; not what the lines say.

>>> [(piece.line, piece.text) for piece in of_text("a\\rb\\nc")]
[(1, 'a'), (1, 'b'), (2, 'c')]
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple, TextIO

from skillserver.errors import BadRequest

LONGEST = 8_000  # characters of a piece; every pattern is linear, so this bounds the work a line can make
OVERLAP = 400  # so that a message is whole in one piece
CHUNK = 1 << 18
ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_]")
EXPECTED = "the log or traceback itself: the failing rank's standard error, a torchrun summary, SLURM or kernel lines"
MAGIC = {
    b"\x1f\x8b": "gzip: use zcat",
    b"(\xb5/\xfd": "zstd: use zstdcat",
    b"\xfd7zX": "xz: use xzcat",
    b"PK\x03\x04": "a zip archive",
    b"BZh": "bzip2: use bzcat",
}


class Piece(NamedTuple):
    """One visible line, or a part of a very long one. A named tuple: a frozen dataclass takes three times as long to make."""

    line: int
    text: str


def of_text(text: str) -> Iterator[Piece]:
    """Pieces of a text. Raises BadRequest when it is empty or holds NUL characters."""
    if not text.strip():
        raise BadRequest("empty_text", "the text is empty", next=f"pass {EXPECTED}")
    if "\0" in text[:CHUNK]:
        raise BadRequest("not_text", "the text holds NUL characters, so it is binary", next=f"pass {EXPECTED}")
    return _pieces(io.StringIO(text, newline=""))


def of_file(path: Path) -> Iterator[Piece]:
    """Pieces of a file, read as it goes. Raises BadRequest when it is empty, compressed or binary."""
    try:
        with path.open("rb") as opened:
            head = opened.read(8192)
    except OSError as problem:
        raise BadRequest("unreadable_file", f"{path.name}: {problem.strerror}", next="let this user read it, or pass the text itself") from problem
    if not head.strip():
        raise BadRequest("empty_file", f"{path.name} is empty", next=f"pass a file with {EXPECTED}")
    packed = next((what for magic, what in MAGIC.items() if head.startswith(magic)), None)
    if packed or b"\0" in head:
        raise BadRequest("not_text", f"{path.name} is not text ({packed or 'it holds NUL bytes'})",
                         next="unpack it first; dumps and snapshots go to diagnose_hang and diagnose_memory")  # fmt: skip
    return _file_pieces(path)


def _file_pieces(path: Path) -> Iterator[Piece]:
    with closing(path.open(encoding="utf-8", errors="replace", newline="")) as stream:
        yield from _pieces(stream)


def _pieces(stream: TextIO) -> Iterator[Piece]:
    """Split what the stream gives at newlines; the rest of a chunk waits for the next, at most LONGEST characters."""
    line, rest = 1, ""
    while chunk := stream.read(CHUNK):
        *whole, rest = (rest + chunk).split("\n")
        plain = "\x1b" not in chunk and "\r" not in chunk and "\x1b" not in whole[0] and "\r" not in whole[0] if whole else True
        for text in whole:
            if plain and len(text) <= LONGEST - OVERLAP:
                if text and not text.isspace():
                    yield Piece(line, text)
            else:
                yield from _visible(line, text)
            line += 1
        while len(rest) > LONGEST:
            yield from _visible(line, rest[:LONGEST])
            rest = rest[LONGEST - OVERLAP :]
    if rest:
        yield from _visible(line, rest)


def _visible(line: int, text: str) -> Iterator[Piece]:
    """The parts between carriage returns, without colours, none longer than LONGEST."""
    if "\x1b" in text:
        text = ANSI.sub("", text)
    for part in text.split("\r") if "\r" in text else (text,):
        for start in range(0, max(len(part) - OVERLAP, 1), LONGEST - OVERLAP):
            cut = part[start : start + LONGEST]
            if cut.strip():
                yield Piece(line, cut)
