"""The loss curve: spikes, the gradient norm that announced them, runs that did not come back, slow divergence.

A bump of one report below 10% is counted, not reported: small batches make many. A spike that does not return is judged by
where the loss stays: above 1.3 times the level before is divergence, less is a plateau. Knows a Run; not hardware, not words.

>>> [finding.code for finding in loss_findings(run)]
['grad_norm_spike', 'loss_spike']
"""

from __future__ import annotations

import itertools
import math

from skillserver import topics
from skillserver.diagnose.log_robust import blocks, median, sigma
from skillserver.diagnose.log_series import Run, segments
from skillserver.diagnose.log_spikes import Episode, episodes
from skillserver.findings import Finding

BUMP = 0.10  # a bump of one report is worth a warning from here
SHOWN = 8  # spikes told one by one, the largest; the others are counted
LEAD = 5  # reports by which the gradient norm may be ahead of the loss
GRAD_RATIO, GRAD_ALONE = 2.0, 9.0  # rise over the median: beside a loss spike, and alone
STAYS, DIVERGED = 0.03, 0.3  # level after a spike over the level before
CREEP = 10  # reports from the first to the highest: a climb, not a spike
LATER = 50  # steps, or 10 reports, behind a spike before "it did not come back" can be said


def loss_findings(run: Run) -> list[Finding]:
    """Findings of every stretch between restarts, causes before consequences."""
    found: list[Finding] = []
    small: list[Episode] = []
    crowded: list[tuple[int, Episode]] = []
    for start, end in segments(run):
        rows, values = run.values("loss", start, end)
        everything = episodes(values)
        all_spikes = [episode for episode in everything if not episode.crowded]
        crowded += [(rows[episode.peak], episode) for episode in everything if episode.crowded]
        spikes = [episode for episode in all_spikes if episode.rise >= BUMP or episode.end - episode.start >= 2]
        small += [episode for episode in all_spikes if episode not in spikes]
        gradients = _gradients(run, (start, end), [(rows[spike.start], rows[spike.peak]) for spike in spikes])
        found += sorted([*gradients, *_spikes(run, rows, values, spikes)], key=lambda each: each.step or 0)
        found += _slow(run, rows, values, spikes)
    return found + _small(small) + _crowd(run, crowded)


def _spikes(run: Run, rows: list[int], values: list[float], spikes: list[Episode]) -> list[Finding]:
    told = sorted(sorted(spikes, key=lambda spike: -spike.rise)[:SHOWN], key=lambda spike: spike.start)
    found = []
    for spike in told:
        stays = _unrecovered(run, rows, values, spike)
        creeping = stays and spike.peak - spike.start > CREEP and values[spike.end] >= 0.9 * spike.value
        found += stays if creeping else [_spike(run, rows, values, spike), *stays]
    rest = [spike for spike in spikes if spike not in told]
    if rest:
        found.append(_rest(run, rows, rest))
    return found


def _rest(run: Run, rows: list[int], rest: list[Episode]) -> Finding:
    steps = [run.steps[rows[spike.peak]] for spike in rest]
    largest = max(spike.rise for spike in rest)
    return Finding(
        code="loss_spike", severity="info", subject="training loss, further spikes", count=len(rest), step=steps[0], last_step=steps[-1],
        evidence=[f"{len(rest)} more, up to {largest:.0%} above the level before: steps {', '.join(map(str, steps[:20]))}"],
        reason="Many short spikes of one run come from its data or from a learning rate at the edge; the larger ones are listed one by one.",
        action="observe: compare with a run of another seed (paths=[...])", sections=topics.sections("loss_spike"),
    )  # fmt: skip


