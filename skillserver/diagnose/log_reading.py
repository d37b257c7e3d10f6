"""A log -> its format, the run's reports in columns, its events, and what the errors in it say: one pass, bounded memory.

Every line is offered to the formats, the one that read the last report first; what nobody reads goes, unless it is known to
be harmless, to explain_error's signatures. The format with most losses is the log's; `loose` counts only when nothing else
is there. Knows files, texts and formats; judges nothing.

>>> read_text("iter 0: loss 4.2, time 100.00ms, mfu 1.00%\\niter 1: loss 4.1, time 90.00ms, mfu 1.00%").run.format
'nanogpt'
"""

from __future__ import annotations

import io
import re
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from skillserver.diagnose import explain, log_events, reading
from skillserver.diagnose.collecting import SHAPES, shape_of
from skillserver.diagnose.explain import Explanation
from skillserver.diagnose.log_events import Event
from skillserver.diagnose.log_formats import documents, tfevents, words
from skillserver.diagnose.log_formats.blocks import Blocks
from skillserver.diagnose.log_formats.deepspeed import DeepSpeed
from skillserver.diagnose.log_formats.dicts import Dicts
from skillserver.diagnose.log_formats.names import Record
from skillserver.diagnose.log_formats.pipes import Pipes
from skillserver.diagnose.log_formats.tables import Table
from skillserver.diagnose.log_series import Run
from skillserver.diagnose.reading import Block, Piece
from skillserver.errors import BadRequest

RANK = re.compile(r"^\s*(?:\[rank(\d+)\]|\[default(\d+)\]|(\d{1,5}): )|\brank=(\d+)\]|\[[Rr]ank (\d+)\]")
# words of which every line holds one that ends or endangers a job; lines that only set it up (NCCL INFO) are passed over
ALARMS = ("error", "errno", "fail", "exception", "fatal", "timed out", "timeout", "kill", "abort", "denied", "refused", "nccl warn", "xid", "is lost",
          "fallen off", "watchdog", "duplicate gpu", "exitcode", "signal", "cancelled", "preempt", "no space", "out of memory")  # fmt: skip
# shapes of blocks, progress bars, tables and broken reports: what such a line means hangs on the lines around it
LINKED = ("oss", "/ [", "[step=", "[batch=", "iteration")
ENOUGH = 3  # reports of a known format that end the loose one
ROUTINE = ("saved", "loaded")  # events that endanger nothing
AFTER = 4  # lines handed on behind one that matters
AROUND = 30  # lines kept behind the last report, from its start and from the end
EXPECTED = "a training log with a loss: terminal output, trainer_state.json, metrics.csv, JSON lines or a TensorBoard event file"


class Family(Protocol):
    """A format that reads lines; it may hold a report back until it is whole. `gathers`: the next line may be part of one, whatever its shape."""

    name: str
    late: bool

    @property
    def gathers(self) -> bool: ...

    def read(self, text: str) -> Record | None: ...

    def close(self) -> Record | None: ...


@dataclass
class Words:
    """A family made of one function."""

    name: str
    parse: Callable[[str], Record | None]
    late: bool = False
    gathers: bool = False

    def read(self, text: str) -> Record | None:
        """The record of a line."""
        return self.parse(text)

    def close(self) -> Record | None:
        """Nothing is held back."""
        return None


@dataclass
class Log:
    """What one pass found. `first_after` and `last_after` are lines behind the last report."""

    run: Run
    events: list[Event] = field(default_factory=list)
    errors: Explanation | None = None
    first_after: list[str] = field(default_factory=list)
    last_after: list[str] = field(default_factory=list)
    lines: int = 0
    others: list[str] = field(default_factory=list)


def read_text(text: str) -> Log:
    """Read a text. Raises BadRequest when it is empty, binary or holds no report."""
    if documents.is_document(text[:8192]) and (log := _document(io.StringIO(text))):
        return log
    return _lines(reading.blocks_of_text(text))


def read_file(path: Path) -> Log:
    """Read a file of any size. Raises BadRequest when it is empty, packed, binary or holds no report."""
    with path.open("rb") as opened:
        head = opened.read(8192)
    if tfevents.is_events(head):
        return _events(path)
    blocks = reading.blocks_of_file(path)
    with path.open(encoding=reading.encoding(head), errors="replace") as stream:
        if documents.is_document(stream.read(8192)):
            stream.seek(0)
            if log := _document(stream):
                return log
    return _lines(blocks)


