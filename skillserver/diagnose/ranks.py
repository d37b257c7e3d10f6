"""Ranks as people write them: 0-2,5. Knows nothing else.

>>> show_ranks([5, 0, 1, 2])
'0-2,5'
"""

from __future__ import annotations

from collections.abc import Iterable

RUNS = 12


def show_ranks(ranks: Iterable[int]) -> str:
    """Runs of ranks, at most twelve of them, and how many ranks are left out."""
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    shown = ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs[:RUNS])
    rest = sum(last - first + 1 for first, last in runs[RUNS:])
    return f"{shown} and {rest} more" if rest else shown
