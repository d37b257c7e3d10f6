"""The reports of one run in columns, in bounded memory, with what several ranks, restarts and repeats do to them sorted out.

A row is one report of the training loop; evaluations stand apart. A column holds ABSENT where a report did not say (NaN is
a value here: the run printed it). Above LIMIT rows neighbours are folded in pairs, the higher loss kept, so that no spike
is lost. Knows rows; not formats, not what is wrong with them.

>>> run = Run("csv"); run.add(Record(step=1, loss=2.5), line=1)
>>> run.values("loss")
([0], [2.5])
"""

from __future__ import annotations

import itertools
import math
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter

from skillserver.diagnose.log_formats.names import Record

ABSENT = -1.7e308  # a number no report prints; NaN is one they do print
LIMIT = 400_000  # rows: 14 columns of 8 bytes are 45 MB
COLUMNS = ("loss", "grad_norm", "lr", "loss_scale", "step_time_s", "tokens_per_s", "skipped", "nans", "batch", "clock_s", "time_s")
READ: Callable[[Record], tuple[float | None, ...]] = attrgetter(*COLUMNS)
NOTHING = (None,) * len(COLUMNS)
BACK = 3  # reports that ranks may be printed out of order


@dataclass
class Evaluation:
    """One evaluation loss."""

    step: int
    line: int
    loss: float


