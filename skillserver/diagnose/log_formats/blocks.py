"""Reports of several lines: OLMo (`[step=1/739328]`, then `train/CrossEntropyLoss=11.25`) and Composer (`[batch=3/3200]:`).

A head names the step, the indented lines under it the quantities; the report is whole when another head or the end of the log
comes. Numbers have thousands commas. Knows these two families only.

>>> blocks = Blocks()
>>> [blocks.read(line) for line in ("[step=7/10]", "    train/CrossEntropyLoss=2.5")], blocks.close().loss
([None, None], 2.5)
"""

from __future__ import annotations

import re

from skillserver.diagnose.log_formats.names import Record, record

OLMO = re.compile(r"\[step=(\d[\d,]*)(?:/(\d[\d,]*))?(?:,[^\]]{0,120})?\]\s*$")
COMPOSER = re.compile(r"\[batch=(\d[\d,]*)/(\d[\d,]*)\]:?\s*$")
EQUALS = re.compile(r"^\s+(?:\[[^\]]*\]\s*)?([A-Za-z][\w/ .()-]{0,90})=(\S+)\s*$")
COLON = re.compile(r"^\s+(?:Train|Eval) ([\w/ .()-]{1,90}): (\S+)\s*$")
LONGEST = 400  # lines of one report


class Blocks:
    """Collects the lines under a head."""

    name = "olmo"
    late = False
    gathers = False

    def __init__(self) -> None:
        self._head: tuple[int, int] | None = None
        self._names: list[str] = []
        self._values: list[str] = []

    def read(self, text: str) -> Record | None:
        """The report before, when this line begins another one."""
        match = OLMO.search(text) if "[step=" in text else COMPOSER.search(text) if "[batch=" in text else None
        if match:
            before = self.close()
            self.name = "olmo" if "[step=" in text else "composer"
            self._head = (int(match[1].replace(",", "")), int((match[2] or "0").replace(",", "")))
            return before
        if self._head and text[:1] in " \t" and len(self._names) < LONGEST:
            line = EQUALS.match(text) if self.name == "olmo" else COLON.match(text)
            if line:
                self._names.append(line[1])
                self._values.append(line[2])
        return None

    def close(self) -> Record | None:
        """The report that the last head began, when it says something."""
        if self._head is None:
            return None
        found = record(tuple(self._names), self._values)
        found.step, found.total = self._head
        self._head, self._names, self._values = None, [], []
        return found if found.loss is not None or found.eval_loss is not None or found.grad_norm is not None else None
