"""Latency plus size over bandwidth: the two numbers behind a table of times, and where the table does not follow them.

t(S) = alpha + S / B, fitted to (bytes, seconds) by least squares on relative errors, since times span orders of magnitude
(Hockney, 1994). B is an algbw: multiply by the bus factor to compare it with a link. Libraries switch protocol and
algorithm with the size, so one line seldom holds everywhere: sizes that miss it by more than 25% are named. Knows no part.

>>> fit([(2**16, 2e-5 + 2**16 / 1e10), (2**20, 2e-5 + 2**20 / 1e10), (2**26, 2e-5 + 2**26 / 1e10)]).latency_us
20.0
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, Field

FEWEST = 3
MISSES = 0.25
FLAT = 4.0  # sizes that span less than this say nothing of a slope


class Fit(BaseModel):
    """The line through a table of times."""

    latency_us: float | None = Field(description="alpha; null where the sizes are too large to show it")
    algbw_gb_s: float | None = Field(description="B, 10^9 bytes a second; null where the sizes are too small to show it")
    half_bytes: int | None = Field(default=None, description="size at which half of B is reached: alpha times B")
    residual: float = Field(description="median of |measured / line - 1|")
    does_not_hold: list[str] = Field(default_factory=list, description="sizes that miss the line by more than 25%")


def fit(points: Sequence[tuple[int, float]]) -> Fit | None:
    """The line through [(bytes, seconds)]; None for fewer than three sizes or sizes that span less than a factor of four."""
    known = [(size, seconds) for size, seconds in points if size > 0 and seconds > 0]
    if len(known) < FEWEST or max(known)[0] < FLAT * min(known)[0]:
        return None
    alpha, beta = _line(known)
    if alpha <= 0:
        alpha, beta = 0.0, _through_zero(known)
    if beta <= 0:
        alpha, beta = _flat(known), 0.0
    errors = [(size, seconds / (alpha + beta * size) - 1.0) for size, seconds in known]
    return Fit(
        latency_us=alpha * 1e6 if alpha > 0 else None,
        algbw_gb_s=1e-9 / beta if beta > 0 else None,
        half_bytes=round(alpha / beta) if alpha > 0 and beta > 0 else None,
        residual=sorted(abs(error) for _, error in errors)[len(errors) // 2],
        does_not_hold=[f"{size} bytes: {error:+.0%} time" for size, error in errors if abs(error) > MISSES],
    )


def _line(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """(alpha, beta) that minimise the sum of ((alpha + beta S) / t - 1)^2: the normal equations of two unknowns."""
    aa = sum(1 / t**2 for _, t in points)
    ab = sum(s / t**2 for s, t in points)
    bb = sum(s**2 / t**2 for s, t in points)
    a, b = sum(1 / t for _, t in points), sum(s / t for s, t in points)
    determinant = aa * bb - ab**2
    return (a * bb - b * ab) / determinant, (b * aa - a * ab) / determinant


def _through_zero(points: Sequence[tuple[int, float]]) -> float:
    return sum(s / t for s, t in points) / sum(s**2 / t**2 for s, t in points)


def _flat(points: Sequence[tuple[int, float]]) -> float:
    return sum(1 / t for _, t in points) / sum(1 / t**2 for _, t in points)