def _spike(run: Run, rows: list[int], values: list[float], spike: Episode) -> Finding:
    start, peak = run.steps[rows[spike.start]], run.steps[rows[spike.peak]]
    back = spike.recovered if spike.recovered is not None else None
    end = run.steps[rows[spike.end]] if back is None else max(run.steps[rows[back - 1]] if back else peak, peak)
    if back is not None and back - spike.peak == 1:
        end, after = peak, f"normal again in the next report ({values[back]:.4g} at {run.steps[rows[back]]})"
    elif back is not None:
        after = f"normal again at step {run.steps[rows[back]]} ({values[back]:.4g})"
    elif spike.end >= len(values) - 1:
        after = "the log ends here"
    else:
        after = f"not back to it by the end of this stretch ({values[-1]:.4g} at {run.steps[rows[-1]]})"
    single = back is not None and back - spike.start == 1
    lasting = back is None and spike.end < len(values) - 1
    return Finding(
        code="loss_spike", severity="critical" if lasting and spike.rise > DIVERGED else "warning", subject="training loss",
        step=start, last_step=end if end > start else None,
        evidence=[f"loss {spike.value:.4g} at step {peak}, {spike.baseline:.4g} before (+{spike.rise:.0%}); {after}"],
        reason=_spike_reason(single, lasting), action=_spike_action(single, lasting), sections=topics.sections("loss_spike", "spike_cause"),
    )  # fmt: skip


def _spike_reason(single: bool, lasting: bool) -> str:
    if single:
        return "One report only and back at once: as a rule a bad batch (an outlier document), not the optimiser."
    if lasting:
        return "The loss left its trend and did not return to it: more training from here is likely to be lost."
    return "The optimiser took a bad step; runs often recover by themselves, and a repeat at higher loss is the sign of instability."


def _spike_action(single: bool, lasting: bool) -> str:
    if single:
        return "observe: look at the batch of this step; the same step in a run with the same data order shows that it is the data"
    if lasting:
        return "restart_app: go back to a checkpoint well before this step and skip its batches; if it comes back elsewhere lower the learning rate"
    return "observe: keep a checkpoint from before this step; roll back and skip its batches if the loss does not return"


def _unrecovered(run: Run, rows: list[int], values: list[float], spike: Episode) -> list[Finding]:
    """A plateau above the level before, or divergence, when enough of the log lies behind the spike to say so."""
    after = [value for value in values[spike.end + 1 :] if math.isfinite(value)]
    steps = run.steps[rows[-1]] - run.steps[rows[spike.end]]
    if spike.recovered is not None or not after or (len(after) < 10 and steps < LATER):
        return []
    level = median(after[-20:])
    share = (level - spike.baseline) / max(abs(spike.baseline), 1e-12)
    if share < STAYS or level <= spike.baseline + 3 * spike.sigma:
        return []
    diverged = share >= DIVERGED
    return [Finding(
        code="divergence" if diverged else "plateau", severity="critical" if diverged else "warning", subject="training loss",
        step=run.steps[rows[spike.start]], last_step=run.steps[rows[-1]],
        evidence=[f"loss {level:.4g} at the end of this stretch, {spike.baseline:.4g} before step {run.steps[rows[spike.start]]} (+{share:.0%})"],
        reason="Since the spike the loss stays above the level it had before: the run has not recovered.",
        action="restart_app: roll back to a checkpoint before the spike, skip or reorder its data; lower the learning rate if it happens again",
        sections=topics.sections("divergence" if diverged else "loss_spike"),
    )]  # fmt: skip


def _gradients(run: Run, bounds: tuple[int, int], spikes: list[tuple[int, int]]) -> list[Finding]:
    """Gradient norms that rose shortly before a loss spike, and very large ones alone."""
    rows, values = run.values("grad_norm", *bounds)
    found: list[Finding] = []
    others: list[Episode] = []
    for episode in episodes(values, ratio=GRAD_RATIO):
        first, last = rows[episode.start], rows[episode.end]
        spike = next((start for start, peak in spikes if first - 2 <= peak and start - LEAD <= last), None)
        if spike is not None and len(found) < SHOWN:
            found.append(_gradient(run, rows, episode, spike))
        elif not episode.crowded:
            others.append(episode)
    large = sorted((episode for episode in others if episode.rise >= GRAD_ALONE), key=lambda episode: -episode.rise)[:3]
    found += [_gradient(run, rows, episode, None) for episode in sorted(large, key=lambda episode: episode.start)]
    rest = len(others) - len(large)
    if rest:
        steps = [run.steps[rows[episode.peak]] for episode in others if episode not in large]
        found.append(Finding(
            code="grad_norm_spike", severity="info", subject="gradient norm", count=rest, step=steps[0], last_step=steps[-1],
            evidence=[f"{rest} times over 3x its median without a loss spike: steps {', '.join(map(str, steps[:12]))}"],
            reason="Clipping catches single large gradients; their rate over time is what to watch.",
            action="observe", sections=topics.sections("grad_norm"),
        ))  # fmt: skip
    return found


