"""The first non-finite value of a run -> one finding: where it was made, what made it as far as the records show, what to do.

The first bad value in order is not always the culprit: an input that is bad while every module before was clean was
made by code between modules; a parameter that is bad while the pass before was clean was made by the update; a gradient
that is bad only after the reduction came from another rank. Knows the hook's records; not files, not growth.

>>> explain(bad, between_passes=1, ranks="rank 0").code
'fp16_overflow'
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from skillserver import topics
from skillserver.diagnose.numerics_reading import Bad
from skillserver.findings import Finding

PHASES = ("parameter", "forward", "backward", "gradient")
CLOSE = 0.25  # of fp16's largest number
FP16_MAX = 65_504.0
TO_BF16 = "train in bf16, or keep this module in fp32 and make its inputs smaller; a loss scale cannot help, it acts on gradients only"


@dataclass(frozen=True)
class Cause:
    """A code, what it means and what to do."""

    code: str
    reason: str
    action: str
    topics: tuple[str, ...]


def phase(bad: Bad) -> int:
    """The order of phases inside one pass."""
    return PHASES.index(bad.where) if bad.where in PHASES else len(PHASES)


def explain(bad: Bad, ranks: str, containers: frozenset[str] = frozenset()) -> Finding:
    """The critical finding of a first bad value. `containers` are modules that hold others; `ranks` says who saw it."""
    by_phase = {"parameter": _parameter, "forward": _forward, "backward": _backward, "gradient": _gradient}
    cause = by_phase.get(bad.where, _forward)(bad, bad.module in containers)
    return Finding(
        code=cause.code, severity="critical", subject=f"{name_of(bad)}, {ranks}", evidence=evidence(bad), reason=cause.reason, action=cause.action,
        sections=topics.sections(*cause.topics), step=bad.step,
    )  # fmt: skip


def name_of(bad: Bad) -> str:
    """`layers.3.fc2 (Linear)`."""
    return f"{bad.module or 'the whole model'}{f' ({bad.module_class})' if bad.module_class else ''}"


def evidence(bad: Bad) -> list[str]:
    """What was recorded, in words."""
    said = [f"pass {bad.pass_}, step {bad.step}: {bad.kind} in {bad.what} of {name_of(bad)}, {bad.dtype}, {bad.where}"]
    if bad.inputs:
        said.append(f"its inputs' largest: {', '.join(f'{value:.4g}' for value in bad.inputs)}")
    if bad.after:
        said.append(f"last finite value before it: {bad.after}")
    if bad.last_clean is not None:
        said.append(f"last watched pass with finite values: {bad.last_clean}")
    elif bad.pass_ > 0:
        said.append("no earlier pass was seen finite")
    return said


def _forward(bad: Bad, container: bool) -> Cause:
    if bad.what.startswith("input"):
        return _input(bad)
    if bad.inputs and not all(map(math.isfinite, bad.inputs)):
        return Cause("non_finite_input", "It was given a non-finite input that the watch could not see being made.",
                     "fix_setup: print that input; it comes from code outside the watched modules", ("loss_nan",))  # fmt: skip
    inside = f" It holds other modules, so it was made by its own code after {bad.after or 'its last module'}." if container else ""
    if bad.dtype == "float16" and bad.kind in ("inf", "-inf"):
        return Cause("fp16_overflow", f"Finite inputs gave infinity in fp16, whose largest number is 65,504.{inside}", f"restart_app: {TO_BF16}",
                     ("fp16_range", "loss_nan"))  # fmt: skip
    if bad.dtype == "float16" and any(value >= CLOSE * FP16_MAX for value in bad.inputs):
        return Cause("fp16_overflow", f"NaN from finite inputs near fp16's end (65,504): most likely an overflow inside, then inf - inf.{inside}",
                     f"restart_app: {TO_BF16}", ("fp16_range", "loss_nan"))  # fmt: skip
    if bad.kind == "nan":
        return Cause("nan_in_forward", f"Finite inputs and weights gave NaN: an invalid operation in it (0/0, inf - inf, a row that is masked "
                     f"whole, a root or logarithm of a negative number), or a faulty device.{inside}",
                     "restart_app from the last good checkpoint, after running this module alone on the saved inputs, also on another GPU",
                     ("loss_nan",))  # fmt: skip
    return Cause("inf_in_forward", f"Finite inputs gave infinity in {bad.dtype}: exp of a large number, a division by 0, or log(0).{inside}",
                 "fix_setup: clamp or guard that operation (eps), and see in growth whether values were rising", ("loss_nan",))  # fmt: skip


def _input(bad: Bad) -> Cause:
    if not bad.module:
        return Cause("bad_input", "The batch itself (or what an earlier pipeline stage sent) is not finite: no module of this rank was involved.",
                     "fix_setup: find that batch in the data, and drop or repair such rows (check the normalisation by a zero deviation)",
                     ("loss_nan",))  # fmt: skip
    parent = bad.module.rpartition(".")[0] or "the model"
    return Cause("made_between_modules", f"It was non-finite when it arrived, and every module watched before was finite: code in the forward of "
                 f"{parent} between {bad.after or 'its start'} and {bad.module} made it (or a part that is compiled).",
                 f"fix_setup: read that code of {parent}: attention scores, masks, divisions, norms; {bad.dtype} there may need fp32",
                 ("fp16_range", "loss_nan") if bad.dtype == "float16" else ("loss_nan",))  # fmt: skip


def _parameter(bad: Bad, _container: bool) -> Cause:
    if bad.pass_ == 0:
        return Cause("bad_weights", "The weights were not finite before the first pass: a checkpoint that holds NaN, or weights never filled "
                     "(meta device).", "fix_setup: load an earlier checkpoint; check the loading report for missing keys", ("loss_nan",))  # fmt: skip
    if bad.last_clean is not None and bad.pass_ - bad.last_clean == 1:
        return Cause("bad_update", "The pass before was finite, gradients as far as watched included: the optimizer's update made it (its "
                     "state, eps, the learning rate, or clipping by a non-finite norm).",
                     "restart_app from a checkpoint before this step; check optimizer state, eps and learning rate", ("loss_nan",))  # fmt: skip
    return Cause("bad_weights_unwatched", "The weights broke in a pass that was not watched, so this is not the origin.",
                 "restart_app from a checkpoint before this step with numerics_hook.watch(..., every=1)", ("loss_nan",))  # fmt: skip


def _backward(bad: Bad, _container: bool) -> Cause:
    where = f"between {bad.after} and the output of {name_of(bad)}, going backwards" if bad.after else "in the loss, before any module"
    if bad.dtype == "float16" and bad.kind in ("inf", "-inf"):
        return Cause("fp16_gradient_overflow", f"The forward pass was finite; a gradient left fp16's range (65,504) {where}.",
                     "restart_app with a lower or dynamic loss scale, or in bf16", ("loss_scale", "fp16_range"))  # fmt: skip
    return Cause("bad_backward", f"The forward pass was finite; the first non-finite gradient appeared {where}: a derivative that is infinite "
                 "there (sqrt or norm at 0, log near 0, the unused side of a where).",
                 "fix_setup: guard that operation with eps before it, not after; torch.autograd.detect_anomaly on this batch names the line",
                 ("loss_nan", "anomaly_mode"))  # fmt: skip


def _gradient(bad: Bad, _container: bool) -> Cause:
    if bad.what in ("before the step", "reduced"):
        return Cause("bad_reduced_gradient", "What this rank computed was finite as far as watched, its reduced gradient was not: it came "
                     "from another rank by the reduction, or from unscaling or clipping.",
                     "observe: read the files of all ranks together; the rank that was first is the origin", ("loss_nan",))  # fmt: skip
    return Cause("bad_gradient", "The forward pass and the gradients between modules were finite, the one of this parameter was not: a sum over "
                 "many positions that overflowed, accumulation over micro-batches, or, with several ranks, another rank's.",
                 "restart_app with gradients accumulated in fp32, or in bf16", ("loss_nan", "fp16_range"))  # fmt: skip
