"""One line of a memory estimate, the moments of a step it is alive in, and the table of allowances.

A `Term` is bytes on one GPU with its formula, what it rests on (`derived` from shapes, `convention` of a program,
`published` reading, `assumed`) and bounds. Terms add; their uncertainties add in squares, as they have separate causes.

>>> total([Term("weights", 16 * GIB, "8e9 x 2", "derived")]).expected
16.0
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from skillserver import tables
from skillserver.estimate.allowances import Allowance
from skillserver.findings import Interval
from skillserver.units import GIB

Basis = Literal["derived", "convention", "published", "assumed"]


@dataclass(frozen=True)
class Term:
    """Bytes of one kind on one GPU. `low` and `high` are factors of an 80% range; `transient` ones fragment the allocator's cache."""

    name: str
    bytes: float
    formula: str
    basis: Basis
    low: float = 1.0
    high: float = 1.0
    transient: bool = False

    def times(self, factor: float) -> Term:
        """The same term, scaled."""
        return replace(self, bytes=self.bytes * factor)


def allowance(name: str) -> Allowance:
    """One constant of the table; KeyError is a bug."""
    return {row.id: row for row in tables.load("memory_allowances.toml", Allowance)}[name]


def allowed(name: str, term: str, amount: float, formula: str, *, transient: bool = False) -> Term:
    """`amount` units of an allowance, with its range."""
    row = allowance(name)
    return Term(term, amount * row.value, formula, "published", row.low / row.value, row.high / row.value, transient)


def total(terms: Iterable[Term]) -> Interval:
    """Sum in GiB with an 80% interval: deviations are added in squares, and those of the whole with them."""
    kept, whole = list(terms), allowance("unmodelled")
    expected = sum(term.bytes for term in kept)
    below = math.hypot(*(term.bytes * (1 - term.low) for term in kept), expected * (1 - whole.low))
    above = math.hypot(*(term.bytes * (term.high - 1) for term in kept), expected * (whole.high - 1))
    return Interval(low=(expected - below) / GIB, expected=expected / GIB, high=(expected + above) / GIB)
