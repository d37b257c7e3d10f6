"""Rules for loss spikes on real logs: how many of the bumps each one finds, and how often it alarms where nothing is.

    python benchmarks/spike_rules.py [log ...]

A bump is a report more than 10% above the median of the 30 reports around it (two-sided, which no rule may use as it goes);
an alarm beside no bump, not even a 5% one, is an extra. Compared: ours as reported (episodes that are at least 10% or last),
ours as detected (every episode), mean + 6 sigma over the last 128 reports (OLMo-core's stability monitor), and the same with
3 sigma (llm.c prints such z-scores and leaves the threshold to the reader). Without arguments reads ../shared/cases.
"""

from __future__ import annotations

import json
import math
import sys
from collections import deque
from pathlib import Path

from skillserver.diagnose import log_loss, log_reading, log_robust, log_spikes

CASES = Path(__file__).resolve().parents[2] / "shared/cases/training_logs"
BESIDE = ("modded_gpt_soap_700_1200.log", "llmc_gpt2_124m_full_every20.log")
WARM_UP = 140  # steps: a loss that falls steeply has no bumps worth the name
AROUND, BUMP, SMALL = 15, 0.10, 0.05
MOMENT_WINDOW = 128


def bumps(values: list[float], share: float) -> set[int]:
    """Places above the median around them by a share of it."""
    found = set()
    for place, value in enumerate(values):
        level = log_robust.median(values[max(0, place - AROUND) : place + AROUND + 1])
        if value > (1 + share) * level:
            found.add(place)
    return found


def by_moments(values: list[float], sigmas: float) -> set[int]:
    """The rule on mean and standard deviation of the last 128 values, once they are there."""
    window: deque[float] = deque(maxlen=MOMENT_WINDOW)
    found = set()
    for place, value in enumerate(values):
        if len(window) == MOMENT_WINDOW:
            mean = sum(window) / MOMENT_WINDOW
            spread = math.sqrt(sum((each - mean) ** 2 for each in window) / MOMENT_WINDOW)
            if value > mean + sigmas * spread:
                found.add(place)
        window.append(value)
    return found


def by_episodes(values: list[float], *, reported: bool) -> set[int]:
    """Our rule: every place of an episode, of those that are reported or of all."""
    found: set[int] = set()
    for episode in log_spikes.episodes(values):
        if not episode.crowded and (not reported or episode.rise >= log_loss.BUMP or episode.end - episode.start >= 2):
            found |= set(range(episode.start, episode.end + 1))
    return found


def score(name: str, values: list[float], rules: dict[str, set[int]]) -> list[str]:
    """One line for each rule."""
    real, small = bumps(values, BUMP), bumps(values, SMALL)
    near = {place + shift for place in small for shift in (-1, 0, 1)}
    lines = []
    for rule, alarms in rules.items():
        extra = len(alarms - near)
        lines.append(f"{name:36} {rule:22} {len(real & alarms):4}/{len(real):<4} {len(alarms):6} {extra:6} {1000 * extra / len(values):8.2f}")
    return lines


def main() -> None:
    files = [Path(name) for name in sys.argv[1:]] or [CASES / name for name in BESIDE if (CASES / name).is_file()]
    print(f"{'log':36} {'rule':22} {'bumps':>9} {'alarms':>6} {'extra':>6} {'per 1000':>8}")
    total: dict[str, int] = {}
    for file in files:
        run = log_reading.read_file(file).run
        rows, values = run.values("loss")
        values = [value for row, value in zip(rows, values, strict=True) if run.steps[row] >= WARM_UP and math.isfinite(value)]
        rules = {"ours, reported": by_episodes(values, reported=True), "ours, detected": by_episodes(values, reported=False),
                 "mean + 6 sigma (128)": by_moments(values, 6.0), "mean + 3 sigma (128)": by_moments(values, 3.0)}  # fmt: skip
        print("\n".join(score(file.stem[:36], values, rules)))
        real = bumps(values, BUMP)
        for rule, alarms in rules.items():
            total[rule] = total.get(rule, 0) + len(real & alarms)
    print(f"spike_rules: {json.dumps({'bumps_found': total, 'logs': len(files)})}")


if __name__ == "__main__":
    main()
