"""Text or a file -> blocks of lines -> pieces of at most 8,000 characters with their line numbers, in bounded memory.

A piece is a line as a person saw it: colour codes are gone, a progress bar's carriage returns part it, and a line that
is longer than a piece comes in several that overlap. Line numbers are an editor's: only newlines count. Refuses what
is empty or not text; NULs further on, the hole of a log that was cut under its writer, are dropped. Knows encodings and
terminals; not what the lines say.

>>> [(piece.line, piece.text) for piece in of_text("a\\rb\\nc")]
[(1, 'a'), (1, 'b'), (2, 'c')]
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple, TextIO

from skillserver.errors import BadRequest

LONGEST = 8_000  # characters of a piece; every pattern is linear, so this bounds the work a line can make
OVERLAP = 400  # so that a message is whole in one piece
CHUNK = 1 << 18
UTF_8 = "utf-8-sig"
ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_]")
EXPECTED = "the log or traceback itself: the failing rank's standard error, a torchrun summary, SLURM or kernel lines"
MAGIC = {
    b"\x1f\x8b": "gzip: use zcat",
    b"(\xb5/\xfd": "zstd: use zstdcat",
    b"\xfd7zX": "xz: use xzcat",
    b"PK\x03\x04": "a zip archive",
    b"BZh": "bzip2: use bzcat",
}


UTF_16 = {b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}  # what PowerShell's redirection writes


class Piece(NamedTuple):
    """One visible line, or a part of a very long one. A named tuple: a frozen dataclass takes three times as long to make."""

    line: int
    text: str


class Block(NamedTuple):
    """Neighbouring lines of a chunk, the first one's number, and whether they are plain: none coloured, parted or too long."""

    line: int
    texts: list[str]
    plain: bool


def of_text(text: str) -> Iterator[Piece]:
    """Pieces of a text. Raises BadRequest when it is empty or holds NUL characters."""
    return pieces(blocks_of_text(text))


def of_file(path: Path) -> Iterator[Piece]:
    """Pieces of a file, read as it goes. Raises BadRequest when it is empty, compressed or binary."""
    return pieces(blocks_of_file(path))


def blocks_of_text(text: str) -> Iterator[Block]:
    """Blocks of a text. Raises BadRequest when it is empty or holds NUL characters."""
    if not text.strip():
        raise BadRequest("empty_text", "the text is empty", next=f"pass {EXPECTED}")
    if "\0" in text[:CHUNK]:
        raise BadRequest("not_text", "the text holds NUL characters, so it is binary", next=f"pass {EXPECTED}")
    return _blocks(io.StringIO(text, newline=""))


def blocks_of_file(path: Path) -> Iterator[Block]:
    """Blocks of a file, read as it goes. Raises BadRequest when it is empty, compressed or binary."""
    try:
        with path.open("rb") as opened:
            head = opened.read(8192)
    except OSError as problem:
        raise BadRequest("unreadable_file", f"{path.name}: {problem.strerror}", next="let this user read it, or pass the text itself") from problem
    if not head.strip():
        raise BadRequest("empty_file", f"{path.name} is empty", next=f"pass a file with {EXPECTED}")
    packed = next((what for magic, what in MAGIC.items() if head.startswith(magic)), None)
    if packed or (b"\0" in head and encoding(head) == UTF_8):
        raise BadRequest("not_text", f"{path.name} is not text ({packed or 'it holds NUL bytes'})",
                         next="unpack it first; dumps and snapshots go to diagnose_hang and diagnose_memory")  # fmt: skip
    return _file_blocks(path, encoding(head))


def encoding(head: bytes) -> str:
    """Of a file that begins so: UTF-16 when its mark or a NUL in every second byte says so, else UTF-8, its mark dropped."""
    if head[:2] in UTF_16:
        return UTF_16[head[:2]]
    even, odd = head[0:512:2], head[1:512:2]
    if len(odd) > 3 and not odd.strip(b"\0") and b"\0" not in even:
        return "utf-16-le"
    if len(even) > 3 and not even.strip(b"\0") and b"\0" not in odd:
        return "utf-16-be"
    return UTF_8


def pieces(blocks: Iterable[Block]) -> Iterator[Piece]:
    """The visible lines of blocks; blank ones are left out."""
    for line, texts, plain in blocks:
        for number, text in enumerate(texts, line):
            if not plain:
                yield from _visible(number, text)
            elif text and not text.isspace():
                yield Piece(number, text)


def _file_blocks(path: Path, encoded: str) -> Iterator[Block]:
    with closing(path.open(encoding=encoded, errors="replace", newline="")) as stream:
        yield from _blocks(stream)


def _blocks(stream: TextIO) -> Iterator[Block]:
    """Split what the stream gives at newlines; the rest of a chunk waits for the next, at most LONGEST characters."""
    line, rest = 1, ""
    while chunk := stream.read(CHUNK):
        if "\0" in chunk:
            chunk = chunk.replace("\0", "")
        *whole, rest = (rest + chunk).split("\n")
        if whole:
            yield Block(line, whole, _is_plain(chunk, whole))
            line += len(whole)
        while len(rest) > LONGEST:
            yield Block(line, [rest[:LONGEST]], False)
            rest = rest[LONGEST - OVERLAP :]
    if rest:
        yield Block(line, [rest], False)


def _is_plain(chunk: str, whole: list[str]) -> bool:
    """Whether lines need no look at their characters; the first may have begun in the chunk before."""
    odd = "\x1b" in chunk or "\r" in chunk or "\x1b" in whole[0] or "\r" in whole[0]
    return not odd and max(map(len, whole)) <= LONGEST - OVERLAP


def _visible(line: int, text: str) -> Iterator[Piece]:
    """The parts between carriage returns, without colours, none longer than LONGEST."""
    if "\x1b" in text:
        text = ANSI.sub("", text)
    for part in text.split("\r") if "\r" in text else (text,):
        for start in range(0, max(len(part) - OVERLAP, 1), LONGEST - OVERLAP):
            cut = part[start : start + LONGEST]
            if cut.strip():
                yield Piece(line, cut)
