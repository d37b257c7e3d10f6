"""Speed: a step change (one slow GPU), a slow drift, slow steps at regular places (checkpoints, evaluation).

Works on seconds a step: as printed, else from tokens a second, the trainer's own clock or dates. Divided by the batch size
where that changes (batch ramp-up is no slowdown). The first reports of a stretch, warm-up, are left out. Knows a Run.

>>> [(finding.code, finding.step) for finding in speed_findings(run)]
[('throughput_drop', 42783)]
"""

from __future__ import annotations

import itertools

from skillserver import topics
from skillserver.diagnose.log_robust import blocks, median, rising_share, sigma, slope
from skillserver.diagnose.log_series import ABSENT, Run, segments
from skillserver.findings import Finding

SHORT = 24  # fewer reports than this are split in two by hand
SHORT_DROP, DROP = 1.04, 1.05
APART = 2.0  # the gap between both sides over the spread within one
DRIFT, DRIFT_REPORTS = 0.06, 50
SETTLED = 16  # reports before which a rise is still warm-up
SLOW = 1.5  # times the median: a slow step
SHOWN = 4
Pace = list[tuple[int, float]]  # (row, seconds a step)


def paces(run: Run) -> Pace:
    """(row, seconds a step or its like) of the reports, from the best source that the log has; empty when it has none."""
    rows, values = run.values("step_time_s")
    if len(rows) >= 2:
        return _per_sample(run, [(row, value) for row, value in zip(rows, values, strict=True) if value > 0])
    rows, values = run.values("tokens_per_s")
    if len(rows) >= 2:
        best = max(values)
        return [(row, best / value) for row, value in zip(rows, values, strict=True) if value > 0]
    for clock in ("clock_s", "time_s"):
        rows, values = run.values(clock)
        if len(rows) >= 3:
            return _differences(run, rows, values)
    return []


def _per_sample(run: Run, pace: Pace) -> Pace:
    batch = run.columns["batch"]
    sizes = [batch[row] for row, _value in pace]
    if not sizes or ABSENT in sizes or min(sizes) <= 0 or min(sizes) == max(sizes):
        return pace
    last = sizes[-1]
    return [(row, value * last / batch[row]) for row, value in pace]


def _differences(run: Run, rows: list[int], values: list[float]) -> Pace:
    found = []
    for before, after, earlier, later in zip(rows, rows[1:], values, values[1:], strict=False):
        steps = run.steps[after] - run.steps[before]
        if steps > 0 and later > earlier:
            found.append((after, (later - earlier) / steps))
    return found


def speed_findings(run: Run) -> list[Finding]:
    """Of every stretch between restarts; a change across a restart is told by log_story."""
    pace = paces(run)
    found = []
    for start, end in segments(run):
        part = [each for each in pace if start <= each[0] < end]
        part = part[1:] if len(part) >= 3 and (run.steps[part[0][0]] <= 2 or part[0][1] > 1.1 * median([value for _row, value in part[1:]])) else part
        changes = _short_change(run, part) if len(part) < SHORT else _changes(run, part)
        found += changes or _drift(run, part)
        found += _slow_steps(run, part)
    return found[: 2 * SHOWN]


def _short_change(run: Run, part: Pace) -> list[Finding]:
    """The split of a few reports into two levels that do not touch."""
    values = [value for _row, value in part]
    best: tuple[float, int] | None = None
    for place in range(2, len(values) - 1):
        before, after = values[:place], values[place:]
        gap = min(after) - max(before)
        spread = max(max(before) - min(before), max(after) - min(after))
        if gap > 0 and gap >= APART * spread and median(after) >= SHORT_DROP * median(before) and (best is None or gap > best[0]):
            best = gap, place
    return [_drop(run, part, best[1], len(part))] if best else []


def _changes(run: Run, part: Pace) -> list[Finding]:
    """Rises of the level of blocks, each followed to where it ends."""
    values = [value for _row, value in part]
    levels, size = blocks(values, 1000, 4)
    found: list[Finding] = []
    noise = sigma([after - before for before, after in itertools.pairwise(levels)]) if len(levels) > 2 else 0.0
    place = 2
    while place < len(levels) - 1 and len(found) < SHOWN + 1:
        before, after = median(levels[max(0, place - 4) : place]), median(levels[place : place + 4])
        if after >= DROP * before and after - before > 5 * noise:
            finding, place = _change(run, part, levels, size, place, before)
            found += [finding] if finding else []
        place += 1
    return found if len(found) <= SHOWN else [_unsteady(run, part, found)]


