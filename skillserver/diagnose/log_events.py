"""Lines of a training log that are no reports but tell its story: overflows, checkpoints, a clean end, a watcher's calls.

Each line gives an event with its line number; the step is found later, from the reports around it. Counts are kept of kinds
that come by the thousand. Knows single lines; not reports, not errors (explain_error's signatures read those).

>>> event("[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 16384, reducing to 8192", 5).value
8192.0
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from skillserver.diagnose.log_formats.names import number

KEPT = 20_000
KINDS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("overflow", re.compile(r"OVERFLOW! Rank \d+ Skipping step\. Attempted loss scale: \S+, (?:reducing to (?P<v>[\d.e+-]+)|but hysteresis)")),
    ("overflow", re.compile(r"overflow detected, (?:ignoring gradient, )?setting loss scale to: (?P<v>[\d.e+-]+)")),
    ("overflow", re.compile(r"Gradient overflow\.\s+Skipping step, loss scaler \d+ reducing loss scale to (?P<v>[\d.e+-]+)")),
    ("finished", re.compile(r"\[after training is done\]|`Trainer\.fit` stopped: `max_\w+=\S+` reached|'train_runtime':|Training completed\. Do not|"
                            r"\bTraining (?:complete|finished|is done)\b|done training in [\d.]+ seconds")),
    ("left", re.compile(r"\[?exiting program (?:after [\d.]+ minutes|at iteration (?P<v>\d+))|exiting program")),
    ("saved", re.compile(r"successfully saved checkpoint|[Ss]aved? (?:model )?checkpoint|Saving model checkpoint|[Ss]aving (?:the )?checkpoint")),
    ("loaded", re.compile(r"successfully loaded checkpoint|[Rr]esum\w+ (?:training )?from\b.{0,40}(?:checkpoint|step|iteration)|"
                          r"[Ll]oad(?:ed|ing) (?:model )?checkpoint|[Cc]ontinuing training from global step")),
    ("idle", re.compile(r"not RUNNING or SCHEDULED|is scheduled to start in")),
)  # fmt: skip
GATES = ("verflow", "OVERFLOW", "exiting", "training is done", "stopped:", "runtime", "raining ", "heckpoint", "esum", "RUNNING", "scheduled")
STAMP = re.compile(r"(20\d\d)-(\d\d)-(\d\d)[T _](\d\d):(\d\d):(\d\d(?:[.,]\d{1,6})?)")


@dataclass(frozen=True, slots=True)
class Event:
    """One such line; `value` is the number it names (a loss scale, an iteration)."""

    kind: str
    line: int
    text: str
    value: float | None


def is_eventful(text: str) -> bool:
    """Whether a line may be an event: a cheap look before the patterns."""
    for word in GATES:  # noqa: SIM110  a plain loop: `any` of a generator costs three times as much, and this is the hot path
        if word in text:
            return True
    return False


def event(text: str, line: int) -> Event | None:
    """The event of a line, None for most."""
    for kind, pattern in KINDS:
        if match := pattern.search(text):
            value = match.groupdict().get("v")
            return Event(kind, line, text.strip()[:200], number(value) if value else None)
    return None


def stamp(text: str) -> float | None:
    """Seconds of a date like 2021-08-08 01:00:44,221 on a scale where only differences mean something."""
    match = STAMP.search(text, 0, 120)
    if not match:
        return None
    year, month, day, hour, minute = (int(match[place]) for place in range(1, 6))
    return _days(year, month, day) * 86400.0 + hour * 3600 + minute * 60 + float(match[6].replace(",", "."))


def _days(year: int, month: int, day: int) -> int:
    """Days of the civil calendar since a fixed day; any month above 12 only shifts, so a broken date cannot raise."""
    year -= month <= 2
    return 365 * year + year // 4 - year // 100 + year // 400 + (153 * ((month + 9) % 12) + 2) // 5 + day