def _gradient(run: Run, rows: list[int], episode: Episode, spike: int | None) -> Finding:
    start, peak, end = (run.steps[rows[place]] for place in (episode.start, episode.peak, episode.end))
    ahead = run.steps[spike] - start if spike is not None else 0
    evidence = [f"grad norm {episode.baseline:.4g} before, {episode.value:.4g} at step {peak} ({episode.rise + 1:.3g}x)"]
    if ahead > 0:
        evidence.append(f"it rose {ahead} step{'s' if ahead > 1 else ''} before the loss did (step {run.steps[spike or 0]})")
    return Finding(
        code="grad_norm_spike", severity="warning", subject="gradient norm", step=start, last_step=end if end > start else None, evidence=evidence,
        reason="The gradient norm rose before the loss did: the batch of this step, or the one before, is where to look." if ahead > 0
        else "The gradients of this step are far out of their usual range.",
        action="observe: look at the batches of these steps; a check on the norm (skip the step above 5x its median) would have acted in time",
        sections=topics.sections("grad_norm"),
    )  # fmt: skip


def _slow(run: Run, rows: list[int], values: list[float], spikes: list[Episode]) -> list[Finding]:
    """The level of the loss rises to the end of a stretch, and no spike explains it."""
    finite = [(row, value) for row, value in zip(rows, values, strict=True) if math.isfinite(value)]
    levels, size = blocks([value for _row, value in finite], 200, 1 if len(finite) < 40 else 5)
    if len(levels) < 6:
        return []
    lowest = levels.index(min(levels))
    tail, end = levels[lowest:], median(levels[-2:])
    steady = sum(after > before for before, after in itertools.pairwise(tail)) / max(len(tail) - 1, 1)
    noise = sigma([after - before for before, after in itertools.pairwise(levels)])
    rise = end - levels[lowest]
    least = 0.15 if size == 1 else 0.08
    if len(tail) < 5 or steady < 0.6 or rise < least * abs(levels[lowest]) or rise < 4 * noise / math.sqrt(2):
        return []
    first = finite[min(lowest * size, len(finite) - 1)][0]
    if any(spike.recovered is None and rows[spike.start] >= first - size for spike in spikes):
        return []
    share = rise / abs(levels[lowest])
    return [Finding(
        code="divergence", severity="critical" if share >= DIVERGED else "warning", subject="training loss",
        step=run.steps[first], last_step=run.steps[finite[-1][0]],
        evidence=[f"level {levels[lowest]:.4g} near step {run.steps[first]}, {end:.4g} at the end (+{share:.0%}), rising in {steady:.0%} of blocks"],
        reason="The loss climbs steadily without a spike: learning rate too high, precision lost, or data that changed.",
        action="restart_app: stop, go back to a checkpoint near the lowest level and lower the learning rate, after a look at what changed there",
        sections=topics.sections("divergence"),
    )]  # fmt: skip


def _small(small: list[Episode]) -> list[Finding]:
    if not small:
        return []
    largest = max(episode.rise for episode in small)
    return [Finding(
        code="small_bumps", severity="info", subject="training loss", count=len(small),
        evidence=[f"{len(small)} bumps of one or two reports, the largest +{largest:.0%}"],
        reason="Bumps under 10% that are gone at once are usual for small batches.", action="none", sections=topics.sections("loss_spike"),
    )]  # fmt: skip


def _crowd(run: Run, crowded: list[tuple[int, Episode]]) -> list[Finding]:
    """High values that come too often to be events."""
    if not crowded:
        return []
    first, last = run.steps[crowded[0][0]], run.steps[crowded[-1][0]]
    largest = max(episode.rise for _row, episode in crowded)
    return [Finding(
        code="frequent_bumps", severity="info", subject="training loss", count=len(crowded), step=first, last_step=last if last > first else None,
        evidence=[f"{len(crowded)} high values from step {first} to {last}, up to +{largest:.0%}, in the company of others half as high"],
        reason="Values that stand out this often belong to the data of small or mixed batches; no single one is an event.",
        action="none: judge a moving average; if they come at equal distances look at what the data loader does there",
        sections=topics.sections("loss_spike"),
    )]  # fmt: skip
