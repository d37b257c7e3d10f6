"""How long between checkpoints: size, stall, the Young/Daly interval, and the share of a run that failures eat.

A checkpoint here is what continues a run: weights, fp32 masters and optimizer moments; gradients are not saved. The
model is a job whose failures come at a constant rate, that loses half an interval and a restart at each of them, and
stops for `stall_s` at each save. Knows no file system and no model; both come in as numbers.

>>> plan = outcome(stall_s=100.0, mtbf_s=4 * 3600.0, restart_s=600.0)
>>> round(plan.interval_s), round(plan.useful_share, 3)
(1631, 0.851)
"""

from __future__ import annotations

import math

from pydantic import BaseModel

from skillserver import tables
from skillserver.errors import BadRequest

# Bytes a parameter on disk. Adam with mixed precision: fp32 master 4, two fp32 moments 8, a bf16 copy 2
# (BLOOM-176B: 2.3 TB = 13 bytes a parameter without the copy of some parts).
BYTES_A_PARAMETER = {"adam": 14.0, "adam_fp32": 12.0, "adam_8bit": 8.0, "adafactor": 6.1, "muon": 10.0, "sgd": 6.0, "weights_only": 2.0}
LEAST_CYCLES = 2.0  # below two intervals between failures the constant-rate model says nothing useful


class FailureRecord(tables.Record):
    """Interruptions of one published run."""

    run: str
    accelerator: str
    n_accelerators: int
    hours: float
    interruptions: int
    source: str

    @property
    def hours_per_accelerator(self) -> float:
        """Accelerator-hours between interruptions."""
        return self.n_accelerators * self.hours / self.interruptions


class Outcome(BaseModel):
    """One way of saving. Shares are of wall time."""

    stall_s: float
    interval_s: float
    saving_share: float
    redone_share: float
    restart_share: float
    useful_share: float


def failures() -> tuple[FailureRecord, ...]:
    """Published interruption rates."""
    return tables.load("failures.toml", FailureRecord)


def size_bytes(parameters: float, optimizer: str) -> float:
    """Bytes of a checkpoint that can continue a run. Raises BadRequest for an unknown optimizer."""
    if optimizer not in BYTES_A_PARAMETER:
        raise BadRequest("unknown_optimizer", f"optimizer {optimizer!r} is not known", valid=BYTES_A_PARAMETER)
    return parameters * BYTES_A_PARAMETER[optimizer]


def young_daly_s(stall_s: float, mtbf_s: float) -> float:
    """Best interval between saves: sqrt(2 d M) (Young 1974), with Daly's higher order terms (FGCS 22, 2006, eq. 37).

    `stall_s`: d, the time training stops for one save; `mtbf_s`: M of the whole job. When d >= 2M it is M.
    """
    if stall_s >= 2 * mtbf_s:
        return mtbf_s
    ratio = stall_s / (2 * mtbf_s)
    return math.sqrt(2 * stall_s * mtbf_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - stall_s


def outcome(*, stall_s: float, mtbf_s: float, restart_s: float, interval_s: float | None = None, least_interval_s: float = 0.0) -> Outcome:
    """Shares of wall time at `interval_s`, or at the best interval (never below `least_interval_s`, the time a write takes).

    Exact for exponential failures: a segment of `interval + stall` succeeds with exp(-t/M), so that the expected time for
    it is (exp(t/M) - 1)(M + restart) (Daly 2006, eq. 20); useful share = interval over that.
    """
    chosen = max(interval_s or young_daly_s(stall_s, mtbf_s), least_interval_s)
    expected = math.expm1((chosen + stall_s) / mtbf_s) * (mtbf_s + restart_s) if chosen + stall_s < 500 * mtbf_s else math.inf
    useful, saving = chosen / expected, stall_s / expected
    restart = restart_s / (mtbf_s + restart_s)
    return Outcome(stall_s=stall_s, interval_s=chosen, saving_share=saving, restart_share=restart, useful_share=useful,
                   redone_share=max(0.0, 1 - useful - saving - restart))  # fmt: skip
