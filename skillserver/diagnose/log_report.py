"""A log, or several of one experiment -> one report: findings worst first, goodput, statistics, what was not judged.

Joins the readers and the judges of this subject. Keeps the answer short: findings of the same kind are capped and counted in
`left_out`. Knows everything that begins with log_; no files by name, no permissions.

>>> diagnose([("run", log_reading.read_text(text))]).findings[0].code
'loss_spike'
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pydantic import BaseModel, Field

from skillserver import findings
from skillserver.diagnose import log_compare, log_loss, log_numerics, log_speed, log_story, log_trend
from skillserver.diagnose.log_compare import CrossRun
from skillserver.diagnose.log_reading import Log
from skillserver.diagnose.log_robust import median
from skillserver.diagnose.log_series import Run, segments
from skillserver.findings import Finding, Verdict

SHOWN = 12
SERIES = {"loss": "nats as printed", "grad_norm": "as printed", "lr": "", "loss_scale": "", "step_time_s": "s", "tokens_per_s": "1/s as printed"}


class Goodput(BaseModel):
    """Steps kept, steps run twice, time without training; null where the log does not say."""

    useful_steps: int
    lost_steps: int
    downtime_s: float | None
    restarts: int


class Series(BaseModel):
    """One quantity over the whole log; extremes are of its finite values."""

    name: str
    unit: str
    reports: int
    first: float | None
    last: float | None
    median: float | None
    lowest: float | None
    highest: float | None


class LogDiagnosis(BaseModel):
    """`steps` = steps that the log covers, `reports` = lines it covers them with. Times and losses are the run's own words."""

    summary: str
    verdict: Verdict
    format: str
    steps: int
    first_step: int | None
    last_step: int | None
    total_steps: int | None
    reports: int
    findings: list[Finding]
    goodput: Goodput | None
    statistics: list[Series]
    cross_run: CrossRun | None = None
    plot: str = ""
    left_out: list[str] = Field(default_factory=list)
    skipped: list[str]
    next: str


def diagnose(logs: Sequence[tuple[str, Log]]) -> LogDiagnosis:
    """Report on a log; with several, on the first in full, on the others by their findings, and on the first two side by side."""
    found: list[Finding] = []
    for name, log in logs:
        of_log = judge(log)
        found += [each.model_copy(update={"subject": f"{name}: {each.subject}"}) for each in of_log] if len(logs) > 1 else of_log
    log = logs[0][1]
    run = log.run
    shown, left_out = _capped(findings.worst_first(found))
    cross = log_compare.compare(logs[0][0], run, logs[1][0], logs[1][1].run) if len(logs) > 1 else None
    story = log_story.goodput(log)
    judged = len(run.values("loss")[0]) > 0 or bool(found)
    return LogDiagnosis(
        summary=_summary(run, found, cross), verdict=findings.verdict(found, judged=judged), format=run.format, steps=_steps(run),
        first_step=run.steps[0] if len(run) else None, last_step=max(run.steps, default=None), total_steps=run.total or None, reports=len(run),
        findings=shown, goodput=Goodput(**vars(story)) if story else None, statistics=_statistics(run), cross_run=cross, left_out=left_out,
        skipped=_skipped(log, len(logs)), next=_next(shown, cross),
    )  # fmt: skip


def judge(log: Log) -> list[Finding]:
    """Every finding of one log, causes before consequences."""
    run = log.run
    story = log_story.story_findings(log)
    numbers = log_numerics.numeric_findings(run, log.events)
    return [*story, *numbers, *log_loss.loss_findings(run), *log_trend.trend_findings(run), *log_speed.speed_findings(run)]


def _steps(run: Run) -> int:
    """Steps that the stretches cover, each step once."""
    if not len(run):
        return max((each.step for each in run.evaluations), default=0)
    covered, top = 0, min(run.steps) - 1
    for start, end in segments(run):
        first, last = run.steps[start], run.steps[end - 1]
        covered += max(last - max(first, top + 1) + 1, 0)
        top = max(top, last)
    return covered


def _capped(found: list[Finding]) -> tuple[list[Finding], list[str]]:
    rest = found[SHOWN:]
    return _once(found[:SHOWN]), [f"{each.severity} {each.code}" + (f" at step {each.step}" if each.step is not None else "") for each in rest[:20]]


