"""FLOPs of one token: matrices, attention scores with or without the causal half, state-space scans.

Knows windows and chunks. Counts work of the model: recomputation and padding are the machine's. Does not know kernels
that compute the masked half anyway, which is why both counts are given.

>>> forward(Architecture(layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=128256), 8192).matrices
15009849344
"""

from __future__ import annotations

from typing import NamedTuple

from skillserver.estimate.architecture import parameters, score_width
from skillserver.estimate.shape import Architecture

SCAN = {"mamba": 9, "mamba2": 6}  # operations a channel and state element: decay, input, sum and output of the recurrence
BACKWARD = 2  # each product has one towards the input and one towards the weight


class Forward(NamedTuple):
    """Forward FLOPs of one token in a sequence of `seq_len`, a mean over the sequence."""

    matrices: float
    scores_causal: float
    scores_square: float
    scan: float

    @property
    def causal(self) -> float:
        """A token attends to itself and what came before."""
        return self.matrices + self.scores_causal + self.scan

    @property
    def square(self) -> float:
        """Every token is counted against the whole sequence (or window), as many logs and papers do."""
        return self.matrices + self.scores_square + self.scan


def forward(shape: Architecture, seq_len: int) -> Forward:
    """2 x (active - looked-up parameters), as in 6ND, plus 4 x width x context a layer of attention (arXiv 2204.02311, app. B)."""
    count = parameters(shape)
    windowed = min(shape.windowed_layers, shape.attention_layers)
    layers = {None: shape.attention_layers - windowed, shape.sliding_window: windowed} if windowed else {None: shape.attention_layers}
    per_context = 4 * score_width(shape)
    ssm = shape.state_space
    return Forward(
        2 * (count.active - count.lookup),
        sum(per_context * number * mean_context(seq_len, window, shape.chunked) for window, number in layers.items()),
        sum(per_context * number * min(seq_len, window or seq_len) for window, number in layers.items()),
        shape.state_layers * SCAN[ssm.kind] * ssm.inner * ssm.state if ssm else 0,
    )


def mean_context(seq_len: int, window: int | None, chunked: bool) -> float:
    """Tokens that a token attends to on average under a causal mask: half the sequence, less where a window cuts."""
    if not window or seq_len <= window:
        return seq_len / 2
    if chunked:
        whole, rest = divmod(seq_len, window)
        return (whole * window**2 + rest**2) / 2 / seq_len
    return window - window**2 / (2 * seq_len)
