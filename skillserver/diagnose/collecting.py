"""Pieces of a log -> the hits worth keeping: which signature, where, when, on which rank and host.

Memory is bounded: of each signature the first hits are kept and the rest counted. Lines that look alike but for their
digits are judged once, so a training log of gigabytes costs little more than reading it. A message that a terminal
wrapped is tried together with the line before it. Program text that holds a message is no hit; a warning is a mild one.
Knows prefixes of ranks, clocks and hosts; not what causes what.

>>> seen = collect(reading.of_text("[rank3]: RuntimeError: CUDA error: device-side assert triggered"))
>>> [(hit.signature.id, hit.line, hit.rank) for hit in seen.hits["device_side_assert"]]
[('device_side_assert', 1, 3)]
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from skillserver.diagnose import levels, signatures
from skillserver.diagnose.reading import Piece
from skillserver.diagnose.signatures import FALLBACK, Found, Signature

KEPT = 50  # hits of one signature; the watchdog's are kept for every rank
KEPT_WATCHDOG = 5_000
FULL = 1_000  # characters of a line kept for reading its fields
SHOWN = 200
AFTER = 4  # lines after a hit: an allocator message may be broken over several
IGNORED_LINES = 40  # of a traceback that Python prints below `Exception ignored in`
SHAPES = 20_000  # known shapes of lines
LONGEST_PAIR = 1_000  # bytes of two shapes that are remembered together
NARROWEST, WIDEST = 40, 260  # a wrapped line is about as long as a terminal is wide
ALARM = re.compile(r"(?i)error|errno|fail|exception|fatal|timed? ?out|kill|abort|denied|refused|warn")
DIGITS = b"0123456789"

RANK = re.compile(
    r"\[rank(\d{1,6})\]|\[Rank (\d{1,6})\]| Rank (\d{1,6})\]|\(\w{1,40} rank=(\d{1,6}) pid=|, rank=(\d{1,6})\]|^\s{0,6}(\d{1,5}): (?=\S)"
)
LOCAL_RANK = re.compile(r"\[default(\d{1,3})\]|local_rank: (\d{1,3})\b")
GLOG = re.compile(r"\b[EFWI](\d{1,2})(\d\d) (\d\d):(\d\d):(\d\d(?:\.\d{1,9})?)")
ISO = re.compile(r"\b\d{4}-(\d\d)-(\d\d)[T _](\d\d):(\d\d):(\d\d(?:[.,]\d{1,9})?)")
UPTIME = re.compile(r"^\[\s{0,6}(\d{1,12}\.\d{1,9})\]")
HOST = re.compile(r"^(?:\[[^\]]{1,60}\] )?([A-Za-z][\w.-]{0,80}):\d{1,9}:\d{1,9} \[\d|srun: error: ([\w.-]{1,80}): task")
PEER = re.compile(
    r"(?:remote peer|recv from|from peer|Connect to) ([\w.:-]{1,80})<|(?:Read error|closed by peer) \[([^\]]{1,60})\]|closed by (localRank \d{1,6})"
)
SUMMARY = "Root Cause (first observed failure)"
SUMMARY_FIELD = re.compile(r"^\s{0,8}(rank|exitcode|host|time)\s{0,12}: (-?\d+|\S{1,120})(?: \(local_rank: (\d+)\))?")


@dataclass(slots=True)
class Hit:
    """A signature in a line. `moment` counts on `clock` (glog, iso, uptime) only; `after` are the next lines; `mild`: the program went on."""

    signature: Signature
    line: int
    text: str
    full: str
    fields: dict[str, str]
    rank: int | None
    local_rank: int | None
    host: str
    peer: str
    clock: str
    moment: float
    after: list[str] = field(default_factory=list)
    mild: bool = False


@dataclass
class Collected:
    """Everything kept of a log. `alarming` are odd lines that no signature explains, for a guess."""

    hits: dict[str, list[Hit]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    summary: dict[str, str] = field(default_factory=dict)
    alarming: list[str] = field(default_factory=list)
    last: deque[str] = field(default_factory=lambda: deque(maxlen=3))
    lines: int = 0


def collect(pieces: Iterable[Piece]) -> Collected:
    """Read a log to its end."""
    collector = _Collector()
    for piece in pieces:
        collector.add(piece)
    return collector.seen


class _Collector:
    """What is remembered between one piece and the next."""

    def __init__(self) -> None:
        self.seen = Collected()
        self._quiet: dict[bytes, bool] = {}
        self._previous: tuple[Piece, bool, bool] | None = None  # the piece before, whether it was explained, whether it was quiet
        self._apart: set[tuple[bytes, bytes]] = set()  # shapes of neighbours that say nothing together
        self._open: list[Hit] = []
        self._summary_left = 0
        self._ignored = 0  # the last line that can belong to an exception Python ignored

    def add(self, piece: Piece) -> None:
        self.seen.lines = piece.line
        if self._open or self._summary_left or SUMMARY in piece.text:
            self._feed(piece.text)
        if not self._is_quiet(piece.text):
            self._judge(piece)
        else:
            if self._previous and not self._previous[2] and not self._previous[1]:
                self._wrapped(piece)
            self._previous = (piece, False, True)
        self.seen.last.append(piece.text[:SHOWN])

    def _is_quiet(self, text: str) -> bool:
        """Nothing in the line is worth a look; remembered by shape, because logs repeat themselves but for digits."""
        shape = shape_of(text)
        quiet = self._quiet.get(shape)
        if quiet is None:
            quiet = not (signatures.suspicious(text) or ALARM.search(text))
            if len(shape) < 400:
                if len(self._quiet) >= SHAPES:
                    self._quiet.clear()
                self._quiet[shape] = quiet
        return quiet

    def _judge(self, piece: Piece) -> None:
        if levels.IGNORED in piece.text:
            self._ignored = piece.line + IGNORED_LINES
        found = [each for each in signatures.matches(piece.text) if not levels.quoted(piece.text, each.match.start())]
        for each in found:
            self._keep(each, piece)
        explained = bool(found) or self._wrapped(piece)
        exception = signatures.exception(piece.text)
        if exception and not explained and piece.line > self._ignored and not levels.quoted(piece.text, exception.match.start("name")):
            self._keep(exception, piece)
        elif not explained and len(self.seen.alarming) < 20 and ALARM.search(piece.text):
            self.seen.alarming.append(piece.text[:SHOWN].strip())
        if exception:
            self._ignored = 0
        self._previous = (piece, explained, False)

    def _wrapped(self, piece: Piece) -> bool:
        """Try the line together with the one before it: terminals and mailers break long messages."""
        if self._previous is None or self._previous[1]:
            return False
        before = self._previous[0]
        width = len(before.text.rstrip())
        if before.line not in (piece.line, piece.line - 1) or not NARROWEST <= width <= WIDEST:
            return False
        pair = (signatures.shape(before.text), signatures.shape(piece.text))
        if pair in self._apart:
            return False
        worth = False
        for joint in (" ", ""):
            joined = before.text.rstrip() + joint + piece.text.lstrip()
            shaped = signatures.shape(joined)
            if not signatures.can_match(shaped):
                continue
            worth = True
            across = [found for found in signatures.matches(joined, shaped) if found.match.start() < width < found.match.end()]
            if across:
                self._forget_exception(before.line)
                for found in across:
                    self._keep(found, Piece(before.line, joined))
                return True
        if not worth and len(pair[0]) + len(pair[1]) < LONGEST_PAIR:
            if len(self._apart) >= SHAPES:
                self._apart.clear()
            self._apart.add(pair)
        return False

    def _forget_exception(self, line: int) -> None:
        kept = self.seen.hits.get(FALLBACK)
        if kept and kept[-1].line == line:
            kept.pop()
            self.seen.counts[FALLBACK] -= 1

    def _keep(self, found: Found, piece: Piece) -> None:
        name = found.signature.id
        self.seen.counts[name] += 1
        kept = self.seen.hits.setdefault(name, [])
        if name == FALLBACK and len(kept) >= KEPT:
            del kept[KEPT // 2]  # the fatal exception is the last one, the telling one may be the first
        hit = _hit(found, piece, piece.line <= self._ignored)
        if len(kept) == KEPT and kept[-1].mild and not hit.mild:
            kept.pop()  # what ended something is worth more than the fiftieth warning
        if len(kept) < (KEPT_WATCHDOG if name == "nccl_watchdog_timeout" else KEPT):
            kept.append(hit)
            if len(kept) <= 5:
                self._open.append(kept[-1])

    def _feed(self, text: str) -> None:
        """Give the line to the hits that still want their following lines, and to the launcher's summary."""
        if self._open:
            for hit in self._open:
                hit.after.append(text[:FULL])
            self._open = [hit for hit in self._open if len(hit.after) < AFTER]
        if SUMMARY in text and not self.seen.summary:
            self._summary_left = 8
        elif self._summary_left:
            self._summary_left -= 1
            if match := SUMMARY_FIELD.match(text):
                self.seen.summary.setdefault(match[1], match[2])
                if match[3]:
                    self.seen.summary["local_rank"] = match[3]