def _events(path: Path) -> Log:
    """A TensorBoard file. Raises BadRequest when none of its scalars is a loss."""
    run, number = Run("tensorboard"), 0
    for number, record in tfevents.records(path):
        run.add(record, number)
    if not run.values("loss")[0] and not run.evaluations:
        seen = list(tfevents.tags(path))
        raise BadRequest("no_training_log", f"no scalar of this event file is a loss; it holds {len(seen)} scalars: {', '.join(seen[:12]) or 'none'}",
                         next="pass the event file into which the training loop writes its loss")  # fmt: skip
    return Log(run, lines=number)


def _document(stream: io.TextIOBase | io.TextIOWrapper) -> Log | None:
    run, line = Run("hf_trainer_state"), 1
    for line, record in documents.records(stream):  # type: ignore[arg-type]
        run.add(record, line)
    return Log(run, lines=line) if len(run) or run.evaluations else None


def _lines(blocks: Iterator[Block]) -> Log:
    reader = _Reader()
    errors = explain.explain(reader.unread(blocks))
    run = reader.close()
    log = Log(run, reader.events, errors if errors.causes else None, reader.first, list(reader.last), reader.line)
    log.others = [f"{other.format}: {len(other)} reports" for other in reader.runs() if other is not run and len(other) >= ENOUGH]
    return log