def _change(run: Run, part: Pace, levels: list[float], size: int, place: int, before: float) -> tuple[Finding | None, int]:
    """(the drop whose level begins near block `place`, the block where it ends); None when it is over at once."""
    high = median(levels[place : place + 4])
    middle = (before + high) / 2
    end = next((other for other in range(place + 1, len(levels) - 1) if levels[other] < middle and levels[other + 1] < middle), len(levels))
    first = max(0, (place - 2) * size)
    values = [value for _row, value in part]
    onset = next(
        (at for at in range(first, min(len(values) - 3, (place + 4) * size)) if median(values[at : at + 3]) > middle and values[at] > middle), None
    )
    stop = len(part) if end >= len(levels) else end * size
    if onset is None or onset < SETTLED or stop - onset < max(10, size):
        return None, max(end, place)
    return _drop(run, part, onset, stop), end


def _drop(run: Run, part: Pace, onset: int, stop: int) -> Finding:
    values = [value for _row, value in part]
    before, after = median(values[max(0, onset - 200) : onset]), median(values[onset:stop])
    step, last = run.steps[part[onset][0]], run.steps[part[stop - 1][0]]
    lasts = "to the end of this stretch" if stop == len(part) else f"until step {last}, then as before"
    return Finding(
        code="throughput_drop", severity="warning", subject="speed", step=step, last_step=last if last > step else None,
        evidence=[f"{_shown(run, before)} before step {step}, {_shown(run, after)} from it on (+{after / before - 1:.1%} time), {lasts}"],
        reason="A sudden change without a restart: one part became slow, and a synchronous run is as fast as its slowest GPU, node, link or disk.",
        action="observe: if batch, sequence or window did not change here, clocks of all GPUs (check_gpu_health), then a benchmark of each node",
        sections=topics.sections("throughput_drop"),
    )  # fmt: skip


def _shown(run: Run, value: float) -> str:
    if len(run.values("step_time_s")[0]) < 2 and len(run.values("tokens_per_s")[0]) >= 2:
        best = max(run.values("tokens_per_s")[1])
        return f"{best / value:,.0f} tokens/s"
    return f"{value:.4g} s a step"


def _unsteady(run: Run, part: Pace, found: list[Finding]) -> Finding:
    first = found[0]
    return first.model_copy(update={
        "evidence": [f"the level of the step time rises at {len(found)} or more places, first at step {first.step}", *first.evidence],
        "last_step": run.steps[part[-1][0]], "count": len(found),
        "reason": "The speed keeps changing: shared network or storage, or several slow parts.",
    })  # fmt: skip


def _drift(run: Run, part: Pace) -> list[Finding]:
    """A step time that creeps up all the way."""
    values = [value for _row, value in part]
    levels, _size = blocks(values, 100, 5)
    if len(values) < DRIFT_REPORTS or len(levels) < 8:
        return []
    share = slope(levels) * (len(levels) - 1) / median(levels[: max(2, len(levels) // 10)])
    if share < DRIFT or rising_share(levels) < 0.7:
        return []
    step, last = run.steps[part[0][0]], run.steps[part[-1][0]]
    return [Finding(
        code="throughput_drop", severity="warning", subject="speed, slow drift", step=step, last_step=last,
        evidence=[f"{_shown(run, levels[0])} at the start, {_shown(run, levels[-1])} at the end: +{share:.1%} over {last - step} steps, creeping"],
        reason="A creeping slowdown is in the program or the host: growing lists, fragmented memory, a filling disk, heat; or longer sequences.",
        action="observe: rule out growing sequences, then watch host memory, clocks and temperature; if a restart cures it, it is the program",
        sections=topics.sections("throughput_drop"),
    )]  # fmt: skip


def _slow_steps(run: Run, part: Pace) -> list[Finding]:
    """Single slow reports: how much time they take, and whether they come at regular places."""
    if len(part) < SHORT:
        return []
    usual = median([value for _row, value in part])
    slow = [(row, value) for row, value in part if value > SLOW * usual]
    if len(slow) < 3 or len(slow) > 0.3 * len(part):
        return []
    total = sum(value for _row, value in part)
    lost = sum(value - usual for _row, value in slow)
    steps = [run.steps[row] for row, _value in slow]
    gaps = [after - before for before, after in itertools.pairwise(steps)]
    gap = int(median([float(each) for each in gaps]))
    regular = sum(gap > 0 and (each % gap == 0 or abs(each - gap) <= 1) for each in gaps) >= 0.7 * len(gaps)
    return [Finding(
        code="periodic_slow_steps" if regular else "slow_steps", severity="info", subject="speed", count=len(slow),
        step=steps[0], last_step=steps[-1],
        evidence=[f"{len(slow)} reports over {SLOW} times the usual {usual:.4g} s" + (f", every {gap} steps" if regular else "")
                  + f"; they take {lost / total:.1%} of the time"],
        reason="Regular slow steps are checkpoints, evaluation, or work that the optimiser does now and then." if regular
        else "Slow steps at irregular places come from storage, garbage collection or a shared network.",
        action="none" if lost < 0.05 * total else "observe: worth the effort at this share of the time",
        sections=topics.sections("throughput_drop"),
    )]  # fmt: skip
