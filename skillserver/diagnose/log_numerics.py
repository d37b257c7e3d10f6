"""Numbers that went wrong: NaN and infinity, a loss of exactly 0, missing losses, the fp16 loss scale, skipped steps.

A dynamic loss scale begins too high on purpose: skips in the first reports are its search. Hugging Face prints loss 0.0 where
it filtered NaN, so 0.0 from the first report means no labels, and later a NaN that nobody saw. DeepSpeed's overflows do not
show in Megatron's counter. Knows a Run and its events; not curves.

>>> [finding.code for finding in numeric_findings(run, [])]
['no_label_signal']
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from skillserver import topics
from skillserver.diagnose.log_events import Event
from skillserver.diagnose.log_series import ABSENT, Run
from skillserver.findings import Finding

SEARCH = 50  # steps in which the loss scale may search for its level
COLLAPSE = 8.0  # times lower than lately
LATELY = 30  # observations of the loss scale
FLOOR = 1.0
RUN_OF_OVERFLOWS = 5  # one after the other


def numeric_findings(run: Run, events: Iterable[Event]) -> list[Finding]:
    """All of them, causes before consequences."""
    overflows = [event for event in events if event.kind == "overflow"]
    masked = _no_labels(run)
    scale = _scale(run, overflows)
    return [*masked, *scale, *_skips(run, overflows, bool(scale)), *_missing(run), *([] if masked else _not_finite(run))]


def _no_labels(run: Run) -> list[Finding]:
    rows, values = run.values("loss")
    zeros = [row for row, value in zip(rows, values, strict=True) if value == 0.0]
    if not zeros or values[0] != 0.0 or len(zeros) < max(1, len(values) // 2):
        return []
    norms = [run.columns["grad_norm"][row] for row in zeros]
    bad_norm = any(norm != ABSENT and (norm == 0.0 or not math.isfinite(norm)) for norm in norms)
    bad_eval = [each for each in run.evaluations if not math.isfinite(each.loss)]
    if not bad_norm and not bad_eval and len(zeros) < 3:
        return []
    evidence = [f"loss exactly 0.0 in {len(zeros)} of {len(values)} reports, from step {run.steps[zeros[0]]}"]
    evidence += ["gradient norm 0 or NaN beside it"] if bad_norm else []
    evidence += [f"evaluation loss NaN {len(bad_eval)} times, first at step {bad_eval[0].step}"] if bad_eval else []
    return [Finding(
        code="no_label_signal", severity="critical", subject="labels", step=run.steps[zeros[0]], last_step=_later(run, zeros), evidence=evidence,
        reason="A loss of exactly 0 with such gradients is a mean over no tokens: all labels are masked (-100), or fp16 overflowed at once.",
        action="fix_setup: count labels != -100 in a batch that the collator made; check max_length, the chat template and the response marker",
        sections=topics.sections("no_labels", "loss_nan"),
    )]  # fmt: skip


def _later(run: Run, rows: list[int]) -> int | None:
    return run.steps[rows[-1]] if run.steps[rows[-1]] > run.steps[rows[0]] else None


def _not_finite(run: Run) -> list[Finding]:
    rows, values = run.values("loss")
    bad = [row for row, value in zip(rows, values, strict=True) if not math.isfinite(value)]
    hidden = [row for row, value in zip(rows, values, strict=True) if value == 0.0 and _norm_is_bad(run, row)] if not bad else []
    found = []
    if bad or hidden:
        found.append(_nan_loss(run, rows, values, bad or hidden, bool(hidden)))
    counted = [row for row, value in zip(*run.values("nans"), strict=True) if value > 0]
    if counted and not bad:
        found.append(_nan(run, counted, "iterations with NaN", f"the run counts NaN iterations in {len(counted)} reports", "warning"))
    norms = [row for row in run.values("grad_norm")[0] if _norm_is_bad(run, row)]
    if norms and not found:
        found += _nan_norm(run, norms)
    evals = [each for each in run.evaluations if not math.isfinite(each.loss)]
    if evals and not bad and not hidden:
        finding = _nan(run, [], "evaluation loss", f"{len(evals)} of {len(run.evaluations)} evaluations are NaN or infinite", "warning")
        finding.step, finding.last_step = evals[0].step, evals[-1].step if evals[-1].step > evals[0].step else None
        found.append(finding)
    return found


def _norm_is_bad(run: Run, row: int) -> bool:
    norm = run.columns["grad_norm"][row]
    return norm != ABSENT and not math.isfinite(norm)


def _nan_loss(run: Run, rows: list[int], values: list[float], bad: list[int], hidden: bool) -> Finding:
    before = [value for row, value in zip(rows, values, strict=True) if row < bad[0]]
    for_good = (bad[-1] == rows[-1] and len(bad) > 1) or rows[-1] == bad[0]
    said = (
        f"loss {'0.0 with a NaN gradient norm' if hidden else 'NaN or infinite'} in {len(bad)} of {len(values)} reports, first at {run.steps[bad[0]]}"
    )
    said += f", last finite loss {before[-1]:.4g}" if before and math.isfinite(before[-1]) else ", from the first report on"
    finding = _nan(run, bad, "training loss", said, "critical")
    if not for_good:
        finding.evidence.append("finite losses follow: those steps were skipped, or only one rank saw it")
    return finding


def _nan_norm(run: Run, norms: list[int]) -> list[Finding]:
    """Not finite now and then is fp16's way of finding its scale; often is not."""
    reports = len(run.values("grad_norm")[0])
    early = run.steps[norms[-1]] - run.steps[0] <= SEARCH * run.interval()
    harmless = early or len(norms) <= max(2, reports // 500)
    severity = "info" if harmless else "warning"
    return [_nan(run, norms, "gradient norm", f"gradient norm NaN or infinite in {len(norms)} of {reports} reports, the loss finite", severity)]


def _nan(run: Run, rows: list[int], subject: str, said: str, severity: str) -> Finding:
    return Finding(
        code="nan", severity=severity, subject=subject, evidence=[said], count=max(len(rows), 1),  # type: ignore[arg-type]
        step=run.steps[rows[0]] if rows else None, last_step=_later(run, rows) if rows else None,
        reason="NaN at the first step is a bug (data, labels, dtype); after thousands it is divergence or hardware.",
        action="restart_app: go back to the last finite checkpoint; find the first layer that is not finite before going on"
        if severity == "critical" else "observe: find the batch and the layer if it comes again",
        sections=topics.sections("loss_nan"),
    )  # fmt: skip


def _missing(run: Run) -> list[Finding]:
    if not run.wants_loss:
        return []
    loss = run.columns["loss"]
    missing = [row for row in range(len(run)) if loss[row] == ABSENT]
    found = []
    for group in _groups(missing)[:5]:
        first, last = run.steps[group[0]], run.steps[group[-1]]
        skipped = sum(value for row in group if (value := run.columns["skipped"][row]) != ABSENT)
        found.append(Finding(
            code="missing_loss", severity="warning", subject="training loss", step=first, last_step=last if last > first else None, count=len(group),
            evidence=[f"{len(group)} report(s) without a loss, steps {first} to {last}" + (f"; {skipped:.0f} iterations skipped" if skipped else "")],
            reason="This format leaves the loss out when every step of the interval was skipped: nothing was learnt or can be judged there.",
            action="observe: in the first steps this is the loss scale finding its level; later see the loss scale",
            sections=topics.sections("loss_scale"),
        ))  # fmt: skip
    return found


def _groups(rows: list[int]) -> list[list[int]]:
    groups: list[list[int]] = []
    for row in rows:
        if groups and row - groups[-1][-1] <= 2:
            groups[-1].append(row)
        else:
            groups.append([row])
    return groups


def _scales(run: Run, overflows: list[Event]) -> list[tuple[int, float]]:
    """(step, loss scale) in the order of the log, from reports and from overflow lines."""
    rows, values = run.values("loss_scale")
    told = [(run.lines[row], run.steps[row], value) for row, value in zip(rows, values, strict=True)]
    told += [(event.line, run.step_at(event.line) or 0, event.value) for event in overflows if event.value is not None]
    return [(step, value) for _line, step, value in sorted(told, key=lambda each: each[0])]


def _scale(run: Run, overflows: list[Event]) -> list[Finding]:
    """Places where the scale fell to an eighth of what it was lately, or to its floor; the search at the start does not count."""
    scales = _scales(run, overflows)
    begin = min((step for step, _value in scales), default=0)
    searched = sum(step - begin <= SEARCH for step, _value in scales) if begin <= SEARCH else 0
    found: list[Finding] = []
    since = searched if any(value > FLOOR for _step, value in scales[:searched]) or not searched else 0
    place = since
    while place < len(scales) and len(found) < 5:
        value = scales[place][1]
        highest = max((other for _step, other in scales[max(since, place - LATELY) : place]), default=value)
        if highest >= COLLAPSE * value or (value <= FLOOR and highest > FLOOR):
            finding, lowest = _collapse(scales, since, place, highest)
            found.append(finding)
            since = place = lowest
        place += 1
    return found


def _collapse(scales: list[tuple[int, float]], since: int, place: int, highest: float) -> tuple[Finding, int]:
    """(the finding, the place where the scale is lowest): from the last time it was at its height."""
    start = place
    while start > since and scales[start - 1][1] < highest:
        start -= 1
    lowest = place
    for other in range(place, min(len(scales), place + 200)):
        if scales[other][1] < scales[lowest][1]:
            lowest = other
        elif scales[other][1] > 4 * scales[lowest][1]:
            break
    step, last, value = scales[start][0], scales[lowest][0], scales[lowest][1]
    return Finding(
        code="loss_scale_collapse", severity="critical" if value <= FLOOR else "warning", subject="fp16 loss scale",
        step=step, last_step=last if last > step else None, evidence=[f"loss scale {highest:.6g} -> {value:.6g} between steps {step} and {last}"],
        reason="The scaler meets an overflow at almost every step: gradients are no longer finite in fp16, often just before the loss diverges.",
        action="restart_app: go back to a checkpoint before the fall; train in bf16 if the hardware has it, else lower the learning rate",
        sections=topics.sections("loss_scale"),
    ), lowest  # fmt: skip


def _skips(run: Run, overflows: list[Event], told: bool) -> list[Finding]:
    """Skipped steps: of the search at the start, unseen by the counter, and long rows of them unless the loss scale told of it."""
    rows, values = run.values("skipped")
    skipped = [(row, value) for row, value in zip(rows, values, strict=True) if value > 0]
    found = []
    begin = run.steps[0] if len(run) else 0
    early = [event for event in overflows if (run.step_at(event.line) or 0) <= SEARCH]
    at_start = [row for row, _value in skipped if run.steps[row] - begin <= SEARCH and begin <= SEARCH]
    if at_start or early:
        number = max(sum(value for row, value in skipped if row in set(at_start)), len(early))
        first, last = (run.steps[at_start[0]], run.steps[at_start[-1]]) if at_start else (begin, begin)
        found.append(Finding(
            code="benign_skips", severity="info", subject="skipped steps", step=first, last_step=last if last > first else None,
            evidence=[f"{number:.0f} steps skipped by step {last}"],
            reason="A dynamic loss scale starts high and halves until gradients fit: these skips are its search.",
            action="none", sections=topics.sections("loss_scale"),
        ))  # fmt: skip
    if overflows and not any(value > 0 for value in values) and values:
        found.append(Finding(
            code="counter_disagrees", severity="info", subject="skipped steps", count=len(overflows),
            evidence=[f"{len(overflows)} overflow lines, while the report counts 0 skipped iterations"],
            reason="DeepSpeed skips steps by itself and Megatron's counter does not see it.", action="none: believe the overflow lines",
            sections=topics.sections("loss_scale"),
        ))  # fmt: skip
    late = [] if told else [row for row, _value in skipped if row not in set(at_start)]
    return found + _late_skips(run, late)


def _late_skips(run: Run, rows: list[int]) -> list[Finding]:
    """Several reports in a row in which steps were skipped, long after the start."""
    found = []
    for group in _groups(rows):
        if len(group) >= RUN_OF_OVERFLOWS:
            found.append(Finding(
                code="loss_scale_collapse", severity="warning", subject="skipped steps", step=run.steps[group[0]], last_step=_later(run, group),
                count=len(group), evidence=[f"{len(group)} reports one after the other with skipped steps, from {run.steps[group[0]]}"],
                reason="One overflow in a thousand steps is normal for a dynamic loss scale; a row of them means that gradients overflow for good.",
                action="observe: look at loss and gradient norm of these steps; roll back if they do not settle",
                sections=topics.sections("loss_scale"),
            ))  # fmt: skip
    return found[:3]
