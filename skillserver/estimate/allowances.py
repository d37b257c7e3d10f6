"""The row of an allowance table: a number that no formula gives, with its 80% range, its reason and its source.

Used by the tables of training memory and of inference. Knows no table by name.

>>> tables.load("memory_allowances.toml", Allowance)[0].value
"""

from __future__ import annotations

from skillserver import tables


class Allowance(tables.Record):
    """One row; `low` and `high` are an 80% range."""

    id: str
    value: float
    low: float
    high: float
    unit: str
    reason: str
    source: str
