"""What others measured: the published MAMF of a part.

Knows data/mamf.toml. Does not know peaks on paper (hardware.catalogue) nor whether a number is good (measure.judge).

>>> published("H100-80GB-SXM", "bf16").tflops
794.5
"""

from __future__ import annotations

from skillserver import tables


class Published(tables.Record):
    """One measured maximum, TFLOPS dense; `shape` is m x n x k."""

    accelerators: list[str]
    dtype: str
    tflops: float
    shape: str
    software: str
    source: str


def published(accelerator_id: str, dtype: str) -> Published | None:
    """The row of a canonical accelerator id and dtype; None when nobody's figure was read."""
    rows = tables.load("mamf.toml", Published)
    return next((row for row in rows if accelerator_id in row.accelerators and row.dtype == dtype), None)