class _Reader:
    """The families, a run for each that read something, and which shapes of lines are known to be harmless."""

    def __init__(self) -> None:
        self._families: list[Family] = [Pipes(), *(Words(name, parse) for name, parse in words.FORMATS), Blocks(), Dicts(), DeepSpeed()]
        self._table = Table()
        self._families.append(self._table)
        self._loose = Words("key_value", words.loose)
        self._runs: dict[int, Run] = {}
        self._quiet: set[bytes] = set()
        self.events: list[Event] = []
        self.first: list[str] = []
        self.last: deque[str] = deque(maxlen=AROUND)
        self.line = 0
        self._strong = 0
        self._shape = b""
        self._before: Piece | None = None
        self._follow = 0  # lines still to be handed on behind one that matters

    def unread(self, blocks: Iterator[Block]) -> Iterator[Piece]:
        """Read the reports and hand on the other lines that may matter, each with the line before and four after it."""
        for block in blocks:
            if block.plain and not self._families[0].gathers:
                yield from self._in_bulk(block)
            else:
                for piece in reading.pieces((block,)):
                    yield from self._single(piece)

    def _in_bulk(self, block: Block) -> Iterator[Piece]:
        """A block whose lines of known harmless shapes are passed over together: most of a large log is such."""
        texts, quiet, passed = block.texts, self._quiet, 0
        shapes = shape_of("\n".join(texts)).split(b"\n")
        for at in [at for at, shape in enumerate(shapes) if shape not in quiet]:
            if shapes[at] in quiet and not self._families[0].gathers:
                continue  # known since
            yield from self._pass_over(block.line, texts, passed, at)
            passed, headers = at + 1, self._table.headers
            if texts[at] and not texts[at].isspace():
                yield from self._single(Piece(block.line + at, texts[at]))
            if self._table.headers > headers:  # and with it what the rest of the block means
                for piece in reading.pieces((Block(block.line + passed, texts[passed:], True),)):
                    yield from self._single(piece)
                return
        yield from self._pass_over(block.line, texts, passed, len(texts))

    def _pass_over(self, first_line: int, texts: list[str], start: int, end: int) -> Iterator[Piece]:
        """Harmless lines: those behind one that matters go on, and the last may be the line before another."""
        while start < end and (self._follow or self._families[0].gathers):
            yield from self._single(Piece(first_line + start, texts[start]))
            start += 1
        if start == end:
            return
        self.line = first_line + end - 1
        self._before = Piece(self.line, texts[end - 1])
        if len(self.first) < AROUND:
            self.first += texts[start : min(end, start + AROUND - len(self.first))]
        self.last.extend(texts[max(start, end - AROUND) : end])

    def _single(self, piece: Piece) -> Iterator[Piece]:
        """One line, offered to every family."""
        self.line = piece.line
        if self._report(piece):
            self._before = None
            return
        if len(self.first) < AROUND:
            self.first.append(piece.text)
        self.last.append(piece.text)
        harmless = self._harmless(piece)
        if harmless and not self._follow:
            self._before = piece
            return
        if not harmless and self._before is not None:
            yield self._before
        self._before = None
        self._follow = self._follow - 1 if harmless else AFTER
        yield piece

    def close(self) -> Run:
        """The run of the log's format. Raises BadRequest when there is none."""
        for family in self._families:
            if record := family.close():
                self._run(family).add(record, self.line)
        best = max(self._runs.values(), key=lambda run: len(run.values("loss")[0]) + 0.5 * len(run.evaluations), default=None)
        if best is None or not (len(best) or best.evaluations):
            raise BadRequest(
                "no_training_log", f"no line of {self.line:,} names a step and a loss", next=f"pass {EXPECTED}; explain_error reads tracebacks"
            )
        return best

    def runs(self) -> list[Run]:
        """Every run that something was read into."""
        return list(self._runs.values())

    def _report(self, piece: Piece) -> bool:
        """Offer a line to the families, the one that read the last report first; True when it was a report."""
        text, first = piece.text, self._families[0]
        record = first.read(text)
        if record is not None:
            self._take(first, record, piece)
            return not first.late
        self._shape = shape_of(text)
        if self._shape in self._quiet:
            return False
        headers = self._table.headers
        for place in range(1, len(self._families)):
            family = self._families[place]
            record = family.read(text)
            if record is not None:
                self._families.insert(0, self._families.pop(place))
                self._take(family, record, piece)
                return not family.late
        if self._table.headers > headers:
            self._quiet.clear()  # lines that were harmless before may be its rows
        return self._strong < ENOUGH and "oss" in text and self._take_loose(piece)

    def _take_loose(self, piece: Piece) -> bool:
        record = self._loose.read(piece.text)
        if record is None:
            return False
        self._take(self._loose, record, piece)
        return True

    def _take(self, family: Family, record: Record, piece: Piece) -> None:
        text = piece.text
        head = text[:120]
        if "ank" in head:
            match = RANK.search(head)
        else:  # only the forms that begin a line can be there
            match = RANK.match(head) if head[:1] in "[ 0123456789" else None
        if match:
            record.rank = next(int(group) for group in match.groups() if group)
        if "20" in head and "-" in head and head.count(":") >= 2:
            record.time_s = log_events.stamp(text)
        self._run(family).add(record, piece.line)
        if self.last:
            self.first.clear()
            self.last.clear()
        if family is not self._loose and (record.loss is not None or record.wants_loss):
            self._strong += 1
            if self._strong == ENOUGH:
                self._runs.pop(id(self._loose), None)

    def _run(self, family: Family) -> Run:
        run = self._runs.get(id(family))
        if run is None:
            run = self._runs[id(family)] = Run(family.name)
        run.format = family.name
        return run

    def _harmless(self, piece: Piece) -> bool:
        """No event and no alarming word is in the line; remembered by shape, because logs repeat themselves but for digits."""
        text, shape = piece.text, self._shape
        if shape in self._quiet:
            return True
        event = log_events.event(text, piece.line) if log_events.is_eventful(text) else None
        if event and len(self.events) < log_events.KEPT:
            self.events.append(event)
        if (event and event.kind not in ROUTINE) or _holds(text.lower(), ALARMS):
            return False
        if event:
            return True
        words = shape.decode("utf-8", "surrogatepass") if len(shape) < 400 and text[:1] not in " \t" else ""
        if words and not _holds(words, LINKED) and any(map(str.isalpha, words[:60])):
            if len(self._quiet) >= SHAPES:
                self._quiet.clear()
            self._quiet.add(shape)
        return True


def _holds(text: str, words: tuple[str, ...]) -> bool:
    """Whether one of the words is in the text; a plain loop, because `any` of a generator costs three times as much."""
    for word in words:  # noqa: SIM110
        if word in text:
            return True
    return False