def _once(shown: list[Finding]) -> list[Finding]:
    """Say a reason once: a later finding with the same one keeps the first word of its action and points back."""
    said: dict[str, str] = {}
    brief = []
    for each in shown:
        if each.reason in said:
            action = each.action.split(":")[0]
            each = each.model_copy(update={"reason": f"as for {said[each.reason]}", "action": action, "sections": []})
        else:
            said[each.reason] = each.code + (f" at step {each.step}" if each.step is not None else "")
        brief.append(each)
    return brief


def _summary(run: Run, found: list[Finding], cross: CrossRun | None) -> str:
    span = f"steps {run.steps[0]} to {max(run.steps)}" if len(run) else f"{len(run.evaluations)} evaluations"
    counts = [(name, sum(each.severity == name for each in found)) for name in ("critical", "warning")]
    said = ", ".join(f"{number} {name}" for name, number in counts if number) or "nothing to act on"
    worst = [each for each in findings.worst_first(found) if each.severity != "info"][:3]
    places = "; ".join(f"{each.code.replace('_', ' ')}" + (f" at step {each.step}" if each.step is not None else "") for each in worst)
    both = f" Spikes of both runs: {cross.verdict} ({cross.evidence[0]})." if cross else ""
    return f"{run.format} log, {_reports(len(run))}, {span}: {said}{': ' + places if places else ''}.{both}"


def _reports(number: int) -> str:
    return f"{number:,} report" + ("" if number == 1 else "s")


def _statistics(run: Run) -> list[Series]:
    found = []
    for name, unit in SERIES.items():
        _rows, values = run.values(name)
        if values:
            found.append(_series(name, unit, values))
    if run.evaluations:
        found.append(_series("eval_loss", "nats as printed", [each.loss for each in run.evaluations]))
    return found


def _series(name: str, unit: str, values: list[float]) -> Series:
    finite = [value for value in values if math.isfinite(value)]
    return Series(name=name, unit=unit, reports=len(values), first=values[0], last=values[-1], median=median(finite) if finite else None,
                  lowest=min(finite, default=None), highest=max(finite, default=None))  # fmt: skip


def _skipped(log: Log, logs: int) -> list[str]:
    run = log.run
    said = [f"no {what} in this log: {judged} not judged" for what, names, judged in (
        ("gradient norm", ("grad_norm",), "precursors of spikes"),
        ("step time, tokens a second or date", ("step_time_s", "tokens_per_s", "clock_s", "time_s"), "speed and hangs"),
        ("training loss", ("loss",), "the loss curve"),
    ) if not any(run.values(name)[0] for name in names)]  # fmt: skip
    if len(run.evaluations) < 2:
        said.append("fewer than two evaluations: overfitting not judged")
    if len(run) < 16:
        said.append(f"only {_reports(len(run))}: spikes judged by ratio, no trend")
    if run.counted:
        said.append("the format prints no step: reports are counted instead")
    if run.repeats:
        said.append(f"{run.repeats} reports of other ranks or for a step already seen")
    if run.fold > 1:
        said.append(f"long log: {run.fold} reports folded into one, the one with the highest loss kept")
    said += [f"another format in the file, not judged: {other}" for other in log.others]
    if logs > 2:
        said.append("only the first two logs are compared side by side")
    return said


NEXT = (("hardware_failure", "check_gpu_health on that node, or on its pasted nvidia-smi -q and kernel log"),
        ("hang", "diagnose_hang with py-spy stacks or Flight Recorder dumps of all ranks"),
        ("crash", "explain_error on the same log"), ("no_label_signal", "look at one collated batch"),
        ("throughput_drop", "check_gpu_health on every node of the job, then run_mamf on the slow one"),
        ("divergence", "read_knowledge training/instabilities#divergence-without-a-spike"),
        ("loss_spike", "pass paths=[this log, one of another seed or optimiser] to tell bad data from the optimiser"),
        ("loss_scale_collapse", "read_knowledge training/instabilities#loss-scale-collapses"),
        ("nan", "read_knowledge training/instabilities#find-the-first-layer-with-nan-or-inf"))  # fmt: skip


def _next(shown: list[Finding], cross: CrossRun | None) -> str:
    acted = {each.code for each in shown if each.severity != "info"}
    for code, step in NEXT:
        if code in acted and not (cross and code == "loss_spike"):
            return step
    first = next((each for each in shown if each.severity != "info" and each.sections), None)
    return f"read_knowledge {first.sections[0]}" if first else "nothing to do: keep the log"