@dataclass
class Run:
    """Rows in the order of the log. `repeats` are reports of other ranks; `folded` rows were merged to save memory."""

    format: str
    steps: array[int] = field(default_factory=lambda: array("q"))
    lines: array[int] = field(default_factory=lambda: array("q"))
    columns: dict[str, array[float]] = field(default_factory=lambda: {name: array("d") for name in COLUMNS})
    evaluations: list[Evaluation] = field(default_factory=list)
    total: int = 0
    wants_loss: bool = False
    counted: bool = False  # no step was printed: reports are counted instead
    repeats: int = 0
    fold: int = 1  # rows that one row stands for
    _rank: int | None = None
    _waiting: int = 0
    _held: int = 0
    _top: int | None = field(default=None, compare=False)  # the last step, beside the column: an array makes a new int for every look
    _push: tuple[Callable[[float], None], ...] = field(default=(), compare=False, repr=False)

    def __len__(self) -> int:
        return len(self.steps)

    def add(self, record: Record, line: int) -> None:
        """Take a report: to a new row, into the last row when it is of the same step, or to nowhere when a rank repeats it."""
        step = record.step
        if step is None:
            step = (self.steps[-1] if self.steps else 0) + (record.loss is not None)
            self.counted = True
        if record.total > self.total:
            self.total = record.total
        if record.wants_loss:
            self.wants_loss = True
        if record.eval_loss is not None:
            self._evaluate(step, line, record.eval_loss)
        values = READ(record)
        if values == NOTHING and not record.wants_loss:
            return
        top = self._top
        if top is None or step > top:
            self._lead(record, step)
            self._append(values, step, line)
        elif step == top:
            self._merge(record)
        elif self._is_repeat(record, step):
            self.repeats += 1
        else:
            self._append(values, step, line)

    def values(self, name: str, start: int = 0, end: int | None = None) -> tuple[list[int], list[float]]:
        """(rows, values) of a column where the reports said it."""
        cut = self.columns[name][start:end].tolist() if start or end is not None else self.columns[name].tolist()
        absent = cut.count(ABSENT)
        if absent == len(cut):
            return [], []
        if not absent:
            return list(range(start, start + len(cut))), cut
        rows = [row for row, value in enumerate(cut, start) if value != ABSENT]
        return rows, [value for value in cut if value != ABSENT]

    def interval(self) -> int:
        """The usual number of steps from one report to the next."""
        gaps = sorted(after - before for before, after in zip(self.steps, self.steps[1:5000], strict=False) if after > before)
        return gaps[len(gaps) // 2] if gaps else 1

    def step_at(self, line: int) -> int | None:
        """The step of the last report at or before a line; the first report's when the line comes before all."""
        low, high = 0, len(self.lines)
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self.lines[middle] <= line else (low, middle)
        return self.steps[max(low - 1, 0)] if self.steps else None

    def _evaluate(self, step: int, line: int, loss: float) -> None:
        last = self.evaluations[-1] if self.evaluations else None
        stale = last is not None and (last.step == step or last.loss == loss)  # a last value printed again on every line
        if not stale and len(self.evaluations) < LIMIT // 8:
            self.evaluations.append(Evaluation(step, line, loss))

    def _merge(self, record: Record) -> None:
        told = False
        for name in COLUMNS:
            value = getattr(record, name)
            if value is not None and self.columns[name][-1] == ABSENT:
                self.columns[name][-1] = value
            elif value is not None and name == "loss":
                told = True
                if not math.isfinite(value):
                    self.columns[name][-1] = value  # another rank saw NaN
        self.repeats += told

    def _lead(self, record: Record, step: int) -> None:
        """A step that was not seen: nobody is late, and its rank leads from now on."""
        self._waiting = 0
        if record.rank is not None and (self._rank is None or step > (-1 if self._top is None else self._top)):
            self._rank = record.rank

    def _is_repeat(self, record: Record, step: int) -> bool:
        """A report of another rank that is a little late: the step went back by a few reports, and on a rank that does not lead."""
        if self._rank is None:
            self._rank = record.rank
        behind = self.steps[-1] - step
        late = record.rank is not None and record.rank != self._rank
        self._waiting += 1
        return (late and self._waiting < 1000) or (behind <= BACK * self._step_width() and self._waiting <= BACK and not late and behind < 4)

    def _step_width(self) -> int:
        return max(self.steps[-1] - self.steps[-2], 1) if len(self.steps) > 1 else 1

    def _append(self, values: tuple[float | None, ...], step: int, line: int) -> None:
        if self.fold > 1:
            self._held += 1
            if self._held % self.fold:
                self._keep_the_higher(values, step, line)
                return
        self.steps.append(step)
        self.lines.append(line)
        self._top = step
        if not self._push:
            self._push = tuple(column.append for column in self.columns.values())
        for push, value in zip(self._push, values, strict=True):
            push(ABSENT if value is None else value)
        if len(self.steps) >= LIMIT:
            self._halve()

    def _keep_the_higher(self, values: tuple[float | None, ...], step: int, line: int) -> None:
        loss = values[0]
        if loss is not None and _higher(loss, self.columns["loss"][-1]):
            self.steps[-1], self.lines[-1], self._top = step, line, step
            for column, value in zip(self.columns.values(), values, strict=True):
                column[-1] = column[-1] if value is None else value

    def _halve(self) -> None:
        loss = self.columns["loss"]
        keep = [row + _higher(loss[row + 1], loss[row]) for row in range(0, len(loss) - 1, 2)]
        self.steps, self.lines = array("q", (self.steps[row] for row in keep)), array("q", (self.lines[row] for row in keep))
        self.columns = {name: array("d", (column[row] for row in keep)) for name, column in self.columns.items()}
        self._push, self._top = (), self.steps[-1]
        self.fold *= 2
        self._held = 0


def _higher(value: float, other: float) -> bool:
    """Whether a loss is worse than another; NaN is the worst."""
    return value > other or (math.isnan(value) and not math.isnan(other))


def segments(run: Run) -> list[tuple[int, int]]:
    """(first row, end row) of each stretch in which the step only rises; a new one begins where the run went back."""
    steps = run.steps.tolist()
    starts = [0] + [row for row, (before, after) in enumerate(itertools.pairwise(steps), 1) if after < before]
    return [(start, end) for start, end in zip(starts, [*starts[1:], len(run)], strict=True) if end > start]
