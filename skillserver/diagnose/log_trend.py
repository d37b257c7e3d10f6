"""Trends of a run: not learning (plateau), overfitting, and a curve too noisy to judge step by step.

A flat loss is alarming only where it is high: a run that has converged is flat too. Above 4.5 nats a token a language model
has learnt little more than how frequent words are. Overfitting needs evaluations that rise while training still falls.
Knows a Run; not spikes.

>>> [finding.code for finding in trend_findings(run)]
['plateau']
"""

from __future__ import annotations

import itertools
import math

from skillserver import topics
from skillserver.diagnose.log_robust import blocks, jitter, median
from skillserver.diagnose.log_series import Evaluation, Run, segments
from skillserver.findings import Finding

HIGH = 4.5  # nats a token; GPT-2 passes it after some hundred steps
FLAT = 0.03  # less improvement than this share from the second eighth to the last quarter
REPORTS, STEPS = 60, 500  # least log that can be called flat
RISE, RISE_OF_TWO = 0.03, 0.10  # evaluation loss over its best
NOISY = 0.12  # sigma from report to report, as a share of the loss


def trend_findings(run: Run) -> list[Finding]:
    """Plateau, overfitting, noise."""
    return [*_plateau(run), *_overfit(run), *_noisy(run)]


def _plateau(run: Run) -> list[Finding]:
    found = []
    for start, end in segments(run):
        rows, values = run.values("loss", start, end)
        pairs = [(row, value) for row, value in zip(rows, values, strict=True) if math.isfinite(value)]
        if len(pairs) < REPORTS or run.steps[rows[-1]] - run.steps[rows[0]] < STEPS:
            continue
        finite = [value for _row, value in pairs]
        eighth, quarter = len(finite) // 8, len(finite) // 4
        early, late = median(finite[eighth : eighth + quarter]), median(finite[-quarter:])
        share = (early - late) / max(abs(early), 1e-12)
        if abs(share) < FLAT and late >= HIGH:
            found.append(_flat(run, [row for row, _value in pairs], early, late, eighth))
    return found[:2]


def _flat(run: Run, rows: list[int], early: float, late: float, eighth: int) -> Finding:
    first, last = run.steps[rows[eighth]], run.steps[rows[-1]]
    return Finding(
        code="plateau", severity="warning", subject="training loss", step=first, last_step=last,
        evidence=[f"loss {early:.4g} near step {first}, {late:.4g} near {last}: {early - late:+.3g} better in {last - first} steps"],
        reason=f"The loss is flat at {late:.3g}. For a language model that is about what word frequencies alone give: it does not use the context.",
        action="fix_setup: overfit one batch first; check learning rate, attention mask, label shift, frozen or detached parameters",
        sections=topics.sections("plateau"),
    )  # fmt: skip


def _overfit(run: Run) -> list[Finding]:
    evals = [each for each in run.evaluations if math.isfinite(each.loss)]
    if len(evals) < 2:
        return []
    best = min(range(len(evals)), key=lambda place: evals[place].loss)
    after = evals[best + 1 :]
    if not after:
        return []
    last = median([each.loss for each in after[-3:]]) if len(after) >= 3 else after[-1].loss
    share = (last - evals[best].loss) / max(abs(evals[best].loss), 1e-12)
    least = RISE if len(after) >= 2 else RISE_OF_TWO
    noise = jitter([each.loss for each in evals[: best + 1]][-20:]) if best >= 8 else 0.0
    if share < least or last - evals[best].loss < 3 * noise or not _training_falls(run, evals[best], after[-1]):
        return []
    rising = sum(later.loss > earlier.loss for earlier, later in zip(evals[best:], after, strict=False)) / len(after)
    return [_overfitting(evals[best], after, last, share)] if rising >= 0.6 else []


def _overfitting(best: Evaluation, after: list[Evaluation], last: float, share: float) -> Finding:
    return Finding(
        code="overfit", severity="warning", subject="evaluation loss", step=best.step, last_step=after[-1].step,
        evidence=[f"evaluation loss best {best.loss:.4g} at step {best.step}, {last:.4g} after {len(after)} more evaluations (+{share:.0%}), "
                  "while the training loss goes on falling"],
        reason="The model learns the training set by heart: every further step makes it worse on other data.",
        action=f"restart_app: keep the checkpoint of step {best.step}; fewer epochs, more data, lower learning rate or more regularisation",
        sections=topics.sections("overfit"),
    )  # fmt: skip


def _training_falls(run: Run, best: Evaluation, last: Evaluation) -> bool:
    """The training loss behind the best evaluation is not above the one around it: else both rise, which is divergence."""
    rows, values = run.values("loss")
    pairs = [(run.steps[row], value) for row, value in zip(rows, values, strict=True) if math.isfinite(value)]
    before = [value for step, value in pairs if step <= best.step][-20:] or [value for step, value in pairs if step > best.step][:3]
    after = [value for step, value in pairs if best.step < step <= last.step][-20:] or [value for step, value in pairs if step > best.step][-20:]
    return not before or not after or median(after) <= median(before) * 1.01


def _noisy(run: Run) -> list[Finding]:
    _rows, values = run.values("loss")
    finite = [value for value in values if math.isfinite(value)]
    if len(finite) < 30:
        return []
    swings = [abs(after - before) / max(abs(before + after) / 2, 1e-12) for before, after in itertools.pairwise(finite)]
    large = sum(swing > 0.3 for swing in swings) / len(swings)
    usual = 1.048 * median(swings)
    if usual < NOISY and large < 0.1:
        return []
    levels, _size = blocks(finite, 8, 1)
    return [Finding(
        code="noisy", severity="info", subject="training loss",
        evidence=[f"changes by {usual:.0%} from one report to the next, by more than 30% in {large:.0%} of them; smoothed: "
                  + " -> ".join(f"{level:.3g}" for level in levels)],
        reason="Batches this small make single values meaningless: high ones are samples, not spikes.",
        action="none: judge a moving average, or accumulate more samples a step", sections=topics.sections("loss_spike"),
    )]  # fmt: skip
