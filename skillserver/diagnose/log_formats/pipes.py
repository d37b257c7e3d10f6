"""Lines of `key: value` cells between pipes: Megatron-LM old and new, Megatron-DeepSpeed, nanotron, NeMo 2.

` iteration     7000/  159576 | elapsed time per iteration (ms): 18706.1 | lm loss: 6.444662E+00 | ... |`. Traps: the loss is
absent when every step was skipped; a grad norm of exactly 0 and a loss scale of -1 mean "not reported"; the unit of the
time stands in the key; terminals and mailers wrap the line. Knows this family only.

>>> Pipes().read(" iteration 10/ 100 | elapsed time per iteration (ms): 500.0 | lm loss: 2.5E+00 |").step_time_s
0.5
"""

from __future__ import annotations

import re

from skillserver.diagnose.log_formats.names import Record, layout, record

HEAD = re.compile(r"\b(?:iteration|global_step|step):?\s+(\d+)(?:\s*/\s*(\d+))?\s*\|")
EVALUATION = re.compile(r"(?:validation|valid|test) loss at (?:iteration )?(\d+)?.{0,80}?\| ([\w -]*loss) value: (\S+)")
LOOSE_EVALUATION = re.compile(r"valid(?:ation)? loss at")
RANK = re.compile(r"^\s*(?:\[default\d+\]|\[rank\d+\]|\d+):\s*")
WRAPPED = 8  # lines that one report may be broken into


class Pipes:
    """Reads one line after the other; remembers a report that the terminal broke."""

    name = "megatron"

    def __init__(self) -> None:
        self._open: list[str] = []
        self._plan: list[tuple[int, str, str, float]] = []
        self._cells = 0
        self._wants_loss = False
        self.late = False  # the record was that of an earlier line, and this line is not part of it

    @property
    def gathers(self) -> bool:
        """While a report is broken."""
        return bool(self._open)

    def read(self, text: str) -> Record | None:
        """The record that this line is, completes or, by not going on with it, ends."""
        self.late = False
        if "|" not in text and not self._open:
            return None
        head = (
            HEAD.search(text) if ("iter" in text or "step" in text) and "loss at" not in text else None
        )  # "validation loss at iteration 10 |" is no report
        if self._open:
            return self._continue(text, head)
        if head is None:
            return self._evaluation(text)
        if "consumed" in text and self.name != "nanotron" and not text.rstrip().endswith("|") and "tokens_per_sec" not in text:
            if "consumed_samples" in text:
                return self._parse(text, head)
            self._open = [text.rstrip("\n")]
            return None
        return self._parse(text, head)

    def close(self) -> Record | None:
        """What a broken report held when the log ended."""
        whole, self._open = "".join(self._open), []
        head = HEAD.search(whole)
        return self._parse(whole, head) if head else None

    def _continue(self, text: str, head: re.Match[str] | None) -> Record | None:
        """Join a broken report without a blank: names are compared without blanks, so either kind of break reads."""
        goes_on = head is None and "|" in text and not self._open[-1].endswith("|")
        if goes_on and len(self._open) < WRAPPED and "time (ms)" not in text:
            self._open.append(RANK.sub("", text).strip())
            return self.close() if text.rstrip().endswith("|") else None
        before = self.close()
        self._open = []
        if head is not None:
            self._open = [text]
        self.late = head is None
        return before

    def _parse(self, text: str, head: re.Match[str]) -> Record | None:
        cells = text[head.end() :].split("|")
        found = self._as_before(cells)
        if found is None:
            pairs = [(place, *cell.partition(":")[::2]) for place, cell in enumerate(cells) if ":" in cell]
            names = tuple(name for _place, name, _value in pairs)
            found = record(names, [value.strip() for _place, _name, value in pairs])
            self._plan = [(pairs[at][0], f"{pairs[at][1]}:", column, factor) for at, column, factor in layout(names)]
            self._cells = len(cells)
            self._note(found, text)
        else:
            found.wants_loss = self._wants_loss
            _unsay(found)
        if found.step is None:
            found.step = int(head[1])
        found.total = int(head[2]) if head[2] and self.name != "nemo" else 0  # NeMo counts within an epoch
        return found if found.wants_loss or found.loss is not None or found.grad_norm is not None else None

    def _as_before(self, cells: list[str]) -> Record | None:
        """Read the cells by the places where the last report had them; None when they are not laid out alike."""
        if len(cells) != self._cells:
            return None
        found = Record()
        for place, start, column, factor in self._plan:
            cell = cells[place]
            if column == "step" or not cell.startswith(start):
                return None
            try:
                setattr(found, column, float(cell[len(start) :]) * factor)
            except ValueError:
                return None
        return found

    def _note(self, found: Record, text: str) -> None:
        """Which of the family it is, and its ways of saying nothing undone."""
        _unsay(found)
        if "consumed samples" in text or found.skipped is not None:
            self.name, found.wants_loss = "megatron", True
        elif "reduced_train_loss" in text or "consumed_samples" in text:
            self.name = "nemo"
        elif "tokens_per_sec" in text or "consumed_tokens" in text:
            self.name = "nanotron"
        self._wants_loss = found.wants_loss

    def _evaluation(self, text: str) -> Record | None:
        if " loss" not in text or not LOOSE_EVALUATION.search(text) or not (match := EVALUATION.search(text)):
            return None
        found = record((match[2] + " valid loss",), (match[3],))
        found.step = int(match[1]) if match[1] else None
        return found if found.eval_loss is not None and found.step is not None else None


def _unsay(found: Record) -> None:
    """A norm of exactly 0 and a loss scale below 0 are not values."""
    if found.grad_norm == 0.0:
        found.grad_norm = None
    if found.loss_scale is not None and found.loss_scale <= 0:
        found.loss_scale = None
