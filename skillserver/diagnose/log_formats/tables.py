"""Columns with a header: Lightning's metrics.csv and every CSV or TSV with a loss in it.

Rows are sparse: Lightning writes train and validation values on rows of their own, often with the same step. A header
that comes again (a resumed run that appends) is read again. Knows one line at a time.

>>> table = Table()
>>> table.read("epoch,step,train_loss"), table.read("0,49,7.68").loss
(None, 7.68)
"""

from __future__ import annotations

import csv

from skillserver.diagnose.log_formats.names import Record, layout, number, record


class Table:
    """Remembers the header."""

    name = "csv"
    late = False

    def __init__(self) -> None:
        self._names: tuple[str, ...] = ()
        self._mark = ","
        self.headers = 0  # seen so far: each changes what the lines after it mean

    @property
    def gathers(self) -> bool:
        """Once there is a header, a row may look like anything."""
        return bool(self._names)

    def read(self, text: str) -> Record | None:
        """The record of a row; a header gives none."""
        if ("loss" in text or "LOSS" in text or "Loss" in text) and self._is_header(text):
            return None
        if not self._names or text.count(self._mark) < len(self._names) - 1:
            return None
        cells = next(csv.reader([text], delimiter=self._mark))
        if len(cells) != len(self._names) or not _is_data(cells):
            return None
        found = record(self._names, cells)
        told = (found.loss, found.eval_loss, found.grad_norm, found.lr)
        return found if any(value is not None for value in told) else None

    def close(self) -> Record | None:
        """Nothing is held back."""
        return None

    def _is_header(self, text: str) -> bool:
        mark = max(",\t;", key=text.count)
        cells = [cell.strip().strip('"') for cell in text.split(mark)]
        if len(cells) < 2 or any(not 0 < len(cell) <= 80 or number(cell) is not None or set(cell) & set("{}=:'") for cell in cells[1:]):
            return False
        if any(len(cell) > 80 or (" " in cell.strip() and cell.count(" ") > 3) for cell in cells):
            return False
        if not any(column in ("loss", "eval_loss") for _place, column, _factor in layout(tuple(cells))):
            return False
        self._names, self._mark = tuple(cells), mark
        self.headers += 1
        return True


def _is_data(cells: list[str]) -> bool:
    """At least half of what is filled are numbers."""
    filled = [cell for cell in cells if cell.strip()]
    return bool(filled) and 2 * sum(number(cell) is not None for cell in filled) >= len(filled)