def shape_of(text: str) -> bytes:
    """A line without its digits; bytes, because they are stripped five times as fast as a str."""
    return text.encode("utf-8", "surrogatepass").translate(None, DIGITS)


def _hit(found: Found, piece: Piece, ignored: bool) -> Hit:
    clock, moment = _time(piece.text)
    signature = found.signature
    return Hit(
        signature=signature, line=piece.line, text=_shown(piece.text, found.match), full=piece.text[:FULL],
        fields={name: value for name, value in found.match.groupdict().items() if value},
        rank=_first(RANK.search(piece.text[:300])), local_rank=_first(LOCAL_RANK.search(piece.text[:300])),
        host=_word(HOST.search(piece.text[:200])), peer=_word(PEER.search(piece.text)), clock=clock, moment=moment,
        mild=ignored or (not signature.any_level and levels.mild(piece.text, found.match.start())),
    )  # fmt: skip


def _shown(text: str, match: re.Match[str]) -> str:
    """About 200 characters of the line with the match in them."""
    text = text.rstrip()
    start = 0 if match.end() <= SHOWN else max(0, min(match.start(), len(text) - SHOWN))
    cut = text[start : start + SHOWN].strip()
    return ("..." if start else "") + cut + ("..." if start + SHOWN < len(text) else "")


def _word(match: re.Match[str] | None) -> str:
    return next((group for group in match.groups() if group), "") if match else ""


def _first(match: re.Match[str] | None) -> int | None:
    word = _word(match)
    return int(word) if word else None


def _time(text: str) -> tuple[str, float]:
    """(clock, seconds on it): clocks are not compared with each other; ("", 0) without a stamp."""
    head = text[:160]
    if match := UPTIME.search(head):
        return "uptime", float(match[1])
    for clock, pattern in (("glog", GLOG), ("iso", ISO)):
        if match := pattern.search(head):
            month, day, hour, minute = (int(match[number]) for number in range(1, 5))
            return clock, ((month * 31 + day) * 24 + hour) * 3600 + minute * 60 + float(match[5].replace(",", "."))
    return "", 0.0
