"""What happened to the job: restarts and what they did to the loss, hangs, hardware errors, crashes, how it ended.

A restart shows as a step that goes back, a checkpoint that is loaded between reports, or a loss scale that jumps up. A hang is
a silence much longer than a step while something else (a watcher, a clock) goes on. Errors come from explain_error's
signatures and get the step of the last report before their line. Knows a Log; not curves.

>>> [(finding.code, finding.step) for finding in story_findings(log)]
[('hardware_failure', 43680)]
"""

from __future__ import annotations

import bisect
import itertools
import math
import re
from dataclasses import dataclass

from skillserver import topics
from skillserver.diagnose import log_events, signatures
from skillserver.diagnose.explain import Cause
from skillserver.diagnose.log_reading import Log
from skillserver.diagnose.log_robust import jitter, median
from skillserver.diagnose.log_series import ABSENT, Run
from skillserver.diagnose.log_speed import paces
from skillserver.findings import Finding
from skillserver.units import show_seconds

SILENCE_S, SILENCE_STEPS = 1800.0, 10.0  # both at least: half an hour and ten reports
GAP_S, GAP_STEPS = 600.0, 10.0  # between two reports
NEARLY = 0.995  # of the steps: the run is through
CHANGED = math.log(1.3)  # of the learning rate from one report to the next
JUMP = 0.05  # loss after a restart over the loss before
LINE = re.compile(r"line (\d+): (.*)", re.S)
OWN = ("loss_nan",)  # told from the numbers
WAITS = ("nccl_watchdog_timeout", "nccl_heartbeat", "gloo_recv_timeout", "monitored_barrier", "collective_divergence", "stack_in_collective")


@dataclass
class Goodput:
    """What the log shows of time and steps spent; None where it cannot be known."""

    useful_steps: int
    lost_steps: int
    downtime_s: float | None
    restarts: int


def story_findings(log: Log) -> list[Finding]:
    """Causes before consequences."""
    if not len(log.run):
        return []
    return [*_errors(log), *_restarts(log), *_gaps(log), *_rates(log), *_silence(log), *_ending(log)]


def restarts(log: Log) -> list[int]:
    """Rows with which a new start of the job begins."""
    run = log.run
    back = {row for row in range(1, len(run)) if run.steps[row] < run.steps[row - 1]}
    loaded = [event.line for event in log.events if event.kind == "loaded"]
    for line in loaded:
        row = bisect.bisect_right(run.lines, line)
        if 0 < row < len(run):
            back.add(row)
    rows, scales = run.values("loss_scale")
    for before, after, earlier, later in zip(rows, rows[1:], scales, scales[1:], strict=False):
        if later >= 8 * earlier and after > before:
            back.add(after)
    return sorted(back)


def goodput(log: Log) -> Goodput | None:
    """Steps kept and steps run twice; time between the stretches where the reports have dates."""
    run = log.run
    if not len(run):
        return None
    lost, top = 0, run.steps[0]
    for row in range(1, len(run)):
        if run.steps[row] < run.steps[row - 1]:
            lost += max(top - run.steps[row], 0) + run.interval()
        top = max(top, run.steps[row])
    times, starts = run.columns["time_s"], restarts(log)
    dated = [times[row] - times[row - 1] for row in starts if times[row] != ABSENT and times[row - 1] != ABSENT]
    down = (
        sum(max(each, 0.0) for each in dated) if starts and len(dated) == len(starts) else (0.0 if not starts and ABSENT not in times[:1] else None)
    )
    return Goodput(top - run.steps[0] + 1, lost, down, len(starts))


def _errors(log: Log) -> list[Finding]:
    """Culprits of explain_error with the step at which they came."""
    found = []
    for cause in log.errors.causes if log.errors else []:
        place = next((LINE.match(line) for line in cause.evidence if LINE.match(line)), None)
        if cause.role != "culprit" or cause.mild or cause.id in OWN or place is None or cause.confidence < 0.3:
            continue
        found.append(_error(log, cause, int(place[1])))
    return found[:3]


def _error(log: Log, cause: Cause, line: int) -> Finding:
    run, kind = log.run, signatures.by_id()[cause.id].kind
    goes_on = run.lines[-1] > line
    step = run.step_at(line)
    if kind == "hardware":
        code, action = "hardware_failure", "drain_rma: take the node out, reset or replace the part, resume elsewhere from the last checkpoint"
    elif cause.id in WAITS:
        code, action = "hang", "restart_app: find the rank that did not arrive first (diagnose_hang)"
    elif cause.id == "loss_scale_floor":
        code, action = "loss_scale_collapse", "restart_app: roll back well before this step; lower the learning rate, or train in bf16"
    elif cause.id == "slurm_time_limit":
        code, action = "time_limit", "restart_app: queue the next job; save before the limit"
    else:
        code, action = "crash", "restart_app: after the cause is removed (explain_error)"
    mild = goes_on or kind in ("circumstance", "generic")
    return Finding(
        code=code, severity="critical" if kind == "hardware" or not goes_on else "info" if mild else "warning", subject=cause.title, step=step,
        evidence=[*cause.evidence[:2], f"last report before it: step {step}" + ("; reports follow" if goes_on else "")],
        reason=cause.meaning or cause.title, action=action, sections=cause.sections,
    )  # fmt: skip


def _restarts(log: Log) -> list[Finding]:
    return [_restart(log.run, row) for row in restarts(log)[:6]]


def _restart(run: Run, row: int) -> Finding:
    step, before = run.steps[row], run.steps[row - 1]
    old = [value for at in range(row) if run.steps[at] <= step and math.isfinite(value := run.columns["loss"][at]) and value != ABSENT][-20:]
    new = [value for at in range(row, min(row + 10, len(run))) if math.isfinite(value := run.columns["loss"][at]) and value != ABSENT]
    evidence = [f"step {before} -> {step}" + (f": {before - step} steps run again" if step < before else "")]
    jump = 0.0
    if old and new:
        jump = max(new[:5]) / median(old) - 1 if median(old) > 0 else 0.0
        evidence.append(f"loss {median(old):.4g} before, {median(new[:5]):.4g} in the first reports after")
    scale, scaled = run.columns["loss_scale"][row - 1], run.columns["loss_scale"][row]
    evidence += [f"loss scale {scale:.6g} -> {scaled:.6g}"] if ABSENT not in (scale, scaled) and scaled >= 8 * scale else []
    noise = jitter(old) / median(old) if len(old) >= 4 and median(old) > 0 else 0.0
    worse = jump > max(JUMP, 5 * noise)
    last = run.steps[min(row + len(new) - 1, len(run) - 1)] if new else step
    return Finding(
        code="restart_effect" if worse else "restart", severity="warning" if worse else "info", subject="restart",
        step=step, last_step=last if last > step else None, evidence=evidence,
        reason="The loss after the restart is above the loss before: optimizer state, data order, learning rate or random state was not restored."
        if worse else "The job was started again here; the loss goes on where it was.",
        action="observe: compare learning rate, consumed samples and optimizer state with those of the checkpoint" if worse else "none",
        sections=topics.sections("resume_jump"),
    )  # fmt: skip


def _report_seconds(run: Run) -> float:
    """Seconds from one report to the next, 0 when the log does not say."""
    if len(run.values("step_time_s")[0]) >= 1:
        return median(run.values("step_time_s")[1]) * run.interval()
    pace = paces(run) if not len(run.values("tokens_per_s")[0]) else []
    return median([value for _row, value in pace]) * run.interval() if pace else 0.0


def _gaps(log: Log) -> list[Finding]:
    """Silences between two reports of one stretch, by their dates."""
    run, starts = log.run, set(restarts(log))
    rows, times = run.values("time_s")
    if len(rows) < 4:
        return []
    usual = median([later - earlier for earlier, later in itertools.pairwise(times)])
    gaps = [(before, later - earlier) for before, after, earlier, later in zip(rows, rows[1:], times, times[1:], strict=False)
            if later - earlier > max(GAP_S, GAP_STEPS * usual) and after not in starts]  # fmt: skip
    if len(gaps) > 3:
        return []  # evaluation or checkpoints: log_speed tells of slow steps
    return [Finding(
        code="hang", severity="warning", subject="silence between reports", step=run.steps[row], last_step=run.steps[row + 1],
        evidence=[f"{show_seconds(gap)} between the reports of steps {run.steps[row]} and {run.steps[row + 1]}, usually {show_seconds(usual)}"],
        reason="The run stood still and went on: a stalled file system, a long evaluation, or a node that was waited for.",
        action="observe: storage and network at that time", sections=topics.sections("hang"),
    ) for row, gap in gaps]  # fmt: skip


def _silence(log: Log) -> list[Finding]:
    """No report for long at the end, while dated lines still come and nobody said that the job ended."""
    run, last_line = log.run, log.run.lines[-1]
    if log.errors and any(cause.role == "culprit" and not cause.mild for cause in log.errors.causes):
        return []
    if any(event.kind in ("left", "finished", "idle") and event.line > last_line for event in log.events):
        return []
    stamps = [stamp for line in [*log.first_after, *log.last_after] if (stamp := log_events.stamp(line)) is not None]
    known = run.columns["time_s"][-1]
    if known != ABSENT:
        stamps.insert(0, known)
    if len(stamps) < 2:
        return []
    silence, report = max(stamps) - stamps[0], _report_seconds(run)
    if silence < max(SILENCE_S, SILENCE_STEPS * report):
        return []
    phase = next((line.strip()[:120] for line in reversed(log.first_after) if "loss" in line or "eval" in line.lower() or "checkpoint" in line), "")
    return [Finding(
        code="hang", severity="critical", subject="silence at the end", step=run.steps[-1],
        evidence=[f"no report for {show_seconds(silence)} after step {run.steps[-1]}" + (f", usually every {show_seconds(report)}" if report else ""),
                  *([f"last words of the run: {phase}"] if phase else [])],
        reason="Dated lines go on while training says nothing and no error came: the ranks wait for one another.",
        action="restart_app: first take the stacks of all ranks (py-spy) and give them to diagnose_hang: the odd one out is the culprit",
        sections=topics.sections("hang", "hang_stacks"),
    )]  # fmt: skip


def _ending(log: Log) -> list[Finding]:
    """A program that ended on purpose: fine at its last step, before it somebody has to queue the next job."""
    run = log.run
    left = [event for event in log.events if event.kind in ("left", "finished") and event.line > run.lines[-1]]
    if not left:
        return _vanished(log)
    idle = [event for event in log.events if event.kind == "idle" and event.line > left[0].line]
    early = left[0].kind == "left" and (not run.total or run.steps[-1] < NEARLY * run.total)
    saved = any(event.kind == "saved" and event.line > run.lines[-1] for event in log.events)
    step = run.steps[-1]
    of = f" of {run.total}" if run.total else ""
    return [Finding(
        code="clean_exit", severity="warning" if early else "info", subject="end of the job", step=step,
        evidence=[left[0].text[:120], f"last report: step {step}{of}", *([idle[0].text[:120]] if idle else [])],
        reason="The program ended on purpose" + (" and saved a checkpoint" if saved else "")
        + (", but training is not through: nothing runs until the next job starts." if early else "."),
        action="restart_app: queue the next job (an array or a dependency does it by itself)" if early else "none",
        sections=topics.sections("slurm_time_limit"),
    )]  # fmt: skip


def _vanished(log: Log) -> list[Finding]:
    """A watcher says that nothing runs, and the run said nothing about its end."""
    idle = [event for event in log.events if event.kind == "idle" and event.line > log.run.lines[-1]]
    if not idle or (log.errors and any(not cause.mild for cause in log.errors.causes)):
        return []
    return [Finding(
        code="idle", severity="warning", subject="end of the job", step=log.run.steps[-1], evidence=[idle[0].text[:120]], count=len(idle),
        reason="The job is gone, and its log names neither an error nor an end on purpose: it was killed from outside, or its last lines are lost.",
        action="restart_app: look into the scheduler's record (sacct) and the kernel log, then queue the next job",
        sections=topics.sections("exit_codes"),
    )]  # fmt: skip


def _rates(log: Log) -> list[Finding]:
    """Places where the learning rate jumps, while it moves little before and after: a schedule or configuration that was changed."""
    run = log.run
    rows, rates = run.values("lr")
    found = []
    for place in range(3, len(rates) - 1):
        before, now = rates[place - 1], rates[place]
        if before > 0 and now > 0 and abs(math.log(now / before)) > CHANGED:
            around = [(rates[place - 2], before), (rates[place - 3], rates[place - 2]), (now, rates[place + 1])]
            if all(early > 0 and late > 0 and abs(math.log(late / early)) < CHANGED / 3 for early, late in around):
                found.append((rows[place], before, now))
    return [Finding(
        code="lr_change", severity="info", subject="learning rate", step=run.steps[row], evidence=[f"learning rate {before:.3g} -> {now:.3g}"],
        reason="The learning rate was changed here, by hand or by a step of the schedule: differences in the loss from here on may come from it.",
        action="none", sections=topics.sections("divergence"),
    ) for row, before, now in found[:3]]  # fmt: skip
